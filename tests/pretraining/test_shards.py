"""Shards as a column of tokens: what is read is what was written, or an error that names the shard."""

import os
import pickle
import resource

import numpy as np
import pyarrow as pa
import pytest

from pretraining.data.shards import CorruptShard, Shard, ShardedColumn, write_shard

ROWS = [[5, 6, 7], [], [8], [9, 10], [11] * 5, [], [12, 13]]
DOCUMENTS = ["a", "a", None, None, "b", "b", "b"]
SIZES = (3, 1, 3)


def part(first, rows, documents):
    offsets = np.cumsum([0, *map(len, rows)])
    flat = np.array([token for row in rows for token in row], dtype=np.int32)
    arrays = [
        pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat)),
        pa.array([first + n for n in range(len(rows))]),
    ]
    return [*arrays, pa.array(documents, pa.string())] if documents else arrays


def write(folder, documents=DOCUMENTS):
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    shards, first = [], 0
    for size in SIZES:
        rows, named = ROWS[first : first + size], documents and documents[first : first + size]
        parts = [part(first + n, rows[n : n + 2], named and named[n : n + 2]) for n in range(0, size, 2)]
        shards.append(write_shard(folder, f"shards/{first}.arrow", first, parts))
        first += size
    return shards


@pytest.fixture
def shards(tmp_path):
    return write(tmp_path)


def test_rows_are_what_was_written(tmp_path, shards):
    column = ShardedColumn(tmp_path, "f", shards)
    assert column.lengths.tolist() == [len(row) for row in ROWS] and column.lengths.dtype == np.int32
    assert column.keys.tolist() == list(range(7))
    for row, ids in enumerate(ROWS):
        assert column.ids(row).tolist() == ids and column.ids(row).dtype == np.int32
    rows, starts, stops = np.array([4, 0, 6, 3, 0]), np.array([1, 0, 1, 0, 2]), np.array([3, 2, 2, 2, 3])
    wanted = [ROWS[row][start:stop] for row, start, stop in zip(rows, starts, stops, strict=True)]
    assert [ids.tolist() for ids in column.slices(rows, starts, stops)] == wanted
    assert np.concatenate(list(column.tokens())).tolist() == [token for row in ROWS for token in row]
    with pytest.raises(ValueError, match="read-only"):
        column.ids(0)[0] = 1


def test_documents_run_on_from_shard_to_shard(tmp_path, shards):
    column = ShardedColumn(tmp_path, "f", shards)
    assert column.new_documents().tolist() == [True, False, True, True, True, False, False]
    assert [column.document(row) for row in range(7)] == ["a", "a", "2", "3", "b", "b", "b"]
    bare = ShardedColumn(tmp_path / "bare", "f", write(tmp_path / "bare", None))
    assert bare.documents is None and bare.new_documents().all() and bare.document(4) == "4"


def test_a_column_travels_by_its_files(tmp_path, shards):
    column = ShardedColumn(tmp_path, "f", shards)
    content = pickle.dumps(column)
    assert pickle.loads(content).ids(4).tolist() == ROWS[4]
    assert len(content) < 2000


def test_the_same_rows_give_the_same_bytes(tmp_path, shards):
    again = write(tmp_path / "again")
    assert again == shards
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_checksum_is_compared_when_a_shard_is_first_read(tmp_path, shards):
    path = tmp_path / shards[1].file
    content = bytearray(path.read_bytes())
    place = content.index(np.array(ROWS[3], dtype=np.int32).tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    column = ShardedColumn(tmp_path, "f", shards)  # the rest is whole
    assert column.ids(0).tolist() == ROWS[0] and column.ids(6).tolist() == ROWS[6]
    for _ in range(2):
        with pytest.raises(CorruptShard, match=f"{shards[1].file}.*checksum.*--output {tmp_path}, which keeps"):
            column.ids(3)
    with pytest.raises(CorruptShard):
        column.slices(np.array([0, 3]), np.array([0, 0]), np.array([1, 1]))


def test_a_shard_that_was_read_is_not_hashed_again(tmp_path, shards, monkeypatch):
    column = ShardedColumn(tmp_path, "f", shards)
    column.ids(0)
    monkeypatch.setattr("pretraining.data.shards.damage", lambda *given: pytest.fail("read again"))
    column.ids(2)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes, and"),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "cannot be read"),
    ],
)
def test_missing_and_cut_shards_are_found_at_the_start(tmp_path, shards, harm, message):
    harm(tmp_path / shards[2].file)
    with pytest.raises(CorruptShard, match=f"{shards[2].file}.*{message}"):
        ShardedColumn(tmp_path, "f", shards)


def test_offsets_that_cannot_be_are_found_at_the_start(tmp_path, shards):
    path = tmp_path / shards[2].file
    content = bytearray(path.read_bytes())
    place = content.index(np.array([0, 5, 5, 7], dtype=np.int64).tobytes())
    content[place + 8 : place + 16] = np.int64(99).tobytes()
    path.write_bytes(content)
    with pytest.raises(CorruptShard, match="do not follow one another"):
        ShardedColumn(tmp_path, "f", shards)
    other = Shard(**{**vars(shards[0]), "rows": 2})
    with pytest.raises(CorruptShard, match="rows that were written"):
        ShardedColumn(tmp_path, "f", [other])


def test_more_shards_than_open_files_are_allowed(tmp_path):
    (tmp_path / "shards").mkdir()
    shards = [write_shard(tmp_path, f"shards/{n}.arrow", n, [part(n, [[n, n + 1]], None)]) for n in range(120)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1]))
    try:
        column = ShardedColumn(tmp_path, "f", shards)
        assert [column.ids(row).tolist() for row in (0, 60, 119)] == [[0, 1], [60, 61], [119, 120]]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
