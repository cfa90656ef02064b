"""The output of `finetuning/run.py --check_data` for data of any kind: counts and labels by part and language."""

from typing import Any

import pandas as pd

from finetuning.data.task_tables import Data, TaskData
from finetuning.page import Cells, print_table
from zoo_core.masking import IGNORED

LABELS = 6  # columns of counts by label; rarer labels share one


def print_labels(task: str, data: Data, most_languages: int | None = None) -> None:
    """Prints how many rows, or words, have each label, by part and language; nothing for a kind without labels.

    The languages of a part with more than `most_languages` are counted together, and so are the rarest labels.
    """
    if not isinstance(data, TaskData) or not data.label_names:
        return
    counts: dict[tuple[str, str], Any] = {}
    for part, by_language in (("train", {"all": data.train}), ("dev", data.dev), ("evaluation", data.evaluation)):
        found = {language: pd.Series(rows["labels"][:]).explode() for language, rows in by_language.items()}
        if most_languages and len(found) > most_languages:
            found = {f"{len(found)} languages": pd.concat(found)}
        counts |= {(part, language): own[own != IGNORED].value_counts() for language, own in found.items()}
    table = pd.DataFrame(counts).fillna(0).astype(int).sort_index().rename(index=dict(enumerate(data.label_names)))
    if len(table) > LABELS:
        table = table.sort_values(("train", "all"), ascending=False, kind="stable")
        rest, table = table[LABELS:], table[:LABELS]
        table.loc[f"and {len(rest)} more"] = rest.sum()
    cells = [[*place, *(f"{count:,}" for count in own)] for place, own in table.items()]
    what = "words" if isinstance(data.train[0]["labels"], list) else "rows"  # a row of tagging has a list of labels
    print_table(f"{task}: {what} by label", (["part", "language", *table.index], cells), [])


def as_table(lines: list[dict[str, Any]]) -> Cells:
    """Returns the columns of all lines, except those that are 0 in every line; missing cells are empty."""
    columns = [
        name for name in dict.fromkeys(name for line in lines for name in line) if any(of.get(name) for of in lines)
    ]
    cells = [[line.get(name, "") for name in columns] for line in lines]
    return columns, [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in cells]
