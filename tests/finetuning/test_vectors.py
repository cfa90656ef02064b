"""Vectors of sentences by layer; nearest neighbors and mined pairs, against brute force and with ties."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from crosslingual_zoo.finetuning.tasks.vectors import encoder as retrieval_search
from crosslingual_zoo.finetuning.tasks.vectors import search
from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder, Tokens, vectors_by_layer
from crosslingual_zoo.finetuning.tasks.vectors.recipe import POOLINGS
from crosslingual_zoo.finetuning.tasks.vectors.search import mine, nearest_neighbors

TEXTS = ["Anna bakes fresh bread every Sunday morning.", "雨。", "a", "", "The train to Berlin leaves at nine."]


@pytest.fixture(scope="module")
def encoder_of(tiny_model):
    """encoder_of(**options) -> SentenceEncoder of the tiny model."""
    model = AutoModel.from_pretrained(tiny_model, add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    return lambda **options: SentenceEncoder(model, tokenizer, **{"batch_size": 2, **options})


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_those_of_a_text_alone(encoder_of, pooling):
    encoder = encoder_of(pooling=pooling)
    tokens = encoder.tokens(TEXTS)
    ids_of_texts = np.split(tokens.ids, tokens.lengths.cumsum()[:-1])
    vectors = encoder.vectors(tokens, [0, 1, 2])
    part = {"mean": slice(1, -1), "mean_with_special_tokens": slice(None), "cls": slice(1)}[pooling]
    for number, text in enumerate(TEXTS):
        alone = encoder.tokenizer(text, return_tensors="pt")  # the tokenizer's own special tokens, nothing padded
        assert alone["input_ids"][0, 1:-1].tolist() == ids_of_texts[number].tolist()
        states = encoder.states.model(**alone, output_hidden_states=True).hidden_states
        for layer in range(3):
            states_TH = states[layer][0, part]
            expected = states_TH.mean(0) if len(states_TH) else torch.zeros(32)
            torch.testing.assert_close(vectors[layer][number], expected, rtol=1e-4, atol=1e-5)


def test_vectors_of_long_texts_are_cut(encoder_of):
    encoder = encoder_of(max_length=6)
    first_tokens = []
    for text in TEXTS:
        first_tokens.append(encoder.tokenizer(text, add_special_tokens=False)["input_ids"][:4])
    lengths = np.array(list(map(len, first_tokens)), dtype=np.int32)
    tokens = Tokens(np.array(sum(first_tokens, []), dtype=np.int32), lengths)
    expected = encoder_of().vectors(tokens, [2])[2]
    torch.testing.assert_close(encoder.vectors(encoder.tokens(TEXTS), [2])[2], expected, rtol=1e-4, atol=1e-5)
    assert encoder_of().max_length == 64, "as many positions as the model has"
    with pytest.raises(ValueError, match="2 tokens are special"):
        encoder_of(max_length=2)


def test_vectors_by_layer_in_several_passes(encoder_of, monkeypatch):
    encoder = encoder_of()
    sides = [TEXTS, TEXTS[:3]]
    asked = []
    vectors = encoder.vectors
    monkeypatch.setattr(encoder, "vectors", lambda side, layers: asked.append(layers) or vectors(side, layers))
    whole = list(vectors_by_layer(encoder, sides, [0, 1, 2])[1])
    assert asked == [[0, 1, 2]] * 2
    asked.clear()
    monkeypatch.setattr(retrieval_search, "BYTES_OF_VECTORS", 2 * 4 * 8 * 32)  # two layers of 8 texts
    parts = list(vectors_by_layer(encoder, sides, [0, 1, 2])[1])
    assert asked == [[0, 1], [0, 1], [2], [2]]
    torch.testing.assert_close(parts, whole)


def test_tokens_without_spelled_special_tokens(encoder_of):
    special = set(encoder_of().tokenizer.all_special_ids) - {encoder_of().tokenizer.unk_token_id}
    assert special.isdisjoint(encoder_of().tokens(["a <mask> b </s>"]).ids.tolist())


def check(source, target, k, size):
    """Of either side cosines and numbers, from all cosines in float64, rounded; of equal ones the first."""
    cosines = (F.normalize(source.double(), dim=-1) @ F.normalize(target.double(), dim=-1).T).float()
    neighbors = nearest_neighbors(source, target, k, size=size)
    for side, (near, numbers) in zip((cosines, cosines.T), neighbors, strict=True):
        values, order = side.sort(dim=1, descending=True, stable=True)
        assert torch.equal(numbers, order[:, :k])
        torch.testing.assert_close(near.float(), values[:, :k], rtol=0, atol=6e-8)  # one unit in the last place


def sentences(kind, sources=210, targets=140, size=48):
    """Vectors as models make them: in clusters; all alike, as of XLM-R without fine-tuning; without any structure."""
    generator = torch.Generator().manual_seed(1)
    common = torch.randn(size, generator=generator)
    centers = torch.randn(9, size, generator=generator)
    spread = {"clustered": 0.6, "alike": 0.02, "nearly the same": 2e-4, "apart": 1.0}[kind]
    source = spread * (centers[torch.arange(sources) % 9] + torch.randn(sources, size, generator=generator))
    target = source[:targets] + 0.4 * spread * torch.randn(targets, size, generator=generator)
    return (source, target) if kind == "apart" else (source + common, target + common)


@pytest.mark.parametrize("size", [32, 1000])
@pytest.mark.parametrize("kind", ["clustered", "alike", "nearly the same", "apart"])
def test_nearest_neighbors_are_those_of_float64(kind, size):
    for k in (1, 4, 500):
        check(*sentences(kind), k, size)


def test_nearest_neighbors_of_ties(monkeypatch):
    monkeypatch.setattr(search, "EXACT_BLOCK", 24)
    source, target = sentences("clustered", 90, 60)
    check(torch.cat((source, source[:1].repeat(70, 1))), torch.cat((target, target[3:4].repeat(80, 1))), 4, 32)
    same = torch.ones(50, 8)
    for other in (same, -same, torch.zeros(40, 8)):
        check(other, same, 4, 16)


@pytest.mark.parametrize("kind", ["clustered", "alike", "nearly the same", "apart"])
def test_scores_are_upper_bounds_of_cosines(kind):
    """By less than float32's error for such short vectors from the center, also beside vectors far away from it."""
    source, target = sentences(kind)
    source[0] = 0
    target[-1] = -target[0]
    center = search._center(source, target)
    points = search._Points(source, center, "cpu", is_source=True).block(slice(0, 210))
    others = search._Points(target, center, "cpu", is_source=False).block(slice(0, 140))
    scores = (points @ others.T).double()
    source = F.normalize(source.double(), dim=-1)
    target = F.normalize(target.double(), dim=-1)
    excess = scores - (source @ target.T - 1)
    lengths = torch.cdist(source, center[None]) + torch.cdist(center[None], target)
    assert (excess > 0).all()
    assert (excess < 2**-24 * ((48 + 20) * lengths**2 + 8 * lengths)).all()


def test_nearest_neighbors_in_a_cone_with_outliers():
    source, target = sentences("alike")
    source[5] = 0
    source[6] *= -1
    target[7] *= -1
    for k in (1, 4):
        check(source, target, k, 64)


def brute_force(source, target, k):
    """[(margin, source, target)] as the definition says it, pair by pair, from all cosines at once."""
    dots = source.double().numpy() @ target.double().numpy().T
    lengths = np.outer(source.double().norm(dim=1), target.double().norm(dim=1))
    cosines = dots / lengths
    targets_near = (-cosines).argsort(axis=1, kind="stable")[:, :k]
    sources_near = (-cosines).argsort(axis=0, kind="stable")[:k].T
    source_likeness = np.take_along_axis(cosines, targets_near, 1).mean(1)
    target_likeness = np.take_along_axis(cosines.T, sources_near, 1).mean(1)

    def margin(pair):
        s, t = pair
        likeness = (source_likeness[s] + target_likeness[t]) / 2
        return cosines[s, t] / likeness if likeness > 0 else -math.inf

    proposed = []
    for s, nearest in enumerate(targets_near):
        proposed.append(max(itertools.product([s], nearest), key=margin))
    for t, nearest in enumerate(sources_near):
        proposed.append(max(itertools.product(nearest, [t]), key=margin))
    used_sources = set()
    used_targets = set()
    pairs = []
    for s, t in sorted(proposed, key=lambda pair: (-margin(pair), pair)):
        if s not in used_sources and t not in used_targets and margin((s, t)) > -math.inf:
            used_sources.add(s)
            used_targets.add(t)
            pairs.append((margin((s, t)), s, t))
    return pairs


def pairs_of(mined):
    return list(zip(mined[0].tolist(), mined[1].tolist(), strict=True))


def made_up(sources, targets):
    """Two pools of vectors that have something in common, as those of sentences have: cosines of about 0.5."""
    generator = torch.Generator().manual_seed(sources + targets)
    return [torch.randn(count, 16, generator=generator) + torch.ones(16) for count in (sources, targets)]


@pytest.mark.parametrize("k", [1, 4, 100])  # more than either pool holds: all of it
@pytest.mark.parametrize(("sources", "targets"), [(1, 9), (7, 5), (31, 40)])
@pytest.mark.parametrize("size", [8, 1000])
def test_mine_is_the_definition(sources, targets, k, size):
    source, target = made_up(sources, targets)
    expected = brute_force(source, target, k)
    mined = mine(source, target, k, size=size)
    assert pairs_of(mined) == [(s, t) for _, s, t in expected]
    assert mined[2].tolist() == pytest.approx([margin for margin, *_ in expected], rel=1e-6)


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
    assert pairs_of(mined) == [(0, 0)]  # the second source, whose margins are all 0, proposes a target that is taken
    assert not pairs_of(mine(torch.zeros(3, 2), torch.zeros(2, 2)))
