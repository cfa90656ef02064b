"""Exact search of nearest neighbors by cosine, and of translations in two pools by the ratio margin.

Legend: `H` hidden size, `S` source vectors, `D` target vectors, `N` vectors of either side and `M` of the other, `Q`
and `P` vectors of a block of each, `K` neighbors, `C` candidates.
"""

import numpy as np
import torch
from torch.nn import functional as F

BLOCK = 1024  # rows and columns of a block of cosines
SPARE = 4  # candidates of a vector in addition to its neighbors

Neighbors = tuple[torch.Tensor, torch.Tensor]  # cosines (N, K) in float64, and numbers (N, K)


@torch.no_grad()
def nearest_neighbors(
    source_SH: torch.Tensor, target_DH: torch.Tensor, count: int, device: torch.device | str = "cpu", size: int = BLOCK
) -> tuple[Neighbors, Neighbors]:
    """Returns the `count` nearest targets of each source, and the nearest sources of each target, the nearest first.

    If there are fewer vectors, all are neighbors. They are ordered by cosines of float64 that are rounded to float32,
    because cosines of sentences are close to each other, and equal ones must be equal; ties go to the first vector.
    The blocks of `size` vectors of either side are multiplied once, in float32. That only finds candidates: float64
    decides among them, and all vectors are compared in float64 where float32's error could hide a neighbor.
    """
    sides = ((source_SH, target_DH), (target_DH, source_SH))
    found = [_Candidates(len(one), min(count + SPARE, len(other)), device) for one, other in sides]
    for start in range(0, len(source_SH), size):
        source_QH = F.normalize(source_SH[start : start + size].to(device), dim=-1)
        for first in range(0, len(target_DH), size):
            target_PH = F.normalize(target_DH[first : first + size].to(device), dim=-1)
            cosines_QP = source_QH @ target_PH.T
            found[0].merge(slice(start, start + size), cosines_QP, first)
            found[1].merge(slice(first, first + size), cosines_QP.T.contiguous(), start)
    forward, backward = (
        _rescored(one, other, candidates, min(count, len(other)))
        for (one, other), candidates in zip(sides, found, strict=True)
    )
    return forward, backward


class _Candidates:
    """The vectors of the other side with the highest cosines in float32 so far: cosines and numbers (N, C)."""

    def __init__(self, rows: int, count: int, device: torch.device | str):
        self.cosines_NC = torch.full((rows, count), -torch.inf, device=device)
        self.numbers_NC = torch.zeros((rows, count), dtype=torch.long, device=device)

    def merge(self, rows: slice, cosines_QP: torch.Tensor, first: int) -> None:
        """Merges a block, whose columns are the vectors from number `first` on."""
        count = self.cosines_NC.shape[1]
        block = cosines_QP.topk(min(count, cosines_QP.shape[1]), sorted=False)
        cosines = torch.cat((self.cosines_NC[rows], block.values), 1)
        numbers = torch.cat((self.numbers_NC[rows], block.indices + first), 1)
        self.cosines_NC[rows], kept = cosines.topk(count, sorted=False)
        self.numbers_NC[rows] = numbers.gather(1, kept)


def _rescored(side_NH: torch.Tensor, other_MH: torch.Tensor, found: _Candidates, count: int) -> Neighbors:
    """The nearest of the candidates by their cosines in float64, and of all vectors where others may be nearer."""
    numbers_NC = found.numbers_NC.cpu().sort(dim=1).values
    cosines_NC = _cosines(side_NH, other_MH, numbers_NC)
    order_NK = cosines_NC.float().sort(dim=1, descending=True, stable=True).indices[:, :count]
    cosines_NK, numbers_NK = cosines_NC.gather(1, order_NK), numbers_NC.gather(1, order_NK)
    if numbers_NC.shape[1] < len(other_MH):
        # roundings of a dot product of unit vectors: at most H in the product, H/2 in either norm, and a few more
        error = (2 * side_NH.shape[1] + 8) * torch.finfo(torch.float32).eps / 2
        unsure = (cosines_NK[:, -1].float() <= found.cosines_NC.amin(1).cpu() + error).nonzero()[:, 0]
        for rows in unsure.split(max(1, 2**24 // len(other_MH))):
            own_QH = F.normalize(side_NH[rows].double(), dim=-1)
            parts = [own_QH @ F.normalize(other.double(), dim=-1).T for other in other_MH.split(BLOCK)]
            numbers_NK[rows] = torch.cat(parts, 1).float().sort(dim=1, descending=True, stable=True).indices[:, :count]
            cosines_NK[rows] = _cosines(side_NH[rows], other_MH, numbers_NK[rows])
    return cosines_NK, numbers_NK


def _cosines(side_NH: torch.Tensor, other_MH: torch.Tensor, numbers_NK: torch.Tensor) -> torch.Tensor:
    """(N, K) cosines of each vector and those of the other side that `numbers_NK` names, in float64."""
    products, norms_M = [], _norms(other_MH)
    for own_QH, numbers_QK in zip(side_NH.split(64), numbers_NK.split(64), strict=True):  # fit into a cache
        products.append((own_QH[:, None].double() * other_MH[numbers_QK]).sum(-1))
    return torch.cat(products) / (_norms(side_NH)[:, None] * norms_M[numbers_NK])


def _norms(vectors_NH: torch.Tensor) -> torch.Tensor:
    parts = [part_QH.double().square().sum(-1).sqrt() for part_QH in vectors_NH.split(BLOCK)]
    return torch.cat(parts).clamp(min=1e-12)


def mine(
    source_SH: torch.Tensor,
    target_DH: torch.Tensor,
    neighbors: int = 4,
    device: torch.device | str = "cpu",
    size: int = BLOCK,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns mined pairs, no vector in two of them, the best first: numbers (M,) of both sides, and margins (M,).

    Artetxe and Schwenk (2019), "Margin-based Parallel Corpus Mining with Multilingual Sentence Embeddings", Eq. 2 with
    the ratio margin, section 3.2's "max score": with NN_k(x) the k nearest of the other pool by cosine,

        margin(x, y) = cos(x, y) / ((mean_{z in NN_k(x)} cos(x, z) + mean_{z in NN_k(y)} cos(y, z)) / 2)

    Each sentence proposes the neighbor with the highest margin, from the source's side and from the target's. Proposals
    are accepted from the highest margin down, if neither sentence has been taken.

    Among neighbors with equal margins, the nearer one is proposed, and among equally near ones the first. Among
    proposals with equal margins, the one with the lower number of the source comes first, then of the target. If the
    denominator is not above zero, the pair is never proposed. Margins are of float64: `size` has no effect.

    XTREME's public script (third_party/utils_retrieve.py and evaluate_retrieval.py) ranks in the same way. It has
    faults that are not repeated here: it fits the threshold on the gold of the evaluated pools, reads past the end if
    all candidates are best, cuts between equal scores, and drops sentences that occur twice.
    """
    (cosines_SK, forward_SK), (cosines_DK, backward_DK) = nearest_neighbors(
        source_SH, target_DH, neighbors, device, size
    )
    # a pair has the same margin from both sides, to the last bit: products and sums commute
    margins_SK = _margins(cosines_SK, cosines_DK.mean(1), forward_SK)
    margins_DK = _margins(cosines_DK, cosines_SK.mean(1), backward_DK)
    proposed_S = forward_SK.gather(1, margins_SK.argmax(1, keepdim=True))[:, 0]
    proposed_D = backward_DK.gather(1, margins_DK.argmax(1, keepdim=True))[:, 0]
    source = torch.cat((torch.arange(len(source_SH)), proposed_D)).numpy()
    target = torch.cat((proposed_S, torch.arange(len(target_DH)))).numpy()
    margins = torch.cat((margins_SK.amax(1), margins_DK.amax(1))).numpy()
    kept = one_to_one(source, target, margins)
    return source[kept], target[kept], margins[kept]


def _margins(cosines_NK: torch.Tensor, means_M: torch.Tensor, numbers_NK: torch.Tensor) -> torch.Tensor:
    """(N, K) ratio margins; -inf where there is none."""
    likeness_NK = (cosines_NK.mean(1, keepdim=True) + means_M[numbers_NK]) / 2
    return torch.where(likeness_NK > 0, cosines_NK / likeness_NK, -torch.inf)


def one_to_one(source: np.ndarray, target: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Which of the proposed pairs are taken, from the highest score down, as long as both sentences are free.

    Of equal scores the first by the source's number, then the target's. A pair may be proposed twice; one with the
    score -inf is none.
    """
    order = np.lexsort((target, source, -scores))
    taken_source, taken_target, kept = set(), set(), []
    for number in order[np.isfinite(scores[order])].tolist():
        s, t = source[number], target[number]
        if s not in taken_source and t not in taken_target:
            taken_source.add(s)
            taken_target.add(t)
            kept.append(number)
    return np.array(kept, dtype=np.int64)
