"""Columns of lists of words or of labels, checked, whatever table they come from."""

import re
import unicodedata
from typing import TYPE_CHECKING, Any

from zoo_core.tables import require_column

if TYPE_CHECKING:
    from datasets import Dataset

BREAKS = re.compile(r"[\t\n\r]")


def list_column(dataset: "Dataset", column: str, place: str, what: str) -> tuple[Any, list[list[Any] | None]]:
    """The type of the items of a column of lists, and the lists, None where one is missing.

    what: what a list holds, for errors. Raises ValueError for a column of another type.
    """
    feature = require_column(dataset, column, place)
    item = getattr(feature, "feature", None)
    if (item is None or isinstance(item, dict)) and getattr(feature, "dtype", None) != "null":
        raise ValueError(
            f"{place}, row 0 (from 0): column {column} holds {getattr(feature, 'dtype', feature)}, not lists. A row "
            f"has one list of {what}. Name or write such a column; the columns are {', '.join(dataset.column_names)}."
        )
    return item, dataset[column][:]


def text_lists(dataset: "Dataset", column: str, place: str, what: str, may_be_blank: bool = False) -> list[list[str]]:
    """A column of lists of texts; ids of class labels become their names.

    Raises ValueError, with the row, for a column of another type, for lists and texts that are missing, for tabs and
    line breaks, which end a column or a line of CoNLL, and for texts of spaces or nothing, unless they may be blank.
    """
    item, lists = list_column(dataset, column, place, f"{what}s")
    kind = getattr(item, "dtype", item)  # None where all rows are missing
    names = dict(enumerate(getattr(item, "names", [])))
    if names:
        lists = [texts and [names.get(number, number) for number in texts] for texts in lists]
    elif kind not in ("string", "large_string", "string_view", "null", None):
        raise ValueError(
            f"{place}, row 0 (from 0): column {column} holds lists of {kind}, not of {what}s. Name or write another "
            f"column; the columns are {', '.join(dataset.column_names)}."
        )
    check_texts(lists, column, place, what, may_be_blank)
    return lists


def check_texts(lists: list[list[Any] | None], column: str, place: str, what: str, may_be_blank: bool = False) -> None:
    """Raises ValueError for lists of texts as `text_lists`."""
    for row, texts in enumerate(lists):
        fault = None
        if texts is None:
            fault = f"no list of {what}s"
        elif None in texts:
            fault = f"a {what} that is missing"
        elif numbers := [text for text in texts if not isinstance(text, str)]:
            fault = f"the number {numbers[0]}, which names no class"
        elif BREAKS.search("".join(texts)):
            fault = f"a {what} with a tab or a line break: {next(filter(BREAKS.search, texts))!r}"
        elif not may_be_blank and not all(text.strip(" ") for text in texts):
            fault = f"a {what} without characters: {next(text for text in texts if not text.strip(' '))!r}"
        if fault:
            raise ValueError(f"{place}, row {row} (from 0): column {column} has {fault}. Correct or remove the row.")


def count_invisible(lists: list[list[str]]) -> str | None:
    """How many words are white space and zero-width characters alone, and the first of them; None without any."""
    found = [(word, row) for row, words in enumerate(lists) for word in words if _is_invisible(word)]
    if not found:
        return None
    word, row = found[0]
    return f"words without a visible character: {len(found):,}, the first {word!r} in row {row} (from 0)"


def _is_invisible(word: str) -> bool:
    return not word.isalnum() and all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in word)
