"""Columns with lists of words or of labels, for any table."""

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo_core.tables import require_column

if TYPE_CHECKING:
    from datasets import Dataset

BREAKS = re.compile(r"[\t\n\r]")  # they end a column or a line of CoNLL


def has_text(column: Any) -> np.ndarray:
    """Returns whether each text of a list or an arrow array has a visible character: not only white space, zero-width
    and control characters. Null has none."""
    from pyarrow import array, compute, string

    texts = array(column, string()) if isinstance(column, list) else column
    found = compute.match_substring_regex(texts, r"[^\pZ\p{Cc}\p{Cf}]")
    return found.fill_null(False).to_numpy(zero_copy_only=False)


def text_lists(
    dataset: "Dataset", column: str, where: str, what: str, may_be_blank: bool = False, numbers: Any = None
) -> list[list[str]]:
    """A column of lists of texts; ids of class labels become their names.

    where: the table, and what: what a list holds, for errors, which name the row; `numbers` are those of the rows if
    they are not all. Raises ValueError for a column of another type, and for lists and texts that are missing, that
    hold tabs or line breaks or, unless they `may_be_blank`, no character.
    """
    feature = require_column(dataset, column, where)
    item = getattr(feature, "feature", None)
    kind = str(getattr(item, "dtype", getattr(feature, "dtype", feature)))
    names = getattr(item, "names", None)
    if (isinstance(item, dict) or "string" not in kind or not item) and not names and kind != "null":
        raise ValueError(f"{where}: column {column} holds {feature}, not lists of {what}s.")
    lists = dataset[column][:]
    if names:
        lists = [texts and [names[number] for number in texts] for texts in lists]
    for row, texts in enumerate(lists):
        is_text = texts is not None and None not in texts and not BREAKS.search("".join(texts))
        if not is_text or not may_be_blank and not all(text.strip(" ") for text in texts):
            raise ValueError(
                f"{where}, row {row if numbers is None else numbers[row]} (from 0): column {column} holds "
                f"{str(texts)[:80]}, not a list of {what}s without tabs and line breaks. Correct or remove the row."
            )
    return lists
