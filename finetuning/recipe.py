"""The fine-tuning recipe: every field that `finetuning/run.py` reads, with its type, default and meaning.

A recipe is a YAML file of these fields; `key=value` on the command line overrides one of them
(`training.learning_rate=2e-5`). Reading, checking and printing is done by `zoo_core.recipes`.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from omegaconf import MISSING

from finetuning.results.files import run_name
from zoo_core.recipes import (
    LARGEST_BATCH,
    LARGEST_COUNT,
    MOST_WORKERS,
    PUSH_TO_HUB,
    SEEDS,
    TRACKER,
    TRUST_REMOTE_CODE,
    add_resolver,
    option,
)
from zoo_core.tables import Table

OUTPUT_DIR = "runs/${model_name:${model}}/${task}"  # so that two models, or two tasks, do not share a folder
add_resolver("model_name", run_name)
add_resolver(
    "setting_suffix",
    lambda setting, plug_in: "_plug_in" if plug_in else "" if setting == "zero_shot" else f"_{setting}",
)

INIT_FROM = (
    "folder of a finished run that was fine-tuned from the same `model`: this one starts from its fine-tuned model, of "
    "the seed that was best on the development rows, and its results say so"
)


@dataclass
class Translations:
    """Another table whose rows translate those of the table that names it, joined on an id; split by split."""

    path: str = option(MISSING, "as in train; `{language}` stands for the code of the translated rows' language")
    config: str | None = option(None, "as in train; `{language}` likewise")
    revision: str | None = option(None, "branch, tag or commit of a dataset on the Hub")
    text_columns: list[str] = option(
        ["text"],
        "columns of the translations, in the order of the translated columns; tagging and question_answering, in "
        "training: and the column of their labels",
    )
    join_on: str = option("id", "column of both tables; rows with the same value translate each other")


@dataclass
class LabeledTable(Table):
    """Rows of text with a label."""

    text_columns: list[str] = option(
        ["text"],
        "one column of text, or two that are encoded as a pair; tagging: one column of lists of words; "
        "question_answering: question and context",
    )
    label_column: str = option(
        "label",
        "column of the label: class labels, whole numbers or strings; tagging: of lists, a label for each word; "
        "question_answering: of answers, with fields text and answer_start",
    )
    label_names: list[str] = option(
        [], "names of the labels 0, 1, ... where the column holds bare numbers, or the order of the labels it holds"
    )
    language_column: str | None = option(
        None, "column that names the language of a row, where the table holds several languages"
    )
    where: dict[str, str] = option(
        {},
        "only rows whose columns have these values, as in {domain: books}; `*` stands for any text, and `{language}` "
        "as in path",
    )
    language_names: dict[str, str] = option(
        {}, "what `{language}` stands for where that is not the code, as in {sw: swahili}"
    )
    translation_columns: list[str] = option(
        [],
        "plug-in: columns of the same rows that hold the translations of `text_columns`, in their order; tagging and "
        "question_answering, in training: and the column of their labels",
    )
    translations: Translations | None = option(
        None, "plug-in: table of the translations, where they are not columns of this one"
    )


@dataclass
class TrainingTable(LabeledTable):
    """Labeled rows to train on."""

    languages: list[str] = option(
        [],
        "translate_train_all and supervised: languages of the rows, as in evaluation; default: the source language",
    )

    dev_split: str | None = option(
        None, "split of the same dataset on which `selection: source_dev` selects, if `evaluation` names none"
    )


@dataclass
class EvaluationTable(LabeledTable):
    """Labeled rows to evaluate on, in every language."""

    path: str = option(MISSING, "as in train; `{language}` stands for each of `languages`, one table a language")
    config: str | None = option(None, "as in train; `{language}` stands for each of `languages`")
    split: str = option("test", "evaluated split; nothing is ever selected on it")
    languages: list[str] = option([], "languages to evaluate; default: every language of `language_column`")
    dev_split: str | None = option(None, "split on which `selection` selects; never the evaluated one")
    note: str | None = option(
        None, "what a reader must know where this is not the benchmark's own split; it becomes a warning of the results"
    )
    differs: str | None = option(
        None,
        "in a few words, how these rows are not those of published figures, as in 'other tokens': results say it, and "
        "published rows beside them",
    )


@dataclass
class Hyperparameters:
    """What every kind of task trains with."""

    learning_rate: float = option(MISSING, "peak learning rate", above=0)
    layerwise_decay: float = option(
        1.0,
        "d: layer i of n (from 0) learns at d^(n-i) of the rate, the embeddings at d^(n+1), the head at 1",
        above=0,
        high=1,
    )
    epochs: float = option(3.0, "passes over the training rows", low=0, high=10**6)
    max_steps: int = option(0, "number of steps, in place of epochs; 0: by epochs")
    warmup_steps: float = option(
        0.1, "updates of linear warm-up; below 1: that share of all steps", low=0, high=LARGEST_COUNT
    )
    schedule: Literal["linear", "constant", "cosine"] = option("linear", "after the warm-up")
    weight_decay: float = option(0.0, "decoupled weight decay; biases and LayerNorms have none", low=0)
    betas: list[float] = option([0.9, 0.999], "AdamW's beta1 and beta2", low=0, below=1)
    epsilon: float = option(1e-6, "AdamW's epsilon", above=0)
    max_grad_norm: float = option(1.0, "gradients are clipped to this global norm; 0: no clipping", low=0)
    gradient_accumulation_steps: int = option(
        1, "micro-batches per step and process: changes memory, not the step", low=1
    )
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, ~30% slower")
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", "arithmetic of forward and backward; weights stay fp32")


@dataclass
class Training(Hyperparameters):
    """Hyperparameters."""

    batch_size: int = option(
        32, "examples per step over all processes and accumulated micro-batches", low=1, high=LARGEST_BATCH
    )
    used_rows_only: bool = option(
        True,
        "hold gradient and optimizer state of those rows of the word embeddings alone that the training rows' tokens "
        "use; the others have no gradient. Changes memory and time, not the model; false: of all rows",
    )


@dataclass
class PublishedRow:
    """Which published result stands beside ours; it is printed, never computed with.

    Where `paper` is a file of hub_cards/published, its table and row give the figures, and none stand here.
    """

    paper: str = option(
        MISSING, "veco, ernie_m, ...: a file of hub_cards/published; or another paper, whose figures then stand here"
    )
    table: str = option(MISSING, "table of the paper")
    row: str = option(MISSING, "row of the table: the model and its setting")
    note: str | None = option(
        None, "what a reader must know of the figures; it becomes a warning of the results; default: that of the file"
    )


@dataclass
class Published(PublishedRow):
    """Published scores by language."""

    languages: dict[str, float] = option({}, "score of each language, in percent")
    further: dict[str, dict[str, float]] = option(
        {}, "by the name of a further score, such as exact_match: that of each language, in percent"
    )
    average: float | None = option(None, "average as printed, in percent")
    average_over: list[str] = option([], "languages of that average, where the scores of some are not known")


class TaskRecipe:
    """The fields that recipes share. A kind that lacks one has the default."""

    main_score: ClassVar[str]  # that results are about, beside which published figures of that name stand
    task_type: ClassVar[str]  # as the Hub calls the kind of task
    model: str
    tokenizer: str | None
    init_from: str | None = None
    output_dir: str
    hub_root: str | None
    trust_remote_code: bool
    kind: str
    task: str
    seeds: list[int]
    max_length: int | None = None
    precision: str
    tracker: str | None = None
    push_to_hub: str | None = None
    compare_with: dict[str, list[str]] = {}

    def check(self) -> None:
        """Raises ValueError for values that cannot be run, and for fields that contradict each other."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds is {self.seeds}. Name each once, as in seeds=[1, 2].")


class TrainedRecipe(TaskRecipe):
    """What the recipes of all kinds have that are trained."""

    training: Hyperparameters
    num_workers: int
    save_models: bool

    @property
    def precision(self) -> str:
        return self.training.precision

    def check(self) -> None:
        super().check()
        training = self.training
        if not training.epochs and not training.max_steps:
            raise ValueError("training.epochs and training.max_steps are 0. Set one of them.")
        if len(training.betas) != 2:
            raise ValueError(f"training.betas must be two numbers, got {training.betas}.")
        if self.push_to_hub and len(self.seeds) > 1:
            raise ValueError(
                f"push_to_hub is {self.push_to_hub}, which holds one model, and seeds is {self.seeds}. Set seeds=[1]."
            )
        if self.push_to_hub and not self.save_models:
            raise ValueError(f"push_to_hub is {self.push_to_hub}, and the model is not kept. Set save_models=true.")


@dataclass
class Recipe(TrainedRecipe):
    """Fine-tuning of one model on one task, evaluated in every language."""

    main_score, task_type = "accuracy", "text-classification"
    model: str = option(MISSING, "checkpoint to start from: a folder, or owner/name or owner/name@revision of the Hub")
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: that of the model")
    init_from: str | None = option(None, INIT_FROM)
    output_dir: str = option(
        OUTPUT_DIR + "${setting_suffix:${setting},${plug_in}}",
        "folder of the results: results.{json,md,csv}, scores.png, one folder per seed",
    )
    hub_root: str | None = option(
        None, "folder that mirrors the Hub (<hub_root>/<owner>/<name>); ids found there are read from there"
    )
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    kind: Literal["classification"] = option("classification", "kind of task: texts or pairs with a label")
    task: str = option(MISSING, "name of the task in the results, such as xnli")
    setting: Literal["zero_shot", "translate_train_all", "supervised"] = option(
        "zero_shot",
        "zero_shot: train on the source language, evaluate on every language; translate_train_all: train on the source "
        "language and its translations; supervised: train on rows of every evaluated language, labeled in it",
    )
    plug_in: bool = option(
        False,
        "VECO with translate_train_all: heads read [H:S] of a text and its translation, which every table then has to "
        "name; both sides are learned from, and texts of the evaluated language are scored",
    )
    translations_from: str | None = option(
        None, "translate_train_all: who or what translated which texts; the results say it"
    )
    source_language: str = option("en", "language of the original training rows")
    train: list[TrainingTable] = option([], "training rows; several tables are read one after another")
    evaluation: list[EvaluationTable] = option([], "what is evaluated; every language of every table, each once")
    selection: Literal["last", "source_dev", "mean_dev"] = option(
        "source_dev",
        "which checkpoint is evaluated: the last, or the best on the source language's development rows, or on the "
        "mean over all languages' development rows",
    )
    dev_fraction: float = option(
        0.1, "share of the training rows held out for `source_dev` where no table has a `dev_split`", low=0, below=1
    )
    evaluate_every_steps: int = option(0, "updates between evaluations on dev, and checkpoints; 0: once an epoch")
    max_length: int = option(
        128, "positions of an example, special tokens included; longer texts are cut and counted", low=8
    )
    max_train_examples: int = option(0, "training rows used, drawn at random; 0: all")
    max_evaluation_examples: int = option(0, "evaluated rows per language, drawn at random; 0: all")
    evaluation_batch_size: int = option(
        64, "examples in a forward pass of evaluation, per process", low=1, high=LARGEST_BATCH
    )
    training: Training = field(default_factory=Training)
    seeds: list[int] = option(
        [1], "one run each; scores are reported by seed, with mean and standard deviation", below=SEEDS
    )
    num_workers: int = option(0, "data-loading processes per training process", high=MOST_WORKERS)
    save_models: bool = option(True, "keep each seed's fine-tuned model, in seed-N/model")
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = option(None, TRACKER)
    push_to_hub: str | None = option(None, PUSH_TO_HUB)
    sweep: dict[str, list[Any]] = option(
        {},
        "by dotted field, values that are tried with each other where --sweep is given, as in "
        "{training.epochs: [3, 5]}; the point that is best on the development rows is run",
    )
    published: Published | None = option(None, "published figure to print beside ours")

    def check(self) -> None:
        super().check()
        is_translated = self.setting == "translate_train_all"
        if self.plug_in and not is_translated:
            raise ValueError(
                f"plug_in is true, and setting is {self.setting}. Use setting=translate_train_all with translations in "
                "every table, or plug_in=false."
            )
        if is_translated != bool(self.translations_from):
            raise ValueError(
                f"setting is {self.setting}, and translations_from is {self.translations_from!r}. Scores depend on who "
                "translated, so a run on translations says it, and no other does. "
                + ("Set translations_from." if is_translated else "Leave translations_from out.")
            )
