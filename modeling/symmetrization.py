# SPDX-License-Identifier: Apache-2.0
"""From a matrix of scores to links: argmaxes in both directions and how they are put together, Itermax, softmax.

Legend: `B` pairs, `S` source tokens, `T` target tokens. Masks are boolean, True where a token may be linked. Of equal
scores the first wins; NaN and -inf are never linked.
"""

from itertools import chain

import torch

SYMMETRIZATIONS = ("intersection", "union", "forward", "reverse", "grow-diag-final-and")
RULES = ("released", "eq9_printed")
NEIGHBORS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))  # the order of Moses


def argmax_links(scores_BST, source_mask_BS, target_mask_BT, symmetrization="intersection"):
    """Best target of each source token and best source of each target token, put together: boolean links (B, S, T).

    `forward`: the best target of each source (XLM-Align, Eq. 7); `reverse`: the best source of each target;
    `intersection`: what both have, mutual argmaxes; `union`: what either has; `grow-diag-final-and`: the intersection,
    grown into the union (Koehn et al. 2003, "Statistical phrase-based translation").

    Raises `ValueError` for an unknown symmetrization.
    """
    if symmetrization not in SYMMETRIZATIONS:
        raise ValueError(f"symmetrization={symmetrization!r}: give one of {', '.join(SYMMETRIZATIONS)}.")
    forward_BST, reverse_BST = best_cells(inside(scores_BST, source_mask_BS, target_mask_BT))
    if symmetrization == "grow-diag-final-and":
        return grow_diag_final_and(forward_BST, reverse_BST)
    of_both = {"intersection": forward_BST & reverse_BST, "union": forward_BST | reverse_BST}
    return (of_both | {"forward": forward_BST, "reverse": reverse_BST})[symmetrization]


def itermax_links(scores_BST, source_mask_BS, target_mask_BT, iterations=2, discount=0.9, rule="released"):
    """Mutual argmaxes, again and again, each time for tokens that have no link yet. Returns boolean links (B, S, T).

    `rule="released"`: Itermax as in SimAlign's code (Jalili Sabet et al. 2020, section 3.2), which XLM-Align's authors
    ran on transport plans (microsoft/unilm, commit fb83a6e, infoxlm/tasks/xlm_align.py, `iter_max`). Scores of cells of
    which the row or the column has a link are multiplied by `discount`, those of which both have one by 0, and mutual
    argmaxes of the result count whose row or column is free. A pair of which a side has one or two tokens, or no free
    token left, is done after the first iteration.

    `rule="eq9_printed"`: XLM-Align's Eqs. 8 and 9. Linked cells become 0, others that share a row or a column with a
    link are multiplied by `discount`, in every iteration. Only cells above 0 are linked. Two tokens that have their
    partners may be linked again: the error rate is higher by 14 to 54% (three pairs, `hub_cards/models/xlm_align.md`).

    Raises `ValueError` for an unknown rule and numbers out of range.
    """
    is_released = rule == "released"
    lowest = 0.5 if is_released else 0
    if rule not in RULES or iterations < 1 or not lowest <= discount <= 1:
        raise ValueError(
            f"rule={rule!r}, iterations={iterations}, discount={discount}: give rule 'released' or 'eq9_printed', "
            f"at least 1 iteration, and a discount from {lowest} to 1."
        )
    scores_BST = inside(scores_BST, source_mask_BS, target_mask_BT)
    if not is_released:
        scores_BST = scores_BST.clamp(min=0)
    above = -torch.inf if is_released else 0
    links_BST = torch.logical_and(*best_cells(scores_BST, above))
    has_many_B11 = ((source_mask_BS.sum(1) > 2) & (target_mask_BT.sum(1) > 2))[:, None, None]
    for _ in range(iterations - 1):
        row_BS1, column_B1T = links_BST.any(2, keepdim=True), links_BST.any(1, keepdim=True)
        if is_released:
            # 1, discount or 0; in float64 as in numpy: float32 would round different cells to the same value
            factor_BST = ((2 - wide(row_BS1) - wide(column_B1T)) * discount).clamp_(max=1)
            discounted_BST = (factor_BST * scores_BST).nan_to_num_(-torch.inf, torch.inf, -torch.inf)  # 0 x inf is NaN
            has_free_B11 = (source_mask_BS[:, :, None] & ~row_BS1).any(1, keepdim=True)
            has_free_B11 = has_free_B11 & (target_mask_BT[:, None] & ~column_B1T).any(2, keepdim=True)
            may_link_BST = has_many_B11 & has_free_B11 & ~(row_BS1 & column_B1T)
            links_BST = links_BST | torch.logical_and(*best_cells(discounted_BST)) & may_link_BST
        else:
            scores_BST = torch.where(row_BS1 | column_B1T, discount * scores_BST, scores_BST).masked_fill(links_BST, 0)
            links_BST = links_BST | torch.logical_and(*best_cells(scores_BST, above))
    return links_BST


def softmax_links(scores_BST, source_mask_BS, target_mask_BT, threshold=1e-3):
    """awesome-align's rule (Dou and Neubig 2021, section 2.1): both softmax directions above `threshold`.

    Returns boolean links (B, S, T). Raises `ValueError` for a threshold out of range.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be from 0 to below 1, got {threshold}.")
    return torch.minimum(*both_softmaxes(scores_BST, source_mask_BS, target_mask_BT)) > threshold


def both_softmaxes(scores_BST, source_mask_BS, target_mask_BT):
    """Softmax over the targets of each source and over the sources of each target, 0 outside the masks."""
    scores_BST = inside(scores_BST, source_mask_BS, target_mask_BT)
    return scores_BST.softmax(2).nan_to_num(0.0), scores_BST.softmax(1).nan_to_num(0.0)  # NaN: nothing is inside


def grow_diag_final_and(forward_BST, reverse_BST):
    """The symmetrization of Moses, of boolean links in both directions. Returns boolean links (B, S, T).

    Links of both directions; then, until there are no more, those of either that touch a taken one, if only by a
    corner, and of which a token has no link yet; at last those of which neither token has one. The order in which links
    are taken matters, so that this is a loop; a pair has no more than S + T of them.
    """
    links_BST = torch.zeros_like(forward_BST, device="cpu")
    for links_ST, *directions in zip(links_BST, forward_BST.cpu(), reverse_BST.cpu(), strict=True):
        forward, reverse = (list(map(tuple, of.nonzero().tolist())) for of in directions)
        either, links = {*forward, *reverse}, {*forward} & {*reverse}
        sources, targets = {s for s, _ in links}, {t for _, t in links}
        before = -1
        while len(links) > before:
            before = len(links)
            for s, t in sorted(either):
                for x, y in ((s + down, t + right) for down, right in NEIGHBORS) if (s, t) in links else ():
                    if (x, y) in either and (x not in sources or y not in targets):
                        links.add((x, y))
                        sources.add(x)
                        targets.add(y)
        for s, t in chain(forward, reverse):
            if s not in sources and t not in targets:
                links.add((s, t))
                sources.add(s)
                targets.add(t)
        for link in links:
            links_ST[link] = True
    return links_BST.to(forward_BST.device)


def best_cells(scores_BST, above=-torch.inf):
    """The first highest cell of each row, and that of each column, if it is above `above`: boolean (B, S, T) each."""
    nowhere_BST = torch.zeros_like(scores_BST, dtype=torch.bool)
    if not scores_BST.numel():
        return nowhere_BST, nowhere_BST
    (row_BS1, target_BS1), (column_B1T, source_B1T) = (scores_BST.max(dim, keepdim=True) for dim in (2, 1))
    return nowhere_BST.scatter(2, target_BS1, row_BS1 > above), nowhere_BST.scatter(1, source_B1T, column_B1T > above)


def inside(scores_BST, source_mask_BS, target_mask_BT):
    """The scores, -inf outside the masks and instead of NaN; in float32 at least."""
    scores_BST = computable(scores_BST).nan_to_num(-torch.inf, torch.inf, -torch.inf)
    return scores_BST.masked_fill(~(source_mask_BS[:, :, None] & target_mask_BT[:, None]), -torch.inf)


def computable(values):
    """In float32, or unchanged in float64: half types would lose the difference between neighbors."""
    return values if values.dtype == torch.float64 else values.float()


def wide_type(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that has no wider type: Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def wide(values: torch.Tensor) -> torch.Tensor:
    """In float64, where the device has it."""
    return values.to(wide_type(values.device))
