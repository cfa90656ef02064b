"""Labels of any kind of task: from class labels, whole numbers or strings to ids, matched by name.

The *name* of a label connects training and evaluation: ids are those of the training data, and evaluated labels are
looked up by name. So two datasets may number the same classes differently.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datasets import ClassLabel

from finetuning.data.rows import Rows


@dataclass
class LabelColumn:
    """The labels of some rows: `values` as in the table, and the type (`datasets` feature) of one of them.

    `row_of` returns the row of a value, if a row has several.
    """

    rows: Rows
    feature: Any
    values: list[Any]
    row_of: Callable[[int], int] = lambda number: number

    @property
    def declared(self) -> list[str]:
        """Names of the labels 0, 1, ... if the recipe or the data declare them."""
        return list(self.rows.table.label_names or getattr(self.feature, "names", []))

    @property
    def is_number(self) -> bool:
        """Whether labels are numbers, not names. Raises ValueError for other types."""
        kind = str(getattr(self.feature, "dtype", self.feature))
        is_number = isinstance(self.feature, ClassLabel) or kind == "bool" or "int" in kind
        if not is_number and kind not in ("string", "large_string"):
            raise ValueError(f"{self.rows.name}: column {self.rows.table.label_column} holds {kind}, not labels.")
        return is_number


def label_names(columns: list[LabelColumn]) -> tuple[list[str], bool]:
    """Names of the training labels in the order of their ids, as declared, else sorted; whether they are declared."""
    seen = {value for column in columns if column.is_number is not None for value in column.values}
    if declared := next((column.declared for column in columns if column.declared), []):
        return declared, True
    seen = {value for value in seen if value is not None and str(value).strip()}
    if not seen:
        raise _none_is_a_label(columns[0])
    return [str(value) for value in sorted(seen, key=lambda value: (isinstance(value, str), value))], False


def label_ids(column: LabelColumn, names: list[str], is_order_declared: bool, warnings: list[str]) -> list[int]:
    """Ids in `names` of the values. Raises ValueError for a label that is not there, with row and names."""
    rows, declared, is_number = column.rows, column.declared, column.is_number
    places = {name: place for place, name in enumerate(names)}

    def id_of(value: Any) -> int | None:
        digits = is_number or (isinstance(value, str) and value.isdecimal() and value not in declared)
        if declared and digits and value is not None:  # PAWS-X has "0" and "1" as strings
            return places.get(declared[int(value)]) if 0 <= int(value) < len(declared) else None
        return places.get(str(value) if is_number and value is not None else value)

    ids = {value: id_of(value) for value in dict.fromkeys(column.values)}
    if is_number and not declared and is_order_declared and None in ids.values():
        # numbers, and training labels with names in a declared order: read by value, with a warning
        ids = {value: int(value) if value is not None and 0 <= value < len(names) else None for value in ids}
        warnings.append(
            f"labels of {rows.name} are bare numbers: read as {dict(enumerate(names))}, the training data's order"
        )
    if None in ids.values() and all(value in (None, -1) or not str(value).strip() for value in ids):
        raise _none_is_a_label(column)
    unknown = [(number, value) for number, value in enumerate(column.values) if ids[value] is None]
    faults = {column.row_of(number): value for number, value in reversed(unknown)}
    faults = {row: f"label {value!r} in column {rows.table.label_column}" for row, value in faults.items()}
    rows.report(
        faults,
        f"The training data have the labels {', '.join(names)}. Write labels alike in all files, name numbers in "
        "`label_names`, and remove rows without a label.",
    )
    return [ids[value] for value in column.values]


def _none_is_a_label(column: LabelColumn) -> ValueError:
    return ValueError(
        f"{column.rows.place}: none of the {len(column.values)} values in column {column.rows.table.label_column} is "
        "a label. Name another column, another split, or a copy of the data with labels."
    )


def refuse_placeholders(rows: Rows, count: int, what: str, name: str) -> None:
    """Raises the ValueError of an evaluated language in which all of `count` rows or words have one label.

    Some public copies of test sets have every label replaced by a constant: a score on them is noise.
    """
    advice = "Use a copy of the data with labels, or evaluate another split."
    raise ValueError(f"{rows.place}: all {count} {what} have the label {name!r}. {advice}")
