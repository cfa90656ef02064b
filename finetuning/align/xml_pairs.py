"""Sentence pairs of TMX 1.4 (translation memories) and XLIFF (1.2 and 2): read unit by unit, in constant memory."""

from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.etree import ElementTree

ROOTS = {"tmx": "tmx", "xliff": "xliff"}
UNITS = ("tu", "trans-unit", "unit")  # of TMX, XLIFF 1.2, XLIFF 2
CODES = ("bpt", "ept", "it", "ph", "ut")  # inline tags that hold markup of the original document; others hold text
LANGUAGES = ("source-language", "srcLang"), ("target-language", "trgLang")  # attributes of XLIFF 1.2, XLIFF 2
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


class XmlPairs:
    """The pairs of a TMX or XLIFF stream: text without inline tags.

    languages: of source and target, for TMX: `en` takes `en-US`, too; default: the header's `srclang` and the first
    other one of the first unit that has two. They are known when the first such unit has been read, and so are XLIFF's.

    A unit without one of the languages, or without a target, is a pair with an empty side, so that units keep their
    numbers. Raises ValueError for what is no such file, with its line or unit, and where no unit has both languages.
    """

    def __init__(self, stream: BinaryIO, name: str, format: str, languages: tuple[str, str] | None):
        self.stream, self.name, self.format, self.languages = stream, name, format, languages

    def __iter__(self) -> Iterator[tuple[str, str]]:
        seen: dict[str, None] = {}
        is_found = False
        for where, unit, about in self._units():
            if self.format == "xliff":
                if self.languages is None:
                    source, target = (next(filter(None, map(about.get, names)), "und") for names in LANGUAGES)
                    self.languages = source, target
                yield from self._segments(where, unit)
                continue
            texts = self._variants(where, unit)
            seen |= dict.fromkeys(texts)
            if self.languages is None and len(texts) > 1:
                first = unit.get("srclang") or about.get("srclang", "")
                tags = sorted(texts, key=lambda tag: not _is_of(tag, first))
                self.languages = tags[0], tags[1]
            sides = [next((texts[tag] for tag in texts if _is_of(tag, of)), "") for of in self.languages or texts]
            is_found |= self.languages is not None and all(sides)
            yield sides[0], sides[1] if len(sides) > 1 else ""
        if seen and not is_found:
            wanted = f"in {' and '.join(self.languages)}" if self.languages else "in two languages"
            raise ValueError(
                f"{self.name} has no unit {wanted}; there are {', '.join(seen)}. --languages names two of them."
            )

    def _units(self) -> Iterator[tuple[str, Any, dict[str, str]]]:
        """Where it is, the unit, and the attributes of the header or the file around it."""
        path: list[Any] = []
        about: dict[str, str] = {}
        number = inside = 0
        try:
            for event, element in ElementTree.iterparse(self.stream, ("start", "end")):
                name = _name(element)
                if event == "start":
                    if not path and name != ROOTS[self.format]:
                        raise ValueError(f"{self.name} is no {self.format.upper()}: it is <{name}>.")
                    if name in ("header", "file", "xliff"):
                        about.update(element.attrib)
                    path.append(element)
                    inside += name in UNITS
                    continue
                path.pop()
                if name in UNITS:
                    inside -= 1
                    number += 1
                    yield f"{self.name}, unit {number}", element, about
                if path and not inside:
                    del path[-1][:]  # memory is not to grow with the file
        except (ElementTree.ParseError, LookupError) as error:
            raise ValueError(f"{self.name} is no XML that can be read: {error}.") from None

    def _variants(self, where: str, unit: Any) -> dict[str, str]:
        """{language: text} of a unit of TMX, in its order."""
        texts: dict[str, str] = {}
        for variant in _children(unit, "tuv"):
            language = variant.get(XML_LANG) or variant.get("lang")
            if not language:
                raise ValueError(f"{where}: a <tuv> has no xml:lang.")
            texts.setdefault(language, "".join(map(_text, _children(variant, "seg"))))
        if not texts:
            raise ValueError(f"{where} has no <tuv>.")
        return texts

    def _segments(self, where: str, unit: Any) -> Iterator[tuple[str, str]]:
        for segment in [unit] if _name(unit) == "trans-unit" else _children(unit, "segment"):
            sources = _children(segment, "source")
            if not sources:
                raise ValueError(f"{where} has no <source>.")
            yield _text(sources[0]), "".join(map(_text, _children(segment, "target")[:1]))


def _is_of(tag: str, language: str) -> bool:
    """Whether a language tag is in a range of tags, as `en-US` is in `en` (RFC 4647, basic filtering)."""
    tag, language = (text.lower().replace("_", "-") for text in (tag, language))
    return tag == language or tag.startswith(f"{language}-")


def _name(element: Any) -> str:
    return element.tag.rpartition("}")[2]  # without its namespace


def _children(element: Any, name: str) -> list[Any]:
    return [child for child in element if _name(child) == name]


def _text(element: Any) -> str:
    for code in [part for part in element.iter() if _name(part) in CODES]:
        behind = code.tail
        code.clear()
        code.tail = behind
    return "".join(element.itertext())
