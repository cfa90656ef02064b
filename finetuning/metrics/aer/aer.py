"""Alignment error rate as an `evaluate` module, loaded by its path so that it works without the Hub."""

from collections.abc import Sequence

import datasets
import evaluate

_DESCRIPTION = """
Word links A against hand-made ones, of which S are sure and P possible, S within P (Och and Ney 2003), in
percent: precision |A & P| / |A|, recall |A & S| / |S|, F1 their harmonic mean, and the alignment error rate
AER = 1 - (|A & S| + |A & P|) / (|A| + |S|), of which less is better. All counts are over the corpus.
"""
_INPUTS = """
predictions: list of lists of [i, j], the links of each sentence: word i of the source, word j of the target
references: list of {"sure": list of [i, j], "possible": list of [i, j]}; sure links need not be repeated as possible
Returns {"aer", "precision", "recall", "f1"}, floats in [0, 100]; a share of nothing is 0.
Raises ValueError for a link that is not a pair of words, and where there is no gold link at all.
"""

PAIRS = datasets.Sequence(datasets.Sequence(datasets.Value("int64")))


class Aer(evaluate.Metric):
    """Corpus AER, precision, recall and F1; never a mean over sentences."""

    version = "1.0.0"  # of the definition; results carry it

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": PAIRS, "references": {"sure": PAIRS, "possible": PAIRS}}),
        )

    def _compute(
        self, predictions: list[list[Sequence[int]]], references: list[dict[str, list[Sequence[int]]]]
    ) -> dict[str, float]:
        linked = sure = possible = linked_and_sure = linked_and_possible = 0
        for links, reference in zip(predictions, references, strict=True):
            predicted_links = as_set(links)
            sure_links = as_set(reference["sure"])
            possible_links = as_set(reference["possible"]) | sure_links
            linked += len(predicted_links)
            sure += len(sure_links)
            possible += len(possible_links)
            linked_and_sure += len(predicted_links & sure_links)
            linked_and_possible += len(predicted_links & possible_links)
        if not possible:
            raise ValueError(f"AER of {len(references)} sentences without a gold link is not defined.")
        precision = share(linked_and_possible, linked)
        recall = share(linked_and_sure, sure)
        right = share(linked_and_sure + linked_and_possible, linked + sure)
        f1 = share(2 * precision * recall, precision + recall)
        return {
            "aer": 100.0 * (1.0 - right),
            "precision": 100.0 * precision,
            "recall": 100.0 * recall,
            "f1": 100.0 * f1,
        }


def as_set(links: list[Sequence[int]]) -> set[tuple[int, ...]]:
    """The links of a sentence as a set. Raises ValueError for one that is not of two words."""
    for link in links:
        if len(link) != 2 or min(link) < 0:
            raise ValueError(f"{list(link)} is no link. A link is [i, j], two word numbers that are not negative.")
    return {tuple(link) for link in links}


def share(part: float, whole: float) -> float:
    """part / whole; 0 of nothing."""
    if not whole:
        return 0.0
    return part / whole
