"""Columns of texts, and of lists of words or of labels, for any table."""

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


def typed_column(dataset: "Dataset", column: str, where: str, dtype: str = "string", is_list: bool = False) -> Any:
    """A column of values, or of lists of them, whose type's name has `dtype` in it. Raises ValueError for another."""
    feature = require_column(dataset, column, where)
    inner = getattr(feature, "feature", None) if is_list else feature
    if dtype not in str(getattr(inner, "dtype", None)):
        raise ValueError(f"{where}: column {column} holds {feature}, not {'lists of ' * is_list}{dtype}.")
    return dataset[column]


def text_lists(
    dataset: "Dataset", column: str, where: str, what: str, may_be_blank: bool = False, numbers: Any = None
) -> list[list[str]]:
    """A column of lists of texts.

    where: the table, and what: what a list holds, for errors, which name the row; `numbers` are those of the rows if
    they are not all. Raises ValueError for what is no list of texts, and for texts that hold tabs or line breaks or,
    unless they `may_be_blank`, no character.
    """
    require_column(dataset, column, where)
    lists = dataset[column][:]
    for row, texts in enumerate(lists):
        is_text = isinstance(texts, list) and {*map(type, texts)} <= {str} and not BREAKS.search("".join(texts))
        if not is_text or not may_be_blank and not all(text.strip(" ") for text in texts):
            raise ValueError(
                f"{where}, row {row if numbers is None else numbers[row]} (from 0): column {column} holds "
                f"{str(texts)[:80]}, not a list of {what}s without tabs and line breaks. Correct or remove the row."
            )
    return lists
