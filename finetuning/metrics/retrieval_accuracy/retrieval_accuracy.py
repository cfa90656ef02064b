"""Accuracy of translation retrieval as an `evaluate` module, loaded by its path so that it works without the Hub."""

import datasets
import evaluate
import numpy

_DESCRIPTION = """
Share of the sentences whose nearest sentence of the other language is their translation (accuracy@1), in percent, in
both directions and on average: Tatoeba as Artetxe and Schwenk (2019) and XTREME (Hu et al., 2020) evaluate it.
"""

_CITATION = """
@article{artetxe-schwenk-2019-massively,
    title = "Massively Multilingual Sentence Embeddings for Zero-Shot Cross-Lingual Transfer and Beyond",
    author = "Artetxe, Mikel and Schwenk, Holger",
    journal = "Transactions of the Association for Computational Linguistics",
    volume = "7",
    year = "2019",
    pages = "597--610",
}
"""

_INPUTS = """
predictions: list of {"source": int, "target": int}, a pair of sentences each: the number of the text that was found for
    its target (among the sources), and of that which was found for its source (among the targets)
references: list of {"source": int, "target": int}, the numbers of the two texts of each pair. Texts are numbered by
    side; equal texts have one number, so that either of them is right.
Returns {"accuracy", "source_to_target", "target_to_source"}, floats in [0, 100]; accuracy is the mean of the other two.
Raises ValueError where there is no pair.
"""

PAIR = {"source": datasets.Value("int64"), "target": datasets.Value("int64")}


class RetrievalAccuracy(evaluate.Metric):
    """right / all in either direction, and their mean, in percent."""

    version = "1.0.0"  # of the definition; results carry it

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": PAIR, "references": PAIR}),
        )

    def _compute(self, predictions, references):
        if len(references) == 0:
            raise ValueError("Retrieval accuracy of 0 pairs is not defined. Evaluate at least one pair.")
        pairs = list(zip(predictions, references, strict=True))
        right = {side: 100.0 * float(numpy.mean([found[side] == gold[side] for found, gold in pairs])) for side in PAIR}
        return {
            "accuracy": (right["source"] + right["target"]) / 2,
            "source_to_target": right["target"],
            "target_to_source": right["source"],
        }
