"""Sentence pairs of TMX 1.4 (translation memories) and XLIFF (1.2 and 2): read unit by unit, in constant memory."""

import contextlib
import html
import re
from collections.abc import Iterator
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
        self.stream, self.name, self.format, self.languages = stream, name, format, languages
        self.are_given = languages is not None
        self.with_text: dict[str, None] = {}  # languages, in their order

    def __iter__(self) -> Iterator[tuple[str, str]]:
        pairs_of = self._tmx_pairs if self.format == "tmx" else self._xliff_pairs
        is_found, number = False, 0
        try:
            for number, (unit, about) in enumerate(self._units(), start=1):
                for pair in pairs_of(f"{self.name}, unit {number}", unit, about):
                    is_found |= all(map(str.strip, pair))
                    yield pair
        except (ElementTree.ParseError, LookupError) as error:  # the latter: of an encoding
            raise ValueError(f"{self.name} is no XML that can be read: {error}.") from None
        except RecursionError:
            raise ValueError(f"{self.name}, unit {number}: elements are nested too deep.") from None
        if number and not is_found:
            wanted = " and ".join(self.languages or ("two languages",))
            raise ValueError(
                f"{self.name} has no unit with text in {wanted}; there is text in "
                f"{', '.join(self.with_text) or 'no language'}. --languages names two of them."
            )

    def _units(self) -> Iterator[tuple[Any, dict[str, str]]]:
        """Each unit, and the attributes of the header or file around it. Other elements are dropped at their end."""
        parser = ElementTree.XMLPullParser(["start", "end"])
        head: dict[str, str] = {}  # attributes
        file: dict[str, str] = {}
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
                        head |= element.attrib
                    elif name == "file":
                        file = element.attrib
                    opened.append(element)
                    inside += name in UNITS
                    continue
                opened.pop()
                inside -= name in UNITS
                if not inside:
                    if name in UNITS:
                        yield element, head | file
                    if opened:
                        opened[-1].remove(element)
        parser.close()

    def _tmx_pairs(self, where: str, unit: Any, about: dict[str, str]) -> Iterator[tuple[str, str]]:
        texts: dict[str, str] = {}
        for variant in unit.iterfind("{*}tuv"):
            language = variant.get(XML_LANG) or variant.get("lang")
            if not language:
                raise ValueError(f"{where}: a <tuv> has no xml:lang.")
            segment = variant.find("{*}seg")
            if segment is None:
                raise ValueError(f"{where} has no <seg> in its <tuv> of {language}. TMX has its text there.")
            texts.setdefault(language, _text(segment))
        if not texts:
            raise ValueError(f"{where} has no <tuv>.")
        self.with_text |= dict.fromkeys(tag for tag, text in texts.items() if text.strip())
        if self.languages is None and len(texts) > 1:
            first = unit.get("srclang") or about.get("srclang", "")
            tags = sorted(texts, key=lambda tag: (not _is_of(tag, first), _primary(tag) != _primary(first)))
            self.languages = tags[0], tags[1]
        ranges = [(language,) for language in self.languages or texts]
        if not self.are_given and len(primary := dict.fromkeys(_primary(language) for (language,) in ranges)) == 2:
            ranges = [(*own, language) for own, language in zip(ranges, primary, strict=True)]
        sides = [next((texts[tag] for of in own for tag in texts if _is_of(tag, of)), "") for own in ranges]
        yield sides[0], sides[1] if len(sides) > 1 else ""

    def _xliff_pairs(self, where: str, unit: Any, about: dict[str, str]) -> Iterator[tuple[str, str]]:
        tags = [next(filter(None, map(about.get, names)), UNDETERMINED) for names in LANGUAGES]
        self.languages = self.languages or (tags[0], tags[1])
        fits = [tag == UNDETERMINED or _is_of(tag, of) for tag, of in zip(tags, self.languages, strict=True)]
        if not (all(fits) or self.are_given):
            first = " ".join(self.languages)
            raise ValueError(
                f"{where} is in a <file> of {' and '.join(tags)}, and the units before it are of "
                f"{' and '.join(self.languages)}. Add --languages {first} or --languages {' '.join(tags)}."
            )
        for pair in _segments(where, unit):
            self.with_text |= dict.fromkeys(tag for tag, text in zip(tags, pair, strict=True) if text.strip())
            yield tuple(text if is_fit else "" for text, is_fit in zip(pair, fits, strict=True))


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
    source, target = _source_of(unit, where), unit.find("{*}target")
    sources, targets = _by_mid(unit.find("{*}seg-source")) or _by_mid(source), _by_mid(target)
    if not sources or not (targets or not _text(target).strip()):
        yield _text(source), _text(target)
        return
    for mid in sorted(sources | targets, key=lambda mid: mid is None):
        pair = sources.get(mid, ""), targets.get(mid, "")
        if mid is not None or any(pair):
            yield pair


def _source_of(element: Any, where: str) -> Any:
    source = element.find("{*}source")
    if source is None:
        raise ValueError(f"{where} has no <source>.")
    return source


def _by_mid(side: Any) -> dict[str | None, str]:
    """{mid: text} of the segments of a side of XLIFF 1.2, and the text outside of them as that of None.

    Empty without segments. A segment that <g> splits into two parts has its mid twice.
    """
    marks = () if side is None else side.iterfind(".//{*}mrk[@mtype='seg']")
    count = 0
    for count, mark in enumerate(marks, start=1):
        mark.attrib.setdefault("mid", f"number {count}")
    texts: dict[str | None, str] = {}
    last = None
    for mid, text in _pieces(side) if count else ():
        texts[mid] = texts.get(mid, "") + ("" if mid == last else "\n") + text
        last = mid
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
    is_code, content = _local(element.tag) in CODES, element.text or ""
    signs = [*(element.get(name, "") for name in (*KINDS, *SHOWN)), content if is_code else ""]
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
    tag, language = (text.lower().replace("_", "-") for text in (tag, language))
    return tag == language or tag.startswith(f"{language}-")


def _primary(tag: str) -> str:
    """The language of a tag: `en` of `en-US`."""
    return tag.lower().replace("_", "-").partition("-")[0]


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]  # without its namespace
