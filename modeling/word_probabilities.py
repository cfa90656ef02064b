# SPDX-License-Identifier: Apache-2.0
"""How likely two words of a sentence pair are translations of each other: the rule of the method `ot_words`.

From the vectors of tokens to shares of transport plans (`word_shares`), and from these to probabilities
(`context_logits`), whose weights were fitted to links made by hand. All of it can be learned through.

Legend: `B` pairs, `S` source and `T` target tokens or words, `H` hidden size. Masks are as in `optimal_transport`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .symmetrization import wide

# see `share_of_plan`
SHARPNESS = 3.0
MARGINAL_POWER, UNBALANCED_ITERATIONS = 0.5, 5
PASSES = 2
# Offset, share, diagonal, rivals, growth: see `context_logits`; fitted to gold links by logistic regression.
CONTEXT_WEIGHTS = (-4.0, 6.25, 1.2, 0.95, 3.7)
LEAST_SPREAD = 1e-5  # of cosines; what differs less differs by rounding
LEAST_SHARE = 1e-12  # a root has no gradient at 0


class WordNumbers(NamedTuple):
    """The words of one side's tokens.

    word_BN: the word, from 0, that each token belongs to. is_first_BN: whether it is its first token.
    """

    word_BN: Tensor
    is_first_BN: Tensor


@torch.no_grad()
def word_probabilities(
    x_BSH: Tensor,
    y_BTH: Tensor,
    source_mask_BS: Tensor,
    target_mask_BT: Tensor,
    words: Sequence[Tensor] | None = None,
    slope: float = 1.0,
    offset: float = 0.0,
) -> Tensor:
    """The probability that two words are translations, at their first tokens; 0 at all others. Returns (B, S, T).

    `slope` and `offset` change its logits, where gold links have shown how far it holds for a model.
    """
    shares_BST, cells_BST = word_shares(x_BSH, y_BTH, source_mask_BS, target_mask_BT, words)
    probability_BST = (slope * context_logits(shares_BST, cells_BST) + offset).sigmoid() * cells_BST
    source, target = number_sides(source_mask_BS, target_mask_BT, words)
    source_BST = source.word_BN[:, :, None].expand_as(cells_BST)
    target_BST = target.word_BN[:, None].expand_as(cells_BST)
    at_tokens_BST = probability_BST.gather(1, source_BST).gather(2, target_BST)
    return at_tokens_BST * (source.is_first_BN[:, :, None] & target.is_first_BN[:, None])


def word_shares(
    x_BSH: Tensor,
    y_BTH: Tensor,
    source_mask_BS: Tensor,
    target_mask_BT: Tensor,
    words: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """How far two words, numbered from 0 in their sentences, are each other's partner, 0 to 1: g of `context_logits`,
    (B, S, T); and where there are both words, boolean (B, S, T). Differentiable.

    Two plans are made, of the tokens and of the words, whose vectors are the means of their tokens': see
    `share_of_plan`. g is the geometric mean of two words' share in the plan of words and the highest of their tokens.
    """
    source, target = number_sides(source_mask_BS, target_mask_BT, words)
    x_words_BSH, is_source_word_BS = sum_words(x_BSH, source_mask_BS, source)
    y_words_BTH, is_target_word_BT = sum_words(y_BTH, target_mask_BT, target)
    word_shares_BST = share_of_plan(x_words_BSH, y_words_BTH, is_source_word_BS, is_target_word_BT)
    token_shares_BST = share_of_plan(x_BSH, y_BTH, source_mask_BS, target_mask_BT)
    source_BST = source.word_BN[:, :, None].expand_as(token_shares_BST)
    target_BST = target.word_BN[:, None].expand_as(token_shares_BST)
    nothing_BST = torch.zeros_like(token_shares_BST)
    highest_BST = nothing_BST.scatter_reduce(1, source_BST, token_shares_BST, "amax")
    highest_BST = nothing_BST.scatter_reduce(2, target_BST, highest_BST, "amax")
    cells_BST = is_source_word_BS[:, :, None] & is_target_word_BT[:, None]
    g_BST = (word_shares_BST * highest_BST).clamp(min=LEAST_SHARE).sqrt() * cells_BST
    return g_BST, cells_BST


def sum_words(states_BNH: Tensor, mask_BN: Tensor, side: WordNumbers) -> tuple[Tensor, Tensor]:
    """The sum of the vectors of each word's tokens (B, N, H), which points where their mean does; and whether there is
    a word of this number, boolean (B, N)."""
    number_N = torch.arange(mask_BN.shape[1], device=mask_BN.device)
    belongs_BNN = (side.word_BN[:, None] == number_N[:, None]) & mask_BN[:, None]  # words, their tokens
    with torch.autocast(states_BNH.device.type, enabled=False):
        sums_BNH = belongs_BNN.to(states_BNH.dtype) @ states_BNH.where(mask_BN[:, :, None], 0)
    is_word_BN = number_N < side.is_first_BN.sum(1, keepdim=True)
    return sums_BNH, is_word_BN


def context_logits(g_BST: Tensor, cells_BST: Tensor) -> Tensor:
    """The logits of the probabilities that words are translations (B, S, T), from their shares. Differentiable.

    The words around count, too, in two passes from q = g, the share:

        logit q'[i, j] = -4 + 6.25 g[i, j]
                         + 1.2 (q[i - 1, j - 1] + q[i + 1, j + 1])            the words before and after are linked, too
                         - 0.95 (r[i, j] + c[i, j])                           one of the two has another partner
                         + 3.7 (1 - c[i, j]) (q[i, j - 1] + q[i, j + 1])      i is linked to a neighbor of j, and
                         + 3.7 (1 - r[i, j]) (q[i - 1, j] + q[i + 1, j])      nothing else to j; the same of j and i

    where r[i, j] is the highest q of another target word of i, and c[i, j] of another source word of j.
    """
    logits_BST = _context_pass(g_BST, g_BST)
    for _ in range(PASSES - 1):
        logits_BST = _context_pass(g_BST, logits_BST.sigmoid() * cells_BST)
    return logits_BST


def _context_pass(g_BST: Tensor, q_BST: Tensor) -> Tensor:
    offset, share_weight, diagonal_weight, rival_weight, growth_weight = CONTEXT_WEIGHTS
    row_BST = _highest_other(q_BST, 2)
    column_BST = _highest_other(q_BST, 1)
    growth_BST = (1 - column_BST) * (_moved(q_BST, 0, 1) + _moved(q_BST, 0, -1))
    growth_BST = growth_BST + (1 - row_BST) * (_moved(q_BST, 1, 0) + _moved(q_BST, -1, 0))
    diagonal_BST = _moved(q_BST, 1, 1) + _moved(q_BST, -1, -1)
    logits_BST = offset + share_weight * g_BST + diagonal_weight * diagonal_BST
    return logits_BST - rival_weight * (row_BST + column_BST) + growth_weight * growth_BST


def _moved(q_BST: Tensor, rows: int, columns: int) -> Tensor:
    """The matrices moved by so many rows and columns; 0 comes in."""
    left = max(columns, 0)
    right = max(-columns, 0)
    top = max(rows, 0)
    bottom = max(-rows, 0)
    padded_BST = torch.nn.functional.pad(q_BST, (left, right, top, bottom))
    height, width = q_BST.shape[1:]
    return padded_BST[:, bottom : bottom + height, right : right + width]


def _highest_other(q_BST: Tensor, dim: int) -> Tensor:
    """The highest value of the others in each cell's row (dim 2) or column (dim 1), 0 where there are none."""
    if q_BST.shape[dim] < 2:
        return torch.zeros_like(q_BST)
    first, number = q_BST.max(dim, keepdim=True)
    second, _ = q_BST.scatter(dim, number, -torch.inf).max(dim, keepdim=True)  # `topk` takes three times as long
    return first.expand_as(q_BST).scatter(dim, number, second)


def number_sides(
    source_mask_BS: Tensor, target_mask_BT: Tensor, words: Sequence[Tensor] | None
) -> tuple[WordNumbers, WordNumbers]:
    """Numbers the words of source and target from 0; without `words`, each token is a word."""
    source_words_BS, target_words_BT = (None, None) if words is None else words
    return _number_words(source_mask_BS, source_words_BS), _number_words(target_mask_BT, target_words_BT)


def _number_words(mask_BN: Tensor, words_BN: Tensor | None) -> WordNumbers:
    is_first_BN = mask_BN.clone()
    if words_BN is not None:
        is_first_BN[:, 1:] &= ~mask_BN[:, :-1] | (words_BN[:, 1:] != words_BN[:, :-1])
    word_BN = (is_first_BN.cumsum(1) - 1).clamp(min=0)
    return WordNumbers(word_BN, is_first_BN)


def share_of_plan(x_BSH: Tensor, y_BTH: Tensor, source_mask_BS: Tensor, target_mask_BT: Tensor) -> Tensor:
    """How far two tokens are each other's partner, 0 to 1: sqrt(A[s, t] / sum(A[s]) * A[s, t] / sum(A[:, t])).

    A = diag(u) K diag(v), K = exp(3 z). z are the pair's cosines, less what a row and a column have in common, in units
    of their standard deviation: encoders and layers whose cosines are all high, or close together, need no other
    temperature. Where a side has a single token, that would leave nothing, and z is the cosine less the mean.

    u = (K v)^-0.5 and v = (K' u)^-0.5 in turns: unbalanced optimal transport (Chizat et al. 2018, "Scaling algorithms
    for unbalanced optimal transport problems", with KL divergences). Marginals that had to be met (power 1) would make
    tokens without a partner spread what they have over others, most so where one side is longer.

    Returns (B, S, T), 0 outside the masks.
    """
    with torch.autocast(x_BSH.device.type, enabled=False):
        sharpened_BST = _sharpened_cosines(x_BSH, y_BTH, source_mask_BS, target_mask_BT)
        plan_BST = _unbalanced_plan(sharpened_BST, source_mask_BS, target_mask_BT)
        sums_BST = plan_BST.sum(2, keepdim=True) * plan_BST.sum(1, keepdim=True)
        tiny = torch.finfo(plan_BST.dtype).tiny
        return (plan_BST / sums_BST.clamp(min=tiny).sqrt()).to(x_BSH.dtype)


def _sharpened_cosines(x_BSH: Tensor, y_BTH: Tensor, source_mask_BS: Tensor, target_mask_BT: Tensor) -> Tensor:
    """3 z of `share_of_plan`, 0 outside the masks."""
    cells_BST = source_mask_BS[:, :, None] & target_mask_BT[:, None]
    x_norm_BS1 = _norms(x_BSH)
    y_norm_BT1 = _norms(y_BTH)
    cosine_BST = x_BSH @ y_BTH.transpose(1, 2) / x_norm_BS1 / y_norm_BT1.transpose(1, 2)
    cosine_BST = cosine_BST.where(cells_BST, 0)
    sources_B11 = source_mask_BS.sum(1)[:, None, None].clamp(min=1)
    targets_B11 = target_mask_BT.sum(1)[:, None, None].clamp(min=1)
    row_BS1 = cosine_BST.sum(2, keepdim=True) / targets_B11
    column_B1T = cosine_BST.sum(1, keepdim=True) / sources_B11
    mean_B11 = row_BS1.sum(1, keepdim=True) / sources_B11
    is_single_B11 = (sources_B11 == 1) | (targets_B11 == 1)
    z_BST = cosine_BST - torch.where(is_single_B11, mean_B11, row_BS1 + column_B1T - mean_B11)
    z_BST = z_BST.where(cells_BST, 0)
    variance_B11 = z_BST.square().sum((1, 2), keepdim=True) / (sources_B11 * targets_B11)
    spread_B11 = variance_B11.clamp(min=LEAST_SPREAD**2).sqrt()
    return SHARPNESS * z_BST / spread_B11


def _norms(vectors_BNH: Tensor) -> Tensor:
    return vectors_BNH.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(vectors_BNH.dtype).tiny)


def _unbalanced_plan(sharpened_BST: Tensor, source_mask_BS: Tensor, target_mask_BT: Tensor) -> Tensor:
    """A of `share_of_plan`, in float64 where the device has it."""
    cells_BST = source_mask_BS[:, :, None] & target_mask_BT[:, None]
    k_BST = wide(sharpened_BST).clamp(max=30).exp() * cells_BST
    tiny = torch.finfo(k_BST.dtype).tiny  # where the other side has no token, sums are 0
    u_BS1 = wide(source_mask_BS[:, :, None])
    v_BT1 = wide(target_mask_BT[:, :, None])
    for _ in range(UNBALANCED_ITERATIONS):
        u_BS1 = (k_BST @ v_BT1).clamp(min=tiny).pow(-MARGINAL_POWER)
        v_BT1 = (k_BST.transpose(1, 2) @ u_BS1).clamp(min=tiny).pow(-MARGINAL_POWER)
    return k_BST * u_BS1 * v_BT1.transpose(1, 2)
