"""The output of `finetuning/run.py --check_data` for data of any kind: counts and labels by part and language."""

from typing import Any

import pandas as pd

from finetuning.data.task_tables import Data
from finetuning.page import print_table
from zoo_core.masking import IGNORED

MOST = 8  # labels that are shown, the commonest ones


def print_data(task: str, lines: list[dict[str, Any]], data: Data) -> None:
    """Prints lines of counts without those that are 0 everywhere, and how many rows, or words, have each label."""
    table = pd.DataFrame(lines)
    table = table.loc[:, table.astype(bool).any()].astype(str)
    print_table(f"{task}: data", ([*table], table.to_numpy().tolist()), data.warnings)
    if not getattr(data, "label_names", None):
        return
    counts = {
        (part, language): pd.Series(rows["labels"][:]).explode().value_counts()
        for part, by_language in (("train", {"all": data.train}), ("dev", data.dev), ("evaluation", data.evaluation))
        for language, rows in by_language.items()
    }
    table = pd.DataFrame(counts).drop(IGNORED, errors="ignore").fillna(0).astype(int)
    table = table.sort_values(("train", "all"), ascending=False, kind="stable")[:MOST]
    table = table.set_axis([data.label_names[number] for number in table.index]).T.reset_index(
        names=["part", "language"]
    )
    print_table(f"{task}: labels", ([*table], table.astype(str).to_numpy().tolist()), [])
