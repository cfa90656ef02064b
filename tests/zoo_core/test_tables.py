import gzip
import json
import os
from pathlib import Path

import datasets
import pytest

from zoo_core.tables import (
    Table,
    get_column,
    has_text,
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
def test_load_table_same_rows_of_every_format(tmp_path, streaming):
    texts = ["one", "", "zwei ü 三"]
    expected = [{"text": text} for text in texts]
    datasets.Dataset.from_list(expected).to_parquet(tmp_path / "a.parquet")
    files = {
        "a.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts),
        "a.json": json.dumps(expected),
        "a.txt": "\ufeffone\n\nzwei ü 三",
        "b.txt": "one\r\n\r\nzwei ü 三\r\n",
        "a.tsv": "\ufefftext\r\none\n\nzwei ü 三\n",
        "a.csv": '\ufeff"text"\r\none\r\n""\n"zwei ü 三"\n\n',
    }
    assert rows(Table(path=str(tmp_path / "a.parquet"), streaming=streaming)) == expected
    for name, content in files.items():
        for path in (write(tmp_path / name, content), write(tmp_path / f"{name}.gz", gzip.compress(content.encode()))):
            assert rows(Table(path=path, streaming=streaming)) == expected, name
    path = write(tmp_path / "corpus.en", "one\n")
    assert rows(Table(path=path, format="text", streaming=streaming)) == [{"text": "one"}]


@pytest.mark.parametrize("streaming", [False, True])
def test_load_table_tsv_has_no_quotes_and_other_line_ends_are_text(tmp_path, streaming):
    text = 'a\u2028b\x85c\rd\x0b"e\x1c\u2029'
    path = write(tmp_path / "a.txt", f"{text}\nnext\n")
    assert [row["text"] for row in load_table(Table(path=path, streaming=streaming))] == [text, "next"]
    path = write(tmp_path / "a.tsv", f'id\ttext\n7\t{text}\n"8\t"\n')
    assert rows(Table(path=path, streaming=streaming)) == [{"id": "7", "text": text}, {"id": '"8', "text": '"'}]


LONG = "x" * 200_000


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("delimiter", "content", "expected"),
    [
        (None, 'text,label\n"a, ""c""\td\ne",01\nNA,\n', [('a, "c"\td\ne', "01"), ("NA", "")]),
        (None, f"text,label\n2024-05-01,1e5\n{LONG},None\n", [("2024-05-01", "1e5"), (LONG, "None")]),
        ("\t", '"text"\tlabel\n"a\tb"\t1\n', [("a\tb", "1")]),
        ("|", "text|label\na;b,c|1\n", [("a;b,c", "1")]),
        (None, ",label\n0,a\n1,b\n", [("0", "a"), ("1", "b")]),  # an index
        (None, "text,label\ra,1\rb,2", [("a", "1"), ("b", "2")]),  # Excel on a Mac
        (None, 'text,label\r"a\nb",1\r"c\rd",2\r', [("a\nb", "1"), ("c\rd", "2")]),
        (None, "text,label\r\r\na,1\r\r\n", [("a", "1")]),  # text written as text twice on Windows
    ],
)
def test_load_table_csv_values_as_written(tmp_path, streaming, delimiter, content, expected):
    for name, data in (("a.csv", content.encode()), ("a.csv.gz", gzip.compress(content.encode()))):
        found = rows(Table(path=write(tmp_path / name, data), delimiter=delimiter, streaming=streaming))
        assert [tuple(row.values()) for row in found] == expected
    assert list(found[0]) == ["Unnamed: 0" if content.startswith(",") else "text", "label"]


def test_has_text_needs_a_visible_character():
    texts = ["a", "", None, " \t\n", "\u200b\u00a0\ufeff", "\x00", "。", " \u3042"]
    assert has_text(texts).tolist() == [True, False, False, False, False, False, True, True]


@pytest.mark.parametrize("streaming", [False, True])
def test_load_table_conll(tmp_path, streaming):
    conll2003 = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O \n\n \n# NN B-NP O\n"
    conll2003 = conll2003.replace("EU", "# sent_id = 1\nEU")
    assert rows(Table(path=write(tmp_path / "eng.train", conll2003), format="conll", streaming=streaming)) == [
        {"tokens": ["EU", "rejects"], "column_2": ["NNP", "VBZ"], "column_3": ["B-NP", "B-VP"], "tags": ["B-ORG", "O"]},
        {"tokens": ["#"], "column_2": ["NN"], "column_3": ["B-NP"], "tags": ["O"]},
    ]
    tabs = "# id 7\r\n10\u00a0000\tO\r\nNew York\tB-LOC\r\n# a comment\r\n\r\nno"
    assert rows(Table(path=write(tmp_path / "a.conll", f"{tabs}\tO"), streaming=streaming)) == [
        {"tokens": ["10\u00a0000", "New York"], "tags": ["O", "B-LOC"]},
        {"tokens": ["no"], "tags": ["O"]},
    ]
    assert rows(Table(path=write(tmp_path / "b.conll", "a\nb\n\nc\n"), streaming=streaming)) == [
        {"tokens": ["a", "b"]},
        {"tokens": ["c"]},
    ]


@pytest.mark.parametrize("blank", [" ", "\t"])
def test_load_table_conll_comments_are_no_tokens(tmp_path, blank):
    text = "# newdoc\n# id 7\tlang=en\nA DET\n# SYM\n\n# doc2 X\n# SYM\nb NOUN\n\n#tag NOUN\n"
    text = "\n".join(line if line.startswith("# id") else line.replace(" ", blank) for line in text.split("\n"))
    path = write(tmp_path / "a.conll", text)
    assert [row["tokens"] for row in rows(Table(path=path))] == [["A", "#"], ["#", "b"], ["#tag"]]


def test_load_table_conllu_syntactic_words(tmp_path):
    one = ["1-2 al _ _ _", "1 a a ADP _", "2 el el DET _", "2.1 x _ _ _", "3 mar mar NOUN _"]
    sentences = [["\t".join([*line.split(), *"_____"]) for line in lines] for lines in (one, ["1 # # SYM _"])]
    text = "\n".join(line for lines in sentences for line in ("# newdoc", "# text = x", *lines, ""))
    found = rows(Table(path=write(tmp_path / "es.conllu", text)))
    assert [row["tokens"] for row in found] == [["a", "el", "mar"], ["#"]]
    assert [row["upos"] for row in found] == [["ADP", "DET", "NOUN"], ["SYM"]]
    assert list(found[0]) == ["tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"]


JSON_ROWS = {
    "dates": [{"text": "2020-02-01"}, {"text": None}, {"text": "2020-02-01T10:00:00Z", "new": {"day": ["1999-12-31"]}}],
    "late": ([{"text": "x" * 999, "note": None}] * 11_000 + [{"text": "y", "note": "seen", "new": 1}]),
    "late_dates": ([{"text": "x" * 999, "day": "2020-02-01"}] * 11_000 + [{"text": "y", "day": "today"}]),
}


@pytest.mark.parametrize("name", JSON_ROWS)
@pytest.mark.parametrize("form", ["a.jsonl", "a.json.gz", "train.json"])
def test_load_table_json_as_written_wherever_a_key_first_occurs(tmp_path, name, form):
    wanted = JSON_ROWS[name]
    text = json.dumps(wanted) if form == "train.json" else "".join(json.dumps(row) + "\n" for row in wanted)
    write(tmp_path / form, gzip.compress(text.encode()) if form.endswith("gz") else text)
    found = load_table(Table(path=str(tmp_path if form == "train.json" else tmp_path / form)))
    every = {key for row in (wanted[0], wanted[-1]) for key in row}
    for row, expected in ((found[0], wanted[0]), (found[-1], wanted[-1])):
        assert row == dict.fromkeys(every) | expected


@pytest.mark.parametrize("indent", [None, 1])
def test_load_table_squad_file_is_its_questions(tmp_path, indent):
    asked = [{"id": str(i), "question": f"q{i}", "answers": [{"text": "b", "answer_start": i}]} for i in range(3)]
    paragraphs = [{"context": "a b", "qas": asked[:2]}, {"context": "2020-02-01", "qas": asked[2:]}]
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": [one]} for one in paragraphs]}
    found = rows(Table(path=write(tmp_path / "train-v1.1.json", json.dumps(squad, indent=indent))))
    assert found == [{"context": "a b" if i < 2 else "2020-02-01", **row} for i, row in enumerate(asked)]


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.csv", "a.conll", "a.jsonl"])
def test_load_table_reads_a_changed_file_anew(tmp_path, name):
    form = {"a.txt": "%s\n", "a.jsonl": '{"text": "%s"}\n'}.get(name, "text\n%s\n")
    path = write(tmp_path / name, form % "old")
    before = rows(Table(path=path))
    times = os.stat(path)
    write(tmp_path / name, form % "new")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert "old" in str(before) and str(rows(Table(path=path))) == str(before).replace("old", "new")


@pytest.mark.parametrize("streaming", [False, True])
def test_load_table_folder_and_mirror(hub_folder, streaming):
    read = [row["text"] for row in load_table(Table(path=str(hub_folder), config="en", streaming=streaming))]
    assert read == ["cat", "dog"]
    root = str(hub_folder.parent.parent)
    assert rows(Table(path="owner/pets", config="en", split="test", streaming=streaming), root)[0]["text"] == "cow"
    if not streaming:
        assert len(rows(Table(path=str(hub_folder), config="en", split="train[:1]"))) == 1
        write(hub_folder / "en" / "train.jsonl", '{"id": "0", "text": "fish", "label": 0}\n')
        assert rows(Table(path=str(hub_folder), config="en"))[0]["text"] == "fish"


def test_resolve_hub_path_and_split_names(tmp_path, hub_folder):
    root = str(hub_folder.parent.parent)
    assert resolve_hub_path("owner/pets", root) == str(hub_folder)
    assert resolve_hub_path("owner/birds", root) == "owner/birds" and resolve_hub_path("owner/pets") == "owner/pets"
    assert split_names(Table(path="owner/pets", config="en"), root) == ["train", "test"]
    assert split_names(Table(path=write(tmp_path / "a.txt", "a\n"))) == ["train"]
    with pytest.raises(ValueError, match="nowhere"):
        resolve_hub_path("owner/pets", f"{root}/nowhere")


REFUSED = {  # (name, fields, content, what is named)
    "missing": ("news.tx", {}, None, "news.tx.*news.txt"),
    "empty": ("a.txt", {}, b"", "a.txt"),
    "only_header": ("a.tsv", {}, b"id\ttext\n", "a.tsv"),
    "latin1_text": ("a.txt", {}, b"one\ntwo\nGr\xfc\xdfe\n", "a.txt, line 3.*0xfc"),
    "latin1_tsv": ("a.tsv", {}, b"text\nGr\xfc\xdfe\n", "a.tsv.*0xfc"),
    "latin1_json": ("a.jsonl", {}, b'{"text": "a"}\n{"text": "\xfc"}\n', "a.jsonl.*0xfc"),
    "wide": ("a.tsv", {}, b"id\ttext\n1\ta\n2\tb\tc\n", "a.tsv.*line 3"),
    "all_wide": ("a.csv", {}, b"id,text\n1,a,b\n2,c,d\n", "a.csv.*row 0"),
    "quote": ("a.csv", {}, b'id,text\n1,a\n2,"b\n3,c\n', "a.csv"),
    "binary": ("a.txt", {}, b"a\nb\x00c\n", "a.txt, line 2"),
    "half_a_gzip": ("a.tsv.gz", {}, gzip.compress(b"text\n" + bytes(range(48, 58)) * 99)[:-12], "a.tsv.gz"),
    "delimiter": ("a.csv", {"delimiter": "||"}, b"a||b\n1||2\n", "delimiter"),
    "delimiter_of_folder": (".", {"delimiter": ","}, None, "delimiter"),
    "conll_width": ("a.conll", {}, b"a X O\nb Y O\n\nc O\n", "a.conll.*'c O'"),
    "conllu": ("a.conllu", {}, b"1\ta" + 8 * b"\t_" + b"\njunk\n", "a.conllu.*'junk'"),
    "damaged_json": ("a.json", {}, b'{"text": "a"}\n{"text"\n', "a.json"),
    "no_suffix": ("corpus.en", {}, b"a\n", "`format`"),
    "revision": ("a.txt", {"revision": "v1"}, b"a\n", "revision 'v1'"),
}
SEEN_WHEN_READ_IN_FULL = ("only_header", "damaged_json", "latin1_json", "empty", "wide", "quote")


@pytest.mark.parametrize("case", REFUSED)
def test_load_table_refuses_file(tmp_path, case):
    name, fields, content, named = REFUSED[case]
    write(tmp_path / ("news.txt" if content is None else name), content or b"")
    for streaming in (False, True)[: 1 if case in SEEN_WHEN_READ_IN_FULL else 2]:
        with pytest.raises(ValueError, match=named):
            rows(Table(path=str(tmp_path / name), streaming=streaming, **fields))


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("", {"config": "enn"}, "'enn'.*'en'"),
        ("", {}, "'en', 'de'"),
        ("", {"config": "en", "split": "tset"}, "tset.*'train', 'test'"),
        ("", {"config": "en", "format": "text"}, "format"),
        ("x", {"config": "en"}, "petsx.*'pets'"),
        ("/empty", {}, "pets/empty"),
        ("/script", {}, "pets/script"),
    ],
)
def test_load_table_refuses_folder(hub_folder, path, fields, named):
    for name in ("empty", "script"):
        (hub_folder / name).mkdir()
    write(hub_folder / "script" / "script.py", "raise SystemExit")
    with pytest.raises(ValueError, match=named):
        load_table(Table(path=f"{hub_folder}{path}", **fields))
    with pytest.raises(ValueError, match="owner/pet .*'owner/pets'"):  # an id outside of the mirror
        load_table(Table(path="owner/pet", config="en", format="hub"), str(hub_folder.parent.parent))


def test_load_table_names_the_folder_of_a_damaged_copy(tmp_path):
    lines = "".join(json.dumps({"text": f"{number} cut off"}) + "\n" for number in range(999))
    table = Table(write(tmp_path / "a.jsonl", lines))
    copy = Path(load_table(table).cache_files[0]["filename"])
    os.truncate(copy, 1000)
    try:
        with pytest.raises(ValueError, match=f"a.jsonl.*{datasets.config.HF_DATASETS_CACHE}"):
            load_table(table)
    finally:
        copy.unlink()


def test_require_column_and_get_column_of_dotted_paths(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"id": 1, "translation": {"en": "a", "de": "b"}}\n')
    for streaming in (False, True):
        table = load_table(Table(path=path, streaming=streaming))
        assert require_column(table, "translation.en").dtype == "string"
        with pytest.raises(ValueError, match="translation.fr.* id, translation"):
            require_column(table, "translation.fr", "corpus en")
    features = datasets.Features({"translation": datasets.Translation(languages=["en", "de"])})
    pairs = datasets.Dataset.from_list([{"translation": {"en": "a", "de": "b"}}], features=features)
    require_column(pairs, "translation.de")
    assert get_column(pairs[0], "translation.de") == "b"
    assert get_column(pairs[:], "translation.de") == ["b"]
    assert get_column({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert get_column({"a": None}, "a.b") is None


@pytest.mark.parametrize(
    ("column", "values", "row"),
    [
        ("text", ["a", None, 3], 2),
        ("tokens", [["a"], ["b", 3]], 1),
        ("label", [True, 1], 1),
        ("label", [1] * 12_000 + ["x"], 12_000),  # not in the first 10 MiB
    ],
)
def test_require_column_refuses_several_types(tmp_path, column, values, row):
    lines = [json.dumps({column: value, "other": "x" * 1000}) + "\n" for value in values]
    table = load_table(Table(path=write(tmp_path / "a.jsonl", "".join(lines))))
    assert require_column(table, "other").dtype == "string"
    with pytest.raises(ValueError, match=f"column {column}.*row {row}"):
        require_column(table, column)


def test_table_fingerprint_follows_the_content(tmp_path, hub_folder):
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
