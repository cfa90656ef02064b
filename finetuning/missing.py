"""Leaves out languages and tasks whose data are missing: `finetuning/run.py --skip_missing`."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finetuning.data.rows import filled, selected
from finetuning.data.task_tables import training_languages
from finetuning.recipe import TaskRecipe
from finetuning.tasks.vectors.recipe import expanded
from zoo_core.tables import Table, describe, load_table, split_names


def leave_out_missing(recipe: TaskRecipe) -> str:
    """Removes the languages whose tables are missing from a recipe; returns which, as its results say it too.

    A table of several languages (`language_column`) is read unchanged. Raises ValueError if training rows are missing,
    or if no language is left to evaluate.
    """
    for table in getattr(recipe, "train", []):
        for language in (training_languages(recipe, table) if hasattr(table, "label_column") else []) or [""]:
            if not is_there(table, language, recipe.hub_root):
                raise ValueError(f"its training rows are not there: {describe(table)}. Check its path and hub_root.")
    missing = []
    tables = next(getattr(recipe, name) for name in ("evaluation", "pairs", "test") if hasattr(recipe, name))
    for table in list(tables):
        languages = getattr(table, "languages", []) or [""]
        there = [language for language in languages if is_there(table, language, recipe.hub_root)]
        name = table.name if hasattr(table, "files") else next(_tables_in(table)).path
        missing += [language or name for language in languages if language not in there]
        if not there:
            tables.remove(table)
        elif there != [""]:
            table.languages = there
    reason = f"not there: {', '.join(missing)}" if missing else ""
    if not tables:
        raise ValueError(f"{reason}. Check its path and hub_root.")
    if missing:
        tables[0].note = "; ".join(filter(None, (tables[0].note, f"left out, {reason}")))
    return reason


def is_there(table: Any, language: str, hub_root: str | None) -> bool:
    """Whether the table of a language exists, with its split, and has rows."""
    if hasattr(table, "files"):
        return all(file.is_file() for file in table.files(hub_root))
    if hasattr(table, "label_column"):
        table = filled(table, language)
    elif language:
        (table,) = expanded([dataclasses.replace(table, languages=[language])])
    try:
        for one in _tables_in(table):
            split = one.split or table.split  # without a split of its own, a pair's other side has the first one's
            if not Path(one.path).is_file() and split.partition("[")[0] not in split_names(one, hub_root):
                return False
            if getattr(one, "where", None):
                selected(one, load_table(one, hub_root))
    except ValueError:
        return False
    return True


def _tables_in(item: Any) -> Iterator[Table]:
    """Yields the tables in a part of a recipe, such as the several tables of a pool of sentences."""
    if isinstance(item, Table):
        yield item
    for value in vars(item).values() if dataclasses.is_dataclass(item) else ():
        yield from _tables_in(value)
