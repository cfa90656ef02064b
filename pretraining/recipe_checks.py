"""What makes a pre-training recipe one that can be run: checks across its fields, before anything is read."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretraining.objectives import OBJECTIVES, Objective
from pretraining.recipe import (
    Bitext,
    LinkedPairs,
    Monolingual,
    Phase,
    Recipe,
    is_selected,
    scheduled_together,
)
from zoo_core.recipes import nearest


def check_recipe(recipe: Recipe) -> None:
    """Checks across fields.

    Raises `ValueError` that names the field, for: no phase; text that an objective lacks; a learning rate that is
    missing; a phase or corpus name used twice.
    """
    if Path(recipe.output_dir).is_file():
        raise ValueError(f"output_dir is {recipe.output_dir}, which is a file. Name a folder.")
    recipe.named_corpora()  # no two of one name
    _require(bool(recipe.phases), "phases", [], "a run needs at least one")
    names = [phase.name for phase in recipe.phases]
    for index, phase in enumerate(recipe.phases):
        _require(names.count(phase.name) == 1, "phases.name", phase.name, "the logs tell phases apart by it")
        _check_phase(recipe, index, f"phases.{index}")
    for kind in ("monolingual", "bitext", "linked"):
        for index, corpus in enumerate(getattr(recipe, kind)):
            _check_corpus(corpus, f"{kind}.{index}")
    check_meta_pretrained(recipe)
    _check_teacher(recipe)
    _check_evaluation(recipe)
    betas = recipe.optimizer.betas
    _require(len(betas) == 2, "optimizer.betas", betas, "Adam has two")


def _check_phase(recipe: Recipe, index: int, place: str) -> None:
    phase = recipe.phases[index]
    _check_schedule(recipe.phases, index, place)
    _require(bool(phase.objectives), f"{place}.objectives", {}, f"choose from {', '.join(OBJECTIVES)}")
    for name, objective in phase.objectives.items():
        _check_objective(recipe, phase, objective, f"{place}.objectives.{name}")
    if not any(objective.weight for objective in phase.objectives.values()):
        raise ValueError(f"all objectives of {place} have weight 0: nothing would be learned.")


def _check_schedule(phases: Sequence[Phase], index: int, place: str) -> None:
    phase = phases[index]
    if phase.optimizer == "carried":
        _require(index > 0, f"{place}.optimizer", "carried", "there is no phase before it")
        why = "the phase goes on in the schedule of the phase before (optimizer: carried)"
        _require_defaults(phase, ("learning_rate", "warmup_steps", "schedule"), place, why)
        return
    rate, warmup = phase.learning_rate, phase.warmup_steps
    _require(rate is not None, f"{place}.learning_rate", rate, "a schedule needs a peak")
    steps = sum(other.steps for other in scheduled_together(phases, index))
    _require(warmup <= steps, f"{place}.warmup_steps", warmup, f"the schedule has {steps:,} steps")


def _check_objective(recipe: Recipe, phase: Phase, objective: Objective, place: str) -> None:
    if not getattr(recipe, objective.text):
        raise ValueError(f"{place} reads {objective.text} text, but `{objective.text}` lists no corpus.")
    read = objective.sub_batch()
    if read not in phase.objectives:
        raise ValueError(f"{place} reads the examples of {read}: add it to the phase, be it with weight 0.")
    if objective.has_teacher and not recipe.teacher:
        raise ValueError(f"{place} learns from a teacher, and the recipe names none: set `teacher` (path, language).")
    if getattr(objective, "packed", False):
        _check_packed(recipe, phase, objective, f"{place}.packed")


def _check_packed(recipe: Recipe, phase: Phase, objective: Objective, place: str) -> None:
    for name, other in phase.with_examples.items():
        shares = objective.text == "bitext" == other.text
        _require(other.packed or not shares, place, True, f"{objective.name} and {name} learn from the same pairs")
    if recipe.prepared is not None:
        return
    for corpus_name, corpus in recipe.named_corpora().items():
        tables = [corpus, *(getattr(corpus, part, None) for part in ("table", "source", "target"))]
        is_read = corpus.kind == objective.text and is_selected(corpus_name, phase.corpora)
        streamed = is_read and any(getattr(table, "streaming", False) for table in tables)
        _require(not streamed, place, True, f"{corpus_name} is streamed; set streaming to false, or prepare it")


def _check_corpus(corpus: Monolingual | Bitext | LinkedPairs, place: str) -> None:
    for name in ("language", "source_language", "target_language", "name"):
        _require(getattr(corpus, name, None) != "", f"{place}.{name}", "", "a corpus is told by it from others")
    if isinstance(corpus, LinkedPairs):
        _require(not corpus.streaming, f"{place}.streaming", True, "links are read from a table")
    if not isinstance(corpus, Monolingual):
        return
    document, pattern = corpus.document_column, corpus.document_pattern
    why = "rows of a shuffled stream have no neighbors; set streaming to false"
    _require(document is None or not corpus.streaming, f"{place}.document_column", document, why)
    if pattern is not None:
        _require(document is not None, f"{place}.document_pattern", pattern, "it needs document_column to match in")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{place}.document_pattern is {pattern!r}, no regular expression: {error}.") from error


def _check_teacher(recipe: Recipe) -> None:
    taught = any(objective.has_teacher for phase in recipe.phases for objective in phase.objectives.values())
    if recipe.teacher:
        _require(taught, "teacher.path", recipe.teacher.path, "no phase has an objective that learns from a teacher")


def check_meta_pretrained(recipe: Recipe) -> None:
    """Raises ValueError for a start whose fields contradict each other."""
    start = recipe.model.meta_pretrained
    if start is None:
        return
    why = f"the model starts from model.meta_pretrained.path {start.path!r} already"
    _require(not recipe.model.start_from, "model.start_from", recipe.model.start_from, why)
    asks = start.rows in ("matched", "matched_or_subwords")
    why = "it asks no dictionary (matched and matched_or_subwords do)"
    _require(asks or not start.dictionaries, "model.meta_pretrained.rows", start.rows, why)
    languages = recipe.languages
    for index, dictionary in enumerate(start.dictionaries):
        name, language = f"model.meta_pretrained.dictionaries.{index}.language", dictionary.language
        why = f"the recipe has no text of it. {nearest(language, languages)}"
        _require(not languages or language in languages, name, language, why)


def _check_evaluation(recipe: Recipe) -> None:
    evaluation, held_out = recipe.evaluation, recipe.evaluation.held_out_fraction
    for name in ("back_translation", "alignment"):
        if value := getattr(evaluation, name):
            why = "it is measured on held-out translation pairs, and "
            _require(bool(recipe.bitext), f"evaluation.{name}", value, f"{why}`bitext` lists none")
            _require(held_out > 0, f"evaluation.{name}", value, f"{why}evaluation.held_out_fraction keeps none")


def _require_defaults(given: Any, names: Sequence[str], place: str, why: str) -> None:
    default = type(given)()
    for name in names:
        value = getattr(given, name)
        _require(value == getattr(default, name), f"{place}.{name}", value, why)


def _require(condition: Any, name: str, value: Any, why: str) -> None:
    if not condition:
        raise ValueError(f"{name} is {value!r}: {why}.")
