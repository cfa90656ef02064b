"""The aligner's formats, read and written beside other tools that know them."""

import csv
import gzip
import io
import json
import sys
import tracemalloc

import pandas as pd
import pytest
from translate.storage.tmx import tmxfile
from translate.storage.xliff import Xliff1File

from finetuning.align.formats import FORMATS
from finetuning.align.pairs import PairReader
from finetuning.align.xml_pairs import XmlPairs
from modeling.word_alignment import WordAlignment

PAIRS = [
    ('Das "Haus" & <b> 🏠', "the\x01 house"),
    (["ein Wort", "zwei"], "a\rb"),
    ("", ""),
    ("e\u0301 e\u0301 nein", "é no"),
]
FOUND = [
    WordAlignment(['"', "Haus", '"', "&", "🏠"], ["the", "house"], [(0, 0), (1, 1), (4, 1)], [0.9, 0.75, 0.5]),
    WordAlignment(["ein Wort", "zwei"], ["a", "b"], [(0, 1)], [1.0]),
    WordAlignment([], [], [], []),
    WordAlignment(["e\u0301", "e\u0301", "nein"], ["é", "no"], [(1, 0), (2, 1)], [0.6, 0.7]),
]


def written(name, probabilities=False):
    form = FORMATS[name](probabilities, "fp32", lambda: ("de", "en"))
    records = (form.record(number, *of) for number, of in enumerate(zip(PAIRS, FOUND, strict=True)))
    return "".join([form.header(), *records, form.footer()])


def test_pandas_reads_the_table():
    table = pd.read_csv(io.StringIO(written("tsv", probabilities=True)), sep="\t", keep_default_na=False)
    expected = [
        (number, i, j, found.source[i], found.target[j], probability)
        for number, found in enumerate(FOUND)
        for (i, j), probability in zip(found.links, found.probabilities, strict=True)
    ]
    assert list(table.itertuples(index=False, name=None)) == expected
    assert list(table) == list(pd.read_csv(io.StringIO(written("tsv")), sep="\t")) + ["probability"]


def test_word_pairs_have_an_empty_line_behind_each_sentence():
    expected = '"\tthe\nHaus\thouse\n🏠\thouse\n\nein Wort\tb\n\n\ne\u0301\té\nnein\tno\n\n'
    assert written("words") == expected
    assert written("words", probabilities=True).startswith('"\tthe\t0.9000\n')


def test_a_word_comes_out_as_it_is():
    """But for what ends a field or a line: there is a word more, or less, for whoever reads them."""
    words = ["10\u00a0000", "\u00a0", "a\u3000b", "New  York", "a\tb\r\nc"]
    found = WordAlignment(words, ["x"], [(i, 0) for i in range(5)], [0.9] * 5)
    record = {name: FORMATS[name](False, "bf16", lambda: None).record(0, (words, ["x"]), found) for name in FORMATS}
    assert record["words"].split("\n")[:-2] == [f"{word}\tx" for word in [*words[:4], "a b  c"]]
    assert [row[3] for row in csv.reader(io.StringIO(record["tsv"], newline=""), "excel-tab")] == words
    row = json.loads(record["json"])
    assert row["source"] == words and row["precision"] == "bf16"
    assert record["pharaoh"] == "0-0 1-0 2-0 3-0 4-0\n"


def test_translate_toolkit_reads_the_translation_memory():
    """Pairs, links, and where the words are in the text."""
    store = tmxfile.parsestring(written("tmx").encode(), "de", "en")
    texts = [tuple(side if isinstance(side, str) else " ".join(side) for side in pair) for pair in PAIRS]
    texts[0] = texts[0][0], "the\ufffd house"  # XML has no control characters
    assert len(store.units) == len(PAIRS)
    for unit, (source, target), found in zip(store.units, texts, FOUND, strict=True):
        assert (unit.source or "", unit.target or "") == (source, target)
        links, *words = [part.text or "" for part in unit.xmlelement.iter("prop")]
        assert [tuple(map(int, link.split("-"))) for link in links.split()] == found.links
        for text, offsets, side in zip((source, target), words, (found.source, found.target), strict=True):
            assert [text[slice(*map(int, offset.split(":")))] for offset in offsets.split()] == side
    assert list(XmlPairs(io.BytesIO(written("tmx").encode()), "x", "tmx", None)) == texts


def read(content, format, languages=None):
    return list(
        XmlPairs(io.BytesIO(content if isinstance(content, bytes) else content.encode()), "x", format, languages)
    )


def test_what_translate_toolkit_writes():
    texts = [("a < b & c", "Ä > b"), ("two\nlines", "zwei\nZeilen"), ("not yet", "")]
    memory = tmxfile(sourcelanguage="en", targetlanguage="de")
    document = Xliff1File(sourcelanguage="en", targetlanguage="de")
    for source, target in texts:
        memory.addtranslation(source, "en", target, "de")
        unit = document.addsourceunit(source)
        if target:
            unit.target = target
    for content, format in ((bytes(memory), "tmx"), (bytes(document), "xliff")):
        pairs = XmlPairs(io.BytesIO(content), "x", format, None)
        assert list(pairs) == texts and pairs.languages == ("en", "de")


TMX = '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx><header srclang="en"/><body>{}</body></tmx>'


def unit(**texts):
    tags = {name.replace("_", "-"): text for name, text in texts.items()}
    return "<tu>" + "".join(f'<tuv xml:lang="{tag}"><seg>{text}</seg></tuv>' for tag, text in tags.items()) + "</tu>"


def test_languages_of_a_translation_memory():
    content = TMX.format(unit(fr="un", en_US="one", de="eins") + unit(de="zwei", EN_us="two") + unit(en_GB="three"))
    assert read(content, "tmx") == [("one", "un"), ("two", ""), ("", "")]
    assert read(content, "tmx", ("de", "EN")) == [("eins", "one"), ("zwei", "two"), ("", "three")]
    with pytest.raises(ValueError, match="en-US"):
        read(content, "tmx", ("en", "it"))


def test_inline_tags_leave_their_text_and_not_their_codes():
    bold = '<bpt i="1">&lt;b&gt;<sub>c</sub></bpt><hi>bold <hi>one</hi></hi><ept i="1">&lt;/b&gt;</ept>'
    seg = f"a {bold} <!-- x -->b<ph/>."
    assert read(TMX.format(unit(en=seg, de="x")), "tmx") == [("a bold one b.", "x")]
    first = """<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en"><body><group>
        <trans-unit id="1"><source>a <g id="1">b<x id="2"/></g></source>
        <alt-trans><source>no</source><target>nein</target></alt-trans><note>n</note></trans-unit>
        </group></body></file></xliff>"""
    assert read(first, "xliff") == [("a b", "")]
    second = """<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" srcLang="en"><x:file id="f"><x:unit id="1">
        <x:segment><x:source>One <x:pc id="1">big</x:pc></x:source><x:target>Eins</x:target></x:segment>
        <x:ignorable><x:source> </x:source></x:ignorable>
        <x:segment><x:source>Two</x:source></x:segment></x:unit></x:file></x:xliff>"""
    assert read(second, "xliff") == [("One big", "Eins"), ("Two", "")]


BOMB = "<!DOCTYPE tmx [<!ENTITY a '{}'><!ENTITY b '{}'><!ENTITY c '{}'>]><tmx>&c;</tmx>".format(
    "a" * 10_000, "&a;" * 100, "&b;" * 100
)


@pytest.mark.parametrize(
    "content, message",
    [
        (TMX.format(unit(en="a", de="b"))[:-20], "line 2"),
        (TMX.format(unit(en="\x01", de="b")), "line 2"),
        (TMX.format(unit(en="a", ja="b")).replace("?>", ' encoding="shift_jis"?>').encode(), "encoding"),
        (BOMB, "amplification"),
        ("<xliff/>", "<xliff>"),
        (TMX.format(unit(en="a", de="b") + "<tu><tuv><seg>a</seg></tuv></tu>"), "unit 2.*xml:lang"),
        (TMX.format("<tu/>"), "unit 1.*<tuv>"),
        (TMX.format(unit(en="a") + unit(en="b")), "two languages"),
    ],
)
def test_xml_that_is_refused(content, message):
    with pytest.raises(ValueError, match=f"^x.*{message}"):
        read(content, "tmx")


def test_memory_does_not_grow_with_the_file():
    peaks = []
    for count in (500, 5000):
        content = io.BytesIO(TMX.format(unit(en="one house", de="ein Haus") * count).encode())
        tracemalloc.start()
        assert sum(1 for _ in XmlPairs(content, "x", "tmx", None)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_gzip_standard_input_and_two_files(tmp_path, monkeypatch):
    content = TMX.format(unit(en="one", de="eins")).encode()
    (tmp_path / "x.tmx.gz").write_bytes(gzip.compress(content))
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(json.dumps({"source": "one", "target": "eins"}).encode()))
    for name in ("x.tmx.gz", "x.jsonl.gz"):
        reader = PairReader([str(tmp_path / name)])
        assert reader.check() == 1 and list(reader) == [("one", "eins")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    reader = PairReader([], "tmx")
    assert list(reader) == [("one", "eins")] and reader.languages == ("en", "de")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a ||| b\n" * 99)[:-9])
    for files in (["cut.gz"], ["x.tmx.gz"] * 2):
        with pytest.raises(ValueError, match="gzip|two files"):
            list(PairReader([str(tmp_path / name) for name in files]))
