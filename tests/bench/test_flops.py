"""The counts that the benchmarks set beside their measurements, against what torch counts."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from bench._common import peak_bytes
from bench._flops import BASE, Size
from bench.paper_steps import STEPS, floats_kept, flops_of, make_batches, make_model, predictions, run

SIZE, PAIRS, SIDE = Size(layers=3, hidden=64, vocab=400), 5, 14
EVEN = np.full((PAIRS, 2), SIDE)  # without padding


@pytest.fixture(scope="module")
def batches():
    return make_batches(EVEN, SIZE.vocab, "cpu")


def torch_counts(model, step, batches):
    """FLOPs of a step; torch may have no formula for addmm_, with which the head adds up its gradient."""
    with FlopCounterMode(display=False) as counter:
        losses = run(model, step, batches)
    predictions = sum(len(values) for loss, values in losses.items() if loss != "dwa")
    uncounted = 0 if torch.ops.aten.addmm_ in flop_registry else 2 * SIZE.hidden * SIZE.vocab * predictions
    return counter.get_total_flops() + uncounted, len(losses.get("dwa", ()))


@pytest.mark.parametrize(
    ("name", "step"),
    [(name, step) for name, steps in STEPS.items() for step in steps if name != "xlm_align" or step == "tlm"],
)
def test_useful_flops_are_those_that_torch_counts(name, step, batches):
    model = make_model(name, SIZE, 64, attn_implementation="eager")
    found, _ = torch_counts(model, STEPS[name][step], batches)
    assert flops_of(step, SIZE, batches) == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("step", ["tlm + dwa", "labeling", "tlm, then dwa"])
def test_those_of_alignment_come_close(step, batches):
    """Queries are padded to those of the pair that has most."""
    model = make_model("xlm_align", SIZE, 64, attn_implementation="eager")
    found, queries = torch_counts(model, STEPS["xlm_align"][step], batches)
    assert flops_of(step, SIZE, batches, model.config.labeling_layer, queries) == pytest.approx(found, rel=0.03)


def test_a_token_of_base_size_is_740_mflop():
    """At 512 positions, 15% predicted."""
    assert BASE.mlm([512] * 4, 0.15 * 4 * 512) / (4 * 512) == pytest.approx(740e6, rel=0.005)


def test_memory_is_what_the_count_predicts():
    size = SIZE._replace(vocab=8000)  # of which logits are a good part
    batches, model = make_batches(EVEN, size.vocab, "cpu"), make_model("veco", size, 64, attn_implementation="sdpa")
    predicted = {name: predictions(batch) for name, batch in batches.items()}
    for name, step in STEPS["veco"].items():
        run(model, step, batches)
        count = 4 * floats_kept(name, size, PAIRS * 2 * (SIDE + 2), predicted)
        assert peak_bytes(lambda step=step: run(model, step, batches), "cpu") == pytest.approx(count, rel=0.1), name
