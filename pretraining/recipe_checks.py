"""Checks of a pre-training recipe's fields against each other, before any model or text is read."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretraining.objectives import OBJECTIVES, Objective
from pretraining.recipe import Phase, Recipe, scheduled_together
from pretraining.recipe_corpora import Bitext, LinkedPairs, Monolingual
from zoo_core.recipes import nearest


def check_recipe(recipe: Recipe) -> None:
    """Checks the fields of a recipe against each other.

    Raises `ValueError` with the name of the field for a recipe without a phase, an objective without text, a missing
    learning rate, and a phase or corpus name that is used twice.
    """
    if Path(recipe.output_dir).is_file():
        raise ValueError(f"output_dir is {recipe.output_dir}, which is a file. Name a folder.")
    recipe.named_corpora()  # no two of one name
    _require(bool(recipe.phases), "phases", [], "a run needs at least one phase")
    names = [phase.name for phase in recipe.phases]
    for index, phase in enumerate(recipe.phases):
        _require(names.count(phase.name) == 1, "phases.name", phase.name, "names of phases must be unique")
        _check_phase(recipe, index, f"phases.{index}")
    for kind in ("monolingual", "bitext", "linked"):
        for index, corpus in enumerate(getattr(recipe, kind)):
            _check_corpus(corpus, f"{kind}.{index}")
    check_meta_pretrained(recipe)
    _check_teacher(recipe)
    betas = recipe.optimizer.betas
    _require(len(betas) == 2, "optimizer.betas", betas, "give two numbers, such as [0.9, 0.98]")


def _check_phase(recipe: Recipe, index: int, place: str) -> None:
    phase = recipe.phases[index]
    _check_schedule(recipe.phases, index, place)
    _require(bool(phase.objectives), f"{place}.objectives", {}, f"choose from {', '.join(OBJECTIVES)}")
    for name, objective in phase.objectives.items():
        _check_objective(recipe, phase, objective, f"{place}.objectives.{name}")
    if not any(objective.weight for objective in phase.objectives.values()):
        raise ValueError(
            f"all objectives of {place} have weight 0, so the model would learn nothing. Set one weight above 0."
        )


def _check_schedule(phases: Sequence[Phase], index: int, place: str) -> None:
    phase = phases[index]
    if phase.optimizer == "carried":
        _require(index > 0, f"{place}.optimizer", "carried", "the first phase has none to continue; set it to fresh")
        why = "the phase continues the schedule of the phase before (optimizer: carried); remove the field"
        _require_defaults(phase, ("learning_rate", "warmup_steps", "schedule"), place, why)
        return
    rate, warmup = phase.learning_rate, phase.warmup_steps
    _require(rate is not None, f"{place}.learning_rate", rate, "set the peak learning rate, such as 5e-5")
    steps = sum(other.steps for other in scheduled_together(phases, index))
    _require(warmup <= steps, f"{place}.warmup_steps", warmup, f"the schedule has only {steps:,} steps")


def _check_objective(recipe: Recipe, phase: Phase, objective: Objective, place: str) -> None:
    if not getattr(recipe, objective.text):
        raise ValueError(
            f"{place} reads {objective.text} text, but `{objective.text}` lists no corpus. Add one, or remove the "
            "objective."
        )
    read = objective.sub_batch()
    if read not in phase.objectives:
        raise ValueError(
            f"{place} reads the examples of {read}, which is not in the phase. Add {read}, with weight 0 if the model "
            "should not learn it."
        )
    if objective.has_teacher and not recipe.teacher:
        raise ValueError(
            f"{place} learns from a teacher, but the recipe has none. Set teacher.path and teacher.language."
        )


def _check_corpus(corpus: Monolingual | Bitext | LinkedPairs, place: str) -> None:
    for name in ("language", "source_language", "target_language", "name"):
        _require(getattr(corpus, name, None) != "", f"{place}.{name}", "", "it must not be empty")
    if isinstance(corpus, LinkedPairs):
        _require(not corpus.streaming, f"{place}.streaming", True, "linked pairs cannot be streamed; set it to false")
    if not isinstance(corpus, Monolingual):
        return
    document, pattern = corpus.document_column, corpus.document_pattern
    if pattern is not None:
        why = "it is matched in document_column, which is not set; set both"
        _require(document is not None, f"{place}.document_pattern", pattern, why)
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{place}.document_pattern is {pattern!r}, which is not a regular expression: {error}."
            ) from error


def _check_teacher(recipe: Recipe) -> None:
    taught = any(objective.has_teacher for phase in recipe.phases for objective in phase.objectives.values())
    if recipe.teacher:
        why = "no phase has an objective that learns from a teacher; add kd to a phase, or remove teacher"
        _require(taught, "teacher.path", recipe.teacher.path, why)


def check_meta_pretrained(recipe: Recipe) -> None:
    """Raises ValueError where fields of model.meta_pretrained contradict each other."""
    start = recipe.model.meta_pretrained
    if start is None:
        return
    why = f"the model already starts from model.meta_pretrained.path {start.path!r}; set only one of them"
    _require(not recipe.model.start_from, "model.start_from", recipe.model.start_from, why)
    asks = start.rows in ("matched", "matched_or_subwords")
    why = "it uses no dictionary, but dictionaries has some; set rows to matched or matched_or_subwords"
    _require(asks or not start.dictionaries, "model.meta_pretrained.rows", start.rows, why)
    languages = recipe.languages
    for index, dictionary in enumerate(start.dictionaries):
        name, language = f"model.meta_pretrained.dictionaries.{index}.language", dictionary.language
        why = f"the recipe has no text in this language. {nearest(language, languages)}"
        _require(not languages or language in languages, name, language, why)


def _require_defaults(given: Any, names: Sequence[str], place: str, why: str) -> None:
    default = type(given)()
    for name in names:
        value = getattr(given, name)
        _require(value == getattr(default, name), f"{place}.{name}", value, why)


def _require(condition: Any, name: str, value: Any, why: str) -> None:
    if not condition:
        raise ValueError(f"{name} is {value!r}: {why}.")
