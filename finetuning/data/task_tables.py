"""Which rows of which table a run trains, selects and is evaluated on, by language; the same for every kind of task."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo_core.faults import are_listed, report_faults
from zoo_core.recipes import nearest
from zoo_core.tables import (
    Table,
    UnknownConfig,
    describe,
    load_table,
    require_column,
    row_places,
    table_fingerprint,
)

if TYPE_CHECKING:
    from datasets import Dataset

    from finetuning.recipe import LabeledTable, Recipe, TrainingTable

TRANSLATION = "translation_"  # before the names of a translation's columns and fields, as the models' heads want them
LABELED_BY = "labeled_by"  # column of rows that a model has labeled, which says what model
DATA_SEED = 0  # of held-out and sampled rows: the same for every seed of a run, which differ in training alone


@dataclass
class Rows:
    """Rows of one language in one table; `{language}` in its path and config is filled in.

    Joined translations are columns of `dataset` too, and `table.translation_columns` names them; `translations` says
    where they come from.
    """

    table: "LabeledTable"
    language: str
    dataset: "Dataset"
    fingerprint: str
    positions: "np.ndarray | None" = None  # of the rows in the table, from 0; None: all of its rows are here
    translations: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The table as errors and results name it."""
        return describe(self.table)

    @property
    def place(self) -> str:
        """The table and the language, as errors name them."""
        return f"{self.name}, language {self.language}"

    @property
    def numbers(self) -> Sequence[int]:
        """The number of each row in its table, from 0."""
        return range(len(self.dataset)) if self.positions is None else self.positions

    def places_of(self, numbers: list[int]) -> list[str]:
        """The places in the table of rows here, in increasing order, as errors name them: `line 7`, or `row 5`."""
        found = [int(self.numbers[number]) for number in numbers]
        return [f"{self.place}, {place}" for place in row_places(self.table, found)]

    def report(self, faults: dict[int, str], advice: str) -> None:
        """Reports what is wrong with rows, by their numbers here, as `report_faults` does: each with its place."""
        if not faults:
            return
        numbers = sorted(faults)
        places = self.places_of(numbers)
        if len(faults) > 1 and not are_listed():
            advice = f"{advice} --check_data lists all."
        report_faults([f"{place}: {faults[row]}" for row, place in zip(numbers, places, strict=True)], advice)


@dataclass
class Tables:
    """The rows of every table of a recipe, as they were read."""

    train: list[Rows]
    dev: dict[str, list[Rows]]  # by language; empty where the last checkpoint is taken, or rows are held out
    evaluation: dict[str, Rows]  # by language


@dataclass
class TaskData:
    """What a run is trained, selected and evaluated on; which columns the rows have is up to the kind of task."""

    label_names: list[str]  # in the order of their ids; empty where a kind has no labels
    train: "Dataset"
    dev: dict[str, "Dataset"]  # by language; empty where the last checkpoint is taken
    evaluation: dict[str, "Dataset"]  # by language
    protocol: dict[str, Any]  # what was read and how, for results.json
    warnings: list[str]
    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # rows of further files of the run, by name
    as_read: dict[str, "Dataset"] = field(default_factory=dict)  # the evaluated rows before they were encoded


class TableReader:
    """Reads tables by language, each table once."""

    def __init__(self, hub_root: str | None):
        self.hub_root = hub_root
        self._loaded: dict[tuple, tuple[Dataset, str]] = {}

    def rows(self, table: "LabeledTable", languages: list[str]) -> list[Rows]:
        """The rows of each of the languages; of every language in `language_column` where none is named."""
        if has_place_for_language(table):
            if not languages:
                raise ValueError(
                    f"{describe(table)} has a place for the language, and `languages` is empty. Name the languages, as "
                    "in evaluation.0.languages=[en, de]."
                )
            return [rows for name in languages for rows in self._of_language(table, name)]
        if Path(table.path).is_file():
            table = replace(table, split=split_of_file(table))
        dataset, fingerprint = self._table(table)
        dataset, positions = selected(table, dataset)
        if table.language_column is None:
            if len(languages) != 1:
                raise ValueError(
                    f"{describe(table)} holds one language, and `languages` is {languages}. Set `language_column` "
                    "where a column tells it, write {language} into path or config where each language has a table, or "
                    "name the one language."
                )
            return [self._joined(Rows(table, languages[0], dataset, fingerprint, positions))]
        require_column(dataset, table.language_column, describe(table))
        column = np.asarray(dataset[table.language_column][:], dtype=object)
        found = [str(name) for name in dict.fromkeys(column.tolist())]
        unknown = [name for name in languages if name not in found]
        if unknown:
            raise ValueError(
                f"{describe(table)} has no rows of language {unknown[0]!r} in column {table.language_column}. Its "
                f"languages are: {', '.join(found)}. {_hint(unknown[0], found)}"
            )
        places = np.arange(len(dataset)) if positions is None else positions
        return [
            self._joined(Rows(table, name, dataset.select(np.flatnonzero(own)), fingerprint, places[own]))
            for name in languages or found
            for own in [column == name]
        ]

    def _of_language(self, table: "LabeledTable", language: str) -> list[Rows]:
        """The rows of one language in a table with a place for it."""
        try:
            return self.rows(filled(table, language), [language])
        except UnknownConfig as error:
            if "{language}" not in table.config:
                raise
            place = re.compile("(.+)".join(map(re.escape, table.config.split("{language}"))))
            codes = {name: code for code, name in table.language_names.items()}
            there = [codes.get(match[1], match[1]) for match in map(place.fullmatch, error.known) if match]
            raise ValueError(
                f"{table.path} has no config {filled(table, language).config}: there are no rows of language "
                f"{language!r}. Of the form {table.config} it has: {', '.join(there)}. {_hint(language, there)} Where "
                "the data call a language by another name, give it in `language_names`."
            ) from None

    def _joined(self, rows: Rows) -> Rows:
        """The rows with the columns of their `translations` table, if they have one."""
        if rows.table.translations is None:
            return rows
        table = filled(rows.table, rows.language)
        source = translation_table(table)
        column, columns = table.translations.join_on, table.translations.text_columns
        other, fingerprint = self._table(source)
        for dataset, name, needed in ((rows.dataset, rows.name, []), (other, describe(source), columns)):
            for one in (column, *needed):
                if not any(own.startswith(f"{one}.") for own in dataset.column_names):
                    require_column(dataset, one, name)
        positions: dict[Any, int] = {}
        for position, key in enumerate(other[column][:]):
            if positions.setdefault(key, position) != position:
                raise ValueError(
                    f"{describe(source)}, rows {positions[key]} and {position} (from 0): both have {key!r} in column "
                    f"{column}. Join on a column without repetitions."
                )
        keys = rows.dataset[column][:]
        if unknown := [key for key in keys if key not in positions]:
            raise ValueError(
                f"{rows.place}: {len(unknown)} of {len(keys)} rows have no translation in {describe(source)}; none of "
                f"its rows has {unknown[0]!r} in column {column}. Add the missing ones, remove these rows, or join on "
                "another column."
            )
        # a struct's fields are columns of their own: `answers` names them all
        own = [name for name in other.column_names if any(name == one or name.startswith(f"{one}.") for one in columns)]
        names = {name: f"translations.{name}" for name in own}
        found = other.select_columns(own).rename_columns(names).select([positions[key] for key in keys])
        from datasets import concatenate_datasets

        return replace(
            rows,
            table=replace(table, translation_columns=[f"translations.{one}" for one in columns]),
            dataset=concatenate_datasets([rows.dataset, found], axis=1),
            translations={**names_of(source), "join_on": column, "fingerprint": fingerprint},
        )

    def _table(self, table: Table) -> tuple["Dataset", str]:
        return read_table(table, self.hub_root, self._loaded)


def read_table(table: Table, hub_root: str | None, loaded: dict[tuple, tuple["Dataset", str]]) -> tuple["Dataset", str]:
    """The rows of a table, a struct's fields under the dotted names of the recipe, and its fingerprint.

    `loaded` keeps what was read.
    """
    key = tuple(getattr(table, item.name) for item in fields(Table))
    if key not in loaded:
        dataset = load_table(table, hub_root)
        loaded[key] = dataset.flatten(), table_fingerprint(table, hub_root, dataset)
    return loaded[key]


def _hint(language: str, known: list[str]) -> str:
    """What to do about an unknown language, in a message that lists the known ones."""
    hint = nearest(language, known)
    return hint if hint.startswith("Did you mean") else "Name only languages that are there."


def has_place_for_language(table: "LabeledTable") -> bool:
    """Whether each language has a table, or rows, of its own, named by `{language}`."""
    return any("{language}" in text for text in (table.path, table.config or "", *table.where.values()))


def filled(table: "LabeledTable", language: str) -> "LabeledTable":
    """The table of one language; its translations' as well."""
    own = table.language_names.get(language, language)

    def fill(one: Any, name: str, **changes: Any) -> Any:
        config = one.config and one.config.replace("{language}", name)
        return replace(one, path=one.path.replace("{language}", name), config=config, **changes)

    where = {column: text.replace("{language}", own) for column, text in table.where.items()}
    return fill(table, own, where=where, translations=table.translations and fill(table.translations, language))


def selected(table: "LabeledTable", dataset: "Dataset") -> tuple["Dataset", "np.ndarray | None"]:
    """The rows that `where` asks for, and their positions in the table; None where it asks for none.

    Raises ValueError for a column that is not there, and where no row is left.
    """
    positions = None
    for column, wanted in table.where.items():
        require_column(dataset, column, describe(table))
        values = ["" if value is None else str(value) for value in dataset[column][:]]
        pattern = re.compile(".*".join(map(re.escape, wanted.split("*"))), re.DOTALL)
        kept = [row for row, value in enumerate(values) if pattern.fullmatch(value)]
        if not kept:
            found = list(dict.fromkeys(values))
            shown = f"{', '.join(found[:9])}{', ...' if found[9:] else ''}"
            raise ValueError(
                f"{describe(table)} has no row with {wanted!r} in column {column}. The values there are: {shown}. "
                "Correct `where`."
            )
        dataset = dataset.select(kept)
        positions = np.asarray(kept) if positions is None else positions[kept]
    return dataset, positions


def translation_table(table: "LabeledTable") -> Table:
    """The table that `translations` names: its split is the one that is read of `table`, all of it."""
    other = table.translations
    split = "train" if Path(other.path).is_file() else table.split.split("[")[0]
    return Table(path=other.path, config=other.config, split=split, revision=other.revision)


def training_languages(recipe: "Recipe", table: "TrainingTable") -> list[str]:
    """Languages of a training table; none where `language_column` tells them, or where they must be named."""
    must_name = recipe.setting == "supervised" and has_place_for_language(table)
    if recipe.setting != "zero_shot" and not table.languages and (table.language_column or must_name):
        return []
    return table.languages or [recipe.source_language]


def training_rows(recipe: "Recipe", reader: TableReader) -> list[Rows]:
    """The training rows, table by table: zero-shot of the source language, else of every language."""
    found = [rows for table in recipe.train for rows in reader.rows(table, training_languages(recipe, table))]
    source = recipe.source_language
    if recipe.setting == "translate_train_all" and not recipe.plug_in and {rows.language for rows in found} <= {source}:
        raise ValueError(
            f"setting is translate_train_all, and all training rows are {source}. Add tables of translated rows with "
            "their `languages`, or use setting=zero_shot."
        )
    return found


def evaluation_rows(recipe: "Recipe", reader: TableReader) -> dict[str, Rows]:
    """The evaluated rows by language. Raises ValueError for a language that is given twice."""
    languages: dict[str, Rows] = {}
    for rows in [rows for table in recipe.evaluation for rows in reader.rows(table, table.languages)]:
        if rows.language in languages:
            raise ValueError(
                f"Language {rows.language!r} is evaluated twice: in {languages[rows.language].name} and in "
                f"{rows.name}. Remove it from one of them."
            )
        languages[rows.language] = rows
    return languages


def development_rows(recipe: "Recipe", evaluation: dict[str, Rows], reader: TableReader) -> dict[str, list[Rows]]:
    """The rows that select the checkpoint, by language; none where `selection` is last or they must be held out.

    `mean_dev`: the evaluation tables' `dev_split` of every language that has one. `source_dev`: that of the source
    language (what the public XTREME scripts do), also where it is not evaluated; else the training tables' `dev_split`.
    """

    def rows(table: "LabeledTable", language: str) -> list[Rows]:
        return reader.rows(replace(table, split=table.dev_split), [language])

    source = recipe.source_language
    if recipe.selection == "mean_dev":
        return {
            language: rows(entry.table, language) for language, entry in evaluation.items() if entry.table.dev_split
        }
    if recipe.selection == "source_dev":
        evaluated = [evaluation[source].table] if source in evaluation else recipe.evaluation
        trained = [table for table in recipe.train if source in (training_languages(recipe, table) or [source])]
        if tables := [table for table in evaluated if table.dev_split][:1] or [t for t in trained if t.dev_split]:
            return {source: [part for table in tables for part in rows(table, source)]}
    return {}


def open_tables(recipe: "Recipe") -> Tables:
    """Reads every table of a recipe that `check_tables` has passed. Raises ValueError as the functions above."""
    reader = TableReader(recipe.hub_root)
    train, evaluation = training_rows(recipe, reader), evaluation_rows(recipe, reader)
    languages = list(dict.fromkeys(rows.language for rows in train))
    if recipe.setting == "supervised" and (absent := [name for name in evaluation if name not in languages]):
        raise ValueError(
            f"setting is supervised, and there are no training rows in {', '.join(absent)}, which "
            f"are evaluated. Training rows are in {', '.join(languages)}: what crosses to others is transfer. Add "
            "tables with their `languages`, or evaluate only languages that are trained on."
        )
    return Tables(train, development_rows(recipe, evaluation, reader), evaluation)


def gather(
    recipe: "Recipe",
    tables: Tables,
    evaluation: dict[str, "Dataset"],
    normalize: Callable[[Rows], "Dataset"],
    label_names: list[str],
    warnings: list[str],
) -> TaskData:
    """The data of a run from rows that a kind of task has checked and given columns of its own.

    `evaluation` are the normalized rows of `tables.evaluation`; those of training and development are normalized here.
    Development rows are held out, and rows drawn where the recipe asks for fewer. `warnings` are completed by
    `normalize`, and each is kept once.
    """
    from datasets import concatenate_datasets

    train = concatenate_datasets([normalize(rows) for rows in tables.train])
    dev = {
        language: concatenate_datasets([normalize(rows) for rows in parts]) for language, parts in tables.dev.items()
    }
    dev_data: Any = identities([rows for parts in tables.dev.values() for rows in parts])
    if recipe.selection == "source_dev" and not dev:
        _check_holding_out(recipe, {rows.language for rows in tables.train})
        split = train.train_test_split(test_size=recipe.dev_fraction, seed=DATA_SEED)
        train, dev = split["train"], {recipe.source_language: split["test"]}
        dev_data = f"{recipe.dev_fraction:.0%} of the training rows, held out at random (seed {DATA_SEED})"
    if recipe.selection == "mean_dev" and (absent := [language for language in evaluation if language not in dev]):
        warnings = [
            *warnings,
            f"there are no development rows in {', '.join(absent)}: the checkpoint is best on the others' mean",
        ]
    train = sample(train, recipe.max_train_examples)
    evaluated = list(tables.evaluation.values())
    differs = [rows.table.differs for rows in evaluated if rows.table.differs]
    drawn = {language: sample(rows, recipe.max_evaluation_examples) for language, rows in evaluation.items()}
    differs += ["fewer rows"] * any(len(rows) < len(evaluation[language]) for language, rows in drawn.items())
    evaluation = drawn
    protocol = {
        "training_data": identities(tables.train),
        "training_rows": len(train),
        "plug_in": recipe.plug_in,
        "translations": recipe.translations_from,
        "labels": label_names,
        "evaluation_data": identities(evaluated),
        "evaluated_split": ", ".join(dict.fromkeys(split_name(rows.table) for rows in evaluated)),
        "evaluated_rows": {language: len(rows) for language, rows in evaluation.items()},
        "differs": list(dict.fromkeys(differs)),
        "selection": {
            "rule": recipe.selection,
            "data": dev_data or None,
            "rows": {language: len(rows) for language, rows in dev.items()},
        },
        "layer": None,
        "pooling": None,
    }
    return TaskData(label_names, train, dev, evaluation, protocol, list(dict.fromkeys(warnings)))


def each_part(data: TaskData, change: Callable[["Dataset", str, str], "Dataset"]) -> TaskData:
    """The data with `change(rows, part, language)` of its rows; the language of `train` is empty."""
    return replace(
        data,
        train=change(data.train, "train", ""),
        dev={language: change(rows, "dev", language) for language, rows in data.dev.items()},
        evaluation={language: change(rows, "evaluation", language) for language, rows in data.evaluation.items()},
    )


def encode_parts(
    data: TaskData, encode_batch: Callable[..., dict[str, list]], counted: list[str], **arguments: Any
) -> tuple[TaskData, dict[str, dict[str, dict[str, int]]]]:
    """The data with rows that `encode_batch(batch, row numbers, is_train=..., **arguments)` makes of batches of rows.

    The evaluated rows themselves stay, in `as_read`.

    Columns named in `counted` are summed and dropped: {column: {part: {language, or "all" in train: sum}}}.
    """
    counts: dict[str, dict[str, dict[str, int]]] = {
        name: {"train": {}, "dev": {}, "evaluation": {}} for name in counted
    }

    def encode_rows(rows: "Dataset", part: str, language: str) -> "Dataset":
        encoded = rows.map(
            encode_batch,
            batched=True,
            with_indices=True,
            remove_columns=rows.column_names,
            fn_kwargs={**arguments, "is_train": part == "train"},
            desc=f"Encoding {part} {language}".strip(),
        )
        found = [name for name in counted if name in encoded.column_names]
        for name in found:
            counts[name][part][language or "all"] = int(np.sum(encoded[name][:]))
        return encoded.remove_columns(found)

    return replace(each_part(data, encode_rows), as_read=data.evaluation), counts


def _check_holding_out(recipe: "Recipe", languages: set[str]) -> None:
    """Raises ValueError where no development rows of the source language can be held out of the training rows.

    `languages` are those of the training rows.
    """
    if recipe.setting == "translate_train_all" or languages != {recipe.source_language}:
        reason = {
            "translate_train_all": "Of training rows held out, translations would stay in training",
            "supervised": "Training rows held out would be of every language",
        }[recipe.setting]
        raise ValueError(
            f"setting is {recipe.setting}, and selection=source_dev finds no dev_split of the source language "
            f"{recipe.source_language}. {reason}. Name a dev_split, or use selection=mean_dev or selection=last."
        )
    if not 0 < recipe.dev_fraction < 1:
        raise ValueError(
            f"dev_fraction is {recipe.dev_fraction}, and no table has a dev_split. selection=source_dev needs "
            "development rows. Name a dev_split, set dev_fraction between 0 and 1, or use selection=last."
        )


def split_of_file(table: Table) -> str:
    """`train`: all rows of a file are read. Raises ValueError for a slice of a split, which would be ignored."""
    if "[" in table.split:
        raise ValueError(
            f"{table.path} is a file, and split is {table.split!r}. All rows of a file are read: leave split out, and "
            "write the rows that you want into a file of their own."
        )
    return "train"


def split_name(table: Table) -> str:
    """The split as results name it; a file has none, it is read whole."""
    return "whole file" if Path(table.path).is_file() else table.split


def sample(dataset: "Dataset", size: int) -> "Dataset":
    """`size` rows drawn with DATA_SEED, in their order; all of them for 0."""
    if not 0 < size < len(dataset):
        return dataset
    return dataset.select(np.sort(np.random.default_rng(DATA_SEED).permutation(len(dataset))[:size]))


def names_of(table: Table) -> dict[str, Any]:
    """What was read, for results.json."""
    names = {"path": table.path, "config": table.config, "split": split_name(table), "revision": table.revision}
    where = getattr(table, "where", {})
    return {**names, "where": where} if where else names


def identities(all_rows: list[Rows]) -> list[dict[str, Any]]:
    """What was read, for results.json: one entry a table with its languages, rows, fingerprint and translations."""
    tables: dict[tuple, dict[str, Any]] = {}
    for rows in all_rows:
        table, joined = rows.table, rows.translations
        key = (*map(str, names_of(table).values()), joined and joined["path"], joined and joined["config"])
        entry = {**names_of(table), "languages": [], "rows": 0, "fingerprint": rows.fingerprint}
        entry = tables.setdefault(key, {**entry, "translations": joined} if joined else entry)
        entry["languages"].append(rows.language)
        entry["rows"] += len(rows.dataset)
        if LABELED_BY in rows.dataset.column_names:
            teachers = entry.setdefault(LABELED_BY, [])
            teachers += [name for name in rows.dataset.unique(LABELED_BY) if name not in teachers]
    return list(tables.values())
