"""The search for nearest neighbors finds what float64 finds."""

import pytest
import torch
from torch.nn import functional as F

from finetuning.tasks.features.neighbors import nearest_neighbors


def check(source, target, k, size):
    """Of either side cosines and numbers, from all cosines in float64, rounded; of equal ones the first."""
    cosines = (F.normalize(source.double(), dim=-1) @ F.normalize(target.double(), dim=-1).T).float()
    for side, (near, numbers) in zip(
        (cosines, cosines.T), nearest_neighbors(source, target, k, size=size), strict=True
    ):
        values, order = side.sort(dim=1, descending=True, stable=True)
        assert torch.equal(numbers, order[:, :k])
        torch.testing.assert_close(near, values[:, :k], rtol=0, atol=6e-8)  # one unit in the last place


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
def test_neighbors_and_cosines_are_those_of_float64(kind, size):
    for k in (1, 4, 500):
        check(*sentences(kind), k, size)


def test_of_equally_near_ones_the_first_are_found():
    source, target = sentences("clustered", 90, 60)
    check(torch.cat((source, source[:1].repeat(70, 1))), torch.cat((target, target[3:4].repeat(80, 1))), 4, 32)
    same = torch.ones(50, 8)
    for other in (same, -same, torch.zeros(40, 8)):
        check(other, same, 4, 16)


def test_an_empty_side_has_no_neighbors():
    (near, numbers), (backward, _) = nearest_neighbors(torch.ones(3, 2), torch.ones(0, 2), 4)
    assert near.shape == numbers.shape == (3, 0) and backward.shape == (0, 3)
