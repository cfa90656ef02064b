# SPDX-License-Identifier: Apache-2.0
"""How likely two words of a sentence pair are translations of each other: the rule of the method `ot_words`.

From the vectors of tokens to shares of transport plans (`word_shares`), and from these to probabilities
(`context_logits`), whose weights were fitted to links made by hand. All of it can be learned through.

Legend: `B` pairs, `S` source and `T` target tokens or words, `H` hidden size. Masks are as in `optimal_transport`.
"""

import torch

from .symmetrization import wide

# see `share_of_plan`
SHARPNESS = 3.0
MARGINAL_POWER, UNBALANCED_ITERATIONS = 0.5, 5
PASSES = 2
# Offset, share, diagonal, rivals, growth: see `context_logits`; fitted to gold links by logistic regression.
CONTEXT_WEIGHTS = (-4.0, 6.25, 1.2, 0.95, 3.7)
LEAST_SPREAD = 1e-5  # of cosines; what differs less differs by rounding
LEAST_SHARE = 1e-12  # a root has no gradient at 0


@torch.no_grad()
def word_probabilities(x_BSH, y_BTH, source_mask_BS, target_mask_BT, words=None, slope=1.0, offset=0.0):
    """The probability that two words are translations, at their first tokens; 0 at all others. Returns (B, S, T).

    `slope` and `offset` change its logits, where gold links have shown how far it holds for a model.
    """
    shares_BST, cells_BST = word_shares(x_BSH, y_BTH, source_mask_BS, target_mask_BT, words)
    probability_BST = (slope * context_logits(shares_BST, cells_BST) + offset).sigmoid() * cells_BST
    (source_BS, is_first_BS), (target_BT, is_first_BT) = number_sides((source_mask_BS, target_mask_BT), words)
    source_BST, target_BST = source_BS[:, :, None], target_BT[:, None]
    at_tokens_BST = probability_BST.gather(1, source_BST.expand_as(cells_BST))
    at_tokens_BST = at_tokens_BST.gather(2, target_BST.expand_as(cells_BST))
    return at_tokens_BST * (is_first_BS[:, :, None] & is_first_BT[:, None])


def word_shares(x_BSH, y_BTH, source_mask_BS, target_mask_BT, words=None):
    """How far two words, numbered from 0 in their sentences, are each other's partner, 0 to 1: g of `context_logits`,
    (B, S, T); and where there are both words, boolean (B, S, T). Differentiable.

    Two plans are made, of the tokens and of the words, whose vectors are the means of their tokens': see
    `share_of_plan`. g is the geometric mean of two words' share in the plan of words and the highest of their tokens.
    """
    numbered = number_sides((source_mask_BS, target_mask_BT), words)
    sides, masks = [], []
    for states_BNH, mask_BN, (number_BN, first_BN) in zip(
        (x_BSH, y_BTH), (source_mask_BS, target_mask_BT), numbered, strict=True
    ):
        place_N = torch.arange(mask_BN.shape[1], device=mask_BN.device)
        belongs_BNN = (number_BN[:, None] == place_N[:, None]) & mask_BN[:, None]  # words, their tokens
        with torch.autocast(states_BNH.device.type, enabled=False):
            sides.append(belongs_BNN.to(states_BNH.dtype) @ states_BNH.where(mask_BN[:, :, None], 0))
        masks.append(place_N < first_BN.sum(1, keepdim=True))
    cells_BST = masks[0][:, :, None] & masks[1][:, None]
    of_words_BST = share_of_plan(*sides, *masks)
    of_tokens_BST = share_of_plan(x_BSH, y_BTH, source_mask_BS, target_mask_BT)
    source_BST, target_BST = numbered[0][0][:, :, None], numbered[1][0][:, None]
    nothing_BST = torch.zeros_like(of_tokens_BST)
    highest_BST = nothing_BST.scatter_reduce(1, source_BST.expand_as(cells_BST), of_tokens_BST, "amax")
    highest_BST = nothing_BST.scatter_reduce(2, target_BST.expand_as(cells_BST), highest_BST, "amax")
    return (of_words_BST * highest_BST).clamp(min=LEAST_SHARE).sqrt() * cells_BST, cells_BST


def context_logits(g_BST, cells_BST):
    """The logits of the probabilities that words are translations (B, S, T), from their shares. Differentiable.

    The words around count, too, in two passes from q = g, the share:

        logit q'[i, j] = -4 + 6.25 g[i, j]
                         + 1.2 (q[i - 1, j - 1] + q[i + 1, j + 1])            the words before and after are linked, too
                         - 0.95 (r[i, j] + c[i, j])                           one of the two has another partner
                         + 3.7 (1 - c[i, j]) (q[i, j - 1] + q[i, j + 1])      i is linked to a neighbor of j, and
                         + 3.7 (1 - r[i, j]) (q[i - 1, j] + q[i + 1, j])      nothing else to j; the same of j and i

    where r[i, j] is the highest q of another target word of i, and c[i, j] of another source word of j.
    """
    offset, of_share, of_diagonal, of_rivals, of_growth = CONTEXT_WEIGHTS
    q_BST = g_BST
    for _ in range(PASSES):
        row_BST, column_BST = _highest_other(q_BST, 2), _highest_other(q_BST, 1)
        growth_BST = (1 - column_BST) * (_moved(q_BST, 0, 1) + _moved(q_BST, 0, -1))
        growth_BST = growth_BST + (1 - row_BST) * (_moved(q_BST, 1, 0) + _moved(q_BST, -1, 0))
        diagonal_BST = _moved(q_BST, 1, 1) + _moved(q_BST, -1, -1)
        logits_BST = offset + of_share * g_BST + of_diagonal * diagonal_BST
        logits_BST = logits_BST - of_rivals * (row_BST + column_BST) + of_growth * growth_BST
        q_BST = logits_BST.sigmoid() * cells_BST
    return logits_BST


def _moved(q_BST, rows, columns):
    """The matrices moved by so many rows and columns; 0 comes in."""
    sides = (max(columns, 0), max(-columns, 0), max(rows, 0), max(-rows, 0))
    padded_BST = torch.nn.functional.pad(q_BST, sides)
    height, width = q_BST.shape[1:]
    return padded_BST[:, sides[3] : sides[3] + height, sides[1] : sides[1] + width]


def _highest_other(q_BST, dim):
    """The highest value of the others in each cell's row (dim 2) or column (dim 1), 0 where there are none."""
    if q_BST.shape[dim] < 2:
        return torch.zeros_like(q_BST)
    values, places = q_BST.topk(2, dim)
    first, second = values.split(1, dim)
    number_N = torch.arange(q_BST.shape[dim], device=q_BST.device)
    is_first_BST = places.narrow(dim, 0, 1) == (number_N if dim == 2 else number_N[:, None])
    return torch.where(is_first_BST, second, first)


def number_sides(masks, words=None):
    """Of both sides: (B, N) the word, from 0, that each token belongs to; (B, N) whether it is its first token."""
    found = []
    for mask_BN, words_BN in zip(masks, words or masks, strict=True):
        is_first_BN = mask_BN.clone()
        if words is not None:
            is_first_BN[:, 1:] &= ~mask_BN[:, :-1] | (words_BN[:, 1:] != words_BN[:, :-1])
        found.append(((is_first_BN.cumsum(1) - 1).clamp(min=0), is_first_BN))
    return found


def share_of_plan(x_BSH, y_BTH, source_mask_BS, target_mask_BT):
    """How far two tokens are each other's partner, 0 to 1: sqrt(A[s, t] / sum(A[s]) * A[s, t] / sum(A[:, t])).

    A = diag(u) K diag(v), K = exp(3 z). z are the pair's cosines, less what a row and a column have in common, in units
    of their standard deviation: encoders and layers whose cosines are all high, or close together, need no other
    temperature. Where a side has a single token, that would leave nothing, and z is the cosine less the mean.

    u = (K v)^-0.5 and v = (K' u)^-0.5 in turns: unbalanced optimal transport (Chizat et al. 2018, "Scaling algorithms
    for unbalanced optimal transport problems", with KL divergences). Marginals that had to be met (power 1) would make
    tokens without a partner spread what they have over others, most so where one side is longer.

    Returns (B, S, T), 0 outside the masks.
    """
    cells_BST = source_mask_BS[:, :, None] & target_mask_BT[:, None]
    with torch.autocast(x_BSH.device.type, enabled=False):
        x_norm_BS1, y_norm_BT1 = (
            side.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(side.dtype).tiny) for side in (x_BSH, y_BTH)
        )
        cosine_BST = x_BSH @ y_BTH.transpose(1, 2) / x_norm_BS1 / y_norm_BT1.transpose(1, 2)
        cosine_BST = cosine_BST.where(cells_BST, 0)
        source_B11, target_B11 = (mask.sum(1)[:, None, None].clamp(min=1) for mask in (source_mask_BS, target_mask_BT))
        row_BS1 = cosine_BST.sum(2, keepdim=True) / target_B11
        column_B1T = cosine_BST.sum(1, keepdim=True) / source_B11
        mean_B11 = row_BS1.sum(1, keepdim=True) / source_B11
        is_single_B11 = (source_B11 == 1) | (target_B11 == 1)
        z_BST = cosine_BST - torch.where(is_single_B11, mean_B11, row_BS1 + column_B1T - mean_B11)
        z_BST = z_BST.where(cells_BST, 0)
        variance_B11 = z_BST.square().sum((1, 2), keepdim=True) / (source_B11 * target_B11)
        spread_B11 = variance_B11.clamp(min=LEAST_SPREAD**2).sqrt()
        k_BST = wide(SHARPNESS * z_BST / spread_B11).clamp(max=30).exp() * cells_BST
        tiny = torch.finfo(k_BST.dtype).tiny  # where the other side has no token, sums are 0
        v_BT1 = wide(target_mask_BT[:, :, None])
        for _ in range(UNBALANCED_ITERATIONS):
            u_BS1 = (k_BST @ v_BT1).clamp(min=tiny).pow(-MARGINAL_POWER)
            v_BT1 = (k_BST.transpose(1, 2) @ u_BS1).clamp(min=tiny).pow(-MARGINAL_POWER)
        plan_BST = k_BST * u_BS1 * v_BT1.transpose(1, 2)
        both_BST = plan_BST.sum(2, keepdim=True) * plan_BST.sum(1, keepdim=True)
        return (plan_BST / both_BST.clamp(min=tiny).sqrt()).to(x_BSH.dtype)
