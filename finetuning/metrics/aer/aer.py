"""Alignment error rate as an `evaluate` module, loaded by its path so that it works without the Hub."""

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

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": PAIRS, "references": {"sure": PAIRS, "possible": PAIRS}}),
        )

    def _compute(self, predictions, references):
        counts = [0] * 5
        for links, reference in zip(predictions, references, strict=True):
            found, is_sure = as_set(links), as_set(reference["sure"])
            is_possible = as_set(reference["possible"]) | is_sure
            sets = (found, is_sure, found & is_sure, found & is_possible, is_possible)
            counts = [count + len(one) for count, one in zip(counts, sets, strict=True)]
        linked, sure, linked_and_sure, linked_and_possible, gold = counts
        if not gold:
            raise ValueError(f"AER of {len(references)} sentences without a gold link is not defined.")
        precision, recall = share(linked_and_possible, linked), share(linked_and_sure, sure)
        right = share(linked_and_sure + linked_and_possible, linked + sure)
        f1 = share(2 * precision * recall, precision + recall)
        shares = {"aer": 1.0 - right, "precision": precision, "recall": recall, "f1": f1}
        return {name: 100.0 * value for name, value in shares.items()}


def as_set(links):
    """The links of a sentence as a set. Raises ValueError for one that is not of two words."""
    if wrong := [list(link) for link in links if len(link) != 2 or min(link) < 0]:
        raise ValueError(f"{wrong[0]} is no link. A link is [i, j], two word numbers that are not negative.")
    return {tuple(link) for link in links}


def share(part, whole):
    """part / whole; 0 of nothing."""
    return part / whole if whole else 0.0
