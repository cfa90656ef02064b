"""The forms in which links are written: a header, a record a pair, a footer."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from finetuning.align.pairs import Side

NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

ONE_FIELD = str.maketrans("\t\r\n", "   ")


class Format:
    """The text before the first pair, of each pair, and after the last pair.

    `record(number, pair, found)` gives the text of a pair: its number from 0, the pair as it was read, its
    `WordAlignment`.

    precision: of the encoder. languages: returns the languages of source and target, or None if they are unknown;
    called after a pair has been read.
    """

    def __init__(self, probabilities: bool, precision: str, languages: Callable[[], Sequence[str] | None]):
        self.has_probabilities, self.precision, self.languages = probabilities, precision, languages

    def header(self) -> str:
        return ""

    def footer(self) -> str:
        return ""

    def links(self, found: Any) -> str:
        """Links in Pharaoh's format."""
        return pharaoh_line(found.links, found.probabilities if self.has_probabilities else None)

    def rows(self, found: Any) -> Iterator[list[str]]:
        """The words of each link, and its probability if requested."""
        for number, (i, j) in enumerate(found.links):
            probability = [f"{found.probabilities[number]:.4f}"] if self.has_probabilities else []
            yield [found.source[i], found.target[j], *probability]


class Pharaoh(Format):
    """`0-0 1-2` a line, or with probabilities `0-0:0.9731 1-2:0.4250`."""

    def record(self, number: int, pair: tuple[Side, Side], found: Any) -> str:
        return self.links(found) + "\n"


class Json(Format):
    """An object a line: words, their offsets where a text was split, links, the precision that they were found in."""

    def record(self, number: int, pair: tuple[Side, Side], found: Any) -> str:
        fields = {"source": found.source, "target": found.target, "links": found.links}
        if self.has_probabilities:
            fields["probabilities"] = [round(probability, 6) for probability in found.probabilities]
        offsets = {"source_offsets": found.source_offsets, "target_offsets": found.target_offsets}
        fields |= {name: value for name, value in offsets.items() if value is not None}
        fields["precision"] = self.precision
        return json.dumps(fields, ensure_ascii=False) + "\n"


class Words(Format):
    """Two linked words a line with a tab between them, and an empty line after each pair."""

    def record(self, number: int, pair: tuple[Side, Side], found: Any) -> str:
        lines = ("\t".join(field.translate(ONE_FIELD) for field in row) + "\n" for row in self.rows(found))
        return "".join(lines) + "\n"


class Tsv(Format):
    """A table of a row a link, with a header line; fields are quoted where they have to be."""

    COLUMNS = ("sentence", "source_index", "target_index", "source_word", "target_word", "probability")

    def header(self) -> str:
        return "\t".join(self.COLUMNS if self.has_probabilities else self.COLUMNS[:-1]) + "\n"

    def record(self, number: int, pair: tuple[Side, Side], found: Any) -> str:
        rows = io.StringIO()
        links = zip(found.links, self.rows(found), strict=True)
        csv.writer(rows, "excel-tab", lineterminator="\n").writerows([number, *link, *row] for link, row in links)
        return rows.getvalue()


class Tmx(Format):
    """A translation memory: links are a property of a unit, `begin:end` of the words of either side one of it.

    Characters that XML does not have become U+FFFD.
    """

    def header(self) -> str:
        return (
            '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n'
            '<header creationtool="word-align" creationtoolversion="1" segtype="sentence" o-tmf="text" adminlang="en" '
            f'srclang={self.tags()[0]} datatype="plaintext"/>\n<body>\n'
        )

    def record(self, number: int, pair: tuple[Side, Side], found: Any) -> str:
        parts = [f'<tu><prop type="x-word-alignment">{self.links(found)}</prop>\n']
        sides = zip(self.tags(), pair, (found.source, found.target), strict=True)
        for language, side, words in sides:
            text = side if isinstance(side, str) else " ".join(side)
            end, offsets = 0, []
            for word in words:
                begin = text.index(word, end)
                end = begin + len(word)
                offsets.append(f"{begin}:{end}")
            seg = escape(NOT_IN_XML.sub("\ufffd", text), {"\r": "&#13;"})
            parts.append(
                f'<tuv xml:lang={language}><prop type="x-words">{" ".join(offsets)}</prop><seg>{seg}</seg></tuv>\n'
            )
        return "".join([*parts, "</tu>\n"])

    def tags(self) -> list[str]:
        """Languages as attributes."""
        return [quoteattr(language) for language in self.languages() or ("und", "und")]  # undetermined

    def footer(self) -> str:
        return "</body>\n</tmx>\n"


FORMATS = {"pharaoh": Pharaoh, "json": Json, "words": Words, "tsv": Tsv, "tmx": Tmx}


def pharaoh_line(links: Iterable[tuple[int, int]], probabilities: Sequence[float] | None = None) -> str:
    """Links as `0-0 1-2`, or with probabilities as `0-0:0.9731 1-2:0.4250`; words from 0."""
    if probabilities is None:
        return " ".join(f"{i}-{j}" for i, j in links)
    return " ".join(f"{i}-{j}:{p:.4f}" for (i, j), p in zip(links, probabilities, strict=True))
