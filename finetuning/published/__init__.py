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
    rows = {(item["table"], of["name"]): (item, of) for item in load(paper)["tables"] for of in item["rows"]}
    if (table, row) not in rows:
        raise ValueError(f"{row!r} of {table!r} is no row of {paper}. {nearest(row, [name for _, name in rows])}")
    return rows[table, row]


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
    scores = {name: row_scores(table, row, name) for name in table["metrics"]}
    if table["columns_are"] == "tasks":
        columns, averages = languages_of(task, table), {name: of[task] for name, of in scores.items() if task in of}
    elif table.get("task") in (None, task, kind):
        columns, averages = table["columns"], row.get("average", {})
    else:
        raise ValueError(
            f"published names {item['table']} of {table['task']}, and the task is {task}. Set published=null."
        )
    ours = {column: pair_of(column, names) for column in columns}
    main = "target_to_source" if kind == "retrieval" else metric  # papers search in one direction
    found: dict[str, dict[str, float]] = {}
    for name, of in scores.items():
        own = found[main if name in ("score", metric) else name] = {
            ours[column]: score for column, score in of.items() if ours.get(column) in names
        }
        if name in averages and {*ours.values()} == {*names}:
            own[AVERAGE] = averages[name]
    name = item["table"] + (f" (average: {row['average_from']})" if "average_from" in row else "")
    return Reference(
        f"{load(item['paper'])['paper']}, {name}, {item['row']}",
        found,
        row.get("pooling", XTREME_POOLING.get(task)),
        " ".join(of["note"] for of in (table, row) if "note" in of) or None,
    )


def languages_of(task: str, table: dict[str, Any]) -> list[str]:
    """The languages of a task: the columns of a table of it, of the same paper if there is one."""
    known = sorted((load(name)["tables"] for name in PAPERS), key=lambda tables: table not in tables)
    return next((item["columns"] for tables in known for item in tables if item.get("task") == task), [])


def pair_of(column: str, pairs: list[str]) -> str:
    """Returns our name of a pair; a single language means a pair with English, in any order, if that is one of ours."""
    languages = set(column.split("-")) if "-" in column else {column, "en"}
    return column if column in pairs else next((pair for pair in pairs if set(pair.split("-")) == languages), column)
