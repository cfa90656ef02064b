"""What bench/vocabulary.py compares computes the same, and its shares add up."""

import pytest
import torch
from torch import nn

from bench.vocabulary import COMPILED, DEFAULT, FULL, FUSED, OURS, PARTS, WHOLE, cross_entropies

SMALL = "--layers 1 --hidden 64 --vocab 300 --rows 2 --length 16 --predictions 20 --rounds 2".split()


def test_shares_and_ratios(figures):
    parts = [part for part in PARTS if part != "compile"]
    found = figures("vocabulary", *SMALL, "--parts", *parts)["parts"]
    assert list(found) == ["shares", "memory", "adamw", "cross-entropy"]
    shares = {row["part"]: row for row in found["shares"]}
    assert shares["whole step"]["share"] == 1
    inner = ("  logits", "  softmax and rest", "  gradient products")
    assert sum(shares[name]["seconds"] for name in inner) >= 0.99 * shares["head"]["seconds"]
    memory = {row["part"]: row["mib"] * 2**20 for row in found["memory"]}
    assert memory["embedding and head"] == 16 * (300 * 64 + 300)  # a matrix and a bias, with gradient and two moments
    assert sum(row["share"] for row in found["memory"]) == pytest.approx(1)
    assert [row["way"] for row in found["adamw"]] == [FUSED, DEFAULT] and found["adamw"][1]["ratio"] > 0
    ways = {row["way"]: row for row in found["cross-entropy"]}
    assert set(ways) == set(cross_entropies()) and "ratio" in ways[FULL]
    assert all(row["loss"] == pytest.approx(ways[OURS]["loss"], abs=1e-4) for row in ways.values())


def test_all_ways_have_the_same_loss_and_gradients():
    torch.manual_seed(0)
    labels = torch.randint(50, (9,))
    found = {}
    for name, function in cross_entropies().items():
        generator = torch.Generator().manual_seed(1)
        inputs = [torch.randn(*shape, generator=generator).requires_grad_() for shape in ((9, 8), (50, 8), (50,))]
        loss = function(*inputs, labels)
        loss.backward()
        found[name] = [loss.detach(), *(one.grad for one in inputs)]
    assert len(found) == (4 if hasattr(nn, "LinearCrossEntropyOptions") else 2)
    for values in found.values():
        for one, other in zip(values, found[FULL], strict=True):
            assert torch.allclose(one, other, atol=1e-4)


def test_the_whole_model_is_compiled(figures, monkeypatch):
    """The benchmark compares the losses. Compiling itself takes a minute, and is left out here."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    rows = figures("vocabulary", *SMALL, "--parts", "compile")["parts"]["compile"]
    assert len(compiled) == 1 and [row["way"] for row in rows] == [WHOLE, COMPILED] and rows[1]["ratio"] > 0
