"""From the corpora of a recipe to rows of text: columns, translation pairs, and held-out rows.

The identity of a row decides whether it is held out. It is the column that the recipe joins on, else `id`, else the
row's number. So a verse is held out in every corpus that has it.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

from crosslingual_zoo.pretraining.recipe import Bitext, Corpora, LinkedPairs, Monolingual, SideOfPairs
from crosslingual_zoo.zoo_core.tables import (
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

    table: Table | None
    rows: Dataset | None
    column: str
    identity: str | None  # None: the row's number
    reading: str = "text"  # how values become integers: a key of `pretraining.data.tokenized.READINGS`
    document: str | None = None
    document_pattern: str | None = None  # matches the part of the document column's value that names the document


@dataclass
class Source:
    """A corpus of the recipe before tokenization: one text column, or two that are translations of each other. Linked
    pairs have three more columns: the word of each token of either side, and the links.

    `identities` are columns that identify rows, in every table that has them. `alignment` is (2, M): rows of the two
    sides that belong together, or None if row i belongs to row i. `counts` are the numbers of rows that a join has
    lost.
    """

    name: str
    corpus: Monolingual | Bitext | LinkedPairs | SideOfPairs
    hub_root: str | None
    identities: list[str]
    sides: list[TextColumn] = field(default_factory=list)
    alignment: np.ndarray | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Returns name, languages, and the tables with their fingerprints."""
        tables = []
        for side in self.sides:
            known = {name: value for name, value in asdict(side.table).items() if value is not None}
            known["fingerprint"] = self._fingerprint(side.table, side.rows)
            tables += [known] * (known not in tables)
        return {"name": self.name, "languages": list(self.corpus.codes), "tables": tables}

    def add(self, table: Table, rows: Dataset, column: str, reading: str = "text") -> TextColumn:
        """Adds a column of text to the sides, and returns it."""
        _require_text(rows, column, f"The table of corpus {self.name}")
        identity = next((known for known in self.identities if known in columns_of(rows)), None)
        self.sides.append(TextColumn(table, rows, column, identity, reading))
        return self.sides[-1]

    def read(self, table: Table, *texts: str, document: str | None = None) -> Dataset:
        """Loads a table; of a stream, columns of its first rows as text, from the copy on disk if there is one."""
        max_rows = self.corpus.max_rows
        if not table.streaming:
            rows = load_table(table, self.hub_root)
            return rows.select(range(min(max_rows, len(rows)))) if max_rows else rows
        if not max_rows:
            raise ValueError(f"Corpus {self.name} is streamed ({describe(table)}), but has no max_rows. Set it.")
        columns = tuple(dict.fromkeys([*texts, *self.identities, *([document] if document else [])]))
        # what is read again if it has changed; of a dataset of the Hub, only its revision is compared
        arguments = {"table": table, "texts": texts, "columns": columns, "max_rows": max_rows}
        arguments |= {"hub_root": self.hub_root, "identity": self._fingerprint(table)}
        features = Features(dict.fromkeys(columns, Value("string")))
        try:
            rows = Dataset.from_generator(_first_rows, features, gen_kwargs=arguments)
        except DatasetGenerationError as error:
            raise ValueError(f"Corpus {self.name} cannot be read: {error.__cause__ or error}") from error
        return rows.select_columns([column for column in columns if rows.data.column(column).null_count < len(rows)])

    def _fingerprint(self, table: Table, rows: Dataset | None = None) -> str:
        if not table.streaming:
            return table_fingerprint(table, self.hub_root, rows)
        path = resolve_hub_path(table.path, self.hub_root)
        is_local = Path(path).exists()  # else the copy on disk is used without a connection to the Hub
        found = table_fingerprint(table, self.hub_root, rows) if is_local else f"{path}, {table.revision or 'main'}"
        return f"first {self.corpus.max_rows} rows of {found}"


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
    joined = [getattr(corpus, "join_on", None) for corpus in corpora.values()]
    identities = list(dict.fromkeys([*filter(None, joined), "id"]))
    sources = [Source(name, corpus, hub_root, identities) for name, corpus in corpora.items()]
    for source in sources:
        OPENERS[type(source.corpus)](source, source.corpus)
    return sources


def training_texts(sources: list[Source], held_out_fraction: float) -> Iterator[str]:
    """Yields the texts of all sources that are not held out, each column once."""
    below = held_out_below(held_out_fraction)

    def texts(side: TextColumn) -> Iterator[str]:
        for number, row in enumerate(side.rows):
            identity = side.identity and get_column(row, side.identity)
            text = get_column(row, side.column)
            if text and (not below or row_key(number if identity is None else identity) >= below):
                yield text

    # bitext often has the same tables as monolingual corpora
    columns: dict[tuple[str, str], TextColumn] = {}
    for side in (side for source in sources for side in source.sides[:2]):
        columns.setdefault((repr(side.table), side.column), side)
    for side in columns.values():
        yield from texts(side)


def _first_rows(
    table: Table, texts: Sequence[str], columns: Sequence[str], max_rows: int, hub_root: str | None, identity: str
) -> Iterator[dict[str, str | None]]:
    """Yields the first rows of a stream: the values of `columns` as text, null where there are none."""
    rows = load_table(table, hub_root)
    known = columns_of(rows)
    for column in [column for column in texts if column in known] or texts[:1]:
        _require_text(rows, column, describe(table))
    for row in islice(rows, max_rows):
        values = {column: get_column(row, column) if column in known else None for column in columns}
        yield {column: value if value is None else str(value) for column, value in values.items()}


def _require_text(rows: Any, column: str, where: str) -> None:
    feature = require_column(rows, column, where)
    dtype = getattr(feature, "dtype", type(feature).__name__)
    if dtype not in ("string", "large_string", "null"):
        raise ValueError(f"{where} has {dtype} in column {column}, not text. Name a column of text.")


def _own_table(corpus: Monolingual | LinkedPairs) -> Table:
    return Table(**{item.name: getattr(corpus, item.name) for item in fields(Table)})


def _open_monolingual(source: Source, corpus: Monolingual) -> None:
    table, document = _own_table(corpus), corpus.document_column
    rows = source.read(table, corpus.text_column, document=document)
    side = source.add(table, rows, corpus.text_column)
    if document is not None:
        require_column(rows, document, f"The table of corpus {source.name}")
    side.document, side.document_pattern = document, corpus.document_pattern


def _open_linked(source: Source, corpus: LinkedPairs) -> None:
    table, texts = _own_table(corpus), (corpus.source_column, corpus.target_column)
    rows = source.read(table, *texts, *([corpus.links_column] if corpus.links_column else []))
    for column, reading in ((column, reading) for reading in ("words", "word numbers") for column in texts):
        source.add(table, rows, column, reading)
    source.add(table, rows, corpus.links_column or texts[0], "links" if corpus.links_column else "no links")


def _open_bitext(source: Source, corpus: Bitext) -> None:
    name, given = f"Bitext {source.name}", (corpus.source_column, corpus.target_column)
    if corpus.source_language == corpus.target_language:
        raise ValueError(f"{name} has the same language on both sides. Correct its target_language.")
    if (corpus.source is None) != (corpus.target is None) or (corpus.table is None) == (corpus.source is None):
        raise ValueError(f"{name}: set `table`, or both `source` and `target`.")
    for option, needed in (("join_on", "source"), ("separator", "table")):
        if getattr(corpus, option) is not None and getattr(corpus, needed) is None:
            raise ValueError(f"{name} sets {option}, which is only for a `{needed}`. Leave it out.")
    if corpus.separator is not None:
        column = corpus.source_column or "text"
        rows, columns = _split_sides(source.read(corpus.table, column), column, corpus, name), SPLIT_COLUMNS
    elif corpus.table is not None:
        columns = [column or language for column, language in zip(given, corpus.codes, strict=True)]
        rows = source.read(corpus.table, *columns)
    if corpus.table is not None:
        if columns[0] == columns[1]:
            raise ValueError(f"{name} reads both sides from column {columns[0]}. Set `target_column`.")
        for column in columns:
            source.add(corpus.table, rows, column)
        return
    for table, column, language in zip((corpus.source, corpus.target), given, corpus.codes, strict=True):
        rows = source.read(table, *([column] if column else [language, "text"]))
        source.add(table, rows, column or (language if language in columns_of(rows) else "text"))
    lengths = [len(side.rows) for side in source.sides]
    if corpus.join_on is not None:
        _join(source, corpus.join_on)
    elif lengths[0] != lengths[1]:
        raise ValueError(f"{name}: the sides have {lengths} rows. Make them equal, or set join_on.")


def _open_side(source: Source, corpus: SideOfPairs) -> None:
    pairs = Source(corpus.name, corpus.pairs, source.hub_root, source.identities)
    _open_bitext(pairs, corpus.pairs)
    source.sides = [pairs.sides[corpus.side]]


OPENERS = {
    Monolingual: _open_monolingual,
    Bitext: _open_bitext,
    LinkedPairs: _open_linked,
    SideOfPairs: _open_side,
}


def _split_sides(rows: Dataset, column: str, corpus: Bitext, where: str) -> Dataset:
    """Splits the column that contains both sides into two."""
    separator = corpus.separator
    if corpus.target_column is not None or not separator.strip():
        raise ValueError(f"{where} has separator {separator!r}. Name the column of both sides in source_column.")
    between = re.compile(rf"(?<!\S){re.escape(separator)}(?!\S)")
    require_column(rows, column, where)

    def split(row: dict[str, Any], number: int) -> dict[str, str]:
        text = get_column(row, column) or ""
        sides = [side.strip() for side in between.split(text)] if text.strip() else ["", ""]
        if len(sides) != 2:
            raise ValueError(f"{where}, row {number + 1}: {separator!r} does not occur once in {column}.")
        return dict(zip(SPLIT_COLUMNS, sides, strict=True))

    return rows.map(split, with_indices=True)


def _join(source: Source, column: str) -> None:
    """Joins the two sides on `column` (inner join), in the order of the first side; sets the source's alignment."""
    ids, where = [], f"Bitext {source.name}"
    for side, language in zip(source.sides, source.corpus.codes, strict=True):
        require_column(side.rows, column, f"The table of {language} in bitext {source.name}")
        name = column if column in side.rows.column_names else column.partition(".")[0]
        values = side.rows.select_columns([name]).flatten().with_format("arrow")[:]
        ids.append(pc.cast(values[column], pa.large_string()))
        counted = pc.value_counts(ids[-1].drop_null())
        repeated = counted.filter(pc.greater(counted.field("counts"), 1)).field("values")
        if len(repeated):
            raise ValueError(f"{where}: an id of {language} is repeated in {column} ({repeated[0]}).")
    found = pc.index_in(ids[0], value_set=ids[1].combine_chunks(), skip_nulls=True)
    matched = np.flatnonzero(pc.is_valid(found).to_numpy())
    if len(matched) == 0:
        first = [values.drop_null()[:3].to_pylist() for values in ids]
        raise ValueError(f"{where}: no {column} is in both tables, which begin with {first}.")
    source.alignment = np.stack([matched.astype(np.int32), found.drop_null().to_numpy()])
    for language, values in zip(source.corpus.codes, ids, strict=True):
        source.counts[f"unmatched_{language}"] = len(values) - len(matched)
