"""The fine-tuning recipe: every field that `finetuning/run.py` reads, with its type, default and meaning.

A recipe is a YAML file of these fields; `key=value` on the command line overrides one of them
(`training.learning_rate=2e-5`). `zoo_core.recipes` reads, checks and prints recipes.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Len
from omegaconf import MISSING

from finetuning.published import look_up
from finetuning.results import run_name
from zoo_core.command_line import TRUST_REMOTE_CODE
from zoo_core.recipes import LARGEST, BatchSize, Count, Fraction, Positive, Seed, option
from zoo_core.tables import Table

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

    learning_rate: Annotated[float, Gt(0)] = option(MISSING, "peak learning rate")
    layerwise_decay: Annotated[float, Gt(0), Le(1)] = option(
        1.0, "d: factor d^(n-i) on the learning rate of layer i of n (from 0), d^(n+1) of the embeddings, 1 of the head"
    )
    epochs: Annotated[float, Ge(0), Le(10**6)] = option(3.0, "passes over the training rows")
    max_steps: Count = option(0, "number of steps to train, instead of epochs; 0: use epochs")
    warmup_steps: Annotated[float, Ge(0), Le(2**31 - 1)] = option(
        0.1, "steps of linear warm-up; below 1: share of all steps"
    )
    schedule: Literal["linear", "constant", "cosine"] = option(
        "linear", "schedule of the learning rate after the warm-up"
    )
    weight_decay: Annotated[float, Ge(0)] = option(0.0, "decoupled weight decay; not applied to biases and LayerNorms")
    betas: Annotated[list[Fraction], Len(2, 2)] = option([0.9, 0.999], "AdamW's beta1 and beta2")
    epsilon: Annotated[float, Gt(0)] = option(1e-6, "AdamW's epsilon")
    max_grad_norm: Annotated[float, Ge(0)] = option(1.0, "global norm that gradients are clipped to; 0: no clipping")
    gradient_accumulation_steps: Positive = option(
        1, "micro-batches per step and process; more need less memory and compute the same step"
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

    batch_size: BatchSize = option(32, "examples per step, summed over processes and accumulated micro-batches")


@dataclass
class Published:
    """A row of a published table, whose scores pages show next to ours; it is never used in a computation."""

    paper: str = option(MISSING, "veco, ernie_m, ...: a file of finetuning/published")
    table: str = option(MISSING, "table of the paper")
    row: str = option(MISSING, "row of the table: the model and its setting")


@dataclass
class TaskRecipe:
    """The fields of all kinds of task. `{model}` and `{task}` in output_dir and init_from are replaced."""

    main_score: ClassVar[str]  # the score of results, shown with published scores of the same name
    task_type: ClassVar[str]  # the Hub's name for the kind of task
    measures: ClassVar[str]  # what the score is of, on a card
    # the defaults of fields that only some kinds have
    init_from = max_length = tracker = push_to_hub = published = None

    model: str = option(MISSING, "checkpoint to fine-tune: a folder, or a Hub id, owner/name or owner/name@revision")
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: the model's")
    output_dir: str = option(
        "runs/{model}/{task}",
        "folder of the results: results.{json,md,csv}, a plot and one folder per seed; `{model}` is the name of the "
        "model's run, `{task}` the task, with a suffix for plug_in or a setting other than zero_shot",
    )
    hub_root: str | None = option(
        None,
        "folder with copies of Hub repositories, as <hub_root>/<owner>/<name>; the run reads an id from it if it has "
        "the id, and otherwise from the Hub",
    )
    licenses: dict[str, str] = option(
        {}, "license of a data set by its path, as in {local/ntrex: cc-by-sa-4.0}; cards of models show it"
    )
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    kind: str = option(MISSING, "kind of task")
    task: str = option(MISSING, "name of the task in the results, such as xnli")
    seeds: list[Seed] = option(
        [1], "seeds, with one run each; results have the score of each, the mean and the standard deviation"
    )

    def __post_init__(self) -> None:
        if MISSING in (self.model, self.task):
            return
        words = {"{model}": run_name(self.model), "{task}": self.task + self.suffix}
        for word, text in words.items():
            self.output_dir = self.output_dir.replace(word, text)
            self.init_from = self.init_from and self.init_from.replace(word, text)

    @property
    def suffix(self) -> str:
        """Returns what distinguishes the default folders of one task's settings."""
        return ""

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


@dataclass
class TrainedRecipe(TaskRecipe):
    """The fields of all kinds that train."""

    training: Hyperparameters = field(default_factory=Hyperparameters)
    num_workers: Annotated[int, Ge(0), Le(256)] = option(0, "data-loading processes per training process")
    save_models: bool = option(True, "keep each seed's fine-tuned model, in seed-N/model")
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = option(
        None, "experiment tracker that also receives the run's figures; default: none"
    )
    push_to_hub: str | None = option(
        None, "owner/name of the Hub repository to which the run uploads its checkpoints; default: none"
    )

    @property
    def precision(self) -> str:
        return self.training.precision

    def check(self) -> None:
        super().check()
        training = self.training
        if not training.epochs and not training.max_steps:
            raise ValueError("training.epochs and training.max_steps are both 0. Set one of them.")
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
    init_from: str | None = option(None, INIT_FROM)
    kind: Literal["classification"] = option("classification", "kind of task: a text, or a pair of texts, with a label")
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
    dev_fraction: Fraction = option(
        0.1, "share of the training rows held out for `source_dev` if no table has a `dev_split`"
    )
    evaluate_every_steps: Count = option(0, "steps between checkpoints, each evaluated on dev; 0: one epoch")
    max_length: Annotated[int, Ge(8), LARGEST] = option(
        128, "tokens of an example with special tokens; longer texts are cut, and the results count them"
    )
    max_train_examples: Count = option(0, "number of training rows to sample at random; 0: use all")
    max_evaluation_examples: Count = option(
        0, "number of rows per language to sample at random for evaluation; 0: use all"
    )
    evaluation_batch_size: BatchSize = option(64, "examples per forward pass and process in evaluation")
    training: Training = field(default_factory=Training)
    sweep: dict[str, list[Any]] = option(
        {},
        "values to try with --sweep, by dotted field, as in {training.epochs: [3, 5]}; every combination is tried, and "
        "the one with the best development score is run",
    )
    published: Published | None = option(None, "published scores to print next to ours")

    @property
    def suffix(self) -> str:
        return "_plug_in" if self.plug_in else "" if self.setting == "zero_shot" else f"_{self.setting}"

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


@dataclass
class TaggingRecipe(Recipe):
    """Fine-tuning of one model to label words, evaluated in every language."""

    main_score, task_type = "f1", "token-classification"
    measures = "labels of words"
    kind: Literal["tagging"] = option("tagging", "kind of task: words, each with a label")
    label_subword: Literal["first", "first_with_text"] = option(
        "first_with_text",
        "token of a word that has its label; first: its first token, as in XTREME; first_with_text: its first token "
        "with text, because most Chinese words begin with a token that only marks their start",
    )


@dataclass
class QuestionAnsweringRecipe(Recipe):
    """Fine-tuning of one model to find answers in a context, evaluated in every language.

    Each table names two `text_columns`, question and context. Its `label_column` has the fields `text` and
    `answer_start`, two lists of the same length, as in SQuAD, MLQA, XQuAD and TyDiQA-GoldP.
    """

    main_score, task_type = "f1", "question-answering"
    measures = "answers found in a text"
    kind: Literal["question_answering"] = option("question_answering", "kind of task")
    metric: Literal["squad", "mlqa"] = option(
        "squad",
        "squad: F1 of SQuAD in every language, as for XQuAD and TyDiQA; mlqa: F1 of MLQA, with rules by language",
    )
    max_length: Annotated[int, Ge(8), LARGEST] = option(
        384, "tokens of a window: the question, a part of the context and special tokens"
    )
    doc_stride: Positive = option(128, "tokens of the context from the start of a window to the start of the next")
    max_question_length: Positive = option(64, "tokens of a question; longer ones are cut, and the results count them")
    max_answer_length: Positive = option(30, "maximum tokens of an answer")
