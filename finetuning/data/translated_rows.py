"""Plug-in rows whose translations have labels of their own: the words of a tagger, the answers of a reader."""

from dataclasses import replace
from typing import TYPE_CHECKING

from finetuning.data.table_checks import named_tables
from finetuning.data.task_tables import Rows

if TYPE_CHECKING:
    from finetuning.recipe import Recipe


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
            needed = f"{texts} and then their {labels}" if is_trained else f"{texts} alone"
            reason = "Both sides are learned from" if is_trained else f"Only {labels} of the text itself are scored"
            raise ValueError(
                f"{where} names {len(columns)} columns of translations: {', '.join(columns)}. {reason}: here they are "
                f"{needed}. Name {len(wanted)}, as in translation_columns: [{', '.join(wanted)}]."
            )


def translation_of(rows: Rows) -> Rows | None:
    """The same rows with their translations' columns as the table's own; the label column is "" where none is named."""
    columns = rows.table.translation_columns
    if not columns:
        return None
    texts = len(rows.table.text_columns)
    table = replace(rows.table, text_columns=columns[:texts], label_column=next(iter(columns[texts:]), ""))
    return replace(rows, table=table)
