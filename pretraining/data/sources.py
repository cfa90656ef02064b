"""From the corpora of a recipe to rows of text: columns, translation pairs, and held-out rows.

The identity of a row decides whether it is held out. It is the column that the recipe joins on, else `id`, else the
row's number. So a verse is held out in every corpus that has it.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

from crosslingual_zoo.pretraining.recipe_corpora import Bitext, Corpora, LinkedPairs, Monolingual, SideOfPairs
from crosslingual_zoo.zoo_core.tables import (
    Rows,
    Table,
    columns_of,
    describe,
    get_column,
    load_table,
    require_column,
    resolve_hub_path,
    table_fingerprint,
)

KEY_BITS = 63  # of a row's hash: fits Arrow's and numpy's int64
SPLIT_COLUMNS = ("source", "target")  # of pairs that are split here


@dataclass
class TextColumn:
    """One column of text, with the columns that identify its rows and their documents."""

    table: Table  # it and the rows are None in a process that tokenizes
    rows: Rows
    column: str
    identity: str | None  # None: the row's number
    reading: str = "text"  # how values become integers: a key of `readings.READINGS`
    document: str | None = None
    document_pattern: str | None = None  # matches the part of the document column's value that names the document


@dataclass
class Source:
    """A corpus of the recipe before tokenization: one text column, or two that are translations of each other. Linked
    pairs have three more columns: the word of each token of either side, and the links.

    `identities` are columns that identify rows, in every table that has them. `alignment` is (2, M): rows of the two
    sides that belong together, or None if row i belongs to row i. `counts` are the numbers of rows that a join has
    lost. `tables` are those that are open already, which corpora share.
    """

    name: str
    corpus: Monolingual | Bitext | LinkedPairs | SideOfPairs
    hub_root: str | None
    identities: list[str]
    sides: list[TextColumn] = field(default_factory=list)
    alignment: np.ndarray | None = None
    counts: dict[str, int] = field(default_factory=dict)
    tables: dict[str, Rows] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Returns name, languages, and the tables with their fingerprints."""
        tables = []
        for side in self.sides:
            table = {name: value for name, value in asdict(side.table).items() if value is not None}
            table["fingerprint"] = self._fingerprint(side.table, side.rows)
            if table not in tables:
                tables.append(table)
        return {"name": self.name, "languages": list(self.corpus.codes), "tables": tables}

    def add(self, table: Table, rows: Rows, column: str, reading: str = "text") -> TextColumn:
        """Adds a column of text to the sides, and returns it."""
        _require_text(rows, column, f"The table of corpus {self.name}")
        columns = columns_of(rows)
        identity = next((name for name in self.identities if name in columns), None)
        side = TextColumn(table, rows, column, identity, reading)
        self.sides.append(side)
        return side

    def read(self, table: Table, texts: Sequence[str], document: str | None = None) -> Rows:
        """Loads a table; of a stream, columns of its first rows as text, from the copy on disk if there is one.

        `texts` are columns that may hold the text, `document` is one that names the documents.
        """
        max_rows = self.corpus.max_rows
        if not table.streaming:
            name = repr(table)
            if name not in self.tables:
                self.tables[name] = load_table(table, self.hub_root)
            rows = self.tables[name]
            return rows.select(range(min(max_rows, len(rows)))) if max_rows else rows
        if not max_rows:
            raise ValueError(f"Corpus {self.name} is streamed ({describe(table)}), but has no max_rows. Set it.")
        columns = [*texts, *self.identities]
        if document:
            columns.append(document)
        features = Features(dict.fromkeys(columns, Value("string")))
        arguments = {
            "table": table,
            "texts": tuple(texts),
            "columns": tuple(features),
            "max_rows": max_rows,
            "hub_root": self.hub_root,
            # what is read again if it has changed; of a dataset of the Hub, only its revision is compared
            "fingerprint": self._fingerprint(table),
        }
        try:
            rows = Dataset.from_generator(_first_rows, features, gen_kwargs=arguments)
        except DatasetGenerationError as error:
            raise ValueError(f"Corpus {self.name} cannot be read: {error.__cause__ or error}") from error
        return rows.select_columns([name for name in features if rows.data.column(name).null_count < len(rows)])

    def _fingerprint(self, table: Table, rows: Rows = None) -> str:
        if not table.streaming:
            return table_fingerprint(table, self.hub_root, rows)
        path = resolve_hub_path(table.path, self.hub_root)
        content = f"{path}, {table.revision or 'main'}"  # the copy on disk is used without a connection to the Hub
        if Path(path).exists():
            content = table_fingerprint(table, self.hub_root, rows)
        return f"first {self.corpus.max_rows} rows of {content}"


def row_key(identity: Any) -> int:
    """Returns a row's stable hash in [0, 2**63), from its id or its number; the same on every machine."""
    return int.from_bytes(hashlib.blake2b(str(identity).encode(), digest_size=8).digest()) >> (64 - KEY_BITS)


def held_out_below(fraction: float) -> int:
    """Returns the bound below which a row's key is held out."""
    return int(fraction * 2**KEY_BITS)


def open_sources(corpora: Corpora, hub_root: str | None = None) -> list[Source]:
    """Opens the corpora of a recipe. The first `max_rows` rows of a stream are read once, into the cache of `datasets`.

    Raises ValueError for a column that is missing or is not text, a pair of one language or without two sides, a stream
    without `max_rows`, sides of unequal length, and a join with repeated ids or without a common id.
    """
    identities = []
    for corpus in corpora.values():
        if isinstance(corpus, Bitext) and corpus.join_on is not None and corpus.join_on not in identities:
            identities.append(corpus.join_on)
    if "id" not in identities:
        identities.append("id")
    tables: dict[str, Rows] = {}
    sources = [Source(name, corpus, hub_root, identities, tables=tables) for name, corpus in corpora.items()]
    for source in sources:
        OPENERS[type(source.corpus)](source, source.corpus)
    return sources


def training_texts(sources: list[Source], held_out_fraction: float) -> Iterator[str]:
    """Yields the texts of all sources that are not held out, each column once."""
    below = held_out_below(held_out_fraction)
    # bitext often has the same tables as monolingual corpora
    columns: dict[tuple[str, str], TextColumn] = {}
    for source in sources:
        for side in source.sides[:2]:
            columns.setdefault((repr(side.table), side.column), side)
    for side in columns.values():
        for number, row in enumerate(side.rows):
            identity = get_column(row, side.identity) if side.identity else None
            text = get_column(row, side.column)
            if text and row_key(number if identity is None else identity) >= below:
                yield text


def _first_rows(
    table: Table, texts: Sequence[str], columns: Sequence[str], max_rows: int, hub_root: str | None, fingerprint: str
) -> Iterator[dict[str, str | None]]:
    """Yields the first rows of a stream: the values of `columns` as text, null where there are none.

    `fingerprint` is not read: it is a part of the key of the copy on disk, as all arguments are.
    """
    rows = load_table(table, hub_root)
    columns_of_rows = columns_of(rows)
    for column in [column for column in texts if column in columns_of_rows] or texts[:1]:
        _require_text(rows, column, describe(table))
    for row in islice(rows, max_rows):
        values: dict[str, str | None] = {}
        for column in columns:
            value = get_column(row, column) if column in columns_of_rows else None
            values[column] = value if value is None else str(value)
        yield values


def _require_text(rows: Any, column: str, where: str) -> None:
    feature = require_column(rows, column, where)
    dtype = getattr(feature, "dtype", type(feature).__name__)
    if dtype not in ("string", "large_string", "null"):
        raise ValueError(f"{where} has {dtype} in column {column}, not text. Name a column of text.")


def _table_of(corpus: Monolingual | LinkedPairs) -> Table:
    return Table(**{item.name: getattr(corpus, item.name) for item in fields(Table)})


def _open_monolingual(source: Source, corpus: Monolingual) -> None:
    table = _table_of(corpus)
    rows = source.read(table, [corpus.text_column], corpus.document_column)
    side = source.add(table, rows, corpus.text_column)
    if corpus.document_column is not None:
        require_column(rows, corpus.document_column, f"The table of corpus {source.name}")
    side.document = corpus.document_column
    side.document_pattern = corpus.document_pattern


def _open_linked(source: Source, corpus: LinkedPairs) -> None:
    table = _table_of(corpus)
    texts = [corpus.source_column, corpus.target_column]
    rows = source.read(table, [*texts, corpus.links_column] if corpus.links_column else texts)
    for reading in ("words", "word numbers"):
        for column in texts:
            source.add(table, rows, column, reading)
    if corpus.links_column:
        source.add(table, rows, corpus.links_column, "links")
    else:
        source.add(table, rows, corpus.source_column, "no links")


def _open_bitext(source: Source, corpus: Bitext) -> None:
    where = f"Bitext {source.name}"
    _check_bitext(corpus, where)
    if corpus.table is not None:
        _open_shared_table(source, corpus, corpus.table, where)
    elif corpus.source is not None and corpus.target is not None:  # has been checked
        _open_two_tables(source, corpus, corpus.source, corpus.target, where)


def _check_bitext(corpus: Bitext, where: str) -> None:
    if corpus.source_language == corpus.target_language:
        raise ValueError(f"{where} has the same language on both sides. Correct its target_language.")
    has_one_side = (corpus.source is None) != (corpus.target is None)
    if has_one_side or (corpus.table is None) == (corpus.source is None):
        raise ValueError(f"{where}: set `table`, or both `source` and `target`.")
    if corpus.join_on is not None and corpus.source is None:
        raise ValueError(f"{where} sets join_on, which is only for a `source`. Leave it out.")
    if corpus.separator is not None and corpus.table is None:
        raise ValueError(f"{where} sets separator, which is only for a `table`. Leave it out.")


def _open_shared_table(source: Source, corpus: Bitext, table: Table, where: str) -> None:
    """Opens one table with both sides, in two columns or in one."""
    if corpus.separator is not None:
        column = corpus.source_column or "text"
        columns = list(SPLIT_COLUMNS)
        rows = _split_sides(source.read(table, [column]), column, corpus.separator, corpus, where)
    else:
        columns = [corpus.source_column or corpus.source_language, corpus.target_column or corpus.target_language]
        rows = source.read(table, columns)
    if columns[0] == columns[1]:
        raise ValueError(f"{where} reads both sides from column {columns[0]}. Set `target_column`.")
    for column in columns:
        source.add(table, rows, column)


def _open_two_tables(source: Source, corpus: Bitext, source_table: Table, target_table: Table, where: str) -> None:
    """Opens a table for each side."""
    _add_side(source, source_table, corpus.source_column, corpus.source_language)
    _add_side(source, target_table, corpus.target_column, corpus.target_language)
    source_rows, target_rows = [len(side.rows) for side in source.sides]
    if corpus.join_on is not None:
        _join(source, corpus.join_on)
    elif source_rows != target_rows:
        sides = f"{source_rows:,} rows ({describe(source_table)}) and {target_rows:,} ({describe(target_table)})"
        raise ValueError(f"{where}: the sides have {sides}. Make them equal, or set join_on.")


def _add_side(source: Source, table: Table, column: str | None, language: str) -> None:
    """Adds a side, whose `column` is by default that of its language, or `text`."""
    rows = source.read(table, [column] if column else [language, "text"])
    if column is None:
        column = language if language in columns_of(rows) else "text"
    source.add(table, rows, column)


def _open_side(source: Source, corpus: SideOfPairs) -> None:
    # pyrefly: ignore[bad-argument-type]  # `sides_of_pairs` sets the name
    pairs = Source(corpus.name, corpus.pairs, source.hub_root, source.identities, tables=source.tables)
    _open_bitext(pairs, corpus.pairs)
    source.sides = [pairs.sides[corpus.side]]


OPENERS: dict[type, Callable[[Source, Any], None]] = {
    Monolingual: _open_monolingual,
    Bitext: _open_bitext,
    LinkedPairs: _open_linked,
    SideOfPairs: _open_side,
}


def _split_sides(rows: Rows, column: str, separator: str, corpus: Bitext, where: str) -> Rows:
    """Splits the column that contains both sides into two."""
    if corpus.target_column is not None or not separator.strip():
        raise ValueError(f"{where} has separator {separator!r}. Name the column of both sides in source_column.")
    between = re.compile(rf"(?<!\S){re.escape(separator)}(?!\S)")
    require_column(rows, column, where)

    def split(row: dict[str, Any], number: int) -> dict[str, str]:
        text = get_column(row, column) or ""
        sides = ["", ""]
        if text.strip():
            sides = [side.strip() for side in between.split(text)]
        if len(sides) != 2:
            raise ValueError(f"{where}, row {number + 1}: {separator!r} does not occur once in {column}.")
        return dict(zip(SPLIT_COLUMNS, sides, strict=True))

    return rows.map(split, with_indices=True)


def _join(source: Source, column: str) -> None:
    """Joins the two sides on `column` (inner join), in the order of the first side; sets the source's alignment."""
    where = f"Bitext {source.name}"
    source_ids, target_ids = [
        _ids_of(side, column, language, where) for side, language in zip(source.sides, source.corpus.codes, strict=True)
    ]
    # pyrefly: ignore[missing-attribute]  # made at import
    target_rows = pc.index_in(source_ids, value_set=target_ids.combine_chunks(), skip_nulls=True)
    source_rows = np.flatnonzero(target_rows.is_valid().to_numpy())
    if len(source_rows) == 0:
        first_ids = [ids.drop_null()[:3].to_pylist() for ids in (source_ids, target_ids)]
        raise ValueError(f"{where}: no {column} is in both tables, which begin with {first_ids}.")
    source.alignment = np.stack([source_rows.astype(np.int32), target_rows.drop_null().to_numpy()])
    for language, ids in zip(source.corpus.codes, (source_ids, target_ids), strict=True):
        source.counts[f"unmatched_{language}"] = len(ids) - len(source_rows)


def _ids_of(side: TextColumn, column: str, language: str, where: str) -> pa.ChunkedArray:
    """Returns the ids of a side's rows as text. Raises ValueError if one is repeated."""
    require_column(side.rows, column, f"The table of {language} in {where}")
    name = column if column in side.rows.column_names else column.partition(".")[0]
    values = side.rows.select_columns([name]).flatten().with_format("arrow")[:]
    ids = pc.cast(values[column], pa.large_string())
    counted = ids.drop_null().value_counts()
    is_repeated = pc.greater(counted.field("counts"), 1)  # pyrefly: ignore[missing-attribute]  # made at import
    repeated = counted.filter(is_repeated).field("values")
    if len(repeated):
        raise ValueError(f"{where}: an id of {language} is repeated in {column} ({repeated[0]}).")
    return ids
