"""What a kind of task gives to a run: the seam between `finetuning/tasks/` and what all of them share.

A module of `finetuning/tasks/` ends with `KIND = Kind(...)`. Trainer, seeds, checkpoints and results then come from
`trainer.py`, `seeds.py` and `results.py`. Translation has pairs of languages and generates, so it shares less: see
`finetuning/tasks/translation/trainer.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.metrics import precision_recall_fscore_support

from finetuning.data.task_tables import TaskData
from finetuning.recipe import Recipe
from finetuning.results.table import LABEL_SCORES, LabelScores
from zoo_core.masking import IGNORED


@dataclass(frozen=True)
class Outcome:
    """What the predictions for the rows of one language are worth, and what they are."""

    scores: dict[str, float]
    """In percent, by name."""

    records: Callable[[], Iterable[dict[str, Any]]]
    """Makes the rows of `predictions/<language>.jsonl` from `TaskData.as_read`: `row`, the number of the row in its
    table; gold; prediction. Called for evaluated rows alone, by the main process."""

    label_scores: Callable[[], LabelScores] = dict
    """Makes the scores of each label, where rows have labels; of what, `label_unit` of the protocol says: rows, words
    or chunks. Called for evaluated rows alone."""


@dataclass(frozen=True)
class Kind:
    """What a kind of task reads, trains and measures; every language is evaluated by itself."""

    read: Callable[[Recipe], TaskData]
    """Checked rows, before a model is loaded."""

    encode: Callable[[TaskData, Any, Recipe], TaskData]
    """The same with the model's inputs, given the tokenizer: also in `dev` and `evaluation` the fields of
    `label_fields`, and `length`, by which rows are put into batches. Columns that the model does not know may stay."""

    auto_class: type
    """Auto class of the model."""

    head: Callable[[TaskData], dict[str, Any]]
    """Fields of the configuration that the head needs, such as the number of labels."""

    collator: Callable[[Any], Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]]
    """Makes batches of rows, given the tokenizer."""

    metric: Callable[[Recipe], str]
    """The name of the `evaluate` module of finetuning/metrics, whose version the results carry."""

    score_name: str
    """Which of the scores is *the* score: selected by, averaged and compared."""

    score: Callable[[Recipe, TaskData, str, str, Any], Outcome]
    """The outcome of (recipe, encoded data, `dev` or `evaluation`, language, predictions); predictions are in the order
    of the rows."""

    loss: Callable[..., torch.Tensor] | None = None
    """Loss of (outputs, labels, items of the whole step and, plug-in, the share of its translated labels); by default
    what the model returns, which is right where each row counts the same."""

    label_fields: tuple[str, ...] = ("labels",)
    """Fields of a batch that are labels, not inputs."""

    predictions: Callable[[Any, Any], Any] | None = None
    """What is kept of (logits, labels) of an evaluated batch; default: the logits."""

    check: Callable[[Recipe], None] = lambda recipe: None
    """Raises ValueError for values of its own fields that cannot be run."""

    check_tokenizer: Callable[[Recipe, Any], None] = lambda recipe, tokenizer: None
    """Raises ValueError for a tokenizer that does not fit them."""


def by_label(gold: Sequence[int], found: Sequence[int], names: list[str]) -> LabelScores:
    """The scores of each label, given the ids of the right one and of the predicted one of every row or word."""
    labels = range(len(names))  # ids: scikit-learn takes 15 times as long for names
    scores = precision_recall_fscore_support(gold, found, labels=labels, average=None, zero_division=0)
    return named_scores(names, scores)


def named_scores(names: list[str], scores: Iterable[Any]) -> LabelScores:
    """The arrays of scikit-learn and seqeval (shares and counts, a number a label) by label, in percent."""
    return {
        name: {**{key: 100 * float(share) for key, share in zip(LABEL_SCORES, shares, strict=True)}, "support": int(n)}
        for name, *shares, n in zip(names, *scores, strict=True)
    }


def label_options(data: TaskData) -> dict[str, Any]:
    """Number and names of the labels, as a configuration has them."""
    return {
        "num_labels": len(data.label_names),
        "id2label": dict(enumerate(data.label_names)),
        "label2id": {name: number for number, name in enumerate(data.label_names)},
    }


def likeliest(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Ids (...) of the highest logits (..., L): ids, not logits, are gathered."""
    return logits.argmax(-1)


def mean_cross_entropy(
    outputs: Any,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    translation_share: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """Cross-entropy over the labels of the whole step: logits (..., L), labels (...), -100 where none is wanted.

    Plug-in, `mean_of_sides`.

    `num_items_in_batch` counts the labels of all accumulated micro-batches and processes. The Trainer expects models
    whose forward takes **kwargs to divide by it; many, XLM-R among them, return their micro-batch's mean, and would get
    gradients that are too large by the number of processes times that of the micro-batches.
    """
    items = labels.ne(IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    logits = outputs["logits"].flatten(0, -2)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum", ignore_index=IGNORED) / items
    share = labels.ne(IGNORED).sum() / items if translation_share is None else translation_share
    return mean_of_sides(loss, outputs, share)


def mean_of_sides(loss: torch.Tensor, outputs: Any, translation_share: torch.Tensor | float) -> torch.Tensor:
    """Plug-in, the mean of x's loss and y's; otherwise x's.

    `outputs` then hold a `loss`, the mean over the labels of the micro-batch's translations (the Trainer keeps those of
    x to itself, and the model sees y's alone); `translation_share` says which share of the step's these are.
    """
    translation_loss = outputs.get("loss")
    return loss if translation_loss is None else (loss + translation_loss * translation_share) / 2
