"""The search for nearest neighbors finds what float64 finds, whatever product its candidates come from."""

import pytest
import torch
from torch.nn import functional as F

from finetuning.tasks.features import neighbors as neighbor_search
from finetuning.tasks.features.neighbors import nearest_neighbors

PRODUCTS = ("fp32", "bf16")


def whole_product(source, target, k):
    """Of either side cosines and numbers, from all cosines in float64, rounded; of equal ones the first."""
    cosines = (F.normalize(source.double(), dim=-1) @ F.normalize(target.double(), dim=-1).T).float()
    found = []
    for side in (cosines, cosines.T):
        values, order = side.sort(dim=1, descending=True, stable=True)
        found.append((values[:, :k], order[:, :k]))
    return found


def check(source, target, k, **options):
    for (values, places), (near, numbers) in zip(
        whole_product(source, target, k), nearest_neighbors(source, target, k, **options), strict=True
    ):
        assert torch.equal(numbers, places)
        torch.testing.assert_close(near, values, rtol=0, atol=6e-8)  # one unit in the last place


def sentences(kind, sources=210, targets=140, size=48):
    """Vectors as models make them: in clusters; all alike, as of XLM-R without fine-tuning; without any structure."""
    generator = torch.Generator().manual_seed(1)
    common, centers = torch.randn(size, generator=generator), torch.randn(9, size, generator=generator)
    spread = {"clustered": 0.6, "alike": 0.02, "nearly the same": 2e-4, "apart": 1.0}[kind]
    source = spread * (centers[torch.arange(sources) % 9] + torch.randn(sources, size, generator=generator))
    target = source[:targets] + 0.4 * spread * torch.randn(targets, size, generator=generator)
    return (source, target) if kind == "apart" else (source + common, target + common)


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("size", [32, 128, 1000])
@pytest.mark.parametrize("kind", ["clustered", "alike", "nearly the same", "apart"])
def test_neighbors_and_cosines_are_those_of_float64(kind, size, products):
    source, target = sentences(kind)
    for k in (1, 4, 500):
        check(source, target, k, size=size, products=products)


@pytest.mark.parametrize("products", PRODUCTS)
def test_more_equally_near_ones_than_there_is_room_for(products):
    """Sentences that stand in a pool again and again: of equal ones the first are found."""
    source, target = sentences("clustered", 90, 60)
    source, target = torch.cat((source, source[:1].repeat(70, 1))), torch.cat((target, target[3:4].repeat(80, 1)))
    check(source, target, 4, size=32, products=products)
    same = torch.ones(50, 8)
    check(same, same, 4, size=16, products=products)
    check(torch.zeros(40, 8), same, 2, size=16, products=products)


@pytest.mark.parametrize("products", PRODUCTS)
def test_a_narrow_pool_changes_nothing(products, monkeypatch):
    monkeypatch.setattr(neighbor_search, "POOLED", 50)
    monkeypatch.setattr(neighbor_search, "CANDIDATES", 2)
    check(*sentences("clustered"), 3, size=32, products=products)


def test_no_product_lies_farther_from_the_cosine_than_its_bound():
    for kind in ("clustered", "alike", "apart"):
        source, target = sentences(kind)
        unit = [F.normalize(side.double(), dim=-1) for side in (source, target)]
        means = [side.mean(0) for side in unit]
        true = unit[0] @ unit[1].T - means[0] @ means[1]
        for products in PRODUCTS:
            prepared = neighbor_search._prepare(source, target, products, 1000)
            for number in (0, 1):
                side = neighbor_search._Candidates(prepared[number], prepared[1 - number], 4, products)
                blocks = [
                    part.blocks[0].to_dense() if part.blocks[0].is_mkldnn else part.blocks[0] for part in prepared
                ]
                product = (blocks[0] @ blocks[1].T).double()
                off, margin = (product - true).abs(), side.margin_N.double() / 2
                off, product = (off, product) if number == 0 else (off.T, product.T)
                assert (off <= margin[:, None] + side.output * product.abs()).all()
                # and the bound is of use: far below the spread of the cosines
                assert margin.max() < (0.1 if products == "bf16" else 1e-3) * true.std()


def test_what_fp32_cannot_tell_is_left_to_float64_and_little_else(monkeypatch):
    searched = []
    in_float64 = neighbor_search._in_float64

    def counted(own, *rest):
        searched.append(len(own))
        return in_float64(own, *rest)

    monkeypatch.setattr(neighbor_search, "_in_float64", counted)
    for products in PRODUCTS:
        check(*sentences("clustered"), 4, size=64, products=products)
    assert not searched
    source, target = sentences("clustered")
    check(source, torch.cat((target, source[5:6].repeat(40, 1))), 4, size=64, products="bf16")
    assert sum(searched) < len(source) / 5


def test_large_searches_look_for_candidates_in_bf16_where_the_processor_has_it(monkeypatch):
    seen = []
    monkeypatch.setattr(neighbor_search, "_search", lambda *arguments: seen.append(arguments[4]))
    for has_it in (True, False):
        monkeypatch.setattr(neighbor_search, "_multiplies_bf16", lambda device, has_it=has_it: has_it)
        nearest_neighbors(torch.zeros(5000, 1), torch.zeros(5000, 1), 1)
        nearest_neighbors(torch.zeros(50, 1), torch.zeros(50, 1), 1)
    assert seen == ["bf16", "fp32", "fp32", "fp32"]


def test_an_empty_side_has_no_neighbors():
    (near, numbers), (backward, _) = nearest_neighbors(torch.ones(3, 2), torch.ones(0, 2), 4)
    assert near.shape == numbers.shape == (3, 0) and backward.shape == (0, 3)
