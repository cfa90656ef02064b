"""Labels of any kind of task: from class labels, whole numbers or strings to ids, matched by name.

The *name* of a label connects training and evaluation: ids are those of the training data, and evaluated labels are
looked up by name. So two datasets may number the same classes differently.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from finetuning.data.rows import Rows


@dataclass
class LabelColumn:
    """The labels of some rows: `values` as in the table, and the type (`datasets` feature) of one of them.

    `row_of` returns the row of a value, if a row has several. Raises ValueError for values that are no labels.
    """

    rows: Rows
    feature: Any
    values: list[Any]
    row_of: Callable[[int], int] = lambda number: number

    def __post_init__(self) -> None:
        if other := {*map(type, self.values)} - {str, int, bool, type(None)}:
            kind = min(one.__name__ for one in other)
            raise ValueError(f"{self.rows.name}: column {self.rows.table.label_column} holds {kind}, not labels.")

    @property
    def declared(self) -> list[str]:
        """Names of the labels 0, 1, ... if the recipe or the data declare them."""
        return list(self.rows.table.label_names or getattr(self.feature, "names", []))

    def name_of(self, value: Any) -> str | None:
        """Returns the name of a value; None if it has none."""
        declared = self.declared
        if declared and (isinstance(value, int) or value and value.isdecimal() and value not in declared):
            # PAWS-X has "0" and "1" as strings
            return declared[int(value)] if 0 <= int(value) < len(declared) else None
        return None if value is None else str(value)


def label_names(columns: list[LabelColumn]) -> list[str]:
    """Names of the training labels in the order of their ids: as declared, else sorted."""
    if declared := next((column.declared for column in columns if column.declared), []):
        return declared
    seen = {value for column in columns for value in column.values if value is not None and str(value).strip()}
    return [str(value) for value in sorted(seen, key=lambda value: (isinstance(value, str), value))]


def label_ids(column: LabelColumn, names: list[str]) -> list[int]:
    """Ids in `names` of the values. Raises ValueError for a label that is not there, with row and names."""
    rows, places = column.rows, {name: place for place, name in enumerate(names)}
    ids = {value: places.get(column.name_of(value)) for value in dict.fromkeys(column.values)}
    unknown = [(column.row_of(n), value) for n, value in enumerate(column.values) if ids[value] is None]
    rows.report(
        {row: f"label {value!r} in column {rows.table.label_column}" for row, value in reversed(unknown)},
        f"The training data have the labels {', '.join(names) or '(none)'}. Write labels alike in all files, name "
        "numbers in `label_names`, and remove rows without a label.",
    )
    return [ids[value] for value in column.values]


def refuse_one_label(columns: list[LabelColumn], what: str) -> None:
    """Raises ValueError where all rows or words, `what`, of the columns together have one label.

    Some public copies of test sets have every label replaced by a constant: a score on them is noise.
    """
    values = [value for column in columns for value in column.values]
    if len({*values}) == 1:
        label = columns[0].name_of(values[0]) or values[0]
        advice = "Use a copy of the data with labels, or another split."
        raise ValueError(f"{columns[0].rows.place}: all {len(values)} {what} have the label {label!r}. {advice}")
