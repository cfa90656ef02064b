"""The kinds of task: what recipe each has, what runs it, and what shows its results.

A kind is a package of finetuning/tasks/. A new one is its package and its line in `KINDS`.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from zoo_core.recipes import nearest, read_yaml

# how kinds run, and read their data for `--check_data`
BY_LANGUAGE, FEATURES, TRANSLATION = "by_language", "features", "translation"


@dataclass(frozen=True)
class TaskKind:
    """Where a kind's parts are; imported when they are asked for, so that `--help` needs no torch."""

    recipe: str
    procedure: str
    metric: str  # the score that results are about, beside which published figures of that name stand
    results: str = "finetuning.results.by_language"

    @property
    def recipe_class(self) -> type:
        return _load(self.recipe)

    @property
    def run_function(self) -> Callable[[Any, bool, list[str]], Any]:
        """Runs a recipe: (recipe, resume, command)."""
        return _load(f"finetuning.running:run_{self.procedure}")

    @property
    def data_function(self) -> Callable[[Any], tuple[Any, Any]]:
        """Reads all data of a recipe: (data, table of what is in them)."""
        return _load(f"finetuning.data.data_report:read_{self.procedure}")

    @property
    def is_trained(self) -> bool:
        return self.procedure != FEATURES

    @property
    def is_by_language(self) -> bool:
        """Whether every language is evaluated by itself, with scores that a sweep can choose by."""
        return self.procedure == BY_LANGUAGE


KINDS = {
    "classification": TaskKind("finetuning.recipe:Recipe", BY_LANGUAGE, "accuracy"),
    "tagging": TaskKind("finetuning.tasks.tagging.recipe:TaggingRecipe", BY_LANGUAGE, "f1"),
    "question_answering": TaskKind(
        "finetuning.tasks.question_answering.recipe:QuestionAnsweringRecipe", BY_LANGUAGE, "f1"
    ),
    "translation": TaskKind(
        "finetuning.tasks.translation.recipe:TranslationRecipe",
        TRANSLATION,
        "sacrebleu",
        "finetuning.tasks.translation.results",
    ),
    "word_alignment": TaskKind(
        "finetuning.tasks.word_alignment.recipe:WordAlignmentRecipe",
        FEATURES,
        "aer",
        "finetuning.tasks.word_alignment.results",
    ),
    "retrieval": TaskKind(
        "finetuning.tasks.retrieval.recipe:RetrievalRecipe",
        FEATURES,
        "accuracy",
        "finetuning.tasks.retrieval.results",
    ),
    "mining": TaskKind(
        "finetuning.tasks.mining.recipe:MiningRecipe", FEATURES, "f1", "finetuning.tasks.mining.results"
    ),
}


def task_module(kind: str) -> Any:
    """finetuning/tasks/<kind>/task.py: what is read, encoded and scored."""
    return import_module(f"finetuning.tasks.{kind}.task")


def recipe_module(kind: str) -> Any:
    """The module of a kind's recipe, with its `check_recipe` where it has one."""
    return import_module(KINDS[kind].recipe.partition(":")[0])


def results_module(kind: str) -> Any:
    """The module with the `REPORT` of a kind. Raises ValueError for a kind that is none."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of task. {nearest(str(kind), KINDS)}")
    return import_module(KINDS[kind].results)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def kind_of(argv: list[str]) -> str:
    """The kind that a command line asks for: the last override `kind=`, else the config file's, else the first."""
    kind = next(iter(KINDS))
    for argument, following in itertools.zip_longest(argv, argv[1:]):
        flag, has_value, file = argument.partition("=")
        if len(flag) > 2 and "--config".startswith(flag):  # argparse takes --conf as well
            file = file if has_value else following
            kind = read_yaml(file).get("kind", kind) if file else kind
    kind = next((argument[len("kind=") :] for argument in reversed(argv) if argument.startswith("kind=")), kind)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, which is no kind of task. {nearest(str(kind), KINDS)}")
    return kind
