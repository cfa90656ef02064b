"""Tables of sentences and their translations: two columns of one table, or one column of each of two tables."""

from dataclasses import replace
from typing import Any

import numpy as np
from datasets import concatenate_datasets

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
from crosslingual_zoo.finetuning.tasks.translation.recipe import PairTable
from crosslingual_zoo.zoo_core.tables import describe

SIDES = ("source", "target")
ROWS_AT_ONCE = 100_000  # rows looked at together: WMT14 En-Fr has 40 million


def open_pairs(table: PairTable, name: str, language: str, hub_root: str | None, may_be_empty: bool = True) -> Rows:
    """The pairs of a table in columns `source` and `target`, both with text, under the name of their languages.

    `left_out` counts pairs with an `empty` side, and rows of either table whose id is not in the other (`unpaired`).
    Raises ValueError for columns that are missing or no text, repeated ids, sides that do not fit each other, and if no
    pair has text on both sides; unless a side `may_be_empty`, for the first one that is.
    """
    tables = [whole_file(replace(one, split=one.split or table.split)) for one in (table, table.target) if one]
    found = [read_table(one, hub_root) for one in tables]
    where, sides = f"{name} ({'; '.join(map(describe, tables))})", []
    for side, (rows, _) in zip(SIDES, (found[0], found[-1]), strict=True):
        wanted = getattr(table, f"{side}_column")
        typed_column(rows, wanted, where)
        sides.append(rows.select_columns([wanted]).rename_column(wanted, side))
    sizes = [len(side) for side in sides]
    positions = np.arange(sizes[0])
    if len(tables) == 2 and table.join_on:
        ids = [unique_ids(rows, table.join_on, where) for rows, _ in found]
        places = ids[1].get_indexer(ids[0])
        positions = np.flatnonzero(places >= 0)
        if not len(positions):
            raise ValueError(
                f"{where}: no id of column {table.join_on} occurs in both tables. They have ids such as {ids[0][0]!r} "
                f"and {ids[1][0]!r}."
            )
        sides = [sides[0].select(positions), sides[1].select(places[positions])]
    elif sizes[0] != sizes[1]:
        raise ValueError(f"{where}: the sides have {sizes[0]} and {sizes[1]} rows. If they share ids, set join_on.")
    read = replace(tables[0], target=tables[1] if tables[1:] else None)
    fingerprint = "+".join(dict.fromkeys(fingerprint for _, fingerprint in found))
    pairs = concatenate_datasets(sides, axis=1)
    batches = pairs.with_format("arrow").iter(ROWS_AT_ONCE)
    with_text = [[has_text(batch.column(side)) for side in SIDES] for batch in batches]
    is_whole = np.logical_and(*map(np.concatenate, zip(*with_text, strict=True)))
    empty = np.flatnonzero(~is_whole).tolist()
    rows = Rows(read, language, pairs, fingerprint, positions)
    if not may_be_empty:
        rows.report(dict.fromkeys(empty, "a side is empty"), "Repair the data, or name another split.")
    if len(empty) == len(pairs):
        raise ValueError(f"{where} has no pair with text on both sides. Check the columns.")
    left_out = {"empty": len(empty), "unpaired": [size - len(pairs) for size in sizes]}
    whole = pairs.select(np.flatnonzero(is_whole))
    return replace(rows, dataset=whole, numbers=positions[is_whole], left_out=left_out)


def pair_identity(rows: Rows) -> dict[str, Any]:
    """What was read, for results.json."""
    table, (identity,) = rows.table, identities([rows])
    identity["columns"] = [table.source_column, table.target_column]
    identity["target"] = names_of(table.target) if table.target else None
    identity |= rows.left_out
    if getattr(table, "source_mask_probability", 0):
        identity["source_mask_probability"] = table.source_mask_probability
    return identity
