"""Rows of the evaluation data, and what the model predicted for them, for the examples of a fine-tuned model's card."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHOWN_ROWS = 3
LONGEST_TEXT = 160  # characters of a row; longer texts hide the code around them
LONGEST_SENTENCE = 80  # characters of a row of words: each is printed with its label
ROWS_READ = 1000  # of a language: short rows are among them, or hardly anywhere


def example_rows(predictions: Path, languages: list[str]) -> list[dict[str, Any]]:
    """Short rows of `predictions/`, of each language in turn, with different labels where there are some.

    None of question answering, whose files do not have the contexts.
    """
    rows_by_language: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(predictions.glob("*.jsonl")):
        for row in filter(_can_be_shown, _first_rows(file)):
            rows_by_language.setdefault(row["language"], []).append(row)
    in_order = [language for language in languages if language in rows_by_language]
    chosen: list[dict[str, Any]] = []
    for language in itertools.islice(itertools.cycle(in_order), SHOWN_ROWS):
        labels = [row.get("gold") for row in chosen]
        rows = [row for row in rows_by_language[language] if row not in chosen]
        rows_with_new_labels = [row for row in rows if row.get("gold") not in labels]
        chosen += (rows_with_new_labels or rows)[:1]
    return chosen


def _first_rows(file: Path) -> Iterator[dict[str, Any]]:
    with open(file, encoding="utf-8") as stream:
        yield from map(json.loads, itertools.islice(stream, ROWS_READ))


def _can_be_shown(row: dict[str, Any]) -> bool:
    """Whether a row is short, and has labels that say something."""
    if "question" in row:
        return False
    if "words" in row:
        is_labeled = "_" not in row["gold"] and {*row["gold"]} != {"O"}
        return is_labeled and len(" ".join(row["words"])) <= LONGEST_SENTENCE
    texts = [row.get(name, "") for name in ("text", "pair", "source")]
    return len("".join(texts)) <= LONGEST_TEXT


def labeled_words(row: dict[str, Any]) -> str:
    """What the example of a tagger prints for a row: the words with another predicted label than O."""
    pairs = zip(row["words"], row["prediction"], strict=True)
    return str([(word, label) for word, label in pairs if label != "O"])
