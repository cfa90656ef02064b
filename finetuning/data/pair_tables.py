"""Tables of sentences and their translations: two columns of one table, or one column of each of two tables."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset, concatenate_datasets

from crosslingual_zoo.finetuning.data.rows import (
    Rows,
    has_text,
    names_of,
    read_table,
    typed_column,
    unique_ids,
    whole_file,
)
from crosslingual_zoo.finetuning.data.task_tables import identities
from crosslingual_zoo.zoo_core.tables import describe

if TYPE_CHECKING:
    from crosslingual_zoo.finetuning.tasks.translation.recipe import PairTable

SIDES = ("source", "target")
ROWS_AT_ONCE = 100_000  # rows looked at together: WMT14 En-Fr has 40 million


def open_pairs(table: "PairTable", name: str, language: str, hub_root: str | None, may_be_empty: bool = True) -> Rows:
    """The pairs of a table in columns `source` and `target`, both with text, under the name of their languages.

    `left_out` counts pairs with an `empty` side, and rows of either table whose id is not in the other (`unpaired`).
    Raises ValueError for columns that are missing or no text, repeated ids, sides that do not fit each other, and if no
    pair has text on both sides; unless a side `may_be_empty`, for the first one that is.
    """
    tables = [whole_file(table)]
    if table.target:
        split = table.target.split or table.split
        tables.append(whole_file(replace(table.target, split=split)))
    where = f"{name} ({'; '.join(map(describe, tables))})"
    datasets = []
    fingerprints = []
    for side_table in tables:
        dataset, fingerprint = read_table(side_table, hub_root)
        datasets.append(dataset)
        fingerprints.append(fingerprint)
    source = _text_column(datasets[0], table.source_column, "source", where)
    target = _text_column(datasets[-1], table.target_column, "target", where)
    sizes = [len(source), len(target)]
    positions = np.arange(len(source))
    if table.target and table.join_on:
        source_ids = unique_ids(datasets[0], table.join_on, where)
        target_ids = unique_ids(datasets[1], table.join_on, where)
        target_positions = target_ids.get_indexer(source_ids)
        positions = np.flatnonzero(target_positions >= 0)
        source = source.select(positions)
        target = target.select(target_positions[positions])
    elif len(source) != len(target):
        raise ValueError(f"{where}: the sides have {sizes[0]} and {sizes[1]} rows. If they share ids, set join_on.")
    pairs = concatenate_datasets([source, target], axis=1)
    table_as_read = replace(tables[0], target=tables[1] if table.target else None)
    rows = Rows(table_as_read, language, pairs, "+".join(dict.fromkeys(fingerprints)), positions)
    is_whole = _have_text(pairs)
    empty = np.flatnonzero(~is_whole).tolist()
    if not may_be_empty:
        rows.report(dict.fromkeys(empty, "a side is empty"), "Repair the data, or name another split.")
    if not is_whole.any():
        raise ValueError(f"{where}: {len(pairs)} pairs, none with text on both sides. Check the columns, and join_on.")
    left_out = {"empty": len(empty), "unpaired": [size - len(pairs) for size in sizes]}
    whole = pairs.select(np.flatnonzero(is_whole))
    return replace(rows, dataset=whole, numbers=positions[is_whole], left_out=left_out)


def _text_column(dataset: Dataset, column: str, side: str, where: str) -> Dataset:
    """The column alone, under the name of a side. Raises ValueError for one that is no text."""
    typed_column(dataset, column, where)
    return dataset.select_columns([column]).rename_column(column, side)


def _have_text(pairs: Dataset) -> np.ndarray:
    """Whether both sides of each pair have text."""
    is_whole = [np.empty(0, dtype=bool)]
    for batch in pairs.with_format("arrow").iter(ROWS_AT_ONCE):
        is_whole.append(has_text(batch.column("source")) & has_text(batch.column("target")))
    return np.concatenate(is_whole)


def pair_identity(rows: Rows) -> dict[str, Any]:
    """What was read, for results.json."""
    table = rows.table
    (identity,) = identities([rows])
    identity["columns"] = [table.source_column, table.target_column]
    identity["target"] = names_of(table.target) if table.target else None
    identity |= rows.left_out
    if getattr(table, "source_mask_probability", 0):
        identity["source_mask_probability"] = table.source_mask_probability
    return identity
