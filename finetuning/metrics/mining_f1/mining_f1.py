"""F1 of mined translation pairs as an `evaluate` module, loaded by its path so that it works without the Hub."""

import datasets
import evaluate
import numpy

_DESCRIPTION = """
Precision, recall and F1, in percent, of the pairs of sentences that were mined with at least a threshold's score, as
the BUCC shared task (Zweigenbaum et al., 2018) and XTREME (Hu et al., 2020) evaluate it; the threshold is given, or
fitted: that with the best F1 on these very pairs.
"""

_INPUTS = """
predictions: list of float, the scores of the pairs that were mined, higher is better
references: list of bool, whether each of them is a gold pair
gold: int, how many gold pairs there are, found or not
threshold: float, pairs with this score or more count as mined; None: it is fitted
Returns {"f1", "precision", "recall"}, floats in [0, 100]; {"mined", "right", "gold"}, numbers of pairs; "threshold",
infinite where no pair is right and nothing can be fitted. Pairs with equal scores are taken together. Of thresholds
with equal F1 the highest is taken; it lies half-way to the next lower score, or is the lowest score of all.
Raises ValueError without gold pairs, if more pairs are right than gold has, and for a score that is not finite.
"""


class MiningF1(evaluate.Metric):
    """2 right / (mined + gold), in percent, and what it is made of."""

    version = "1.0.0"  # of the definition; results carry it

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features(
                {"predictions": datasets.Value("float64"), "references": datasets.Value("bool")}
            ),
        )

    def _compute(
        self, predictions: list[float], references: list[bool], gold: int, threshold: float | None = None
    ) -> dict[str, float]:
        scores = numpy.asarray(predictions, dtype=float)
        is_right = numpy.asarray(references, dtype=bool)
        if gold < 1 or is_right.sum() > gold:
            raise ValueError(
                f"{is_right.sum()} of {len(scores)} mined pairs are right, and gold is {gold}. Give them all."
            )
        if not numpy.isfinite(scores).all():
            raise ValueError("A score is no finite number. Leave out pairs that have none.")
        if threshold is None:
            threshold = fit(scores, is_right, gold)
        is_mined = scores >= threshold
        mined = int(is_mined.sum())
        right = int(is_right[is_mined].sum())
        return {
            "f1": 100.0 * 2 * right / (mined + gold),
            "precision": 100.0 * right / max(mined, 1),  # 0 of nothing
            "recall": 100.0 * right / gold,
            "mined": mined,
            "right": right,
            "gold": gold,
            "threshold": threshold,
        }


def fit(scores: numpy.ndarray, is_right: numpy.ndarray, gold: int) -> float:
    """The threshold with the best F1."""
    if not is_right.any():
        return float("inf")
    order = numpy.argsort(-scores, kind="stable")
    scores = scores[order]
    right = numpy.cumsum(is_right[order])
    # the last of each run of equal scores
    ends = numpy.flatnonzero(numpy.append(scores[1:] != scores[:-1], True))
    best = int(numpy.argmax(2 * right[ends] / (ends + 1 + gold)))  # of equal ones the first, which mines least
    last = float(scores[ends[best]])
    if best + 1 == len(ends):
        return last
    following = float(scores[ends[best] + 1])
    middle = (last + following) / 2
    if middle > following:
        return middle
    return last  # of two floats next to each other, the middle is one of them
