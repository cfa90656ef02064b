"""Gold links and sentence pairs, as they come in files."""

import pytest

from crosslingual_zoo.finetuning.align.adapt import as_pharaoh
from crosslingual_zoo.finetuning.align.gold import Gold, describe_fit, fit_gold, read_gold
from crosslingual_zoo.finetuning.align.pairs import PairReader


@pytest.fixture
def file(tmp_path):
    """file(content, name) -> path of a file with this text or these bytes."""

    def write(content, name="file.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


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
    gold = read_gold(file(content), base=base)
    assert {number: as_pharaoh(links) for number, links in gold.items()} == expected
    assert all(links.sure <= links.possible for links in gold.values())


def test_fit_gold_leaves_out_and_lists_links_out_of_range(file):
    gold = read_gold(file("1 1 1 S\n1 2 2 S\n2 1 1 S\n2 3 -99 P\n2 0 1 S\n2 2 1 S\n"))
    fitting, left_out = fit_gold(gold, [(2, 2), (3, 1)])
    assert {number: as_pharaoh(links) for number, links in fitting.items()} == {0: "0-0 1-1", 1: "0-0 1-0"}
    assert left_out == ["sentence 2: (0, 1), of 3 and 1 words", "sentence 2: (3, -99), of 3 and 1 words"]
    assert len(describe_fit(gold, fitting, left_out, "gold")) == 1
    assert not describe_fit(gold, fitting, [], "gold")


ONE = "1 1 1 S\n2 1 2 S\n"  # links of sentences 1 and 2
DIAGONAL = "".join(f"1 {i} {i} S\n" for i in range(1, 20))  # of sentence 1


@pytest.mark.parametrize(
    ("content", "base", "lengths", "expected"),
    [
        (ONE, None, [(1, 2)] * 2, [0, 1]),  # a sentence 2 of 2 counts from 1
        (f"0 1 1 S\n{ONE}", None, [(1, 2)] * 4, [0, 1, 2]),
        (ONE, 0, [(1, 2)] * 4, [1, 2]),
        (ONE, 1, [(1, 2)] * 4, [0, 1]),
        (DIAGONAL, None, [(1, 1), (19, 19), (1, 1)], [1]),  # only there it fits
        (DIAGONAL, None, [(19, 19), (1, 1), (1, 1)], [0]),
        ("7 1 1 S\n9 1 1 S\n", None, [(1, 2)] * 2, [0, 1]),  # as many as sentences: in their order
    ],
)
def test_fit_gold_base_of_sentences(file, content, base, lengths, expected):
    assert list(fit_gold(read_gold(file(content), base=base), lengths)[0]) == expected


@pytest.mark.parametrize("sentences", [3, 4])
def test_fit_gold_asks_for_a_base_of_sentences(file, sentences):
    with pytest.raises(ValueError, match="--gold-base"):
        fit_gold(read_gold(file(ONE)), [(1, 2)] * sentences)


def read(*files, **settings):
    return list(PairReader(list(files), **settings))


@pytest.mark.parametrize(("separator", "blanks"), [(" ||| ", "\t "), ("\t", "  ")])
def test_pair_reader_splits_lines_at_spaces_and_tabs(file, separator, blanks):
    """Other white space, control and invisible characters are part of a word, as in fast_align."""
    source = ["10\u00a0000", "EUR,", "\u00a0", "l'a\u3000b", "\u2028", "\x0bx\x0c", "\x1c", "\x85", "a\rb", "\u200b"]
    target = ["\u00a0", '"x."', "日本語。", "\ufeff", "|", "10\u202f000", "\u00a0"]
    sides = ["  ".join(source), blanks.join(target)]
    path = file(f" {separator.join(sides)} \r\n")
    two_files = [file(f" {side} \r\n", name) for side, name in zip(sides, "xy", strict=True)]
    assert read(path) == read(*two_files) == [(source, target)]
    assert read(path, split=True) == [tuple(sides)]


def test_pair_reader_of_columns(file):
    path = file("17\tdas Haus\t4\tthe house\r\n\nen\ta\tx|||y\tb")
    assert read(path, columns=("4", "2")) == [(["the", "house"], ["das", "Haus"]), ([], []), (["b"], ["a"])]
    with pytest.raises(ValueError, match="line 1"):
        read(path, columns=("1", "9"))


def test_fit_gold_refuses_links_of_other_sentences(file):
    with pytest.raises(ValueError):
        fit_gold(read_gold(file("0-0\n1-1\n")), [(2, 2)] * 3)
    # 12 of 400 links, as where the base is wrong
    diagonal = dict.fromkeys(range(100), Gold(possible={(0, 0), (1, 1), (2, 2), (3, 3)}))
    with pytest.raises(ValueError, match="12.*400"):
        fit_gold(diagonal, [(4, 3)] * 12 + [(4, 4)] * 88)
    assert len(fit_gold(diagonal, [(4, 3)] * 10 + [(4, 4)] * 90)[1]) == 10


def test_pair_reader_of_lines(file):
    expected = [(["das", "Haus"], ["the", "house"]), ([], []), (["a"], []), ([], ["b"]), (["x|||y"], ["z"])]
    assert read(file("\ufeffdas Haus ||| the house\r\n\na ||| \n ||| b\nx|||y ||| z\n")) == expected
    assert read(file("das Haus\tthe house\r\n\na\t\n\tb\nx|||y\tz")) == expected
    source = file("a b\n\nc ||| d", "x")
    assert read(source, file("A B\nB\nC\n", "y")) == [(["a", "b"], ["A", "B"]), ([], ["B"]), (["c", "|||", "d"], ["C"])]
    with pytest.raises(ValueError, match="z.* 2"):
        read(source, file("A\nB\n", "z"))


def test_pair_reader_of_jsonl_and_csv(file):
    rows = '{"source": "a b", "target": ["A", "B C"], "id": 1}\n{"source": "", "target": []}'
    assert read(file(rows, "x.jsonl")) == [("a b", ["A", "B C"]), ("", [])]
    path = file('id,de,en\r\n1,"das, Haus","the ""house""\nis"\r\n2,,x\r\n', "x.csv")
    assert read(path, columns=("de", "en")) == [(["das,", "Haus"], ["the", '"house"', "is"]), ([], ["x"])]


@pytest.mark.parametrize(
    ("text", "unspaced", "glued"),
    [
        ("我们不相信。", 1, 0),
        ("ฉันรักแมวมาก", 1, 0),
        ("我们 不 相信 。", 0, 0),
        ("나는 고양이를 좋아한다", 0, 0),
        ("Das Haus, das (dort) steht.", 0, 2),
        ("Das Haus , das ( dort ) steht .", 0, 0),
        ("Mr. Smith ... 3.5 a.b don't l' !? \u2026", 0, 1),
        ("क्या हाल है। 1) a:b", 0, 1),
        ("مرحبا، كيف؟", 0, 2),
    ],
)
def test_check_counts_what_looks_like_running_text(file, text, unspaced, glued):
    reader = PairReader([file(f"{text} ||| x\n\nx ||| y.\n")])
    for _ in range(2):  # of the current pass
        assert reader.check() == 3
        assert (reader.running_text["unspaced"], reader.running_text["glued"]) == (unspaced, glued + 1)


def test_words_of_lists_are_no_running_text(file):
    reader = PairReader([file('{"source": ["a."], "target": ["b."]}', "x.jsonl")], split=False)
    assert list(reader) == [(["a."], ["b."])]
    assert not reader.running_text.total()


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "x.txt", "x.txt"),
        (b"a ||| b\na b\n", "x.txt", "line 2: .*'a b'"),
        (b"a\tb\nc\td\te\n", "x.tsv", "line 2.* --columns"),
        (b"a ||| b\n\nc \xe4 ||| d\n", "x.txt", "line 3: byte 0xe4"),
        (b'{"source": "a", "target": "b"}\n{"source": \n', "x.jsonl", "line 2"),
        (b'{"source": "a", "targt": "b"}\n', "x.jsonl", "line 1: .*'target'"),
        (b"source,x\na,b\n", "x.csv", "'target'"),
        (b"<html><tmx/></html>", "x.xml", "x.xml"),
    ],
)
def test_pair_reader_refuses(file, content, name, message):
    with pytest.raises(ValueError, match=message):
        read(file(content, name))


@pytest.mark.parametrize(("content", "base"), [("", None), ("0-0\n1:1\n", None), ("1-1 2p3\n", None), ("0-1 2p3\n", 1)])
def test_read_gold_refuses(file, content, base):
    with pytest.raises(ValueError, match=r"file\.txt"):
        read_gold(file(content), base=base)
