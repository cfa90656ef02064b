"""The recipe of tagging: the field that it adds to those of every task."""

from dataclasses import dataclass
from typing import Literal

from finetuning.recipe import Recipe
from zoo_core.recipes import option


@dataclass
class TaggingRecipe(Recipe):
    """Fine-tuning of one model to label words, evaluated in every language."""

    main_score, task_type = "f1", "token-classification"
    measures = "labels of words"
    kind: Literal["tagging"] = option("tagging", "kind of task: words, each with a label")
    label_subword: Literal["first", "first_with_text"] = option(
        "first_with_text",
        "token of a word that has its label; first: its first token, as in XTREME; first_with_text: its first token "
        "with text, because most Chinese words begin with a token that only marks their start",
    )
