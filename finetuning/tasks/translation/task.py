"""Translation: tables of pairs, checked, to encoded pairs by language pair.

Layout of a pair of the zoo: the encoder reads `<s> x </s>`, the decoder reads `</s> y_1 .. y_n` and predicts
`y_1 .. y_n </s>`.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets

from finetuning.data.pair_tables import SIDES, open_pairs, pair_identity, tables_of, with_both_sides
from finetuning.data.rows import Rows, split_name
from finetuning.data.table_checks import overlap
from finetuning.data.task_tables import sample
from finetuning.tasks.translation.recipe import TrainingPairs, TranslationRecipe
from zoo_core.tables import describe


@dataclass
class TranslationData:
    """Pairs of `source` and `target` text; after `encode` ids and lengths, the training pairs without their texts.

    `table` of a training pair is the position of its table in the recipe, which says how its source is masked. `row` of
    a tested pair is its number in its table.
    """

    train: Dataset
    dev: dict[str, Dataset]  # by language pair
    test: dict[str, Dataset]
    protocol: dict[str, Any]  # what was read and how, for results.json
    warnings: list[str]


def column(rows: Dataset, name: str) -> np.ndarray:
    """A column of numbers, without a Python object for each."""
    return rows.with_format("numpy", columns=[name])[name][:]


def read(recipe: TranslationRecipe) -> TranslationData:
    """Reads and checks every table of the recipe, before a model is loaded.

    Training and development pairs with an empty side are left out and counted.
    """
    check_tables(recipe)
    loaded: dict[tuple, tuple[Dataset, str]] = {}
    empty: dict[str, dict[str, int]] = {"train": {}, "dev": {}}

    def open_tables(part: str) -> list[Rows]:
        opened = []
        for position, table in enumerate(getattr(recipe, part)):
            languages = (
                table.source_language or recipe.source_language,
                table.target_language or recipe.target_language,
            )
            rows = open_pairs(table, f"{part}.{position}", "-".join(languages), recipe.hub_root, loaded)
            kept = with_both_sides(rows, f"{part}.{position}", is_evaluated=part == "test")
            if part in empty:
                before = empty[part].get(rows.language, 0)
                empty[part][rows.language] = before + len(rows.dataset) - len(kept.dataset)
            opened.append(kept)
        return opened

    train, dev, test = (open_tables(part) for part in ("train", "dev", "test"))
    for rows in test:
        if sum(other.language == rows.language for other in test) > 1:
            raise ValueError(
                f"The pair {rows.language} is evaluated twice. Remove a table, or name its languages by "
                "source_language and target_language."
            )
    parts = [
        rows.dataset.add_column("table", np.full(len(rows.dataset), position, dtype=np.int16))
        for position, rows in enumerate(train)
    ]
    training = sample(concatenate_datasets(parts), recipe.max_train_examples)
    dev_pairs: dict[str, list[Dataset]] = {}
    for rows in dev:
        dev_pairs.setdefault(rows.language, []).append(sample(rows.dataset, recipe.max_dev_examples))
    evaluated = {
        rows.language: sample(rows.dataset.add_column("row", rows.numbers), recipe.max_test_examples) for rows in test
    }
    protocol = {
        "training_data": [pair_identity(rows) for rows in train],
        "training_rows": len(training),
        "evaluation_data": [pair_identity(rows) for rows in test],
        "evaluated_split": ", ".join(dict.fromkeys(split_name(rows.table) for rows in test)),
        "evaluated_rows": {pair: len(rows) for pair, rows in evaluated.items()},
        "empty_pairs_left_out": empty,
        "selection": {
            "rule": recipe.selection,
            "data": [pair_identity(rows) for rows in dev] or None,
            "rows": {pair: sum(map(len, parts)) for pair, parts in dev_pairs.items()},
        },
    }
    joined = {pair: concatenate_datasets(parts) for pair, parts in dev_pairs.items()}
    return TranslationData(training, joined, evaluated, protocol, [])


def check_tables(recipe: TranslationRecipe) -> None:
    """Raises ValueError for what can be told of the tables before they are read."""
    for part in ("train", "test"):
        if not getattr(recipe, part):
            raise ValueError(f"The recipe has no {part} table. Add one under `{part}:`.")
    for position, table in enumerate(recipe.train):
        _check_masking(table, f"train.{position}")
    for part, later in (("train", "dev"), ("train", "test"), ("dev", "test")):
        for position, table in enumerate(getattr(recipe, part)):
            for number, other in enumerate(getattr(recipe, later)):
                for one, another in itertools.product(tables_of(table), tables_of(other)):
                    if overlap(one, another, recipe.hub_root):
                        raise ValueError(
                            f"{part}.{position} and {later}.{number} both read {describe(one)}. Name different splits "
                            "or files."
                        )


def _check_masking(table: TrainingPairs, name: str) -> None:
    same = table.source_column == table.target_column and table.target is None
    if not 0 <= table.source_mask_probability < 1:
        raise ValueError(
            f"{name}.source_mask_probability is {table.source_mask_probability}. Give a number from 0 to below 1."
        )
    if same and not table.source_mask_probability:
        raise ValueError(
            f"{name} has {table.source_column} for source_column and target_column. Name the column of the other "
            "language, or set source_mask_probability to learn to restore masked text."
        )
    if table.predict == "masked" and not same:
        raise ValueError(
            f"{name} has predict: masked, and the columns {table.source_column} and {table.target_column}. Name one "
            "column twice, or use predict: all."
        )


def encode(data: TranslationData, tokenizer: Any, recipe: TranslationRecipe) -> TranslationData:
    """Texts to `source_ids`, `target_ids` (without the start symbol), `source_length` and `target_length`.

    Training pairs that are too long are dropped or cut, evaluated ones cut; the protocol counts them.
    """
    if tokenizer.mask_token_id is None and any(table.source_mask_probability for table in recipe.train):
        raise ValueError(
            f"source_mask_probability is set, and the tokenizer of {recipe.tokenizer or recipe.model} has no mask "
            "token. Use a model with a masked-LM tokenizer, or leave it out."
        )
    limits = {"source": recipe.max_source_length, "target": recipe.max_target_length}

    def encode_rows(rows: Dataset, name: str, remove: list[str] | None = None) -> Dataset:
        with PartialState().main_process_first():  # the others find its copy on disk
            return rows.map(
                _encode_batch,
                batched=True,
                remove_columns=remove,
                fn_kwargs={"tokenizer": tokenizer, "limits": limits},
                num_proc=recipe.num_workers or None,
                desc=f"Encoding {name}",
            )

    def cut(rows: Dataset, side: str) -> int:
        return int(np.sum(column(rows, f"{side}_is_long")))

    train = encode_rows(data.train, "train", remove=list(SIDES))
    long = np.logical_or(*(column(train, f"{side}_is_long") for side in SIDES))
    if recipe.too_long == "drop" and long.any():
        train = train.select(np.flatnonzero(~long))
    if not len(train):
        raise ValueError(
            f"All {len(long)} training pairs are longer than max_source_length {recipe.max_source_length} or "
            f"max_target_length {recipe.max_target_length}. Raise them, or set too_long to cut."
        )
    dev = {pair: encode_rows(rows, f"dev {pair}") for pair, rows in data.dev.items()}
    test = {pair: encode_rows(rows, f"test {pair}") for pair, rows in data.test.items()}
    protocol = {
        **data.protocol,
        "training_rows": len(train),
        "max_source_length": recipe.max_source_length,
        "max_target_length": recipe.max_target_length,
        "max_length": recipe.max_length,
        "too_long": {
            "rule": recipe.too_long,
            "train": int(long.sum()),
            "dev": {pair: sum(cut(rows, side) for side in SIDES) for pair, rows in dev.items()},
            # references are scored as text, whole
            "test_sources": {pair: cut(rows, "source") for pair, rows in test.items()},
        },
    }
    return TranslationData(train, dev, test, protocol, data.warnings)


def _encode_batch(batch: dict[str, list], tokenizer: Any, limits: dict[str, int]) -> dict[str, list]:
    """Sources with the tokenizer's special tokens, targets with the closing one only."""
    source = tokenizer(batch["source"]).input_ids
    plain = tokenizer(batch["target"], add_special_tokens=False).input_ids
    target = [[*ids, tokenizer.eos_token_id] for ids in plain]
    encoded: dict[str, list] = {}
    for side, rows in (("source", source), ("target", target)):
        limit = limits[side]
        # what closes a text stays when it is cut
        cut = [[*ids[: limit - 1], ids[-1]] if len(ids) > limit else ids for ids in rows]
        encoded[f"{side}_is_long"] = [len(ids) > limit for ids in rows]
        encoded[f"{side}_ids"], encoded[f"{side}_length"] = cut, [len(ids) for ids in cut]
    return encoded
