"""The result tables of the papers, transcribed once: finetuning/published/<paper>.yaml. Figures are as printed.

A recipe or a suite names a row by paper, table and name, and a page looks it up. A test checks that each average is
that of its row's scores, or that the row has `recomputed`.

A paper has its `paper` as results print it, `title`, `url` and `tables`. A table has its name, `table`; `metrics`, the
main one first; `columns`, which are `languages`, `pairs`, `tasks` or `other` (`columns_are`); `task`, unless those are
tasks; `rows`; and perhaps `average_of`, metrics whose mean is a column's part in the average, and a `note`.

A row has its `name`; `scores` in percent by metric, in the order of the columns, null if not legible; and perhaps
`average` by metric, `average_from`, the table of that average where it is not legible in this one, `recomputed`, where
the printed scores give another average, `pooling` of sentence vectors, if not that of XTREME's script, and a `note`.
"""

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from crosslingual_zoo.finetuning.results import AVERAGE
from crosslingual_zoo.zoo_core.recipes import nearest

PAPERS = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.yaml"))}
# The pooling of XTREME's scripts (run_bucc2018.sh; run_tatoeba.sh, utils_retrieve.py), which published rows have unless
# they say otherwise.
XTREME_POOLING = {"bucc": "cls", "tatoeba": "mean_with_special_tokens"}


@dataclass(frozen=True)
class Reference:
    """What a named row says about a task: scores in percent by metric and language."""

    title: str  # paper, table and row
    scores: dict[str, dict[str, float]]  # with AVERAGE among the languages if that is over exactly ours
    pooling: str | None  # of sentence vectors, where it is known
    note: str | None


@functools.cache
def load(paper: str) -> dict[str, Any]:
    """Reads the tables of a paper. Raises ValueError for an unknown paper."""
    if paper not in PAPERS:
        raise ValueError(f"There are no tables of a paper {paper!r}. {nearest(paper, PAPERS)}")
    return yaml.safe_load(PAPERS[paper].read_text(encoding="utf-8"))


def find(paper: str, table: str, row: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a table and one of its rows. Raises ValueError for an unknown one."""
    names = []
    for table_of_paper in load(paper)["tables"]:
        for row_of_table in table_of_paper["rows"]:
            if (table_of_paper["table"], row_of_table["name"]) == (table, row):
                return table_of_paper, row_of_table
            names.append(row_of_table["name"])
    raise ValueError(f"{row!r} of {table!r} is no row of {paper}. {nearest(row, names)}")


def row_scores(table: dict[str, Any], row: dict[str, Any], metric: str) -> dict[str, float]:
    """The legible scores of a row, by column."""
    figures = row["scores"].get(metric, [None] * len(table["columns"]))
    return {name: score for name, score in zip(table["columns"], figures, strict=True) if score is not None}


def look_up(item: dict[str, Any], task: str, kind: str, metric: str, names: list[str]) -> Reference:
    """Returns what the row `item` (`paper`, `table`, `row`) says about a task in some languages, or pairs.

    `metric` is the task's main one. If the columns of the table are tasks, the row gives the average.
    Raises ValueError for an unknown row, and a table without a score of the task.
    """
    table, row = find(item["paper"], item["table"], item["row"])
    is_over_tasks = table["columns_are"] == "tasks"
    if is_over_tasks:
        columns = languages_of(task, table)
    elif table.get("task") in (None, task, kind):
        columns = table["columns"]
    else:
        raise ValueError(
            f"published names {item['table']} of {table['task']}, and the task is {task}. Set published=null."
        )
    name_of_column = {column: pair_of(column, names) for column in columns}
    has_all = set(name_of_column.values()) == set(names)
    scores: dict[str, dict[str, float]] = {}
    for printed_metric in table["metrics"]:
        our_metric = printed_metric
        if printed_metric in ("score", metric):
            our_metric = "target_to_source" if kind == "retrieval" else metric  # papers search in one direction
        figures = row_scores(table, row, printed_metric)
        averages = {printed_metric: figures.get(task)} if is_over_tasks else row.get("average", {})
        scores_of_names = {}
        for column, score in figures.items():
            if name_of_column.get(column) in names:
                scores_of_names[name_of_column[column]] = score
        if has_all and averages.get(printed_metric) is not None:
            scores_of_names[AVERAGE] = averages[printed_metric]
        scores[our_metric] = scores_of_names
    title = f"{load(item['paper'])['paper']}, {item['table']}"
    if "average_from" in row:
        title += f" (average: {row['average_from']})"
    notes = [part["note"] for part in (table, row) if "note" in part]
    pooling = row.get("pooling", XTREME_POOLING.get(task))
    return Reference(f"{title}, {item['row']}", scores, pooling, " ".join(notes) or None)


def languages_of(task: str, table: dict[str, Any]) -> list[str]:
    """The languages of a task: the columns of a table of it, of the same paper if there is one."""
    tables_by_paper = [load(paper)["tables"] for paper in PAPERS]
    tables_by_paper.sort(key=lambda tables: table not in tables)
    for candidate in itertools.chain.from_iterable(tables_by_paper):
        if candidate.get("task") == task:
            return candidate["columns"]
    return []


def pair_of(column: str, pairs: list[str]) -> str:
    """Returns our name of a pair; a single language means a pair with English, in any order, if that is one of ours."""
    if column in pairs:
        return column
    languages = set(column.split("-")) if "-" in column else {column, "en"}
    for pair in pairs:
        if set(pair.split("-")) == languages:
            return pair
    return column
