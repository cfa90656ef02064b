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

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .symmetrization import argmax_links, both_softmaxes, computable, inside, itermax_links, softmax_links, wide
from .word_probabilities import word_probabilities

# The options of each method of `align`. The defaults are the papers' values (XLM-Align, Table 11); `ot_itermax` is as
# XLM-Align's public code runs it, see `itermax_links`.
SINKHORN_OPTIONS = {"sinkhorn_iterations": 2, "regularization": 1.0, "epsilon": 1e-6, "first": "rows"}
METHOD_OPTIONS = {
    "ot_words": {"threshold": 0.5, "link_all": False, "slope": 1.0, "offset": 0.0},
    "ot": SINKHORN_OPTIONS | {"symmetrization": "intersection"},
    "ot_itermax": SINKHORN_OPTIONS | {"first": "columns", "filter_iterations": 2, "discount": 0.9, "rule": "released"},
    "itermax": {"filter_iterations": 2},
    "mutual": {"symmetrization": "intersection"},
    "softmax": {"threshold": 1e-3},
}
METHODS = tuple(METHOD_OPTIONS)


class Links(NamedTuple):
    """What `align` returns: boolean links, a probability of every cell, and the scores that the links are chosen by,
    which order cells more finely than rounded probabilities."""

    links_BST: torch.Tensor
    probabilities_BST: torch.Tensor
    scores_BST: torch.Tensor


@torch.no_grad()
def align(
    x_BSH: torch.Tensor,
    y_BTH: torch.Tensor,
    source_mask_BS: torch.Tensor,
    target_mask_BT: torch.Tensor,
    method: str = "ot_itermax",
    words: Sequence[torch.Tensor] | None = None,
    cells_BST: torch.Tensor | None = None,
    **options: Any,
) -> Links:
    """Links between the tokens of pairs, from the tokens' vectors.

    Methods, and what they are computed on:
    - `ot_words`: Sinkhorn on standardized cosines of tokens and of whole words, and links whose probability of being
      right reaches a threshold, see `word_probabilities`; links are between the first tokens of words. `link_all` adds
      the likeliest link of each source word, the first of equals, also below the threshold;
    - `ot`: Sinkhorn on dot products, then mutual argmax (XLM-Align's public aligner);
    - `ot_itermax`: Sinkhorn on dot products, then iterative filtering (XLM-Align's self-labeling);
    - `mutual`, `itermax`: mutual argmax, and Itermax, on (cosine + 1) / 2 (SimAlign);
    - `softmax`: both softmax directions of the dot products above a threshold (awesome-align).

    Args:
        x_BSH, y_BTH: vectors of source and target, of any floating type; computed in float32, in float64 if given so.
        source_mask_BS, target_mask_BT: True where a token may be linked.
        words: numbers of the words that the tokens belong to, ((B, S), (B, T)), of `ot_words`; default: each token is a
            word. The others link tokens by themselves.
        cells_BST: True where two tokens may be linked; default: everywhere inside the masks.
        options: those of the method, in `METHOD_OPTIONS`.

    Returns links, probabilities and scores (B, S, T). Probabilities are, of `ot_words`, calibrated: that a link is
    right; of `ot` and `ot_itermax` the transport plan, of the others the mean of both softmax directions of the dot
    products. All are 0 outside the masks.

    Raises `ValueError` for an unknown method, and an option that the method does not have or that is out of range.
    """
    options = check_options(method, options)
    x_BSH = computable(x_BSH)
    y_BTH = computable(y_BTH)
    masks = (source_mask_BS, target_mask_BT)
    if method == "ot_words":
        return _likely_links(x_BSH, y_BTH, masks, words, cells_BST, **options)
    with torch.autocast(x_BSH.device.type, enabled=False):  # would round the products to 3 digits
        dots_BST = x_BSH @ y_BTH.transpose(1, 2)
    if method in ("ot", "ot_itermax"):
        sinkhorn_options = [options.pop(name) for name in SINKHORN_OPTIONS]
        plan_BST = sinkhorn(dots_BST, *masks, *sinkhorn_options)
        scores_BST = settle_one_token_sides(plan_BST, dots_BST, *masks)
        probabilities_BST = plan_BST.to(dots_BST.dtype)
    else:
        scores_BST = dots_BST
        over_targets_BST, over_sources_BST = both_softmaxes(dots_BST, *masks)
        probabilities_BST = (over_targets_BST + over_sources_BST) / 2
        if method != "softmax":
            tiny = torch.finfo(dots_BST.dtype).tiny  # a vector of nothing but 0 is similar to none
            x_norm_BS = x_BSH.norm(dim=-1).clamp(min=tiny)
            y_norm_BT = y_BTH.norm(dim=-1).clamp(min=tiny)
            scores_BST = dots_BST * (0.5 / x_norm_BS)[:, :, None] / y_norm_BT[:, None] + 0.5
    if method in ("ot", "mutual"):
        links_BST = argmax_links(scores_BST, *masks, **options)
    elif method == "softmax":
        links_BST = softmax_links(scores_BST, *masks, **options)
    else:
        iterations = options.pop("filter_iterations")
        links_BST = itermax_links(scores_BST, *masks, iterations, **options)
    if cells_BST is not None:
        links_BST = links_BST & cells_BST
    return Links(links_BST, probabilities_BST, scores_BST)


def _likely_links(
    x_BSH: torch.Tensor,
    y_BTH: torch.Tensor,
    masks: tuple[torch.Tensor, torch.Tensor],
    words: Sequence[torch.Tensor] | None,
    cells_BST: torch.Tensor | None,
    threshold: float,
    link_all: bool,
    slope: float,
    offset: float,
) -> Links:
    """The method `ot_words`."""
    if not 0 < threshold < 1:
        raise ValueError(f"threshold={threshold} is out of range: give a number between 0 and 1.")
    probability_BST = word_probabilities(x_BSH, y_BTH, *masks, words, slope, offset)
    may_link_BST = probability_BST > 0
    if cells_BST is not None:
        may_link_BST &= cells_BST
    links_BST = may_link_BST & (probability_BST >= threshold)
    if link_all:
        links_BST |= argmax_links(probability_BST.where(may_link_BST, -torch.inf), *masks, "forward")
    return Links(links_BST, probability_BST, probability_BST)


@torch.no_grad()
def sinkhorn(
    similarity_BST: torch.Tensor,
    source_mask_BS: torch.Tensor,
    target_mask_BT: torch.Tensor,
    iterations: int = 2,
    regularization: float = 1.0,
    epsilon: float = 1e-6,
    first: str = "rows",
) -> torch.Tensor:
    """Transport plan A = diag(u) K diag(v), K = max(epsilon, similarity)^(1 / regularization) (Eq. 1, 4-6).

    An iteration makes the rows sum to 1, then the columns (`first="rows"`, Eq. 6), or the columns before the rows
    (`first="columns"`, the paper's code). Returns the plan (B, S, T), 0 outside the masks and never NaN: a similarity
    that is NaN counts as epsilon.

    The plan is in float64, on devices that have it. Cells of tokens that give all they have to the same token differ by
    a millionth (epsilon) only: in float32, rounding, which differs from batch to batch, would choose among them. (At a
    low regularization even float64 is too coarse: 1e-6^(1 / 0.3) is 1e-20.) It is computed in logarithms.

    Raises `ValueError` for numbers out of range.
    """
    is_positive = 0 < regularization < float("inf") and 0 < epsilon < float("inf")
    if iterations < 1 or not is_positive or first not in ("rows", "columns"):
        raise ValueError(
            f"Sinkhorn with iterations={iterations}, regularization={regularization}, epsilon={epsilon}, "
            f"first={first!r}: give at least 1 iteration, finite numbers above 0, and 'rows' or 'columns'."
        )
    scores_BST = wide(inside(similarity_BST, source_mask_BS, target_mask_BT))
    # a pair with an empty side has no cells
    cells_BST = source_mask_BS[:, :, None] & target_mask_BT[:, None]
    floor = scores_BST.clamp(min=epsilon, max=torch.finfo(scores_BST.dtype).max)
    log_k_BST = (floor.log() / regularization).masked_fill(~cells_BST, -torch.inf)
    log_u_BS1 = log_k_BST.new_zeros(())
    log_v_B1T = log_k_BST.new_zeros(())
    for half in range(2 * iterations):
        if (half % 2 == 0) == (first == "rows"):
            log_u_BS1 = -(log_k_BST + log_v_B1T).logsumexp(2, keepdim=True)
            log_u_BS1 = log_u_BS1.masked_fill(log_u_BS1 == torch.inf, 0)  # of a row without cells
        else:
            log_v_B1T = -(log_k_BST + log_u_BS1).logsumexp(1, keepdim=True)
            log_v_B1T = log_v_B1T.masked_fill(log_v_B1T == torch.inf, 0)
    return (log_k_BST + log_u_BS1 + log_v_B1T).exp()


def settle_one_token_sides(
    plan_BST: torch.Tensor, similarity_BST: torch.Tensor, source_mask_BS: torch.Tensor, target_mask_BT: torch.Tensor
) -> torch.Tensor:
    """The plan to take argmaxes of: that of a pair of which one side has a single token is replaced by the similarity.

    All cells of such a plan are equal, and rounding would choose among them. Similarities that are not above 0, or NaN,
    are equal, too: the first of them comes first.
    """
    is_single_B = (source_mask_BS.sum(1) == 1) | (target_mask_BT.sum(1) == 1)
    tiny = torch.finfo(plan_BST.dtype).tiny  # above 0: Eq. 9 takes 0 for no cell
    similarity_BST = similarity_BST.to(plan_BST.dtype).nan_to_num(nan=tiny).clamp(min=tiny)
    return torch.where(is_single_B[:, None, None], similarity_BST, plan_BST)


def check_options(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """All options of the method: `options`, and its defaults of the others."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    defaults = METHOD_OPTIONS[method]
    for name in options:
        if name not in defaults:
            raise ValueError(f"option {name!r} with method {method!r}: its options are {', '.join(defaults)}.")
    return defaults | options
