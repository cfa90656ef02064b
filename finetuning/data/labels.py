"""Labels of any kind of task: from class labels, whole numbers or strings to ids, matched by name.

The *name* of a label connects training and evaluation: ids are those of the training data, and evaluated labels are
looked up by name. So two datasets may number the same classes differently.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from crosslingual_zoo.finetuning.data.rows import Rows

# No label, as `datasets` (-1), losses (-100), SNLI's annotators without agreement (-) and CoNLL-U (_) write it
UNLABELED_ROWS = ("-1", "-100", "-")
UNLABELED_WORDS = ("-1", "-100", "_")
KEEP_UNLABELED = "If it is a class, list all classes in `label_names`, as text."


@dataclass
class LabelColumn:
    """The labels of some rows: `values` as in the table, and the type (`datasets` feature) of one of them.

    `row_of` returns the row of a value, if a row has several; `unlabeled` are names that mean "no label". Raises
    ValueError for values that are no labels.
    """

    rows: Rows
    feature: Any
    values: list[Any]
    row_of: Callable[[int], int] = lambda number: number
    unlabeled: tuple[str, ...] = UNLABELED_ROWS

    def __post_init__(self) -> None:
        other_types = {*map(type, self.values)} - {str, int, bool, type(None)}
        if other_types:
            kind = min(other_type.__name__ for other_type in other_types)
            raise ValueError(f"{self.rows.name}: column {self.rows.table.label_column} holds {kind}, not labels.")

    @property
    def declared(self) -> list[str]:
        """Names of the labels 0, 1, ... if the recipe or the data declare them."""
        return list(self.rows.table.label_names or getattr(self.feature, "names", []))

    def name_of(self, value: Any) -> str | None:
        """Returns the name of a value; None if it has none."""
        if value is None:
            return None
        declared = self.declared
        is_number = isinstance(value, int) or value.isdecimal()
        if not declared or not is_number or value in declared:  # PAWS-X has "0" and "1" as strings
            return str(value)
        if "-1" in self.rows.table.label_names and not hasattr(self.feature, "names"):
            return str(value)  # -1 is no place in a list: `label_names` are the numbers themselves
        if not 0 <= int(value) < len(declared):
            return None
        return declared[int(value)]

    def is_missing(self, value: Any) -> bool:
        """Returns whether a value means that there is no label, as -1 does unless `label_names` has it."""
        name = self.name_of(value)
        if name is None:
            name = str(value)
        return name in self.unlabeled and name not in self.rows.table.label_names


def label_names(columns: list[LabelColumn]) -> list[str]:
    """Names of the training labels in the order of their ids: as declared, else sorted."""
    for column in columns:
        if column.declared:
            return [name for name in column.declared if not column.is_missing(name)]
    values = {value for column in columns for value in column.values if value is not None and str(value).strip()}
    return [str(value) for value in sorted(values, key=lambda value: (isinstance(value, str), value))]


def label_ids(column: LabelColumn, names: list[str]) -> list[int]:
    """Ids in `names` of the values. Raises ValueError for a label that is not there, with row and names."""
    rows = column.rows
    id_of_name = {name: id for id, name in enumerate(names)}
    id_of_value = {value: id_of_name.get(column.name_of(value)) for value in dict.fromkeys(column.values)}
    unknown: dict[int, str] = {}
    for number, value in enumerate(column.values):
        if id_of_value[value] is None:
            unknown.setdefault(column.row_of(number), f"label {value!r} in column {rows.table.label_column}")
    rows.report(
        unknown,
        f"The training data have the labels {', '.join(names) or '(none)'}. Write labels alike in all files, name "
        "numbers in `label_names`, and remove rows without a label.",
    )
    return [id_of_value[value] for value in column.values]


def refuse_one_label(columns: list[LabelColumn], what: str) -> None:
    """Raises ValueError where all rows or words, `what`, of the columns together have one label.

    Some public copies of test sets have every label replaced by a constant: a score on them is noise.
    """
    values = [value for column in columns for value in column.values]
    if len({*values}) != 1:
        return
    label = columns[0].name_of(values[0]) or values[0]
    advice = "Use a copy of the data with labels, or another split."
    unlabeled = sum(column.rows.left_out.get("unlabeled", 0) for column in columns)
    if unlabeled:
        advice = f"{unlabeled:,} others, labeled -1 or -, were left out. {KEEP_UNLABELED}"
    raise ValueError(f"{columns[0].rows.place}: all {len(values)} {what} have the label {label!r}. {advice}")
