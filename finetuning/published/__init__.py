"""The result tables of the four papers, transcribed once: finetuning/published/<paper>.yaml.

A recipe, a report or a card names a row by paper, table and name. A file looks like this:

    paper: XLM-Align (ACL 2021)     # as results print it
    title: ...
    url: ...
    tables:
    - table: Table 18
      task: xnli                    # none where the columns are tasks
      metrics: [accuracy]           # the first is the main one
      columns_are: languages        # languages, pairs, tasks or other
      columns: [en, fr]
      caption: Accuracy on XNLI, by language
      rows:
      - name: XLM-Align base, zero-shot
        scores: {accuracy: [86.7, 80.6]}  # in the order of columns; null: not printed, or not legible
        average: {accuracy: 76.2}         # as printed

Figures are as printed. A test checks that each average is that of its row's scores, or that the row has `recomputed`.
"""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from zoo_core.recipes import convert, nearest

Kind = Literal["languages", "pairs", "tasks", "other"]
Setting = Literal["zero_shot", "translate_train_all", "supervised", "feature"]
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One row of a table: a model in a setting; scores in percent, as printed."""

    name: str
    scores: dict[str, list[float | None]]  # by metric, in the order of the table's columns
    setting: Setting | None = None
    quoted_from: str | None = None  # the paper that the row is quoted from
    average: dict[str, float] = field(default_factory=dict)  # by metric, as printed
    average_from: str | None = None  # the table of that average, where it is not legible in this one
    recomputed: dict[str, float] = field(default_factory=dict)  # where the printed scores give another average
    pooling: str | None = None  # of sentence vectors, if not that of XTREME's script
    note: str | None = None


@dataclass(frozen=True)
class Table:
    """A table with results."""

    table: str
    metrics: list[str]
    columns_are: Kind
    columns: list[str]
    caption: str
    rows: list[Row]
    task: str | None = None
    average_of: list[str] = field(default_factory=list)  # metrics whose mean is a column's part in the average
    note: str | None = None

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def scores(self, row: Row, metric: str) -> dict[str, float]:
        """The legible scores of a row, by column."""
        figures = row.scores.get(metric, [None] * len(self.columns))
        return {name: score for name, score in zip(self.columns, figures, strict=True) if score is not None}


@dataclass(frozen=True)
class Paper:
    """The tables of one paper."""

    paper: str
    title: str
    url: str
    tables: list[Table]
    note: str | None = None

    def table(self, name: str) -> Table | None:
        return next((table for table in self.tables if table.table == name), None)


def papers() -> list[str]:
    """Returns the names of papers for `load`."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


@functools.cache
def load(paper: str) -> Paper:
    """Reads the tables of a paper. Raises ValueError for an unknown paper or key, and a missing or wrong value."""
    if paper not in papers():
        raise ValueError(f"There are no tables of a paper {paper!r}. {nearest(paper, papers())}")
    values = yaml.safe_load((FOLDER / f"{paper}.yaml").read_text(encoding="utf-8"))
    return convert(Paper, values, "", f"{paper}.yaml")


def find(paper: str, table: str, row: str) -> tuple[Table, Row]:
    """Returns a table and one of its rows. Raises ValueError, with the nearest names, for an unknown one."""
    known = load(paper)
    found = known.table(table)
    if found is None:
        raise ValueError(
            f"{table!r} is no table of {paper} ({known.paper}). {nearest(table, [item.table for item in known.tables])}"
        )
    if (figures := found.row(row)) is None:
        raise ValueError(
            f"{row!r} is no row of {paper} ({known.paper}), {table}. {nearest(row, [item.name for item in found.rows])}"
        )
    return found, figures
