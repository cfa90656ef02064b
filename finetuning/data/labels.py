"""Labels of any kind of task: from class labels, whole numbers or strings to ids, matched by name.

The *name* of a label connects training and evaluation: ids are those of the training data, and evaluated labels are
looked up by name. So two datasets may number the same classes differently.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from datasets import ClassLabel

from finetuning.data.rows import Rows
from zoo_core.faults import are_found
from zoo_core.tables import close_name


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
        if self.rows.table.label_names:
            return list(self.rows.table.label_names)
        return list(self.feature.names) if isinstance(self.feature, ClassLabel) else []

    @property
    def is_number(self) -> bool:
        """Whether labels are numbers, not names. Raises ValueError for other types."""
        kind = getattr(self.feature, "dtype", str(self.feature))
        is_number = isinstance(self.feature, ClassLabel) or kind == "bool" or "int" in kind
        if not is_number and kind not in ("string", "large_string"):
            raise ValueError(
                f"{self.rows.name}: column {self.rows.table.label_column} holds {kind}. Name another label column, or "
                "convert this one."
            )
        return is_number


def label_names(columns: list[LabelColumn]) -> tuple[list[str], bool]:
    """Names of the training labels in the order of their ids, as declared, else sorted; whether they are declared.

    Raises ValueError for labels that differ only in case or in surrounding spaces, unless `label_names` has them.
    """
    for column in columns:
        _ = column.is_number
    declared = next((column.declared for column in columns if column.declared), [])
    if not any(column.rows.table.label_names for column in columns):
        _refuse_spellings(columns)
    if declared:
        return declared, True
    seen = {value for column in columns for value in column.values if not _is_empty(value)}
    if not seen:
        raise ValueError(
            f"{columns[0].rows.place}: none of the {len(columns[0].values)} values in column "
            f"{columns[0].rows.table.label_column} is a label. Name a column with labels."
        )
    return [str(value) for value in sorted(seen, key=lambda value: (isinstance(value, str), value))], False


def _refuse_spellings(columns: list[LabelColumn]) -> None:
    """Raises ValueError for labels that differ only in case or in surrounding spaces."""
    counts: Counter[str] = Counter()
    for column in columns:
        names = dict(enumerate(column.declared if column.is_number else []))
        counts.update(dict.fromkeys(names.values(), 0))
        for value, count in Counter(column.values).items():
            if isinstance(name := names.get(value, value), str):
                counts[name] += count
    spellings: dict[str, list[str]] = {}
    for name, _ in counts.most_common():
        spellings.setdefault(name.strip().casefold(), []).append(name)
    if alike := next((names for plain, names in spellings.items() if plain and len(names) > 1), None):
        tables = ", ".join(dict.fromkeys(column.rows.name for column in columns))
        shown = ", ".join(f"{name!r} ({counts[name]:,})" for name in alike)
        raise ValueError(
            f"{tables}: labels in column {columns[0].rows.table.label_column} differ only in case or surrounding "
            f"space: {shown}. Write them alike; if they are different labels, name all in `label_names`."
        )


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def label_ids(column: LabelColumn, names: list[str], is_order_declared: bool, warnings: list[str]) -> list[int]:
    """Ids in `names` of the values. Raises ValueError for a label that is not there, with row and names."""
    rows, declared, is_number = column.rows, column.declared, column.is_number
    name_of_column = rows.table.label_column
    places = {name: place for place, name in enumerate(names)}

    def id_of(value: Any) -> int | None:
        name = value
        digits = is_number or (isinstance(value, str) and value.isdecimal() and value not in declared)
        if declared and digits and value is not None:  # PAWS-X has "0" and "1" as strings
            name = declared[int(value)] if 0 <= int(value) < len(declared) else value
        elif is_number and value is not None:
            name = str(value)
        return places.get(name)

    ids = {value: id_of(value) for value in dict.fromkeys(column.values)}
    if is_number and not declared and is_order_declared and None in ids.values():
        # numbers, and training labels with names in a declared order: read by value, with a warning
        ids = {value: int(value) if value is not None and 0 <= value < len(names) else None for value in ids}
        warnings.append(
            f"labels of {rows.name} are bare numbers: read as {dict(enumerate(names))}, the training data's order"
        )
    unknown = [value for value, found in ids.items() if found is None]
    if unknown and all(value == -1 or _is_empty(value) for value in ids):
        raise ValueError(
            f"{rows.place}: none of the {len(column.values)} values in column {name_of_column} is a label. Name "
            "another split, or a copy of the data with labels."
        )
    if unknown:
        faults: dict[int, str] = {}
        for number, value in enumerate(column.values):
            if ids[value] is None:
                hidden = "no label" if value == -1 or _is_empty(value) else f"label {value!r}"
                faults.setdefault(column.row_of(number), f"{hidden} in column {name_of_column}")
        wrong = [value for value in unknown if value != -1 and not _is_empty(value)]
        advice = _advice(wrong[0], names) if wrong else "Remove rows without a label."
        rows.report(faults, f"The training data have the labels {', '.join(names)}. {advice}")
    return [ids[value] or 0 for value in column.values]


def _advice(value: Any, names: list[str]) -> str:
    hint = close_name(value, names) if isinstance(value, str) else ""
    return f"{hint} Write labels alike in all files; if they are numbers, name 0, 1, ... in `label_names`.".lstrip()


def check_label_names(where: str, names: list[str]) -> None:
    """Raises ValueError for `label_names` that are not all different."""
    if len(set(names)) < len(names):
        raise ValueError(f"{where}.label_names is {names}. Give each label a different name.")


def refuse_placeholders(rows: Rows, count: int, what: str, name: str) -> None:
    """Raises the ValueError of an evaluated language in which all of `count` rows or words have one label.

    Some public copies of test sets have every label replaced by a constant: a score on them is noise.
    """
    if are_found():
        return
    raise ValueError(
        f"{rows.place}: all {count} {what} have the label {name!r}. Use a copy of the data with labels, or "
        "evaluate another split."
    )
