"""Gold links and sentence pairs, as they come in files."""

import gzip
import io
import json
import sys

import pytest

from finetuning.align.formats import pharaoh_line
from finetuning.align.gold import Gold, describe_left_out, describe_order, fit_gold, read_gold
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


def test_alignv2_counts_words_from_one_and_sentences_from_zero_or_one(file):
    expected = {0: Gold({(0, 0)}, {(0, 0), (1, 2)}), 2: Gold({(3, 0)}, {(3, 0)})}
    assert read_gold(file("0001 1 1 S\n0001 2 3 P\n0003 4 1 S\n")) == expected
    assert read_gold(file("0 1 1 S\n0 2 3 P\n2 4 1\n")) == expected  # a link without S or P is sure


def test_a_link_that_is_sure_and_possible_is_sure(file):
    assert read_gold(file("1 1 1 P\n1 1 1 S\n1 1 1 P\n")) == {0: Gold({(0, 0)}, {(0, 0)})}


def test_pharaoh_has_an_entry_for_every_line(file):
    gold = read_gold(file("0-0 1p2\n\n2-1\n"))
    assert gold == {0: Gold({(0, 0)}, {(0, 0), (1, 2)}), 1: Gold(), 2: Gold({(2, 1)}, {(2, 1)})}


def test_the_base_of_pharaoh_is_given_or_shown_by_a_zero(file):
    assert read_gold(file("1-1 2p3\n"), base=1) == {0: Gold({(0, 0)}, {(0, 0), (1, 2)})}
    assert read_gold(file("1-1 2p3\n"), base=0) == {0: Gold({(1, 1)}, {(1, 1), (2, 3)})}
    with pytest.raises(ValueError, match="whether its words count from 0 or from 1.*--gold-base 1"):
        read_gold(file("1-1 2p3\n"))
    with pytest.raises(ValueError, match="has a word 0, so its words do not count from 1"):
        read_gold(file("0-1 2p3\n"), base=1)
    with pytest.raises(ValueError, match="has a sentence 0"):
        read_gold(file("0 1 1 S\n"), base=1)


@pytest.mark.parametrize("head", ["a b\tc d\t", "0.97\tthe 1-0 win\tder Sieg\t"])
def test_links_are_read_from_the_last_column_of_a_table(file, head):
    gold = read_gold(file(f"{head}\n{head}0-0 1p1\n{head}1-0\n"))
    assert gold == {0: Gold(), 1: Gold({(0, 0)}, {(0, 0), (1, 1)}), 2: Gold({(1, 0)}, {(1, 0)})} and gold.lines == 3
    assert read_gold(file("0-0\t1-1\n")) == {0: Gold({(0, 0), (1, 1)}, {(0, 0), (1, 1)})}


def test_lines_of_links_end_at_newlines_only(file):
    assert list(read_gold(file("0-0\x0b1-1\u20282-2\n3-3\n"))) == [0, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no links"),
        (b"\n \n", "holds no links"),
        (b"0-0\n1-\xff\n", "line 2: byte 0xff is not UTF-8"),
        (b"the house\n", "in no known format of gold links: its first line is 'the house'"),
        (b"0-0\n1:1\n", "line 2: '1:1' is no link `i-j`"),
        (b"1 1 1 S\n1 1 S\n", "line 2: '1 1 S' is not `sentence i j"),
        (b"a b\tc\t0-0 1-0\na\tb\tc\n", "line 2: 'c' is no link"),
        (b"a b\tc\n", "last column"),
        (b"\x80\x04\x95", "line 1: byte 0x80"),
    ],
)
def test_gold_that_cannot_be_read(file, content, message):
    with pytest.raises(ValueError, match=message):
        read_gold(file(content))


def test_gold_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="Gold file not found"):
        read_gold(tmp_path / "none")


def test_links_out_of_range_are_left_out_and_listed(file):
    gold = read_gold(file("1 1 1 S\n1 2 2 S\n2 1 1 S\n2 3 -99 P\n2 0 1 P\n2 2 1 S\n"))
    fitting, left_out = fit_gold(gold, [(2, 2), (3, 1)])
    assert fitting == {0: Gold({(0, 0), (1, 1)}, {(0, 0), (1, 1)}), 1: Gold({(0, 0), (1, 0)}, {(0, 0), (1, 0)})}
    assert left_out == ["sentence 2: (0, 1), of 3 and 1 words", "sentence 2: (3, -99), of 3 and 1 words"]
    assert describe_left_out(left_out, "gold") == (
        "gold: 2 links point past the words of the sentence and are not scored (numbers from 1): "
        "sentence 2: (0, 1), of 3 and 1 words; sentence 2: (3, -99), of 3 and 1 words"
    )
    assert describe_left_out(left_out * 6, "gold").endswith("; and 2 more")
    assert describe_left_out([], "gold") == ""


def test_gold_for_other_sentences_is_refused(file):
    pharaoh = read_gold(file("0-0\n1-1\n"))
    with pytest.raises(ValueError, match="has 2 lines, the input 3 sentences"):
        fit_gold(pharaoh, [(2, 2)] * 3)
    alignv2 = read_gold(file("1 1 1 S\n3 1 1 S\n"))
    assert fit_gold(alignv2, [(1, 1)] * 4)[1] == []  # sentences without links do not occur in this format
    with pytest.raises(ValueError, match="links for 2 sentences, up to number 9; the input has 3"):
        fit_gold(read_gold(file("1 1 1 S\n9 1 1 S\n")), [(1, 1)] * 3)
    # 12 of 400 links, as where the base is wrong
    diagonal = {n: Gold(possible={(i, i) for i in range(4)}) for n in range(100)}
    with pytest.raises(ValueError, match="12 of the 400 links of the gold file .*sentence 1: .4, 4., of 4 and 3"):
        fit_gold(diagonal, [(4, 3)] * 12 + [(4, 4)] * 88)
    assert len(fit_gold(diagonal, [(4, 3)] * 10 + [(4, 4)] * 90)[1]) == 10
    # a short file: most of its links
    with pytest.raises(ValueError, match="2 of the 3 links"):
        fit_gold({0: Gold(possible={(0, 0), (5, 5), (6, 6)})}, [(2, 2)])


@pytest.mark.parametrize("numbers", [(1, 2, 4), (2, 3, 4), (7, 30, 201), (0, 2, 3)])
def test_gold_sentences_whose_numbers_have_gaps_are_matched_in_their_order(file, numbers):
    links = read_gold(file("".join(f"{number:04} {word} 1 S\n" for word, number in enumerate(numbers, 1))))
    fitting, left_out = fit_gold(links, [(3, 1)] * 3)
    assert fitting == {n: Gold({(n, 0)}, {(n, 0)}) for n in range(3)} and left_out == []
    assert describe_order(links, fitting, "gold") and not describe_order(fitting, fitting, "gold")
    with pytest.raises(ValueError, match="links for 3 sentences.* the input has 2"):
        fit_gold(links, [(3, 1)] * 2)


def test_pharaoh_lines():
    assert pharaoh_line([(0, 0), (1, 2)]) == "0-0 1-2"
    assert pharaoh_line([(0, 0), (1, 2)], [0.97314, 1.0]) == "0-0:0.9731 1-2:1.0000"
    assert pharaoh_line([]) == ""


# ---- sentence pairs


def read(*files, **settings):
    return list(PairReader(list(files), **settings))


def test_pairs_of_one_file(file):
    content = "\ufeffdas Haus ||| the house\r\n\na ||| \n ||| b\nx\u2028y\x0bz ||| x\x85y\nkein|||Trenner ||| no\n"
    assert read(file(content)) == [
        (["das", "Haus"], ["the", "house"]),
        ([], []),
        (["a"], []),
        ([], ["b"]),
        (["x\u2028y\x0bz"], ["x\x85y"]),
        (["kein|||Trenner"], ["no"]),
    ]


def test_pairs_by_tabs(file):
    assert read(file("das Haus\tthe house\r\n\na\t\n\tb\nx ||| y\tz\nx|||y\tz")) == [
        (["das", "Haus"], ["the", "house"]),
        ([], []),
        (["a"], []),
        ([], ["b"]),
        (["x"], ["y", "z"]),
        (["x|||y"], ["z"]),
    ]


@pytest.mark.parametrize("separator", [" ||| ", "\t", None])
def test_words_of_lines_stand_between_spaces_and_tabs(file, separator):
    """Other white space, control and invisible characters are part of a word, as in fast_align."""
    source = ["10\u00a0000", "EUR,", "\u00a0", "l'a\u3000b", "\u2028", "\x0bx\x0c", "\x1c", "\x85", "a\rb", "\u200b"]
    target = ["\u00a0", '"x."', "日本語。", "\ufeff", "|", "10\u202f000", "\u00a0"]
    texts = "  ".join(source), (" " if separator == "\t" else "\t ").join(target)
    lines = [separator.join(texts)] if separator else texts
    files = [file(f" {line} \r\n", name) for line, name in zip(lines, "xy", strict=False)]
    assert read(*files) == [(source, target)]
    ((*sides,),) = read(*files, split=True)
    assert [side.strip(" ") for side in sides] == list(texts)


def test_text_that_is_no_line_has_no_words_unless_they_are_asked_for(file):
    path = file('{"source": "10\u00a0000 EUR.", "target": ["one word", "\u00a0"]}\n', "x.jsonl")
    lists = ["one word", "\u00a0"]
    assert read(path) == read(path, split=True) == [("10\u00a0000 EUR.", lists)]
    assert read(path, split=False) == [(["10\u00a0000", "EUR."], lists)]
    breaks = file('{"source": "one\\n two", "target": ["a"]}\n', "breaks.jsonl")
    assert read(breaks, split=False) == [(["one", "two"], ["a"])]


@pytest.mark.parametrize(
    ("source", "is_told"),
    [
        ("我们不相信。", True),
        ("我用 Python 写了一个很短的程序", True),
        ("猫が好きです。", True),
        ("ฉันรักแมวมาก", True),
        ("ຂ້ອຍຮັກແມວ", True),
        ("ខ្ញុំស្រលាញ់ឆ្មា", True),
        ("我们 不 相信 。", False),
        ("弗拉基米尔 先生 说 ： 我们 不 相信 。", False),
        ("猫 が 好き です 。", False),
        ("ฉัน รัก แมว มาก", False),
        ("나는 고양이를 좋아한다", False),  # Korean has blanks
        ("Donaudampfschifffahrtsgesellschaft", False),
        ("谢谢", False),  # may be a word
        ("。！？", False),
        ("", False),
    ],
)
def test_a_side_without_blanks_between_its_words_is_counted(file, source, is_told):
    lines = f"a ||| b\n{source} ||| x y\nx y ||| {source}\n"
    reader = PairReader([file(lines)])
    for _ in range(2):  # of a pass
        assert reader.check() == 3
        assert reader.unspaced == 2 * is_told
    rows = [{"source": [source or "x"], "target": "b"}]
    reader = PairReader([file("\n".join(map(json.dumps, rows)), "x.jsonl")])
    assert reader.check() == 1 and not reader.unspaced  # lists are words


def test_two_files_and_jsonl(file):
    assert read(file("a b\n\nc ||| d", "x"), file("A B\nB\nC\n", "y")) == [
        (["a", "b"], ["A", "B"]),
        ([], ["B"]),
        (["c", "|||", "d"], ["C"]),
    ]
    rows = [{"source": "a b", "target": ["A", "B C"], "id": 1}, {"source": "", "target": []}]
    assert read(file("\n".join(map(json.dumps, rows)), "x.jsonl")) == [("a b", ["A", "B C"]), ("", [])]
    assert read(file('{"de": "a", "en": "b"}\n\n'), format="jsonl", columns=("de", "en")) == [("a", "b"), ("", "")]


@pytest.mark.parametrize(
    ("line", "columns"),
    [
        ("1.05\tthe house\tdas  Haus", ("2", "3")),
        ("the house\tdas Haus \t0-0 1-1", ("1", "2")),
        ("17\tdas Haus\t4\tthe house\r", ("4", "2")),
        ("en\t the house\tx|||y\tdas Haus\t", ("2", "4")),
    ],
)
def test_columns_of_a_table(file, line, columns):
    path = file(f"{line}\n\n{line}\n")
    assert read(path, columns=columns) == [(words := (["the", "house"], ["das", "Haus"])), ([], []), words]
    assert read(path, columns=columns, split=True)[1] == ("", "")
    with pytest.raises(ValueError, match="line 1 .*--columns"):
        read(path)
    with pytest.raises(ValueError, match="line 1: --columns is 1 9"):
        read(path, columns=("1", "9"))


XML = {
    "tmx": '<tmx version="1.4"><body><tu><tuv lang="en"><seg>a</seg></tuv><tuv lang="de"><seg>b</seg></tuv></tu></body>'
    "</tmx>",
    "xliff": '<!-- x --><x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:1.2"><x:file><x:body><x:trans-unit>'
    "<x:source>a</x:source><x:target>b</x:target></x:trans-unit></x:body></x:file></x:xliff>",
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    ("name", "format"),
    [
        *(("X" + ending, "xliff") for ending in (".sdlxliff", ".MQXLIFF", ".mxliff", ".Xlf", ".xml", ".txml", ".de")),
        *(("x" + ending, "tmx") for ending in (".TMX", ".xml", ".XML", ".memory", "")),
    ],
)
def test_xml_is_known_by_its_ending_or_by_its_first_element(file, name, format, encoding):
    content = f'<?xml version="1.0" encoding="{encoding}"?>\n{XML[format]}'.encode(encoding)
    for path in (file(content, name), file(gzip.compress(content), f"{name}.gz")):
        reader = PairReader([path])
        assert reader.format == format and reader.check() == 1 and list(reader) == [("a", "b")]


def test_standard_input(monkeypatch):
    for files in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"a ||| b\n"))))
        reader = PairReader(files)
        assert reader.check() is None
        assert list(reader) == [(["a"], ["b"])]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "x.txt", "x.txt is empty: there are no sentence pairs"),
        (b"a ||| b\na b\n", "x.txt", "x.txt, line 2: .*[|]{3}.*tab.*'a b'"),
        (b"a|||b\n", "x.txt", "line 1: .*between spaces"),
        (b"a ||| b ||| c\n", "x.txt", "line 1: no pair"),
        (b"a\tb\nc\td\te\n", "x.tsv", "line 2 has 3 columns"),
        (b"a ||| b\n\nc \xe4 ||| d\n", "x.txt", "line 3: byte 0xe4 is not UTF-8"),
        (b'{"source": "a", "target": "b"}\n{"source": \n', "x.jsonl", "line 2: no JSON: .*It reads"),
        (b'["a", "b"]\n', "x.jsonl", "line 1: JSON, but no object"),
        (b'{"source": "a", "targt": "b"}\n', "x.jsonl", "line 1: no key 'target'.*Did you mean 'targt'"),
        (b'{"source": "a", "target": 3}\n', "x.jsonl", "line 1: 'target' is '3'"),
        (b'{"source": "a", "target": ["b", ""]}\n', "x.jsonl", "list of words"),
        (b'{"source": "\\ud800", "target": "b"}\n', "x.jsonl", "line 1: no JSON: .*surrogates"),
        pytest.param(b"\n" + b"[" * 100_000 + b"\n", "x.jsonl", "line 2: no JSON: .*recursion", id="lists"),
        pytest.param(b'{"x":' * 100_000 + b"\n", "x.jsonl", "line 1: no JSON: .*recursion", id="objects"),
        (b'{"source": "a", "target": "b", "score": NaN}\n', "x.jsonl", "line 1: no JSON: "),
        (b'{"source": "a", "target": "b", "score": 1e999}\n', "x.jsonl", "line 1: no JSON: "),
        pytest.param(b'{"id": ' + b"9" * 9_999 + b"}\n", "x.jsonl", "line 1: no JSON: ", id="digits"),
        (b"\x80\x04\x95\x0c", "x.pkl", "line 1: byte 0x80"),
        (b"PK\x03\x04\x95\x0c", "x.pt", "line 1: byte 0x95"),
        (b"<?xml version='1.0'?><html/>\n", "x.txt", "line 1: no pair .*--format"),
    ],
)
def test_lines_that_are_refused_are_named(file, content, name, message):
    path = file(content, name)
    with pytest.raises(ValueError, match=message):
        read(path)
    with pytest.raises(ValueError, match=message):
        PairReader([path]).check()


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        *(("x", {"columns": columns}, "--columns") for columns in (("0", "1"), ("de", "en"), ("1", "²"), ("2", "2"))),
        *(("x", {"columns": ("1", "2"), "format": format}, "--columns") for format in ("tmx", "xliff")),
        ("xy", {"columns": ("1", "2")}, "--columns"),
        ("xxx", {}, "none, one or two files"),
        ("x-", {}, "none, one or two files"),
        ("xx", {"format": "jsonl"}, "two files.*and the format jsonl"),
        ("z", {}, "Input file not found: .*z"),
        ("/", {}, "is a folder"),
        ("xy", {}, r"y has 5 lines, .*x 2: the former is longer by 3\. "),
        ("yx", {}, r"y has 5 lines, .*x 2: the former is longer by 3\. "),
        *((name, {}, "neither TMX nor XLIFF.*--format") for name in (["html.xml"], ["text.xml"], ["empty.xml"])),
        (["x.mqxlz"], {}, "x.mqxlz is a zip archive"),
    ],
)
def test_files_that_are_refused(file, tmp_path, monkeypatch, names, settings, message):
    monkeypatch.chdir(tmp_path)
    for name, content in {"x": b"a\tb\n\n", "y": b"a\nb\nc\nd\n\n", "html.xml": b"<html><tmx/></html>",
                          "text.xml": b"a ||| b\n", "empty.xml": b"", "x.mqxlz": b"PK\x03\x04\0"}.items():  # fmt: skip
        file(content, name)
    with pytest.raises(ValueError, match=message):
        read(*names, **settings)


def test_the_nearest_name_is_told(file, tmp_path):
    file("a ||| b\n", "pairs.txt")
    with pytest.raises(ValueError, match="Input file not found: .*pair.txt.*Did you mean 'pairs.txt'"):
        read(str(tmp_path / "pair.txt"))
