"""The result tables of the four papers, transcribed once: hub_cards/published/<paper>.yaml.

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

Figures are as printed. `check` says where a printed average is not that of the printed scores.
"""

import functools
import importlib.resources
import statistics
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

import yaml

from zoo_core.recipes import convert, nearest

Kind = Literal["languages", "pairs", "tasks", "other"]
Setting = Literal["zero_shot", "translate_train_all", "supervised", "feature"]
FOLDER = importlib.resources.files("hub_cards") / "published"


@dataclass(frozen=True)
class Row:
    """One row of a table: a model in a setting; scores in percent, as printed."""

    name: str
    scores: dict[str, list[float | None]]  # by metric, in the order of the table's columns
    setting: Setting | None = None
    quoted_from: str | None = None  # the paper that the row is quoted from
    average: dict[str, float] = field(default_factory=dict)  # by metric, as printed
    average_from: str | None = None  # the table in which that average stands, where this one's is not legible
    recomputed: dict[str, float] = field(default_factory=dict)  # where the printed scores give another average
    pooling: str | None = None  # of sentence vectors, where it is not that of XTREME's script
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
    """The names by which `load` knows the papers."""
    return sorted(file.name.removesuffix(".yaml") for file in FOLDER.iterdir() if file.name.endswith(".yaml"))


@functools.cache
def load(paper: str) -> Paper:
    """Reads the tables of a paper.

    Raises ValueError, with file, table and row, for an unknown paper or key, a missing or wrong value, two tables or
    rows of one name, a metric that the table does not have, and scores that are not one a column.
    """
    if paper not in papers():
        raise ValueError(f"{paper!r} is no paper whose tables are known here. {nearest(paper, papers())}")
    values = yaml.safe_load((FOLDER / f"{paper}.yaml").read_text(encoding="utf-8"))
    known = convert(Paper, values, "", f"{paper}.yaml")
    _check_names([table.table for table in known.tables], f"{paper}.yaml, tables")
    for table in known.tables:
        place = f"{paper}.yaml, {table.table}"
        for names in (table.metrics, table.columns, [row.name for row in table.rows]):
            _check_names(names, place)
        for row in table.rows:
            for metric in [*table.average_of, *row.scores, *row.average, *row.recomputed]:
                if metric not in table.metrics:
                    raise ValueError(
                        f"{place}, {row.name}: unknown metric {metric!r}. {nearest(metric, table.metrics)}"
                    )
            for metric, scores in row.scores.items():
                if len(scores) != len(table.columns):
                    raise ValueError(
                        f"{place}, {row.name}: scores.{metric} has {len(scores)} figures, not one a column."
                    )
    return known


def _check_names(names: list[str], place: str) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{place}: {twice[0]!r} stands twice.")


def find(paper: str, table: str, row: str) -> tuple[Table, Row]:
    """A row and the table it stands in. Raises ValueError, with the nearest names, for one that is not there."""
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


def check(paper: str) -> list[str]:
    """What disagrees with itself in a paper's tables, one line each.

    An average of legible scores agrees where rounding explains the difference: half a unit of the last printed digit
    in the scores, and half a unit in the average. One that does not has to be there as `recomputed`, which has to be
    what the scores give. An average from another table has to be that table's, in the column of the task.
    """
    known = load(paper)
    problems = []
    for table in known.tables:
        for row in table.rows:
            place = f"{paper}, {table.table}, {row.name}"
            problems += [f"{place}: {line}" for line in _check_averages(table, row)]
            if row.average_from:
                problems += [f"{place}: {line}" for line in _check_source(known, table, row)]
    return problems


def _check_averages(table: Table, row: Row) -> list[str]:
    problems = []
    for metric in dict.fromkeys([*row.average, *row.recomputed]):
        mean, printed, again = column_mean(table, row, metric), row.average.get(metric), row.recomputed.get(metric)
        unit = 10.0 ** -_decimals([*row.scores.get(metric, []), printed, again])
        if again is not None and (mean is None or printed is None):
            problems.append(f"{metric}: recomputed is {again}, and the average or some of its scores are missing")
        if mean is None or printed is None:
            continue
        agrees = abs(mean - printed) <= unit + 1e-9
        if agrees and again is not None:
            problems.append(f"{metric}: recomputed is {again}, and the printed {printed} agrees with the scores")
        if not agrees and (again is None or abs(mean - again) > unit / 2 + 1e-9):
            problems.append(
                f"{metric}: printed is {printed}, recomputed is {again or 'not said'}, and the scores give {mean:.3f}"
            )
    return problems


def _check_source(paper: Paper, table: Table, row: Row) -> list[str]:
    source = paper.table(row.average_from)
    there = source and source.row(row.name)
    if not there or table.task not in source.columns:
        return [f"average_from is {row.average_from}, which has no such row or no column {table.task}"]
    found = [source.scores(there, metric).get(table.task) for metric in source.metrics]
    problems = []
    for metric, average in row.average.items():
        if average not in found:
            problems.append(f"{metric}: the average is {average}, and {row.average_from} has {found}")
    return problems


def column_mean(table: Table, row: Row, metric: str) -> float | None:
    """The mean of a row over the columns; None where a score is missing.

    In a table with `average_of` a column counts with the mean of those of its metrics that it has, as question
    answering does with F1 and exact match in XTREME's average.
    """
    main = metric == table.metrics[0]
    metrics = table.average_of if main and table.average_of else [metric]
    if len(table.scores(row, metric)) < len(table.columns):
        return None
    by_metric = [table.scores(row, name) for name in metrics]
    return statistics.fmean(
        statistics.fmean(scores[column] for scores in by_metric if column in scores) for column in table.columns
    )


def _decimals(figures: list[float | None]) -> int:
    """Digits after the point, of the figure that has most."""
    return max(
        max(0, -Decimal(str(figure)).normalize().as_tuple().exponent) for figure in figures if figure is not None
    )
