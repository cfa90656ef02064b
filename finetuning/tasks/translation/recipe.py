"""The translation recipe: every field that `finetuning/run.py` reads where `kind` is translation."""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Len
from omegaconf import MISSING

from crosslingual_zoo.finetuning.recipe import NOTE, Hyperparameters, TrainedRecipe
from crosslingual_zoo.zoo_core.recipes import LARGEST, Count, Fraction, Positive, option
from crosslingual_zoo.zoo_core.tables import Table

Length = Annotated[int, Ge(4), LARGEST]


@dataclass
class TargetTable(Table):
    """Translations in a separate table."""

    split: str | None = option(None, "split of the dataset; default: the split of the source table")


@dataclass
class PairTable(Table):
    """Sentences and their translations: two columns of one table, or one column of each of two tables."""

    source_column: str = option(MISSING, "column of the text to translate; translation.en: field en of translation")
    target_column: str = option(MISSING, "column of the translation, in the table `target` if there is one")
    target: TargetTable | None = option(None, "table of the translations, aligned row by row, or joined on `join_on`")
    join_on: str | None = option(None, "column of ids in both tables; rows with the same id are a pair")
    source_language: str | None = option(None, "language of the source column; default: the recipe's")
    target_language: str | None = option(None, "language of the target column; default: the recipe's")


@dataclass
class TrainingPairs(PairTable):
    """Pairs to train on."""

    source_mask_probability: Fraction = option(
        0.0,
        "share of the source tokens to mask in every epoch (80% <mask>, 10% random, 10% unchanged); of a column "
        "that is its own target, these alone are predicted",
    )

    @property
    def is_own_target(self) -> bool:
        """Whether the model learns to restore masked text, not to translate."""
        return self.source_column == self.target_column and self.target is None


@dataclass
class EvaluationPairs(PairTable):
    """Pairs to translate and score."""

    split: str = option("test", "split that is evaluated; never used for selection")
    note: str | None = option(None, NOTE)


@dataclass
class TranslationTraining(Hyperparameters):
    """Hyperparameters."""

    max_tokens: Positive = option(
        4096, "tokens per step with padding: pairs times the longest side, summed over processes and micro-batches"
    )
    epochs: Annotated[float, Ge(0), LARGEST] = option(10.0, "passes over the training pairs")
    betas: Annotated[list[Fraction], Len(2, 2)] = option([0.9, 0.98], "AdamW's beta1 and beta2")
    epsilon: Annotated[float, Gt(0)] = option(1e-8, "AdamW's epsilon")
    label_smoothing: Fraction = option(0.1, "share of the probability to spread over all tokens of the vocabulary")
    dropout: Fraction | None = option(None, "dropout of the hidden states; default: the model's own")
    attention_dropout: Fraction | None = option(None, "dropout of the attention weights; default: the model's own")


@dataclass
class Generation:
    """How the test sentences are translated."""

    beams: Positive = option(5, "hypotheses that beam search keeps; 1: greedy search")
    length_penalty: float = option(1.0, "a hypothesis' log-probability is divided by this power of its length")
    max_tokens: Positive = option(2048, "tokens per batch of source sentences and process, with padding")


@dataclass
class TranslationRecipe(TrainedRecipe):
    """Fine-tuning of an encoder, or of a translation model, on translation pairs."""

    task_class = "translation.task:TranslationTask"
    main_score = "sacrebleu"
    metrics = ("sacrebleu", "bleu", "chrf")
    notes = ("bleu: near multi-bleu.perl -lc on Moses tokens. Compare sacrebleu if both are published",)
    task_type = "translation"
    measures = "translations, compared with those of people"
    memory_advice = (
        "Raise training.gradient_accumulation_steps, which changes no step, or lower training.max_tokens or "
        "generation.max_tokens"
    )
    kind: Literal["translation"] = option("translation", "kind of task")
    source_language: str = option(MISSING, "language to translate from")
    target_language: str = option(MISSING, "language to translate into")

    initialize: Literal["pretrained", "random"] = option("pretrained", "weights; random: new ones for each seed")
    decoder_layers: Positive | None = option(None, "layers of the decoder; default: as many as the encoder has")
    decoder_layer_selection: Literal["last", "first"] | None = option(
        None, "encoder layers that the decoder is made from; default: the last"
    )
    tie_decoder: bool | None = option(None, "the decoder shares weights with these encoder layers; default: true")

    train: list[TrainingPairs] = option([], "training pairs; several tables are mixed")
    dev: list[PairTable] = option([], "development pairs for the loss, and for BLEU of the first language pair")
    test: list[EvaluationPairs] = option([], "tables to evaluate, one per language pair")
    max_source_length: Length = option(128, "tokens of a source sentence with special tokens")
    max_target_length: Length = option(128, "tokens of a target sentence with special tokens")
    too_long: Literal["drop", "cut"] = option("drop", "what to do with longer training pairs; evaluated ones are cut")
    max_test_examples: Count = option(0, "number of pairs per table to sample at random for evaluation; 0: use all")

    training: TranslationTraining = field(default_factory=TranslationTraining)
    max_dev_examples: Count = option(1000, "number of pairs per table to sample for the loss on dev; 0: use all")
    dev_bleu_examples: Count = option(0, "number of these to translate by greedy search for BLEU by step; 0: none")
    selection: Literal["last", "average"] = option(
        "last", "weights to evaluate: the last, or the mean of `average_checkpoints`"
    )
    average_checkpoints: Positive = option(10, "most checkpoints, the last ones, whose mean `average` takes")
    generation: Generation = field(default_factory=Generation)

    def languages_of(self, table: PairTable) -> tuple[str, str]:
        """Returns the source and the target language of a table."""
        return table.source_language or self.source_language, table.target_language or self.target_language

    @property
    def targets(self) -> dict[str, str]:
        """Returns the target language of each pair, such as en-de."""
        return {"-".join(pair): pair[1] for pair in map(self.languages_of, [*self.dev, *self.test])}

    @property
    def longest_input(self) -> int:
        return max(self.max_source_length, self.max_target_length)

    def describe(self) -> dict[str, Any]:
        return {
            "setting": "supervised",
            "source_language": self.source_language,
            "target_language": self.target_language,
            "hyperparameters": {
                **asdict(self.training),
                "initialize": self.initialize,
                "generation": asdict(self.generation),
            },
        }

    def check(self) -> None:
        super().check()
        if not self.train or not self.test:
            raise ValueError(f"The recipe has {len(self.train)} tables of train and {len(self.test)} of test. Add one.")
        for position, table in enumerate(self.train):
            if table.is_own_target and not table.source_mask_probability:
                raise ValueError(
                    f"train.{position} has {table.source_column} as source_column and target_column, and no masks. "
                    "Set source_mask_probability, or name another column."
                )
        if self.dev_bleu_examples and not self.dev:
            raise ValueError(f"dev_bleu_examples is {self.dev_bleu_examples}, and dev has no table.")
