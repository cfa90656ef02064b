"""Pushed by the command, loaded by anybody: a fresh process takes the models from the Hub, with equal outputs."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

MODELS = ("veco", "ernie_m", "xlm_align", "metaxlm")
PRIVATE = "metaxlm"

PUSH = """
import sys
from hub_cards import folder_check
from hub_cards.push import main
for index, (folder, repo, *options) in enumerate(line.split() for line in sys.argv[1:]):
    if index:  # loading them all in a fresh process each takes long; the first is enough
        folder_check._load = lambda folder: []
    main(["--model", folder, "--repo", repo, *options])
"""

LOAD = """
import json, sys
import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, pipeline
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
    found = {"ids": batch["input_ids"].tolist(), "states": states.tolist(), "scores": scores.sum(-1).tolist()}
    return found | {"masked": masked, "aligned": aligned}, type(model).__module__
found = {}
for name, folder, commit in map(str.split, sys.argv[1:]):
    there, module = outputs(name, revision=commit)
    here, _ = outputs(folder)
    found[name] = {"same": there == here, "module": module, "aligned": there["aligned"], "masked": there["masked"]}
try:
    AutoConfig.from_pretrained(name, trust_remote_code=True, token=False, cache_dir="another cache")
except OSError:
    found["refused"] = "without a token"
print(json.dumps(found))
"""


def run_fresh(script, arguments, environment, folder):
    options = dict(cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    done = subprocess.run([sys.executable, "-c", script, *arguments], **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def pushed(hub_server, ready_folder, tmp_path):
    """Repository -> folder; the last one is private."""
    folders = {f"owner/{model_type}": ready_folder(model_type, f"owner/{model_type}") for model_type in MODELS}
    arguments = [f"{folder} {repo}" for repo, folder in folders.items()]
    assert arguments[-1].endswith(PRIVATE)
    arguments[-1] += " --private"
    environment = hub_server.environment() | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    printed = run_fresh(PUSH, arguments, environment, tmp_path)
    for repo in folders:
        assert f'AutoModel.from_pretrained("{repo}", revision="{hub_server.head(repo)}"' in printed
    return folders


def test_from_pretrained_and_pipelines_from_the_hub(hub_server, pushed, tmp_path):
    environment = {name: value for name, value in hub_server.environment().items() if name != "PYTHONPATH"}
    arguments = [f"{repo} {folder} {hub_server.head(repo)}" for repo, folder in pushed.items()]
    found = json.loads(run_fresh(LOAD, arguments, environment, tmp_path).splitlines()[-1])
    assert found.pop("refused") == "without a token"
    assert found.keys() == pushed.keys()
    for repo, result in found.items():
        assert result["same"], repo
        assert result["module"].startswith("transformers_modules.owner.") and hub_server.head(repo) in result["module"]
        assert len(result["masked"]) == 5 and bool(result["aligned"]) == (repo == "owner/xlm_align")
