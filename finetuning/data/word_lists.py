"""Checks of columns with lists of words or of labels, for any table."""

import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zoo_core.tables import Table, describe, has_text, require_column, row_places

if TYPE_CHECKING:
    from datasets import Dataset

BREAKS = re.compile(r"[\t\n\r]")  # they end a column or a line of CoNLL


def list_column(dataset: "Dataset", column: str, name: str, what: str) -> tuple[Any, list[list[Any] | None]]:
    """The type of the items of a column of lists, and the lists, None where one is missing.

    name: the table, and what: what a list holds, for errors. Raises ValueError for a column of another type.
    """
    feature = require_column(dataset, column, name)
    item = getattr(feature, "feature", None)
    if (item is None or isinstance(item, dict)) and getattr(feature, "dtype", None) != "null":
        raise ValueError(
            f"{name}, row 0 (from 0): column {column} holds {getattr(feature, 'dtype', feature)}, not lists. Write "
            f"one list of {what} per row, or name a column of lists; the columns are {', '.join(dataset.column_names)}."
        )
    return item, dataset[column][:]


def require_text(item: Any, dataset: "Dataset", column: str, name: str, what: str) -> None:
    """Raises ValueError where the items of a column's lists are not text; arguments as of `list_column`."""
    kind = getattr(item, "dtype", item)  # None where all rows are missing
    if kind not in ("string", "large_string", "string_view", "null", None):
        raise ValueError(
            f"{name}, row 0 (from 0): column {column} holds lists of {kind}, not of {what}. Name or write another "
            f"column; the columns are {', '.join(dataset.column_names)}."
        )


def text_lists(dataset: "Dataset", column: str, table: Table, what: str) -> list[list[str]]:
    """A column of lists of texts; ids of class labels become their names.

    Raises ValueError, with the row, for a column of another type, for lists and texts that are missing or empty, and
    for tabs and line breaks in texts.
    """
    item, lists = list_column(dataset, column, describe(table), f"{what}s")
    if names := dict(enumerate(getattr(item, "names", []))):
        lists = [texts and [names.get(number, number) for number in texts] for texts in lists]
    else:
        require_text(item, dataset, column, describe(table), f"{what}s")
    check_texts(lists, column, table, what)
    return lists


def check_texts(
    lists: list[list[Any] | None], column: str, table: Table, what: str, may_be_blank: bool = False
) -> None:
    """Raises ValueError, with its row or line, for the first list that has a fault."""
    for row, texts in enumerate(lists):
        if fault := fault_of(texts, column, what, may_be_blank):
            (place,) = row_places(table, [row])
            raise ValueError(f"{describe(table)}, {place}: {fault}. Correct or remove the row.")


def fault_of(texts: list[Any] | None, column: str, what: str, may_be_blank: bool = False) -> str | None:
    """Returns the fault in the texts of a row, in words, or None."""
    if texts is None:
        return f"column {column} has no list of {what}s"
    if None in texts:
        return f"column {column} has a {what} that is missing"
    if numbers := [text for text in texts if not isinstance(text, str)]:
        return f"column {column} has the number {numbers[0]}, which is the id of no class"
    if BREAKS.search("".join(texts)):
        return f"column {column} has a {what} with a tab or a line break, {next(filter(BREAKS.search, texts))!r}"
    if not may_be_blank and not all(text.strip(" ") for text in texts):
        return f"column {column} has a {what} without characters, {next(t for t in texts if not t.strip(' '))!r}"
    return None


def count_invisible(lists: list[list[str]], place_of: Callable[[int], str]) -> str | None:
    """Counts words of only white space and zero-width characters, and names the first one's place; None without any."""
    words = list(itertools.chain.from_iterable(lists))
    invisible = (~has_text(words)).nonzero()[0]
    if not len(invisible):
        return None
    first = words[invisible[0]]
    row = next(row for row, own in enumerate(lists) if first in own)
    return f"words without a visible character: {len(invisible):,}, the first {first!r} in {place_of(row)}"
