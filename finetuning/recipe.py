"""The fine-tuning recipe: every field that `finetuning/run.py` reads, with its type, default and meaning.

A recipe is a YAML file of these fields; `key=value` on the command line overrides one of them
(`training.learning_rate=2e-5`). `zoo_core.recipes` reads, checks and prints recipes.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Len
from omegaconf import MISSING

from crosslingual_zoo.finetuning.published import look_up
from crosslingual_zoo.finetuning.results import run_name
from crosslingual_zoo.zoo_core.command_line import TRUST_REMOTE_CODE
from crosslingual_zoo.zoo_core.recipes import LARGEST, BatchSize, Count, Fraction, Positive, Seed, option
from crosslingual_zoo.zoo_core.tables import Table

INIT_FROM = "folder of a finished run of the same `model`, whose best seed this run starts from; the results name it"
NOTE = "how the data differ from the benchmark's own; the results show it as a warning"


@dataclass
class Translations:
    """A table with translations of the rows of another table, joined on an id, split by split."""

    path: str = option(MISSING, "as in train; `{language}` is the language code of the rows that are translated")
    config: str | None = option(None, "as in train; `{language}` as in path")
    revision: str | None = option(None, "branch, tag or commit of a dataset on the Hub")
    text_columns: list[str] = option(["text"], "columns of the translations, as in translation_columns")
    join_on: str = option("id", "column of both tables; rows with the same value are translations of each other")


@dataclass
class LabeledTable(Table):
    """Rows of text with a label."""

    format: Literal["auto", "hub", "parquet", "json", "csv", "tsv", "text", "conll", "conllu"] = option(
        "auto", "format of `path`; auto: a folder, a Hub id, or a file by its ending, such as .csv or .conll"
    )
    text_columns: list[str] = option(
        ["text"], "one column of text, or two that are encoded as a pair; tagging: the column of the words"
    )
    label_column: str = option("label", "column of the label; tagging: of lists of labels; answers: as in SQuAD")
    label_names: list[str] = option([], "names of the labels 0, 1, ... if the column has numbers; default: its own")
    language_column: str | None = option(None, "column with the language of each row, for a table of several languages")
    where: dict[str, str] = option({}, "columns and values of the rows to use; `*` is any text, {language} as in path")
    language_names: dict[str, str] = option({}, "value of `{language}` if it is not the language code: {sw: swahili}")
    translation_columns: list[str] = option(
        [],
        "plug-in: columns with translations of `text_columns` and, to train on, with their labels of words or answers",
    )
    translations: Translations | None = option(None, "plug-in: table of the translations, if they are in another one")


@dataclass
class TrainingTable(LabeledTable):
    """Labeled rows to train on."""

    languages: list[str] = option([], "languages of the rows, as in evaluation; default: the source language")
    dev_split: str | None = option(None, "split for `selection: source_dev`, used if `evaluation` names none")


@dataclass
class EvaluationTable(LabeledTable):
    """Labeled rows to evaluate on, in every language."""

    path: str = option(MISSING, "as in train; `{language}` is replaced by each of `languages`, a table per language")
    config: str | None = option(None, "as in train; `{language}` as in path")
    split: str = option("test", "split that is evaluated; never used for selection")
    languages: list[str] = option([], "languages to evaluate; default: every language of `language_column`")
    dev_split: str | None = option(None, "split that `selection` uses; must not be the evaluated one")
    note: str | None = option(None, NOTE)
    differs: str | None = option(None, "how these rows differ from those of published scores, as in 'other tokens'")


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
    schedule: Literal["linear", "inverse_sqrt", "constant", "cosine"] = option("linear", "schedule after the warm-up")
    weight_decay: Annotated[float, Ge(0)] = option(0.0, "decoupled weight decay; not applied to biases and LayerNorms")
    betas: Annotated[list[Fraction], Len(2, 2)] = option([0.9, 0.999], "AdamW's beta1 and beta2")
    epsilon: Annotated[float, Gt(0)] = option(1e-6, "AdamW's epsilon")
    max_grad_norm: Annotated[float, Ge(0)] = option(1.0, "global norm that gradients are clipped to; 0: no clipping")
    gradient_accumulation_steps: Positive = option(1, "micro-batches per step and process; the step is the same")
    gradient_checkpointing: bool = option(False, "recompute activations: less memory, ~30% slower")
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", "precision of the passes; weights stay fp32")


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

    task_class: ClassVar[str]  # module in finetuning/tasks and name of the `Task`, which imports torch
    is_trained: ClassVar[bool] = False  # whether the model is fine-tuned, once a seed
    main_score: ClassVar[str]  # the score of results, shown with published scores of the same name
    task_type: ClassVar[str]  # the Hub's name for the kind of task
    measures: ClassVar[str]  # what the score is of, on a card
    memory_advice: ClassVar[str] = "Lower batch_size"  # what to do where the memory does not suffice
    metrics: ClassVar[tuple[str, ...]] = ()  # the metrics that results show; default: all
    is_higher_better: ClassVar[bool] = True
    notes: ClassVar[tuple[str, ...]] = ()  # lines for the page, of what the facts do not say
    seeds: ClassVar[list[int]] = [1]  # a task that trains nothing has one run
    suffix: ClassVar[str] = ""  # what distinguishes the default folders of one task's settings

    model: str = option(MISSING, "checkpoint: a folder, or a Hub id, owner/name or owner/name@revision")
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: the model's")
    output_dir: str = option(
        "runs/{model}/{task}", "folder of the results; `{model}` is the name of the model's run, `{task}` the task's"
    )
    init_from: str | None = option(None, INIT_FROM)
    hub_root: str | None = option(None, "folder with copies of Hub repositories, as <hub_root>/<owner>/<name>")
    licenses: dict[str, str] = option({}, "license of a data set by its path, for cards: {local/ntrex: cc-by-sa-4.0}")
    skip_missing: bool = option(False, "leave out languages whose tables are not found; the results list them")
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    kind: str = option(MISSING, "kind of task")
    task: str = option(MISSING, "name of the task in the results, such as xnli")

    def __post_init__(self) -> None:
        if MISSING in (self.model, self.task):
            return
        for word, text in {"{model}": run_name(self.model), "{task}": self.task + self.suffix}.items():
            self.output_dir = self.output_dir.replace(word, text)
            if self.init_from is not None:
                self.init_from = self.init_from.replace(word, text)

    @property
    def references(self) -> list[dict[str, Any]]:
        """The published rows, as results.json has them."""
        return []

    @property
    def longest_input(self) -> int | None:
        """The number of positions that the model must have, if the recipe says so."""
        return None

    def describe(self) -> dict[str, Any]:
        """Returns the setting, the languages and the hyperparameters, as results.json has them."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises ValueError for invalid values, and for fields that contradict each other."""
        for item in self.references:
            look_up(item, self.task, self.kind, self.main_score, [])


@dataclass
class TrainedRecipe(TaskRecipe):
    """The fields of all kinds that train."""

    is_trained = True
    seeds: list[Seed] = option([1], "seeds, with one run each; results have the score of each, mean and deviation")
    training: Hyperparameters = field(default_factory=Hyperparameters)
    evaluate_every_steps: Count = option(0, "steps between evaluations on dev, each with a checkpoint; 0: one epoch")
    max_train_examples: Count = option(0, "number of training rows to sample at random; 0: use all")
    num_workers: Annotated[int, Ge(0), Le(256)] = option(0, "data-loading processes per training process")
    save_models: bool = option(True, "keep each seed's fine-tuned model, in seed-N/model")
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = option(None, "tracker that also gets the figures")
    published: Published | None = option(None, "published scores to print next to ours")

    @property
    def precision(self) -> str:
        return self.training.precision

    @property
    def references(self) -> list[dict[str, Any]]:
        return [asdict(self.published)] if self.published else []

    def check(self) -> None:
        super().check()
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds is {self.seeds}. Name each once, as in seeds=[1, 2].")
        if not self.training.epochs and not self.training.max_steps:
            raise ValueError("training.epochs and training.max_steps are both 0. Set one of them.")


@dataclass
class Recipe(TrainedRecipe):
    """Fine-tuning of one model on one task, evaluated in every language."""

    task_class = "classification:ClassificationTask"
    main_score = "accuracy"
    task_type = "text-classification"
    measures = "labels of texts"
    memory_advice = (
        "Raise training.gradient_accumulation_steps, which changes no step, or lower training.batch_size, "
        "evaluation_batch_size or max_length"
    )
    texts: ClassVar[tuple[int, ...]] = (1, 2)  # how many text columns tables may name
    translations_have_labels: ClassVar[bool] = False  # plug-in, in training: both sides are learned from
    kind: Literal["classification"] = option("classification", "kind of task: a text, or a pair of texts, with a label")
    setting: Literal["zero_shot", "translate_train_all", "supervised"] = option(
        "zero_shot", "train on the source language, also on its translations, or on rows of every evaluated language"
    )
    plug_in: bool = option(
        False, "VECO's [H:S]: the head also reads each token's state with cross-attention to the translation"
    )
    translations_from: str | None = option(None, "translate_train_all: who or what translated; the results show it")
    source_language: str = option("en", "language of the original training rows")
    train: list[TrainingTable] = option([], "training rows; several tables are read one after another")
    evaluation: list[EvaluationTable] = option([], "tables to evaluate; a language may occur in one of them only")
    selection: Literal["last", "source_dev", "mean_dev"] = option(
        "source_dev",
        "checkpoint to keep: the last, or the best on dev of the source or, on average, all languages; of equal "
        "scores, the one with the lower loss",
    )
    dev_fraction: Fraction = option(0.1, "share of the training rows held out for `source_dev` without a `dev_split`")
    max_length: Annotated[int, Ge(8), LARGEST] = option(
        128, "tokens of an example with special tokens; longer texts are cut, and the results count them"
    )
    max_evaluation_examples: Count = option(0, "number of rows per language to sample for evaluation; 0: use all")
    evaluation_batch_size: BatchSize = option(64, "examples per forward pass and process in evaluation")
    training: Training = field(default_factory=Training)
    sweep: dict[str, list[Any]] = option(
        {}, "values to try with --sweep, by dotted field; the combination with the best development score is run"
    )

    @property
    def suffix(self) -> str:
        if self.plug_in:
            return "_plug_in"
        return "" if self.setting == "zero_shot" else f"_{self.setting}"

    @property
    def longest_input(self) -> int:
        return self.max_length

    def describe(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "source_language": self.source_language,
            "hyperparameters": asdict(self.training),
        }

    def check(self) -> None:
        super().check()
        is_translated = self.setting == "translate_train_all"
        if is_translated != bool(self.translations_from) or self.plug_in > is_translated:
            raise ValueError(
                f"setting is {self.setting}, translations_from {self.translations_from!r} and plug_in {self.plug_in}. "
                "translate_train_all needs translations_from; the other settings must have neither."
            )
        if not self.train or not self.evaluation:
            raise ValueError(f"The recipe has no {'evaluation' if self.train else 'train'} table. Add one.")
        for number, table in enumerate(self.train):
            self._check_columns(f"train.{number}", table, self.translations_have_labels)
            if self.setting == "zero_shot" and table.languages not in ([], [self.source_language]):
                raise ValueError(
                    f"train.{number}.languages is {table.languages}, and setting is zero_shot, which trains on "
                    f"{self.source_language}. Leave it out, or use setting=translate_train_all or supervised."
                )
        for number, table in enumerate(self.evaluation):
            self._check_columns(f"evaluation.{number}", table, False)
        if self.selection == "mean_dev" and not any(table.dev_split for table in self.evaluation):
            raise ValueError("selection is mean_dev, and no evaluation table has a dev_split. Name it.")

    def _check_columns(self, where: str, table: LabeledTable, has_translated_labels: bool) -> None:
        """Raises ValueError for columns of a table that do not fit the kind of task or the other tables."""
        if len(table.text_columns) != len(self.train[0].text_columns) or len(table.text_columns) not in self.texts:
            number = " or ".join(map(str, self.texts))
            raise ValueError(f"{where}.text_columns is {table.text_columns}. Name {number}, as many in all tables.")
        if len(set(table.label_names)) < len(table.label_names):
            raise ValueError(f"{where}.label_names is {table.label_names}. Give each label a different name.")
        if bool(table.translation_columns) + bool(table.translations) != self.plug_in:
            raise ValueError(
                f"{where}: plug_in is {self.plug_in}. With plug_in, give one of `translation_columns` and "
                "`translations`; without it, none."
            )
        translated = list(table.text_columns)
        if has_translated_labels:
            translated.append(table.label_column)
        columns = table.translation_columns
        if table.translations:
            columns = table.translations.text_columns
        if columns and len(columns) != len(translated):
            raise ValueError(f"{where} has {columns} as translations. Name the columns that translate {translated}.")


@dataclass
class TaggingRecipe(Recipe):
    """Fine-tuning of one model to label words, evaluated in every language."""

    task_class = "tagging:TaggingTask"
    main_score = "f1"
    notes = ("f1, precision, recall: of chunks; token_accuracy: share of words with the right label",)
    task_type = "token-classification"
    measures = "labels of words"
    texts = (1,)
    translations_have_labels = True
    kind: Literal["tagging"] = option("tagging", "kind of task: words, each with a label")
    label_subword: Literal["first", "first_with_text"] = option(
        "first_with_text", "token that has a word's label; first: as in XTREME, which in Chinese is mostly a lone mark"
    )


@dataclass
class QuestionAnsweringRecipe(Recipe):
    """Fine-tuning of one model to find answers in a context, evaluated in every language.

    Each table names two `text_columns`, question and context. Its `label_column` has the fields `text` and
    `answer_start`, two lists of the same length, as in SQuAD, MLQA, XQuAD and TyDiQA-GoldP.
    """

    task_class = "question_answering.task:QuestionAnsweringTask"
    main_score = "f1"
    task_type = "question-answering"
    measures = "answers found in a text"
    texts = (2,)
    translations_have_labels = True
    kind: Literal["question_answering"] = option("question_answering", "kind of task")
    metric: Literal["squad", "mlqa"] = option("squad", "F1 of SQuAD (also of XQuAD and TyDiQA), or MLQA's by language")
    max_length: Annotated[int, Ge(8), LARGEST] = option(384, "tokens of a window: question, part of a context, special")
    doc_stride: Positive = option(
        128, "tokens from the start of a window to that of the next; in run_qa.py, the overlap"
    )
    max_question_length: Positive = option(64, "tokens of a question; longer ones are cut, and the results count them")
    max_answer_length: Positive = option(30, "maximum tokens of an answer")
