"""Prepared shards: the token ids of a text column in Arrow files, written once, mapped into memory by every process.

A shard is an Arrow IPC file of one record batch: `ids` (large_list<int32>), `key` (int64, see `row_key`) and, where the
recipe names a document column, `document` (string). What each file must hold is said in the manifest (prepared.py):
its rows, tokens, size and sha256. Presence, size and structure are looked at when a column is opened, the checksum when
a process first reads ids from a shard.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pretraining.data.token_table import TokenTable
from pretraining.data.tokenized import COLUMNS, TokenColumn

MIB = 2**20


class CorruptShard(ValueError):
    """A file of prepared shards that is not what was written: missing, of another size, or of another content."""

    def __init__(self, path: Path, what: str):
        folder = next((parent.parent for parent in path.parents if parent.name in FOLDERS), path.parent)
        super().__init__(
            f"{path} {what}: what would be read from it is not the text that was prepared. Rebuild it by python -m "
            f"pretraining.tools.prepare --config RECIPE --output {folder}, which keeps all that is whole."
        )


SHARDS, ALIGNMENTS = FOLDERS = ("shards", "alignments")  # folders within a prepared one


@dataclass(frozen=True)
class Shard:
    """Rows `first` to below `first + rows` of a column, in `file` of the prepared folder."""

    file: str
    first: int
    rows: int
    tokens: int
    bytes: int
    sha256: str


def write_file(path: Path, content: bytes | memoryview) -> tuple[int, str]:
    """Writes a file whole or not at all, also where the machine stops: aside, to the disk, then renamed.

    Returns its size and the sha256 of what was to be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return len(content), hashlib.sha256(content).hexdigest()


def write_shard(folder: Path, file: str, first: int, parts: Sequence[Sequence[pa.Array]]) -> Shard:
    """Writes the rows of `parts`, each the arrays that `tokenize` gives, as one shard."""
    arrays = [pa.concat_arrays(same) for same in zip(*parts, strict=True)]
    batch = pa.record_batch(arrays, names=list(COLUMNS[: len(arrays)]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    size, sha256 = write_file(folder / file, memoryview(sink.getvalue()))
    return Shard(file, first, batch.num_rows, len(arrays[0].values), size, sha256)


def damage(folder: Path, file: str, size: int, sha256: str | None) -> str | None:
    """What is wrong with a file, for `CorruptShard`; None where nothing is. Without `sha256` its size alone counts."""
    try:
        found = (folder / file).stat().st_size
        if found != size:
            return f"has {found:,} bytes, and {size:,} were written"
        if sha256 is None:
            return None
        with (folder / file).open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() == sha256:
                return None
    except FileNotFoundError:
        return "is missing"
    return "does not hold what was written there: its checksum is another"


class ShardedColumn(TokenColumn):
    """A text column in prepared shards; 8 bytes a row are held in memory, the rest is mapped.

    Raises CorruptShard for a shard that is missing, or of another size or form, and, from whatever reads ids, for one
    whose checksum differs.
    """

    def __init__(self, folder: str | Path, fingerprint: str, shards: Sequence[Shard]):
        self.folder, self.fingerprint, self.shards = Path(folder), fingerprint, list(shards)
        self._batches = [_open(self.folder, shard) for shard in self.shards]
        lengths = np.empty(sum(shard.rows for shard in self.shards), dtype=np.int32)
        for shard, batch in zip(self.shards, self._batches, strict=True):
            offsets = batch.column(0).offsets.to_numpy()
            lengths[shard.first : shard.first + shard.rows] = np.diff(offsets)
            if offsets[0] != 0 or offsets[-1] != shard.tokens or np.any(offsets[1:] < offsets[:-1]):
                raise CorruptShard(self.folder / shard.file, "has rows that do not follow one another")
        checked = _CheckedIds(self.folder, self.shards, self._batches)
        self.table = TokenTable(checked, [shard.rows for shard in self.shards], lengths)

    @property
    def keys(self) -> np.ndarray:
        """(N,) int64 hashes of the rows, read anew each time: they are wanted once, at the start."""
        return np.concatenate([batch.column(1).to_numpy() for batch in self._batches])

    @property
    def documents(self) -> pa.ChunkedArray | None:
        """The documents of the rows."""
        if len(self._batches[0].schema) < len(COLUMNS):
            return None
        return pa.chunked_array([batch.column(2) for batch in self._batches])

    def __getstate__(self) -> dict:
        return {name: getattr(self, name) for name in ("folder", "fingerprint", "shards")}

    def __setstate__(self, state: dict) -> None:
        self.__init__(**state)


class _CheckedIds(dict):
    """{number of a shard: its flat int32 ids}, each entry made when it is first asked for, after its checksum."""

    def __init__(self, folder: Path, shards: list[Shard], batches: list[pa.RecordBatch]):
        self.folder, self.shards, self.batches = folder, shards, batches

    def __missing__(self, number: int) -> np.ndarray:
        shard = self.shards[number]
        what = damage(self.folder, shard.file, shard.bytes, shard.sha256)
        if what:
            raise CorruptShard(self.folder / shard.file, what)
        self[number] = self.batches[number].column(0).values.to_numpy()
        return self[number]


def _open(folder: Path, shard: Shard) -> pa.RecordBatch:
    what = damage(folder, shard.file, shard.bytes, None)
    if what is None:
        try:
            with pa.memory_map(str(folder / shard.file)) as file:  # its arrays keep the mapping, not the descriptor
                reader = pa.ipc.open_file(file)
                batch = reader.get_batch(0) if reader.num_record_batches == 1 else None
            if batch is not None and batch.num_rows == shard.rows and batch.column(0).type == pa.large_list(pa.int32()):
                return batch
            what = "does not have the rows that were written"
        except (pa.ArrowException, OSError) as error:
            what = f"cannot be read ({str(error).splitlines()[0]})"
    raise CorruptShard(folder / shard.file, what)
