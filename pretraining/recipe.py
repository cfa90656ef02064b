"""The pre-training recipe: every field that `pretraining/run.py` reads, with its type, default and meaning.

A recipe is a YAML file with these fields. `key=value` on the command line overrides a field (`phases.0.steps=10`).
The fields of corpora and phases are in `recipe_corpora.py` and `recipe_phases.py`. `zoo_core.recipes` reads and prints
recipes. `Recipe.check` checks fields against each other.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len
from omegaconf import MISSING

from crosslingual_zoo.modeling import MODEL_TYPES
from crosslingual_zoo.pretraining.objectives import Objective
from crosslingual_zoo.pretraining.recipe_corpora import (
    Bitext,
    Corpora,
    LinkedPairs,
    Monolingual,
    name_corpora,
    sides_of_pairs,
)
from crosslingual_zoo.pretraining.recipe_phases import Phase
from crosslingual_zoo.zoo_core.command_line import TRUST_REMOTE_CODE
from crosslingual_zoo.zoo_core.recipes import BatchSize, Count, Fraction, Positive, Seed, nearest, option

HEAD = "head"  # name of the phase that `Recipe.head_phase` adds


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

    # pyrefly: ignore[invalid-literal]  # checkers take only names that are written here
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
    compile: bool = option(
        False, "compile the encoder's layers, a minute or more in each phase: fewer and larger kernels on a GPU"
    )

    def __post_init__(self) -> None:
        if self.meta_pretrained and self.start_from:
            raise ValueError(f"start_from is {self.start_from!r} and meta_pretrained is set, too. Set one of them.")


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
        self.monolingual = [corpus for entry in self.monolingual for corpus in entry.each()]
        self.bitext = [corpus for entry in self.bitext for corpus in entry.each()]

    def check(self) -> None:
        """Raises ValueError, with the name of a field, for fields that contradict each other."""
        if Path(self.output_dir).is_file():
            raise ValueError(f"output_dir is {self.output_dir}, which is a file. Name a folder.")
        names = [phase.name for phase in self.phases]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"phases has the names {names}. A run needs at least one phase, and each its own name.")
        if self.head_phase:
            self._check_head_phase()
        corpora = self.named_corpora()
        teacher_language = self.teacher.language if self.teacher else None
        for index, phase in enumerate(self.phases):
            phase.check(self.phases, index, corpora, teacher_language)
        if self.teacher and not any(objective.has_teacher for objective in self._objectives()):
            raise ValueError(f"teacher.path is {self.teacher.path!r}, but no phase learns from it. Add kd to a phase.")
        if self.model.meta_pretrained:
            self._check_dictionaries(self.model.meta_pretrained.dictionaries)

    def _check_head_phase(self) -> None:
        if not self.model.start_from:
            raise ValueError("head_phase is set, but model.start_from is not. Set head_phase to null.")
        if HEAD in [phase.name for phase in self.phases]:
            raise ValueError(f"head_phase adds a phase {HEAD!r}, but phases has one, too. Rename it.")
        if not self.phases[0].masked_lm:
            raise ValueError("head_phase is set, but phases.0 has no masked-LM objective. Set head_phase to null.")

    def _check_dictionaries(self, dictionaries: list[Dictionary]) -> None:
        languages = self.languages
        for dictionary in dictionaries:
            if languages and dictionary.language not in languages:
                problem = f"model.meta_pretrained.dictionaries: {dictionary.language!r} has no text"
                raise ValueError(f"{problem}. {nearest(dictionary.language, languages)}")

    def _objectives(self) -> list[Objective]:
        """The objectives of all phases."""
        return [objective for phase in self.phases for objective in phase.objectives.values()]

    def with_head_phase(self) -> "Recipe":
        """Returns the recipe with its `head_phase` as the first of its phases."""
        first = self.phases[0]
        settings = self.head_phase
        assert settings, "the recipe has no head_phase"
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
        if self.save_every_steps is not None:
            return self.save_every_steps
        return max(10, sum(phase.steps for phase in self.phases) // 10)

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
        named = name_corpora([*self.monolingual, *self.bitext, *self.linked])
        reads_text = any(objective.text == Monolingual.kind for objective in self._objectives())
        if reads_text and not self.monolingual:
            return sides_of_pairs(named) | named
        return named
