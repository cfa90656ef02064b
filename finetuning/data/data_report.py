"""The output of `finetuning/run.py --check_data` for data of any kind: counts and labels by part and language."""

from typing import Any

import numpy as np
import pandas as pd

from finetuning.data.task_tables import Data, TaskData
from finetuning.page import Table, print_table
from zoo_core.masking import IGNORED

LABELS = 6  # columns of counts by label; rarer labels share one


def print_labels(task: str, data: Data, most_languages: int | None = None) -> None:
    """Prints how many rows, or words, have each label, by part and language; nothing for a kind without labels.

    The languages of a part with more than `most_languages` are counted together, and so are the rarest labels.
    """
    if not isinstance(data, TaskData) or not data.label_names:
        return
    counts: dict[tuple[str, str], np.ndarray] = {}
    for part, by_language in (("train", {"all": data.train}), ("dev", data.dev), ("evaluation", data.evaluation)):
        found = {language: _label_counts(rows, len(data.label_names)) for language, rows in by_language.items()}
        if most_languages and len(found) > most_languages:
            found = {f"{len(found)} languages": sum(found.values())}
        counts |= {(part, language): own for language, own in found.items()}
    table = pd.DataFrame(counts, index=data.label_names)  # a row for each label
    table = table[table.any(axis=1)]
    if len(table) > LABELS:
        table = table.sort_values(("train", "all"), ascending=False, kind="stable")
        rest, table = table[LABELS:], table[:LABELS]
        table.loc[f"and {len(rest)} more"] = rest.sum()
    cells = [[*place, *(f"{count:,}" for count in own)] for place, own in table.items()]
    what = "words" if isinstance(data.train[0]["labels"], list) else "rows"  # a row of tagging has a list of labels
    print_table(f"{task}: {what} by label", (["part", "language", *table.index], cells), [])


def _label_counts(rows: Any, size: int) -> np.ndarray:
    """Counts each of the labels 0 ... size - 1 in column `labels`, which has numbers or lists of numbers."""
    labels = rows["labels"][:]
    labels = np.asarray([label for own in labels for label in own] if isinstance(labels[0], list) else labels)
    return np.bincount(labels[labels != IGNORED], minlength=size)


def as_table(lines: list[dict[str, Any]]) -> Table:
    """Returns the columns of all lines, except those that are 0 in every line; missing cells are empty."""
    columns = list(dict.fromkeys(name for line in lines for name in line))
    columns = [name for name in columns if any(line.get(name) for line in lines)]
    cells = [[line.get(name, "") for name in columns] for line in lines]
    return columns, [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in cells]
