"""The papers' steps that bench/paper_steps.py compares do the work that is said, and it writes its figures."""

import numpy as np
import pytest
import torch

from bench._flops import Size
from bench.paper_steps import STEPS, lengths_of_sides, make_batches, make_model, predictions, ratio_at_large, run

SIZE = Size(layers=2, hidden=64, vocab=300)
LENGTHS = np.array([[9, 12], [8, 10], [14, 9]])


@pytest.fixture(scope="module")
def batches():
    return make_batches(LENGTHS, SIZE.vocab, "cpu")


def test_rows_have_the_lengths_that_were_asked_for(batches):
    assert [n.tolist() for n in lengths_of_sides(batches["tlm"])] == (LENGTHS.T + 2).tolist()
    text, pseudo = lengths_of_sides(batches["btmlm"])
    assert text.tolist() == (LENGTHS.sum(1) + 2).tolist() and (pseudo - 2).tolist() == [4, 4, 5]
    sides = batches["ca_mlm_pairs"]
    for side, lengths in zip("xy", LENGTHS.T, strict=True):
        assert sides[side]["attention_mask"].sum(1).tolist() == (lengths + 2).tolist()
    assert 0 < batches["tlm"]["attention_mask"].float().mean() < 1  # there is padding


def test_compared_steps_have_the_same_tokens_and_labels(batches):
    assert all(batches["camlm"][name] is batches["tlm"][name] for name in ("input_ids", "labels"))
    for field in ("labels", "attention_mask", "segment_ids"):
        assert torch.equal(batches["btmlm"][field], batches["tlm of btmlm's rows"][field])
    gold = {}
    for name in ("tlm", "ca_mlm_pairs", "ca_mlm_segments"):
        sides = [batches[name]] if name == "tlm" else [batches[name][side] for side in "xy"]
        rows = [torch.where(side["labels"] != -100, side["labels"], side["input_ids"]) for side in sides]
        gold[name] = [sorted(torch.cat([row[i][(row[i] > 2)] for row in rows]).tolist()) for i in range(len(LENGTHS))]
        assert predictions(batches[name]) > 0
    assert gold["tlm"] == gold["ca_mlm_pairs"] == gold["ca_mlm_segments"]
    assert [len(tokens) for tokens in gold["tlm"]] == LENGTHS.sum(1).tolist()


@pytest.mark.parametrize("skip", [False, True])
def test_one_forward_for_tlm_and_dwa_learns_what_two_do(batches, skip):
    gradients = {}
    for step in ("tlm + dwa", "tlm, then dwa"):
        model = make_model("xlm_align", SIZE, 64)
        model.set_skip_padding(skip)
        losses = run(model, STEPS["xlm_align"][step], batches)
        assert set(losses) == {"tlm", "dwa"}
        gradients[step] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    one, two = gradients.values()
    assert one.keys() == two.keys()
    for name in one:
        assert torch.allclose(one[name], two[name], atol=1e-4), name


def test_large_sizes_are_the_papers():
    """Counted by hand: 164 / 72 of the layers, twice the predictions, at 2 x 128 positions."""
    assert ratio_at_large("ca_mlm_pairs", "tlm") == pytest.approx(2.20, abs=0.01)
    assert ratio_at_large("ca_mlm_pairs + tlm", "tlm") == pytest.approx(3.20, abs=0.01)
    assert ratio_at_large("camlm", "tlm") is None


def test_the_command_writes_its_figures(figures):
    sizes = ["--layers", "1", "--hidden", "64", "--vocab", "60", "--pairs", "2", "--length", "8", "--rounds", "1"]
    models = figures("paper_steps", *sizes)["models"]
    assert {name: list(steps) for name, steps in models.items()} == {name: list(steps) for name, steps in STEPS.items()}
    for name, steps in models.items():
        for key, row in steps.items():
            assert row["seconds_padded"] > 0 and row["seconds_skipped"] > 0 and row["padding_costs"] > 0
            assert row.get("against") == STEPS[name][key].against
            assert ("ratio_skipped" in row) == ("ratio_by_flops" in row) == (row.get("against") is not None)
    assert models["ernie_m"]["camlm"]["ratio_by_flops"] == 1 < models["ernie_m"]["btmlm"]["ratio_by_flops"]


def test_each_h_is_computed_once(batches):
    """Both passes of CA-MLM see every side once: what the FLOP count says they cost."""
    model, rows = make_model("veco", SIZE, 64), []
    for layer in model.roberta.encoder.layer:
        layer.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[0]))
    run(model, STEPS["veco"]["ca_mlm_pairs"], batches)
    assert rows == [2 * len(LENGTHS)] * 2 * SIZE.layers
