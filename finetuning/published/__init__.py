"""The result tables of the papers, transcribed once: finetuning/published/<paper>.yaml holds a `Paper`.

A recipe or a suite names a row by paper, table and name, and a page looks it up. Figures are as printed. A test checks
that each average is that of its row's scores, or that the row has `recomputed`.
"""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from zoo_core.recipes import nearest, validate

FOLDER = Path(__file__).parent
# The pooling of XTREME's scripts (run_bucc2018.sh; run_tatoeba.sh, utils_retrieve.py), which published rows have unless
# they say otherwise.
XTREME_POOLING = {"bucc": "cls", "tatoeba": "mean_with_special_tokens"}


@dataclass(frozen=True)
class PaperRow:
    """One row of a table: a model in a setting; scores in percent, as printed."""

    name: str
    scores: dict[str, list[float | None]]  # by metric, in the order of the table's columns; null: not legible
    setting: Literal["zero_shot", "translate_train_all", "supervised", "feature"] | None = None
    quoted_from: str | None = None  # the paper that the row is quoted from
    average: dict[str, float] = field(default_factory=dict)  # by metric, as printed
    average_from: str | None = None  # the table of that average, where it is not legible in this one
    recomputed: dict[str, float] = field(default_factory=dict)  # where the printed scores give another average
    pooling: str | None = None  # of sentence vectors, if not that of XTREME's script
    note: str | None = None


@dataclass(frozen=True)
class PaperTable:
    """A table with results."""

    table: str
    metrics: list[str]  # the first is the main one
    columns_are: Literal["languages", "pairs", "tasks", "other"]
    columns: list[str]
    caption: str
    rows: list[PaperRow]
    task: str | None = None  # None where the columns are tasks
    average_of: list[str] = field(default_factory=list)  # metrics whose mean is a column's part in the average
    note: str | None = None

    def scores(self, row: PaperRow, metric: str) -> dict[str, float]:
        """The legible scores of a row, by column."""
        figures = row.scores.get(metric, [None] * len(self.columns))
        return {name: score for name, score in zip(self.columns, figures, strict=True) if score is not None}


@dataclass(frozen=True)
class Paper:
    """The tables of one paper, and its name as results print it."""

    paper: str
    title: str
    url: str
    tables: list[PaperTable]
    note: str | None = None


@dataclass(frozen=True)
class Reference:
    """What a named row says about a task: scores in percent by metric and language, and its average."""

    title: str  # paper, table and row
    scores: dict[str, dict[str, float]]
    average: float | None  # of the first metric; None if it is over other languages
    pooling: str | None  # of sentence vectors, where it is known
    note: str | None


def papers() -> list[str]:
    """Returns the names of papers for `load`."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


@functools.cache
def load(paper: str) -> Paper:
    """Reads the tables of a paper. Raises ValueError for an unknown paper or key, and a missing or wrong value."""
    if paper not in papers():
        raise ValueError(f"There are no tables of a paper {paper!r}. {nearest(paper, papers())}")
    return validate(Paper, yaml.safe_load((FOLDER / f"{paper}.yaml").read_text(encoding="utf-8")))


def find(paper: str, table: str, row: str) -> tuple[PaperTable, PaperRow]:
    """Returns a table and one of its rows. Raises ValueError for an unknown one."""
    rows = {(item.table, of.name): (item, of) for item in load(paper).tables for of in item.rows}
    if (table, row) not in rows:
        raise ValueError(f"{row!r} of {table!r} is no row of {paper}. {nearest(row, [name for _, name in rows])}")
    return rows[table, row]


def look_up(item: dict[str, Any], task: str, kind: str, metric: str, names: list[str]) -> Reference:
    """Returns what the row `item` (`paper`, `table`, `row`) says about a task in some languages, or pairs.

    If the columns of the table are tasks, the row gives the average. It is kept if it is over exactly `names`.
    Raises ValueError for an unknown row, and a table without a score of the task.
    """
    table, row = find(item["paper"], item["table"], item["row"])
    if table.columns_are == "tasks":
        average, scores = table.scores(row, table.metrics[0]).get(task), {metric: {}}
        columns = languages_of(task, table)
    elif table.task in (None, task, kind):
        main = "accuracy" if kind == "retrieval" else metric  # papers search in one direction
        average, columns = row.average.get(main), table.columns
        scores = {metric if name == main else name: table.scores(row, name) for name in (main, *table.metrics)}
    else:
        raise ValueError(
            f"published names {item['table']} of {table.task}, and the task is {task}. Set published=null."
        )
    ours = {column: pair_of(column, names) for column in columns}
    name = f"{item['table']} (average: {row.average_from})" if row.average_from else item["table"]
    return Reference(
        f"{load(item['paper']).paper}, {name}, {item['row']}",
        {of: {ours[c]: score for c, score in found.items() if ours[c] in names} for of, found in scores.items()},
        average if {*ours.values()} == {*names} else None,
        row.pooling or XTREME_POOLING.get(task),
        " ".join(filter(None, (table.note, row.note))) or None,
    )


def languages_of(task: str, table: PaperTable) -> list[str]:
    """The languages of a task: the columns of a table of it, of the same paper if there is one."""
    known = sorted((load(name) for name in papers()), key=lambda paper: table not in paper.tables)
    return next((item.columns for paper in known for item in paper.tables if item.task == task), [])


def pair_of(column: str, pairs: list[str]) -> str:
    """Returns our name of a pair; a single language means a pair with English, in any order, if that is one of ours."""
    languages = set(column.split("-")) if "-" in column else {column, "en"}
    return column if column in pairs else next((pair for pair in pairs if set(pair.split("-")) == languages), column)
