"""The published figures of a recipe, looked up in the papers' tables by paper, table and row.

    published: {paper: xlm_align, table: Table 18, row: "XLM-Align base, zero-shot"}

names a row of finetuning/published/xlm_align.yaml. If a paper has no file there, the recipe itself has its scores.
"""

from typing import Any

from finetuning.published import Row, Table, find, load, papers
from finetuning.recipe import TaskRecipe
from finetuning.results.protocol import Protocol
from finetuning.results.table import Results
from zoo_core.recipes import nearest

FIGURES = ("languages", "further", "average", "sacrebleu", "bleu")  # fields of a recipe that replace a known row
OTHERWISE = "≠"  # mark of scores that were measured in another way than ours
# The pooling of XTREME's scripts (run_bucc2018.sh; run_tatoeba.sh, utils_retrieve.py), which published rows have unless
# they say otherwise.
XTREME_POOLING = {"bucc": "cls", "tatoeba": "mean_with_special_tokens"}
XTREME_SCORES = {"tatoeba": ["target_to_source"]}


def complete_published(recipe: TaskRecipe) -> None:
    """Fills in, from the papers' tables, the scores of every row that a recipe names by paper, table and row.

    Columns that are languages or pairs give scores by language, with the average as printed. If the columns of a table
    are tasks, the recipe's task gives the average. The notes of a table or row are taken, too. Scores of papers without
    a file, and scores that are already filled in, are not changed.

    Raises ValueError for an unknown paper, table or row, a table of another task, a row without a legible score, a
    reference that also has its own scores, and an average whose languages are unknown.
    """
    given = getattr(recipe, "published", None)
    for item in given if isinstance(given, list) else [given] if given else []:
        own = _figures(item)
        if item.paper in papers():
            _fill(item, recipe, own)
        elif not own:
            raise ValueError(
                f"published.paper is {item.paper!r}, which has no file in finetuning/published, and no scores. "
                f"{nearest(item.paper, papers())}"
            )


def _figures(item: Any) -> list[str]:
    """The fields that hold figures."""
    return [name for name in FIGURES if getattr(item, name, None) not in ({}, None)]


def _fill(item: Any, recipe: TaskRecipe, own: list[str]) -> None:
    paper, place = item.paper, f"published: {item.paper}, {item.table}, {item.row}"
    table, row = find(paper, item.table, item.row)
    if own:
        raise ValueError(f"{place} has {own[0]} as well. Leave {own[0]} out, or name another paper.")
    if table.columns_are == "tasks":
        _fill_from_tasks(item, recipe, table, row, place)
    else:
        _fill_by_column(item, recipe, table, row, place)
    if not _figures(item):
        raise ValueError(f"{place} has no legible figure of {recipe.task}. Name another row, or leave it out.")
    if hasattr(item, "pooling"):
        item.pooling = item.pooling or row.pooling or XTREME_POOLING.get(recipe.task)
    item.note = item.note or " ".join(text for text in (table.note, row.note) if text) or None
    item.paper = load(paper).paper


def _fill_by_column(item: Any, recipe: TaskRecipe, table: Table, row: Row, place: str) -> None:
    if table.task is not None and table.task not in (recipe.task, recipe.kind):
        raise ValueError(
            f"{place} is of task {table.task}, and the recipe's is {recipe.task}. Name a table of that task, or set "
            "published=null."
        )
    scores = {metric: table.scores(row, metric) for metric in table.metrics}
    if hasattr(item, "sacrebleu"):
        item.sacrebleu, item.bleu = scores.get("sacrebleu", {}), scores.get("bleu", {})
        return
    names = dict(zip(table.columns, table.columns, strict=True))
    if hasattr(recipe, "pair_names"):
        names = {column: _pair_of(column, recipe.pair_names) for column in table.columns}
    figures = {metric: {names[column]: score for column, score in found.items()} for metric, found in scores.items()}
    main = recipe.main_score
    item.languages = figures.pop(main, {})
    item.further = {metric: found for metric, found in figures.items() if found}
    item.average = row.average.get(main)
    if item.average is not None:
        item.average_over = item.average_over or list(names.values())
    if row.average_from:
        item.table = f"{item.table} (average: {row.average_from})"


def _fill_from_tasks(item: Any, recipe: TaskRecipe, table: Table, row: Row, place: str) -> None:
    if recipe.task not in table.columns:
        raise ValueError(
            f"{place} has no column {recipe.task}, the recipe's task. {nearest(recipe.task, table.columns)}"
        )
    item.average = table.scores(row, table.metrics[0]).get(recipe.task)
    if not item.average_over:
        columns = _languages_of(recipe.task, table)
        if columns is None:
            raise ValueError(
                f"{place} is an average over languages that no table names for {recipe.task}. Name them in "
                "published.average_over."
            )
        names = getattr(recipe, "pair_names", None)
        item.average_over = [_pair_of(column, names) for column in columns] if names is not None else columns


def _languages_of(task: str, table: Table) -> list[str] | None:
    """The languages of a task: the columns of a table of it, of the same paper if there is one."""
    known = sorted((load(name) for name in papers()), key=lambda paper: table not in paper.tables)
    found = (item.columns for paper in known for item in paper.tables if item.task == task)
    return next(found, None)


def _pair_of(column: str, pairs: list[str]) -> str:
    """Returns the recipe's name of a pair; a single language means a pair with English, in any order."""
    languages = set(column.split("-")) if "-" in column else {column, "en"}
    return next((pair for pair in pairs if set(pair.split("-")) == languages), column)


def marks(protocol: Protocol, pooling: str | None = None) -> list[str]:
    """Returns, in a few words each, how the evaluation of a results.json differs from that of a published row.

    `pooling` is that of the row's sentence vectors, None if there are none or if it is unknown.
    """
    is_other = pooling not in (None, protocol.pooling)
    return [*protocol.differs, *([f"pooling {pooling.replace('_', ' ')}"] if is_other else [])]


def column_title(item: dict[str, Any], protocol: Protocol) -> str:
    """Returns paper, table and row of published scores in results.json, and in brackets how they were measured."""
    found = marks(protocol, item.get("pooling"))
    name = f"{item['paper']}, {item['table']}, {item['row']}"
    return f"{name} [{OTHERWISE} {', '.join(found)}]" if found else name


def marks_in_suite(task: dict[str, Any], results: Results, table: Table, row: Row) -> list[str]:
    """`marks` of a row whose columns are tasks, at a task of a suite; also another score, or other languages."""
    name = task["name"]
    found = marks(results.protocol, (row.pooling or XTREME_POOLING[name]) if name in XTREME_POOLING else None)
    if task["scores"] != XTREME_SCORES.get(name, task["scores"]):
        found.append("from English")
    columns, ours = _languages_of(name, table), results.names
    if columns is not None and {_pair_of(column, ours) for column in columns} != set(ours):
        found.append("other languages")
    return found
