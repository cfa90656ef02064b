"""From the corpora of a recipe to rows of text: columns, translation pairs, and held-out rows.

A `Source` is a `Monolingual` or `Bitext` of the recipe, opened and checked, but not tokenized. The identity of a row
decides whether it is held out. It is the column that the recipe joins on, else `id`, else the row's number. So a verse
is held out in every corpus that has it.
"""

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset

from pretraining.recipe_corpora import Bitext, Corpora, LinkedPairs, Monolingual, is_selected, languages_of
from zoo_core.recipes import nearest
from zoo_core.tables import (
    Table,
    columns_of,
    describe,
    get_column,
    load_table,
    require_column,
    split_pair,
    table_fingerprint,
)

logger = logging.getLogger(__name__)

KEY_BITS = 63  # of a row's hash: fits Arrow's and numpy's int64
ROWS_AT_ONCE = 100  # rows read from a stream at once
SHOWN_IDS = 5
SIDES = ("source", "target")  # columns of pairs that are joined or split here


@dataclass
class TextColumn:
    """One column of text, with the columns that identify its rows and their documents."""

    rows: Dataset | IterableDataset
    column: str
    identity: str | None  # None: the row's number
    document: str | None = None
    document_pattern: str | None = None  # matches the part of the document column's value that names the document
    reading: str = "text"  # how values become integers: a key of `pretraining.data.tokenized.READINGS`


@dataclass
class Source:
    """A corpus of the recipe before tokenization: one text column, or two that are translations of each other. Linked
    pairs have three more columns: the word of each token of either side, and the links.

    `alignment` is (2, M): rows of the two sides that belong together, or None if row i belongs to row i. `counts` are
    the numbers of lost rows, to be logged once. `corpus` is the recipe's entry. For prepared shards the tables are not
    opened: there are no `sides`, and `prepared` are the facts of the tables in the manifest.
    """

    name: str
    languages: tuple[str, ...]
    sides: list[TextColumn]
    tables: list[Table]
    declared_size: int | None
    size_source: str | None
    hub_root: str | None
    alignment: np.ndarray | None = None
    counts: dict[str, int] = field(default_factory=dict)
    corpus: Monolingual | Bitext | LinkedPairs | None = None
    prepared: list[dict[str, Any]] | None = None

    @property
    def kind(self) -> str:
        """`monolingual`, `bitext` or `linked`."""
        return self.corpus.kind

    @property
    def streaming(self) -> bool:
        return bool(self.sides) and isinstance(self.sides[0].rows, IterableDataset)

    def table_facts(self) -> list[dict[str, Any]]:
        """Returns the tables with their fingerprints."""
        if self.prepared is not None:
            return self.prepared
        return [
            {name: value for name, value in asdict(table).items() if value is not None}
            | {"fingerprint": table_fingerprint(table, self.hub_root, side.rows)}
            for table, side in zip(self.tables, self.sides, strict=False)  # one table may hold both sides
        ]

    def facts(self) -> dict[str, Any]:
        """Returns name, languages, the source of the size, and the tables with their fingerprints."""
        size_source = self.size_source if self.declared_size else "counted"
        return {
            "name": self.name,
            "languages": list(self.languages),
            "size_source": size_source,
            "tables": self.table_facts(),
        }


def row_key(identity: Any) -> int:
    """Returns a row's stable hash in [0, 2**63), from its id or its number; the same on every machine."""
    return int.from_bytes(hashlib.blake2b(str(identity).encode(), digest_size=8).digest()) >> (64 - KEY_BITS)


def held_out_below(fraction: float) -> int:
    """Returns the bound below which a row's key is held out."""
    return int(fraction * 2**KEY_BITS)


def open_sources(corpora: Corpora, hub_root: str | None = None) -> list[Source]:
    """Opens the corpora of a recipe.

    Raises ValueError for a column that is missing or is not text, a pair of one language or without two sides, a stream
    without a declared size, sides of unequal length, and a join with repeated ids or without a common id.
    """
    joins = join_columns(corpora)
    return [OPENERS[corpus.kind](corpus, name, joins, hub_root) for name, corpus in corpora.items()]


def join_columns(corpora: Corpora) -> list[str]:
    """Returns the columns on which tables are joined. In every table that has them, they identify rows, before `id`."""
    joined = [getattr(corpus, "join_on", None) for corpus in corpora.values()]
    return list(dict.fromkeys(column for column in joined if column))


def training_texts(sources: list[Source], held_out_fraction: float, max_texts: int | None = None) -> Iterator[str]:
    """Yields the texts of all sources that are not held out, each column once, at most `max_texts` of a column."""
    below = held_out_below(held_out_fraction)
    seen = set()
    for source in sources:
        for side in source.sides:
            # bitext often has the same tables as monolingual corpora: yield their text once
            key = (getattr(side.rows, "_fingerprint", None) or id(side.rows), side.column)
            if key in seen or "links" in side.reading:
                continue
            seen.add(key)
            given = 0
            for number, row in enumerate(plain_rows(side.rows)):
                text = get_column(row, side.column)
                if text and (below == 0 or row_key(row_identity(row, number, side.identity)) >= below):
                    yield text
                    given += 1
                    if given == max_texts:
                        logger.info("%s: only the first %d texts are used", source.name, given)
                        break


def plain_rows(rows: Dataset | IterableDataset) -> Iterator[dict[str, Any]]:
    """Yields all rows in their order, in every process.

    `IterableDataset.__iter__` would give each data-loading process a part of the rows; `iter` in batches gives all.
    """
    for batch in rows.iter(batch_size=ROWS_AT_ONCE):
        columns = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def row_identity(row: dict[str, Any], number: int, column: str | None) -> Any:
    """Returns the identity of a row: the value of the identity column, or the row's number."""
    value = None if column is None else get_column(row, column)
    return number if value is None else value


def arrow_column(rows: Dataset, column: str) -> pa.ChunkedArray:
    """Returns a column without conversion to Python; dotted paths name fields of structs."""
    name = column if column in rows.column_names else column.partition(".")[0]
    values = rows.select_columns([name]).with_format("arrow")[:].column(0)
    inner = column.removeprefix(name).removeprefix(".")
    return pc.struct_field(values, inner.split(".")) if inner else values


def _load(table: Table, name: str, size: int | None, hub_root: str | None) -> Dataset | IterableDataset:
    if table.streaming and (size is None or size < 1):
        raise ValueError(
            f"Corpus {name} is streamed ({describe(table)}), and its `size` is {size}. Set it, in the unit of the "
            "other corpora: the rows of a stream cannot be counted."
        )
    return load_table(table, hub_root)


def _text_column(rows: Dataset | IterableDataset, column: str, name: str, joins: list[str]) -> TextColumn:
    where = f"The table of corpus {name}"
    feature = require_column(rows, column, where)
    dtype = getattr(feature, "dtype", None)
    if feature is not None and dtype not in ("string", "large_string", "null"):
        raise ValueError(
            f"{where} has {dtype or type(feature).__name__} in column {column}, not text. Name a column of text."
        )
    # a table has one identity in the whole recipe, so that every corpus that reads it holds out the same rows
    identities = [candidate for candidate in [*joins, "id"] if candidate in columns_of(rows)]
    return TextColumn(rows, column, identities[0] if identities else None)


def _open_monolingual(corpus: Monolingual, name: str, joins: list[str], hub_root: str | None) -> Source:
    rows = _load(corpus, name, corpus.size, hub_root)
    side = _text_column(rows, corpus.text_column, name, joins)
    if corpus.document_column is not None:
        require_column(rows, corpus.document_column, f"The table of corpus {name}")
    side.document, side.document_pattern = corpus.document_column, corpus.document_pattern
    table = Table(**{item.name: getattr(corpus, item.name) for item in fields(Table)})
    size = (corpus.size, corpus.size_source)
    return Source(name, (corpus.language,), [side], [table], *size, hub_root, corpus=corpus)


def _open_linked(corpus: LinkedPairs, name: str, joins: list[str], hub_root: str | None) -> Source:
    rows = _load(corpus, name, corpus.size, hub_root)
    columns = [
        replace(_text_column(rows, column, name, joins), reading=reading)
        for column, reading in (
            (corpus.source_column, "words"),
            (corpus.target_column, "words"),
            (corpus.source_column, "word numbers"),
            (corpus.target_column, "word numbers"),
            (corpus.links_column or corpus.source_column, "links" if corpus.links_column else "no links"),
        )
    ]
    table, size = Table(**{item.name: getattr(corpus, item.name) for item in fields(Table)}), corpus.size
    return Source(name, languages_of(corpus), columns, [table], size, corpus.size_source, hub_root, corpus=corpus)


def _open_bitext(corpus: Bitext, name: str, joins: list[str], hub_root: str | None) -> Source:
    languages = (corpus.source_language, corpus.target_language)
    if languages[0] == languages[1]:
        raise ValueError(f"Bitext {name} has the same language on both sides. Correct its target_language.")
    if (corpus.source is None) != (corpus.target is None) or (corpus.table is None) == (corpus.source is None):
        raise ValueError(f"Bitext {name}: set `table`, or both `source` and `target`.")
    tables = [corpus.table] if corpus.table is not None else [corpus.source, corpus.target]
    if tables[0].streaming != tables[-1].streaming:
        raise ValueError(f"Bitext {name}: set `streaming` to the same value in `source` and `target`.")
    if corpus.join_on is not None and (len(tables) == 1 or tables[0].streaming):
        why = "its one table already has pairs" if len(tables) == 1 else "streams can only be aligned line by line"
        raise ValueError(f"Bitext {name} sets join_on: {corpus.join_on}, but {why}. Leave it out.")
    loaded = [_load(table, name, corpus.size, hub_root) for table in tables]
    entry = corpus
    if corpus.separator is not None:
        loaded, corpus = _split_sides(loaded, corpus, name)
    datasets = loaded * 2 if len(loaded) == 1 else loaded
    columns = [
        wanted or _default_column(rows, language, single=len(loaded) == 1)
        for wanted, rows, language in zip(
            (corpus.source_column, corpus.target_column), datasets, languages, strict=True
        )
    ]
    if len(loaded) == 1 and columns[0] == columns[1]:
        raise ValueError(f"Bitext {name} reads both sides from column {columns[0]}. Set `target_column`.")
    sides = [_text_column(rows, column, name, joins) for rows, column in zip(datasets, columns, strict=True)]
    source = Source(name, languages, sides, tables, corpus.size, corpus.size_source, hub_root, corpus=entry)
    if len(loaded) == 2 and source.streaming:
        source.sides = _zip_streams(source)
    elif corpus.join_on is not None:
        _join(source, corpus.join_on)
    elif len(loaded) == 2 and len(loaded[0]) != len(loaded[1]):
        raise ValueError(_unequal(name, len(loaded[0]), len(loaded[1])))
    return source


def _split_sides(
    loaded: list[Dataset | IterableDataset], corpus: Bitext, name: str
) -> tuple[list[Dataset | IterableDataset], Bitext]:
    """Splits the column that contains both sides. Returns the table with two columns, and a corpus that names them."""
    separator, column = corpus.separator, corpus.source_column or "text"
    if len(loaded) == 2 or corpus.target_column is not None or not separator.strip():
        raise ValueError(
            f"Bitext {name} sets separator: {separator!r}, which is for one column of `table` with both sides. Name "
            "only that column, in source_column, or leave separator out."
        )
    where = f"The table of corpus {name}"
    require_column(loaded[0], column, where)

    def split(row: dict[str, Any], number: int) -> dict[str, str]:
        sides = split_pair(get_column(row, column) or "", separator)
        if len(sides) != 2:
            found = len(sides) - 1
            raise ValueError(
                f"{where}, row {number + 1}: {separator!r} occurs {found} times in column {column}. It must occur "
                "once, between spaces."
            )
        return dict(zip(SIDES, sides, strict=True))

    rows = loaded[0].map(split, with_indices=True)
    return [rows], replace(corpus, separator=None, source_column=SIDES[0], target_column=SIDES[1])


def _default_column(rows: Dataset | IterableDataset, language: str, single: bool) -> str:
    """Returns the column named by the language code, or `text` if a side has its own table."""
    return "text" if not single and language not in columns_of(rows) else language


def _unequal(name: str, source_rows: int, target_rows: int) -> str:
    return (
        f"Bitext {name} is aligned line by line, but its sides have {source_rows} and {target_rows} rows. Fix the "
        "tables, or set join_on if they share an id."
    )


def _join(source: Source, column: str) -> None:
    """Joins the two sides on `column` (inner join), in the order of the first side; sets the source's alignment."""
    ids = []
    for side, language in zip(source.sides, source.languages, strict=True):
        require_column(side.rows, column, f"The table of {language} in bitext {source.name}")
        values = pc.cast(arrow_column(side.rows, column), pa.large_string())
        counted = pc.value_counts(values.drop_null())
        repeated = counted.filter(pc.greater(counted.field("counts"), 1)).field("values")
        if len(repeated):
            shown = ", ".join(repeated[:SHOWN_IDS].to_pylist())
            raise ValueError(
                f"Bitext {source.name}: {len(repeated)} ids occur more than once in column {column} of {language} "
                f"({shown}). Make them unique, or align the tables line by line without join_on."
            )
        ids.append(values)
    found = pc.index_in(ids[0], value_set=ids[1].combine_chunks(), skip_nulls=True)
    matched = np.flatnonzero(pc.is_valid(found).to_numpy())
    if len(matched) == 0:
        first = [values.drop_null()[:3].to_pylist() for values in ids]
        raise ValueError(
            f"Bitext {source.name}: no id of column {column} occurs in both tables; they begin with {first[0]} and "
            f"{first[1]}. Correct join_on or the tables."
        )
    source.alignment = np.stack([matched, found.drop_null().to_numpy().astype(np.int64)])
    for language, values in zip(source.languages, ids, strict=True):
        source.counts[f"unmatched_{language}"] = len(values) - len(matched)


def _zip_streams(source: Source) -> list[TextColumn]:
    """Makes two streams the two columns of one, read line by line."""
    # the sides in a tuple: `datasets` would treat a list as shards
    rows = IterableDataset.from_generator(_zipped, gen_kwargs={"name": source.name, "sides": tuple(source.sides)})
    return [TextColumn(rows, column, f"{column}_id") for column in SIDES]


def _zipped(name: str, sides: tuple[TextColumn, TextColumn]) -> Iterator[dict[str, Any]]:
    iterators = [plain_rows(side.rows) for side in sides]
    number = 0
    while True:
        rows = [next(iterator, None) for iterator in iterators]
        if None in rows:
            lengths = [
                number + (row is not None) + sum(1 for _ in iterator)
                for row, iterator in zip(rows, iterators, strict=True)
            ]
            if lengths[0] != lengths[1]:
                raise ValueError(_unequal(name, *lengths))
            return
        pair = {}
        for which, row, side in zip(SIDES, rows, sides, strict=True):
            pair[which] = get_column(row, side.column)
            pair[f"{which}_id"] = str(row_identity(row, number, side.identity))
        yield pair
        number += 1


OPENERS = {"monolingual": _open_monolingual, "bitext": _open_bitext, "linked": _open_linked}


def match_corpora(patterns: list[str], names: list[str], where: str) -> list[str]:
    """Returns the names that any of the glob patterns selects (`is_selected`), in their order.

    Raises ValueError for a pattern that matches none, with the nearest names.
    """
    for pattern in patterns:
        if not any(is_selected(name, [pattern]) for name in names):
            raise ValueError(f"{where}: the pattern {pattern!r} matches no corpus. {nearest(pattern, names)}")
    return [name for name in names if is_selected(name, patterns)]
