"""Rows of one language in one table, and their columns of texts and of lists of words or labels."""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crosslingual_zoo.finetuning.data.label_files import as_lines, load_labels
from crosslingual_zoo.zoo_core.recipes import validate
from crosslingual_zoo.zoo_core.tables import Table, describe, require_column, table_fingerprint

if TYPE_CHECKING:
    import pandas
    from datasets import Dataset

    from crosslingual_zoo.finetuning.recipe import LabeledTable

BREAKS = re.compile(r"[\t\n\r]")  # they end a column or a line of CoNLL
CODED = ("source_language", "target_language", "translations")  # fields in which `{language}` is a language's code


@dataclass
class Rows:
    """Rows of one language in one table; `{language}` in its path and config is filled in.

    Joined translations are columns of `dataset` too, and `table.translation_columns` names them; `translations` says
    where they come from.
    """

    table: "LabeledTable"
    language: str
    dataset: "Dataset"
    fingerprint: str
    numbers: "np.ndarray"  # of the rows in the table, from 0
    translations: dict[str, Any] | None = None
    left_out: dict[str, Any] = field(default_factory=dict)  # numbers of rows by cause
    examples: "Dataset | None" = None  # the rows in the columns of a kind of task, once it has read them

    @property
    def name(self) -> str:
        """The table as errors and results name it."""
        return describe(self.table)

    @property
    def place(self) -> str:
        """The table and the language, as errors name them."""
        return f"{self.name}, language {self.language}"

    def report(self, faults: dict[int, str], advice: str) -> None:
        """Raises ValueError for the first of the faulty rows, by their numbers here; does nothing without any."""
        if faults:
            row = min(faults)
            raise ValueError(f"{self.place}, row {self.numbers[row]} (from 0): {faults[row]}. {advice}")


def plain_tables(table: "LabeledTable", languages: list[str]) -> list[tuple["LabeledTable", list[str]]]:
    """The tables of a table that has `{language}` in it, each with its language; another table as it is."""
    if not has_place_for_language(table):
        return [(table, languages)]
    if not languages:
        raise ValueError(f"{describe(table)} has {{language}} in it, and `languages` is empty. Name them.")
    return [(filled(table, language), [language]) for language in languages]


def rows_of(table: "LabeledTable", languages: list[str], hub_root: str | None) -> list[Rows]:
    """Reads a plain table: returns the rows of each language; by default of every language in `language_column`."""
    table = whole_file(table)
    dataset, fingerprint = read_table(table, hub_root)
    positions = selected(table, dataset)
    if table.language_column is not None:
        positions_by_language = _by_language(table, dataset, positions, languages)
    elif len(languages) == 1:
        positions_by_language = {languages[0]: positions}
    else:
        raise ValueError(
            f"{describe(table)} holds one language, and `languages` is {languages}. Name that language, set "
            "`language_column`, or write {language} into path or config if each language has its own table."
        )
    all_rows = []
    for language, numbers in positions_by_language.items():
        rows = Rows(table, language, dataset.select(numbers), fingerprint, numbers)
        all_rows.append(_joined(rows, hub_root) if table.translations else rows)
    return all_rows


def _by_language(
    table: "LabeledTable", dataset: "Dataset", positions: np.ndarray, languages: list[str]
) -> dict[str, np.ndarray]:
    """The positions of each language, by default of all. Raises ValueError for a language without a row."""
    require_column(dataset, table.language_column, describe(table))
    language_of_row = np.asarray(dataset[table.language_column][:], dtype=str)[positions]
    present = list(dict.fromkeys(language_of_row.tolist()))
    for language in languages:
        if language not in present:
            raise ValueError(
                f"{describe(table)} has {', '.join(present)} and not {language} in column {table.language_column}."
            )
    return {language: positions[language_of_row == language] for language in languages or present}


def _joined(rows: Rows, hub_root: str | None) -> Rows:
    """The rows with the columns of their `translations` table."""
    from datasets import concatenate_datasets

    table = filled(rows.table, rows.language)
    translations = table.translations
    split = table.split.split("[")[0]  # a slice is joined to the whole split
    source = whole_file(
        Table(path=translations.path, config=translations.config, split=split, revision=translations.revision)
    )
    where = describe(source)
    other, fingerprint = read_table(source, hub_root)
    require_column(rows.dataset, translations.join_on, rows.name)
    ids = rows.dataset[translations.join_on][:]
    positions = unique_ids(other, translations.join_on, where).get_indexer(ids)
    unknown = np.flatnonzero(positions < 0)
    if len(unknown):
        raise ValueError(
            f"{rows.place}: {len(unknown)} of {len(ids)} rows have no translation in {where}; none of its rows has "
            f"{ids[unknown[0]]!r} in column {translations.join_on}."
        )
    new_names = {}
    for column in translations.text_columns:
        # a struct's fields are columns of their own: `answers` names them all
        fields = [name for name in other.column_names if f"{name}.".startswith(f"{column}.")]
        if not fields:
            require_column(other, column, where)
        for name in fields:
            new_names[name] = f"translations.{name}"
    translated = other.select_columns(list(new_names)).rename_columns(new_names).select(positions)
    columns = [f"translations.{column}" for column in translations.text_columns]
    return replace(
        rows,
        table=replace(table, translation_columns=columns),
        dataset=concatenate_datasets([rows.dataset, translated], axis=1),
        translations={**names_of(source), "join_on": translations.join_on, "fingerprint": fingerprint},
    )


def read_table(table: Table, hub_root: str | None) -> tuple["Dataset", str]:
    """The rows of a table, a struct's fields under the dotted names of the recipe, and its fingerprint.

    Raises ValueError for a streamed table.
    """
    if table.streaming:
        raise ValueError(f"{describe(table)}: streaming is true, and all rows are needed at once. Leave it out.")
    dataset = load_labels(table, hub_root)
    return dataset.flatten(), table_fingerprint(as_lines(table), hub_root, dataset)


def unique_ids(dataset: "Dataset", column: str, where: str) -> "pandas.Index":
    """The ids in a column of the table `where`. Raises ValueError where one occurs more than once."""
    import pandas

    require_column(dataset, column, where)
    ids = pandas.Index(dataset[column][:], dtype=object)
    if not ids.is_unique:
        row = ids.duplicated().argmax()
        raise ValueError(f"{where}: row {row} (from 0) repeats {ids[row]!r} in column {column}. Make the ids unique.")
    return ids


def has_place_for_language(table: "LabeledTable") -> bool:
    """Whether each language has its own table or rows, named by `{language}`."""
    return any("{language}" in text for text in (table.path, table.config or "", *table.where.values()))


def filled(table: Any, language: str) -> Any:
    """The table of one language: its entry in `language_names` is in place of `{language}` in every text field.

    In names of languages and in `translations`, it is the language itself.
    """
    fields = asdict(table)
    for key, value in fields.items():
        name = language if key in CODED else table.language_names.get(language, language)
        fields[key] = _with_language(value, name)
    return validate(type(table), fields)


def _with_language(value: Any, name: str) -> Any:
    """The value of a field with a name in place of `{language}` in all of its texts."""
    if isinstance(value, str):
        return value.replace("{language}", name)
    if isinstance(value, list):
        return [_with_language(item, name) for item in value]
    if isinstance(value, dict):
        return {_with_language(key, name): _with_language(item, name) for key, item in value.items()}
    return value


def selected(table: "LabeledTable", dataset: "Dataset") -> np.ndarray:
    """Returns the positions of the rows that match `where`.

    Raises ValueError for a missing column, and if no row matches.
    """
    positions = np.arange(len(dataset))
    for column, text in table.where.items():
        require_column(dataset, column, describe(table))
        pattern = re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
        values = dataset[column][:]
        positions = np.array([row for row in positions if pattern.fullmatch(str(values[row]))], dtype=int)
        if not len(positions):
            raise ValueError(f"{describe(table)} has no row with {text!r} in column {column}.")
    return positions


def whole_file(table: Any) -> Any:
    """Returns the table with the split of a file, which is read whole; a slice stays, which `load_labels` refuses."""
    _, bracket, rows = table.split.partition("[")
    return replace(table, split="train" + bracket + rows) if Path(table.path).is_file() else table


def split_name(table: Table) -> str:
    """Returns the split as results name it; a file has none."""
    return "whole file" if Path(table.path).is_file() else table.split


def names_of(table: Table) -> dict[str, Any]:
    """Returns the description of a table for results.json."""
    names = {"path": table.path, "config": table.config, "split": split_name(table), "revision": table.revision}
    where = getattr(table, "where", {})
    return {**names, "where": where} if where else names


def has_text(column: Any) -> np.ndarray:
    """Returns whether each text of a list or an arrow array has a visible character: not only white space, zero-width
    and control characters. Null has none."""
    from pyarrow import array, compute, string

    texts = array(column, string()) if isinstance(column, list) else column
    is_visible = compute.match_substring_regex(texts, r"[^\pZ\p{Cc}\p{Cf}]")
    return is_visible.fill_null(False).to_numpy(zero_copy_only=False)


def typed_column(dataset: "Dataset", column: str, where: str, dtype: str = "string", is_list: bool = False) -> Any:
    """A column of values, or of lists of them, whose type's name has `dtype` in it. Raises ValueError for another."""
    feature = require_column(dataset, column, where)
    inner = getattr(feature, "feature", None) if is_list else feature
    if dtype not in str(getattr(inner, "dtype", None)):
        expected = f"lists of {dtype}" if is_list else dtype
        raise ValueError(f"{where}: column {column} holds {feature}, not {expected}.")
    return dataset[column]


def named_texts(rows: Rows, names: Iterable[str]) -> dict[str, list[str]]:
    """The text columns of a table under other names. Raises ValueError for a text without a visible character."""
    columns = {}
    for name, column in zip(names, rows.table.text_columns, strict=False):
        columns[name] = typed_column(rows.dataset, column, rows.name)[:]
        blank = np.flatnonzero(~has_text(columns[name])).tolist()
        rows.report(dict.fromkeys(blank, f"column {column} has no text"), "Fill or remove the row.")
    return columns


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
        is_blank = is_text and not all(text.strip(" ") for text in texts)
        if not is_text or is_blank and not may_be_blank:
            number = row if numbers is None else numbers[row]
            raise ValueError(
                f"{where}, row {number} (from 0): column {column} holds {str(texts)[:80]}, not a list of {what}s "
                "without tabs and line breaks. Correct or remove the row."
            )
    return lists
