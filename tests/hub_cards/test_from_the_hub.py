"""Pushed by the command, loaded by anybody: a fresh process takes the models from the Hub, with equal outputs."""

import json
import subprocess
import sys

import pytest

from crosslingual_zoo.hub_cards import folder_check
from crosslingual_zoo.hub_cards.push import push
from crosslingual_zoo.modeling import MODEL_TYPES

pytestmark = pytest.mark.slow

LOAD = """
import json, sys
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, pipeline
from transformers.utils import logging
logging.disable_progress_bar()
TEXTS = ["A model knows which word is which.", "Ein Modell"]
PAIRS = [("Does a model know it?", "Weiß ein Modell es?"), ("One two", "Eins zwei drei")]
def outputs(name, **options):
    options |= {"trust_remote_code": True}
    tokenizer = AutoTokenizer.from_pretrained(name, **options)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    model = AutoModel.from_pretrained(name, **options)
    with torch.no_grad():
        states = model(**batch).last_hidden_state
        scores = AutoModelForMaskedLM.from_pretrained(name, **options)(**batch).logits
    masked = pipeline("fill-mask", model=name, **options)(f"A model {tokenizer.mask_token} words.")
    aligned = None
    if model.config.model_type == "xlm_align":
        aligned = pipeline("word-alignment", model=name, **options)(PAIRS, probabilities=True)
    numbers = {"ids": batch["input_ids"].tolist(), "states": states.tolist(), "scores": scores.sum(-1).tolist()}
    return numbers | {"masked": masked, "aligned": aligned}, type(model).__module__
results = {}
for name, folder, commit in map(str.split, sys.argv[1:]):
    remote, module = outputs(name, revision=commit)
    local, _ = outputs(folder)
    results[name] = {"same": remote == local, "module": module} | {key: remote[key] for key in ("aligned", "masked")}
print(json.dumps(results))
"""


def test_from_pretrained_and_pipelines_from_the_hub(hub, ready_folder, tmp_path, monkeypatch):
    arguments = []
    commits = {}
    for model_type in MODEL_TYPES:
        repo = f"owner/{model_type}"
        folder = ready_folder(model_type, repo)
        commits[repo] = push(folder, repo)
        arguments.append(f"{repo} {folder} {commits[repo]}")
        monkeypatch.setattr(folder_check, "_load", lambda folder: [])  # takes long; the first is enough
    environment = {name: value for name, value in hub.environment().items() if name != "PYTHONPATH"}
    options = dict(cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    done = subprocess.run([sys.executable, "-c", LOAD, *arguments], **options)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert results.keys() == commits.keys()
    for repo, result in results.items():
        assert commits[repo] == hub.head(repo)
        assert result["module"].startswith("transformers_modules.owner.")
        assert commits[repo] in result["module"]
        assert result["same"]
        assert len(result["masked"]) == 5
        assert bool(result["aligned"]) == (repo == "owner/xlm_align")
