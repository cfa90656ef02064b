"""The rows for training, selection and evaluation, by language, for every kind of task."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from crosslingual_zoo.finetuning.data.rows import Rows, has_place_for_language, names_of, rows_of

if TYPE_CHECKING:
    from datasets import Dataset

    from crosslingual_zoo.finetuning.recipe import Recipe, TaskRecipe, TrainingTable

TRANSLATION = "translation_"  # prefix of a translation's columns and fields, as the models' heads expect
Pair = TypeVar("Pair")  # what a kind of task evaluates for a pair of languages
LABELED_BY = "labeled_by"  # column of rows that a model has labeled, with the model's name
FEW_ROWS = 100  # of fewer held-out rows, a score says little: one row is a percent or more
DATA_SEED = 0  # of held-out and sampled rows: the same for all seeds of a run, which differ only in training


@dataclass
class Tables:
    """The rows of every table of a recipe."""

    train: list[Rows]
    dev: dict[str, list[Rows]]  # by language; empty where the last checkpoint is taken, or rows are held out
    evaluation: dict[str, Rows]  # by language


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


def development_rows(recipe: "Recipe", evaluation: dict[str, Rows]) -> dict[str, list[Rows]]:
    """Returns the rows that select the checkpoint, by language; none if `selection` is last, or to hold them out later.

    `mean_dev`: the evaluation tables' `dev_split` in every language that has one. `source_dev`: the `dev_split` in the
    source language, even if it is not evaluated, as in the public XTREME scripts; else the training tables'
    `dev_split`.
    """
    source, tables = recipe.source_language, {}
    if recipe.selection == "mean_dev":
        tables = {language: [rows.table] for language, rows in evaluation.items() if rows.table.dev_split}
    if recipe.selection == "source_dev":
        evaluated = [evaluation[source].table] if source in evaluation else recipe.evaluation
        trained = [table for table in recipe.train if source in (training_languages(recipe, table) or [source])]
        found = [table for table in evaluated if table.dev_split][:1] or [t for t in trained if t.dev_split]
        tables = {source: found} if found else {}
    root, dev = recipe.hub_root, {}
    for language, own in tables.items():
        named = [replace(table, split=table.dev_split) for table in own]
        dev[language] = [rows for table in named for rows in rows_of(table, [language], root)]
    return dev


def open_tables(recipe: "Recipe") -> Tables:
    """Reads every table of a recipe.

    Raises ValueError for a language that is evaluated twice, and for settings without training rows that they need.
    """
    root, setting, evaluation = recipe.hub_root, recipe.setting, {}
    train = [rows for table in recipe.train for rows in rows_of(table, training_languages(recipe, table), root)]
    for rows in [rows for table in recipe.evaluation for rows in rows_of(table, table.languages, root)]:
        if evaluation.setdefault(rows.language, rows) is not rows:
            raise ValueError(f"Language {rows.language!r} is evaluated twice, the second time in {rows.name}.")
    trained = {rows.language for rows in train}
    if setting == "translate_train_all" and not recipe.plug_in and trained <= {recipe.source_language}:
        raise ValueError(f"setting is {setting}, and all training rows are {recipe.source_language}. Add translations.")
    if setting == "supervised" and (absent := [name for name in evaluation if name not in trained]):
        raise ValueError(f"setting is supervised, and there are no training rows in {', '.join(absent)}.")
    return Tables(train, development_rows(recipe, evaluation), evaluation)


def gather(
    recipe: "Recipe",
    tables: Tables,
    normalize: Callable[[Rows], "Dataset"],
    warnings: list[str],
    label_names: list[str],
) -> TaskData:
    """Returns the data of a run: `normalize` checks rows, gives them the columns of a kind of task, and adds to
    `warnings`, each of which is kept once.

    Development rows are held out, and rows are sampled if the recipe limits their number.
    """
    from datasets import concatenate_datasets

    evaluation = {language: normalize(rows) for language, rows in tables.evaluation.items()}
    train = concatenate_datasets([normalize(rows) for rows in tables.train])
    dev = {
        language: concatenate_datasets([normalize(rows) for rows in parts]) for language, parts in tables.dev.items()
    }
    dev_data: Any = identities([rows for parts in tables.dev.values() for rows in parts])
    if recipe.selection == "source_dev" and not dev:
        trained = {rows.language for rows in tables.train}
        if recipe.setting == "translate_train_all" or trained != {recipe.source_language} or not recipe.dev_fraction:
            raise ValueError(
                f"selection=source_dev finds no dev_split of {recipe.source_language}, and with setting="
                f"{recipe.setting} and dev_fraction {recipe.dev_fraction} no training rows can be held out. Name a "
                "dev_split, or use another selection."
            )
        split = train.train_test_split(test_size=recipe.dev_fraction, seed=DATA_SEED)
        train, dev = split["train"], {recipe.source_language: split["test"]}
        dev_data = f"{recipe.dev_fraction:.0%} of the training rows, held out at random (seed {DATA_SEED})"
    train = sample(train, recipe.max_train_examples)
    evaluated = list(tables.evaluation.values())
    drawn = {language: sample(rows, recipe.max_evaluation_examples) for language, rows in evaluation.items()}
    differs = [rows.table.differs for rows in evaluated if rows.table.differs]
    differs += ["fewer rows"] * any(len(rows) < len(evaluation[language]) for language, rows in drawn.items())
    protocol = dict(
        training_data=identities(tables.train),
        training_rows=len(train),
        plug_in=recipe.plug_in,
        translations=recipe.translations_from,
        labels=label_names,
        evaluation_data=identities(evaluated),
        evaluated_rows={language: len(rows) for language, rows in drawn.items()},
        differs=list(dict.fromkeys(differs)),
        selection={
            "rule": recipe.selection,
            "data": dev_data or None,
            "rows": {language: len(rows) for language, rows in dev.items()},
        },
    )
    parts = {"training": {"": train}, "development": dev, "evaluated": drawn}
    texts = [name for name in ("text", "pair", "words", "question", "context") if name in train.column_names]
    label = next((name for name in ("labels", "tags") if name in train.column_names), None)
    warnings = [*warnings, *repeated_texts(parts, texts, label)]
    warnings += table_warnings(recipe, recipe.evaluation, "max_evaluation_examples", "max_train_examples")
    held_out = sum(len(rows) for rows in dev.values())
    if dev and held_out < FEW_ROWS:
        warnings.append(
            f"the checkpoint is chosen by {held_out} held-out rows, and fewer than {FEW_ROWS} say little: set "
            "`selection: last`, or hold out more"
        )
    return TaskData(protocol, list(dict.fromkeys(warnings)), train, dev, drawn, label_names)


def table_warnings(recipe: "TaskRecipe", tables: list[Any], *limits: str) -> list[str]:
    """Warnings of evaluated tables with a note or of another split than test, and of fields that limit the rows."""
    warnings = [table.note for table in tables if table.note]
    warnings += [
        f"evaluated on {table.path}, split {table.split}: comparable with scores on that split only"
        for table in tables
        if table.split != "test" and not Path(table.path).is_file()
    ]
    sizes = {field: getattr(recipe, field) for field in limits}
    return warnings + [f"only a sample of the rows was used: {field} is {n}" for field, n in sizes.items() if n]


def repeated_texts(parts: dict[str, dict[str, "Dataset"]], texts: list[str], label: str | None = None) -> list[str]:
    """Warnings of rows whose texts an earlier part has, too, and of equal texts with different labels.

    texts and label: names of columns; without a label column, labels are not compared.
    """
    rows_by_part: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for part, tables in parts.items():
        rows_by_part[part] = {language: _hashed_rows(rows, texts, label) for language, rows in tables.items()}
    warnings = []
    for earlier, later in itertools.combinations(parts, 2):
        known = _labels_by_text(itertools.chain(*rows_by_part[earlier].values()))
        counts = []
        for language, rows in rows_by_part[later].items():
            repeated = [(text, label_hash) for text, label_hash in rows if text in known]
            contradicting = sum(label_hash not in known[text] for text, label_hash in repeated)
            if repeated:
                others = f" ({contradicting:,} with another label)" if contradicting else ""
                counts.append(f"{language} {len(repeated):,} of {len(rows):,}{others}")
        if counts:
            warnings.append(f"{later} rows whose text is in the {earlier} rows: {', '.join(counts)}")
    counts = []
    for part, tables in rows_by_part.items():
        for language, rows in tables.items():
            known = _labels_by_text(rows)
            contradicting = sum(len(known[text]) > 1 for text, _ in rows)
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


def each_part(data: TaskData, change: Callable[["Dataset", str, str], "Dataset"]) -> TaskData:
    """The data with `change(rows, part, language)` of its rows; the language of `train` is empty."""
    return replace(
        data,
        train=change(data.train, "train", ""),
        dev={language: change(rows, "dev", language) for language, rows in data.dev.items()},
        evaluation={language: change(rows, "evaluation", language) for language, rows in data.evaluation.items()},
    )


def sample(dataset: "Dataset", size: int) -> "Dataset":
    """`size` rows drawn with DATA_SEED, in their order; all of them for 0."""
    if not 0 < size < len(dataset):
        return dataset
    return dataset.select(np.sort(np.random.default_rng(DATA_SEED).permutation(len(dataset))[:size]))


def identities(all_rows: list[Rows]) -> list[dict[str, Any]]:
    """Returns the tables for results.json: one entry each, with languages, rows, fingerprint and translations."""
    tables: dict[str, dict[str, Any]] = {}
    for rows in all_rows:
        entry = {**names_of(rows.table), "fingerprint": rows.fingerprint}
        entry |= {"translations": rows.translations} if rows.translations else {}
        entry = tables.setdefault(str(entry), {**entry, "languages": [], "rows": 0})
        entry["languages"].append(rows.language)
        entry["rows"] += len(rows.dataset)
        if "unlabeled" in rows.left_out:
            entry["unlabeled"] = entry.get("unlabeled", 0) + rows.left_out["unlabeled"]
    return list(tables.values())
