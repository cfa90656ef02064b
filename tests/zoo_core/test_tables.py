import json
import os
from pathlib import Path

import datasets
import pytest

from zoo_core.tables import (
    Table,
    UnknownConfig,
    get_column,
    load_table,
    require_column,
    resolve_hub_path,
    split_names,
    table_fingerprint,
)


@pytest.fixture
def hub_folder(tmp_path):
    """owner/pets in the Hub's layout: configs en (train, test) and de (train)."""
    folder = tmp_path / "mirror" / "owner" / "pets"
    for config, split, texts in [("en", "train", ["cat", "dog"]), ("en", "test", ["cow"]), ("de", "train", ["Katze"])]:
        (folder / config).mkdir(parents=True, exist_ok=True)
        rows = [{"id": str(i), "text": text, "label": i} for i, text in enumerate(texts)]
        (folder / config / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: en\n  data_files:\n  - {split: train, path: en/train*}\n  - {split: test, path: en/test*}\n"
        "- config_name: de\n  data_files:\n  - {split: train, path: de/train*}\n---\n"
    )
    return folder


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def rows(table: Table, hub_root: str | None = None) -> list[dict]:
    return list(load_table(table, hub_root))


@pytest.mark.parametrize("streaming", [False, True])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, streaming):
    texts = ["one", "", "zwei ü 三"]
    expected = [{"text": text} for text in texts]
    datasets.Dataset.from_list(expected).to_parquet(tmp_path / "a.parquet")
    jsonl = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    files = {
        "parquet": str(tmp_path / "a.parquet"),
        "jsonl": write(tmp_path / "a.jsonl", jsonl),
        "json": write(tmp_path / "a.json", json.dumps(expected)),
        "text": write(tmp_path / "a.txt", "one\n\nzwei ü 三"),
        "crlf": write(tmp_path / "b.txt", "one\r\n\r\nzwei ü 三\r\n"),
        "bom": write(tmp_path / "c.txt", b"\xef\xbb\xbfone\n\n" + "zwei ü 三\n".encode()),
        "tsv": write(tmp_path / "a.tsv", b"\xef\xbb\xbftext\r\n" + "one\n\nzwei ü 三\n".encode()),
    }
    for name, path in files.items():
        assert rows(Table(path=path, streaming=streaming)) == expected, name
    assert rows(Table(path=write(tmp_path / "corpus.en", "one\n"), format="text", streaming=streaming)) == [
        {"text": "one"}
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_only_newlines_end_a_line_and_tsv_has_no_quotes(tmp_path, streaming):
    text = 'a\u2028b\x85c\rd\x0b"e\x1c\u2029'
    path = write(tmp_path / "a.txt", f"{text}\nnext\n")
    assert [row["text"] for row in load_table(Table(path=path, streaming=streaming))] == [text, "next"]
    path = write(tmp_path / "a.tsv", f'id\ttext\n7\t{text}\n"8\t"\n')
    assert rows(Table(path=path, streaming=streaming)) == [{"id": "7", "text": text}, {"id": '"8', "text": '"'}]


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.jsonl"])
def test_a_changed_file_is_read_anew_even_with_the_old_time_and_size(tmp_path, name):
    form = {"a.txt": "%s\n", "a.tsv": "text\n%s\n", "a.jsonl": '{"text": "%s"}\n'}[name]
    path = write(tmp_path / name, form % "old")
    assert rows(Table(path=path)) == [{"text": "old"}]
    times = os.stat(path)
    write(tmp_path / name, form % "new")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert rows(Table(path=path)) == [{"text": "new"}]


@pytest.mark.parametrize("streaming", [False, True])
def test_folder_in_the_hubs_layout(hub_folder, streaming):
    read = [row["text"] for row in load_table(Table(path=str(hub_folder), config="en", streaming=streaming))]
    assert read == ["cat", "dog"]
    root = str(hub_folder.parent.parent)
    assert rows(Table(path="owner/pets", config="en", split="test", streaming=streaming), root)[0]["text"] == "cow"
    if not streaming:
        assert len(rows(Table(path=str(hub_folder), config="en", split="train[:1]"))) == 1


def test_ids_are_looked_up_in_the_mirror_first(hub_folder):
    root = hub_folder.parent.parent
    assert resolve_hub_path("owner/pets", str(root)) == str(hub_folder)
    assert resolve_hub_path("owner/birds", str(root)) == "owner/birds"
    assert resolve_hub_path("owner/pets") == "owner/pets"
    with pytest.raises(ValueError, match="hub_root is .*nowhere, which is not a folder"):
        resolve_hub_path("owner/pets", str(root / "nowhere"))


def test_names_of_splits(tmp_path, hub_folder):
    assert split_names(Table(path=str(hub_folder), config="en")) == ["train", "test"]
    assert split_names(Table(path="owner/pets", config="de"), str(hub_folder.parent.parent)) == ["train"]
    assert split_names(Table(path=write(tmp_path / "a.txt", "a\n"))) == ["train"]
    with pytest.raises(ValueError, match="has no config fr. It has: en, de"):
        split_names(Table(path=str(hub_folder), config="fr"))


def test_errors_of_folders(hub_folder):
    (hub_folder / "empty").mkdir()
    for path, fields, named in (
        ("", {"config": "enn"}, "no config enn.*'en'"),
        ("", {}, "en, de"),
        ("", {"config": "en", "split": "tset"}, "no split tset.*train, test"),
        ("", {"config": "de", "split": "test", "streaming": True}, "no split test.*train"),
        ("", {"config": "en", "split": "train[:1]", "streaming": True}, "streamed"),
        ("", {"config": "en", "split": "train[:1"}, "cannot be read"),
        ("", {"config": "en", "format": "text"}, "format"),
        ("", {"config": "en", "revision": "main"}, "revision"),
        ("x", {"config": "en"}, "petsx.*'pets'"),
        ("/en", {"config": "en", "split": "test"}, "no config en.*default"),
        ("/empty", {}, "no data files"),
    ):
        with pytest.raises(ValueError, match=named):
            load_table(Table(path=f"{hub_folder}{path}", **fields))


FILE_ERRORS = {  # (name, fields, content, what is named)
    "missing": ("news.tx", {}, None, "news.tx .*'news.txt'"),
    "missing_folder": ("no/such/file.txt", {}, None, "file.txt"),
    "empty": ("a.txt", {}, b"", "a.txt is empty"),
    "only_bom": ("a.tsv", {}, b"\xef\xbb\xbf", "a.tsv is empty"),
    "only_header": ("a.tsv", {}, b"id\ttext\n", "a.tsv has no rows"),
    "latin1_text": ("a.txt", {}, b"one\ntwo\nGr\xfc\xdfe\n", "a.txt, line 3.*0xfc"),
    "latin1_tsv": ("a.tsv", {}, b"text\nGr\xfc\xdfe\n", "a.tsv, line 2.*0xfc"),
    "latin1_json": ("a.jsonl", {}, b'{"text": "a"}\n{"text": "\xfc"}\n', "a.jsonl, line 2.*0xfc"),
    "width": ("a.tsv", {}, b"id\ttext\n1\ta\n2\tb\tc\n", r"a.tsv, line 3.*\(id, text\)"),
    "header": ("a.tsv", {}, b"text\ttext\n1\ta\n", "line 1"),
    "damaged_json": ("a.json", {}, b'{"text": "a"}\n{"text"\n', "a.json .*json"),
    "not_parquet": ("a.parquet", {}, b"PAR", "a.parquet .*parquet"),
    "no_suffix": ("corpus.en", {}, b"a\n", "`format`"),
    "hub_format": ("a.txt", {"format": "hub"}, b"a\n", "format .*hub"),
    "config": ("a.txt", {"config": "en"}, b"a\n", "config is 'en'"),
    "split": ("a.txt", {"split": "test"}, b"a\n", "split is 'test'"),
    "revision": ("a.txt", {"revision": "v1"}, b"a\n", "revision is 'v1'"),
}
SEEN_WHEN_READ_IN_FULL = ("only_header", "damaged_json", "latin1_json")


@pytest.mark.parametrize("case", FILE_ERRORS)
def test_errors_of_files(tmp_path, case):
    name, fields, content, named = FILE_ERRORS[case]
    write(tmp_path / ("news.txt" if content is None else name), content or b"")
    for streaming in (False, True)[: 1 if case in SEEN_WHEN_READ_IN_FULL else 2]:
        with pytest.raises(ValueError, match=named):
            rows(Table(path=str(tmp_path / name), streaming=streaming, **fields))


def test_an_unreachable_id_is_an_error_with_a_way_out(monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'owner/name' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ValueError, match="owner/name cannot be read: Couldn't reach.*set hub_root to a folder"):
        load_table(Table(path="owner/name"))


@pytest.mark.parametrize(
    "message",  # of the Hub, and of what was read from it before
    [
        "BuilderConfig 'XQuAD.dee' not found. Available: {}",
        "Couldn't find cache for x\nAvailable configs in the cache: {}",
    ],
)
def test_a_config_that_the_hub_lacks_is_an_error_with_the_nearest(monkeypatch, message):
    def lacks(*args, **kwargs):
        raise ValueError(message.format(known))

    monkeypatch.setattr(datasets, "load_dataset", lacks)
    known = ["XQuAD.de", "XQuAD.zh", "MLQA.de.de", "tydiqa"]
    with pytest.raises(UnknownConfig, match="google/xtreme has no config XQuAD.dee. It has: XQuAD.de, .*'XQuAD.de'"):
        load_table(Table(path="google/xtreme", config="XQuAD.dee"))
    # of very many only those of its kind
    known = [f"{task}.{code}{number}" for task in ("PAN-X", "XQuAD") for code in ("de", "zh") for number in range(40)]
    with pytest.raises(UnknownConfig) as raised:
        load_table(Table(path="google/xtreme", config="XQuAD.dee"))
    text = str(raised.value)
    assert raised.value.known == known and text.count("PAN-X") == 0 and "and 100 others" in text and "XQuAD.de1" in text


def test_a_dataset_that_the_mirror_lacks_is_an_error_with_the_nearest(hub_folder):
    root = str(hub_folder.parent.parent)
    for path, hint in (("owner/pet", "Did you mean 'owner/pets'?"), ("nobody/knows", "Known: owner/pets.")):
        with pytest.raises(
            ValueError, match=f"{path} cannot be read.*set hub_root to a folder.* In hub_root"
        ) as raised:
            load_table(Table(path=path, config="en", format="hub"), root)
        assert str(raised.value).endswith(hint)


def test_columns_and_dotted_paths(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"id": 1, "translation": {"en": "a", "de": "b"}}\n')
    for streaming in (False, True):
        table = load_table(Table(path=path, streaming=streaming))
        assert require_column(table, "translation.en").dtype == "string"
        assert require_column(table, "id").dtype == "int64"
        with pytest.raises(
            ValueError, match="corpus en has no column translation.fr. Its columns are: id, translation, "
        ):
            require_column(table, "translation.fr", "corpus en")
    features = datasets.Features({"translation": datasets.Translation(languages=["en", "de"])})
    pairs = datasets.Dataset.from_list([{"translation": {"en": "a", "de": "b"}}], features=features)
    require_column(pairs, "translation.de")
    assert get_column(pairs[0], "translation.de") == "b"
    assert get_column(pairs[:], "translation.de") == ["b"]
    assert get_column({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert get_column({"a": None}, "a.b") is None


def test_columns_of_a_stream_without_declared_ones():
    stream = datasets.IterableDataset.from_generator(lambda: iter([{"text": "a", "translation": {"en": "b"}}]))
    require_column(stream, "translation.en")
    with pytest.raises(ValueError, match="has no column txt. Its columns are: text, translation, translation.en"):
        require_column(stream, "txt")


def test_fingerprints_follow_the_content(tmp_path, hub_folder):
    def fingerprint(path, **fields):
        table = Table(path=str(path), **fields)
        return table_fingerprint(table, None, load_table(table))

    write(tmp_path / "a.txt", "one\n")
    write(tmp_path / "b.txt", "one\n")
    first = fingerprint(tmp_path / "a.txt")
    assert first == fingerprint(tmp_path / "b.txt")
    write(tmp_path / "a.txt", "two\n")
    assert first != fingerprint(tmp_path / "a.txt")
    assert fingerprint(tmp_path / "a.txt", streaming=True) == fingerprint(tmp_path / "a.txt", streaming=True)

    train = fingerprint(hub_folder, config="en")
    assert train == fingerprint(hub_folder.parent / "pets", config="en")
    assert len({train, fingerprint(hub_folder, config="de"), fingerprint(hub_folder, config="en", split="test")}) == 3
    write(hub_folder / "en" / "train.jsonl", '{"id": "0", "text": "fish", "label": 0}\n')
    assert train != fingerprint(hub_folder, config="en")
