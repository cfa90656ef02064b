"""Sentence pairs of TMX and XLIFF; compared with what translate-toolkit writes."""

import gzip
import io

import pytest
from translate.storage.tmx import tmxfile
from translate.storage.xliff import Xliff1File

from crosslingual_zoo.finetuning.align.pairs import PairReader
from crosslingual_zoo.finetuning.align.xml_pairs import XmlPairs


def read(content, format="tmx", languages=None):
    return list(XmlPairs(io.BytesIO(content.encode()), "x", format, languages))


def unit(**texts):
    texts_by_tag = {name.replace("_", "-"): text for name, text in texts.items()}
    variants = [f'<tuv xml:lang="{tag}"><seg>{text}</seg></tuv>' for tag, text in texts_by_tag.items()]
    return f"<tu>{''.join(variants)}</tu>"


def test_xml_pairs_of_what_translate_toolkit_writes():
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
        assert list(pairs) == texts
        assert pairs.languages == ("en", "de")


TMX = '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx><header srclang="en"/><body>{}</body></tmx>'


def tmx(*units):
    return TMX.format("".join(units))


def test_xml_pairs_of_languages_of_tmx():
    content = tmx(unit(fr="un", en_US="one", de="eins"), unit(de="zwei", EN_us="two"), unit(en_GB="three"))
    assert read(content) == [("one", "un"), ("two", ""), ("three", "")]
    assert read(content, languages=("de", "EN")) == [("eins", "one"), ("zwei", "two"), ("", "three")]
    with pytest.raises(ValueError, match="en-US"):
        read(content, languages=("en", "it"))


def test_xml_pairs_of_a_language_whose_tag_begins_another_one():
    content = tmx(unit(en="one", fil="isa", fi="yksi"))
    assert read(content, languages=("EN", "FI")) == [("one", "yksi")]
    assert read(content, languages=("fil", "en")) == [("isa", "one")]
    with pytest.raises(ValueError, match="fil"):
        read(content, languages=("f", "en"))


def test_xml_pairs_have_the_text_of_inline_tags_and_not_their_codes():
    bold = '<bpt i="1">&lt;b&gt;<sub>c</sub></bpt><hi>bold <hi>one</hi></hi><ept i="1">&lt;/b&gt;</ept>'
    assert read(tmx(unit(en=f"a {bold} <!-- x -->b<ph/>.", de="x"))) == [("a bold one b.", "x")]
    first = """<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en"><body><group>
        <trans-unit id="1"><source>a <g id="1">b<x id="2"/></g></source>
        <alt-trans><source>no</source><target>nein</target></alt-trans><note>n</note></trans-unit>
        <trans-unit id="2"><source>un<g id="1">able</g></source><target>un<bpt id="1">b</bpt>fähig</target></trans-unit>
        </group></body></file></xliff>"""
    assert read(first, "xliff") == [("a b", ""), ("unable", "unfähig")]
    second = """<x:xliff xmlns:x="urn:oasis:names:tc:xliff:document:2.0" srcLang="en"><x:file id="f"><x:unit id="1">
        <x:segment><x:source>One <x:pc id="1">big</x:pc></x:source><x:target>Eins</x:target></x:segment>
        <x:ignorable><x:source> </x:source></x:ignorable>
        <x:segment><x:source>Two</x:source></x:segment></x:unit></x:file></x:xliff>"""
    assert read(second, "xliff") == [("One big", "Eins"), ("Two", "")]


XLIFF = """<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en"
    target-language="de"><body>{}</body></file></xliff>"""
TWO = '<mrk mtype="seg" mid="7">One.</mrk> <mrk mtype="seg" mid="8">Two.</mrk>'


def xliff_unit(source, target, segmented=""):
    segments = f"<seg-source>{segmented}</seg-source>" if segmented else ""
    return f'<trans-unit id="u"><source>{source}</source>{segments}<target>{target}</target></trans-unit>'


def xliff(*units):
    return XLIFF.format("".join(units))


def seg(mid, text, more=""):
    return f'<mrk mtype="seg" mid="{mid}">{text}</mrk>{more}'


def test_xml_pairs_leave_out_deletions_of_trados():
    assert read(xliff(xliff_unit('a<g ctype="x-p">b</g>c', "d")), "xliff") == [("a\nb\nc", "d")]
    changed = seg(1, 'a <mrk mtype="x-sdl-deleted">b</mrk><mrk mtype="x-sdl-added">c</mrk>')
    assert read(xliff(xliff_unit(changed, changed)), "xliff") == [("a c", "a c")]


@pytest.mark.parametrize(
    ("source", "segmented", "target", "expected"),
    [
        # in another order, one that the source does not have
        ("x", TWO, seg(8, "Zwei.") + seg(9, "Drei."), [("One.", ""), ("Two.", "Zwei."), ("", "Drei.")]),
        (TWO, "", seg(7, "Eins."), [("One.", "Eins."), ("Two.", "")]),
        # inside of tags, and over two of them
        ("x", f"<g><g>{TWO}</g>{seg(7, 'More.')}</g>", f"<g>{seg(7, 'E<g>ins</g>.')}</g>",
         [("One. More.", "Eins."), ("Two.", "")]),
        # text outside of the segments
        ("x", f"1) {TWO}", seg(7, "Eins.", " ; <x/>"), [("One.", "Eins."), ("Two.", ""), ("1)", ";")]),
        # without mid: by order
        ("x", '<mrk mtype="seg">One.</mrk><mrk mtype="seg">Two.</mrk>', '<mrk mtype="seg">Eins.</mrk>',
         [("One.", "Eins."), ("Two.", "")]),
        # segments in one side only: the unit as a whole, whose words do not run together
        ("One. Two.", "", TWO.replace("> <", "><"), [("One. Two.", "One. Two.")]),
        ('<mrk mtype="term" mid="1">One</mrk>.', "", "Eins.", [("One.", "Eins.")]),
    ],
)  # fmt: skip
def test_xml_pairs_are_the_segments_of_a_unit(source, segmented, target, expected):
    pairs = read(xliff(xliff_unit(source, target, segmented), xliff_unit("a", "b")), "xliff")
    squeezed = [(" ".join(source.split()), " ".join(target.split())) for source, target in pairs]
    assert squeezed == [*expected, ("a", "b")]


@pytest.mark.parametrize(
    ("tag", "between"),
    [
        *((tag, "\n") for tag in ('<x id="1" ctype="lb"/>', '<x id="1" ctype="x-p-1"/>', '<ph equiv="LINE_BREAK"/>')),
        *((tag, "\n") for tag in ("<ph>&amp;lt;br/&amp;gt;</ph>", '<it>&lt;mq:ch val="&#xA;" /></it>')),
        *((f"<ph>{code}</ph>", "") for code in ("&lt;b>", "&lt;pre>", '&lt;mq:ch val="x" />', "{0}")),
    ],
)
def test_xml_pairs_part_words_at_tags_of_breaks_and_blocks(tag, between):
    assert read(xliff(xliff_unit(f"a{tag}b", "c")), "xliff") == [(f"a{between}b", "c")]
    assert read(tmx(unit(en=f"a{tag}b", de="c"))) == [(f"a{between}b", "c")]


def test_xml_pairs_of_languages_of_xliff():
    """A <file> of other languages is refused, and `languages` names those to read."""
    file = '<file source-language="en" target-language="{}"><body>{}</body></file>'
    german = file.format("de-AT", xliff_unit("one", "eins"))
    french = file.format("fr", xliff_unit("two", "deux"))
    content = f'<xliff version="1.2">{german}{french}</xliff>'
    with pytest.raises(ValueError, match="--languages en fr"):
        read(content, "xliff")
    assert read(content, "xliff", ("en", "de")) == [("one", "eins"), ("two", "")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tmx(unit(en="a", de="b"))[:-20], "line 2"),
        (tmx(unit(en="a", ja="b")).replace("?>", ' encoding="shift_jis"?>'), "encoding"),
        (tmx(unit(en="a", de="b"), "<tu><tuv><seg>a</seg></tuv></tu>"), "unit 2"),
        (tmx(unit(en="a", de=" ")), "en and de"),
        ("PK\x03\x04 and more", "XML"),
    ],
)
def test_xml_pairs_refuses(content, message):
    with pytest.raises(ValueError, match=f"^x.*{message}"):
        read(content)


@pytest.mark.parametrize(
    ("names", "content"),
    [
        ("x.TMX x.xml x", tmx(unit(en="a", de="b"))),
        ("x.sdlxliff x.MQXLIFF x.Xlf x.de", xliff(xliff_unit("a", "b"))),
    ],
    ids=["tmx", "xliff"],
)
def test_pair_reader_knows_xml_by_its_ending_or_first_element(tmp_path, names, content):
    for name in names.split():
        (tmp_path / name).write_text(content)
        with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
            file.write(content)
    for path in tmp_path.iterdir():
        reader = PairReader([str(path)])
        assert reader.check() == 1
        assert list(reader) == list(reader) == [("a", "b")]
