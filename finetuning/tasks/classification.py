"""Text classification: rows of one or two text columns and a label, to encoded rows by language.

XNLI, PAWS-X and SICK are pairs of sentences, topic labels have one text; nothing here knows the benchmarks. What ties
training and evaluation together is the *name* of a label: ids are those of the training data, and evaluated labels are
looked up by name, so that two datasets that number the same classes differently cannot be mixed up.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, concatenate_datasets

from common.recipes import nearest
from common.tables import require_column
from finetuning.recipe import LabelledTable, Recipe
from finetuning.task_tables import (
    DATA_SEED,
    TRANSLATION,
    Rows,
    TableReader,
    check_tables,
    development_rows,
    evaluation_rows,
    identities,
    sample,
    split_name,
    training_rows,
)

TEXTS = ("text", "pair")  # names of the text columns once they are read


@dataclass
class ClassificationData:
    """Rows of `text`, perhaps `pair`, and `labels` (ids); after `encode`: input_ids, attention_mask, labels, length.

    Plug-in, also the texts and fields of the translation, with `translation_` before their names, and in `train`
    `translation_labels`: a translation has its text's label.
    """

    label_names: list[str]
    train: Dataset
    dev: dict[str, Dataset]  # by language; empty where the last checkpoint is taken
    evaluation: dict[str, Dataset]  # by language
    protocol: dict[str, Any]  # what was read and how, for results.json
    warnings: list[str]


def read(recipe: Recipe) -> ClassificationData:
    """Reads and checks every table of the recipe, before a model is loaded.

    Raises ValueError for missing columns, texts, translations or labels, labels that the training data do not have, an
    evaluated language whose labels are all the same, and what `task_tables` refuses.
    """
    check_tables(recipe)
    _check_columns(recipe)
    reader = TableReader(recipe.hub_root)
    train_rows = training_rows(recipe, reader)
    evaluated = evaluation_rows(recipe, reader)
    dev_rows = development_rows(recipe, evaluated, reader)

    names = _label_names(train_rows)
    warnings: list[str] = []
    normalise = functools.partial(
        _normalise, names=names, is_order_declared=bool(_declared_order(train_rows)), warnings=warnings
    )
    train = concatenate_datasets([normalise(rows) for rows in train_rows])
    evaluation = {language: normalise(rows) for language, rows in evaluated.items()}
    dev = {language: concatenate_datasets([normalise(rows) for rows in parts]) for language, parts in dev_rows.items()}
    for language, dataset in evaluation.items():
        _refuse_placeholder_labels(evaluated[language], dataset, names)

    dev_data: Any = identities([rows for parts in dev_rows.values() for rows in parts])
    if recipe.selection == "source_dev" and not dev:
        if recipe.setting == "translate_train_all":
            raise ValueError(
                "setting is translate_train_all, and selection=source_dev finds no dev_split of the source language "
                f"{recipe.source_language}. Of training rows held out, translations would stay in training. Name a "
                "dev_split, or use selection=mean_dev or selection=last."
            )
        if not 0 < recipe.dev_fraction < 1:
            raise ValueError(
                f"dev_fraction is {recipe.dev_fraction}, and no table has a dev_split. selection=source_dev needs "
                "development rows. Name a dev_split, set dev_fraction between 0 and 1, or use selection=last."
            )
        split = train.train_test_split(test_size=recipe.dev_fraction, seed=DATA_SEED)
        train, dev = split["train"], {recipe.source_language: split["test"]}
        dev_data = f"{recipe.dev_fraction:.0%} of the training rows, held out at random (seed {DATA_SEED})"
    train = sample(train, recipe.max_train_examples)
    evaluation = {language: sample(rows, recipe.max_evaluation_examples) for language, rows in evaluation.items()}
    if len(used := train.unique("labels")) < 2:
        raise ValueError(
            f"All {len(train)} training rows have the label {names[used[0]]!r}. There is nothing to tell apart. "
            f"Check the label column {recipe.train[0].label_column}."
        )
    protocol = {
        "training_data": identities(train_rows),
        "training_rows": len(train),
        "plug_in": recipe.plug_in,
        "translations": recipe.translations_from,
        "labels": names,
        "evaluation_data": identities(list(evaluated.values())),
        "evaluated_split": ", ".join(dict.fromkeys(split_name(rows.table) for rows in evaluated.values())),
        "evaluated_rows": {language: len(rows) for language, rows in evaluation.items()},
        "majority_share": {language: _majority_share(rows) for language, rows in evaluation.items()},
        "selection": {
            "rule": recipe.selection,
            "data": dev_data or None,
            "rows": {language: len(rows) for language, rows in dev.items()},
        },
        "layer": None,
        "pooling": None,
    }
    return ClassificationData(names, train, dev, evaluation, protocol, list(dict.fromkeys(warnings)))


def encode(data: ClassificationData, tokenizer: Any, max_length: int) -> ClassificationData:
    """Texts to input_ids and attention_mask; two texts become `<s> premise </s></s> hypothesis </s>`.

    Longer inputs are cut, the longer text of a pair first; the protocol says how many, by language. A translation is an
    input of its own, cut and counted likewise.
    """
    cut: dict[str, dict[str, int]] = {"train": {}, "dev": {}, "evaluation": {}}

    def encode_rows(dataset: Dataset, part: str, language: str) -> Dataset:
        sides = {
            prefix: columns
            for prefix in ("", TRANSLATION)
            if (columns := [prefix + column for column in TEXTS if prefix + column in dataset.column_names])
        }
        dataset = dataset.map(
            _encode_batch,
            batched=True,
            remove_columns=[column for columns in sides.values() for column in columns],
            fn_kwargs={"sides": sides, "tokenizer": tokenizer, "max_length": max_length},
            desc=f"Encoding {part} {language}".strip(),
        )
        if part == "train" and TRANSLATION in sides:
            dataset = dataset.add_column(TRANSLATION + "labels", dataset["labels"][:])
        cut[part][language or "all"] = int(np.sum(dataset["cut"][:]))
        return dataset.remove_columns("cut")

    return ClassificationData(
        label_names=data.label_names,
        train=encode_rows(data.train, "train", ""),
        dev={language: encode_rows(rows, "dev", language) for language, rows in data.dev.items()},
        evaluation={language: encode_rows(rows, "evaluation", language) for language, rows in data.evaluation.items()},
        protocol={**data.protocol, "max_length": max_length, "cut_texts": cut},
        warnings=data.warnings,
    )


def _encode_batch(
    batch: dict[str, list], sides: dict[str, list[str]], tokenizer: Any, max_length: int
) -> dict[str, list]:
    """Fields of each side, `length` and `cut` over all of them; `sides` are the text columns by prefix."""
    rows = len(batch["labels"])
    fields: dict[str, list] = {"length": [0] * rows, "cut": [0] * rows}
    for prefix, columns in sides.items():
        texts = [batch[column] for column in columns]
        encoded = tokenizer(*texts, truncation=True, max_length=max_length)
        fields |= {prefix + name: values for name, values in encoded.items()}
        lengths = [len(ids) for ids in encoded["input_ids"]]
        fields["length"] = [sum(both) for both in zip(fields["length"], lengths, strict=True)]
        # only an input that fills the limit can have been cut: encode those once more to know
        full = [row for row, length in enumerate(lengths) if length == max_length]
        if full:
            whole = tokenizer(*[[column[row] for row in full] for column in texts], verbose=False)
            for row, ids in zip(full, whole["input_ids"], strict=True):
                fields["cut"][row] += int(len(ids) > max_length)
    return fields


def _check_columns(recipe: Recipe) -> None:
    tables = {f"train.{position}": table for position, table in enumerate(recipe.train)}
    tables |= {f"evaluation.{position}": table for position, table in enumerate(recipe.evaluation)}
    wanted = len(recipe.train[0].text_columns)
    for where, table in tables.items():
        if len(table.text_columns) not in (1, 2):
            raise ValueError(
                f"{where}.text_columns is {table.text_columns}. A classifier reads one text or a pair. Name one column "
                "or two."
            )
        if len(table.text_columns) != wanted:
            raise ValueError(
                f"{where}.text_columns names {len(table.text_columns)} and train.0.text_columns {wanted}. A classifier "
                "of pairs cannot judge single texts, nor the reverse. Give all tables as many."
            )
        translations = table.translation_columns or (table.translations and table.translations.text_columns)
        if translations and len(translations) != len(table.text_columns):
            raise ValueError(
                f"{where} has {len(table.text_columns)} text_columns and {len(translations)} of translations, "
                f"{', '.join(translations)}. Each text has one translation. Name as many, in the same order."
            )
        if len(set(table.label_names)) < len(table.label_names):
            raise ValueError(f"{where}.label_names is {table.label_names}. Labels need different names. Correct it.")


def _normalise(rows: Rows, names: list[str], is_order_declared: bool, warnings: list[str]) -> Dataset:
    """Columns `text`, `pair`, those of their translations, and `labels` (ids in `names`), checked."""
    table = rows.table
    ids = _label_ids(rows, names, is_order_declared, warnings)
    sides = {"": table.text_columns, TRANSLATION: table.translation_columns}
    texts = {
        prefix + new: _texts(rows, old, "translation" if prefix else "text")
        for prefix, columns in sides.items()
        for new, old in zip(TEXTS, columns, strict=False)
    }
    if table.translation_columns and all(texts[name] == texts[TRANSLATION + name] for name in TEXTS if name in texts):
        warnings.append(f"{rows.name}, language {rows.language}: the translation of each text is the text itself")
    return Dataset.from_dict({**texts, "labels": ids})


def _texts(rows: Rows, column: str, what: str) -> list[str]:
    """A column of text. Raises ValueError for another type and a row without text; plug-in, for blank text too."""
    feature = require_column(rows.dataset, column, rows.name)
    if getattr(feature, "dtype", None) not in ("string", "large_string"):
        raise ValueError(
            f"{rows.name}: column {column} holds {getattr(feature, 'dtype', feature)}, not text. Only text can be "
            f"encoded. Name a text column in `text_columns`; the columns are {', '.join(rows.dataset.column_names)}."
        )
    texts = rows.dataset[column][:]
    for row, text in enumerate(texts):
        if text is None or (rows.table.translation_columns and not text.strip()):
            why = "Plug-in reads both sides" if rows.table.translation_columns else "It cannot be classified"
            raise ValueError(
                f"{rows.name}, language {rows.language}, row {row} (from 0): column {column} has no {what}. {why}. "
                "Fill or remove the row."
            )
    return texts


def _declared_names(table: LabelledTable, dataset: Dataset) -> list[str]:
    """Names of the labels 0, 1, ... where recipe or data declare them."""
    feature = require_column(dataset, table.label_column, table.path)
    if table.label_names:
        return list(table.label_names)
    return list(feature.names) if isinstance(feature, ClassLabel) else []


def _declared_order(train: list[Rows]) -> list[str]:
    return next(filter(None, (_declared_names(rows.table, rows.dataset) for rows in train)), [])


def _label_names(train: list[Rows]) -> list[str]:
    """Names of the classes in the order of their ids: as declared, else sorted."""
    if declared := _declared_order(train):
        return declared
    seen = {value for rows in train for value in rows.dataset.unique(rows.table.label_column) if value is not None}
    return [str(value) for value in sorted(seen, key=lambda value: (isinstance(value, str), value))]


def _label_ids(rows: Rows, names: list[str], is_order_declared: bool, warnings: list[str]) -> list[int]:
    """Ids of the labels of some rows. Raises ValueError for a label that is not in `names`, with row and names."""
    dataset, column = rows.dataset, rows.table.label_column
    declared = _declared_names(rows.table, dataset)
    feature = dataset.features[column]
    kind = getattr(feature, "dtype", str(feature))
    is_number = isinstance(feature, ClassLabel) or kind == "bool" or "int" in kind
    if not is_number and kind not in ("string", "large_string"):
        raise ValueError(
            f"{rows.name}: column {column} holds {kind}. Labels are whole numbers, class labels or strings. "
            "Name another label column, or convert this one."
        )

    def id_of(value: Any) -> int | None:
        name = value
        digits = is_number or (isinstance(value, str) and value.isdecimal() and value not in declared)
        if declared and digits and value is not None:  # PAWS-X has "0" and "1" as strings
            name = declared[int(value)] if 0 <= int(value) < len(declared) else value
        elif is_number and value is not None:
            name = str(int(value))
        return names.index(name) if name in names else None

    values = dataset[column][:]
    ids = {value: id_of(value) for value in dict.fromkeys(values)}
    if is_number and not declared and is_order_declared and None in ids.values():
        # bare numbers beside training labels whose names have an order: by value, and say so
        ids = {value: int(value) if value is not None and 0 <= value < len(names) else None for value in ids}
        warnings.append(
            f"labels of {rows.name} are bare numbers: read as {dict(enumerate(names))}, the training data's order"
        )
    unknown = [value for value, found in ids.items() if found is None]
    if unknown:
        row = values.index(unknown[0])
        hidden = "no label" if unknown[0] in (None, -1) else f"label {unknown[0]!r}"
        raise ValueError(
            f"{rows.name}, language {rows.language}, row {row} (from 0): {hidden} in column {column}. The training "
            f"data know: {', '.join(names)}. {_label_advice(unknown[0], names)}"
        )
    return [ids[value] for value in values]


def _label_advice(value: Any, names: list[str]) -> str:
    if value in (None, -1):
        return "Unlabelled rows cannot be used: remove them."
    hint = nearest(str(value), names) if isinstance(value, str) else ""
    advice = "Where the same labels have other names or numbers, give their names in order as `label_names`."
    return f"{hint} {advice}" if hint.startswith("Did") else advice


def _majority_share(dataset: Dataset) -> float:
    """Accuracy of always answering the commonest label, in [0, 1]."""
    return float(np.bincount(dataset["labels"][:]).max() / len(dataset))


def _refuse_placeholder_labels(rows: Rows, dataset: Dataset, names: list[str]) -> None:
    """Some public copies of test sets have every label replaced by a constant: a score on them is noise."""
    found = dataset.unique("labels")
    if len(found) == 1:
        raise ValueError(
            f"{rows.name}, language {rows.language}: all {len(dataset)} rows have the label {names[found[0]]!r}. These "
            "are placeholders, not gold labels: any score on them is meaningless. Use a copy of the data that has its "
            "labels, or evaluate another split."
        )
