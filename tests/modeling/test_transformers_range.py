"""The oldest transformers that pyproject.toml admits and the installed one run the same saved folders, alike.

The oldest is in a folder of its own, which is put first on the path; `make setup` makes it.
"""

import sys
from pathlib import Path

import pytest
import torch
import transformers

from tests.conftest import PREFIXES

pytestmark = pytest.mark.slow

OLDEST = Path(sys.prefix) / "oldest-transformers"
BACKBONES = ("xlm_align on modernbert", "ernie_m on eurobert", "metaxlm on deberta-v2")
AGAIN = "-again"
SENTENCES = ["The house is small, and the garden <mask> large.", "Das Haus <mask>."]
PAIRS = [("the house is small", "das Haus ist klein"), ("a b c", "c")]

# Runs every folder, and saves it again as `<folder><suffix>` where there is a suffix.
PROGRAM = """
import json, sys, warnings
import torch, transformers
warnings.filterwarnings("ignore", message=".torch.jit.script", category=DeprecationWarning)  # of DeBERTa's code in 5.17
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
folders, sentences, pairs, suffix = map(json.loads, sys.argv[2:])
results = {"version": transformers.__version__}
for name, folder in folders.items():
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    outputs = {"input_ids": inputs["input_ids"]}
    with torch.no_grad():
        encoder = AutoModel.from_pretrained(folder, trust_remote_code=True, attn_implementation="eager").eval()
        encoded = encoder(**inputs, output_hidden_states=True, output_attentions=True)
        outputs |= {"states": torch.stack(encoded.hidden_states), "attentions": torch.stack(encoded.attentions)}
        if "translation" in name:
            model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True).eval()
            outputs["translations"] = model.generate(**inputs, num_beams=2, max_new_tokens=9)
        else:
            model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
            outputs["logits"] = model(**inputs).logits
    if name.startswith("xlm_align"):
        aligned = pipeline("word-alignment", model=folder, trust_remote_code=True)(pairs, probabilities=True)
        outputs["links"] = [pair["links"] for pair in aligned]
        outputs["probabilities"] = torch.tensor([p for pair in aligned for p in pair["probabilities"]])
    if suffix:
        model.save_pretrained(folder + suffix)
        tokenizer.save_pretrained(folder + suffix)
    results[name] = outputs
torch.save(results, sys.argv[1])
"""


def test_transformers_range_oldest_and_installed_run_the_same_folders_alike(zoo_model_dir, fresh_process):
    """Also the folders that the oldest saved again."""
    if not (OLDEST / "transformers").is_dir():
        pytest.skip(f"{OLDEST} is not there: `make setup` installs the oldest transformers into it")
    decoder = dict(head="ForConditionalGeneration", decoder_layers=1, decoder_layer_indices=[1])
    made = {name: zoo_model_dir(name, copy=True) for name in (*PREFIXES, *BACKBONES)}
    made["veco_translation"] = zoo_model_dir("veco", copy=True, **decoder)
    folders = {name: str(folder) for name, folder in made.items()}
    oldest = fresh_process(PROGRAM, folders, SENTENCES, PAIRS, AGAIN, path=OLDEST)
    again = {name + AGAIN: folder + AGAIN for name, folder in folders.items()}
    newest = fresh_process(PROGRAM, folders | again, SENTENCES, PAIRS, "")
    assert newest["version"] == transformers.__version__ != oldest["version"]
    for name in folders:
        for outputs in (newest[name], newest[name + AGAIN]):
            torch.testing.assert_close({name: outputs}, {name: oldest[name]}, atol=1e-5, rtol=1e-5)
