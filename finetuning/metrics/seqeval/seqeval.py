"""Chunk F1 as an `evaluate` module, loaded by its path so that it works without the Hub."""

import importlib.metadata
import itertools

import datasets
import evaluate
import numpy
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

from finetuning.data.label_schemes import form_of, to_iob2

_DESCRIPTION = """
Precision, recall and F1 of chunks over all sentences (micro average), and the share of words with the right label, in
percent. A chunk is right where its first word, its last word and its type are. Labels of IOB1, IOB2, IOBES, BILOU,
BMES and BMEWO, as `B-PER`, `PER-B` or marks alone, are first read as IOB2, as the CoNLL shared tasks' conlleval does: a
change of type begins a chunk too. All labels, predicted and gold, decide together whether they mark chunks. Labels
that mark no chunks (parts of speech) are read as chunks of equal neighbors, as XTREME does with seqeval 0.0.12: a label
that begins with S is a chunk of its own. Compare their token accuracy, which is of the labels as written.
"""

_INPUTS = """
predictions: list of lists of str, the predicted label of each word of each sentence
references: list of lists of str, the gold labels
Returns {"f1", "precision", "recall", "token_accuracy"}, floats in [0, 100]. F1 is 0 where nothing is predicted. Raises
ValueError where there is no word, for a sentence whose predictions are not as many as its labels, and for labels of
which only some mark chunks, such as B-PER and PER.
"""


class Seqeval(evaluate.Metric):
    """seqeval's default rules; its version is in ours, since its releases read some labels differently."""

    version = f"1.2.0 (seqeval {importlib.metadata.version('seqeval')})"

    def _info(self):
        labels = datasets.Sequence(datasets.Value("string"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": labels, "references": labels}),
        )

    def _compute(self, predictions, references):
        lengths = [(len(found), len(gold)) for found, gold in zip(predictions, references, strict=True)]
        for sentence, (found, gold) in enumerate(lengths):
            if found != gold:
                raise ValueError(
                    f"Sentence {sentence} (from 0) has {found} predictions and {gold} labels. Predict all words, and "
                    "none twice."
                )
        if not sum(gold for _, gold in lengths):
            raise ValueError("Chunk F1 of 0 words is not defined. Evaluate at least one sentence with words.")
        sides = {"predictions": predictions, "references": references}
        places = {
            label: f"{side}, sentence {number} (from 0)"
            for side, sentences in sides.items()
            for number, labels in enumerate(sentences)
            for label in labels
        }
        if form := form_of(places, places.get):
            found, gold = ([to_iob2(labels, form) for labels in side] for side in sides.values())
        else:  # seqeval 1.2.2 would take the first letter of a label for a mark: CCONJ and SCONJ would be equal
            found, gold = ([list(map(_marked, labels)) for labels in side] for side in sides.values())
        precision, recall, f1, _ = precision_recall_fscore_support(gold, found, average="micro", zero_division=0)
        pairs = zip(itertools.chain(*predictions), itertools.chain(*references), strict=True)
        right = numpy.mean([found == gold for found, gold in pairs])
        scores = {"f1": f1, "precision": precision, "recall": recall, "token_accuracy": right}
        return {name: 100.0 * float(score) for name, score in scores.items()}


def _marked(label: str) -> str:
    """A label without a scheme as seqeval 0.0.12 reads it: its first letter is its mark, its whole name its type."""
    return label if label == "O" else f"{'S' if label.startswith('S') else 'I'}-{label}"
