"""Sentence pairs of TMX 1.4 (translation memories) and XLIFF (1.2 and 2): read unit by unit, in constant memory."""

import contextlib
import html
import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO
from xml.etree import ElementTree

ROOTS = ("tmx", "xliff")
UNITS = ("tu", "trans-unit", "unit")  # of TMX, XLIFF 1.2, XLIFF 2
CODES = ("bpt", "ept", "it", "ph", "ut")  # inline tags that hold markup of the original document; others hold text
# attributes that say what kind an inline tag is of: in TMX, XLIFF 1.2, XLIFF 2 and the latter's format style module
KINDS = ("type", "ctype", "subType", "{urn:oasis:names:tc:xliff:fs:2.0}fs")
SHOWN = ("equiv", "equiv-text", "equivStart", "disp", "dispStart", "val")  # the tag as HTML, its name or its text
BLOCK = "p|li|div|t[rdh]|h[1-6]"  # of HTML
# of a line, a page or a column, the edge of a block, or white space: kinds (`x-br` and `xlf:lb` have prefixes), names
# of Angular, HTML (OmegaT writes `<br0/>`), and characters of memoQ
BREAK = re.compile(
    rf"^(.*[-:])?(lb|pb|cb|br)$|^x-({BLOCK})\b|LINE_BREAK|_PARAGRAPH|</?(br\d*|{BLOCK})(?![\w-])|"
    r'^\s+$|\bmq:ch val="\s',
    re.IGNORECASE,
)
LANGUAGES = ("source-language", "srcLang"), ("target-language", "trgLang")  # attributes of XLIFF 1.2, XLIFF 2
UNDETERMINED = "und"  # the language tag of files that name none
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"

CHUNK = 2**14  # bytes


class XmlPairs:
    """The pairs of a TMX or XLIFF stream: text without inline tags; a tag for a line break becomes a line break.

    A unit of TMX is a pair, and so is each segment of a unit of XLIFF. In XLIFF 1.2, <mrk mtype="seg"> with the same
    mid in both sides is a segment. If there is text outside of segments, it is a separate pair. A unit with segments in
    only one of two sides with text is one pair.

    languages: of source and target; `en` also matches `en-US`. Default for TMX: the header's `srclang` and the first
    other language of the first unit with two; if a unit lacks one of these, another variant of the same language, such
    as `en-GB` for `en-US`. Default for XLIFF: those of the first <file>. They are known after the first such unit.

    A unit without one of the languages, or without a target, is a pair with an empty side, so that units keep their
    numbers. Raises ValueError, with line or unit, for a file of another format; if no unit has text in both languages;
    and for XLIFF with several pairs of languages unless `languages` names one.
    """

    def __init__(self, stream: BinaryIO, name: str, format: str, languages: tuple[str, str] | None):
        self.stream = stream
        self.name = name
        self.format = format
        self.languages = languages
        self.are_given = languages is not None
        self.with_text: dict[str, None] = {}  # languages, in their order

    def __iter__(self) -> Iterator[tuple[str, str]]:
        read_unit = self._tmx_pairs if self.format == "tmx" else self._xliff_pairs
        has_pair = False
        number = 0
        try:
            for number, (unit, attributes) in enumerate(self._units(), start=1):
                for source, target in read_unit(f"{self.name}, unit {number}", unit, attributes):
                    if source.strip() and target.strip():
                        has_pair = True
                    yield source, target
        except (ElementTree.ParseError, LookupError, RecursionError) as error:  # of an encoding, of a deep unit
            raise ValueError(f"{self.name} is no XML that can be read, after unit {number}: {error}.") from None
        if number and not has_pair:
            languages = " and ".join(self.languages or ("two languages",))
            languages_with_text = ", ".join(self.with_text) or "no language"
            raise ValueError(
                f"{self.name} has no unit with text in {languages}; there is text in {languages_with_text}. "
                "--languages names two of them."
            )

    def _units(self) -> Iterator[tuple[Any, dict[str, str]]]:
        """Each unit, and the attributes of the header or file around it. Other elements are dropped at their end."""
        parser = ElementTree.XMLPullParser(["start", "end"])
        head_attributes: dict[str, str] = {}
        file_attributes: dict[str, str] = {}
        opened: list[Any] = []
        inside = 0  # units that are open
        for chunk in iter(lambda: self.stream.read(CHUNK), b""):
            try:
                parser.feed(chunk)
            except ValueError as error:
                raise ValueError(f"{self.name} is no XML that can be read: {error}.") from None
            for event, element in parser.read_events():
                name = _local(element.tag)
                if event == "start":
                    if not opened and name != self.format:
                        raise ValueError(f"{self.name} is no {self.format.upper()}: it is <{name}>.")
                    if name in ("header", "xliff"):
                        head_attributes |= element.attrib
                    elif name == "file":
                        file_attributes = element.attrib
                    opened.append(element)
                    if name in UNITS:
                        inside += 1
                    continue
                opened.pop()
                if name in UNITS:
                    inside -= 1
                if inside:
                    continue
                if name in UNITS:
                    yield element, head_attributes | file_attributes
                if opened:
                    opened[-1].remove(element)
        parser.close()

    def _tmx_pairs(self, where: str, unit: Any, attributes: dict[str, str]) -> Iterator[tuple[str, str]]:
        texts: dict[str, str] = {}
        for variant in unit.iterfind("{*}tuv"):
            language = variant.get(XML_LANG) or variant.get("lang")
            segment = variant.find("{*}seg")
            if not language or segment is None:
                raise ValueError(f"{where}: a <tuv> has no xml:lang or no <seg>, which TMX requires.")
            texts.setdefault(language, _text(segment))
        self._note_languages(texts.items())
        if self.languages is None and len(texts) > 1:
            source_language = unit.get("srclang") or attributes.get("srclang", "")
            tags = sorted(texts, key=lambda tag: _distance(tag, source_language))
            self.languages = tags[0], tags[1]
        sides = []
        for language in self.languages or texts:
            sides.append(self._text_in(language, texts))
        source, target, *_ = [*sides, "", ""]
        yield source, target

    def _text_in(self, language: str, texts: dict[str, str]) -> str:
        """The text of a unit of TMX in a language, by its tag; empty without one."""
        for tag, text in texts.items():
            if _is_of(tag, language):
                return text
        if not self.are_given and self.languages and _primary(self.languages[0]) != _primary(self.languages[1]):
            for tag, text in texts.items():
                if _is_of(tag, _primary(language)):
                    return text
        return ""

    def _xliff_pairs(self, where: str, unit: Any, attributes: dict[str, str]) -> Iterator[tuple[str, str]]:
        tags = []
        for names in LANGUAGES:
            values = filter(None, map(attributes.get, names))
            tags.append(next(values, UNDETERMINED))
        source_tag, target_tag = tags
        if self.languages is None:
            self.languages = source_tag, target_tag
        source_language, target_language = self.languages
        has_source = source_tag == UNDETERMINED or _is_of(source_tag, source_language)
        has_target = target_tag == UNDETERMINED or _is_of(target_tag, target_language)
        if not self.are_given and not (has_source and has_target):
            raise ValueError(
                f"{where} is in a <file> of {source_tag} and {target_tag}, and the units before it are of "
                f"{source_language} and {target_language}. Add --languages {source_language} {target_language} or "
                f"--languages {source_tag} {target_tag}."
            )
        for source, target in _segments(where, unit):
            self._note_languages(((source_tag, source), (target_tag, target)))
            yield source if has_source else "", target if has_target else ""

    def _note_languages(self, texts: Iterable[tuple[str, str]]) -> None:
        for tag, text in texts:
            if text.strip():
                self.with_text[tag] = None


def root_of(stream: BinaryIO) -> str:
    """The name of an XML stream's first element; empty where its first bytes have none."""
    parser = ElementTree.XMLPullParser(["start"])
    with contextlib.suppress(ElementTree.ParseError, LookupError, ValueError):
        parser.feed(stream.read(4 * CHUNK))
        for _, element in parser.read_events():
            return _local(element.tag)
    return ""


def _segments(where: str, unit: Any) -> Iterator[tuple[str, str]]:
    """Source and target of each segment of a unit of XLIFF."""
    if _local(unit.tag) == "unit":
        for segment in unit.iterfind("{*}segment"):
            yield _text(_source_of(segment, where)), _text(segment.find("{*}target"))
        return
    source = _source_of(unit, where)
    target = unit.find("{*}target")
    sources = _by_mid(unit.find("{*}seg-source")) or _by_mid(source)
    targets = _by_mid(target)
    has_unsegmented_target = not targets and _text(target).strip()
    if not sources or has_unsegmented_target:
        yield _text(source), _text(target)
        return
    for mid in sorted(sources | targets, key=lambda mid: mid is None):
        source_text = sources.get(mid, "")
        target_text = targets.get(mid, "")
        if mid is not None or source_text or target_text:
            yield source_text, target_text


def _source_of(element: Any, where: str) -> Any:
    source = element.find("{*}source")
    if source is None:
        raise ValueError(f"{where} has no <source>.")
    return source


def _by_mid(side: Any) -> dict[str | None, str]:
    """{mid: text} of the segments of a side of XLIFF 1.2, and the text outside of them as that of None.

    Empty without segments. A segment that <g> splits into two parts has its mid twice.
    """
    if side is None:
        return {}
    marks = side.findall(".//{*}mrk[@mtype='seg']")
    if not marks:
        return {}
    for number, mark in enumerate(marks, start=1):
        mark.attrib.setdefault("mid", f"number {number}")
    texts: dict[str | None, str] = {}
    last_mid = None
    for mid, text in _pieces(side):
        texts.setdefault(mid, "")
        if mid != last_mid:
            texts[mid] += "\n"
        texts[mid] += text
        last_mid = mid
    return {mid: text.strip() for mid, text in texts.items()}


def _text(element: Any) -> str:
    return "" if element is None else "".join(text for _, text in _pieces(element))


def _pieces(element: Any, mid: str | None = None) -> Iterator[tuple[str | None, str]]:
    """Yields the text in an element, piece by piece, with the mid of its segment."""
    if element.get("mtype") == "x-sdl-deleted":  # a tracked change of Trados
        return
    if element.get("mtype") == "seg":
        yield mid, "\n"  # separates it from its surroundings: no white space is required between segments
        mid = element.get("mid")
    is_code = _local(element.tag) in CODES
    content = element.text or ""
    signs = [element.get(name, "") for name in (*KINDS, *SHOWN)]
    if is_code:
        signs.append(content)
    is_break = any(BREAK.search(html.unescape(sign)) for sign in signs if sign)
    if is_break:
        yield mid, "\n"
    if is_code:
        return
    yield mid, content
    for child in element:
        yield from _pieces(child, mid)
        yield mid, child.tail or ""
    if is_break and (content or len(element)):
        yield mid, "\n"


def _is_of(tag: str, language: str) -> bool:
    """Whether a language tag is in a range of tags, as `en-US` is in `en` (RFC 4647, basic filtering)."""
    tag = _normalized(tag)
    language = _normalized(language)
    return tag == language or tag.startswith(f"{language}-")


def _primary(tag: str) -> str:
    """The language of a tag: `en` of `en-US`."""
    return _normalized(tag).partition("-")[0]


def _distance(tag: str, language: str) -> int:
    """0 for a tag in the range of a language tag, 1 for another variant of its language, 2 for another language."""
    if _is_of(tag, language):
        return 0
    return 1 if _primary(tag) == _primary(language) else 2


def _normalized(tag: str) -> str:
    return tag.lower().replace("_", "-")


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]  # without its namespace
