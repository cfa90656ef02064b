"""Text classification: rows with one or two texts and a label, such as XNLI, PAWS-X, SICK and topics."""

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

from crosslingual_zoo.finetuning.data.labels import (
    KEEP_UNLABELED,
    LabelColumn,
    label_ids,
    label_names,
    refuse_one_label,
)
from crosslingual_zoo.finetuning.data.rows import Rows, named_texts
from crosslingual_zoo.finetuning.data.task_tables import Tables, TaskData, gather, open_tables
from crosslingual_zoo.finetuning.recipe import Recipe
from crosslingual_zoo.finetuning.tasks.by_language import LanguageTask, Windows, both_sides
from crosslingual_zoo.finetuning.trainer import Outcome
from crosslingual_zoo.zoo_core.tables import require_column

TEXTS = ("text", "pair")  # names of the text columns once they are read


class ClassificationTask(LanguageTask[Recipe]):
    """Texts, or pairs of them, with a label."""

    auto_class = AutoModelForSequenceClassification
    collator = DataCollatorWithPadding
    metric = ("accuracy", "1.0.0")

    @staticmethod
    def preprocess_logits(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids (B,) and probabilities (B,) of the highest logits (B, L)."""
        return logits.argmax(-1), logits.float().softmax(-1).amax(-1)

    def read(self) -> TaskData:
        """Rows have `text`, perhaps `pair`, `labels` (ids) and `row`, their number in the table.

        Rows without a label are left out.
        """
        recipe = self.recipe
        tables = _labeled_tables(open_tables(recipe))
        warnings = _left_out_line(tables)
        for rows in tables.evaluation.values():
            refuse_one_label([_label_column(rows)], "rows")
        columns = [_label_column(rows) for rows in tables.train]
        refuse_one_label(columns, "training rows")
        names = label_names(columns)
        for rows in tables.all_rows():
            rows.examples = _examples(rows, names)
        data = gather(recipe, tables, warnings, names)
        data.protocol["texts"] = len(recipe.train[0].text_columns)
        chance = {}
        for language, rows in data.evaluation.items():
            commonest = np.bincount(rows["labels"][:]).max()
            chance[language] = {"accuracy": 100 * float(commonest / len(rows))}
        data.protocol["chance"] = chance
        return data

    def windows_of(self, batch: dict[str, list], numbers: list[int], is_train: bool, is_translation: bool) -> Windows:
        """One a row: two texts become `<s> premise </s></s> hypothesis </s>`; of a pair, the longer text is cut first.

        A translation has its text's label.
        """
        tokenizer = self.start.tokenizer
        max_length = self.recipe.max_length
        texts = [batch[name] for name in TEXTS if name in batch]
        encoded = tokenizer(*texts, truncation=True, max_length=max_length)
        windows_by_row = []
        for row, label in enumerate(batch["labels"]):
            length = len(encoded["input_ids"][row])
            is_cut = False
            if length == max_length:  # only these can have been cut
                whole = tokenizer(*(column[row] for column in texts), verbose=False)
                is_cut = len(whole["input_ids"]) > max_length
            window: dict[str, Any] = {name: values[row] for name, values in encoded.items()}
            windows_by_row.append([window | {"labels": label, "cut": int(is_cut), "length": length}])
        return windows_by_row

    def head(self, data: TaskData) -> dict[str, Any]:
        return {**super().head(data), "problem_type": "single_label_classification"}

    def outcome(self, data: TaskData, part: str, language: str, predictions: tuple[np.ndarray, np.ndarray]) -> Outcome:
        predicted, probabilities = predictions
        gold = np.asarray(getattr(data, part)[language]["labels"][:])
        accuracy = 100 * float(np.mean(predicted == gold))
        records = _records(data.as_read[language], predicted, probabilities, data.label_names)
        return Outcome({"accuracy": accuracy}, records)


def _records(rows: Dataset, predicted: np.ndarray, probabilities: np.ndarray, names: list[str]) -> Iterator[dict]:
    """The rows of the predictions file."""
    for row, label, probability in zip(rows.to_list(), predicted, probabilities, strict=True):
        record = {name: row[name] for name in ("row", *TEXTS) if name in row}
        record["gold"] = names[row["labels"]]
        record["prediction"] = names[label]
        record["probability"] = round(float(probability), 6)
        yield record


def _labeled_tables(tables: Tables) -> Tables:
    """The tables without the rows that have no label (-1 or -)."""
    train = [_labeled_rows(rows) for rows in tables.train]
    dev = {language: list(map(_labeled_rows, rows_of_tables)) for language, rows_of_tables in tables.dev.items()}
    evaluation = {language: _labeled_rows(rows) for language, rows in tables.evaluation.items()}
    return replace(tables, train=train, dev=dev, evaluation=evaluation)


def _labeled_rows(rows: Rows) -> Rows:
    """The rows that have a label; `left_out` counts the others. Raises ValueError where no row has one."""
    column = _label_column(rows)
    missing = {value for value in dict.fromkeys(column.values) if column.is_missing(value)}
    if not missing:
        return rows
    positions = [row for row, value in enumerate(column.values) if value not in missing]
    if not positions:
        raise ValueError(
            f"{rows.place}: none of its {len(column.values):,} rows has a label in column {rows.table.label_column}. "
            "Use a copy of the data with labels, or another split."
        )
    left_out = {"unlabeled": len(column.values) - len(positions)}
    dataset = rows.dataset.select(positions)
    return replace(rows, dataset=dataset, numbers=rows.numbers[positions], left_out=left_out)


def _left_out_line(tables: Tables) -> list[str]:
    """One line that counts the rows without a label; none where all rows have one."""
    parts = [("training", rows) for rows in tables.train]
    for language, rows_of_language in tables.dev.items():
        parts += [(f"development {language}", rows) for rows in rows_of_language]
    parts += [(f"evaluated {language}", rows) for language, rows in tables.evaluation.items()]
    left_out: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for part, rows in parts:
        count = rows.left_out.get("unlabeled", 0)
        left_out[part] += count
        totals[part] += count + len(rows.dataset)
    counts = [f"{part} {count:,} of {totals[part]:,}" for part, count in left_out.items() if count]
    if not counts:
        return []
    return [f"rows whose label is -1 or - left out, as without a label: {', '.join(counts)}. {KEEP_UNLABELED}"]


def _examples(rows: Rows, names: list[str]) -> Dataset:
    """Columns `text`, `pair`, those of their translations, `labels` (ids in `names`) and `row`, checked."""
    texts = both_sides(rows, functools.partial(named_texts, names=TEXTS))
    ids = label_ids(_label_column(rows), names)
    return Dataset.from_dict({**texts, "labels": ids, "row": rows.numbers})


def _label_column(rows: Rows) -> LabelColumn:
    column = rows.table.label_column
    feature = require_column(rows.dataset, column, rows.name)
    return LabelColumn(rows, feature, rows.dataset[column][:])
