"""The kinds of task: which recipe each has, and what runs it.

A kind is a package of finetuning/tasks/. A new one is its package and its line in `KINDS`.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from zoo_core.recipes import nearest, read_yaml


@dataclass(frozen=True)
class TaskKind:
    """Where a kind's recipe and run are; imported when they are asked for, so that `--help` needs no torch."""

    recipe: str
    run: str

    @property
    def recipe_class(self) -> type:
        return _load(self.recipe)

    @property
    def run_function(self) -> Callable[[Any, bool, list[str]], Any]:
        """Runs a recipe: (recipe, resume, command)."""
        return _load(self.run)

    @property
    def is_trained(self) -> bool:
        return self.run != FEATURES

    @property
    def is_by_language(self) -> bool:
        """Whether every language is evaluated by itself, with scores that a sweep can choose by."""
        return self.run == BY_LANGUAGE


BY_LANGUAGE = "finetuning.running:run_by_language"
FEATURES = "finetuning.running:run_features"

KINDS = {
    "classification": TaskKind("finetuning.recipe:Recipe", BY_LANGUAGE),
    "tagging": TaskKind("finetuning.recipe:TaggingRecipe", BY_LANGUAGE),
    "question_answering": TaskKind("finetuning.tasks.question_answering.recipe:QuestionAnsweringRecipe", BY_LANGUAGE),
    "translation": TaskKind(
        "finetuning.tasks.translation.recipe:TranslationRecipe", "finetuning.running:run_translation"
    ),
    "word_alignment": TaskKind("finetuning.tasks.word_alignment.recipe:WordAlignmentRecipe", FEATURES),
    "retrieval": TaskKind("finetuning.tasks.retrieval.recipe:RetrievalRecipe", FEATURES),
    "mining": TaskKind("finetuning.tasks.mining.recipe:MiningRecipe", FEATURES),
}


def task_module(kind: str) -> Any:
    """finetuning/tasks/<kind>/task.py: what is read, encoded and scored."""
    return import_module(f"finetuning.tasks.{kind}.task")


def recipe_module(kind: str) -> Any:
    """The module of a kind's recipe, with its `check_recipe` where it has one."""
    return import_module(KINDS[kind].recipe.partition(":")[0])


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def kind_of(argv: list[str]) -> str:
    """The kind that a command line asks for: the last override `kind=`, else the config file's, else the first.

    Raises ValueError for a kind that is none.
    """
    kind = next(iter(KINDS))
    for argument, following in itertools.zip_longest(argv, argv[1:]):
        flag, has_value, file = argument.partition("=")
        if len(flag) > 2 and "--config".startswith(flag):  # argparse takes --conf as well
            file = file if has_value else following
            kind = read_yaml(file).get("kind", kind) if file else kind
    kind = next((argument[len("kind=") :] for argument in reversed(argv) if argument.startswith("kind=")), kind)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(
            f"kind is {kind!r}, which is no kind of task here. The kind says which fields a recipe has. "
            f"{nearest(str(kind), KINDS)}"
        )
    return kind
