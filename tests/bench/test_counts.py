"""The counts with which the benchmarks compare their measurements, against what torch counts."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from bench._flops import BASE, LARGE, Size
from bench._lengths import read_lengths
from bench.paper_steps import STEPS, flops_of, make_batches, make_model, run

SIZE, PAIRS, SIDE = Size(layers=2, hidden=64, vocab=200), 3, 14
EVEN = np.full((PAIRS, 2), SIDE)  # without padding


@pytest.fixture(scope="module")
def batches():
    return make_batches(EVEN, SIZE.vocab, "cpu")


@pytest.mark.parametrize("name", STEPS)
def test_useful_flops_are_those_that_torch_counts(name, batches):
    model = make_model(name, SIZE, 64, attn_implementation="eager")
    for key, step in STEPS[name].items():
        with FlopCounterMode(display=False) as counter:
            losses = run(model, step, batches)
        found, queries = counter.get_total_flops(), len(losses.get("dwa", ()))
        if torch.ops.aten.addmm_ not in flop_registry:  # with which the head adds up its gradient
            predicted = sum(len(values) for loss, values in losses.items() if loss != "dwa")
            found += 2 * SIZE.hidden * SIZE.vocab * predicted
        if name == "xlm_align" and key != "tlm":  # queries are padded to those of the pair that has most
            counted = flops_of(key, SIZE, batches, model.config.labeling_layer, queries)
            assert counted == pytest.approx(found, rel=0.03), key
        else:
            assert flops_of(key, SIZE, batches) == pytest.approx(found, rel=1e-9), key


def test_published_counts():
    """At 512 positions, 15% predicted; at the papers' sizes, 164 / 72 of the layers and twice the predictions."""
    assert BASE.mlm([512] * 4, 0.15 * 4 * 512) / (4 * 512) == pytest.approx(740e6, rel=0.005)
    predicted = 0.25 * 2 * 128
    assert LARGE.ca_mlm([128], [128], predicted) / LARGE.mlm([256], predicted) == pytest.approx(2.20, abs=0.01)


def test_the_shipped_lengths_are_those_of_news():
    pairs_M2, texts_K = read_lengths()
    assert pairs_M2.shape == (5 * 1997, 2) and texts_K.shape == (6 * 1997,)
    assert 30 < pairs_M2.mean() < 40 and 30 < texts_K.mean() < 40
    assert np.corrcoef(pairs_M2.T)[0, 1] > 0.8  # of translations: a side's length tells the other's
