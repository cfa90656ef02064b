"""Which shards the corpora of a recipe need: bounds that follow from the text alone, and what is there already."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretraining.data.prepared import FORMAT, as_npy, entry_of, identities_of
from pretraining.data.shard_workers import IDENTITY, TEXT, Job
from pretraining.data.shards import ALIGNMENTS, SHARDS, Shard, damage, write_file
from pretraining.data.sources import Source, TextColumn, arrow_column, plain_rows, row_identity
from pretraining.data.streams import no_text
from pretraining.data.tokenized import TEXTS_CHECKED, sample_texts
from pretraining.recipe import Bitext, Recipe
from zoo_core.tables import get_column

BYTES_A_ROW = 16  # of a shard, beside its text: hash and offset


@dataclass
class Plan:
    """The columns that a recipe needs: `tables` are read by whoever writes their shards, `streams` here."""

    recipe: Recipe
    sources: list[Source]
    keys: list[list[str]]  # of each source, one a side
    tables: dict[str, TextColumn]
    folders: dict[str, str]  # of each column, within the prepared one
    known: dict[str, dict[tuple[int, int], Shard]]  # by column, by (first row, rows)
    whole: dict[str, int]  # rows of columns of streams that were read to their end, or as far as is asked now
    folder: Path
    max_rows: int | None
    shard_bytes: int

    @property
    def names(self) -> list[str]:
        """The corpora of the recipe."""
        return [source.name for source in self.sources]

    @property
    def rows(self) -> int | None:
        """How many rows there are to write, where no stream has to be read to know it."""
        if any(source.streaming for source in self.sources):
            return None
        return sum(len(column.rows) for column in self.tables.values())

    def samples(self) -> Iterator[list[str | None]]:
        """Some texts of every column; of streams from their start."""
        yield from map(sample_texts, self.tables.values())
        for source in self.sources:
            if source.streaming:
                rows = list(plain_rows(source.sides[0].rows.take(TEXTS_CHECKED)))
                yield from ([get_column(row, side.column) for row in rows] for side in source.sides)

    def jobs(self) -> Iterator[Job]:
        """The shards, those of tables first; streams are read as their jobs are asked for."""
        for key, column in self.tables.items():
            bounds = bounds_of(column, self.shard_bytes)
            for first, stop in zip(bounds, bounds[1:], strict=False):
                yield self._job(key, first, stop - first)
        for source, keys in zip(self.sources, self.keys, strict=True):
            if source.streaming:
                yield from self._stream(source, keys)

    def _job(self, key: str, first: int, rows: int, given: dict[str, list] | None = None) -> Job:
        file = f"{self.folders[key]}/{first:012d}-{first + rows:012d}.arrow"
        return Job(key, file, first, rows, self.known.get(key, {}).get((first, rows)), given)

    def _stream(self, source: Source, keys: list[str]) -> Iterator[Job]:
        """The jobs of a stream: its sides are cut at the same rows. What is there and whole is not read again."""
        kept = self._kept(keys)
        done = sum(rows for _, rows in kept)
        is_whole = all(self.whole.get(key) == done for key in keys)
        if kept and not is_whole:
            done -= kept.pop()[1]  # it may have ended where rows were limited then, and not because it was full
        for first, rows in kept:
            yield from (replace(self._job(key, first, rows), checked=True) for key in keys)
        if is_whole:
            return
        rows = source.sides[0].rows
        texts: list[list] = [[] for _ in keys]
        identities: list[list] = [[] for _ in keys]
        first, filled = done, 0

        def cut() -> Iterator[Job]:
            for key, side, of in zip(keys, texts, identities, strict=True):
                yield self._job(key, first, len(side), {TEXT: side, IDENTITY: of})

        for number, row in enumerate(plain_rows(rows.skip(done) if done else rows), start=done):
            if self.max_rows is not None and number >= self.max_rows:
                break
            for column, side, of in zip(source.sides, texts, identities, strict=True):
                text = get_column(row, column.column)
                side.append(text)
                of.append(row_identity(row, number, column.identity))
                filled += len((text or "").encode()) + BYTES_A_ROW
            if filled >= self.shard_bytes:
                yield from cut()
                texts, identities = [[] for _ in keys], [[] for _ in keys]
                first, filled = number + 1, 0
        if texts[0]:
            yield from cut()
        elif not first:
            raise ValueError(no_text(source.name))

    def _kept(self, keys: list[str]) -> list[tuple[int, int]]:
        """The (first row, rows) of shards from the stream's start on which are there and whole, on all sides."""
        at, kept = 0, []
        limit = self.max_rows if self.max_rows is not None else float("inf")
        while True:
            found = [place for place in self.known.get(keys[0], {}) if place[0] == at and sum(place) <= limit]
            fit = [place for place in found if all(self._is_there(key, place) for key in keys)]
            if not fit:
                return kept
            kept.append(max(fit))
            at += kept[-1][1]

    def _is_there(self, key: str, place: tuple[int, int]) -> bool:
        shard = self.known.get(key, {}).get(place)
        return shard is not None and damage(self.folder, shard.file, shard.bytes, shard.sha256) is None

    def contents(self, folder: Path, shards: dict[str, list[Shard]], before: dict[str, Any]) -> dict[str, Any]:
        """The columns and corpora of the manifest, with those of other recipes that are there; writes alignments."""
        limits = {
            key: self.max_rows for s, keys in zip(self.sources, self.keys, strict=True) if s.streaming for key in keys
        }
        columns = {
            key: {
                "shards": [asdict(shard) for shard in sorted(shards[key], key=lambda shard: shard.first)],
                "max_rows": limits.get(key),
            }
            for key in self.folders  # in the order of the recipe, whichever was finished first
        }
        others = [corpus for corpus in before.get("corpora", []) if corpus["name"] not in self.names]
        for key in dict.fromkeys(key for corpus in others for key in corpus["columns"]):
            columns.setdefault(key, before["columns"][key])
        corpora = [
            self._corpus(source, keys, folder, columns) for source, keys in zip(self.sources, self.keys, strict=True)
        ]
        return {"columns": columns, "corpora": corpora + others}

    def _corpus(self, source: Source, keys: list[str], folder: Path, columns: dict[str, Any]) -> dict[str, Any]:
        tables = source.table_facts()
        if source.streaming:  # to train on it is not to train on the stream: a run keeps to the one or the other
            sums = [shard["sha256"] for key in keys for shard in columns[key]["shards"]]
            content = hashlib.sha256("".join(sums).encode()).hexdigest()
            tables = [table | {"fingerprint": f"prepared:{content}"} for table in tables]
        alignment = None
        if source.alignment is not None:
            content = as_npy(source.alignment)
            file = f"{ALIGNMENTS}/{_safe(source.name)}-{hashlib.sha256(content).hexdigest()[:8]}.npy"
            (folder / ALIGNMENTS).mkdir(exist_ok=True)
            size, sha256 = write_file(folder / file, content)
            alignment = {"file": file, "size": size, "sha256": sha256}
        return {
            "name": source.name,
            "languages": list(source.languages),
            "entry": entry_of(source.corpus),
            "identities": identities_of(self.recipe),
            "streamed": source.streaming,
            "tables": tables,
            "columns": keys,
            "alignment": alignment,
            "counts": source.counts,
        }


def plan_corpora(
    recipe: Recipe,
    folder: Path,
    sources: list[Source],
    fingerprint: str,
    before: dict[str, Any],
    records: list[dict[str, Any]],
    max_rows: int | None,
    shard_bytes: int,
) -> Plan:
    """What to write for these sources; `before` is the manifest that is there, `records` are the shards that are."""
    keys, columns, folders = _columns(sources, fingerprint)
    known: dict[str, dict[tuple[int, int], Shard]] = {}
    for record in records:
        shard = Shard(**{name: value for name, value in record.items() if name != "column"})
        known.setdefault(record["column"], {})[shard.first, shard.rows] = shard
    whole = {
        key: sum(shard["rows"] for shard in column["shards"])
        for key, column in before.get("columns", {}).items()
        if column["max_rows"] == max_rows
    }
    return Plan(recipe, sources, keys, columns, folders, known, whole, folder, max_rows, shard_bytes)


def bounds_of(column: TextColumn, shard_bytes: int) -> list[int]:
    """Rows at which the shards of a table begin, and its number of rows: a shard is full with the row that fills it."""
    values = arrow_column(column.rows, column.column)
    bounds, filled, row = [0], 0, 0
    for chunk in values.chunks:
        texts = chunk.cast(pa.string()) if pa.types.is_null(chunk.type) else chunk
        ends = np.cumsum(pc.fill_null(pc.binary_length(texts), 0).to_numpy().astype(np.int64) + BYTES_A_ROW) + filled
        begin = 0
        while (full := int(np.searchsorted(ends, shard_bytes))) < len(ends):
            ends = ends[full + 1 :] - ends[full]
            begin += full + 1
            bounds.append(row + begin)
        filled = int(ends[-1]) if len(ends) else 0
        row += len(chunk)
    return bounds if bounds[-1] == row else [*bounds, row]


def _columns(sources: list[Source], fingerprint: str) -> tuple[list[list[str]], dict[str, TextColumn], dict[str, str]]:
    """(the key of each side of each source, the columns of tables by key, folders by key): equal text has one key.

    A side that names no documents reads the column of one that does, where all else is equal.
    """
    text_of: list[list[tuple]] = []
    documents: dict[tuple, dict[tuple, None]] = {}
    for source in sources:
        tables = source.table_facts()
        own = []
        for number, side in enumerate(source.sides):
            table = tables[min(number, len(tables) - 1)]
            content = tuple((name, table.get(name)) for name in ("config", "split", "format", "fingerprint"))
            text = (FORMAT, fingerprint, content, side.column, side.identity)
            if isinstance(source.corpus, Bitext) and source.corpus.separator is not None:
                text += (source.corpus.separator, source.corpus.source_column)
            if source.streaming:  # its sides are read together, and cut at the same rows
                text += (source.name, number)
            own.append(text)
            if side.document is not None:
                documents.setdefault(text, {})[side.document, side.document_pattern] = None
        text_of.append(own)
    keys: list[list[str]] = []
    columns: dict[str, TextColumn] = {}
    folders: dict[str, str] = {}
    for source, own in zip(sources, text_of, strict=True):
        keys.append([])
        for number, (side, text) in enumerate(zip(source.sides, own, strict=True)):
            document = (side.document, side.document_pattern)
            if side.document is None:
                document = next(iter(documents.get(text, {})), document)
            key = hashlib.sha256(repr((text, document)).encode()).hexdigest()[:32]
            keys[-1].append(key)
            folders.setdefault(key, f"{SHARDS}/{_safe(source.languages[number])}-{key[:8]}")
            if not source.streaming and (key not in columns or side.document is not None):
                columns[key] = side
    return keys, columns, folders


def _safe(name: str) -> str:
    """A name as part of a file's."""
    return re.sub(r"[^\w-]", "_", name)
