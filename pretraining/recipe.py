"""The pre-training recipe: every field that `pretraining/run.py` reads, with its type, default and meaning.

A recipe is a YAML file with these fields. `key=value` on the command line overrides a field (`phases.0.steps=10`).
`zoo_core.recipes` reads and prints recipes. `Recipe.check` checks fields against each other.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Len
from omegaconf import MISSING

from crosslingual_zoo.modeling import MODEL_TYPES
from crosslingual_zoo.pretraining.objectives import OBJECTIVES, Collator, Objective, Objectives
from crosslingual_zoo.zoo_core.command_line import TRUST_REMOTE_CODE
from crosslingual_zoo.zoo_core.recipes import BatchSize, Count, Fraction, Name, Positive, Seed, nearest, option
from crosslingual_zoo.zoo_core.tables import SUFFIXES, Table

HEAD = "head"  # name of the phase that `Recipe.head_phase` adds
Size = Annotated[int, Ge(1), Le(2**63 - 1)]


@dataclass
class Sized:
    """What all corpora have."""

    name: Name | None = option(
        None,
        "second part of the corpus' name (`en/news`), after its language or pair; default: none, or the file or "
        "dataset of the text where several corpora have the same language or pair",
    )
    max_rows: Size | None = option(None, "rows to read, from the beginning; default: all; required with `streaming`")
    size: Size | None = option(
        None, "its part of N_i, in the same unit for all corpora; default: the number of its examples"
    )

    @property
    def codes(self) -> tuple[str, ...]:
        """Its language, or its two languages, source first."""
        return (self.source_language, self.target_language)


@dataclass
class Monolingual(Sized, Table):
    """Text of one language."""

    kind: ClassVar[str] = "monolingual"

    language: Name = option(
        MISSING, "language code of the text, in logs and curves; `{language}`: one corpus for each of `languages`"
    )
    languages: list[str] = option(
        [], "languages of several corpora, whose codes replace `{language}`; default: the languages of `sizes`"
    )
    sizes: dict[str, Size] = option({}, "`size` of each language, where the entry has several")
    language_names: dict[str, str] = option(
        {}, "text that replaces `{language}` in path and config, for languages where it differs from the code"
    )
    text_column: str = option("text", "column that holds the text; a dotted path reaches into a struct")
    document_column: str | None = option(
        None, "column that names the document of a row; only rows of one document count as adjacent"
    )
    document_pattern: str | None = option(
        None,
        "regular expression; its match in `document_column` names the document. Example: `^\\d{5}` groups verses with "
        "ids such as 01049027 into chapters",
    )

    @property
    def codes(self) -> tuple[str, ...]:
        return (self.language,)

    def __post_init__(self) -> None:
        if self.document_pattern is not None and self.document_column is None:
            raise ValueError(f"document_pattern is {self.document_pattern!r}, but document_column is not set.")
        try:
            re.compile(self.document_pattern or "")
        except re.error as error:
            raise ValueError(f"document_pattern is {self.document_pattern!r}: {error}.") from error


@dataclass
class Bitext(Sized):
    """Translation pairs, from one table or two.

    One `table` holds both sides, in two columns or in one. Two tables are joined on an id, or line by line.
    """

    kind: ClassVar[str] = "bitext"

    source_language: Name = option(
        MISSING, "language code of the first side; `{source}`: the first language of each of `pairs`"
    )
    target_language: Name = option(
        MISSING, "language code of the second side; `{target}`: the second language of each of `pairs`"
    )
    pairs: list[str] = option(
        [],
        "pairs of several corpora, such as de-en, whose codes replace `{source}` and `{target}`, and both in "
        "alphabetical order `{pair}`; default: the pairs of `sizes`",
    )
    sizes: dict[str, Size] = option({}, "`size` of each pair, where the entry has several")
    table: Table | None = option(None, "one table that holds both sides")
    separator: str | None = option(
        None,
        "text between the two sides where one column of `table` holds both (`source_column`, default `text`), such as "
        "'|||' in the files of word aligners",
    )
    source_column: str | None = option(None, "column of the first side; default: its language code, or `text`")
    target_column: str | None = option(None, "column of the second side; default: its language code, or `text`")
    source: Table | None = option(None, "table of the first side, where each side has its own table")
    target: Table | None = option(None, "table of the second side")
    join_on: str | None = option(
        None, "column on which `source` and `target` are joined; without it they are joined line by line"
    )


@dataclass
class LinkedPairs(Sized, Table):
    """Translation pairs with links between their words: a table with a column for each side and one for the links."""

    kind: ClassVar[str] = "linked"

    source_language: Name = option(MISSING, "language code of the first side")
    target_language: Name = option(MISSING, "language code of the second side")
    source_column: str = option("source", "column of the first side: words separated by spaces or tabs")
    target_column: str = option("target", "column of the second side")
    links_column: str | None = option(
        "links",
        "column of the links, such as `0-0 1-2 2p1`: numbers of a source word and a target word, from 0; the model "
        "does not learn possible links (`p`), and labels rows without links itself. null: no row has links",
    )


@dataclass
class SideOfPairs(Sized):
    """One side of translation pairs, read as text of its language. `Recipe.named_corpora` makes it."""

    kind: ClassVar[str] = Monolingual.kind

    pairs: Bitext = field(default_factory=Bitext)
    side: int = 0

    @property
    def codes(self) -> tuple[str, ...]:
        return (self.pairs.codes[self.side],)


Corpora = dict[str, Monolingual | Bitext | LinkedPairs | SideOfPairs]  # the corpora of a recipe, by name


@dataclass
class Dictionary:
    """A bilingual dictionary in MUSE's format: each line has a word and one translation of it.

    Example:
        >>> dictionary = Dictionary("de", "sample_corpus/dictionaries/en-de.txt")
        >>> matching = match_vocabularies(old_tokenizer, new_tokenizer, dictionaries=[dictionary])

    A missing or unreadable file raises ValueError when the dictionary is read.

    Source: MUSE (Conneau et al., 2018).
    """

    language: str = option(MISSING, "language code of the words to look up, the language that the checkpoint lacks")
    path: str = option(MISSING, "text file with one pair per line, between a tab or a space; also in hub_root")
    first: Literal["word", "translation"] | None = option(
        None,
        "what comes first in a line: the word of `language`, or its translation into the checkpoint's language; "
        "default: as in the file's name, so for language de `de-en.txt` has the word first",
    )


@dataclass
class MetaPretrained:
    """A model meta-pretrained on one language: MetaXLM starts from it, with its rows matched to a new vocabulary."""

    path: str = option(MISSING, "checkpoint of one language, a folder or Hub id: BERT, RoBERTa or a model of this zoo")
    initialize: Literal["both", "body", "embeddings", "none"] = option(
        "both",
        "weights that the new model takes (Table 5): the Transformer layers (body), the embeddings, both of them with "
        "the head's dense layer, or none: random weights in the checkpoint's shape, the single-phase baseline XLM",
    )
    dictionaries: list[Dictionary] = option([], "bilingual dictionaries, in the order of look-up")


@dataclass
class Teacher:
    """A model of one language whose predictions the trained model learns, with an objective such as `kd`."""

    path: str = option(MISSING, "masked language model, a folder or a Hub id: BERT, RoBERTa or a model of this zoo")
    language: str = option(MISSING, "language code of the monolingual text that the teacher reads, such as en")
    temperature: Annotated[float, Gt(0)] = option(
        1.0, "divides the logits of teacher and student; above 1, unlikely tokens count for more (Hinton et al. 2015)"
    )


@dataclass
class ModelStart:
    """The model and its initial weights."""

    type: Literal[*MODEL_TYPES] = option(MISSING, "one of the four models of this zoo")
    start_from: str | None = option(
        None,
        "checkpoint to start from, a folder or a Hub id, such as FacebookAI/xlm-roberta-base; empty: random weights",
    )
    meta_pretrained: MetaPretrained | None = option(
        None, "alternative to start_from: a checkpoint of one language with another vocabulary (MetaXLM)"
    )
    config: dict[str, Any] = option(
        {}, "configuration fields to set, such as hidden_size; modeling/configuration_<type>.py explains them"
    )
    attention: Literal["sdpa", "eager", "flex_attention", "flash_attention_2"] = option("sdpa", "attention function")
    skip_padding: bool = option(True, "skip the computation at padding, with the same results in less time")
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, ~30% slower")

    def __post_init__(self) -> None:
        if self.meta_pretrained and self.start_from:
            raise ValueError(f"start_from is {self.start_from!r} and meta_pretrained is set, too. Set one of them.")


@dataclass
class Phase:
    """A stage of training with its own objectives, parameters, schedule and optimizer."""

    name: str = option(MISSING, "name of the phase in the logs")
    steps: Positive = option(MISSING, "number of optimizer steps")
    objectives: Objectives = option(
        {},
        "objectives by name, at least one, each with its options. Objectives that read the same kind of text with the "
        "same batch_size and max_length get the same examples",
    )
    trainable: list[str] = option(["*"], "glob patterns of parameter names; the other parameters are frozen")
    freeze_body: bool = option(False, "freeze the Transformer layers (MetaXLM, section 5.4)")
    corpora: list[str] = option(
        ["*"],
        "text that this phase reads: glob patterns of languages and pairs (`en`, `en-*`), each with all its corpora, "
        "or with a slash of single corpora by name (`en-de/ntrex`, `*/ntrex`)",
    )
    learning_rate: Annotated[float, Gt(0)] | None = option(None, "peak learning rate; required for a fresh optimizer")
    warmup_steps: Count = option(0, "steps of linear warm-up")
    schedule: Literal["linear", "constant", "cosine", "inverse_sqrt"] = option(
        "linear", "learning-rate schedule after the warm-up"
    )
    optimizer: Literal["fresh", "carried"] = option(
        "fresh",
        "start Adam's moments and the schedule again, or continue those of the phase before (carried). Such phases "
        "share one warm-up and one decay, which the first of them sets",
    )

    def check(self, recipe: "Recipe", index: int) -> None:
        """Raises ValueError for fields of phase `index` that contradict each other or the rest of the recipe."""
        place = f"phases.{index}"
        schedule = ("learning_rate", "warmup_steps", "schedule")
        own = [name for name in schedule if getattr(self, name) != getattr(Phase, name)]
        if self.optimizer == "carried" and index == 0:
            raise ValueError(f"{place}.optimizer is carried, but no phase is before it. Set it to fresh.")
        if self.optimizer == "carried" and own:
            raise ValueError(f"{place}.{own[0]} is set, but optimizer: carried continues the schedule before.")
        if self.optimizer == "fresh" and self.learning_rate is None:
            raise ValueError(f"{place}.learning_rate is not set. Set the peak learning rate, such as 5e-5.")
        steps = sum(phase.steps for phase in scheduled_together(recipe.phases, index))
        if self.warmup_steps > steps:
            raise ValueError(f"{place}.warmup_steps is {self.warmup_steps:,}, but the schedule has {steps:,} steps.")
        if not any(objective.weight for objective in self.objectives.values()):
            raise ValueError(f"{place}.objectives has none with a weight. Choose from {', '.join(OBJECTIVES)}.")
        read = self.read(recipe.named_corpora()).values()
        for name, objective in self.objectives.items():
            where = f"{place}.objectives.{name}"
            if all(corpus.kind != objective.text for corpus in read):
                raise ValueError(f"{where} reads `{objective.text}`, but the phase has no such corpus. Add one.")
            if objective.reads and objective.reads not in self.objectives:
                raise ValueError(f"{where} reads the rows of {objective.reads}. Add it to the phase.")
            if objective.has_teacher and not recipe.teacher:
                raise ValueError(f"{where} learns from a teacher. Set teacher.path.")
            if objective.has_teacher and (recipe.teacher.language,) not in {corpus.codes for corpus in read}:
                raise ValueError(f"{where} has no text of teacher.language {recipe.teacher.language!r}. Add it.")

    def read(self, corpora: Corpora) -> Corpora:
        """Returns the corpora of a recipe that it reads. Raises ValueError for a pattern that matches none."""
        for pattern in self.corpora:
            if not any(is_selected(name, [pattern]) for name in corpora):
                found = f"phase {self.name}: the pattern {pattern!r} matches no corpus"
                raise ValueError(f"{found}. {nearest(pattern, corpora)}")
        return {name: corpus for name, corpus in corpora.items() if is_selected(name, self.corpora)}

    def trains(self, name: str) -> bool:
        """Returns whether a parameter trains in the phase; others are frozen. Cross-attention is no part of the body:
        no model of one language has it."""
        is_body = re.match(r"roberta\.(encoder|backbone(?!\.embed))\.(?!.*\.crossattention\.)", name)
        return not (self.freeze_body and is_body) and any(fnmatchcase(name, pattern) for pattern in self.trainable)

    def check_trainable(self, names: Sequence[str]) -> None:
        """Raises ValueError if a pattern of `trainable` matches none of a model's parameters, and if none trains."""
        for pattern in self.trainable:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"phase {self.name!r}: no parameter is called {pattern!r}. {nearest(pattern, names)}")
        if not any(map(self.trains, names)):
            found = f"trainable {', '.join(self.trainable) or 'empty'}, freeze_body {self.freeze_body}"
            raise ValueError(f"phase {self.name!r} trains nothing: {found}.")

    @property
    def with_examples(self) -> dict[str, Collator]:
        """The objectives that read their own examples, each in its sub-batch."""
        return {name: found for name, found in self.objectives.items() if isinstance(found, Collator)}

    @property
    def masked_lm(self) -> dict[str, Objective]:
        """Its objectives that train an LM head: those with masked-LM loss."""
        return {name: one for name, one in self.objectives.items() if one.is_masked_lm and one.weight}

    def losses(self, model: Any) -> list[str]:
        """Returns the names of its objectives' losses in the logs and the model: `mlm`, `ca_mlm_pairs.inner`, ..."""
        return [loss for name in self.objectives for loss in model.losses_of_objective(name)]

    def loss_weights(self, model: Any) -> dict[str, float]:
        """Returns the weight of each loss, for a model's forward. The model does not compute losses of weight 0."""
        weights = self.unused_losses(model)
        for loss in self.losses(model):
            name, _, term = loss.partition(".")
            objective = self.objectives[name]
            weights[loss] = objective.weight * (not objective.terms or term in objective.terms)
        return weights

    def predictions(self, batch: dict, weights: dict[str, float]) -> int:
        """Returns the number of predictions that the labels of a batch give, before the model has read it."""
        learned = [loss.partition(".")[0] for loss, weight in weights.items() if weight]
        return sum(self.objectives[name].predictions(batch[name]) for name in learned if name in batch)

    def unused_losses(self, model: Any) -> dict[str, float]:
        """Returns weight 0 for each loss of the model whose objective is not in the phase."""
        unused = [name for name in model.objectives if name not in self.objectives]
        return dict.fromkeys([loss for name in unused for loss in model.losses_of_objective(name)], 0.0)


@dataclass
class HeadPhase:
    """A first phase that trains the LM head alone, for a checkpoint whose weights have none."""

    steps: Positive = option(300, "number of optimizer steps, of which a thirtieth are warm-up")
    learning_rate: Annotated[float, Gt(0)] = option(5e-3, "peak learning rate, which decays linearly")


@dataclass
class Optimizer:
    """AdamW and gradient clipping."""

    betas: Annotated[list[Fraction], Len(2, 2)] = option([0.9, 0.98], "Adam's beta1 and beta2")
    epsilon: Annotated[float, Gt(0)] = option(1e-6, "Adam's epsilon")
    weight_decay: Annotated[float, Ge(0)] = option(0.01, "decoupled weight decay, not applied to biases and LayerNorms")
    max_grad_norm: Annotated[float, Ge(0)] = option(1.0, "global norm to which gradients are clipped; 0: no clipping")


@dataclass
class Evaluation:
    """Evaluation on held-out text, which is masked like the training text but the same way each time."""

    held_out_fraction: Fraction = option(
        0.0, "share of rows kept out of training, by id or line number: in all languages the same; 0: no evaluation"
    )
    max_examples: Positive = option(300, "largest number of held-out examples per corpus")
    every_steps: Count = option(0, "steps between evaluations; 0: evaluate only at the end of each phase")
    batch_size: BatchSize = option(32, "held-out examples per forward pass")


@dataclass
class Recipe:
    """Pre-training of one model."""

    output_dir: str = option(
        MISSING, "folder that the run writes: model/, checkpoints/, events.jsonl, curves.png, run.json, recipe.yaml"
    )
    model: ModelStart = field(default_factory=ModelStart)
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: that of model.start_from")
    hub_root: str | None = option(
        None, "folder with copies of Hub repositories, as <hub_root>/<owner>/<name>, which are read in their place"
    )
    licenses: dict[str, str] = option(
        {}, "license of a data set by its path, as in {local/ntrex: cc-by-sa-4.0}; cards of models show it"
    )
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    monolingual: list[Monolingual] = option(
        [],
        "monolingual corpora; a language may have several. Without any, objectives of monolingual text (`mlm`) read "
        "both sides of `bitext`",
    )
    bitext: list[Bitext] = option([], "corpora of translation pairs; a pair of languages may have several")
    linked: list[LinkedPairs] = option([], "translation pairs with links between their words, for `word_links`")
    teacher: Teacher | None = option(None, "teacher model, for objectives that learn from one (`kd`)")
    alpha: Annotated[float, Ge(0), Le(1)] = option(
        0.7,
        "exponent of language sampling: p_i = N_i^alpha / sum_j N_j^alpha, N_i the size of all corpora of language or "
        "pair i, of which one is sampled in proportion to its size",
    )
    phases: list[Phase] = option([], "stages of training, in order; a run needs at least one")
    head_phase: HeadPhase | None = option(
        None,
        "a phase before the others, only if model.start_from lacks an LM head, which then starts at random: it trains "
        "the head alone, with the masked-LM objectives of the first phase. recipe.yaml lists it among `phases`. null: "
        "no such phase",
    )
    optimizer: Optimizer = field(default_factory=Optimizer)
    evaluation: Evaluation = field(default_factory=Evaluation)
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", "arithmetic of forward and backward; weights stay fp32")
    gradient_accumulation_steps: Positive = option(
        1, "micro-batches per step and process; more need less memory, and change only dropout's random numbers"
    )
    num_workers: Annotated[int, Ge(0), Le(256)] = option(0, "data-loading processes per training process")
    seed: Seed = option(1, "seed of weights, sampling, masks and dropout")
    log_every_steps: Positive = option(10, "steps between lines of events.jsonl")
    save_every_steps: Count | None = option(
        None, "steps between checkpoints; 0: only at the end of a phase; default: a tenth of all steps, at least 10"
    )
    keep_checkpoints: Count = option(2, "number of newest checkpoints to keep; 0: all")
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = option(
        None, "experiment tracker that also receives the run's figures"
    )
    push_to_hub: str | None = option(None, "owner/name of a Hub repository to which the run uploads its checkpoints")

    def __post_init__(self) -> None:
        self.monolingual = [one for corpus in self.monolingual for one in one_for_each(corpus)]
        self.bitext = [one for corpus in self.bitext for one in one_for_each(corpus)]

    def check(self) -> None:
        """Raises ValueError, with the name of a field, for fields that contradict each other."""
        if Path(self.output_dir).is_file():
            raise ValueError(f"output_dir is {self.output_dir}, which is a file. Name a folder.")
        names = [phase.name for phase in self.phases]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"phases has the names {names}. A run needs at least one phase, and each its own name.")
        if self.head_phase:
            self._check_head_phase()
        for index, phase in enumerate(self.phases):
            phase.check(self, index)
        if self.teacher and not any(one.has_teacher for phase in self.phases for one in phase.objectives.values()):
            raise ValueError(f"teacher.path is {self.teacher.path!r}, but no phase learns from it. Add kd to a phase.")
        dictionaries = self.model.meta_pretrained.dictionaries if self.model.meta_pretrained else []
        if unknown := {one.language for one in dictionaries if self.languages} - {*self.languages}:
            reason = f"has no text. {nearest(min(unknown), self.languages)}"
            raise ValueError(f"model.meta_pretrained.dictionaries: {min(unknown)!r} {reason}")

    def _check_head_phase(self) -> None:
        if not self.model.start_from:
            raise ValueError("head_phase is set, but model.start_from is not. Set head_phase to null.")
        if HEAD in [phase.name for phase in self.phases]:
            raise ValueError(f"head_phase adds a phase {HEAD!r}, but phases has one, too. Rename it.")
        if not self.phases[0].masked_lm:
            raise ValueError("head_phase is set, but phases.0 has no masked-LM objective. Set head_phase to null.")

    def with_head_phase(self) -> "Recipe":
        """Returns the recipe with its `head_phase` as the first of its phases."""
        first, settings = self.phases[0], self.head_phase
        head = Phase(
            name=HEAD,
            steps=settings.steps,
            objectives=first.masked_lm,
            trainable=["lm_head.*"],
            corpora=first.corpora,
            learning_rate=settings.learning_rate,
            warmup_steps=settings.steps // 30,  # as in e5_small_head.yaml
        )
        return replace(self, phases=[head, *self.phases], head_phase=None)

    @property
    def checkpoint_steps(self) -> int:
        """Steps between checkpoints: `save_every_steps` or its default."""
        default = max(10, sum(phase.steps for phase in self.phases) // 10)
        return default if self.save_every_steps is None else self.save_every_steps

    @property
    def languages(self) -> list[str]:
        """Codes of all languages, in the order of the corpora."""
        return list(dict.fromkeys(code for corpus in self.named_corpora().values() for code in corpus.codes))

    def named_corpora(self) -> Corpora:
        """Returns all corpora, monolingual ones first, by their names in patterns, logs and curves.

        The only corpus of a language or pair has the name of the language (`en`) or pair (`en-de`). Several corpora
        of a language, or of a pair in either direction, also have their `name`, after a slash (`en-de/ntrex`). Its
        default is the last part of the path of the first table, without the file's ending. A corpus with a `name`
        always shows it.

        Without `monolingual`, objectives of monolingual text read both sides of `bitext`: these are corpora, too, with
        the name of their language. If several pairs have it, the name of the pair follows (`en/en-de`).

        Raises ValueError for two corpora with the same name.
        """
        corpora, named = self.monolingual + self.bitext + self.linked, {}
        count = Counter(frozenset(corpus.codes) for corpus in corpora)
        for corpus in corpora:
            name = "-".join(corpus.codes)
            if corpus.name is not None or count[frozenset(corpus.codes)] > 1:
                table = corpus.table or corpus.source or Table("") if isinstance(corpus, Bitext) else corpus
                path = Path(table.path)
                is_file = path.suffix in SUFFIXES or table.format not in ("auto", "hub")
                name += f"/{corpus.name or (path.stem if is_file else path.name)}"
            if name in named:
                raise ValueError(f"Two corpora of `{corpus.kind}` are called {name!r}. Give one another `name`.")
            named[name] = corpus
        objectives = [objective for phase in self.phases for objective in phase.objectives.values()]
        if self.monolingual or all(objective.text != Monolingual.kind for objective in objectives):
            return named
        return sides_of_pairs(named) | named


def sides_of_pairs(corpora: Corpora) -> Corpora:
    """Returns both sides of the translation pairs among some corpora as corpora of text, by their names."""
    sides = []
    for name, corpus in corpora.items():
        if isinstance(corpus, Bitext):
            shared = {"name": name, "max_rows": corpus.max_rows, "size": corpus.size, "pairs": corpus}
            sides += [SideOfPairs(**shared, side=0), SideOfPairs(**shared, side=1)]
    count = Counter(side.codes for side in sides)
    named: Corpora = {}
    for side in sides:
        (language,) = side.codes
        named[language if count[side.codes] == 1 else f"{language}/{side.name}"] = side
    return named


def one_for_each(corpus: Monolingual | Bitext) -> list[Monolingual | Bitext]:
    """Returns the corpora of one entry: itself, or one for each of its `languages` or `pairs`.

    Raises ValueError for languages without these names or names without placeholders, and for a pair that is not two
    codes.
    """
    is_text = isinstance(corpus, Monolingual)
    many, places = ("languages", ("{language}",)) if is_text else ("pairs", ("{source}", "{target}"))
    listed, sizes, changed = getattr(corpus, many), corpus.sizes, getattr(corpus, "language_names", {})
    names, made = listed or list(sizes), []
    if listed and sizes and set(listed) != set(sizes):
        raise ValueError(f"{many} are {', '.join(listed)}, but sizes has {', '.join(sizes)}. Both must name the same.")
    if (corpus.codes == places) != bool(names) or not {*changed} <= {*names}:
        found = f"A corpus of {'-'.join(corpus.codes)} has {many} {names}" + (f", language_names {changed}" * is_text)
        raise ValueError(f"{found}. {'-'.join(places)} goes with {many}, one corpus for each.")
    for name in names:
        codes = [name] if is_text else name.split("-", 1)
        if not all(codes) or len(codes) < len(places):
            raise ValueError(f"pairs has {name!r}. Write two language codes, such as de-en.")
        own = {"language": name, "language_names": {}} if is_text else {}
        one = replace(corpus, **{many: []} | own, sizes={}, size=sizes.get(name, corpus.size))
        words = dict(zip(places, [changed.get(code, code) for code in codes], strict=True))
        made.append(_replaced(one, words | {"{pair}": "-".join(sorted(codes))}))
    return made or [corpus]


def _replaced(item: Any, words: dict[str, str]) -> Any:
    """Returns a copy of a corpus or table with each word of `words` replaced by its value, in all texts."""
    if isinstance(item, str):
        for word, value in words.items():
            item = item.replace(word, value)
    elif is_dataclass(item):
        return replace(item, **{name: _replaced(value, words) for name, value in vars(item).items()})
    return item


def is_selected(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether any glob pattern selects a corpus.

    A pattern is compared with the language or pair; a pattern with a slash, with the whole name. `en-de` and `en-*`
    select all corpora of en-de, `en-de/ntrex` one of them. `*-*` never selects a monolingual corpus.
    """
    code = name.partition("/")[0]
    return any(fnmatchcase(name if "/" in pattern else code, pattern) for pattern in patterns)


def scheduled_together(phases: Sequence[Phase], index: int) -> list[Phase]:
    """Returns the phases that share a learning-rate schedule with phase `index`.

    The first of them defines the schedule, and the others continue it.
    """
    first = max(number for number, phase in enumerate(phases[: index + 1]) if phase.optimizer == "fresh")
    return [phases[first], *takewhile(lambda phase: phase.optimizer == "carried", phases[first + 1 :])]
