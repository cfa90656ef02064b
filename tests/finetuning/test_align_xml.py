"""Sentence pairs of TMX and XLIFF; compared with what translate-toolkit writes."""

import gzip
import io
import tracemalloc

import pytest
from translate.storage.tmx import tmxfile
from translate.storage.xliff import Xliff1File

from finetuning.align.pairs import PairReader
from finetuning.align.xml_pairs import XmlPairs


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
    assert read(content, "tmx") == [("one", "un"), ("two", ""), ("three", "")]
    assert read(content, "tmx", ("de", "EN")) == [("eins", "one"), ("zwei", "two"), ("", "three")]
    with pytest.raises(ValueError, match="en-US"):
        read(content, "tmx", ("en", "it"))


@pytest.mark.parametrize(
    ("source", "units", "expected"),
    [
        ("en-US", [{"de": "eins", "en": "one"}], [("one", "eins")]),
        ("*all*", [{"de": "eins", "en": "one"}], [("eins", "one")]),
        (  # other variants, where those of the first unit are missing
            "en",
            [{"en_US": "one", "de_DE": "eins"}, {"de_AT": "zwei", "en_GB": "two"}, {"en_GB": "3", "en_US": "three"}],
            [("one", "eins"), ("two", "zwei"), ("three", "")],
        ),
        ("pt-BR", [{"pt_PT": "um", "pt_BR": "one"}, {"pt_PT": "dois"}], [("one", "um"), ("", "dois")]),
    ],
)
def test_variants_of_languages(tmp_path, source, units, expected):
    path = tmp_path / "x.tmx"
    path.write_text(TMX.replace('"en"', f'"{source}"').format("".join(unit(**texts) for texts in units)))
    reader = PairReader([str(path)])
    assert list(reader) == list(reader) == expected  # the second pass knows the languages of the first


def test_inline_tags_leave_their_text_and_not_their_codes():
    bold = '<bpt i="1">&lt;b&gt;<sub>c</sub></bpt><hi>bold <hi>one</hi></hi><ept i="1">&lt;/b&gt;</ept>'
    seg = f"a {bold} <!-- x -->b<ph/>."
    assert read(TMX.format(unit(en=seg, de="x")), "tmx") == [("a bold one b.", "x")]
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
    segmented = f"<seg-source>{segmented}</seg-source>" if segmented else ""
    return f'<trans-unit id="u"><source>{source}</source>{segmented}<target>{target}</target></trans-unit>'


def seg(mid, text, more=""):
    return f'<mrk mtype="seg" mid="{mid}">{text}</mrk>{more}'


@pytest.mark.parametrize(
    ("source", "segmented", "target", "expected"),
    [
        ("One. Two.", TWO, seg(7, "Eins.") + seg(8, "Zwei."), [("One.", "Eins."), ("Two.", "Zwei.")]),
        # in another order, one that the source does not have
        ("x", TWO, seg(8, "Zwei.") + seg(9, "Drei."), [("One.", ""), ("Two.", "Zwei."), ("", "Drei.")]),
        (TWO, "", seg(7, "Eins."), [("One.", "Eins."), ("Two.", "")]),
        ("One. Two.", TWO, "", [("One.", ""), ("Two.", "")]),
        # inside of tags, and over two of them
        ("x", f"<g><g>{TWO}</g>{seg(7, 'More.')}</g>", f"<g>{seg(7, 'E<g>ins</g>.')}</g>",
         [("One. More.", "Eins."), ("Two.", "")]),
        # text outside of the segments
        ("x", f"1) {TWO}", seg(7, "Eins.", " ; <x/>"), [("One.", "Eins."), ("Two.", ""), ("1)", ";")]),
        # without mid: by order
        ("x", '<mrk mtype="seg">One.</mrk><mrk mtype="seg">Two.</mrk>', '<mrk mtype="seg">Eins.</mrk>',
         [("One.", "Eins."), ("Two.", "")]),
        # segments in one side only: the unit as a whole, whose words do not run together
        ("One. Two.", TWO, "Eins. Zwei.", [("One. Two.", "Eins. Zwei.")]),
        ("One. Two.", "", TWO.replace("> <", "><"), [("One. Two.", "One. Two.")]),
        ('<mrk mtype="term" mid="1">One</mrk>.', "", "Eins.", [("One.", "Eins.")]),
    ],
)  # fmt: skip
def test_segments_of_a_unit_are_pairs(source, segmented, target, expected):
    found = read(XLIFF.format(xliff_unit(source, target, segmented) + xliff_unit("a", "b")), "xliff")
    assert [tuple(" ".join(side.split()) for side in pair) for pair in found] == [*expected, ("a", "b")]


@pytest.mark.parametrize(
    "tag",
    [
        *(f'<{tag} id="1" ctype="lb"/>' for tag in ("x", "ph", "g", "bx", "it", "bpt")),
        *(f'<x id="1" ctype="{kind}"/>' for kind in ("pb", "x-br", "x-lb", "x-p", "x-p-1", "x-li", "x-h2")),
        *(f"<ph>{code}</ph>" for code in ("&lt;br>", "&amp;lt;br/&amp;gt;", "&lt;br0/>", '&lt;td class="a">')),
        *(f'<it>&lt;mq:ch val="{value}" /></it>' for value in ("&amp;#xA;", "&#xA;", " ")),
        *(f'<ph id="1" equiv="{name}"/>' for name in ("LINE_BREAK", "START_PARAGRAPH", "CLOSE_PARAGRAPH_1")),
        *('<x id="1" equiv-text="&lt;br>"/>', '<ph id="1" disp="&lt;BR />"/>', '<hi type="cb"></hi>'),
    ],
)  # fmt: skip
def test_a_tag_that_shows_a_line_break_or_a_block_parts_words(tag):
    assert read(XLIFF.format(xliff_unit(f"a{tag}b", "c")), "xliff") == [("a\nb", "c")]
    assert read(TMX.format(unit(en=f"a{tag}b", de="c")), "tmx") == [("a\nb", "c")]


def test_deletions_of_trados_are_left_out_and_a_block_ends_its_words():
    assert read(XLIFF.format(xliff_unit('a<g ctype="x-p">b</g>c', "d")), "xliff") == [("a\nb\nc", "d")]
    changed = seg(1, 'a <mrk mtype="x-sdl-deleted">b</mrk><mrk mtype="x-sdl-added">c</mrk>')
    assert read(XLIFF.format(xliff_unit(changed, changed)), "xliff") == [("a c", "a c")]


@pytest.mark.parametrize("code", ["&lt;b>", "&lt;pre>", "&lt;param>", "&lt;broken/>", '&lt;mq:ch val="x" />', "{0}"])
def test_other_codes_part_no_words(code):
    source = f'a<ph id="1" equiv-text="{code.replace(chr(34), "&quot;")}">{code}</ph>b'
    assert read(XLIFF.format(xliff_unit(source, "c")), "xliff") == [("ab", "c")]


def test_languages_of_xliff():
    """A <file> of other languages is refused, and `languages` names those to read."""
    file = '<file source-language="{}"{}><body>{}</body></file>'
    of = {tag: f' target-language="{tag}"' for tag in ("de-AT", "fr")}
    files = file.format("en", of["de-AT"], xliff_unit("one", "eins")) + file.format(
        "en", of["fr"], xliff_unit("two", "deux")
    )
    content = f'<xliff version="1.2">{files}</xliff>'
    with pytest.raises(ValueError, match="unit 2 .*en and fr.*en and de-AT.*--languages en fr"):
        read(content, "xliff")
    assert read(content, "xliff", ("en", "de")) == [("one", "eins"), ("two", "")]
    assert read(content, "xliff", ("en", "fr")) == [("one", ""), ("two", "deux")]
    with pytest.raises(ValueError, match="en and it; .*en, de-AT, fr"):
        read(content, "xliff", ("en", "it"))
    unnamed = f'<xliff version="1.2">{file.format("en", "", xliff_unit("one", "eins"))}</xliff>'
    for languages, expected in ((None, ("en", "und")), (("en", "de"), ("en", "de"))):
        pairs = XmlPairs(io.BytesIO(unnamed.encode()), "x", "xliff", languages)
        assert list(pairs) == [("one", "eins")] and pairs.languages == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TMX.format(unit(en="a", de="b"))[:-20], "line 2"),
        (TMX.format(unit(en="a", ja="b")).replace("?>", ' encoding="shift_jis"?>').encode(), "encoding"),
        (TMX.format(unit(en="a", de="b") + "<tu><tuv><seg>a</seg></tuv></tu>"), "unit 2.*xml:lang"),
        (TMX.format(unit(en="a", de="b") + '<tu><tuv xml:lang="en">a</tuv></tu>'), "unit 2.*<seg>.* en"),
        (TMX.format(unit(en="a", de=" ")), "en and de; .*text in en[.]"),
        (TMX.format(unit(en="<hi>" * 100_000 + "</hi>" * 100_000, de="y")), "nested"),
        (b"PK\x03\x04 and more", "archive"),
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
        *(("X" + ending, "xliff") for ending in (".sdlxliff", ".MQXLIFF", ".Xlf", ".xml", ".de")),
        *(("x" + ending, "tmx") for ending in (".TMX", ".XML", ".memory", "")),
    ],
)
def test_xml_is_known_by_its_ending_or_by_its_first_element(tmp_path, name, format, encoding):
    content = f'<?xml version="1.0" encoding="{encoding}"?>\n{XML[format]}'.encode(encoding)
    for path, written in ((tmp_path / name, content), (tmp_path / f"{name}.gz", gzip.compress(content))):
        path.write_bytes(written)
        reader = PairReader([str(path)])
        assert reader.format == format and reader.check() == 1 and list(reader) == [("a", "b")]
