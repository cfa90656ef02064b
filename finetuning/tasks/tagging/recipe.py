"""The recipe of tagging: what it has beside the fields of every task."""

from dataclasses import dataclass
from typing import Literal

from finetuning.recipe import Recipe
from zoo_core.recipes import option


@dataclass
class TaggingRecipe(Recipe):
    """Fine-tuning of one model to label words, evaluated in every language."""

    main_score, task_type = "f1", "token-classification"
    kind: Literal["tagging"] = option("tagging", "kind of task: words, each with a label")
    label_subword: Literal["first", "first_with_text"] = option(
        "first_with_text",
        "which token of a word has its label: the first, as in XTREME, or the first that is more than the mark of a "
        "word's beginning, which stands alone before most Chinese words",
    )
