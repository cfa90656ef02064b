"""Checks of a recipe's tables before any is read: missing or streamed tables, and evaluated rows in training."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetuning.data.rows import Rows, filled, translation_table
from finetuning.data.task_tables import training_languages
from zoo_core.tables import Table, describe, require_column, resolve_hub_path

if TYPE_CHECKING:
    from finetuning.recipe import EvaluationTable, LabeledTable, Recipe, TrainingTable


def named_tables(recipe: "Recipe") -> dict[str, "LabeledTable"]:
    """The tables by their place in the recipe, such as `train.0`, as errors name them."""
    parts = {"train": recipe.train, "evaluation": recipe.evaluation}
    return {f"{part}.{position}": table for part, tables in parts.items() for position, table in enumerate(tables)}


def check_tables(recipe: "Recipe") -> None:
    """Raises ValueError for tables that are missing or streamed, and where training or selection sees evaluated rows.

    Also for languages and translations that the setting does not use, or that it needs and that are missing.
    """
    for part in ("train", "evaluation"):
        if not getattr(recipe, part):
            raise ValueError(f"The recipe has no {part} table. Add one under `{part}:`.")
    for where, table in named_tables(recipe).items():
        if table.streaming:
            raise ValueError(f"{where}.streaming is true, and fine-tuning needs all rows at once. Leave it out.")
        _check_translations(table, where, recipe.plug_in)
        if table.dev_split and overlap(table, replace(table, split=table.dev_split), recipe.hub_root):
            raise ValueError(
                f"{where}.dev_split is {table.dev_split!r}, and its split {table.split!r} has the same rows. Name "
                "another split, or leave it out."
            )
    for position, table in enumerate(recipe.train):
        if recipe.setting == "zero_shot" and table.languages not in ([], [recipe.source_language]):
            raise ValueError(
                f"train.{position}.languages is {table.languages}, and setting is zero_shot, which trains on "
                f"{recipe.source_language} only. Leave it out, or use setting=translate_train_all for "
                "translated rows, setting=supervised for rows labeled in their language."
            )
        for split in filter(None, (table.split, table.dev_split)):
            for number, evaluated in enumerate(recipe.evaluation):
                if _shares_rows(recipe, replace(table, split=split), evaluated):
                    raise ValueError(
                        f"train.{position} reads {describe(replace(table, split=split))}, which is evaluated by "
                        f"evaluation.{number}. Evaluate another split."
                    )
    if recipe.selection == "mean_dev" and not any(table.dev_split for table in recipe.evaluation):
        raise ValueError(
            "selection is mean_dev, and no evaluation table has a dev_split. Name their split, or use "
            "selection=source_dev or selection=last."
        )


def _check_translations(table: "LabeledTable", where: str, plug_in: bool) -> None:
    """Raises ValueError unless a table of a plug-in run names its translations once, and other tables not at all."""
    named = [name for name in ("translation_columns", "translations") if getattr(table, name)]
    if named and not plug_in:
        raise ValueError(
            f"{where}.{named[0]} is given, and plug_in is false. Leave it out, or set plug_in=true; translations that "
            "are training rows need their own table."
        )
    if plug_in and len(named) != 1:
        fault = "names its translations twice" if named else "names no translations"
        raise ValueError(
            f"{where} {fault}, and plug_in is true. Give either `translation_columns` or `translations`; those of "
            "evaluated texts are the benchmark's translate-test texts."
        )


def check_translation_columns(recipe: "Recipe", texts: str, labels: str) -> None:
    """Raises ValueError for tables that do not name as many columns of translations as they need.

    In training they are the translations of `text_columns` and the column of their labels, since both sides are learned
    from; elsewhere those of `text_columns` alone. `texts` and `labels` are what the kind of task calls them.
    """
    for where, table in named_tables(recipe).items():
        columns = table.translation_columns or (table.translations.text_columns if table.translations else [])
        is_trained = where.startswith("train")
        wanted = [f"{name}_en" for name in table.text_columns] + [f"{table.label_column}_en"] * is_trained
        if columns and len(columns) != len(wanted):
            needed = f"{texts} and then their {labels}" if is_trained else f"{texts} only"
            raise ValueError(
                f"{where} names {len(columns)} columns of translations: {', '.join(columns)}. Name {len(wanted)}, "
                f"{needed}, as in translation_columns: [{', '.join(wanted)}]."
            )


def translation_of(rows: Rows) -> Rows | None:
    """The same rows with their translations' columns as the table's own; the label column is "" where none is named."""
    columns = rows.table.translation_columns
    if not columns:
        return None
    texts = len(rows.table.text_columns)
    table = replace(rows.table, text_columns=columns[:texts], label_column=next(iter(columns[texts:]), ""))
    return replace(rows, table=table)


def typed_column(rows: Rows, column: str, what: str, dtype: str, is_list: bool = False) -> list:
    """A column of values, or of lists of them, whose type's name has `dtype` in it. Raises ValueError for another."""
    feature = require_column(rows.dataset, column, rows.name)
    inner = getattr(feature, "feature", None) if is_list else feature
    if dtype not in str(getattr(inner, "dtype", None)):
        raise ValueError(
            f"{rows.name}: column {column} holds {getattr(feature, 'dtype', feature)}, not {what}. Name the right "
            f"columns, or convert this one; the columns are {', '.join(rows.dataset.column_names)}."
        )
    return rows.dataset[column][:]


def _shares_rows(recipe: "Recipe", trained: "TrainingTable", evaluated: "EvaluationTable") -> bool:
    """Whether any evaluated text or its translation is trained on, in any language.

    Two joined translations are not compared: the tables that they are joined to determine which of their rows are read.
    """

    def tables(table: Any, languages: list[str]) -> list[list[Table]]:
        each = [filled(table, name) for name in languages or [""]]
        return [each, [translation_table(one) for one in each if one.translations]]

    texts, translations = tables(trained, training_languages(recipe, trained))
    evaluated_texts, evaluated_translations = tables(evaluated, evaluated.languages)
    pairs = [(one, other) for one in texts + translations for other in evaluated_texts]
    pairs += [(one, other) for one in texts for other in evaluated_translations]
    return any(overlap(one, other, recipe.hub_root) for one, other in pairs)


def _place(table: Table, hub_root: str | None) -> str:
    """The path of a table, the same however it is spelled."""
    path = resolve_hub_path(table.path, hub_root)
    return str(Path(path).resolve()) if Path(path).exists() else path


def overlap(one: Table, other: Table, hub_root: str | None) -> bool:
    """Whether two tables share rows. Two slices of a split, as in train[:9], count as disjoint.

    So do tables whose `where` is not the same. Equal rows are counted when they are read.
    """
    if _place(one, hub_root) != _place(other, hub_root) or one.config != other.config:
        return False
    if getattr(one, "where", {}) != getattr(other, "where", {}):
        return False
    both_sliced = "[" in one.split and "[" in other.split
    same_split = one.split == other.split if both_sliced else one.split.split("[")[0] == other.split.split("[")[0]
    return same_split or Path(one.path).is_file()
