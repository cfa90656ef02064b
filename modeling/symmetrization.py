# SPDX-License-Identifier: Apache-2.0
"""From a matrix of scores to links: argmaxes in both directions and how they are put together, Itermax, softmax.

Legend: `B` pairs, `S` source tokens, `T` target tokens. Masks are boolean, True where a token may be linked. Of equal
scores the first wins; NaN and -inf are never linked.
"""

from itertools import chain

import torch
from torch import Tensor

SYMMETRIZATIONS = ("intersection", "union", "forward", "reverse", "grow-diag-final-and")
RULES = ("released", "eq9_printed")
NEIGHBORS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))  # the order of Moses

Cell = tuple[int, int]  # source token, target token


def argmax_links(
    scores_BST: Tensor, source_mask_BS: Tensor, target_mask_BT: Tensor, symmetrization: str = "intersection"
) -> Tensor:
    """Best target of each source token and best source of each target token, put together: boolean links (B, S, T).

    `forward`: the best target of each source (XLM-Align, Eq. 7); `reverse`: the best source of each target;
    `intersection`: what both have, mutual argmaxes; `union`: what either has; `grow-diag-final-and`: the intersection,
    grown into the union (Koehn et al. 2003, "Statistical phrase-based translation").

    Raises `ValueError` for an unknown symmetrization.
    """
    if symmetrization not in SYMMETRIZATIONS:
        raise ValueError(f"symmetrization={symmetrization!r}: give one of {', '.join(SYMMETRIZATIONS)}.")
    forward_BST, reverse_BST = best_cells(inside(scores_BST, source_mask_BS, target_mask_BT))
    if symmetrization == "forward":
        return forward_BST
    if symmetrization == "reverse":
        return reverse_BST
    if symmetrization == "intersection":
        return forward_BST & reverse_BST
    if symmetrization == "union":
        return forward_BST | reverse_BST
    return grow_diag_final_and(forward_BST, reverse_BST)


def itermax_links(
    scores_BST: Tensor,
    source_mask_BS: Tensor,
    target_mask_BT: Tensor,
    iterations: int = 2,
    discount: float = 0.9,
    rule: str = "released",
) -> Tensor:
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
    lowest_discount = 0.5 if rule == "released" else 0
    if rule not in RULES or iterations < 1 or not lowest_discount <= discount <= 1:
        raise ValueError(
            f"rule={rule!r}, iterations={iterations}, discount={discount}: give rule 'released' or 'eq9_printed', "
            f"at least 1 iteration, and a discount from {lowest_discount} to 1."
        )
    scores_BST = inside(scores_BST, source_mask_BS, target_mask_BT)
    if rule == "eq9_printed":
        return _itermax_as_printed(scores_BST, iterations, discount)
    return _itermax_as_released(scores_BST, source_mask_BS, target_mask_BT, iterations, discount)


def _itermax_as_released(
    scores_BST: Tensor, source_mask_BS: Tensor, target_mask_BT: Tensor, iterations: int, discount: float
) -> Tensor:
    links_BST = mutual_cells(scores_BST)
    has_many_B11 = ((source_mask_BS.sum(1) > 2) & (target_mask_BT.sum(1) > 2))[:, None, None]
    for _ in range(iterations - 1):
        row_BS1 = links_BST.any(2, keepdim=True)
        column_B1T = links_BST.any(1, keepdim=True)
        # 1, discount or 0; in float64 as in numpy: float32 would round different cells to the same value
        factor_BST = ((2 - wide(row_BS1) - wide(column_B1T)) * discount).clamp_(max=1)
        discounted_BST = (factor_BST * scores_BST).nan_to_num_(-torch.inf, torch.inf, -torch.inf)  # 0 x inf is NaN
        has_free_source_B11 = (source_mask_BS[:, :, None] & ~row_BS1).any(1, keepdim=True)
        has_free_target_B11 = (target_mask_BT[:, None] & ~column_B1T).any(2, keepdim=True)
        may_grow_B11 = has_many_B11 & has_free_source_B11 & has_free_target_B11
        may_link_BST = may_grow_B11 & ~(row_BS1 & column_B1T)
        links_BST = links_BST | (mutual_cells(discounted_BST) & may_link_BST)
    return links_BST


def _itermax_as_printed(scores_BST: Tensor, iterations: int, discount: float) -> Tensor:
    scores_BST = scores_BST.clamp(min=0)
    links_BST = mutual_cells(scores_BST, above=0)
    for _ in range(iterations - 1):
        is_next_to_link_BST = links_BST.any(2, keepdim=True) | links_BST.any(1, keepdim=True)
        scores_BST = torch.where(is_next_to_link_BST, discount * scores_BST, scores_BST).masked_fill(links_BST, 0)
        links_BST = links_BST | mutual_cells(scores_BST, above=0)
    return links_BST


def softmax_links(
    scores_BST: Tensor, source_mask_BS: Tensor, target_mask_BT: Tensor, threshold: float = 1e-3
) -> Tensor:
    """awesome-align's rule (Dou and Neubig 2021, section 2.1): both softmax directions above `threshold`.

    Returns boolean links (B, S, T). Raises `ValueError` for a threshold out of range.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be from 0 to below 1, got {threshold}.")
    over_targets_BST, over_sources_BST = both_softmaxes(scores_BST, source_mask_BS, target_mask_BT)
    return torch.minimum(over_targets_BST, over_sources_BST) > threshold


def both_softmaxes(scores_BST: Tensor, source_mask_BS: Tensor, target_mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the targets of each source and over the sources of each target, 0 outside the masks."""
    scores_BST = inside(scores_BST, source_mask_BS, target_mask_BT)
    over_targets_BST = scores_BST.softmax(2).nan_to_num(0.0)  # NaN: nothing is inside
    over_sources_BST = scores_BST.softmax(1).nan_to_num(0.0)
    return over_targets_BST, over_sources_BST


def grow_diag_final_and(forward_BST: Tensor, reverse_BST: Tensor) -> Tensor:
    """The symmetrization of Moses, of boolean links in both directions. Returns boolean links (B, S, T).

    The order in which links are taken matters, so that this is a loop; a pair has no more than S + T of them.
    """
    links_BST = torch.zeros_like(forward_BST, device="cpu")
    for links_ST, forward_ST, reverse_ST in zip(links_BST, forward_BST.cpu(), reverse_BST.cpu(), strict=True):
        for link in _grown_links(_cells_of(forward_ST), _cells_of(reverse_ST)):
            links_ST[link] = True
    return links_BST.to(forward_BST.device)


def _cells_of(links_ST: Tensor) -> list[Cell]:
    return [(source, target) for source, target in links_ST.nonzero().tolist()]


def _grown_links(forward: list[Cell], reverse: list[Cell]) -> set[Cell]:
    """Links of both directions; then, until there are no more, those of either that touch a taken one, if only by a
    corner, and of which a token has no link yet; at last those of which neither token has one."""
    either = {*forward, *reverse}
    links = {*forward} & {*reverse}
    linked_sources = {source for source, _ in links}
    linked_targets = {target for _, target in links}

    def take(link: Cell) -> None:
        links.add(link)
        linked_sources.add(link[0])
        linked_targets.add(link[1])

    count_before = -1
    while len(links) > count_before:
        count_before = len(links)
        for source, target in sorted(either):
            if (source, target) not in links:
                continue
            for down, right in NEIGHBORS:
                neighbor = (source + down, target + right)
                has_free_token = neighbor[0] not in linked_sources or neighbor[1] not in linked_targets
                if neighbor in either and has_free_token:
                    take(neighbor)
    for source, target in chain(forward, reverse):
        if source not in linked_sources and target not in linked_targets:
            take((source, target))
    return links


def mutual_cells(scores_BST: Tensor, above: float = -torch.inf) -> Tensor:
    """Cells that are the first highest of row and column, if they are above `above`: boolean (B, S, T)."""
    best_of_row_BST, best_of_column_BST = best_cells(scores_BST, above)
    return best_of_row_BST & best_of_column_BST


def best_cells(scores_BST: Tensor, above: float = -torch.inf) -> tuple[Tensor, Tensor]:
    """The first highest cell of each row, and that of each column, if it is above `above`: boolean (B, S, T) each."""
    nowhere_BST = torch.zeros_like(scores_BST, dtype=torch.bool)
    if not scores_BST.numel():
        return nowhere_BST, nowhere_BST
    highest_BS1, target_BS1 = scores_BST.max(2, keepdim=True)
    highest_B1T, source_B1T = scores_BST.max(1, keepdim=True)
    best_of_row_BST = nowhere_BST.scatter(2, target_BS1, highest_BS1 > above)
    best_of_column_BST = nowhere_BST.scatter(1, source_B1T, highest_B1T > above)
    return best_of_row_BST, best_of_column_BST


def inside(scores_BST: Tensor, source_mask_BS: Tensor, target_mask_BT: Tensor) -> Tensor:
    """The scores, -inf outside the masks and instead of NaN; in float32 at least."""
    cells_BST = source_mask_BS[:, :, None] & target_mask_BT[:, None]
    scores_BST = computable(scores_BST).nan_to_num(-torch.inf, torch.inf, -torch.inf)
    return scores_BST.masked_fill(~cells_BST, -torch.inf)


def computable(values: Tensor) -> Tensor:
    """In float32, or unchanged in float64: half types would lose the difference between neighbors."""
    return values if values.dtype == torch.float64 else values.float()


def wide_type(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that has no wider type: Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def wide(values: Tensor) -> Tensor:
    """In float64, where the device has it."""
    return values.to(wide_type(values.device))
