"""Nearest neighbors and mined pairs: against brute force, at the borders of blocks, with ties; the metric."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from finetuning.tasks.vectors.search import mine, nearest_neighbors


def check(source, target, k, size):
    """Of either side cosines and numbers, from all cosines in float64, rounded; of equal ones the first."""
    cosines = (F.normalize(source.double(), dim=-1) @ F.normalize(target.double(), dim=-1).T).float()
    for side, (near, numbers) in zip(
        (cosines, cosines.T), nearest_neighbors(source, target, k, size=size), strict=True
    ):
        values, order = side.sort(dim=1, descending=True, stable=True)
        assert torch.equal(numbers, order[:, :k])
        torch.testing.assert_close(near.float(), values[:, :k], rtol=0, atol=6e-8)  # one unit in the last place


def sentences(kind, sources=210, targets=140, size=48):
    """Vectors as models make them: in clusters; all alike, as of XLM-R without fine-tuning; without any structure."""
    generator = torch.Generator().manual_seed(1)
    common, centers = torch.randn(size, generator=generator), torch.randn(9, size, generator=generator)
    spread = {"clustered": 0.6, "alike": 0.02, "nearly the same": 2e-4, "apart": 1.0}[kind]
    source = spread * (centers[torch.arange(sources) % 9] + torch.randn(sources, size, generator=generator))
    target = source[:targets] + 0.4 * spread * torch.randn(targets, size, generator=generator)
    return (source, target) if kind == "apart" else (source + common, target + common)


@pytest.mark.parametrize("size", [32, 1000])
@pytest.mark.parametrize("kind", ["clustered", "alike", "nearly the same", "apart"])
def test_nearest_neighbors_are_those_of_float64(kind, size):
    for k in (1, 4, 500):
        check(*sentences(kind), k, size)


def test_nearest_neighbors_of_ties():
    source, target = sentences("clustered", 90, 60)
    check(torch.cat((source, source[:1].repeat(70, 1))), torch.cat((target, target[3:4].repeat(80, 1))), 4, 32)
    same = torch.ones(50, 8)
    for other in (same, -same, torch.zeros(40, 8)):
        check(other, same, 4, 16)


def brute_force(source, target, k):
    """[(margin, source, target)] as the definition says it, pair by pair, from all cosines at once."""
    source, target = (vectors.double().numpy() for vectors in (source, target))
    cosines = np.array([[s @ t / np.linalg.norm(s) / np.linalg.norm(t) for t in target] for s in source])

    def neighbors(row):
        return sorted(range(len(row)), key=lambda other: (-row[other], other))[:k]

    of_source, of_target = [neighbors(row) for row in cosines], [neighbors(row) for row in cosines.T]
    near_source = [np.mean(cosines[s, found]) for s, found in enumerate(of_source)]
    near_target = [np.mean(cosines[found, t]) for t, found in enumerate(of_target)]

    def margin(s, t):
        likeness = (near_source[s] + near_target[t]) / 2
        return cosines[s, t] / likeness if likeness > 0 else -math.inf

    proposed = [(s, max(found, key=lambda t: margin(s, t))) for s, found in enumerate(of_source)]
    proposed += [(max(found, key=lambda s: margin(s, t)), t) for t, found in enumerate(of_target)]
    free = [set(range(len(source))), set(range(len(target)))]
    pairs = []
    for s, t in sorted(proposed, key=lambda pair: (-margin(*pair), pair)):
        if s in free[0] and t in free[1] and margin(s, t) > -math.inf:
            free[0].remove(s)
            free[1].remove(t)
            pairs.append((margin(s, t), s, t))
    return pairs


def alike(count, generator, size=16):
    """Vectors that have something in common, as those of sentences have: cosines of about 0.5."""
    return torch.randn(count, size, generator=generator) + torch.ones(size)


def pairs_of(mined):
    return list(zip(mined[0].tolist(), mined[1].tolist(), strict=True))


@pytest.mark.parametrize("k", [1, 4, 100])  # more than either pool holds: all of it
@pytest.mark.parametrize(("sources", "targets"), [(1, 9), (7, 5), (31, 40)])
@pytest.mark.parametrize("size", [8, 1000])
def test_mine_is_the_definition(sources, targets, k, size):
    generator = torch.Generator().manual_seed(sources + targets)
    source, target = alike(sources, generator), alike(targets, generator)
    expected = brute_force(source, target, k)
    mined = mine(source, target, k, size=size)
    assert pairs_of(mined) == [(s, t) for _, s, t in expected]
    assert mined[2].tolist() == pytest.approx([margin for margin, *_ in expected], rel=1e-6)


def test_mine_is_symmetric():
    generator = torch.Generator().manual_seed(3)
    source, target = alike(30, generator), alike(25, generator)
    forward, backward = mine(source, target), mine(target, source)
    assert sorted(pairs_of(forward)) == sorted((s, t) for t, s in pairs_of(backward))
    assert forward[2].tolist() == backward[2].tolist()  # to the last bit
    assert len(set(forward[0])) == len(set(forward[1])) == len(forward[2]) <= 25
    assert (np.diff(forward[2]) <= 0).all()


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("k", [1, 4])
def test_mine_of_ties(k, size):
    # cosines are exactly 0 or 1; axis 1 is nobody's on the other side
    source = torch.eye(4)[[2, 0, 2, 1, 0]] * torch.tensor([1.0, 2, 3, 4, 5])[:, None]
    target = torch.eye(4)[[3, 2, 0, 2, 0, 3, 0]]
    mined = mine(source, target, k, size=size)
    assert pairs_of(mined) == [(s, t) for _, s, t in brute_force(source, target, k)]
    # equal ones propose the same partner, and the first of them gets it
    assert {pair for pair, margin in zip(pairs_of(mined), mined[2], strict=True) if margin > 0} == {(0, 1), (1, 2)}


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_mine_without_margin(size):
    source = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])  # nothing, and the opposite of all
    target = torch.tensor([[1.0, 0.1], [1.0, -0.1]])
    mined = mine(source, target, 2, size=size)
    assert pairs_of(mined) == [(0, 0)], (
        "and the second source, whose margins are all 0, proposes a target that is taken"
    )
    assert not pairs_of(mine(torch.zeros(3, 2), torch.zeros(2, 2)))
