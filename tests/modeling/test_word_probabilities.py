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
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    y = y / np.linalg.norm(y, axis=1, keepdims=True)
    z = x @ y.T
    if 1 in z.shape:
        z = z - z.mean()
    else:
        z = z - z.mean(0) - z.mean(1, keepdims=True) + z.mean()
    k = np.minimum(3 * z / max(z.std(), 1e-5), 30)
    u = np.zeros(len(x))
    v = np.zeros(len(y))
    for _ in range(5):
        u = -0.5 * np.log(np.exp(k + v).sum(1))
        v = -0.5 * np.log(np.exp(k + u[:, None]).sum(0))
    plan = np.exp(k + u[:, None] + v)
    return np.sqrt(plan / plan.sum(0) * plan / plan.sum(1, keepdims=True))


def tokens_by_word(words):
    """The tokens of each word, from the number of the word that each token belongs to."""
    return [np.flatnonzero(np.array(words) == word) for word in dict.fromkeys(words)]


def word_means(vectors, tokens):
    return np.stack([vectors[of_word].mean(0) for of_word in tokens])


def padded(vectors, words):
    """A batch of one side, with anything before and behind its tokens: vectors, mask, and numbers of words."""
    inside = slice(1, 1 + len(vectors))
    vectors_BNH = torch.full((1, 12, HIDDEN), torch.nan, dtype=torch.float64)
    mask_BN = torch.zeros(1, 12, dtype=torch.bool)
    words_BN = torch.full((1, 12), 9)
    vectors_BNH[0, inside] = torch.tensor(vectors)
    mask_BN[0, inside] = True
    words_BN[0, inside] = torch.tensor(words)
    return vectors_BNH, mask_BN, words_BN


def context_probabilities(g, q):
    """Probabilities from the shares `g` and those of the step before, `q`: 0 beyond the edges."""
    padded = np.pad(q, 1)
    logits = np.zeros_like(g)
    for i, j in np.ndindex(g.shape):
        near = padded[i : i + 3, j : j + 3]  # its center is cell (i, j)
        row = max(np.delete(q[i], j), default=0.0)
        column = max(np.delete(q[:, j], i), default=0.0)
        logits[i, j] = -4 + 6.25 * g[i, j] + 1.2 * (near[0, 0] + near[2, 2]) - 0.95 * (row + column)
        logits[i, j] += 3.7 * (1 - column) * (near[1, 0] + near[1, 2])
        logits[i, j] += 3.7 * (1 - row) * (near[0, 1] + near[2, 1])
    return 1 / (1 + np.exp(-logits))


def plain_word_probabilities(x, y, x_words, y_words):
    token_shares = plain_shares(x, y)
    x_tokens = tokens_by_word(x_words)
    y_tokens = tokens_by_word(y_words)
    g = plain_shares(word_means(x, x_tokens), word_means(y, y_tokens))
    for i, j in np.ndindex(g.shape):
        g[i, j] = np.sqrt(g[i, j] * token_shares[np.ix_(x_tokens[i], y_tokens[j])].max())
    q = context_probabilities(g, context_probabilities(g, g))
    at_first_tokens = np.zeros_like(token_shares)
    for i, j in np.ndindex(q.shape):
        at_first_tokens[x_tokens[i][0], y_tokens[j][0]] = q[i, j]
    return at_first_tokens


@pytest.mark.parametrize(
    ("x_words", "y_words"),
    [
        ([0, 0, 1, 2, 2, 2], [3, 4, 4, 7]),
        ([0], [0, 1, 1]),
        ([1, 1], [5]),
        (list(range(9)), list(range(6))),
    ],
)
def test_word_probabilities_are_a_plain_loop_and_stand_at_first_tokens(x_words, y_words):
    generator = np.random.default_rng(5)
    x = generator.standard_normal((len(x_words), HIDDEN))
    y = generator.standard_normal((len(y_words), HIDDEN))
    shared = min(len(x), len(y))
    y[:shared] += x[:shared]
    expected = torch.tensor(plain_word_probabilities(x, y, x_words, y_words))
    x_BSH, x_mask_BS, x_words_BS = padded(x, x_words)
    y_BTH, y_mask_BT, y_words_BT = padded(y, y_words)
    inputs = (x_BSH, y_BTH, x_mask_BS, y_mask_BT)
    words = [x_words_BS, y_words_BT]
    probabilities_BST = word_probabilities(*inputs, words)
    inside = probabilities_BST[0, 1 : 1 + len(x), 1 : 1 + len(y)]
    torch.testing.assert_close(inside, expected, atol=1e-6, rtol=1e-5)
    assert probabilities_BST.count_nonzero() == inside.count_nonzero()
    for threshold in (0.1, 0.5, 0.9):
        links_BST = align(*inputs, "ot_words", words=words, threshold=threshold).links_BST
        assert torch.equal(links_BST, probabilities_BST >= threshold)
    assert (probabilities_BST >= 0.5).any()


def test_context_logits_have_gradients_whatever_the_lengths():
    """Also where a side has one token, none, or tokens that are all alike: roots have no gradient at 0."""
    generator = torch.Generator().manual_seed(6)
    _, (x_BSH, y_BTH, *masks) = ragged(generator)
    x_BSH[:3] = 1.0
    x_BSH = x_BSH.nan_to_num(0.0).requires_grad_()
    y_BTH = y_BTH.nan_to_num(0.0).requires_grad_()
    shares_BST, cells_BST = word_shares(x_BSH, y_BTH, *masks)
    context_logits(shares_BST, cells_BST)[cells_BST].sum().backward()
    for side, mask in zip((x_BSH, y_BTH), masks, strict=True):
        assert side.grad.isfinite().all()
        assert side.grad[mask].any()
        assert not side.grad[~mask].any()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 0.03), (torch.float64, 1e-6)])
def test_word_probabilities_of_equal_vectors_are_told_apart_by_no_rounding(dtype, tolerance):
    """Then only places count, and these are symmetric. Rounding moves a float32 probability by up to 0.015."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(50):
        vectors = torch.rand(1, 1, HIDDEN, generator=generator, dtype=dtype).expand(1, 7, HIDDEN)
        probabilities_BST = align(vectors, vectors[:, :5], *whole(7, 5), "ot_words").probabilities_BST
        torch.testing.assert_close(probabilities_BST, probabilities_BST.flip(1, 2), atol=tolerance, rtol=0)
