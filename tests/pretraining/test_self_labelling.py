"""Denoising word alignment from recipe to checkpoint: it reads and labels TLM's rows, and reports its labels."""

import numpy as np
import pytest
import torch

from crosslingual_zoo.pretraining.objectives.tlm import TlmCollator
from crosslingual_zoo.pretraining.tracking import read_events
from tests.pretraining.made_texts import Example, texts_of


def test_dwa_has_no_rows_of_its_own_and_leaves_tlm_s_as_they_are(sample_tokenizer):
    rng = np.random.default_rng(0)
    examples = [Example([rng.integers(10, 500, 9), rng.integers(10, 500, 7)], "en-de", number) for number in range(4)]
    plain = TlmCollator(sample_tokenizer).sub_batch(texts_of(examples), (1, 0))
    read_by_dwa = TlmCollator(sample_tokenizer, draws=True).sub_batch(texts_of(examples), (1, 0))
    draws = read_by_dwa.pop("draws")
    assert read_by_dwa.keys() == plain.keys()
    for name in ("input_ids", "labels"):
        assert torch.equal(read_by_dwa[name], plain[name])
    ordinary = draws[plain["special_tokens_mask"] == 0]
    assert len(ordinary.unique()) == len(ordinary)
    assert ordinary.min() >= 0
    assert ordinary.max() < 2**31


@pytest.mark.slow
def test_run_of_the_recipe_for_own_translations(train, zoo_model_dir, files, tmp_path, monkeypatch, pytestconfig):
    """`source ||| target` lines, no monolingual text: two steps from a model of this zoo."""
    lines = [f"ein Satz {number} ||| sentence {number}" for number in range(200)]
    files.lines("pairs.txt", [*lines, "", "allein |||"])
    recipe = pytestconfig.rootpath / "pretraining" / "recipes" / "xlm_align" / "aligner.yaml"
    monkeypatch.chdir(tmp_path)
    train(
        f"--config={recipe}",
        f"model.start_from={zoo_model_dir('xlm_align')}",
        "phases.0.steps=2",
        "phases.0.warmup_steps=0",
        "phases.0.objectives.tlm={batch_size: 8, max_length: 64, weight: 0}",
        "evaluation.held_out_fraction=0.05",
        "log_every_steps=1",
    )
    events = read_events(tmp_path / "run")
    for event in events[:2]:
        assert "loss/dwa/source-target" in event
        assert "loss/tlm/source-target" not in event
    assert "held_out/dwa/source-target" in events[-1]
