"""The rows for training, selection and evaluation, by language, for every kind of task."""

import contextlib
import itertools
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from crosslingual_zoo.finetuning.data.rows import Rows, has_place_for_language, names_of, plain_tables, rows_of
from crosslingual_zoo.zoo_core.tables import MissingTable, describe

if TYPE_CHECKING:
    from datasets import Dataset

    from crosslingual_zoo.finetuning.recipe import LabeledTable, Recipe, TaskRecipe, TrainingTable

TRANSLATION = "translation_"  # prefix of a translation's columns and fields, as the models' heads expect
Pair = TypeVar("Pair")  # what a kind of task evaluates for a pair of languages
LABELED_BY = "labeled_by"  # column of rows that a model has labeled, with the model's name
Missing = dict[str, list[str]]  # names of languages or tables, by part of a recipe
FEW_ROWS = 100  # of fewer held-out rows, a score says little: one row is a percent or more
DATA_SEED = 0  # of held-out and sampled rows: the same for all seeds of a run, which differ only in training


@dataclass
class Tables:
    """The rows of every table of a recipe."""

    train: list[Rows]
    dev: dict[str, list[Rows]]  # by language; empty where the last checkpoint is taken, or rows are held out
    evaluation: dict[str, Rows]  # by language
    missing: Missing = field(default_factory=dict)  # what was not found, and is left out

    def all_rows(self) -> Iterator[Rows]:
        """The rows of every table: evaluated ones first, then those to train on and those of `dev`."""
        yield from self.evaluation.values()
        yield from self.train
        for rows_of_language in self.dev.values():
            yield from rows_of_language


@dataclass
class Data:
    """The data that a task of any kind reads."""

    protocol: dict[str, Any]  # what was read and how, for results.json
    warnings: list[str]


@dataclass
class PairData(Data, Generic[Pair]):
    """The data of a task that trains nothing, by pair of languages."""

    pairs: dict[str, Pair]


@dataclass
class TaskData(Data):
    """The rows for training, selection and evaluation; their columns depend on the kind of task."""

    train: "Dataset"
    dev: dict[str, "Dataset"]  # by language or pair; empty where the last checkpoint is taken
    evaluation: dict[str, "Dataset"]
    label_names: list[str] = field(default_factory=list)  # in the order of their ids
    as_read: dict[str, "Dataset"] = field(default_factory=dict)  # the evaluated rows before they were encoded


def translation_of(rows: Rows) -> Rows | None:
    """The same rows with their translations' columns as the table's own; the label column is "" where none is named."""
    columns = rows.table.translation_columns
    if not columns:
        return None
    texts = len(rows.table.text_columns)
    table = replace(rows.table, text_columns=columns[:texts], label_column=next(iter(columns[texts:]), ""))
    return replace(rows, table=table)


def training_languages(recipe: "Recipe", table: "TrainingTable") -> list[str]:
    """Returns the languages of a training table; none if `language_column` has them, or if they must be named."""
    must_name = recipe.setting == "supervised" and has_place_for_language(table)
    if recipe.setting != "zero_shot" and not table.languages and (table.language_column or must_name):
        return []
    return table.languages or [recipe.source_language]


def development_tables(recipe: "Recipe", evaluation: dict[str, Rows]) -> dict[str, list["LabeledTable"]]:
    """Returns the tables whose `dev_split` selects the checkpoint, by language; none if `selection` is last, or to hold
    rows out later.

    `mean_dev`: the evaluation tables' in every language that has one. `source_dev`: that in the source language, even
    if it is not evaluated, as in the public XTREME scripts; else the training tables'.
    """
    if recipe.selection == "mean_dev":
        return {language: [rows.table] for language, rows in evaluation.items() if rows.table.dev_split}
    if recipe.selection == "last":
        return {}
    source = recipe.source_language
    evaluated = [evaluation[source].table] if source in evaluation else recipe.evaluation
    with_dev = [table for table in evaluated if table.dev_split]
    if with_dev:
        return {source: with_dev[:1]}
    trained = []
    for table in recipe.train:
        languages = training_languages(recipe, table)
        if table.dev_split and (source in languages or not languages):
            trained.append(table)
    return {source: trained} if trained else {}


@contextlib.contextmanager
def noted_if_missing(recipe: "TaskRecipe", part: str, name: str, missing: Missing) -> Generator[None]:
    """Adds `name` to `missing` where a table of a part is not found and the recipe allows it."""
    try:
        yield
    except MissingTable:
        if not recipe.skip_missing:
            raise
        missing.setdefault(part, []).append(name)


def missing_lines(missing: Missing) -> list[str]:
    """A warning for each part that lists what was not found."""
    return [f"not found, and left out of {part}: {', '.join(names)}" for part, names in missing.items()]


def read_rows(recipe: "Recipe", table: "LabeledTable", languages: list[str], part: str, missing: Missing) -> list[Rows]:
    """Reads a table of a part of the recipe, by language; languages that are not found are noted in `missing`."""
    all_rows: list[Rows] = []
    for plain, languages_there in plain_tables(table, languages):
        name = ", ".join(languages_there) or describe(plain)
        with noted_if_missing(recipe, part, name, missing):
            all_rows += rows_of(plain, languages_there, recipe.hub_root)
    return all_rows


def open_tables(recipe: "Recipe") -> Tables:
    """Reads every table of a recipe.

    Raises MissingTable where no table to train on, or to evaluate, is found, and ValueError for a language that is
    evaluated twice, and for settings without training rows that they need.
    """
    missing: Missing = {}
    train: list[Rows] = []
    for table in recipe.train:
        train += read_rows(recipe, table, training_languages(recipe, table), "train", missing)
    evaluation: dict[str, Rows] = {}
    for table in recipe.evaluation:
        for rows in read_rows(recipe, table, table.languages, "evaluation", missing):
            if rows.language in evaluation:
                raise ValueError(f"Language {rows.language!r} is evaluated twice, the second time in {rows.name}.")
            evaluation[rows.language] = rows
    if not train or not evaluation:
        raise MissingTable("; ".join(missing_lines(missing)))
    trained = {rows.language for rows in train}
    setting = recipe.setting
    if setting == "translate_train_all" and not recipe.plug_in and trained <= {recipe.source_language}:
        raise ValueError(f"setting is {setting}, and all training rows are {recipe.source_language}. Add translations.")
    absent = [name for name in evaluation if name not in trained]
    if setting == "supervised" and absent:
        raise ValueError(f"setting is supervised, and there are no training rows in {', '.join(absent)}.")
    dev: dict[str, list[Rows]] = {}
    for language, tables in development_tables(recipe, evaluation).items():
        dev[language] = []
        for table in tables:
            with_split = replace(table, split=table.dev_split)
            dev[language] += read_rows(recipe, with_split, [language], "the development rows", missing)
    dev = {language: rows_of_language for language, rows_of_language in dev.items() if rows_of_language}
    return Tables(train, dev, evaluation, missing)


def gather(recipe: "Recipe", tables: Tables, warnings: list[str], label_names: list[str]) -> TaskData:
    """Returns the data of a run, from tables whose `examples` have the columns of a kind of task.

    Development rows are held out, and rows are sampled if the recipe limits their number. Each warning is kept once.
    """
    from datasets import concatenate_datasets

    train = concatenate_datasets([rows.examples for rows in tables.train])
    dev = {}
    for language, rows_of_language in tables.dev.items():
        dev[language] = concatenate_datasets([rows.examples for rows in rows_of_language])
    dev_data: Any = identities(list(itertools.chain(*tables.dev.values()))) or None
    if recipe.selection == "source_dev" and not dev:
        check_held_out(recipe, tables)
        split = train.train_test_split(test_size=recipe.dev_fraction, seed=DATA_SEED)
        train = split["train"]
        dev = {recipe.source_language: split["test"]}
        dev_data = f"{recipe.dev_fraction:.0%} of the training rows, held out at random (seed {DATA_SEED})"
    train = sample(train, recipe.max_train_examples)
    evaluation = {}
    differs = [rows.table.differs for rows in tables.evaluation.values() if rows.table.differs]
    for language, rows in tables.evaluation.items():
        evaluation[language] = sample(rows.examples, recipe.max_evaluation_examples)
        if len(evaluation[language]) < len(rows.examples):
            differs.append("fewer rows")
    protocol = dict(
        training_data=identities(tables.train),
        training_rows=len(train),
        plug_in=recipe.plug_in,
        translations=recipe.translations_from,
        labels=label_names,
        evaluation_data=identities(list(tables.evaluation.values())),
        evaluated_rows={language: len(rows) for language, rows in evaluation.items()},
        differs=list(dict.fromkeys(differs)),
        selection={
            "rule": recipe.selection,
            "data": dev_data,
            "rows": {language: len(rows) for language, rows in dev.items()},
        },
    )
    parts = {"training": {"": train}, "development": dev, "evaluated": evaluation}
    text_columns = [name for name in ("text", "pair", "words", "question", "context") if name in train.column_names]
    label_column = next((name for name in ("labels", "tags") if name in train.column_names), None)
    warnings = [*warnings, *missing_lines(tables.missing), *repeated_texts(parts, text_columns, label_column)]
    warnings += table_warnings(recipe, recipe.evaluation, "max_evaluation_examples", "max_train_examples")
    held_out = sum(len(rows) for rows in dev.values())
    if dev and held_out < FEW_ROWS:
        warnings.append(
            f"the checkpoint is chosen by {held_out} held-out rows, and fewer than {FEW_ROWS} say little: set "
            "`selection: last`, or hold out more"
        )
    return TaskData(protocol, list(dict.fromkeys(warnings)), train, dev, evaluation, label_names)


def check_held_out(recipe: "Recipe", tables: Tables) -> None:
    """Raises ValueError where no training rows can be held out for the selection."""
    trained = {rows.language for rows in tables.train}
    if recipe.setting == "translate_train_all" or trained != {recipe.source_language} or not recipe.dev_fraction:
        raise ValueError(
            f"selection=source_dev finds no dev_split of {recipe.source_language}, and with setting="
            f"{recipe.setting} and dev_fraction {recipe.dev_fraction} no training rows can be held out. Name a "
            "dev_split, or use another selection."
        )


def table_warnings(recipe: "TaskRecipe", tables: list[Any], *limits: str) -> list[str]:
    """Warnings of evaluated tables with a note or of another split than test, and of fields that limit the rows."""
    warnings = [table.note for table in tables if table.note]
    for table in tables:
        if table.split != "test" and not Path(table.path).is_file():
            warnings.append(
                f"evaluated on {table.path}, split {table.split}: comparable with scores on that split only"
            )
    for name in limits:
        size = getattr(recipe, name)
        if size:
            warnings.append(f"only a sample of the rows was used: {name} is {size}")
    return warnings


def repeated_texts(parts: dict[str, dict[str, "Dataset"]], texts: list[str], label: str | None = None) -> list[str]:
    """Warnings of rows whose texts an earlier part has, too, and of equal texts with different labels.

    texts and label: names of columns; without a label column, labels are not compared.
    """
    rows_by_part: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for part, tables in parts.items():
        rows_by_part[part] = {language: _hashed_rows(rows, texts, label) for language, rows in tables.items()}
    warnings = []
    for earlier, later in itertools.combinations(parts, 2):
        earlier_labels = _labels_by_text(itertools.chain(*rows_by_part[earlier].values()))
        counts = []
        for language, rows in rows_by_part[later].items():
            repeated = [(text, label_hash) for text, label_hash in rows if text in earlier_labels]
            contradicting = sum(label_hash not in earlier_labels[text] for text, label_hash in repeated)
            if repeated:
                others = f" ({contradicting:,} with another label)" if contradicting else ""
                counts.append(f"{language} {len(repeated):,} of {len(rows):,}{others}")
        if counts:
            warnings.append(f"{later} rows whose text is in the {earlier} rows: {', '.join(counts)}")
    counts = []
    for part, tables in rows_by_part.items():
        for language, rows in tables.items():
            labels_by_text = _labels_by_text(rows)
            contradicting = sum(len(labels_by_text[text]) > 1 for text, _ in rows)
            if contradicting:
                counts.append(f"{part} {language} {contradicting:,} of {len(rows):,}".replace("  ", " "))
    if counts:
        warnings.append(f"rows whose text has another label in another row of the same part: {', '.join(counts)}")
    return warnings


def _hashed_rows(rows: "Dataset", texts: list[str], label: str | None) -> list[tuple[int, int]]:
    """Returns hashes of the texts and of the label of each row: the texts themselves would need memory."""
    text_hashes = _hashes(rows, texts)
    label_hashes = _hashes(rows, [label]) if label else [0] * len(rows)
    return list(zip(text_hashes, label_hashes, strict=True))


def _hashes(rows: "Dataset", columns: list[str]) -> list[int]:
    hashes = []
    for values in zip(*(rows[column][:] for column in columns), strict=True):
        hashes.append(hash(tuple(tuple(value) if isinstance(value, list) else value for value in values)))
    return hashes


def _labels_by_text(rows: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    labels_by_text: dict[int, set[int]] = {}
    for text, label in rows:
        labels_by_text.setdefault(text, set()).add(label)
    return labels_by_text


def sample(dataset: "Dataset", size: int) -> "Dataset":
    """`size` rows drawn with DATA_SEED, in their order; all of them for 0."""
    if not 0 < size < len(dataset):
        return dataset
    return dataset.select(np.sort(np.random.default_rng(DATA_SEED).permutation(len(dataset))[:size]))


def identities(all_rows: list[Rows]) -> list[dict[str, Any]]:
    """Returns the tables for results.json: one entry each, with languages, rows, fingerprint and translations."""
    tables: dict[str, dict[str, Any]] = {}
    for rows in all_rows:
        identity = {**names_of(rows.table), "fingerprint": rows.fingerprint}
        if rows.translations:
            identity["translations"] = rows.translations
        entry = tables.setdefault(str(identity), {**identity, "languages": [], "rows": 0})
        entry["languages"].append(rows.language)
        entry["rows"] += len(rows.dataset)
        if "unlabeled" in rows.left_out:
            entry["unlabeled"] = entry.get("unlabeled", 0) + rows.left_out["unlabeled"]
    return list(tables.values())
