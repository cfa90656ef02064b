"""Which rows of which table a run trains, selects and is evaluated on, by language; the same for every kind of task."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.recipes import nearest
from common.tables import Table, describe, load_table, require_column, resolve_hub_path, table_fingerprint

if TYPE_CHECKING:
    from datasets import Dataset

    from finetuning.recipe import LabelledTable, Recipe

DATA_SEED = 0  # of held-out and sampled rows: the same for every seed of a run, which differ in training alone


@dataclass
class Rows:
    """Rows of one language in one table; `{language}` in its path and config is filled in."""

    table: "LabelledTable"
    language: str
    dataset: "Dataset"
    fingerprint: str

    @property
    def name(self) -> str:
        """The table as errors and results name it."""
        return describe(self.table)


class TableReader:
    """Reads tables by language, each table once.

    Raises ValueError for missing columns and for languages that are not in the data, cannot be told, or are named in
    no way.
    """

    def __init__(self, hub_root: str | None):
        self.hub_root = hub_root
        self._read: dict[tuple, tuple[Dataset, str]] = {}

    def rows(self, table: "LabelledTable", languages: list[str]) -> list[Rows]:
        """The rows of each of the languages; of every language in `language_column` where none is named."""
        if "{language}" in table.path + (table.config or ""):
            if not languages:
                raise ValueError(
                    f"{describe(table)} has a place for the language, and `languages` is empty. Which tables there "
                    "are cannot be listed. Name the languages, as in evaluation.0.languages=[en, de]."
                )
            return [rows for name in languages for rows in self.rows(_fill(table, name), [name])]
        if Path(table.path).is_file():
            table = replace(table, split="train")  # a file has no splits: all of its rows are read
        dataset, fingerprint = self._table(table)
        if table.language_column is None:
            if len(languages) != 1:
                raise ValueError(
                    f"{describe(table)} holds one language, and `languages` is {languages}. Scores are kept by "
                    "language. Set `language_column` where a column tells it, write {language} into path or config "
                    "where each language has a table, or name the one language."
                )
            return [Rows(table, languages[0], dataset, fingerprint)]
        require_column(dataset, table.language_column, describe(table))
        column = np.asarray(dataset[table.language_column][:], dtype=object)
        found = [str(name) for name in dict.fromkeys(column.tolist())]
        unknown = [name for name in languages if name not in found]
        if unknown:
            raise ValueError(
                f"{describe(table)} has no rows of language {unknown[0]!r} in column {table.language_column}. Nothing "
                f"can be read for it. Its languages are: {', '.join(found)}. {nearest(unknown[0], found)}"
            )
        selected = {name: dataset.select(np.flatnonzero(column == name)) for name in languages or found}
        return [Rows(table, name, rows, fingerprint) for name, rows in selected.items()]

    def _table(self, table: "LabelledTable") -> tuple["Dataset", str]:
        key = (table.path, table.config, table.split, table.revision)
        if key not in self._read:
            dataset = load_table(table, self.hub_root)
            fingerprint = table_fingerprint(table, self.hub_root, dataset)
            self._read[key] = dataset.flatten(), fingerprint  # a struct's fields get the dotted names of the recipe
        return self._read[key]


def _fill(table: "LabelledTable", language: str) -> "LabelledTable":
    config = table.config and table.config.replace("{language}", language)
    return replace(table, path=table.path.replace("{language}", language), config=config)


def training_rows(recipe: "Recipe", reader: TableReader) -> list[Rows]:
    """The source language's training rows, table by table."""
    return [rows for table in recipe.train for rows in reader.rows(table, [recipe.source_language])]


def evaluation_rows(recipe: "Recipe", reader: TableReader) -> dict[str, Rows]:
    """The evaluated rows by language. Raises ValueError for a language that is given twice."""
    languages: dict[str, Rows] = {}
    for rows in [rows for table in recipe.evaluation for rows in reader.rows(table, table.languages)]:
        if rows.language in languages:
            raise ValueError(
                f"Language {rows.language!r} is evaluated twice: in {languages[rows.language].name} and in "
                f"{rows.name}. A result has one score per language. Remove it from one of them."
            )
        languages[rows.language] = rows
    return languages


def development_rows(recipe: "Recipe", evaluation: dict[str, Rows], reader: TableReader) -> dict[str, list[Rows]]:
    """The rows that select the checkpoint, by language; none where `selection` is last or they must be held out.

    `mean_dev`: the evaluation tables' `dev_split` of every language. `source_dev`: that of the source language (what
    the public XTREME scripts do), also where it is not evaluated; else the training tables' `dev_split`.
    """

    def rows(table: "LabelledTable", language: str) -> list[Rows]:
        return reader.rows(replace(table, split=table.dev_split), [language])

    source = recipe.source_language
    if recipe.selection == "mean_dev":
        return {language: rows(entry.table, language) for language, entry in evaluation.items()}
    if recipe.selection == "source_dev":
        evaluated = [evaluation[source].table] if source in evaluation else recipe.evaluation
        if tables := [table for table in evaluated if table.dev_split][:1] or [t for t in recipe.train if t.dev_split]:
            return {source: [part for table in tables for part in rows(table, source)]}
    return {}


def check_tables(recipe: "Recipe") -> None:
    """Raises ValueError where tables are missing, streamed, or where training or selection would see evaluated rows."""
    for part, tables in (("train", recipe.train), ("evaluation", recipe.evaluation)):
        if not tables:
            raise ValueError(f"The recipe has no {part} table. There is nothing to read. Add one under `{part}:`.")
        for position, table in enumerate(tables):
            if table.streaming:
                raise ValueError(
                    f"{part}.{position}.streaming is true. Fine-tuning shuffles all rows and groups them by length, "
                    "so it cannot stream. Leave it out."
                )
    for position, table in enumerate(recipe.train):
        if table.dev_split and _overlap(table, replace(table, split=table.dev_split), recipe.hub_root):
            raise ValueError(
                f"train.{position}.dev_split is {table.dev_split!r}, of the training rows. A checkpoint that knows "
                "them by heart would be selected. Name another split, or leave it out: dev_fraction is held out then."
            )
        for split in filter(None, (table.split, table.dev_split)):
            for number, evaluated in enumerate(recipe.evaluation):
                if any(
                    _overlap(replace(table, split=split), _fill(evaluated, name), recipe.hub_root)
                    for name in evaluated.languages or [""]
                ):
                    raise ValueError(
                        f"train.{position} reads {describe(replace(table, split=split))}, which is evaluated by "
                        f"evaluation.{number}. A score on rows that were trained or selected on means nothing. "
                        "Evaluate another split."
                    )
    for position, table in enumerate(recipe.evaluation):
        if table.dev_split and _overlap(table, replace(table, split=table.dev_split), recipe.hub_root):
            raise ValueError(
                f"evaluation.{position}.dev_split is {table.dev_split!r}, of the evaluated rows. Selecting on "
                "evaluated rows flatters the score. Name another split, or leave it out."
            )
        if recipe.selection == "mean_dev" and table.dev_split is None:
            raise ValueError(
                f"selection is mean_dev, and evaluation.{position} has no dev_split. The mean is over every "
                "language's development rows. Name their split, or use selection=source_dev or selection=last."
            )


def _place(table: Table, hub_root: str | None) -> str:
    """The path of a table, the same however it is spelt."""
    path = resolve_hub_path(table.path, hub_root)
    return str(Path(path).resolve()) if Path(path).exists() else path


def _overlap(one: Table, other: Table, hub_root: str | None) -> bool:
    """Whether two tables share rows; two slices of a split, as in train[:9], are taken for a division of it."""
    if _place(one, hub_root) != _place(other, hub_root) or one.config != other.config:
        return False
    both_sliced = "[" in one.split and "[" in other.split
    same_split = one.split == other.split if both_sliced else one.split.split("[")[0] == other.split.split("[")[0]
    return same_split or Path(one.path).is_file()


def split_name(table: Table) -> str:
    """The split as results name it; a file has none, it is read whole."""
    return "whole file" if Path(table.path).is_file() else table.split


def sample(dataset: "Dataset", size: int) -> "Dataset":
    """`size` rows drawn with DATA_SEED, in their order; all of them for 0."""
    if not 0 < size < len(dataset):
        return dataset
    return dataset.select(np.sort(np.random.default_rng(DATA_SEED).permutation(len(dataset))[:size]))


def identities(all_rows: list[Rows]) -> list[dict[str, Any]]:
    """What was read, for results.json: one entry a table with its languages, rows and fingerprint."""
    tables: dict[tuple, dict[str, Any]] = {}
    for rows in all_rows:
        table = rows.table
        key = (table.path, table.config, table.split)
        names = {"path": table.path, "config": table.config, "split": split_name(table), "revision": table.revision}
        entry = tables.setdefault(key, {**names, "languages": [], "rows": 0, "fingerprint": rows.fingerprint})
        entry["languages"].append(rows.language)
        entry["rows"] += len(rows.dataset)
    return list(tables.values())
