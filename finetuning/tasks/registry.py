"""The kinds of task, by the recipe of each. A new kind is a file or package here, and a line in `KINDS`."""

import argparse
import pkgutil
from typing import TYPE_CHECKING

from crosslingual_zoo.finetuning.recipe import QuestionAnsweringRecipe, Recipe, TaggingRecipe, TaskRecipe
from crosslingual_zoo.finetuning.tasks.translation.recipe import TranslationRecipe
from crosslingual_zoo.finetuning.tasks.vectors.recipe import MiningRecipe, RetrievalRecipe, WordAlignmentRecipe
from crosslingual_zoo.zoo_core.recipes import nearest, read_yaml

if TYPE_CHECKING:
    from crosslingual_zoo.finetuning.tasks.base import Task


# the first is the default of a recipe that names no kind
KINDS: dict[str, type[TaskRecipe]] = {
    recipe_class.kind: recipe_class
    for recipe_class in (
        Recipe,
        TaggingRecipe,
        QuestionAnsweringRecipe,
        TranslationRecipe,
        WordAlignmentRecipe,
        RetrievalRecipe,
        MiningRecipe,
    )
}


def task_of(recipe: TaskRecipe) -> "Task":
    """The task of a recipe."""
    return pkgutil.resolve_name(f"{__package__}.{recipe.task_class}")(recipe)


def kind_of(argv: list[str]) -> str:
    """Returns the kind of a command line: the last override `kind=`, else the config file's, else the first."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config")
    file = parser.parse_known_args(argv)[0].config
    kind = next(iter(KINDS))
    if file:
        kind = read_yaml(file).get("kind", kind)
    for argument in argv:
        if argument.startswith("kind="):
            kind = argument.removeprefix("kind=")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, which is no kind of task. {nearest(str(kind), KINDS)}")
    return kind
