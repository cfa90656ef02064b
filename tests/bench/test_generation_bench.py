"""bench/generation.py compares models that write the same, and writes its figures."""

import pytest
import torch

from bench import generation
from bench.generation import OURS, PEER

SIZES = dict(layers=2, decoder_layers=1, hidden=64, vocab=200, sentences=6, length=9, new=5, rounds=1)
SMALL = [item for name, value in SIZES.items() for item in (f"--{name}", str(value))]


def test_both_models_are_the_same_function():
    flags = generation.read_flags(SMALL)
    models, sources = generation.make_models(flags), generation.make_sources(flags)
    weights = set(generation.peer_state(models[OURS].state_dict()))
    assert weights == set(models[PEER].state_dict()), "no weight of the peer is its own"
    target = torch.randint(4, 199, (6, 5))
    with torch.no_grad():
        logits = [model(**sources, decoder_input_ids=target).logits for model in models.values()]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
    lengths = sources["attention_mask"].sum(1)
    assert 3 <= lengths.min() < lengths.max() <= 9
    assert (sources["input_ids"].gather(1, lengths[:, None] - 1) == generation.END).all()
    assert (sources["input_ids"].eq(generation.PADDING) == sources["attention_mask"].eq(0)).all()


def test_the_command_writes_its_figures(figures):
    ways = figures("generation", *SMALL)["ways"]
    assert [(way["search"], way["model"]) for way in ways] == [
        (search, model) for search in ("greedy", "beam 5") for model in (OURS, PEER)
    ]
    assert all(way["tokens_per_second"] > 0 and way["same"] >= 0.9 for way in ways)
    assert [way["ratio"] for way in ways if way["model"] == PEER] == [1, 1]


def test_models_that_write_something_else_are_not_compared():
    flags = generation.read_flags(SMALL)
    written = torch.zeros(6, 6)
    assert generation.same_share(written, written, flags) == 1
    with pytest.raises(AssertionError):
        generation.same_share(written, written + 1, flags)
    with pytest.raises(AssertionError):
        generation.same_share(written[:, :5], written[:, :5], flags)
