import gzip
import io
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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def jsonl(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows(path: str, hub_root: str | None = None, **fields) -> list[dict]:
    return list(load_table(Table(path, **fields), hub_root))


@pytest.fixture
def hub_folder(tmp_path):
    """owner/pets in the Hub's layout: configs en (train, test) and de (train)."""
    folder = tmp_path / "mirror" / "owner" / "pets"
    for name, texts in {"en/train": ["cat", "dog"], "en/test": ["cow"], "de/train": ["Katze"]}.items():
        write(folder / f"{name}.jsonl", jsonl(*({"id": str(i), "text": text} for i, text in enumerate(texts))))
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
    assert list(read_lines(path)) == list(lines_of(io.BytesIO(content), "standard input")) == lines


@streamed_or_not
def test_load_table_same_rows_of_every_format(tmp_path, streaming):
    texts = ["one", "", "zwei ü 三"]
    expected = [{"text": text} for text in texts]
    datasets.Dataset.from_list(expected).to_parquet(tmp_path / "a.parquet")
    assert rows(str(tmp_path / "a.parquet"), streaming=streaming) == expected
    files = {
        "a.jsonl": jsonl(*expected),
        "a.json": json.dumps(expected),
        "a.txt": "\ufeffone\r\n\r\nzwei ü 三",
        "a.tsv": "\ufefftext\r\none\n\nzwei ü 三\n",
        "a.csv": '\ufeff"text"\r\none\r\n""\n"zwei ü 三"\n\n',
    }
    for name, content in files.items():
        for path in (write(tmp_path / name, content), write(tmp_path / f"{name}.gz", gzip.compress(content.encode()))):
            assert rows(path, streaming=streaming) == expected, name
    assert rows(write(tmp_path / "corpus.en", "one\n"), format="text", streaming=streaming) == expected[:1]


LONG = "x" * 200_000
TEXT = 'a\u2028b\x85c\rd\x0b"e\x1c\u2029'


@streamed_or_not
@pytest.mark.parametrize(
    ("name", "delimiter", "content", "expected"),
    [
        ("a.tsv", None, f'text\tlabel\n{TEXT}\t"8\n', [(TEXT, '"8')]),
        ("a.csv", None, 'text,label\n"a, ""c""\td\ne",01\nNA,\n', [('a, "c"\td\ne', "01"), ("NA", "")]),
        ("a.csv", None, f"text,label\n2024-05-01,1e5\n{LONG},None\n", [("2024-05-01", "1e5"), (LONG, "None")]),
        ("a.csv", None, ",label\n0,a\n1,b\n", [("0", "a"), ("1", "b")]),  # an index
        ("a.csv", None, 'text,label\r"a\nb",1\r"c\rd",2\r', [("a\nb", "1"), ("c\rd", "2")]),  # Excel on a Mac
        ("a.csv", None, "text,label\r\r\na,1\r\r\n", [("a", "1")]),  # text written as text twice on Windows
    ],
)
def test_load_table_values_are_text_as_written(tmp_path, streaming, name, delimiter, content, expected):
    for path, data in ((name, content.encode()), (f"{name}.gz", gzip.compress(content.encode()))):
        found = rows(write(tmp_path / path, data), delimiter=delimiter, streaming=streaming)
        assert [tuple(row.values()) for row in found] == expected
    assert list(found[0]) == ["Unnamed: 0" if content.startswith(",") else "text", "label"]


JSON_ROWS = {
    "dates": [{"text": "2020-02-01"}, {"text": None}, {"text": "2020-02-01T10:00:00Z", "new": {"day": ["1999-12-31"]}}],
    "late": ([{"text": "x" * 999, "note": None}] * 11_000 + [{"text": "y", "note": "seen", "new": 1}]),
    "late_dates": ([{"text": "x" * 999, "day": "2020-02-01"}] * 11_000 + [{"text": "y", "day": "today"}]),
}


@pytest.mark.parametrize("name", JSON_ROWS)
@pytest.mark.parametrize("form", ["a.jsonl", "a.json.gz", "train.json"])
def test_load_table_json_as_written_wherever_a_key_first_occurs(tmp_path, name, form):
    wanted = JSON_ROWS[name]
    text = json.dumps(wanted) if form == "train.json" else jsonl(*wanted)
    path = write(tmp_path / form, gzip.compress(text.encode()) if form.endswith("gz") else text)
    found = load_table(Table(str(tmp_path) if form == "train.json" else path))
    for row in (0, -1):
        assert found[row] == dict.fromkeys(wanted[0] | wanted[-1]) | wanted[row]


@streamed_or_not
def test_load_table_folder_and_mirror(hub_folder, streaming):
    assert [row["text"] for row in rows(str(hub_folder), config="en", streaming=streaming)] == ["cat", "dog"]
    root = str(hub_folder.parents[1])
    assert rows("owner/pets", root, config="en", split="test", streaming=streaming)[0]["text"] == "cow"
    if not streaming:
        assert len(rows(str(hub_folder), config="en", split="train[:1]")) == 1
        write(hub_folder / "en" / "train.jsonl", jsonl({"id": "0", "text": "fish"}))
        assert rows(str(hub_folder), config="en")[0]["text"] == "fish"


@streamed_or_not
@pytest.mark.parametrize(
    ("name", "other"), [("a[1]", "a1"), ("a*", "ab"), ("{a}?", "{a}b"), ("[!b]", "a"), ("a::b", "a"), ("a\\b", "a")]
)
def test_load_table_path_is_one_file_whatever_its_characters(tmp_path, name, other, streaming):
    for folder, text in ((other, "wrong"), (name, "right")):
        for stem in (name, other):
            content = text if stem == name else "wrong"
            path = tmp_path / folder / stem
            write(Path(f"{path}.csv"), f"text\n{content}\n")
            write(Path(f"{path}.tsv.gz"), gzip.compress(f"text\n{content}\n".encode()))
            write(Path(f"{path}.jsonl"), jsonl({"text": content}))
            with open(f"{path}.parquet", "wb") as stream:
                datasets.Dataset.from_list([{"text": content}]).to_parquet(stream)
    for ending in (".csv", ".tsv.gz", ".jsonl", ".parquet"):
        assert rows(f"{tmp_path / name / name}{ending}", streaming=streaming) == [{"text": "right"}]


@streamed_or_not
@pytest.mark.parametrize(("name", "other"), [("[2024] a", "2 a"), ("b*", "bc"), ("c::d", "c")])
def test_load_table_folder_of_any_name(hub_folder, name, other, streaming):
    expected = rows(str(hub_folder), config="en")
    fingerprint = table_fingerprint(Table(str(hub_folder), "en"), None, None)
    shutil.copytree(hub_folder, hub_folder.parent / name)
    shutil.copytree(hub_folder, hub_folder.parent / other)
    write(hub_folder.parent / other / "en" / "train.jsonl", jsonl({"id": "0", "text": "wrong"}))
    path = str(hub_folder.parent / name)
    assert rows(path, config="en", streaming=streaming) == expected
    assert table_fingerprint(Table(path, "en"), None, None) == fingerprint
    write(hub_folder.parent / name / "en" / "train.jsonl", jsonl({"id": "0", "text": "fish"}))
    assert rows(path, config="en", streaming=streaming)[0]["text"] == "fish"


def test_resolve_hub_path_mirrored(hub_folder):
    root = str(hub_folder.parents[1])
    assert resolve_hub_path("owner/pets@v1", root) == str(hub_folder)
    assert resolve_hub_path("owner/birds", root) == "owner/birds" and resolve_hub_path("owner/pets") == "owner/pets"
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


def test_require_column_and_get_column_of_dotted_paths(tmp_path):
    path = write(tmp_path / "a.jsonl", jsonl({"id": 1, "translation": {"en": "a", "de": "b"}}))
    for streaming in (False, True):
        table = load_table(Table(path, streaming=streaming))
        assert require_column(table, "translation.en").dtype == "string"
        with pytest.raises(ValueError, match="translation.fr"):
            require_column(table, "translation.fr", "corpus en")
    features = datasets.Features({"translation": datasets.Translation(languages=["en", "de"])})
    pairs = datasets.Dataset.from_list([{"translation": {"en": "a", "de": "b"}}], features=features)
    require_column(pairs, "translation.de")
    assert get_column(pairs[0], "translation.de") == "b" and get_column(pairs[:], "translation.de") == ["b"]
    assert get_column({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert get_column({"a": None}, "a.b") is None and get_column({"a": [None, {"b": 0}]}, "a.b") == [None, 0]


def test_require_column_refuses_numbers_that_lost_digits(tmp_path):
    path = write(tmp_path / "a.jsonl", jsonl({"id": 1, "x": {"id": 2**63}}, {"id": 2**63 + 1, "x": {"id": None}}))
    for column in ("id", "x.id"):
        with pytest.raises(ValueError, match=rf"column {column}\b"):
            require_column(load_table(Table(path)), column)
    path = write(tmp_path / "b.jsonl", jsonl({"id": 2**63 - 1, "x": 0.5}, {"id": None, "x": None}))
    table = load_table(Table(path))
    assert require_column(table, "id").dtype == "int64" and require_column(table, "x").dtype == "float64"
    assert table["id"][:] == [2**63 - 1, None]


@pytest.mark.parametrize("wrapped", [{"data": [{"text": "a"}]}, {"version": "1", "rows": [{"text": "a"}] * 2}])
def test_require_column_names_the_key_that_wraps_the_rows(tmp_path, wrapped):
    key = list(wrapped)[-1]
    table = load_table(Table(write(tmp_path / "a.json", json.dumps(wrapped))))
    with pytest.raises(ValueError, match=rf"text\b.*\b{key} wraps"):
        require_column(table, "text")
    two_rows = load_table(Table(write(tmp_path / "b.jsonl", jsonl(wrapped, wrapped))))
    with pytest.raises(ValueError) as error:
        require_column(two_rows, "text")
    assert "wraps" not in str(error.value)


def test_table_fingerprint_follows_the_content(tmp_path, hub_folder):
    def fingerprint(path, **fields):
        table = Table(str(path), **fields)
        return table_fingerprint(table, None, load_table(table))

    first = fingerprint(write(tmp_path / "a.txt", "one\n"))
    assert first == fingerprint(write(tmp_path / "b.txt", "one\n")) != fingerprint(write(tmp_path / "a.txt", "two\n"))
    train = fingerprint(hub_folder, config="en")
    assert len({train, fingerprint(hub_folder, config="de"), fingerprint(hub_folder, config="en", split="test")}) == 3
    write(hub_folder / "en" / "train.jsonl", jsonl({"id": "0", "text": "fish"}))
    assert train != fingerprint(hub_folder, config="en")
