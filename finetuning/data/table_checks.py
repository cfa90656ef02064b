"""Checks of a recipe's tables before any is read, and of their columns."""

from dataclasses import replace
from typing import TYPE_CHECKING

from finetuning.data.rows import Rows

if TYPE_CHECKING:
    from finetuning.recipe import LabeledTable, Recipe


def named_tables(recipe: "Recipe") -> dict[str, "LabeledTable"]:
    """The tables by their place in the recipe, such as `train.0`, as errors name them."""
    parts = {"train": recipe.train, "evaluation": recipe.evaluation}
    return {f"{part}.{position}": table for part, tables in parts.items() for position, table in enumerate(tables)}


def check_tables(recipe: "Recipe") -> None:
    """Raises ValueError for tables that are missing, for repeated label names, and for languages and translations that
    the setting does not use, or needs and lacks."""
    if not recipe.train or not recipe.evaluation:
        raise ValueError(f"The recipe has no {'evaluation' if recipe.train else 'train'} table. Add one.")
    for where, table in named_tables(recipe).items():
        if len(set(table.label_names)) < len(table.label_names):
            raise ValueError(f"{where}.label_names is {table.label_names}. Give each label a different name.")
        if bool(table.translation_columns) + bool(table.translations) != recipe.plug_in:
            raise ValueError(
                f"{where}: plug_in is {recipe.plug_in}. With plug_in, give one of `translation_columns` and "
                "`translations`; without it, none."
            )
        columns = table.translation_columns or (table.translations.text_columns if table.translations else [])
        has_labels = recipe.translations_have_labels and table in recipe.train
        wanted = [*table.text_columns, *([table.label_column] if has_labels else [])]
        if columns and len(columns) != len(wanted):
            raise ValueError(f"{where} has {columns} as translations. Name the columns that translate {wanted}.")
    for position, table in enumerate(recipe.train):
        if recipe.setting == "zero_shot" and table.languages not in ([], [recipe.source_language]):
            raise ValueError(
                f"train.{position}.languages is {table.languages}, and setting is zero_shot, which trains on "
                f"{recipe.source_language}. Leave it out, or use setting=translate_train_all or supervised."
            )
    if recipe.selection == "mean_dev" and not any(table.dev_split for table in recipe.evaluation):
        raise ValueError("selection is mean_dev, and no evaluation table has a dev_split. Name it.")


def translation_of(rows: Rows) -> Rows | None:
    """The same rows with their translations' columns as the table's own; the label column is "" where none is named."""
    columns = rows.table.translation_columns
    if not columns:
        return None
    texts = len(rows.table.text_columns)
    table = replace(rows.table, text_columns=columns[:texts], label_column=next(iter(columns[texts:]), ""))
    return replace(rows, table=table)
