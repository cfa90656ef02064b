"""Gold links and sentence pairs, as they come in files."""

import io
import json
import sys

import pytest

from finetuning.align.gold import Gold, describe_fit, fit_gold, read_gold
from finetuning.align.pairs import PairReader


@pytest.fixture
def file(tmp_path):
    """file(content, name) -> path of a file with this text or these bytes."""

    def write(content, name="file.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


# ---- gold links


@pytest.mark.parametrize(
    ("content", "base", "expected"),
    [
        ("0001 1 1 S\n0001 2 3 P\n0003 4 1 S\n", None, {0: "0-0 1p2", 2: "3-0"}),
        ("0 1 1 S\n0 2 3 P\n2 4 1\n", None, {0: "0-0 1p2", 2: "3-0"}),  # a link without S or P is sure
        ("1 1 1 P\n1 1 1 S\n1 1 1 P\n", None, {0: "0-0"}),
        ("0-0 1p2\n\n2-1\n", None, {0: "0-0 1p2", 1: "", 2: "2-1"}),
        ("1-1 2p3\n", 1, {0: "0-0 1p2"}),
        ("1-1 2p3\n", 0, {0: "1-1 2p3"}),
        ("a b\tc d\t0-0 1p2\na\tb\t1-0\n", None, {0: "0-0 1p2", 1: "1-0"}),  # the last column of a table
        ("0.97\tthe 1-0 win\tder Sieg\t0-0 1p2\n", None, {0: "0-0 1p2"}),
        ("0-0\t1-1\n", None, {0: "0-0 1-1"}),
        ("0-0\x0b1-1\u20282-2\n3-3\n", None, {0: "0-0 1-1 2-2", 1: "3-3"}),  # lines end at newlines only
    ],
)
def test_read_gold(file, content, base, expected):
    found = {}
    for number, of in read_gold(file(content), base=base).items():
        assert of.sure <= of.possible
        found[number] = " ".join(f"{i}{'-' if (i, j) in of.sure else 'p'}{j}" for i, j in sorted(of.possible))
    assert found == expected


@pytest.mark.parametrize(
    ("content", "base", "message"),
    [
        (b"", None, "file.txt"),
        (b"0-0\n1-\xff\n", None, "line 2: byte 0xff"),
        (b"0-0\n1:1\n", None, "line 2: '1:1'"),
        (b"1-1 2p3\n", None, "--gold-base 1"),
        (b"0-1 2p3\n", 1, "1"),
    ],
)
def test_read_gold_refuses(file, content, base, message):
    with pytest.raises(ValueError, match=message):
        read_gold(file(content), base=base)


def test_fit_gold_leaves_out_and_lists_links_out_of_range(file):
    gold = read_gold(file("1 1 1 S\n1 2 2 S\n2 1 1 S\n2 3 -99 P\n2 0 1 P\n2 2 1 S\n"))
    fitting, left_out = fit_gold(gold, [(2, 2), (3, 1)])
    assert fitting == {0: Gold({(0, 0), (1, 1)}, {(0, 0), (1, 1)}), 1: Gold({(0, 0), (1, 0)}, {(0, 0), (1, 0)})}
    assert left_out == ["sentence 2: (0, 1), of 3 and 1 words", "sentence 2: (3, -99), of 3 and 1 words"]
    assert len(describe_fit(gold, fitting, left_out, "gold")) == 1 and not describe_fit(gold, fitting, [], "gold")


def test_fit_gold_refuses_links_of_other_sentences(file):
    with pytest.raises(ValueError, match="has 2 lines, the input 3 sentences"):
        fit_gold(read_gold(file("0-0\n1-1\n")), [(2, 2)] * 3)
    alignv2 = read_gold(file("1 1 1 S\n3 1 1 S\n"))
    assert fit_gold(alignv2, [(1, 1)] * 4)[1] == []  # sentences without links do not occur in this format
    with pytest.raises(ValueError, match="links for 2 sentences, up to number 9; the input has 3"):
        fit_gold(read_gold(file("1 1 1 S\n9 1 1 S\n")), [(1, 1)] * 3)
    # 12 of 400 links, as where the base is wrong
    diagonal = {n: Gold(possible={(i, i) for i in range(4)}) for n in range(100)}
    with pytest.raises(ValueError, match="12 of the 400 links of the gold file .*sentence 1: .4, 4., of 4 and 3"):
        fit_gold(diagonal, [(4, 3)] * 12 + [(4, 4)] * 88)
    assert len(fit_gold(diagonal, [(4, 3)] * 10 + [(4, 4)] * 90)[1]) == 10
    with pytest.raises(ValueError, match="2 of the 3 links"):
        fit_gold({0: Gold(possible={(0, 0), (5, 5), (6, 6)})}, [(2, 2)])


@pytest.mark.parametrize("numbers", [(1, 2, 4), (7, 30, 201), (0, 2, 3)])
def test_fit_gold_matches_sentences_whose_numbers_have_gaps_in_their_order(file, numbers):
    links = read_gold(file("".join(f"{number:04} {word} 1 S\n" for word, number in enumerate(numbers, 1))))
    fitting, left_out = fit_gold(links, [(3, 1)] * 3)
    assert fitting == {n: Gold({(n, 0)}, {(n, 0)}) for n in range(3)} and left_out == []
    assert len(describe_fit(links, fitting, [], "gold")) == 1 and not describe_fit(fitting, fitting, [], "gold")


# ---- sentence pairs


def read(*files, **settings):
    return list(PairReader(list(files), **settings))


def test_pairs_of_lines(file):
    content = "\ufeffdas Haus ||| the house\r\n\na ||| \n ||| b\nx\u2028y\x0bz ||| x\x85y\nkein|||Trenner ||| no\n"
    assert read(file(content)) == [
        (["das", "Haus"], ["the", "house"]),
        ([], []),
        (["a"], []),
        ([], ["b"]),
        (["x\u2028y\x0bz"], ["x\x85y"]),
        (["kein|||Trenner"], ["no"]),
    ]
    assert read(file("das Haus\tthe house\r\n\na\t\n\tb\nx ||| y\tz\nx|||y\tz")) == [
        (["das", "Haus"], ["the", "house"]),
        ([], []),
        (["a"], []),
        ([], ["b"]),
        (["x"], ["y", "z"]),
        (["x|||y"], ["z"]),
    ]
    assert read(file("a b\n\nc ||| d", "x"), file("A B\nB\nC\n", "y")) == [
        (["a", "b"], ["A", "B"]),
        ([], ["B"]),
        (["c", "|||", "d"], ["C"]),
    ]


@pytest.mark.parametrize("separator", [" ||| ", "\t", None])
def test_words_of_lines_are_between_spaces_and_tabs(file, separator):
    """Other white space, control and invisible characters are part of a word, as in fast_align."""
    source = ["10\u00a0000", "EUR,", "\u00a0", "l'a\u3000b", "\u2028", "\x0bx\x0c", "\x1c", "\x85", "a\rb", "\u200b"]
    target = ["\u00a0", '"x."', "日本語。", "\ufeff", "|", "10\u202f000", "\u00a0"]
    texts = "  ".join(source), (" " if separator == "\t" else "\t ").join(target)
    lines = [separator.join(texts)] if separator else texts
    files = [file(f" {line} \r\n", name) for line, name in zip(lines, "xy", strict=False)]
    assert read(*files) == [(source, target)]
    ((*sides,),) = read(*files, split=True)
    assert [side.strip(" ") for side in sides] == list(texts)


def test_pairs_of_jsonl_and_csv(file):
    rows = [{"source": "a b", "target": ["A", "B C"], "id": 1}, {"source": "", "target": []}]
    assert read(file("\n".join(map(json.dumps, rows)), "x.jsonl")) == [("a b", ["A", "B C"]), ("", [])]
    assert read(file('{"de": "a", "en": "b"}\n\n'), format="jsonl", columns=("de", "en")) == [("a", "b"), ("", "")]
    path = file('{"source": "one\\n two", "target": ["\u00a0"]}\n', "x.jsonl")
    assert read(path, split=False) == [(["one", "two"], ["\u00a0"])] and read(path) == [("one\n two", ["\u00a0"])]
    path = file('id,de,en\r\n1,"das, Haus","the ""house""\nis"\r\n2,,x\r\n', "x.csv")
    assert read(path, columns=("de", "en")) == [(["das,", "Haus"], ["the", '"house"', "is"]), ([], ["x"])]
    assert read(path, columns=("de", "en"), split=True)[0] == ("das, Haus", 'the "house"\nis')


@pytest.mark.parametrize(
    ("line", "columns"),
    [
        ("1.05\tthe house\tdas  Haus", ("2", "3")),
        ("17\tdas Haus\t4\tthe house\r", ("4", "2")),
        ("en\t the house\tx|||y\tdas Haus\t", ("2", "4")),
    ],
)
def test_pairs_of_columns(file, line, columns):
    path = file(f"{line}\n\n{line}\n")
    assert read(path, columns=columns) == [(words := (["the", "house"], ["das", "Haus"])), ([], []), words]
    with pytest.raises(ValueError, match="line 1.*--columns"):
        read(path)
    with pytest.raises(ValueError, match="line 1: --columns is 1 9"):
        read(path, columns=("1", "9"))


@pytest.mark.parametrize(
    ("source", "is_unspaced"),
    [
        ("我们不相信。", True),
        ("猫が好きです。", True),
        ("ฉันรักแมวมาก", True),
        ("弗拉基米尔 先生 说 ： 我们 不 相信 。", False),
        ("나는 고양이를 좋아한다", False),  # Korean has blanks
        ("谢谢", False),  # may be a word
        ("", False),
    ],
)
def test_check_counts_sides_without_blanks_between_words(file, source, is_unspaced):
    reader = PairReader([file(f"a ||| b\n{source} ||| x y\nx y ||| {source}\n")])
    for _ in range(2):  # of a pass
        assert reader.check() == 3 and reader.unspaced == 2 * is_unspaced


def test_standard_input(monkeypatch):
    for files in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"a ||| b\n"))))
        reader = PairReader(files)
        assert reader.check() is None and list(reader) == [(["a"], ["b"])]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "x.txt", "x.txt"),
        (b"a ||| b\na b\n", "x.txt", "x.txt, line 2: .*'a b'"),
        (b"a ||| b ||| c\n", "x.txt", "line 1"),
        (b"a\tb\nc\td\te\n", "x.tsv", "line 2.* --columns"),
        (b"a ||| b\n\nc \xe4 ||| d\n", "x.txt", "line 3: byte 0xe4"),
        (b'{"source": "a", "target": "b"}\n{"source": \n', "x.jsonl", "line 2"),
        (b'{"source": "a", "targt": "b"}\n', "x.jsonl", "line 1: .*'target'.*'targt'"),
        (b'{"source": "a", "target": 3}\n', "x.jsonl", "line 1: 'target' .*'3'"),
        pytest.param(b"\n" + b"[" * 100_000 + b"\n", "x.jsonl", "line 2", id="lists"),
        (b"source,x\na,b\n", "x.csv", "line 2: .*'target'.*source, x"),
        (b'source,target\n"a" b,c\n', "x.csv", "line 2"),
    ],
)
def test_lines_that_are_refused_are_named(file, content, name, message):
    path = file(content, name)
    for reads in (list, PairReader.check):
        with pytest.raises(ValueError, match=message):
            reads(PairReader([path]))


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        *(("x", {"columns": columns}, "--columns") for columns in (("0", "1"), ("1", "²"))),
        ("xy", {"columns": ("1", "2")}, "--columns"),
        ("xxx", {}, "files"),
        ("xx", {"format": "jsonl"}, "jsonl"),
        ("/", {}, "/"),
        ("xy", {}, "y .*5.* x 2"),
        (["html.xml"], {}, "html.xml.*--format"),
    ],
)
def test_files_that_are_refused(file, tmp_path, monkeypatch, names, settings, message):
    monkeypatch.chdir(tmp_path)
    files = {"x": b"a\tb\n\n", "y": b"a\nb\nc\nd\n\n", "html.xml": b"<html><tmx/></html>"}
    for name, content in files.items():
        file(content, name)
    with pytest.raises(ValueError, match=message):
        read(*names, **settings)
