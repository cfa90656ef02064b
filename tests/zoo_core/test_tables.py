import csv
import gzip
import json
import os
from pathlib import Path

import datasets
import pytest

from zoo_core.tables import (
    Table,
    UnknownConfig,
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
        "csv": write(tmp_path / "a.csv", b'\xef\xbb\xbf"text"\r\n' + 'one\r\n""\n"zwei ü 三"\n\n'.encode()),
    }
    for name, path in files.items():
        assert rows(Table(path=path, streaming=streaming)) == expected, name
        if name != "parquet":
            packed = write(Path(f"{path}.GZ"), gzip.compress(Path(path).read_bytes()))
            assert rows(Table(path=packed, streaming=streaming)) == expected, name
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


@pytest.mark.parametrize("streaming", [False, True])
def test_csv_is_quoted_and_has_any_delimiter(tmp_path, streaming):
    expected = [
        {"text": 'a; b, "c"\td\ne', "label": "1"},
        {"text": "NA", "label": ""},
        {"text": "x" * 200_000, "label": "0"},
    ]
    for name, delimiter in (("a.csv", None), ("b.csv", ";"), ("c.tsv", "\t"), ("d.txt", "|")):
        with open(tmp_path / name, "w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, ["text", "label"], delimiter=delimiter or ",")
            writer.writeheader()
            writer.writerows(expected)
        assert rows(Table(path=str(tmp_path / name), delimiter=delimiter, streaming=streaming)) == expected
    path = write(tmp_path / "e.train", "a;b,c\n1;2,3\n")  # one file, two tables
    assert rows(Table(path=path, format="csv")) == [{"a;b": "1;2", "c": "3"}]
    assert rows(Table(path=path, delimiter=";")) == [{"a": "1", "b,c": "2,3"}]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("content", "delimiter", "expected"),
    [
        (",text\n0,a\n1,b\n", None, [{"Unnamed: 0": "0", "text": "a"}, {"Unnamed: 0": "1", "text": "b"}]),  # pandas
        (",Unnamed: 0,text\n0,1,a\n", None, [{"Unnamed: 0.1": "0", "Unnamed: 0": "1", "text": "a"}]),  # written twice
        (",,text,\n0,x,a,\n", None, [{"Unnamed: 0": "0", "Unnamed: 1": "x", "text": "a", "Unnamed: 3": ""}]),
        ("sep=;\r\ntext;label\r\na,b;1\r\n", None, [{"text": "a,b", "label": "1"}]),  # Excel
        ('\ufeff"sep=|"\ntext|label\na|1\n', None, [{"text": "a", "label": "1"}]),
        ("SEP=\t\ntext\tlabel\na\t1\n", "\t", [{"text": "a", "label": "1"}]),
        ("text,label\ra,1\rb,2", None, [{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]),  # Excel on a Mac
        ('text,label\r"a\nb",1\r"c\rd",2\r', None, [{"text": "a\nb", "label": "1"}, {"text": "c\rd", "label": "2"}]),
        ("text,label\r\r\na,1\r\r\n", None, [{"text": "a", "label": "1"}]),  # text written as text twice on Windows
    ],
)
def test_what_spreadsheets_and_pandas_write_is_read(tmp_path, streaming, content, delimiter, expected):
    for name, data in (("a.csv", content.encode()), ("a.csv.gz", gzip.compress(content.encode()))):
        path = write(tmp_path / name, data)
        assert rows(Table(path=path, delimiter=delimiter, streaming=streaming)) == expected


def test_text_is_what_can_be_seen():
    texts = ["a", "", None, " \t\n", "\u200b\u00a0\ufeff", "\x00", "。", " \u3042"]
    assert has_text(texts).tolist() == [True, False, False, False, False, False, True, True]


@pytest.mark.parametrize("streaming", [False, True])
def test_conll_gives_lists_of_tokens_and_tags(tmp_path, streaming):
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
def test_comments_before_a_sentence_are_no_tokens(tmp_path, blank):
    text = "# newdoc\n# id 7\tlang=en\nA DET\n# SYM\n\n# doc2 X\n# SYM\nb NOUN\n\n#tag NOUN\n"
    text = "\n".join(line if line.startswith("# id") else line.replace(" ", blank) for line in text.split("\n"))
    read = [row["tokens"] for row in rows(Table(path=write(tmp_path / "a.conll", text)))]
    assert read == [["A", "#"], ["#", "b"], ["#tag"]]


JSON_ROWS = {  # rows, which columns of the last one
    "dates": (
        [{"text": "2020-02-01"}, {"text": None}, {"text": "2020-02-01T10:00:00Z", "new": {"day": ["1999-12-31"]}}]
    ),
    "late": ([{"text": "x" * 999, "note": None}] * 11_000 + [{"text": "y", "note": "seen", "new": 1}]),
    "late_dates": ([{"text": "x" * 999, "day": "2020-02-01"}] * 11_000 + [{"text": "y", "day": "today"}]),
}


@pytest.mark.parametrize("name", JSON_ROWS)
@pytest.mark.parametrize("form", ["a.jsonl", "a.json.gz", "train.json"])
def test_json_is_read_as_it_is_written_wherever_a_key_first_occurs(tmp_path, name, form):
    wanted = JSON_ROWS[name]
    text = json.dumps(wanted) if form == "train.json" else "".join(json.dumps(row) + "\n" for row in wanted)
    write(tmp_path / form, gzip.compress(text.encode()) if form.endswith("gz") else text)
    found = load_table(Table(path=str(tmp_path if form == "train.json" else tmp_path / form)))
    every = {key for row in (wanted[0], wanted[-1]) for key in row}
    for row, expected in ((found[0], wanted[0]), (found[-1], wanted[-1])):
        assert row == dict.fromkeys(every) | expected


@pytest.mark.parametrize("indent", [None, 1])
def test_the_file_of_squad_is_its_questions(tmp_path, indent):
    asked = [{"id": str(i), "question": f"q{i}", "answers": [{"text": "b", "answer_start": i}]} for i in range(3)]
    paragraphs = [{"context": "a b", "qas": asked[:2]}, {"context": "2020-02-01", "qas": asked[2:]}]
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": [one]} for one in paragraphs]}
    found = rows(Table(path=write(tmp_path / "train-v1.1.json", json.dumps(squad, indent=indent))))
    assert found == [{"context": "a b" if i < 2 else "2020-02-01", **row} for i, row in enumerate(asked)]


@pytest.mark.parametrize("streaming", [False, True])
def test_conllu_gives_syntactic_words(tmp_path, streaming):
    one = ["1-2 al _ _ _", "1 a a ADP _", "2 el el DET _", "2.1 x _ _ _", "3 mar mar NOUN _"]
    sentences = [["\t".join([*line.split(), *"_____"]) for line in lines] for lines in (one, ["1 # # SYM _"])]
    text = "\n".join(line for lines in sentences for line in ("# newdoc", "# text = x", *lines, ""))
    found = rows(Table(path=write(tmp_path / "es.conllu", text), streaming=streaming))
    assert [row["tokens"] for row in found] == [["a", "el", "mar"], ["#"]]
    assert [row["upos"] for row in found] == [["ADP", "DET", "NOUN"], ["SYM"]]
    assert list(found[0]) == ["tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc"]


@pytest.mark.parametrize(
    ("column", "values", "named"),
    [
        ("text", ["a", None, 3], r"row 2 .*a number in column text, but text in rows"),
        ("tokens", [["a"], ["b", 3]], r"row 1 .*a number in column tokens, but text"),
        ("translation.en", [{"en": "a"}, {"en": ["b"]}], r"row 1 .*a list in column translation.en, but text"),
        ("label", [True, 1], r"row 1 .*a number in column label, but true or false"),
        ("label", [1] * 12_000 + ["x"], r"row 12000 .*text in column label, but a number"),  # not in the first 10 MiB
    ],
)
def test_a_column_of_several_types_is_named_with_the_row(tmp_path, column, values, named):
    name = column.partition(".")[0]
    lines = [json.dumps({name: value, "other": "x" * 1000}) + "\n" for value in values]
    path = write(tmp_path / "a.jsonl", "".join(lines))
    with pytest.raises(ValueError, match=named):
        table = load_table(Table(path=path))
        assert require_column(table, "other").dtype == "string"
        require_column(table, column)


def test_a_copy_that_was_cut_off_is_named_with_its_folder(tmp_path):
    table = Table(
        write(tmp_path / "a.jsonl", "".join(json.dumps({"text": f"{number} cut off"}) + "\n" for number in range(999)))
    )
    copy = Path(load_table(table).cache_files[0]["filename"])
    os.truncate(copy, 1000)
    try:
        with pytest.raises(ValueError, match=f"a.jsonl.*{datasets.config.HF_DATASETS_CACHE}"):
            load_table(table)
    finally:
        copy.unlink()


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.csv", "a.conll", "a.jsonl"])
def test_a_changed_file_is_read_anew_even_with_the_old_time_and_size(tmp_path, name):
    form = {"a.txt": "%s\n", "a.jsonl": '{"text": "%s"}\n'}.get(name, "text\n%s\n")
    path = write(tmp_path / name, form % "old")
    before = rows(Table(path=path))
    assert "old" in str(before)
    times = os.stat(path)
    write(tmp_path / name, form % "new")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert str(rows(Table(path=path))) == str(before).replace("old", "new")


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
    "header": ("a.tsv", {}, b"text\ttext\n1\ta\n", "line 1.*'text'"),
    "no_header": ("a.csv", {}, b",,\n1,2,3\n", "line 1"),
    "quote_on_a_mac": ("a.csv", {}, b'id,text\r1,a\r2,"b\r', "a.csv, line 3"),
    "xz": ("a.csv", {}, b"\xfd7zXZ\x00\x00", "xz"),
    "pickle": ("a.csv", {}, b"\x80\x04\x95", "pickle"),
    "binary": ("a.txt", {}, b"a\nb\x00c\n", "a.txt, line 2.*null bytes"),
    "conllu_without_tabs": ("a.conllu", {}, b"1\ta" + 8 * b"\t_" + b"\njunk\n", "a.conllu, line 2.*'junk'"),
    "quoted_tsv": ("a.tsv", {}, b'"text"\t"label"\n"a"\t"1"\n', "line 1.*delimiter"),
    "spreadsheet": ("a.xlsx", {}, b"PK\x03\x04", "spreadsheet"),
    "half_a_gzip": ("a.tsv.gz", {}, gzip.compress(b"text\n" + bytes(range(48, 58)) * 99)[:-12], "a.tsv.gz .*gzip"),
    "csv_width": ("a.csv", {}, b'id,text\n1,"a\nb"\n2,b,c\n', r"a.csv, line 4.*\(id, text\)"),
    "csv_short": ("a.csv", {}, b"id,text\n1\n", "a.csv, line 2"),
    "csv_quote": ("a.csv", {}, b'id,text\n1,a\n2,"b\n3,c\n', "a.csv, line 3.*quote"),
    "csv_header": ("a.csv", {}, b"text;label\na;1\n", 'delimiter: ";"'),
    "tsv_header": ("a.tsv", {}, b"text,label\na,1\n", 'delimiter: ","'),
    "delimiter": ("a.csv", {"delimiter": "||"}, b"a||b\n1||2\n", "one character"),
    "delimiter_of_text": ("a.txt", {"delimiter": ",", "format": "text"}, b"a\n", "delimiter"),
    "delimiter_of_folder": (".", {"delimiter": ","}, None, "delimiter"),
    "conll_width": ("a.conll", {}, b"a X O\nb Y O\n\nc O\n", "a.conll, line 4.*column_2"),
    "conll_empty": ("a.conll", {}, b"a\tO\n\tO\n", "a.conll, line 2"),
    "only_comments": ("a.conll", {}, b"# a\n\n", "a.conll has no rows"),
    "damaged_json": ("a.json", {}, b'{"text": "a"}\n{"text"\n', "a.json .*json"),
    "not_parquet": ("a.parquet", {}, b"PAR", "a.parquet .*parquet"),
    "no_suffix": ("corpus.en", {}, b"a\n", "`format`.* csv, tsv, conll"),
    "hub_format": ("a.txt", {"format": "hub"}, b"a\n", "`format` is hub"),
    "config": ("a.txt", {"config": "en"}, b"a\n", "config is 'en'"),
    "split": ("a.txt", {"split": "test"}, b"a\n", "split is 'test'"),
    "revision": ("a.txt", {"revision": "v1"}, b"a\n", "revision is 'v1'"),
}
FOLDER_ERRORS = [  # (path below the folder, fields, what is named)
    ("", {"config": "enn"}, "config enn.*'en'"),
    ("", {}, "en, de"),
    ("", {"config": "en", "split": "tset"}, "split tset.*train, test"),
    ("", {"config": "de", "split": "test", "streaming": True}, "split test.*train"),
    ("", {"config": "en", "split": "train[:1]", "streaming": True}, "streamed"),
    ("", {"config": "en", "split": "train[:1"}, "cannot be read"),
    ("", {"config": "en", "format": "text"}, "format"),
    ("", {"config": "en", "revision": "main"}, "revision"),
    ("x", {"config": "en"}, "petsx.*'pets'"),
    ("/en", {"config": "en", "split": "test"}, "config en.*default"),
    ("/empty", {}, "no data files"),
    ("/broken", {}, "pets/broken .*README.md"),
    ("/list", {}, "pets/list .*README.md"),
    ("/type", {}, "pets/type .*README.md"),
    ("/script", {}, "pets/script .*script.py"),
]
SEEN_WHEN_READ_IN_FULL = ("only_header", "only_comments", "damaged_json", "latin1_json")


@pytest.mark.parametrize("case", FILE_ERRORS)
def test_errors_of_files(tmp_path, case):
    name, fields, content, named = FILE_ERRORS[case]
    write(tmp_path / ("news.txt" if content is None else name), content or b"")
    for streaming in (False, True)[: 1 if case in SEEN_WHEN_READ_IN_FULL else 2]:
        with pytest.raises(ValueError, match=named):
            rows(Table(path=str(tmp_path / name), streaming=streaming, **fields))


def test_errors_of_folders(hub_folder):
    (hub_folder / "empty").mkdir()
    for name, card in {
        "broken": "a: [",
        "list": "- a",
        "type": "dataset_info: {features: [{name: a, dtype: b}]}",
    }.items():
        (hub_folder / name).mkdir()
        write(hub_folder / name / "README.md", f"---\n{card}\n---\n")
        write(hub_folder / name / "train.csv", "text\na\n")
    (hub_folder / "script").mkdir()
    write(hub_folder / "script" / "script.py", "raise SystemExit")
    for path, fields, named in FOLDER_ERRORS:
        with pytest.raises(ValueError, match=named):
            load_table(Table(path=f"{hub_folder}{path}", **fields))
    root = str(hub_folder.parent.parent)  # a mirror of the Hub
    for path, named in (("owner/pet", "'owner/pets'"), ("nobody/knows", "Known: owner/pets")):
        with pytest.raises(ValueError, match=f"{path} cannot be read.*hub_root.*{named}"):
            load_table(Table(path=path, config="en", format="hub"), root)


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
    # of very many only those of its kind are shown
    known = [f"{task}.{code}{number}" for task in ("PAN-X", "XQuAD") for code in ("de", "zh") for number in range(40)]
    with pytest.raises(UnknownConfig) as raised:
        load_table(Table(path="google/xtreme", config="XQuAD.dee"))
    text = str(raised.value)
    assert raised.value.known == known and "PAN-X" not in text and "100 others" in text and "'XQuAD.de" in text


def test_columns_and_dotted_paths(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"id": 1, "translation": {"en": "a", "de": "b"}}\n')
    for streaming in (False, True):
        table = load_table(Table(path=path, streaming=streaming))
        assert require_column(table, "translation.en").dtype == "string"
        assert require_column(table, "id").dtype == "int64"
        with pytest.raises(ValueError, match="corpus en has no column translation.fr.* id, translation, "):
            require_column(table, "translation.fr", "corpus en")
    undeclared = datasets.IterableDataset.from_generator(lambda: iter([{"id": 1, "translation": {"en": "b"}}]))
    require_column(undeclared, "translation.en")
    features = datasets.Features({"translation": datasets.Translation(languages=["en", "de"])})
    pairs = datasets.Dataset.from_list([{"translation": {"en": "a", "de": "b"}}], features=features)
    require_column(pairs, "translation.de")
    assert get_column(pairs[0], "translation.de") == "b"
    assert get_column(pairs[:], "translation.de") == ["b"]
    assert get_column({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert get_column({"a": None}, "a.b") is None


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
