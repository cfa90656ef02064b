"""What makes a pre-training recipe one that can be run: checks across its fields, before anything is read."""

import re

from pretraining.recipe import (
    OBJECTIVES,
    Bitext,
    Monolingual,
    Objective,
    Phase,
    Recipe,
    is_selected,
    named_corpora,
    recipe_languages,
    scheduled_together,
)
from zoo_core.recipes import nearest

OF_GENERATION = ("pseudo_share", "temperature", "target_languages")  # fields of `Objective` that others have no use for
OF_EXAMPLES = (
    "batch_size",
    "mask_probability",
    "max_length",
    "packed",
)  # those that one without examples has no use for


def check_recipe(recipe: Recipe) -> None:
    """Checks across fields.

    Raises `ValueError` that names the field, for: no phase; unknown objectives; text that an objective lacks; sizes
    and rates out of range; a phase or corpus name used twice.
    """
    if not recipe.phases:
        raise ValueError(
            "phases is empty: a run needs at least one stage of training. Give name, steps, objectives "
            "and learning_rate of one."
        )
    named_corpora(recipe)  # no two of one name
    names = [phase.name for phase in recipe.phases]
    for name in names:
        _require(names.count(name) == 1, "phases.name", name, "the logs tell phases apart by name; rename one")
    for index, phase in enumerate(recipe.phases):
        field_name = f"phases.{index}"
        _require(phase.steps > 0, f"{field_name}.steps", phase.steps, "a phase has at least one step")
        _check_schedule(recipe.phases, index, field_name)
        if not phase.objectives:
            raise ValueError(
                f"{field_name}.objectives is empty: nothing would be learned. Choose from: {', '.join(OBJECTIVES)}."
            )
        for name, objective in phase.objectives.items():
            place = f"{field_name}.objectives.{name}"
            if name not in OBJECTIVES:
                raise ValueError(f"{place}: there is no objective {name!r}. {nearest(name, OBJECTIVES)}")
            kind = OBJECTIVES[name].text
            if not getattr(recipe, kind):
                raise ValueError(
                    f"{place} reads {kind} text, but `{kind}` lists no corpus. Add one, or take {name} out "
                    "of the phase."
                )
            _check_examples(objective, name, phase, place)
            _require(
                0 < objective.mask_probability < 1,
                f"{place}.mask_probability",
                objective.mask_probability,
                "it is a share between 0 and 1, such as 0.15",
            )
            _require(
                objective.max_length >= 8,
                f"{place}.max_length",
                objective.max_length,
                "an example needs room for a few tokens beside its special tokens; give 8 or more",
            )
            _check_packed(objective, name, phase, recipe, place)
            _require(objective.weight >= 0, f"{place}.weight", objective.weight, "a loss weight is not negative")
            default = Objective()
            for option_name in OF_GENERATION:
                value = getattr(objective, option_name)
                _require(
                    name == "btmlm" or value == getattr(default, option_name),
                    f"{place}.{option_name}",
                    value,
                    f"{name} generates no pseudo tokens, and it would do nothing",
                )
            _require(
                0 < objective.pseudo_share <= 1,
                f"{place}.pseudo_share",
                objective.pseudo_share,
                "it is a share of the text's length above 0, such as 0.2",
            )
            _require(
                objective.temperature >= 0,
                f"{place}.temperature",
                objective.temperature,
                "logits are divided by it; 0 takes the likeliest token",
            )
            terms = OBJECTIVES[name].terms
            if unknown := [term for term in objective.terms if term not in terms]:
                known = (
                    f"the terms of {name} are {', '.join(terms)}" if terms else f"{name} has no terms to choose from"
                )
                raise ValueError(f"{place}.terms names {unknown[0]!r}: {known}. Leave it out, or name one of those.")
        if not any(objective.weight for objective in phase.objectives.values()):
            raise ValueError(
                f"all objectives of {field_name} have weight 0: nothing would be learned. Give one of "
                f"{', '.join(phase.objectives)} a weight."
            )
    check_meta_pretrained(recipe)
    _check_teacher(recipe)
    for index, corpus in enumerate(recipe.monolingual):
        _check_document(corpus, f"monolingual.{index}")
    for kind in ("monolingual", "bitext"):
        for index, corpus in enumerate(getattr(recipe, kind)):
            size, place = corpus.size, f"{kind}.{index}"
            _require(size is None or size > 0, f"{place}.size", size, "a corpus that is drawn from holds something")
            for name in ("language", "source_language", "target_language", "name"):
                _require(getattr(corpus, name, "x") != "", f"{place}.{name}", "", "a corpus is told by it from others")
    accumulation = recipe.gradient_accumulation_steps
    _require(accumulation > 0, "gradient_accumulation_steps", accumulation, "a step has one micro-batch or more")
    evaluation = recipe.evaluation
    for name, value, least in (
        ("log_every_steps", recipe.log_every_steps, 1),
        ("shuffle_buffer", recipe.shuffle_buffer, 1),
        ("save_every_steps", recipe.save_every_steps, 0),
        ("keep_checkpoints", recipe.keep_checkpoints, 0),
        ("num_workers", recipe.num_workers, 0),
        ("evaluation.batch_size", evaluation.batch_size, 1),
        ("evaluation.max_examples", evaluation.max_examples, 1),
        ("evaluation.every_steps", evaluation.every_steps, 0),
    ):
        _require(value >= least, name, value, f"it counts something; give {least} or more")
    held_out = evaluation.held_out_fraction
    _require(0 <= held_out < 1, "evaluation.held_out_fraction", held_out, "it is a share of the rows, such as 0.01")
    share = evaluation.back_translation
    _require(
        0 <= share <= 1, "evaluation.back_translation", share, "it is a share of the sentence, such as 0.2; 0: off"
    )
    if share:
        why = "back-translation is measured on held-out translation pairs, and "
        _require(bool(recipe.bitext), "evaluation.back_translation", share, f"{why}`bitext` lists none")
        _require(held_out > 0, "evaluation.back_translation", share, f"{why}evaluation.held_out_fraction keeps none")
    if evaluation.alignment:
        why = "word alignment is measured on held-out translation pairs, and "
        _require(bool(recipe.bitext), "evaluation.alignment", True, f"{why}`bitext` lists none")
        _require(held_out > 0, "evaluation.alignment", True, f"{why}evaluation.held_out_fraction keeps none")
    _require(0 <= recipe.alpha <= 1, "alpha", recipe.alpha, "0 draws all languages alike, 1 by their size")
    betas = recipe.optimizer.betas
    two = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
    _require(two, "optimizer.betas", betas, "Adam has two, beta1 and beta2, each from 0 to below 1")
    _require(0 <= recipe.seed < 2**32, "seed", recipe.seed, "random generators take a number from 0 to 2^32 - 1")


def _check_schedule(phases: list[Phase], index: int, place: str) -> None:
    """Raises `ValueError` for a learning rate, warm-up or schedule that cannot be, or that a carried phase would not
    follow."""
    phase = phases[index]
    if phase.optimizer == "carried":
        _require(index > 0, f"{place}.optimizer", "carried", "there is no phase before it to carry from. Take it out")
        default = Phase()
        for name in ("learning_rate", "warmup_steps", "schedule"):
            value = getattr(phase, name)
            why = "the phase goes on in the schedule of the phase before. Leave it out, or set optimizer to fresh"
            _require(value == getattr(default, name), f"{place}.{name}", value, why)
        return
    rate = phase.learning_rate
    _require(rate is not None and rate > 0, f"{place}.learning_rate", rate, "a schedule needs a peak above 0")
    steps = sum(other.steps for other in scheduled_together(phases, index))
    why = f"the schedule has {steps:,} steps, and the peak rate would never be reached"
    _require(0 <= phase.warmup_steps <= steps, f"{place}.warmup_steps", phase.warmup_steps, why)


def _check_examples(objective: Objective, name: str, phase: Phase, place: str) -> None:
    """Raises `ValueError` where an objective has no examples, or says something of examples that are not its own."""
    reads = OBJECTIVES[name].reads
    if not reads:
        if objective.batch_size is None:
            raise ValueError(
                f"{place}.batch_size is missing: how many examples a step has cannot be guessed. Give a number, "
                "such as 32."
            )
        _require(objective.batch_size > 0, f"{place}.batch_size", objective.batch_size, "it must be positive")
        return
    if reads not in phase.objectives:
        raise ValueError(
            f"{place} reads the examples of {reads}, which the phase does not have: there would be nothing to learn "
            f"from. Add {reads} to its objectives; with weight 0 it is not learned itself."
        )
    default = Objective()
    for option_name in OF_EXAMPLES:
        value = getattr(objective, option_name)
        _require(
            value == getattr(default, option_name),
            f"{place}.{option_name}",
            value,
            f"{name} reads the examples of {reads}, and it would do nothing. Set that of {reads}",
        )


def _check_packed(objective: Objective, name: str, phase: Phase, recipe: Recipe, place: str) -> None:
    """Raises `ValueError` where texts are to be packed that cannot be."""
    if not objective.packed:
        return
    kind = OBJECTIVES[name]
    why = "the sides of an example are rows of two inputs" if kind.apart else "every text gets a side of its own"
    _require(
        not (kind.apart or name == "btmlm"),
        f"{place}.packed",
        True,
        f"{name} has no rows that could share the positions of one, because {why}. Leave it out",
    )
    partners = {
        other
        for other, settings in phase.objectives.items()
        if OBJECTIVES[other].text == kind.text and kind.text == "bitext" and not OBJECTIVES[other].reads
        if settings.packed != objective.packed
    }
    _require(
        not partners,
        f"{place}.packed",
        True,
        f"{name} and {', '.join(sorted(partners))} learn from the same pairs, and packed it would draw bins of others. "
        "Take packed out",
    )
    for corpus_name, corpus in named_corpora(recipe).items():
        tables = [corpus, *(getattr(corpus, part, None) for part in ("table", "source", "target"))]
        streamed = any(getattr(table, "streaming", False) for table in tables)
        is_of_kind = isinstance(corpus, Bitext) == (kind.text == "bitext")
        _require(
            not (streamed and is_of_kind and is_selected(corpus_name, phase.corpora)) or recipe.prepared is not None,
            f"{place}.packed",
            True,
            f"{corpus_name} is streamed, and texts whose lengths are not known beforehand cannot be put into "
            "bins. Take packed out, set streaming to false there, or train from prepared shards",
        )


def _check_teacher(recipe: Recipe) -> None:
    """Raises `ValueError` for a teacher whom nobody listens to, an objective without one, and a temperature of none."""
    taught = [
        f"phases.{index}.objectives.{name}"
        for index, phase in enumerate(recipe.phases)
        for name in phase.objectives
        if name == "kd"
    ]
    teacher = recipe.teacher
    if taught and not teacher:
        raise ValueError(
            f"{taught[0]} learns from a teacher, and the recipe names none: there would be nothing to learn from. Set "
            "`teacher` (path, language), or take it out of the phase."
        )
    if teacher and not taught:
        raise ValueError(
            f"teacher.path is {teacher.path!r}, and no phase has the objective kd: it would never be asked. Add kd "
            "beside mlm to a phase's objectives, or leave `teacher` out."
        )
    if teacher:
        _require(
            teacher.temperature > 0, "teacher.temperature", teacher.temperature, "logits are divided by it: 1 or more"
        )


def check_meta_pretrained(recipe: Recipe) -> None:
    """Raises ValueError for a start whose fields contradict each other."""
    start = recipe.model.meta_pretrained
    if start is None:
        return
    if recipe.model.start_from:
        raise ValueError(
            f"model.start_from is {recipe.model.start_from!r} and model.meta_pretrained.path {start.path!r}: a model "
            "has one start. Keep start_from for a checkpoint that has this vocabulary, meta_pretrained for one with "
            "another."
        )
    if start.dictionaries and start.rows not in ("matched", "matched_or_subwords"):
        raise ValueError(
            f"model.meta_pretrained.dictionaries lists {len(start.dictionaries)}, and rows is {start.rows!r}, which "
            "asks none: they would do nothing. Set rows=matched or rows=matched_or_subwords, or leave them out."
        )
    languages = recipe_languages(recipe)
    for index, dictionary in enumerate(start.dictionaries):
        if languages and dictionary.language not in languages:
            raise ValueError(
                f"model.meta_pretrained.dictionaries.{index}.language is {dictionary.language!r}, and the recipe has "
                f"no text of it ({', '.join(languages)}): rows would be filled that are never trained. "
                f"{nearest(dictionary.language, languages)}"
            )


def _check_document(corpus: Monolingual, place: str) -> None:
    _require(
        corpus.document_column is None or not corpus.streaming,
        f"{place}.document_column",
        corpus.document_column,
        "the rows of a shuffled stream have no neighbors, and each gives the two halves of a window. Take it out, or "
        "set streaming to false",
    )
    pattern = corpus.document_pattern
    if pattern is None:
        return
    _require(
        corpus.document_column is not None, f"{place}.document_pattern", pattern, "it needs document_column to match in"
    )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{place}.document_pattern is {pattern!r}, which is no regular expression: {error}. Mend it, such as "
            "'^\\d{5}'."
        ) from error


def _require(condition: bool, name: str, value, why: str) -> None:
    if not condition:
        raise ValueError(f"{name} is {value!r}: {why}.")
