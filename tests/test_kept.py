"""Folders that version 0.1.0 wrote, before the packages got their present layout: they load and go on."""

import json
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining, AutoTokenizer

from modeling.modeling_xlm_align import XlmAlignForPreTraining
from pretraining import run

ARCHIVE = Path(__file__).parent / "kept" / "run_of_0_1_0.tar.xz"  # 4 steps, a checkpoint at step 2, the model at step 4


@pytest.fixture
def kept(tmp_path, monkeypatch, sample_corpus_dir):
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have none
        archive.extractall(tmp_path)
    (tmp_path / "sample_corpus").symlink_to(sample_corpus_dir)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_a_run_goes_on_to_the_same_weights(kept):
    """Resumed at step 2 by today's code, it ends with the weights that 0.1.0 had at step 4."""
    expected = load_file((kept / "model").rename(kept.parent / "expected") / "model.safetensors")
    run.main(["--config", "run/recipe.yaml", "--resume"])
    found = load_file(kept / "model" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=1e-5, atol=1e-6)
    steps = [json.loads(line)["step"] for line in (kept / "events.jsonl").read_text().splitlines()]
    assert max(steps) == 4


def test_a_model_folder_loads_with_the_code_that_it_carries(kept):
    model = AutoModelForPreTraining.from_pretrained(kept / "model", trust_remote_code=True).eval()
    inputs = AutoTokenizer.from_pretrained(kept / "model")("Anna bakes bread.", return_tensors="pt")
    labels = inputs["input_ids"].clone()
    with torch.no_grad():
        theirs = model(mlm={**inputs, "labels": labels}).loss
        ours = XlmAlignForPreTraining.from_pretrained(kept / "model")
        torch.testing.assert_close(ours.eval()(mlm={**inputs, "labels": labels}).loss, theirs)
