"""Probabilities of words against a plain loop written from the equation."""

import numpy as np
import pytest
import torch

from crosslingual_zoo.modeling.optimal_transport import align
from crosslingual_zoo.modeling.word_probabilities import context_logits, word_probabilities, word_shares
from tests.modeling.tiny import VECTOR_SIZE as HIDDEN
from tests.modeling.tiny import ragged, whole


def plain_shares(x, y):
    """sqrt of the shares of row and column in the unbalanced plan of exp(3 z), in logarithms."""
    x, y = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (x, y))
    z = x @ y.T
    z = z - z.mean() if 1 in z.shape else z - z.mean(0) - z.mean(1, keepdims=True) + z.mean()
    k = np.minimum(3 * z / max(z.std(), 1e-5), 30)
    u, v = np.zeros(len(x)), np.zeros(len(y))
    for _ in range(5):
        u = -0.5 * np.log(np.exp(k + v).sum(1))
        v = -0.5 * np.log(np.exp(k + u[:, None]).sum(0))
    plan = np.exp(k + u[:, None] + v)
    return np.sqrt(plan / plan.sum(0) * plan / plan.sum(1, keepdims=True))


def plain_word_probabilities(x, y, words):
    tokens = plain_shares(x, y)
    of_word = [[np.flatnonzero(np.array(side) == word) for word in dict.fromkeys(side)] for side in words]
    whole_words = plain_shares(
        *(np.stack([v[of].mean(0) for of in side]) for v, side in zip((x, y), of_word, strict=True))
    )
    g = np.sqrt(whole_words * [[tokens[np.ix_(s, t)].max() for t in of_word[1]] for s in of_word[0]])
    q = g
    for _ in range(2):

        def of(i, j, q=q):
            return q[i, j] if 0 <= i < q.shape[0] and 0 <= j < q.shape[1] else 0.0

        logits = np.zeros_like(g)
        for i, j in np.ndindex(g.shape):
            row = max((q[i, other] for other in range(q.shape[1]) if other != j), default=0.0)
            column = max((q[other, j] for other in range(q.shape[0]) if other != i), default=0.0)
            logits[i, j] = -4 + 6.25 * g[i, j] + 1.2 * (of(i - 1, j - 1) + of(i + 1, j + 1)) - 0.95 * (row + column)
            logits[i, j] += 3.7 * (1 - column) * (of(i, j - 1) + of(i, j + 1))
            logits[i, j] += 3.7 * (1 - row) * (of(i - 1, j) + of(i + 1, j))
        q = 1 / (1 + np.exp(-logits))
    result = np.zeros_like(tokens)
    for i, j in np.ndindex(q.shape):
        result[of_word[0][i][0], of_word[1][j][0]] = q[i, j]
    return result


def test_word_probabilities_are_a_plain_loop_and_stand_at_first_tokens():
    generator = np.random.default_rng(5)
    linked = 0
    for words in (
        ([0, 0, 1, 2, 2, 2], [3, 4, 4, 7]),
        ([0], [0, 1, 1]),
        ([1, 1], [5]),
        (list(range(9)), list(range(6))),
    ):
        x, y = (generator.standard_normal((len(side), HIDDEN)) for side in words)
        y[: min(len(x), len(y))] += x[: len(y)]
        expected = plain_word_probabilities(x, y, words)
        # padding between and after the tokens holds anything
        padded = [np.full((1, 12, HIDDEN), np.nan) for _ in words]
        masks, numbers = [torch.zeros(1, 12, dtype=torch.bool) for _ in words], [torch.full((1, 12), 9) for _ in words]
        for side, vectors in enumerate((x, y)):
            padded[side][0, 1 : 1 + len(vectors)] = vectors
            masks[side][0, 1 : 1 + len(vectors)] = True
            numbers[side][0, 1 : 1 + len(vectors)] = torch.tensor(words[side])
        inputs = *map(torch.tensor, padded), *masks
        found = word_probabilities(*inputs, numbers)
        inside = found[0, 1 : 1 + len(x), 1 : 1 + len(y)]
        torch.testing.assert_close(inside, torch.tensor(expected), atol=1e-6, rtol=1e-5)
        assert found.count_nonzero() == inside.count_nonzero()
        for threshold in (0.1, 0.5, 0.9):
            links = align(*inputs, "ot_words", words=numbers, threshold=threshold).links_BST
            assert torch.equal(links, found >= threshold)
        linked += int((found >= 0.5).sum())
    assert linked > 5


def test_context_logits_have_gradients_whatever_the_lengths():
    """Also where a side has one token, none, or tokens that are all alike: roots have no gradient at 0."""
    generator = torch.Generator().manual_seed(6)
    _, (x_BSH, y_BTH, *masks) = ragged(generator)
    x_BSH[:3] = 1.0
    x_BSH, y_BTH = (side.nan_to_num(0.0).requires_grad_() for side in (x_BSH, y_BTH))
    shares_BST, cells_BST = word_shares(x_BSH, y_BTH, *masks)
    context_logits(shares_BST, cells_BST)[cells_BST].sum().backward()
    for side, mask in zip((x_BSH, y_BTH), masks, strict=True):
        assert side.grad.isfinite().all() and side.grad[mask].any() and not side.grad[~mask].any()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 0.03), (torch.float64, 1e-6)])
def test_word_probabilities_of_equal_vectors_are_told_apart_by_no_rounding(dtype, tolerance):
    """Then only places count, and these are symmetric. Rounding moves a float32 probability by up to 0.015."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(50):
        vectors = torch.rand(1, 1, HIDDEN, generator=generator, dtype=dtype).expand(1, 7, HIDDEN)
        found = align(vectors, vectors[:, :5], *whole(7, 5), "ot_words").probabilities_BST
        torch.testing.assert_close(found, found.flip(1, 2), atol=tolerance, rtol=0)
