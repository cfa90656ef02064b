"""Accuracy as an `evaluate` module, loaded by its path so that it works without the Hub."""

import datasets
import evaluate
import numpy

_DESCRIPTION = "Share of the examples whose predicted class is the gold class, in percent."

_INPUTS = """
predictions: list of int, the predicted class of each example
references: list of int, the gold class of each example
Returns {"accuracy": float in [0, 100]}. Raises ValueError where there is no example.
"""


class Accuracy(evaluate.Metric):
    """correct / all, in percent; one number, no averaging over classes."""

    version = "1.0.0"  # of the definition; results carry it

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}),
        )

    def _compute(self, predictions, references):
        if len(references) == 0:
            raise ValueError("Accuracy of 0 examples is not defined. Evaluate at least one example.")
        return {"accuracy": 100.0 * float(numpy.mean(numpy.equal(predictions, references)))}
