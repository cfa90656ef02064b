"""Gold answers that no prediction can equal: counted by language, and listed with the reasons.

A prediction is the text of a span of tokens in one window, up to a maximum length. No model can predict an answer that
begins or ends within a token, that is longer, or that no window holds. Such answers lower the highest possible exact
match, so readers must know their number.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from finetuning.data.data_report import as_table
from finetuning.results.files import print_table
from finetuning.tasks.question_answering.spans import text_of

NAME = "answer_spans"  # of the listing, and of the counts in the protocol
COLUMNS = ("part", "language", "row", "answer", "nearest_span", "reason")
ABSENT, TOKENLESS, BOUNDARY, LONG, NO_WINDOW = (
    "not_in_context",
    "without_tokens",
    "not_at_token_boundaries",
    "over_the_limit",
    "in_no_window",
)
REASONS = {
    ABSENT: "not in its context",
    TOKENLESS: "with characters that have no token",
    BOUNDARY: "not at token boundaries",
    LONG: "of more tokens than a prediction may have",
    NO_WINDOW: "in no window as a whole",
}
COLUMN_TITLES = {
    ABSENT: "absent",
    TOKENLESS: "without tokens",
    BOUNDARY: "not at tokens' ends",
    LONG: "too long",
    NO_WINDOW: "in no window",
}
EXAMPLES, SHOWN = 2, 60  # printed answers that are out of reach, by part and language, and characters of each


@dataclass(frozen=True)
class Nearest:
    """The span of tokens that an answer touches: first and last token, counted in the whole context."""

    first: int
    last: int

    def in_window(self, number: int, stride: int, tokens: int) -> tuple[int, int] | None:
        """Returns the positions in the window `number` with `tokens` tokens; None unless it holds the whole span."""
        first, last = self.first - number * stride, self.last - number * stride
        return (first, last) if first >= 0 and last < tokens else None


def nearest_span(offsets_P2: np.ndarray, start: int, end: int) -> Nearest | None:
    """Returns the tokens of the characters [start, end) of a context; None for characters that the normalizer removes.

    `offsets_P2` are begin and end of each token, rising. Tokens may share characters: all that do are in the span.
    """
    first = int(np.searchsorted(offsets_P2[:, 1], start, side="right"))  # the first that ends after `start`
    last = int(np.searchsorted(offsets_P2[:, 0], end, side="left")) - 1  # the last that begins before `end`
    return Nearest(first, last) if first <= last else None


def obstacles(
    context: str, answer: str, start: int, offsets_P2: np.ndarray, held: list[int], stride: int, limit: int
) -> tuple[str, list[str]]:
    """Returns the text of the nearest span of an answer at `start` (-1: none), and why the answer is out of reach.

    The nearest span is the shortest that covers the answer, with as few as possible of tokens that share characters.
    `held` has the number of context tokens in each window; windows begin `stride` tokens apart. `limit` is the maximum
    number of tokens of a prediction. White space around an answer does not count.
    """
    if start < 0:
        return "", [ABSENT]
    begin, end = start + len(answer) - len(answer.lstrip()), start + len(answer.rstrip())
    span = nearest_span(offsets_P2, begin, end)
    if span is None:
        return "", [TOKENLESS]
    begins, ends = offsets_P2[:, 0], offsets_P2[:, 1]
    touched = range(span.first, span.last + 1)
    first = max((token for token in touched if begins[token] <= begin), default=span.first)
    last = min((token for token in touched if ends[token] >= end), default=span.last)
    if first > last:  # each token between them has all characters of the answer
        first = last = min(range(last, first + 1), key=lambda token: ends[token] - begins[token])
    span, text = Nearest(first, last), text_of(context, [*begins, len(context)], ends, first, last)
    found = []
    if answer.strip() not in text:
        found.append(TOKENLESS)
    elif text != answer.strip():
        found.append(BOUNDARY)
    if span.last - span.first >= limit:
        found.append(LONG)
    if not any(span.in_window(number, stride, tokens) for number, tokens in enumerate(held)):
        found.append(NO_WINDOW)
    return text, found


class Reach:
    """Collects the answers that are out of reach, by part and language."""

    def __init__(self):
        self.counts: dict[str, dict[str, dict[str, int]]] = {"train": {}, "dev": {}, "evaluation": {}}
        self.listed: list[dict[str, Any]] = []

    def add(self, part: str, language: str, row: int, found: str) -> None:
        """Counts and lists the answers of a row, given as the JSON of `encode_windows`: answer, nearest span, reasons.

        The JSON has all answers of the row, also those within reach.
        """
        counts = self.counts[part].setdefault(language, {"answers": 0, "exact": 0, **dict.fromkeys(REASONS, 0)})
        for answer, nearest, reasons in json.loads(found):
            counts["answers"] += 1
            counts["exact"] += not reasons
            for reason in reasons:
                counts[reason] += 1
            if reasons:
                why = ", ".join(REASONS[reason] for reason in reasons)
                self.listed.append(dict(zip(COLUMNS, (part, language, row, answer, nearest, why), strict=True)))

    def fact(self) -> str:
        """Returns one line for the results: how many evaluated answers are out of reach, and why."""
        counts: Counter = Counter()
        for of_language in self.counts["evaluation"].values():
            counts.update(of_language)
        reasons = ", ".join(f"{counts[name]:,} {text}" for name, text in REASONS.items() if counts[name])
        missed = counts["answers"] - counts["exact"]
        return (
            f"{missed:,} of {counts['answers']:,} evaluated answers are no span of tokens that can be predicted"
            + (f": {reasons}" if missed else "")
            + f"; with those of other rows they are listed in {NAME}.csv"
        )


def print_answers(spans: dict[str, dict[str, dict[str, int]]], listed: list[dict[str, Any]]) -> None:
    """Prints the gold answers by part and language, why some are out of reach, and the first of these."""
    shown = {"answers": "answers", "exact": "exact", **COLUMN_TITLES}
    lines = [
        {"part": part, "language": language} | {title: counts[name] for name, title in shown.items()}
        for part, languages in spans.items()
        for language, counts in languages.items()
    ]
    title = f"gold answers, and those that no prediction can equal; a run lists them in {NAME}.csv"
    print_table(title, as_table(lines), [])
    print("\n".join(_examples(listed)))


def _examples(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The first answers out of reach of each part and language; a run lists all of them."""
    shown: dict[tuple[str, str], int] = {}
    for row in rows:
        of = row["part"], row["language"]
        shown[of] = shown.get(of, 0) + 1
        if shown[of] <= EXAMPLES:
            texts = (row[name] for name in ("answer", "nearest_span"))
            answer, nearest = (text if len(text) <= SHOWN else text[: SHOWN - 1] + "…" for text in texts)
            other = f"; the nearest span is {nearest!r}" if nearest not in ("", answer) else ""
            yield f"{row['part']} {row['language']}, row {row['row']} (from 0): {answer!r} {row['reason']}{other}"
