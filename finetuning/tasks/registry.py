"""The kinds of task: the recipe of each, and its Task. A new kind is a file or package here, and a line in `KINDS`."""

import argparse
import pkgutil
from typing import TYPE_CHECKING, NamedTuple

from finetuning.recipe import QuestionAnsweringRecipe, Recipe, TaggingRecipe, TaskRecipe, TrainedRecipe
from finetuning.tasks.translation.recipe import TranslationRecipe
from finetuning.tasks.vectors.recipe import MiningRecipe, RetrievalRecipe, WordAlignmentRecipe
from zoo_core.recipes import nearest, read_yaml

if TYPE_CHECKING:
    from finetuning.tasks.base import Task


class Kind(NamedTuple):
    """A kind of task: its recipe, and module of finetuning/tasks and name of its Task, which imports torch."""

    recipe_class: type[TaskRecipe]
    task: str

    @property
    def is_trained(self) -> bool:
        """Whether the model is fine-tuned, once a seed."""
        return issubclass(self.recipe_class, TrainedRecipe)


# the first is the default of a recipe that names no kind
KINDS = {
    kind.recipe_class.kind: kind
    for kind in (
        Kind(Recipe, "classification:ClassificationTask"),
        Kind(TaggingRecipe, "tagging:TaggingTask"),
        Kind(QuestionAnsweringRecipe, "question_answering.task:QuestionAnsweringTask"),
        Kind(TranslationRecipe, "translation.task:TranslationTask"),
        Kind(WordAlignmentRecipe, "vectors.word_alignment:WordAlignmentTask"),
        Kind(RetrievalRecipe, "vectors.retrieval:RetrievalTask"),
        Kind(MiningRecipe, "vectors.mining:MiningTask"),
    )
}


def task_of(recipe: TaskRecipe) -> "Task":
    """The task of a recipe."""
    return pkgutil.resolve_name(f"{__package__}.{KINDS[recipe.kind].task}")(recipe)


def kind_of(argv: list[str]) -> str:
    """Returns the kind of a command line: the last override `kind=`, else the config file's, else the first."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config")
    file = parser.parse_known_args(argv)[0].config
    given = [argument.removeprefix("kind=") for argument in argv if argument.startswith("kind=")]
    kind = given[-1] if given else (read_yaml(file) if file else {}).get("kind", next(iter(KINDS)))
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, which is no kind of task. {nearest(str(kind), KINDS)}")
    return kind
