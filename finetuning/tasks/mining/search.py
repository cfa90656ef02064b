"""Pairs of translations, mined from two pools of sentences by the ratio margin of their vectors.

Legend: `H` hidden size, `S` sentences of the source pool, `D` of the target pool, `K` neighbors, `M` mined pairs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from finetuning.tasks.features.neighbors import ROWS_AT_ONCE, nearest_neighbors


@dataclass
class Mined:
    """Pairs of two pools, no sentence in two of them, the best first: numbers (M,) of both sides, and margins (M,).

    without_margin: (sources, targets) for none of whose neighbors a margin is defined.
    """

    source: np.ndarray
    target: np.ndarray
    scores: np.ndarray
    without_margin: tuple[int, int]


def mine(
    source_SH: torch.Tensor,
    target_DH: torch.Tensor,
    neighbors: int = 4,
    device: torch.device | str = "cpu",
    size: int = ROWS_AT_ONCE,
) -> Mined:
    """Mines pairs by the ratio margin, best first and one-to-one, without a threshold.

    Artetxe and Schwenk (2019), "Margin-based Parallel Corpus Mining with Multilingual Sentence Embeddings", Eq. 2 with
    the ratio margin, section 3.2's "max score": with NN_k(x) the k nearest of the other pool by cosine,

        margin(x, y) = cos(x, y) / ((mean_{z in NN_k(x)} cos(x, z) + mean_{z in NN_k(y)} cos(y, z)) / 2)

    Each sentence proposes the neighbor with the highest margin, from the source's side and from the target's. Proposals
    are accepted from the highest margin down, if neither sentence has been taken.

    If k is larger than a pool, all of the pool are neighbors. Among neighbors with equal margins, the nearer one is
    proposed, and among equally near ones the first. Among proposals with equal margins, the one with the lower number
    of the source comes first, then of the target. If the denominator is not above zero, the margin is not defined, and
    the pair is never proposed. Nearest neighbors are determined with cosines of float64 that are rounded to float32,
    and margins with float64: equal vectors have equal margins, and `size` has no effect.

    XTREME's public script (third_party/utils_retrieve.py and evaluate_retrieval.py) ranks in the same way. It has
    faults that are not repeated here. It calls the evaluation with an undefined threshold, and reads the ids of one
    side from a file that it does not write. If there is gold, it fits the threshold on that gold, even if a threshold
    is given, so that a threshold of the development pool is never applied. The fit reads past the end if all candidates
    are best, and cuts between equal scores. The script also drops sentences that occur twice, although the gold may
    name them; here equal texts are one candidate (`finetuning.tasks.mining.task`).
    """
    (_, forward_SK), (_, backward_DK) = nearest_neighbors(source_SH, target_DH, neighbors, device, size)
    cosines_SK = _cosines(source_SH, target_DH, forward_SK, size)
    cosines_DK = _cosines(target_DH, source_SH, backward_DK, size)
    # a pair has the same margin from both sides, to the last bit: products and sums commute
    margins_SK = _margins(cosines_SK, cosines_DK.mean(1), forward_SK)
    margins_DK = _margins(cosines_DK, cosines_SK.mean(1), backward_DK)
    best_S, best_D = margins_SK.amax(1), margins_DK.amax(1)
    proposed_S = forward_SK.gather(1, margins_SK.argmax(1, keepdim=True))[:, 0]
    proposed_D = backward_DK.gather(1, margins_DK.argmax(1, keepdim=True))[:, 0]
    source = torch.cat((torch.arange(len(source_SH)), proposed_D)).numpy()
    target = torch.cat((proposed_S, torch.arange(len(target_DH)))).numpy()
    scores = torch.cat((best_S, best_D)).numpy()
    kept = one_to_one(source, target, scores)
    without = tuple(int(best.isneginf().sum()) for best in (best_S, best_D))
    return Mined(source[kept], target[kept], scores[kept], without)


def _cosines(side_NH: torch.Tensor, other_MH: torch.Tensor, places_NK: torch.Tensor, size: int) -> torch.Tensor:
    """(N, K) cosines of each vector and those of the other side that `places_NK` names, in float64."""
    blocks = []
    for begin in range(0, len(side_NH), size):
        of_side_Q1H = F.normalize(side_NH[begin : begin + size, None].double(), dim=-1)
        of_other_QKH = F.normalize(other_MH[places_NK[begin : begin + size]].double(), dim=-1)
        blocks.append((of_side_Q1H * of_other_QKH).sum(-1))
    return torch.cat(blocks)


def _margins(cosines_NK: torch.Tensor, means_M: torch.Tensor, places_NK: torch.Tensor) -> torch.Tensor:
    """(N, K) ratio margins; -inf where there is none."""
    likeness_NK = (cosines_NK.mean(1, keepdim=True) + means_M[places_NK]) / 2
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
