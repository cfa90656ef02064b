import gzip
import io
import itertools
import json
import shutil
from pathlib import Path

import datasets
import pytest

from crosslingual_zoo.zoo_core.tables import (
    Table,
    get_column,
    lines_of,
    load_table,
    read_lines,
    require_column,
    resolve_hub_path,
    table_fingerprint,
)

CARD = """---
configs:
- {config_name: en, data_files: [{split: train, path: en/train*}, {split: test, path: en/test*}]}
- {config_name: de, data_files: [{split: train, path: de/train*}]}
---
"""
streamed_or_not = pytest.mark.parametrize("streaming", [False, True])


def write(path: Path, content: str | bytes) -> str:
    """Text is packed in a file whose name ends with .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
        if path.suffix == ".gz":
            content = gzip.compress(content)
    path.write_bytes(content)
    return str(path)


def rows(path: str, hub_root: str | None = None, **fields) -> list[dict]:
    return list(load_table(Table(path, **fields), hub_root))


def jsonl(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


FISH = jsonl({"id": "0", "text": "fish"})


@pytest.fixture
def hub_folder(tmp_path):
    """owner/pets in the Hub's layout: configs en (train, test) and de (train)."""
    folder = tmp_path / "mirror" / "owner" / "pets"
    write(folder / "en" / "train.jsonl", jsonl({"id": "0", "text": "cat"}, {"id": "1", "text": "dog"}))
    write(folder / "en" / "test.jsonl", jsonl({"id": "0", "text": "cow"}))
    write(folder / "de" / "train.jsonl", jsonl({"id": "0", "text": "Katze"}))
    write(folder / "README.md", CARD)
    return folder


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\r\n\r\nb", ["a", "", "b"]),
        (b"\xef\xbb\xbfa\rb\r\rc", ["a", "b", "", "c"]),
        (b"a\rb\nc\n", ["a\rb", "c"]),  # one "\n": "\r" is a character
        ("a\u2028b\x85c\n".encode(), ["a\u2028b\x85c"]),
        (b"\n", [""]),
        (b"", []),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_read_lines_ends_lines_at_line_feeds_or_without_any_at_carriage_returns(tmp_path, content, lines, is_packed):
    path = write(tmp_path / "lines", gzip.compress(content) if is_packed else content)  # known by its first bytes
    assert list(read_lines(path)) == lines
    assert list(lines_of(io.BytesIO(content), "standard input")) == lines


ROWS = [{"text": "one"}, {"text": ""}, {"text": "zwei ü 三"}]
FILES = {
    "a.jsonl": jsonl(*ROWS),
    "a.json": json.dumps(ROWS),
    "a.txt": "\ufeffone\r\n\r\nzwei ü 三",
    "a.tsv": "\ufefftext\r\none\n\nzwei ü 三\n",
    "a.csv": '\ufeff"text"\r\none\r\n""\n"zwei ü 三"\n\n',
}


@streamed_or_not
@pytest.mark.parametrize("name", FILES)
def test_load_table_same_rows_of_every_format(tmp_path, name, streaming):
    for ending in ("", ".gz"):
        path = write(tmp_path / f"{name}{ending}", FILES[name])
        assert rows(path, streaming=streaming) == ROWS


@streamed_or_not
def test_load_table_of_parquet_and_of_a_named_format(tmp_path, streaming):
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "a.parquet")
    assert rows(str(tmp_path / "a.parquet"), streaming=streaming) == ROWS
    path = write(tmp_path / "corpus.en", "one\n")
    assert rows(path, format="text", streaming=streaming) == [{"text": "one"}]


LONG = "x" * 200_000
TEXT = 'a\u2028b\x85c\rd\x0b"e\x1c\u2029'


@streamed_or_not
@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tsv", f'text\tlabel\n{TEXT}\t"8\n', [(TEXT, '"8')]),
        ("a.csv", 'text,label\n"a, ""c""\td\ne",01\nNA,\n', [('a, "c"\td\ne', "01"), ("NA", "")]),
        ("a.csv", f"text,label\n2024-05-01,1e5\n{LONG},None\n", [("2024-05-01", "1e5"), (LONG, "None")]),
        ("a.csv", 'text,label\r"a\nb",1\r"c\rd",2\r', [("a\nb", "1"), ("c\rd", "2")]),  # Excel on a Mac
        ("a.csv", "text,label\r\r\na,1\r\r\n", [("a", "1")]),  # text written as text twice on Windows
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_load_table_values_are_text_as_written(tmp_path, streaming, name, content, expected, ending):
    table = rows(write(tmp_path / f"{name}{ending}", content), streaming=streaming)
    assert [tuple(row.values()) for row in table] == expected
    assert list(table[0]) == ["text", "label"]


@streamed_or_not
def test_load_table_of_csv_with_an_index(tmp_path, streaming):
    path = write(tmp_path / "a.csv", ",label\n0,a\n")
    assert rows(path, streaming=streaming) == [{"Unnamed: 0": "0", "label": "a"}]


JSON_ROWS = {
    "dates": [{"text": "2020-02-01"}, {"text": None}, {"text": "2020-02-01T10:00:00Z", "new": {"day": ["1999-12-31"]}}],
    "late": ([{"text": "x" * 999, "note": None}] * 11_000 + [{"text": "y", "note": "seen", "new": 1}]),
    "late_dates": ([{"text": "x" * 999, "day": "2020-02-01"}] * 11_000 + [{"text": "y", "day": "today"}]),
}


@pytest.mark.parametrize("name", JSON_ROWS)
@pytest.mark.parametrize("form", ["a.jsonl", "a.json.gz", "train.json"])
def test_load_table_json_as_written_wherever_a_key_first_occurs(tmp_path, name, form):
    """Of JSON lines, of packed ones, and of a list in a folder."""
    expected = JSON_ROWS[name]
    if form == "train.json":
        write(tmp_path / form, json.dumps(expected))
        path = str(tmp_path)
    else:
        path = write(tmp_path / form, jsonl(*expected))
    table = load_table(Table(path))
    keys = expected[0] | expected[-1]
    assert table[0] == dict.fromkeys(keys) | expected[0]
    assert table[-1] == dict.fromkeys(keys) | expected[-1]


@streamed_or_not
def test_load_table_folder_and_mirror(hub_folder, streaming):
    texts = [row["text"] for row in rows(str(hub_folder), config="en", streaming=streaming)]
    assert texts == ["cat", "dog"]
    root = str(hub_folder.parents[1])
    assert rows("owner/pets", root, config="en", split="test", streaming=streaming)[0]["text"] == "cow"


@streamed_or_not
@pytest.mark.parametrize("ending", ["csv", "tsv.gz", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("name", "other"), [("a[1]", "a1"), ("a*", "ab"), ("{a}?", "{a}b"), ("[!b]", "a"), ("a::b", "a"), ("a\\b", "a")]
)
def test_load_table_path_is_one_file_whatever_its_characters(tmp_path, name, other, ending, streaming):
    """Among files and folders that its name would match as a pattern."""

    def write_text(path, text):
        path.parent.mkdir(exist_ok=True)
        if ending == "parquet":
            with path.open("wb") as stream:
                datasets.Dataset.from_list([{"text": text}]).to_parquet(stream)
        elif ending == "jsonl":
            write(path, jsonl({"text": text}))
        else:
            write(path, f"text\n{text}\n")

    for folder, stem in itertools.product([name, other], repeat=2):
        write_text(tmp_path / folder / f"{stem}.{ending}", "wrong")
    path = tmp_path / name / f"{name}.{ending}"
    write_text(path, "right")
    assert rows(str(path), streaming=streaming) == [{"text": "right"}]


@streamed_or_not
@pytest.mark.parametrize(("name", "other"), [("[2024] a", "2 a"), ("b*", "bc"), ("c::d", "c")])
def test_load_table_folder_of_any_name(hub_folder, name, other, streaming):
    expected = rows(str(hub_folder), config="en")
    fingerprint = table_fingerprint(Table(str(hub_folder), "en"), None, None)
    folder = shutil.copytree(hub_folder, hub_folder.parent / name)
    similar = shutil.copytree(hub_folder, hub_folder.parent / other)
    write(similar / "en" / "train.jsonl", jsonl({"id": "0", "text": "wrong"}))
    assert rows(str(folder), config="en", streaming=streaming) == expected
    assert table_fingerprint(Table(str(folder), "en"), None, None) == fingerprint
    write(folder / "en" / "train.jsonl", FISH)
    assert rows(str(folder), config="en", streaming=streaming)[0]["text"] == "fish"


def test_resolve_hub_path_mirrored(hub_folder):
    root = str(hub_folder.parents[1])
    assert resolve_hub_path("owner/pets@v1", root) == str(hub_folder)
    assert resolve_hub_path("owner/birds", root) == "owner/birds"
    assert resolve_hub_path("owner/pets") == "owner/pets"
    with pytest.raises(ValueError, match="owner/pet, "):  # an id outside of the mirror
        rows("owner/pet", root, config="en", format="hub")
    with pytest.raises(ValueError, match="nowhere"):
        resolve_hub_path("owner/pets", f"{root}/nowhere")


@pytest.mark.parametrize(
    ("name", "content", "fields", "named"),
    [
        ("a.tsv", b"text\nGr\xfc\xdfe\n", {}, "a.tsv.*0xfc"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xfc"}\n', {}, "a.jsonl.*0xfc"),
        ("a.tsv", b"id\ttext\n1\ta\n2\tb\tc\n", {}, "a.tsv.*line 3"),
        ("a.tsv.gz", gzip.compress(b"text\n" + bytes(range(48, 58)) * 99, mtime=0)[:-12], {}, "a.tsv.gz"),
        ("script/script.py", b"raise SystemExit", {"path": "script"}, "pets/script"),
        ("a.txt", b"", {"path": "", "config": "enn"}, "'enn'.*'en'"),
        ("a.txt", b"", {"path": "", "config": "en", "split": "tset"}, "tset.*'train', 'test'"),
    ],
)
def test_load_table_refuses(hub_folder, name, content, fields, named):
    write(hub_folder / name, content)
    fields = {"path": name} | fields
    with pytest.raises(ValueError, match=named):
        rows(str(hub_folder / fields.pop("path")), **fields)


@streamed_or_not
def test_require_column_of_dotted_paths(tmp_path, streaming):
    path = write(tmp_path / "a.jsonl", jsonl({"id": 1, "translation": {"en": "a", "de": "b"}}))
    table = load_table(Table(path, streaming=streaming))
    assert require_column(table, "translation.en").dtype == "string"
    with pytest.raises(ValueError, match="translation.fr"):
        require_column(table, "translation.fr", "corpus en")


def test_columns_of_translations():
    features = datasets.Features({"translation": datasets.Translation(languages=["en", "de"])})
    pairs = datasets.Dataset.from_list([{"translation": {"en": "a", "de": "b"}}], features=features)
    require_column(pairs, "translation.de")
    assert get_column(pairs[0], "translation.de") == "b"
    assert get_column(pairs[:], "translation.de") == ["b"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [({"a.b": 1, "a": {"b": 2}}, 1), ({"a": None}, None), ({"a": [None, {"b": 0}]}, [None, 0])],
)
def test_get_column_of_a_row(row, expected):
    assert get_column(row, "a.b") == expected


@pytest.mark.parametrize("column", ["id", "x.id"])
def test_require_column_refuses_numbers_that_lost_digits(tmp_path, column):
    path = write(tmp_path / "a.jsonl", jsonl({"id": 1, "x": {"id": 2**63}}, {"id": 2**63 + 1, "x": {"id": None}}))
    with pytest.raises(ValueError, match=rf"column {column}\b"):
        require_column(load_table(Table(path)), column)


def test_require_column_takes_numbers_that_fit(tmp_path):
    path = write(tmp_path / "b.jsonl", jsonl({"id": 2**63 - 1, "x": 0.5}, {"id": None, "x": None}))
    table = load_table(Table(path))
    assert require_column(table, "id").dtype == "int64"
    assert require_column(table, "x").dtype == "float64"
    assert table["id"][:] == [2**63 - 1, None]


WRAPPED = [("data", {"data": [{"text": "a"}]}), ("rows", {"version": "1", "rows": [{"text": "a"}] * 2})]


@pytest.mark.parametrize(("key", "wrapped"), WRAPPED)
def test_require_column_names_the_key_that_wraps_the_rows(tmp_path, key, wrapped):
    table = load_table(Table(write(tmp_path / "a.json", json.dumps(wrapped))))
    with pytest.raises(ValueError, match=rf"text\b.*\b{key} wraps"):
        require_column(table, "text")
    two_rows = load_table(Table(write(tmp_path / "b.jsonl", jsonl(wrapped, wrapped))))
    with pytest.raises(ValueError, match="^(?!.*wraps)"):
        require_column(two_rows, "text")


def test_table_fingerprint_follows_the_content(tmp_path, hub_folder):
    def fingerprint(path, **fields):
        table = Table(str(path), **fields)
        return table_fingerprint(table, None, load_table(table))

    first = fingerprint(write(tmp_path / "a.txt", "one\n"))
    assert fingerprint(write(tmp_path / "b.txt", "one\n")) == first
    assert fingerprint(write(tmp_path / "a.txt", "two\n")) != first
    train = fingerprint(hub_folder, config="en")
    test = fingerprint(hub_folder, config="en", split="test")
    assert len({train, test, fingerprint(hub_folder, config="de")}) == 3
    write(hub_folder / "en" / "train.jsonl", FISH)
    assert fingerprint(hub_folder, config="en") != train
