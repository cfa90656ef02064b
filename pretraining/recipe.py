"""The pre-training recipe: every field that `pretraining/run.py` reads, with its type, default and meaning.

A recipe is a YAML file of these fields; `key=value` on the command line overrides one of them
(`phases.0.steps=10`). Reading, checking and printing is done by `common.recipes`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from omegaconf import MISSING

from common.recipes import nearest, option
from common.tables import Table


@dataclass
class Monolingual(Table):
    """Text of one language."""

    language: str = option(MISSING, "language code of the text, as the logs and the curves will show it")
    text_column: str = option("text", "column that holds the text; a dotted path reaches into a struct")
    document_column: str | None = option(
        None, "column that names the document of a row, so that adjacent rows can be told from neighbours by chance"
    )
    document_pattern: str | None = option(
        None,
        "regular expression: what it matches in `document_column` names the document; `^\\d{5}` makes chapters of "
        "verses with ids such as 01049027",
    )
    size: int | None = option(
        None, "N_i of the sampling formula where it cannot be counted (streaming), in any unit the others share"
    )
    size_source: str | None = option(None, "where `size` was taken from (paper, table)")


@dataclass
class Bitext:
    """Translation pairs: one `table` with two columns, or one with both sides in a column; or two tables joined on an
    id or line by line."""

    source_language: str = option(MISSING, "language code of the first side")
    target_language: str = option(MISSING, "language code of the second side")
    table: Table | None = option(None, "one table that holds both sides")
    separator: str | None = option(
        None,
        "what stands between the sides where one column of `table` holds both (`source_column`, default `text`), such "
        "as '|||' in the files of word aligners",
    )
    source_column: str | None = option(None, "column of the first side; default: its language code, or `text`")
    target_column: str | None = option(None, "column of the second side; default: its language code, or `text`")
    source: Table | None = option(None, "table of the first side, where the sides are apart")
    target: Table | None = option(None, "table of the second side")
    join_on: str | None = option(
        None, "column on which `source` and `target` are joined; without it they are aligned line by line"
    )
    size: int | None = option(None, "N_i where it cannot be counted (streaming), in the unit the others share")
    size_source: str | None = option(None, "where `size` was taken from (paper, table)")


@dataclass
class ModelStart:
    """Which model, and what it starts from."""

    type: Literal["veco", "ernie_m", "xlm_align", "metaxlm"] = option(MISSING, "architecture of the zoo")
    start_from: str | None = option(
        None, "checkpoint to start from: a folder or a Hub id (of this zoo, or XLM-R's); empty: random weights"
    )
    config: dict[str, Any] = option(
        {}, "configuration fields to set, such as hidden_size or num_hidden_layers; the rest keep their defaults"
    )
    attention: Literal["sdpa", "eager", "flex_attention", "flash_attention_2"] = option(
        "sdpa", "attention implementation"
    )
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, ~30% slower")


@dataclass
class Objective:
    """One objective of a phase."""

    batch_size: int | None = option(
        None,
        "examples per update over all processes and accumulated micro-batches (a pair is one example); required, but "
        "of dwa, which reads the pairs of tlm",
    )
    weight: float = option(1.0, "factor of this objective's cross-entropies in the loss")
    terms: list[str] = option(
        [],
        "of ca_mlm: `inner` (a side from itself), `cross` (a side from both), default both; the others have no terms",
    )
    mask_probability: float = option(0.15, "share of the ordinary pieces that is predicted")
    max_length: int = option(
        256,
        "positions of an example, special tokens included; of each side where an objective reads them apart; btmlm: "
        "with the pseudo tokens, for which room is kept",
    )
    pseudo_share: float = option(
        0.2, "btmlm: pseudo tokens for each piece of a text, one or more (ERNIE-M, Figure 5: 0.05, 0.1, 0.15, 0.2)"
    )
    temperature: float = option(
        0.0,
        "btmlm: 0 fills a pseudo position with the likeliest piece, as evaluation always does; more draws from the "
        "softmax of logits / this, by random numbers of each process, as dropout's are",
    )
    target_languages: Literal["paired", "all"] = option(
        "paired",
        "btmlm: languages of the pseudo tokens, drawn by the size of their pairs to the power alpha. paired: those "
        "that `bitext` pairs with the text's language (texts of a language without pairs are left out); all: every "
        "other language of `bitext`",
    )


@dataclass
class Phase:
    """A stage of training with its own objectives, parameters, schedule and optimiser."""

    name: str = option(MISSING, "name in the logs")
    steps: int = option(MISSING, "number of updates")
    objectives: dict[str, Objective] = option(
        {},
        "objectives by name: mlm (monolingual text), tlm (translation pairs); VECO's ca_mlm_segments (adjacent "
        "segments of monolingual text) and ca_mlm_pairs (translation pairs); ERNIE-M's camlm (translation pairs) and "
        "btmlm (monolingual text); XLM-Align's dwa (on the masked pairs of tlm: only `weight` is its own; what it "
        "labels and asks is set in model.config). Those that read text of one kind with the same batch_size and "
        "max_length see the same text, each with masks of its own (btmlm: where its windows and corpora are those of "
        "mlm)",
    )
    trainable: list[str] = option(
        ["*"], "glob patterns over parameter names; what matches none of them is frozen in this phase"
    )
    corpora: list[str] = option(["*"], "glob patterns over corpus names (`en`, `en-de`); which text this phase reads")
    learning_rate: float = option(MISSING, "peak learning rate")
    warmup_steps: int = option(0, "updates of linear warm-up")
    schedule: Literal["linear", "constant", "cosine", "inverse_sqrt"] = option("linear", "after the warm-up")
    optimizer: Literal["fresh", "carried"] = option(
        "fresh", "Adam's moments at the start of this phase: new, or carried over from the phase before"
    )


@dataclass
class Optimizer:
    """AdamW and gradient clipping."""

    betas: list[float] = option([0.9, 0.98], "Adam's beta1 and beta2")
    epsilon: float = option(1e-6, "Adam's epsilon")
    weight_decay: float = option(0.01, "decoupled weight decay; biases and LayerNorms have none")
    max_grad_norm: float = option(1.0, "gradients are clipped to this global norm; 0: no clipping")


@dataclass
class Evaluation:
    """Held-out text: masked like the training text, with masks that never change."""

    held_out_fraction: float = option(
        0.0,
        "share of rows kept out of training, chosen by their id or line number: a verse is held out in every language",
    )
    max_examples: int = option(300, "held-out examples used per corpus")
    every_steps: int = option(0, "updates between evaluations; 0: at the end of each phase only")
    batch_size: int = option(32, "held-out examples in a forward pass")
    retrieval: bool = option(
        True, "also find each held-out sentence's translation by cosine of mean-pooled states, at every layer"
    )
    alignment: bool = option(
        False,
        "also find each piece's translation within its held-out pair, by cosine at every layer, and by cross-attention "
        "where an objective trains it: for pairs whose pieces correspond one by one, such as the controlled pair; "
        "others are an error",
    )
    back_translation: float = option(
        0.0,
        "ERNIE-M with languages: pseudo tokens for each piece of a held-out sentence, such as 0.2, and the share of "
        "them that its translation holds, less the share that another sentence's holds; 0: off",
    )


@dataclass
class Recipe:
    """Pre-training of one model."""

    output_dir: str = option(
        MISSING, "run folder: model/, checkpoints/, events.jsonl, curves.png, run.json, recipe.yaml"
    )
    model: ModelStart = field(default_factory=ModelStart)
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: that of model.start_from")
    hub_root: str | None = option(
        None, "folder that mirrors the Hub (<hub_root>/<owner>/<name>); ids found there are read from there"
    )
    monolingual: list[Monolingual] = option([], "monolingual corpora")
    bitext: list[Bitext] = option([], "translation pairs")
    alpha: float = option(0.7, "exponent of language sampling: p_i = N_i^alpha / sum_j N_j^alpha")
    shuffle_buffer: int = option(10_000, "rows held for shuffling a streamed corpus")
    phases: list[Phase] = option([], "stages of training, in order")
    optimizer: Optimizer = field(default_factory=Optimizer)
    evaluation: Evaluation = field(default_factory=Evaluation)
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", "arithmetic of forward and backward; weights stay fp32")
    gradient_accumulation_steps: int = option(
        1, "micro-batches per update and process: changes memory, not the update (beyond dropout's random numbers)"
    )
    num_workers: int = option(0, "data-loading processes per training process")
    seed: int = option(1, "seed of weights, sampling, masks and dropout")
    log_every_steps: int = option(10, "updates between lines of events.jsonl")
    save_every_steps: int = option(0, "updates between checkpoints; 0: at the end of each phase only")
    keep_checkpoints: int = option(2, "newest checkpoints kept; 0: all")


@dataclass(frozen=True)
class ObjectiveKind:
    """What an objective reads, and what its losses are called.

    text: monolingual or bitext; apart: the two sides of an example are inputs of their own (of monolingual text
    they are adjacent segments); terms: the parts of its loss, each with a curve `<objective>.<term>`;
    cross_attention: whether the model needs it; languages: whether <mask> says its language; one_sided: a side is
    predicted from the other one alone, so that predicted pieces are <mask> always, a side keeps one piece or more,
    and which comes first is drawn; generates: the model writes another side to the text, at its end; reads: the
    objective whose examples it learns from, having none of its own; self_labelled: the model makes its own labels,
    which are noise before it has learnt anything.
    """

    text: Literal["monolingual", "bitext"]
    apart: bool = False
    terms: tuple[str, ...] = ()
    cross_attention: bool = False
    languages: bool = False
    one_sided: bool = False
    generates: bool = False
    reads: str | None = None
    self_labelled: bool = False


OBJECTIVES = {
    "mlm": ObjectiveKind("monolingual"),
    "tlm": ObjectiveKind("bitext"),
    "ca_mlm_segments": ObjectiveKind("monolingual", apart=True, terms=("inner", "cross"), cross_attention=True),
    "ca_mlm_pairs": ObjectiveKind("bitext", apart=True, terms=("inner", "cross"), cross_attention=True),
    # A kept piece would be a word of its own side, which the other masks of that side could read. BTMLM writes behind
    # the text, in either language: with sides always in the order of the corpus, one direction only would be learnt.
    "camlm": ObjectiveKind("bitext", languages=True, one_sided=True),
    "btmlm": ObjectiveKind("monolingual", languages=True, generates=True),
    "dwa": ObjectiveKind("bitext", reads="tlm", self_labelled=True),
}
OF_GENERATION = ("pseudo_share", "temperature", "target_languages")  # fields of `Objective` that others have no use for
OF_EXAMPLES = ("batch_size", "mask_probability", "max_length")  # those that one without examples has no use for


def loss_names(objectives: Iterable[str]) -> list[str]:
    """`mlm`, `ca_mlm_pairs.inner`, ...: how the losses of objectives are called in logs and by the model."""
    return [f"{name}.{term}" if term else name for name in objectives for term in (OBJECTIVES[name].terms or (None,))]


def learnt_terms(name: str, objective: Objective) -> tuple[str, ...]:
    """The terms of an objective that a phase learns; empty where it has none."""
    return tuple(term for term in OBJECTIVES[name].terms if not objective.terms or term in objective.terms)


def with_examples(phase: Phase) -> dict[str, Objective]:
    """The objectives of a phase that have examples, and sub-batches, of their own."""
    return {name: objective for name, objective in phase.objectives.items() if not OBJECTIVES[name].reads}


def unused_losses(phase: Phase, objectives: Iterable[str]) -> dict[str, float]:
    """0 for each loss of a model's objectives that the phase does not have: a weight for the model to leave it out."""
    return dict.fromkeys(loss_names(name for name in objectives if name not in phase.objectives), 0.0)


def loss_weights(phase: Phase) -> dict[str, float]:
    """Weight of each loss of a phase; 0 for a term that is not learnt, which the model then leaves out."""
    return {
        loss: objective.weight if loss == name or loss.partition(".")[2] in learnt_terms(name, objective) else 0.0
        for name, objective in phase.objectives.items()
        for loss in loss_names([name])
    }


def check_recipe(recipe: Recipe) -> None:
    """Checks across fields.

    Raises `ValueError` that names the field, for: no phase; unknown objectives; text that an objective lacks; sizes
    and rates out of range; a phase name used twice.
    """
    if not recipe.phases:
        raise ValueError(
            "phases is empty: a run needs at least one stage of training. Give name, steps, objectives "
            "and learning_rate of one."
        )
    names = [phase.name for phase in recipe.phases]
    for name in names:
        _require(names.count(name) == 1, "phases.name", name, "the logs tell phases apart by name; rename one")
    for index, phase in enumerate(recipe.phases):
        field_name = f"phases.{index}"
        _require(phase.steps > 0, f"{field_name}.steps", phase.steps, "a phase has at least one update")
        _require(phase.learning_rate > 0, f"{field_name}.learning_rate", phase.learning_rate, "it must be positive")
        _require(
            0 <= phase.warmup_steps <= phase.steps,
            f"{field_name}.warmup_steps",
            phase.warmup_steps,
            f"the phase has {phase.steps} steps, and the peak rate would never be reached",
        )
        if not phase.objectives:
            raise ValueError(
                f"{field_name}.objectives is empty: nothing would be learnt. Choose from: {', '.join(OBJECTIVES)}."
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
                "an example needs room for a few pieces beside its special tokens; give 8 or more",
            )
            _require(objective.weight >= 0, f"{place}.weight", objective.weight, "a loss weight is not negative")
            default = Objective()
            for option_name in OF_GENERATION:
                value = getattr(objective, option_name)
                _require(
                    OBJECTIVES[name].generates or value == getattr(default, option_name),
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
                "logits are divided by it; 0 takes the likeliest piece",
            )
            terms = OBJECTIVES[name].terms
            if unknown := [term for term in objective.terms if term not in terms]:
                known = (
                    f"the terms of {name} are {', '.join(terms)}" if terms else f"{name} has no terms to choose from"
                )
                raise ValueError(f"{place}.terms names {unknown[0]!r}: {known}. Leave it out, or name one of those.")
        if not any(objective.weight for objective in phase.objectives.values()):
            raise ValueError(
                f"all objectives of {field_name} have weight 0: nothing would be learnt. Give one of "
                f"{', '.join(phase.objectives)} a weight."
            )
    for index, corpus in enumerate(recipe.monolingual):
        _check_document(corpus, f"monolingual.{index}")
    for kind in ("monolingual", "bitext"):
        for index, corpus in enumerate(getattr(recipe, kind)):
            size, place = corpus.size, f"{kind}.{index}"
            _require(size is None or size > 0, f"{place}.size", size, "a corpus that is drawn from holds something")
            for name in ("language", "source_language", "target_language"):
                _require(getattr(corpus, name, "x") != "", f"{place}.{name}", "", "a corpus is named by its language")
    accumulation = recipe.gradient_accumulation_steps
    _require(accumulation > 0, "gradient_accumulation_steps", accumulation, "an update has one micro-batch or more")
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


def _check_examples(objective: Objective, name: str, phase: Phase, place: str) -> None:
    """Raises `ValueError` where an objective has no examples, or says something of examples that are not its own."""
    reads = OBJECTIVES[name].reads
    if not reads:
        if objective.batch_size is None:
            raise ValueError(
                f"{place}.batch_size is missing: how many examples an update has cannot be guessed. Give a number, "
                "such as 32."
            )
        _require(objective.batch_size > 0, f"{place}.batch_size", objective.batch_size, "it must be positive")
        return
    if reads not in phase.objectives:
        raise ValueError(
            f"{place} reads the examples of {reads}, which the phase does not have: there would be nothing to learn "
            f"from. Add {reads} to its objectives; with weight 0 it is not learnt itself."
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


def _check_document(corpus: Monolingual, place: str) -> None:
    _require(
        corpus.document_column is None or not corpus.streaming,
        f"{place}.document_column",
        corpus.document_column,
        "the rows of a shuffled stream have no neighbours, and each gives the two halves of a window. Take it out, or "
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
