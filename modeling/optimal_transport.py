# SPDX-License-Identifier: Apache-2.0
"""From the vectors of two sentences to the links between their tokens.

Word alignment as optimal transport (XLM-Align, Chi et al., ACL 2021, section 3.1), and the rules of SimAlign (Jalili
Sabet et al. 2020) and awesome-align (Dou and Neubig 2021). All of it is tensor code over a padded batch, without a loop
over pairs or tokens. A pair has the same links in any batch, unless two of its cells are equal except for the last
digits: matrix products round differently in a batch of another shape.

Legend: `B` pairs, `S` source tokens, `T` target tokens, `H` hidden size. Masks are boolean, True where a token may be
linked: their pattern is free, a side may have no such token, and what lies outside of them (padding, special tokens)
may hold anything, also NaN. No cell outside of them is ever linked.
"""

import math
from typing import NamedTuple

import torch

from .symmetrization import Argmaxes, argmax_links, check_masks, computable, inside, wide
from .word_probabilities import word_probabilities

# The options of each method of `align`. The defaults are the papers' values (XLM-Align, Table 11); `ot_itermax` is as
# XLM-Align's public code runs it, see `ot_itermax_links`.
SINKHORN_OPTIONS = {"sinkhorn_iterations": 2, "regularization": 1.0, "epsilon": 1e-6, "first": "rows"}
METHOD_OPTIONS = {
    "ot_words": {"threshold": 0.5, "symmetrization": None, "link_all": False, "slope": 1.0, "offset": 0.0},
    "ot": SINKHORN_OPTIONS | {"symmetrization": "intersection"},
    "ot_itermax": SINKHORN_OPTIONS | {"first": "columns", "filter_iterations": 2, "discount": 0.9, "rule": "released"},
    "itermax": {"filter_iterations": 2},
    "mutual": {"symmetrization": "intersection"},
    "softmax": {"threshold": 1e-3},
}
METHODS = tuple(METHOD_OPTIONS)
RULES = ("released", "eq9_printed")
SIMALIGN_DISCOUNT = 0.9  # fixed in its code
LOG_LARGEST = math.log(1e9)  # no dot product of hidden states comes near


class Links(NamedTuple):
    """What `align` returns: boolean links, and a probability of every cell, or None if the caller did not want it."""

    links_BST: torch.Tensor
    probabilities_BST: torch.Tensor | None


def links_of(x_SH, y_TH, method="ot_words", **options) -> list[tuple[int, int]]:
    """Links the vectors of two sequences of words, from any model.

    Args:
        x_SH, y_TH: (S, H) and (T, H) vectors of the words of a sentence and of its translation: tensors, or arrays.
        method, options: see `align`.

    Returns pairs (row of x, row of y) from 0, sorted. Raises `ValueError` as `align`.

    Example:
        >>> links_of(torch.eye(3), torch.eye(3)[[1, 0, 2]])
        [(0, 1), (1, 0), (2, 2)]

    Source: `ot_words` is a rule of this zoo (`word_probabilities.py`); `ot` and `ot_itermax` XLM-Align, section 3.1;
    `mutual` and `itermax` SimAlign (Jalili Sabet et al. 2020); `softmax` awesome-align (Dou and Neubig 2021).
    """
    x_SH, y_TH = torch.as_tensor(x_SH), torch.as_tensor(y_TH)
    if x_SH.dim() != 2 or y_TH.dim() != 2:
        raise ValueError(f"vectors have shapes {tuple(x_SH.shape)} and {tuple(y_TH.shape)}, not (words, hidden size).")
    if not len(x_SH) or not len(y_TH):
        return []
    masks = (torch.ones(1, len(side), dtype=torch.bool, device=x_SH.device) for side in (x_SH, y_TH))
    links_BST = align(x_SH[None], y_TH[None], *masks, method, probabilities=False, **options).links_BST
    return [(source, target) for source, target in links_BST[0].nonzero().tolist()]


@torch.no_grad()
def align(
    x_BSH,
    y_BTH,
    source_mask_BS,
    target_mask_BT,
    method="ot_itermax",
    probabilities=True,
    words=None,
    cells_BST=None,
    **options,
) -> Links:
    """Links between the tokens of pairs, from the tokens' vectors.

    Methods, and what they are computed on:
    - `ot_words`: Sinkhorn on standardized cosines of tokens and of whole words, and links whose probability of being
      right reaches a threshold, see `word_probabilities`; links are between the first tokens of words. `link_all` adds
      the likeliest link of each source word, the first of equals, also below the threshold; with a symmetrization, the
      likeliest of those that it allows;
    - `ot`: Sinkhorn on dot products, then mutual argmax (XLM-Align's public aligner);
    - `ot_itermax`: Sinkhorn on dot products, then iterative filtering (XLM-Align's self-labeling);
    - `mutual`, `itermax`: mutual argmax, and Itermax, on (cosine + 1) / 2 (SimAlign);
    - `softmax`: both softmax directions of the dot products above a threshold (awesome-align).

    Args:
        x_BSH, y_BTH: vectors of source and target, of any floating type; computed in float32, in float64 if given so.
        source_mask_BS, target_mask_BT: True where a token may be linked.
        probabilities: whether to compute the second result: of `ot_words` the calibrated probability that a link is
            right; of `ot` and `ot_itermax` the transport plan, of the others the mean of both softmax directions of the
            dot products, which are not calibrated. All are 0 outside the masks.
        words: numbers of the words that the tokens belong to, ((B, S), (B, T)), of `ot_words`; default: each token is a
            word. The others link tokens by themselves.
        cells_BST: of `ot_words`, True where two tokens may be linked; default: everywhere inside the masks.
        options: those of the method, in `METHOD_OPTIONS`.

    Raises `ValueError` for an unknown method, an option that the method does not have or that is out of range, and
    shapes that do not fit.
    """
    options = _options_of(method, options)
    if x_BSH.dim() != 3 or y_BTH.dim() != 3 or x_BSH.shape[::2] != y_BTH.shape[::2]:
        raise ValueError(
            f"vectors have shapes {tuple(x_BSH.shape)} and {tuple(y_BTH.shape)}: both must be (pairs, tokens, hidden "
            "size), with the same number of pairs and the same hidden size."
        )
    x_BSH, y_BTH = computable(x_BSH), computable(y_BTH)
    masks = source_mask_BS, target_mask_BT
    if method == "ot_words":
        if not 0 < options["threshold"] < 1:
            raise ValueError(f"threshold={options['threshold']} is out of range: give a number between 0 and 1.")
        probability_BST = word_probabilities(x_BSH, y_BTH, *masks, words, options["slope"], options["offset"])
        is_word_BST = probability_BST > 0
        may_link_BST = is_word_BST if cells_BST is None else is_word_BST & cells_BST
        if options["symmetrization"] is not None:
            firsts = is_word_BST.any(2), is_word_BST.any(1)
            may_link_BST &= argmax_links(probability_BST, *firsts, options["symmetrization"])
        links_BST = may_link_BST & (probability_BST >= options["threshold"])
        if options["link_all"]:
            links_BST |= argmax_links(probability_BST.where(may_link_BST, -torch.inf), *masks, "forward")
        return Links(links_BST, probability_BST if probabilities else None)
    with torch.autocast(x_BSH.device.type, enabled=False):  # would round the products to 3 digits
        dots_BST = x_BSH @ y_BTH.transpose(1, 2)
    if method in ("ot", "ot_itermax"):
        iterations, *kernel = map(options.pop, SINKHORN_OPTIONS)
        plan_BST = sinkhorn(dots_BST, *masks, iterations, *kernel)
        scores_BST = settle_one_token_sides(plan_BST, dots_BST, *masks)
        if method == "ot":
            links_BST = argmax_links(scores_BST, *masks, **options)
        else:
            links_BST = ot_itermax_links(scores_BST, *masks, options.pop("filter_iterations"), **options)
        return Links(links_BST, plan_BST.to(dots_BST.dtype) if probabilities else None)
    if method == "softmax":
        links_BST = softmax_links(dots_BST, *masks, **options)
    else:
        tiny = torch.finfo(dots_BST.dtype).tiny  # a vector of nothing but 0 is similar to none
        x_norm_BS, y_norm_BT = (vectors_BNH.norm(dim=-1).clamp(min=tiny) for vectors_BNH in (x_BSH, y_BTH))
        similarity_BST = (dots_BST * (0.5 / x_norm_BS)[:, :, None]).div_(y_norm_BT[:, None]).add_(0.5)
        if method == "mutual":
            links_BST = argmax_links(similarity_BST, *masks, **options)
        else:
            links_BST = itermax_links(similarity_BST, *masks, options["filter_iterations"])
    return Links(links_BST, sum(_both_softmaxes(dots_BST, *masks)) / 2 if probabilities else None)


@torch.no_grad()
def sinkhorn(
    similarity_BST, source_mask_BS, target_mask_BT, iterations=2, regularization=1.0, epsilon=1e-6, first="rows"
):
    """Transport plan A = diag(u) K diag(v), K = max(epsilon, similarity)^(1 / regularization) (Eq. 1, 4-6).

    An iteration makes the rows sum to 1, then the columns (`first="rows"`, Eq. 6), or the columns before the rows
    (`first="columns"`, the paper's code). Returns the plan (B, S, T), 0 outside the masks and never NaN: a similarity
    that is NaN counts as epsilon.

    The plan is in float64, on devices that have it. Cells of tokens that give all they have to the same token differ by
    a millionth (epsilon) only. In float32, rounding, which differs from batch to batch, would choose the best of
    them. (At a low regularization even float64 is too coarse: 1e-6^(1 / 0.3) is 1e-20.) K itself is scaled where the
    type is sure to hold all intermediate values, else (regularization below 0.12, with the paper's epsilon) its
    logarithm, at four times the cost.

    Raises `ValueError` for numbers out of range and shapes that do not fit.
    """
    check_masks(similarity_BST, source_mask_BS, target_mask_BT)
    _check_iterations("iterations", iterations)
    if not 0 < regularization < float("inf") or not 0 < epsilon < float("inf"):
        raise ValueError(
            f"regularization and epsilon must be finite numbers above 0, got {regularization} and {epsilon}."
        )
    if first not in ("rows", "columns"):
        raise ValueError(f"first must be 'rows' or 'columns', got {first!r}.")
    k_BST = wide(similarity_BST, copy=True)
    # with K from exp(-limit) to exp(limit), no u, v or product of them leaves the range of the type
    limit = math.log(torch.finfo(k_BST.dtype).max) / 4
    is_safe = regularization * limit > max(LOG_LARGEST, -math.log(epsilon))
    most = math.exp(min(regularization, 3) * limit) if is_safe else torch.finfo(k_BST.dtype).max
    k_BST.nan_to_num_(nan=epsilon).clamp_(min=epsilon, max=max(most, epsilon))
    if not k_BST.numel():
        return k_BST
    # in a pair with an empty side no token has a place to go
    source_mask_BS = source_mask_BS & target_mask_BT.any(1, keepdim=True)
    target_mask_BT = target_mask_BT & source_mask_BS.any(1, keepdim=True)
    scale = _scale if is_safe else _scale_logs
    return scale(k_BST, source_mask_BS, target_mask_BT, iterations, regularization, first)


def _scale(k_BST, source_mask_BS, target_mask_BT, iterations, regularization, first):
    """Eq. 6 as printed, in the place of K. u and v of tokens that may not be linked are 0."""
    if regularization != 1:
        k_BST.pow_(1 / regularization)
    tiny = torch.finfo(k_BST.dtype).tiny  # sums of an empty side are 0
    source_BS1, target_BT1 = source_mask_BS[:, :, None].to(k_BST.dtype), target_mask_BT[:, :, None].to(k_BST.dtype)
    u_BS1, v_BT1 = source_BS1, target_BT1
    for half in range(2 * iterations):
        if (half % 2 == 0) == (first == "rows"):
            u_BS1 = source_BS1 / (k_BST @ v_BT1).clamp(min=tiny)
        else:
            v_BT1 = target_BT1 / (u_BS1.transpose(1, 2) @ k_BST).transpose(1, 2).clamp(min=tiny)
    return k_BST.mul_(u_BS1).mul_(v_BT1.transpose(1, 2))


def _scale_logs(k_BST, source_mask_BS, target_mask_BT, iterations, regularization, first):
    """Eq. 6 in logarithms."""
    nothing = torch.finfo(k_BST.dtype).min / 8  # finite: -inf less -inf would be NaN
    source_BS1, target_B1T = source_mask_BS[:, :, None], target_mask_BT[:, None]
    cells_BST = source_BS1 & target_B1T
    log_k_BST = (k_BST.log() / regularization).clamp(nothing / 8, -nothing / 8).where(cells_BST, nothing)
    log_u_BS1, log_v_B1T = (torch.zeros_like(mask, dtype=k_BST.dtype) for mask in (source_BS1, target_B1T))
    for half in range(2 * iterations):
        if (half % 2 == 0) == (first == "rows"):
            log_u_BS1 = -(log_k_BST + log_v_B1T).logsumexp(2, keepdim=True) * source_BS1
        else:
            log_v_B1T = -(log_k_BST + log_u_BS1).logsumexp(1, keepdim=True) * target_B1T
    return (log_k_BST + log_u_BS1 + log_v_B1T).exp() * cells_BST


def settle_one_token_sides(plan_BST, similarity_BST, source_mask_BS, target_mask_BT):
    """The plan to take argmaxes of: that of a pair of which one side has a single token is replaced by the similarity.

    All cells of such a plan are equal, and rounding would choose among them. Similarities that are not above 0, or NaN,
    are equal, too: the first of them comes first.
    """
    is_single_B = (source_mask_BS.sum(1) == 1) | (target_mask_BT.sum(1) == 1)
    if not is_single_B.any():
        return plan_BST
    tiny = torch.finfo(plan_BST.dtype).tiny  # above 0: `ot_itermax_links` takes 0 for no cell
    similarity_BST = similarity_BST.to(plan_BST.dtype).nan_to_num(nan=tiny).clamp(min=tiny)
    return torch.where(is_single_B[:, None, None], similarity_BST, plan_BST)


def ot_itermax_links(plan_BST, source_mask_BS, target_mask_BT, iterations=2, discount=0.9, rule="released"):
    """Iterative filtering of a transport plan (Eq. 7-9). Returns boolean links (B, S, T).

    `rule="released"`: what the authors ran (microsoft/unilm, commit fb83a6e, infoxlm/tasks/xlm_align.py, `iter_max`),
    which is SimAlign's rule applied to A: see `itermax_links`. A linked token gets a second link only from a token that
    has none.

    `rule="eq9_printed"`: every iteration adds the mutual argmaxes of A to the links (Eq. 8) and steps A (Eq. 9):
    linked cells become 0, others that share a row or a column with a link are multiplied by `discount`. A cell that has
    nothing, or of which nothing is left, is not linked. Two tokens that have their partners may be linked again:
    the error rate is higher by 14 to 54% (three pairs, `hub_cards/models/xlm_align.md`).

    Raises `ValueError` for an unknown rule, numbers out of range and shapes that do not fit.
    """
    _check_iterations("iterations", iterations)
    if rule not in RULES:
        raise ValueError(f"rule must be 'released' (XLM-Align's code) or 'eq9_printed', got {rule!r}.")
    lowest = 0 if rule == "eq9_printed" else 0.5
    if not lowest <= discount <= 1:
        raise ValueError(f"discount must be from {lowest} to 1 with rule {rule!r}, got {discount}.")
    if rule == "released":
        return _simalign_links(plan_BST, source_mask_BS, target_mask_BT, iterations, discount)
    plan_BST = inside(plan_BST, source_mask_BS, target_mask_BT, outside=0)
    links_BST = torch.zeros_like(plan_BST, dtype=torch.bool)
    if not links_BST.numel():
        return links_BST
    row_BS, column_BT = torch.zeros_like(source_mask_BS), torch.zeros_like(target_mask_BT)
    for iteration in range(iterations):
        if iteration:
            # 1 - (1 - discount) where linked; of row and column the lower, so that no cell is discounted twice
            row_factor_BS, column_factor_BT = (
                1 - (1 - discount) * linked.to(plan_BST.dtype) for linked in (row_BS, column_BT)
            )
            plan_BST *= torch.minimum(row_factor_BS[:, :, None], column_factor_BT[:, None])
        best = Argmaxes.of(plan_BST, nothing=0)
        best.mark(links_BST)
        best.clear(plan_BST)
        row_BS, column_BT = row_BS | best.is_mutual_BS, column_BT | best.is_mutual_BT
    return links_BST


def itermax_links(similarity_BST, source_mask_BS, target_mask_BT, iterations=2):
    """SimAlign's Itermax (Jalili Sabet et al. 2020, section 3.2), link by link what its code gives.

    The first iteration takes the mutual argmaxes. Every further one multiplies cells of which either the row or the
    column has a link by 0.9, cells of which both have one by 0, and adds the mutual argmaxes of the result whose row or
    column is free. Pairs of which a side has one or two tokens, and pairs of which a side has no free token left, are
    done after the first. Eq. 9 of XLM-Align differs: its discounts add up over the iterations, only linked cells become
    0, and there are no exceptions. Returns boolean links (B, S, T).

    Raises `ValueError` for numbers out of range and shapes that do not fit.
    """
    _check_iterations("iterations", iterations)
    return _simalign_links(similarity_BST, source_mask_BS, target_mask_BT, iterations, SIMALIGN_DISCOUNT)


def _simalign_links(scores_BST, source_mask_BS, target_mask_BT, iterations, discount):
    """`itermax_links` with another discount, of 0.5 or more."""
    scores_BST = inside(scores_BST, source_mask_BS, target_mask_BT)
    links_BST = torch.zeros_like(scores_BST, dtype=torch.bool)
    if not links_BST.numel():
        return links_BST
    best = Argmaxes.of(scores_BST)
    best.mark(links_BST)
    row_BS, column_BT = best.is_mutual_BS, best.is_mutual_BT
    is_open_B = (source_mask_BS.sum(1) > 2) & (target_mask_BT.sum(1) > 2)
    for _ in range(iterations - 1):
        is_open_B &= (source_mask_BS & ~row_BS).any(1) & (target_mask_BT & ~column_BT).any(1)
        # added up, 0, discount or 1; in float64 as in numpy: float32 would round different cells to the same value
        row_factor_BS, column_factor_BT = (discount * wide(~linked) for linked in (row_BS, column_BT))
        factor_BST = (row_factor_BS[:, :, None] + column_factor_BT[:, None]).clamp_(max=1)
        # 0 times infinity: no cell to choose
        factor_BST.mul_(scores_BST).nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        best = Argmaxes.of(factor_BST)
        is_new_BS = best.is_mutual_BS & is_open_B[:, None] & ~(row_BS & column_BT.gather(1, best.target_BS))
        is_new_BT = best.is_mutual_BT & is_open_B[:, None] & ~(column_BT & row_BS.gather(1, best.source_BT))
        best._replace(is_mutual_BS=is_new_BS).mark(links_BST)
        row_BS, column_BT = row_BS | is_new_BS, column_BT | is_new_BT
    return links_BST


def softmax_links(similarity_BST, source_mask_BS, target_mask_BT, threshold=1e-3):
    """awesome-align's rule (Dou and Neubig 2021, section 2.1): both softmax directions above `threshold`.

    Returns boolean links (B, S, T). Raises `ValueError` for a threshold out of range and shapes that do not fit.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be from 0 to below 1, got {threshold}.")
    return torch.minimum(*_both_softmaxes(similarity_BST, source_mask_BS, target_mask_BT)) > threshold


def _both_softmaxes(similarity_BST, source_mask_BS, target_mask_BT):
    """Softmax over the targets of each source and over the sources of each target, 0 outside the masks."""
    scores_BST = inside(similarity_BST, source_mask_BS, target_mask_BT, outside=torch.finfo(torch.float32).min)
    # next to a cell inside, cells outside become 0; what is left are rows and columns that have none inside
    row_BS, column_BT = (
        (own_mask & other_mask.any(1, keepdim=True)).to(scores_BST.dtype)
        for own_mask, other_mask in ((source_mask_BS, target_mask_BT), (target_mask_BT, source_mask_BS))
    )
    return scores_BST.softmax(2).mul_(row_BS[:, :, None]), scores_BST.softmax(1).mul_(column_BT[:, None])


def _options_of(method, options):
    """The method's options, those not given with its defaults."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    known = METHOD_OPTIONS[method]
    if unknown := sorted(options.keys() - known.keys()):
        raise ValueError(f"option {unknown[0]!r} with method {method!r}: its options are {', '.join(known) or 'none'}.")
    for name, value in options.items():
        kind = bool if isinstance(known[name], bool) else int | float
        if isinstance(known[name], bool | int | float) and (
            not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)
        ):
            raise ValueError(f"{name} must be {'True or False' if kind is bool else 'a number'}, got {value!r}.")
    return known | options


def _check_iterations(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
