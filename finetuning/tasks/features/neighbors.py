"""Exact search of nearest neighbors between two sets of vectors, by cosine, in both directions from one product.

Legend: `H` hidden size, `S` source vectors, `D` target vectors, `Q` and `P` of a block of each, `K` neighbors.
"""

import torch
from torch.nn import functional as F

ROWS_AT_ONCE = 512  # rows and columns of a block of cosines: 2 MiB of float64, which fit into a cache

Neighbors = tuple[torch.Tensor, torch.Tensor]


def nearest_of_each(
    source_SH: torch.Tensor, target_DH: torch.Tensor, device: torch.device | str = "cpu", size: int = ROWS_AT_ONCE
) -> Neighbors:
    """(S,) the nearest target of each source, and (D,) the nearest source of each target; see `nearest_neighbors`."""
    (_, forward_S1), (_, backward_D1) = nearest_neighbors(source_SH, target_DH, 1, device, size)
    return forward_S1[:, 0], backward_D1[:, 0]


@torch.no_grad()
def nearest_neighbors(
    source_SH: torch.Tensor,
    target_DH: torch.Tensor,
    count: int,
    device: torch.device | str = "cpu",
    size: int = ROWS_AT_ONCE,
) -> tuple[Neighbors, Neighbors]:
    """Returns the `count` nearest targets of each source, and the nearest sources of each target, the nearest first.

    Each result has cosines (S, K) and numbers (S, K), or (D, L) of both. K is `count`, or D if there are fewer targets;
    L likewise. Cosines are computed in float64 and rounded to float32, because cosines of sentences are close to each
    other, and equal ones must be equal. Ties go to the first vector for any `size`, the number of vectors of either
    side that are compared at once.
    """
    found = [
        torch.full((len(side), min(count, len(other))), torch.iinfo(torch.long).min, device=device)
        for side, other in ((source_SH, target_DH), (target_DH, source_SH))
    ]
    for start in range(0, len(source_SH), size):
        source_QH = F.normalize(source_SH[start : start + size].to(device).double(), dim=-1)
        for first in range(0, len(target_DH), size):
            target_PH = F.normalize(target_DH[first : first + size].to(device).double(), dim=-1)
            cosines_QP = (source_QH @ target_PH.T).float()
            _merge(found[0][start : start + size], cosines_QP, first)
            _merge(found[1][first : first + size], cosines_QP.T, start)
    forward, backward = (_cosines_and_numbers(keys.cpu()) for keys in found)
    return forward, backward


def _merge(highest_QK: torch.Tensor, cosines_QP: torch.Tensor, first: int) -> None:
    """Merges a block's keys into the highest ones so far: the cosine's bits in order, then the lower number."""
    bits_QP = cosines_QP.contiguous().view(torch.int32)
    ordered_QP = (bits_QP ^ ((bits_QP >> 31) & 0x7FFFFFFF)).long()
    numbers_P = torch.arange(first, first + cosines_QP.shape[1], device=cosines_QP.device)
    keys_QP = (ordered_QP << 32) | (0xFFFFFFFF - numbers_P)
    kept = min(highest_QK.shape[1], keys_QP.shape[1])
    both = torch.cat((highest_QK, keys_QP.topk(kept, dim=1).values), 1)
    highest_QK.copy_(both.topk(highest_QK.shape[1], dim=1).values)


def _cosines_and_numbers(keys_NK: torch.Tensor) -> Neighbors:
    ordered_NK = (keys_NK >> 32).int()
    bits_NK = ordered_NK ^ ((ordered_NK >> 31) & 0x7FFFFFFF)
    return bits_NK.view(torch.float32), 0xFFFFFFFF - (keys_NK & 0xFFFFFFFF)
