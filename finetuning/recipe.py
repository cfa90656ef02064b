"""The fine-tuning recipe: every field that `finetuning/run.py` reads, with its type, default and meaning.

A recipe is a YAML file of these fields; `key=value` on the command line overrides one of them
(`training.learning_rate=2e-5`). `zoo_core.recipes` reads, checks and prints recipes.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from omegaconf import MISSING

from finetuning.published import look_up
from finetuning.results import run_name
from zoo_core.recipes import (
    HUB_ROOT,
    LARGEST_BATCH,
    LARGEST_COUNT,
    LICENSES,
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
    "folder of a finished run that was fine-tuned from the same `model`; this run starts from the model of its seed "
    "with the best development score, and the results name it"
)


@dataclass
class Translations:
    """A table with translations of the rows of another table, joined on an id, split by split."""

    path: str = option(
        MISSING, "as in train; `{language}` is replaced by the language code of the rows that are translated"
    )
    config: str | None = option(None, "as in train; `{language}` as in path")
    revision: str | None = option(None, "branch, tag or commit of a dataset on the Hub")
    text_columns: list[str] = option(
        ["text"],
        "columns of the translations, in the order of the translated columns; tagging and question_answering also need "
        "the column of their labels, in training tables",
    )
    join_on: str = option("id", "column of both tables; rows with the same value are translations of each other")


@dataclass
class LabeledTable(Table):
    """Rows of text with a label."""

    text_columns: list[str] = option(
        ["text"],
        "one column of text, or two columns that are encoded as a pair; tagging: one column of lists of words; "
        "question_answering: question and context",
    )
    label_column: str = option(
        "label",
        "column of the label: class labels, whole numbers or strings; tagging: lists with a label for each word; "
        "question_answering: answers with the fields text and answer_start",
    )
    label_names: list[str] = option(
        [], "names of the labels 0, 1, ... if the column has numbers; otherwise the order of its labels"
    )
    language_column: str | None = option(None, "column with the language of each row, for a table of several languages")
    where: dict[str, str] = option(
        {},
        "use only the rows whose columns have these values, as in {domain: books}; `*` matches any text, and "
        "`{language}` is as in path",
    )
    language_names: dict[str, str] = option(
        {}, "value of `{language}` if it is not the language code, as in {sw: swahili}"
    )
    translation_columns: list[str] = option(
        [],
        "plug-in: columns of the same rows with the translations of `text_columns`, in the same order; tagging and "
        "question_answering also need the column of their labels, in training tables",
    )
    translations: Translations | None = option(
        None, "plug-in: table of the translations, if they are not columns of this one"
    )


@dataclass
class TrainingTable(LabeledTable):
    """Labeled rows to train on."""

    languages: list[str] = option(
        [],
        "translate_train_all and supervised: languages of the rows, as in evaluation; default: the source language",
    )

    dev_split: str | None = option(
        None, "split of the same dataset for `selection: source_dev`; used if `evaluation` names none"
    )


@dataclass
class EvaluationTable(LabeledTable):
    """Labeled rows to evaluate on, in every language."""

    path: str = option(
        MISSING, "as in train; `{language}` is replaced by each of `languages`, with one table per language"
    )
    config: str | None = option(None, "as in train; `{language}` is replaced by each of `languages`")
    split: str = option("test", "split that is evaluated; never used for selection")
    languages: list[str] = option([], "languages to evaluate; default: every language of `language_column`")
    dev_split: str | None = option(None, "split that `selection` uses; must not be the evaluated one")
    note: str | None = option(None, "how the split differs from the benchmark's own; the results show it as a warning")
    differs: str | None = option(
        None,
        "in a few words, how these rows differ from those of published scores, as in 'other tokens'; the results and "
        "their published rows show it",
    )


@dataclass
class Hyperparameters:
    """Hyperparameters of every kind of task that trains."""

    learning_rate: float = option(MISSING, "peak learning rate", above=0)
    layerwise_decay: float = option(
        1.0,
        "d: factor d^(n-i) on the learning rate of layer i of n (from 0), d^(n+1) of the embeddings, 1 of the head",
        above=0,
        high=1,
    )
    epochs: float = option(3.0, "passes over the training rows", low=0, high=10**6)
    max_steps: int = option(0, "number of steps to train, instead of epochs; 0: use epochs")
    warmup_steps: float = option(0.1, "steps of linear warm-up; below 1: share of all steps", low=0, high=LARGEST_COUNT)
    schedule: Literal["linear", "constant", "cosine"] = option(
        "linear", "schedule of the learning rate after the warm-up"
    )
    weight_decay: float = option(0.0, "decoupled weight decay; not applied to biases and LayerNorms", low=0)
    betas: list[float] = option([0.9, 0.999], "AdamW's beta1 and beta2", low=0, below=1)
    epsilon: float = option(1e-6, "AdamW's epsilon", above=0)
    max_grad_norm: float = option(1.0, "global norm that gradients are clipped to; 0: no clipping", low=0)
    gradient_accumulation_steps: int = option(
        1, "micro-batches per step and process; more need less memory and compute the same step", low=1
    )
    gradient_checkpointing: bool = option(
        False, "recompute activations in the backward pass; needs less memory, ~30% slower"
    )
    precision: Literal["fp32", "bf16", "fp16"] = option(
        "fp32", "precision of the forward and backward pass; weights stay fp32"
    )


@dataclass
class Training(Hyperparameters):
    """Hyperparameters."""

    batch_size: int = option(
        32, "examples per step, summed over processes and accumulated micro-batches", low=1, high=LARGEST_BATCH
    )


@dataclass
class Published:
    """A row of a published table, whose scores pages show next to ours; it is never used in a computation."""

    paper: str = option(MISSING, "veco, ernie_m, ...: a file of finetuning/published")
    table: str = option(MISSING, "table of the paper")
    row: str = option(MISSING, "row of the table: the model and its setting")


class TaskRecipe:
    """The fields that recipes share. A kind without one of them has its default."""

    main_score: ClassVar[str]  # the score of results, shown with published scores of the same name
    task_type: ClassVar[str]  # the Hub's name for the kind of task
    measures: ClassVar[str]  # what the score is of, on a card
    model: str
    tokenizer: str | None
    init_from: str | None = None
    output_dir: str
    hub_root: str | None
    licenses: dict[str, str]
    trust_remote_code: bool
    kind: str
    task: str
    seeds: list[int]
    max_length: int | None = None
    precision: str
    tracker: str | None = None
    push_to_hub: str | None = None
    published: Any = None

    @property
    def references(self) -> list[dict[str, Any]]:
        """The published rows, as results.json has them."""
        given = self.published if isinstance(self.published, list) else [self.published] if self.published else []
        return [asdict(item) for item in given]

    def check(self) -> None:
        """Raises ValueError for invalid values, and for fields that contradict each other."""
        for item in self.references:
            look_up(item, self.task, self.kind, self.main_score, [])
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds is {self.seeds}. Name each once, as in seeds=[1, 2].")


class TrainedRecipe(TaskRecipe):
    """The fields of all kinds that train."""

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
            raise ValueError("training.epochs and training.max_steps are both 0. Set one of them.")
        if len(training.betas) != 2:
            raise ValueError(f"training.betas must be two numbers, got {training.betas}.")
        if self.push_to_hub and len(self.seeds) > 1:
            raise ValueError(
                f"push_to_hub is {self.push_to_hub}, which has room for one model, and seeds is {self.seeds}. Set "
                "seeds=[1]."
            )
        if self.push_to_hub and not self.save_models:
            raise ValueError(f"push_to_hub is {self.push_to_hub}, and save_models is false. Set save_models=true.")


@dataclass
class Recipe(TrainedRecipe):
    """Fine-tuning of one model on one task, evaluated in every language."""

    main_score, task_type = "accuracy", "text-classification"
    measures = "labels of texts"
    model: str = option(MISSING, "checkpoint to fine-tune: a folder, or a Hub id, owner/name or owner/name@revision")
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: the model's")
    init_from: str | None = option(None, INIT_FROM)
    output_dir: str = option(
        OUTPUT_DIR + "${setting_suffix:${setting},${plug_in}}",
        "folder of the results: results.{json,md,csv}, scores.png and one folder per seed; default: "
        "runs/<model>/<task>, with a suffix for plug_in or a setting other than zero_shot",
    )
    hub_root: str | None = option(None, HUB_ROOT)
    licenses: dict[str, str] = option({}, LICENSES)
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    kind: Literal["classification"] = option("classification", "kind of task: a text, or a pair of texts, with a label")
    task: str = option(MISSING, "name of the task in the results, such as xnli")
    setting: Literal["zero_shot", "translate_train_all", "supervised"] = option(
        "zero_shot",
        "every language is evaluated; zero_shot: train on the source language; translate_train_all: train on the "
        "source language and its translations; supervised: train on labeled rows of every evaluated language",
    )
    plug_in: bool = option(
        False,
        "VECO with translate_train_all: the head reads two states of each token, computed without and with cross-"
        "attention to the translation ([H:S] in the paper). Every table must name the "
        "translations. Training uses both sides, and evaluation scores the texts of the evaluated language",
    )
    translations_from: str | None = option(
        None, "translate_train_all: who or what translated which texts; the results show it"
    )
    source_language: str = option("en", "language of the original training rows")
    train: list[TrainingTable] = option([], "training rows; several tables are read one after another")
    evaluation: list[EvaluationTable] = option([], "tables to evaluate; a language may occur in one of them only")
    selection: Literal["last", "source_dev", "mean_dev"] = option(
        "source_dev",
        "checkpoint that is evaluated: the last one, the one with the best score on the source language's development "
        "rows, or the one with the best mean over the development rows of all languages",
    )
    dev_fraction: float = option(
        0.1, "share of the training rows held out for `source_dev` if no table has a `dev_split`", low=0, below=1
    )
    evaluate_every_steps: int = option(0, "steps between checkpoints, each evaluated on dev; 0: one epoch")
    max_length: int = option(
        128, "tokens of an example with special tokens; longer texts are cut, and the results count them", low=8
    )
    max_train_examples: int = option(0, "number of training rows to sample at random; 0: use all")
    max_evaluation_examples: int = option(
        0, "number of rows per language to sample at random for evaluation; 0: use all"
    )
    evaluation_batch_size: int = option(
        64, "examples per forward pass and process in evaluation", low=1, high=LARGEST_BATCH
    )
    training: Training = field(default_factory=Training)
    seeds: list[int] = option(
        [1],
        "seeds, with one run each; results have the score of each, the mean and the standard deviation",
        below=SEEDS,
    )
    num_workers: int = option(0, "data-loading processes per training process", high=MOST_WORKERS)
    save_models: bool = option(True, "keep each seed's fine-tuned model, in seed-N/model")
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = option(None, TRACKER)
    push_to_hub: str | None = option(None, PUSH_TO_HUB)
    sweep: dict[str, list[Any]] = option(
        {},
        "values to try with --sweep, by dotted field, as in {training.epochs: [3, 5]}; every combination is tried, and "
        "the one with the best development score is run",
    )
    published: Published | None = option(None, "published scores to print next to ours")

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
                f"setting is {self.setting}, and translations_from is {self.translations_from!r}. Scores depend on the "
                "translator: translate_train_all needs this field, and other settings must not have it. "
                + ("Set translations_from." if is_translated else "Leave translations_from out.")
            )
