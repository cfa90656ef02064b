# SPDX-License-Identifier: Apache-2.0
"""From scores of token pairs to links: the best partners in both directions, and how they are put together.

Legend: `B` pairs, `S` source tokens, `T` target tokens. Masks are boolean, True where a token may be linked.
"""

from itertools import chain
from typing import NamedTuple

import torch

SYMMETRIZATIONS = ("intersection", "union", "forward", "reverse", "grow-diag-final-and")
NEIGHBORS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))  # the order of Moses


def argmax_links(scores_BST, source_mask_BS, target_mask_BT, symmetrization="intersection"):
    """Best target of each source token and best source of each target token, put together: boolean links (B, S, T).

    `forward`: the best target of each source (XLM-Align, Eq. 7); `reverse`: the best source of each target;
    `intersection`: what both have, mutual argmaxes; `union`: what either has; `grow-diag-final-and`: the intersection,
    grown into the union (Koehn et al. 2003, "Statistical phrase-based translation"), see `grow_diag_final_and`.

    Of equal scores the first wins; scores of -inf and NaN are never linked.

    Raises `ValueError` for an unknown symmetrization and shapes that do not fit.
    """
    if symmetrization not in SYMMETRIZATIONS:
        raise ValueError(f"symmetrization={symmetrization!r}: give one of {', '.join(SYMMETRIZATIONS)}.")
    scores_BST = inside(scores_BST, source_mask_BS, target_mask_BT)
    links_BST = torch.zeros_like(scores_BST, dtype=torch.bool)
    if not links_BST.numel():
        return links_BST
    best = Argmaxes.of(scores_BST)
    if symmetrization == "intersection":
        return best.mark(links_BST)
    forward_BST = links_BST.scatter(2, best.target_BS[:, :, None], best.has_target_BS[:, :, None])
    reverse_BST = links_BST.scatter(1, best.source_BT[:, None], best.has_source_BT[:, None])
    if symmetrization == "grow-diag-final-and":
        return grow_diag_final_and(forward_BST, reverse_BST)
    return {"forward": forward_BST, "reverse": reverse_BST, "union": forward_BST | reverse_BST}[symmetrization]


def grow_diag_final_and(forward_BST, reverse_BST):
    """The symmetrization of Moses, of boolean links in both directions. Returns boolean links (B, S, T).

    The order in which links are taken matters, so that this is a loop; a pair has no more than S + T of them.
    """
    links_BST = torch.zeros_like(forward_BST)
    for pair, directions in enumerate(zip(forward_BST.cpu(), reverse_BST.cpu(), strict=True)):
        if grown := grow(*([tuple(link) for link in links_ST.nonzero().tolist()] for links_ST in directions)):
            links_BST[(pair, *torch.tensor(grown, device=links_BST.device).unbind(1))] = True
    return links_BST


def grow(forward: list[tuple[int, int]], reverse: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Links of both directions; then, until there are no more, those of either that touch a taken one, if only by a
    corner, and of which a token has no link yet; at last those of which neither token has one."""
    either, links = set(forward) | set(reverse), set(forward) & set(reverse)
    sources, targets = {s for s, _ in links}, {t for _, t in links}

    def take(s: int, t: int) -> None:
        links.add((s, t))
        sources.add(s)
        targets.add(t)

    before = -1
    while len(links) > before:
        before = len(links)
        for s, t in sorted(either):
            for x, y in ((s + down, t + right) for down, right in NEIGHBORS) if (s, t) in links else ():
                if (x, y) in either and (x not in sources or y not in targets):
                    take(x, y)
    for s, t in chain(forward, reverse):
        if s not in sources and t not in targets:
            take(s, t)
    return list(links)


class Argmaxes(NamedTuple):
    """The first highest cell of every row and of every column, and which rows and columns have theirs in common."""

    target_BS: torch.Tensor
    source_BT: torch.Tensor
    has_target_BS: torch.Tensor
    has_source_BT: torch.Tensor
    is_mutual_BS: torch.Tensor
    is_mutual_BT: torch.Tensor

    @classmethod
    def of(cls, scores_BST, nothing=-torch.inf) -> "Argmaxes":
        """Of cells above `nothing`."""
        # in half the time of argmax; both return the first of equals
        (row_BS, target_BS), (column_BT, source_BT) = scores_BST.max(2), scores_BST.max(1)
        has_target_BS, has_source_BT = row_BS > nothing, column_BT > nothing
        sources_S, targets_T = (torch.arange(size, device=scores_BST.device) for size in scores_BST.shape[1:])
        is_mutual_BS = (source_BT.gather(1, target_BS) == sources_S) & has_target_BS
        is_mutual_BT = (target_BS.gather(1, source_BT) == targets_T) & has_source_BT
        return cls(target_BS, source_BT, has_target_BS, has_source_BT, is_mutual_BS, is_mutual_BT)

    def mark(self, links_BST):
        """Adds the mutual cells to `links_BST`, in place."""
        cells_BS1 = self.target_BS[:, :, None]
        return links_BST.scatter_(2, cells_BS1, links_BST.gather(2, cells_BS1) | self.is_mutual_BS[:, :, None])

    def clear(self, scores_BST):
        """Makes the mutual cells of `scores_BST` 0, in place."""
        cells_BS1 = self.target_BS[:, :, None]
        kept_BS1 = scores_BST.gather(2, cells_BS1).masked_fill(self.is_mutual_BS[:, :, None], 0)
        return scores_BST.scatter_(2, cells_BS1, kept_BS1)


def inside(scores_BST, source_mask_BS, target_mask_BT, outside=-torch.inf):
    """The scores, with `outside` as the highest possible outside the masks, and instead of NaN."""
    check_masks(scores_BST, source_mask_BS, target_mask_BT)
    scores_BST = computable(scores_BST).nan_to_num(nan=outside, posinf=torch.inf, neginf=outside)
    row_BS, column_BT = (
        torch.full(mask.shape, torch.inf, dtype=scores_BST.dtype, device=mask.device).masked_fill_(~mask, outside)
        for mask in (source_mask_BS, target_mask_BT)
    )
    # a minimum with both is five times as fast as `where`
    return scores_BST.clamp_(max=row_BS[:, :, None]).clamp_(max=column_BT[:, None])


def computable(values):
    """In float32, or unchanged in float64: half types would lose the difference between neighbors."""
    return values if values.dtype == torch.float64 else values.float()


def wide(values, copy=False):
    """In float64, where the device has it."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64, copy=copy)


def check_masks(scores_BST, source_mask_BS, target_mask_BT):
    given = tuple(source_mask_BS.shape), tuple(target_mask_BT.shape)
    types = source_mask_BS.dtype, target_mask_BT.dtype
    shape = tuple(scores_BST.shape)
    if len(shape) != 3 or given != (shape[:2], shape[::2]) or types != (torch.bool, torch.bool):
        raise ValueError(
            f"scores of shape {shape} with masks of shapes {given[0]} and {given[1]}, types {types[0]} and {types[1]}: "
            "give scores (B, S, T) with boolean masks (B, S) and (B, T)."
        )
