"""Exact search of nearest neighbors by cosine, and of translations in two pools by the ratio margin.

Several processes divide the sources: all of them call these functions with the same vectors, and get the same results
as one process.

Legend: `H` hidden size, `S` source vectors, `D` target vectors, `N` vectors of either side and `M` of the other, `Q`
and `P` vectors of a block of each, `K` neighbors, `C` candidates, `G` columns of a group, `R` groups of a block, `A`
the H + 3 numbers of a point.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from torch.nn import functional as F

from crosslingual_zoo.zoo_core.processes import from_all

BLOCK = 8192  # most rows and columns of a block of scores, which then takes 256 MiB
GROUP = 8  # columns of a block of which only the highest score is looked at first
SPARE = 2  # candidates of a vector in addition to its neighbors
EXACT_BLOCK = 1024  # rows and columns of a block of cosines in float64
SAMPLE = 1024  # vectors of a side from which the center is computed
CACHED = 32  # vectors whose copies in float64 fit into a processor's cache
SMALLEST_NORM = 1e-12  # as F.normalize has it
UNIT = 2.0**-24  # the largest relative error of a rounding to float32
FLOAT64_ERROR = 1e-12  # more than that of a cosine in float64


class Neighbors(NamedTuple):
    """Of each vector, the nearest ones of the other side, the nearest first."""

    cosines_NK: torch.Tensor  # in float64
    numbers_NK: torch.Tensor


@torch.no_grad()
def nearest_neighbors(
    source_SH: torch.Tensor, target_DH: torch.Tensor, count: int, device: torch.device | str = "cpu", size: int = BLOCK
) -> tuple[Neighbors, Neighbors]:
    """Returns the `count` nearest targets of each source, and the nearest sources of each target, the nearest first.

    If there are fewer vectors, all are neighbors. They are ordered by cosines of float64 that are rounded to float32,
    because cosines of sentences are close to each other, and equal ones must be equal; ties go to the first vector.
    Blocks of at most `size` vectors of either side are multiplied once, in float32. That only finds candidates: float64
    decides among them, and all vectors are compared in float64 where float32's error could hide a neighbor.
    """
    sources = _share(len(source_SH))
    targets = _share(len(target_DH))
    candidates = from_all(lambda: _candidates(source_SH, target_DH, sources, count + SPARE, device, size))
    of_sources, _ = candidates[PartialState().process_index]
    of_targets = _highest([found_by_process for _, found_by_process in candidates], targets)

    def compare() -> tuple[Neighbors, Neighbors]:
        forward = _rescored(source_SH[sources], target_DH, of_sources, count)
        backward = _rescored(target_DH[targets], source_SH, of_targets, count)
        return forward, backward

    shares = from_all(compare)
    return _joined([forward for forward, _ in shares]), _joined([backward for _, backward in shares])


def _share(count: int) -> slice:
    """Which of so many vectors are those of this process."""
    state = PartialState()
    first = count * state.process_index // state.num_processes
    end = count * (state.process_index + 1) // state.num_processes
    return slice(first, end)


def _joined(shares: list[Neighbors]) -> Neighbors:
    cosines = [share.cosines_NK for share in shares]
    numbers = [share.numbers_NK for share in shares]
    return Neighbors(torch.cat(cosines), torch.cat(numbers))


class _Candidates(NamedTuple):
    """Of each vector, those of the other side with the highest scores so far, in no order."""

    scores_NC: torch.Tensor
    numbers_NC: torch.Tensor

    def merge(self, rows: slice, scores_QP: torch.Tensor, first: int) -> None:
        """Merges a block of scores of these rows; its columns are the vectors from number `first` on.

        The highest scores of a row are in the groups that have the highest maxima.
        """
        count = self.scores_NC.shape[1]
        groups = scores_QP.shape[1] // GROUP
        grouped, rest_QP = scores_QP.tensor_split([groups * GROUP], 1)
        scores_QGR = grouped.unflatten(1, (GROUP, groups))
        maxima_QR = torch.empty_like(grouped[:, :groups])  # of a transposed block transposed, too: this is faster
        torch.amax(scores_QGR, 1, out=maxima_QR)
        best_Q1C = maxima_QR.contiguous().topk(min(count, groups), sorted=False).indices[:, None]
        best_QGC = best_Q1C.expand(-1, GROUP, -1)
        scores = torch.cat((self.scores_NC[rows], scores_QGR.gather(2, best_QGC).flatten(1), rest_QP), 1)

        numbers_P = torch.arange(first, first + scores_QP.shape[1], device=scores_QP.device)
        grouped_numbers, rest_P = numbers_P.tensor_split([groups * GROUP])
        numbers_QGR = grouped_numbers.view(1, GROUP, groups).expand(len(scores_QP), -1, -1)
        rest_QP = rest_P.expand(len(scores_QP), -1)
        numbers = torch.cat((self.numbers_NC[rows], numbers_QGR.gather(2, best_QGC).flatten(1), rest_QP), 1)

        self.scores_NC[rows], chosen_QC = scores.topk(count, sorted=False)
        self.numbers_NC[rows] = numbers.gather(1, chosen_QC)

    def cpu(self) -> "_Candidates":
        return _Candidates(self.scores_NC.cpu(), self.numbers_NC.cpu())


def _candidates(
    source_SH: torch.Tensor, target_DH: torch.Tensor, sources: slice, count: int, device: torch.device | str, size: int
) -> tuple[_Candidates, _Candidates]:
    """The candidates of this process' sources; and those of all targets, among its sources."""
    center_H = _center(source_SH, target_DH)
    source_points = _Points(source_SH[sources], center_H, device, is_source=True)
    target_points = _Points(target_DH, center_H, device, is_source=False)
    of_sources = _no_candidates(len(source_SH[sources]), min(count, len(target_DH)), device)
    of_targets = _no_candidates(len(target_DH), min(count, len(source_SH)), device)
    memory = torch.empty(min(size, len(source_SH)) * min(size, len(target_DH)), device=device)
    for rows in _blocks(len(source_SH[sources]), size):
        source_QA = source_points.block(rows)
        for columns in _blocks(len(target_DH), size):
            target_PA = target_points.block(columns)
            scores_QP = memory[: len(source_QA) * len(target_PA)].view(len(source_QA), len(target_PA))
            torch.mm(source_QA, target_PA.T, out=scores_QP)
            of_sources.merge(rows, scores_QP, columns.start)
            of_targets.merge(columns, scores_QP.T, sources.start + rows.start)
    return of_sources.cpu(), of_targets.cpu()


def _no_candidates(vectors: int, count: int, device: torch.device | str) -> _Candidates:
    scores_NC = torch.full((vectors, count), -torch.inf, device=device)
    return _Candidates(scores_NC, torch.zeros((vectors, count), dtype=torch.long, device=device))


def _blocks(count: int, size: int) -> Iterator[slice]:
    """Slices of `count` rows, of at most `size` and as equal as possible."""
    blocks = math.ceil(count / size)
    for block in range(blocks):
        yield slice(count * block // blocks, count * (block + 1) // blocks)


def _highest(shares: list[_Candidates], rows: slice) -> _Candidates:
    """Of these vectors, the highest of the candidates that all processes found."""
    scores = torch.cat([share.scores_NC[rows] for share in shares], 1)
    numbers = torch.cat([share.numbers_NC[rows] for share in shares], 1)
    scores_NC, chosen_NC = scores.topk(shares[0].scores_NC.shape[1], sorted=False)
    return _Candidates(scores_NC, numbers.gather(1, chosen_NC))


def _center(source_SH: torch.Tensor, target_DH: torch.Tensor) -> torch.Tensor:
    """(H,) mean of unit vectors from all over both sides, in float64. Any point near the vectors serves."""
    means = []
    for side_NH in (source_SH, target_DH):
        step = math.ceil(len(side_NH) / SAMPLE)
        means.append(_unit(side_NH[::step]).mean(0))
    return (means[0] + means[1]) / 2


def _unit(vectors_NH: torch.Tensor) -> torch.Tensor:
    return F.normalize(vectors_NH.double(), dim=-1)


class _Points:
    """Vectors as points (N, A), so that the product of a source's and a target's is their score, an upper bound.

    With vectors x and y of length 1, a center c, x' = x - c and y' = y - c,

        cos(x, y) - 1 = x' y' + b(x) + b(y), with b(x) = (x x - x' x' - 1) / 2, which is -x' x' / 2

    Vectors of a model without fine-tuning lie in a narrow cone, around c. There x' is short, and float32's error is
    small: at most (A + 2) u (|x'| |y'| + |b(x)| + |b(y)|) by the product and the roundings of its terms, with the unit
    roundoff u = 2^-24 (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1), and about
    3 u (|x'| + |y'|) by those of x, c and x'. The biases and the last number of a point add a little more.
    """

    def __init__(self, vectors_NH: torch.Tensor, center_H: torch.Tensor, device: torch.device | str, is_source: bool):
        self.vectors_NH = vectors_NH
        self.center_H = center_H.to(device, torch.float32)
        norms = []
        along = []
        for part_QH in vectors_NH.split(CACHED):
            part_QH = part_QH.double()
            norms.append(part_QH.norm(dim=1, keepdim=True))
            along.append(part_QH @ center_H[:, None])
        norms_N1 = torch.cat(norms)
        divisors_N1 = norms_N1.clamp(min=SMALLEST_NORM)
        squares_N1 = (norms_N1 / divisors_N1).square()  # 1, or 0 of a vector of zeros
        centered_N1 = squares_N1 - 2 * torch.cat(along) / divisors_N1 + center_H.square().sum()
        distances_N1 = centered_N1.clamp(min=0).sqrt()
        error = (vectors_NH.shape[1] + 16) * UNIT
        biases_N1 = (1 - error) * (squares_N1 - centered_N1 - 1) / 2 + 4 * UNIT * distances_N1
        ones_N1 = torch.ones_like(biases_N1)
        biases = (biases_N1, ones_N1) if is_source else (ones_N1, biases_N1)
        self.factors_N1 = (1 / divisors_N1).to(device, torch.float32)
        self.last_N3 = torch.cat((*biases, error**0.5 * distances_N1), 1).to(device, torch.float32)

    def block(self, rows: slice) -> torch.Tensor:
        """(Q, A) points in float32."""
        vectors_QH = self.vectors_NH[rows].to(self.center_H.device)
        points_QA = vectors_QH.new_empty(len(vectors_QH), vectors_QH.shape[1] + 3)
        torch.addcmul(-self.center_H, vectors_QH, self.factors_N1[rows], out=points_QA[:, :-3])
        points_QA[:, -3:] = self.last_N3[rows]
        return points_QA


def _rescored(side_NH: torch.Tensor, other_MH: torch.Tensor, found: _Candidates, count: int) -> Neighbors:
    """The nearest of the candidates by their cosines in float64, and of all vectors where others may be nearer."""
    numbers_NC = found.numbers_NC.sort(dim=1).values
    cosines_NC = _cosines(side_NH, other_MH, numbers_NC)
    order_NK = cosines_NC.float().sort(dim=1, descending=True, stable=True).indices[:, :count]
    cosines_NK = cosines_NC.gather(1, order_NK)
    numbers_NK = numbers_NC.gather(1, order_NK)
    if numbers_NC.shape[1] == len(other_MH):
        return Neighbors(cosines_NK, numbers_NK)
    highest_other_N = found.scores_NC.amin(1).double() + 1 + FLOAT64_ERROR
    unsure = (cosines_NK[:, -1].float() <= highest_other_N.float()).nonzero()[:, 0]
    for rows in unsure.split(EXACT_BLOCK):
        numbers_NK[rows] = _exact_search(side_NH[rows], other_MH, count)
        cosines_NK[rows] = _cosines(side_NH[rows], other_MH, numbers_NK[rows])
    return Neighbors(cosines_NK, numbers_NK)


def _exact_search(side_QH: torch.Tensor, other_MH: torch.Tensor, count: int) -> torch.Tensor:
    """(Q, K) numbers of the nearest of all vectors, by cosines in float64; the sort is stable: ties to the first."""
    unit_QH = _unit(side_QH)
    cosines_QK = torch.empty(len(side_QH), 0)
    numbers_QK = torch.empty(len(side_QH), 0, dtype=torch.long)
    for first in range(0, len(other_MH), EXACT_BLOCK):
        other_PH = _unit(other_MH[first : first + EXACT_BLOCK])
        cosines_QP = (unit_QH @ other_PH.T).float()
        numbers_QP = torch.arange(first, first + len(other_PH)).expand_as(cosines_QP)
        sorted_cosines, order = torch.cat((cosines_QK, cosines_QP), 1).sort(dim=1, descending=True, stable=True)
        cosines_QK = sorted_cosines[:, :count]
        numbers_QK = torch.cat((numbers_QK, numbers_QP), 1).gather(1, order[:, :count])
    return numbers_QK


def _cosines(side_NH: torch.Tensor, other_MH: torch.Tensor, numbers_NK: torch.Tensor) -> torch.Tensor:
    """(N, K) cosines of each vector and those of the other side that `numbers_NK` names, in float64."""
    products = []
    for side_QH, numbers_QK in zip(side_NH.split(CACHED), numbers_NK.split(CACHED), strict=True):
        others_QKH = other_MH.index_select(0, numbers_QK.flatten()).double().view(*numbers_QK.shape, side_NH.shape[1])
        products.append(others_QKH.mul_(side_QH[:, None]).sum(-1))
    return torch.cat(products) / (_norms(side_NH)[:, None] * _norms(other_MH)[numbers_NK])


def _norms(vectors_NH: torch.Tensor) -> torch.Tensor:
    parts = [part_QH.double().square().sum(-1).sqrt() for part_QH in vectors_NH.split(CACHED)]
    return torch.cat(parts).clamp(min=SMALLEST_NORM)


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
    forward, backward = nearest_neighbors(source_SH, target_DH, neighbors, device, size)
    # a pair has the same margin from both sides, to the last bit: products and sums commute
    margins_SK = _margins(forward, backward.cosines_NK.mean(1))
    margins_DK = _margins(backward, forward.cosines_NK.mean(1))
    proposed_S1 = forward.numbers_NK.gather(1, margins_SK.argmax(1, keepdim=True))
    proposed_D1 = backward.numbers_NK.gather(1, margins_DK.argmax(1, keepdim=True))
    source = torch.cat((torch.arange(len(source_SH)), proposed_D1[:, 0])).numpy()
    target = torch.cat((proposed_S1[:, 0], torch.arange(len(target_DH)))).numpy()
    margins = torch.cat((margins_SK.amax(1), margins_DK.amax(1))).numpy()
    taken = one_to_one(source, target, margins)
    return source[taken], target[taken], margins[taken]


def _margins(near: Neighbors, means_M: torch.Tensor) -> torch.Tensor:
    """(N, K) ratio margins; -inf where there is none. `means_M` are the other side's mean cosines."""
    cosines_NK, numbers_NK = near
    likeness_NK = (cosines_NK.mean(1, keepdim=True) + means_M[numbers_NK]) / 2
    return torch.where(likeness_NK > 0, cosines_NK / likeness_NK, -torch.inf)


def one_to_one(source: np.ndarray, target: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Which of the proposed pairs are taken, from the highest score down, as long as both sentences are free.

    Of equal scores the first by the source's number, then the target's. A pair may be proposed twice; one with the
    score -inf is none.
    """
    order = np.lexsort((target, source, -scores))
    order = order[np.isfinite(scores[order])]
    taken_sources: set[int] = set()
    taken_targets: set[int] = set()
    taken = []
    for number, s, t in zip(order.tolist(), source[order].tolist(), target[order].tolist(), strict=True):
        if s not in taken_sources and t not in taken_targets:
            taken_sources.add(s)
            taken_targets.add(t)
            taken.append(number)
    return np.array(taken, dtype=np.int64)
