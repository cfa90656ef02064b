"""The forms in which links are written: a header, and a record a pair."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any


class Format:
    """The text before the first pair, and of each pair; precision: of the encoder.

    `record(number, found)` gives the text of a pair: its number from 0, its `WordAlignment`.
    """

    def __init__(self, probabilities: bool, precision: str):
        self.has_probabilities, self.precision = probabilities, precision

    def header(self) -> str:
        return ""


class Pharaoh(Format):
    """`0-0 1-2` a line, or with probabilities `0-0:0.9731 1-2:0.4250`."""

    def record(self, number: int, found: Any) -> str:
        return pharaoh_line(found.links, found.probabilities if self.has_probabilities else None) + "\n"


class Json(Format):
    """An object a line: words, their offsets where a text was split, links, the precision that they were found in."""

    def record(self, number: int, found: Any) -> str:
        fields = {"source": found.source, "target": found.target, "links": found.links}
        if self.has_probabilities:
            fields["probabilities"] = [round(probability, 6) for probability in found.probabilities]
        offsets = {"source_offsets": found.source_offsets, "target_offsets": found.target_offsets}
        fields |= {name: value for name, value in offsets.items() if value is not None}
        fields["precision"] = self.precision
        return json.dumps(fields, ensure_ascii=False) + "\n"


class Tsv(Format):
    """A table of a row a link, with a header line; fields are quoted where they have to be."""

    COLUMNS = ("sentence", "source_index", "target_index", "source_word", "target_word", "probability")

    def header(self) -> str:
        return "\t".join(self.COLUMNS if self.has_probabilities else self.COLUMNS[:-1]) + "\n"

    def record(self, number: int, found: Any) -> str:
        text = io.StringIO()
        write = csv.writer(text, "excel-tab", lineterminator="\n").writerow
        for place, (i, j) in enumerate(found.links):
            probability = [f"{found.probabilities[place]:.4f}"] if self.has_probabilities else []
            write([number, i, j, found.source[i], found.target[j], *probability])
        return text.getvalue()


FORMATS = {"pharaoh": Pharaoh, "json": Json, "tsv": Tsv}


def pharaoh_line(links: Iterable[tuple[int, int]], probabilities: Sequence[float] | None = None) -> str:
    """Links as `0-0 1-2`, or with probabilities as `0-0:0.9731 1-2:0.4250`; words from 0."""
    if probabilities is None:
        return " ".join(f"{i}-{j}" for i, j in links)
    return " ".join(f"{i}-{j}:{p:.4f}" for (i, j), p in zip(links, probabilities, strict=True))
