"""The translation recipe: every field that `finetuning/run.py` reads where `kind` is translation.

A recipe is a YAML file of these fields; `key=value` on the command line overrides one of them (`decoder_layers=6`).
`zoo_core.recipes` reads, checks and prints recipes.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Len
from omegaconf import MISSING

from finetuning.recipe import Hyperparameters, Published, TrainedRecipe
from zoo_core.recipes import LARGEST, Count, Fraction, Positive, option
from zoo_core.tables import Table


@dataclass
class TargetTable(Table):
    """Translations in a separate table."""

    split: str | None = option(None, "split of the dataset; default: the split of the source table")


@dataclass
class PairTable(Table):
    """Sentences and their translations: two columns of one table, or one column of each of two tables."""

    source_column: str = option(
        MISSING, "column of the text to translate; translation.en is the field en of the column translation"
    )
    target_column: str = option(MISSING, "column of the translation, in the table `target` if there is one")
    target: TargetTable | None = option(
        None, "table of the translations, if it is a separate one: aligned row by row, or joined on `join_on`"
    )
    join_on: str | None = option(None, "column of ids in both tables; rows with the same id are a pair")
    source_language: str | None = option(None, "language of the source column; default: the recipe's")
    target_language: str | None = option(None, "language of the target column; default: the recipe's")


@dataclass
class TrainingPairs(PairTable):
    """Pairs to train on."""

    source_mask_probability: Fraction = option(
        0.0, "share of the source tokens to mask, sampled anew in every epoch (80% <mask>, 10% random, 10% unchanged)"
    )
    predict: Literal["all", "masked"] = option(
        "all", "tokens to predict; masked: only the masked ones, with the source column also as the target column"
    )


@dataclass
class EvaluationPairs(PairTable):
    """Pairs to translate and score."""

    split: str = option("test", "split that is evaluated; never used for selection")
    note: str | None = option(
        None, "how the split differs from the benchmark's own test; the results show it as a warning"
    )


@dataclass
class TranslationTraining(Hyperparameters):
    """Hyperparameters."""

    max_tokens: Positive = option(
        4096,
        "tokens per step with padding: the number of pairs times the length of the longest side, summed over processes "
        "and micro-batches; batches have pairs of similar length",
    )
    layerwise_decay: Annotated[float, Gt(0), Le(1)] = option(
        1.0,
        "d: factor d^(n-i) on the learning rate of encoder layer i of n (from 0) and of the decoder layer made from "
        "it, d^(n+1) of the embeddings, 1 of the rest of the LM head",
    )
    epochs: Annotated[float, Ge(0), Le(10**6)] = option(10.0, "passes over the training pairs")
    schedule: Literal["linear", "inverse_sqrt", "constant", "cosine"] = option(
        "linear", "schedule of the learning rate after the warm-up"
    )
    betas: Annotated[list[Fraction], Len(2, 2)] = option([0.9, 0.98], "AdamW's beta1 and beta2")
    epsilon: Annotated[float, Gt(0)] = option(1e-8, "AdamW's epsilon")
    label_smoothing: Fraction = option(0.1, "share of the probability to spread over all tokens of the vocabulary")
    dropout: Fraction | None = option(None, "dropout of the hidden states; default: the model's own")
    attention_dropout: Fraction | None = option(None, "dropout of the attention weights; default: the model's own")


@dataclass
class Generation:
    """How the test sentences are translated."""

    beams: Annotated[int, Ge(1), Le(1024)] = option(5, "hypotheses that beam search keeps; 1: greedy search")
    length_penalty: float = option(
        1.0, "power of the length that the log-probability of a hypothesis is divided by; needs more than 1 beam"
    )
    max_tokens: Positive = option(2048, "tokens per batch of source sentences and process, with padding")


@dataclass
class TranslationRecipe(TrainedRecipe):
    """Fine-tuning of an encoder, or of a translation model, on translation pairs."""

    main_score, task_type = "sacrebleu", "translation"
    measures = "translations, compared with those of people"
    model: str = option(
        MISSING,
        "folder or Hub id of the checkpoint to fine-tune: an encoder (VECO, XLM-R, another of the zoo), which is made "
        "into a translation model, or a translation model",
    )
    kind: Literal["translation"] = option("translation", "kind of task")
    source_language: str = option(MISSING, "language to translate from")
    target_language: str = option(MISSING, "language to translate into")

    initialize: Literal["pretrained", "random"] = option(
        "pretrained",
        "initial weights; random: the same architecture and tokenizer, with new random weights for each seed",
    )
    decoder_layers: Positive | None = option(None, "layers of the decoder; default: as many as the encoder has")
    decoder_layer_selection: Literal["last", "first"] | None = option(
        None, "encoder layers that the decoder is made from; default: the last"
    )
    tie_decoder: bool | None = option(
        None,
        "the decoder shares self-attention and feed-forward with the encoder layers that it is made from; default: "
        "true. A translation model already has a decoder, so these three fields must agree with it if they are set",
    )

    train: list[TrainingPairs] = option([], "training pairs; several tables are mixed")
    dev: list[PairTable] = option([], "development pairs for the loss, and for BLEU of the first language pair")
    test: list[EvaluationPairs] = option([], "tables to evaluate, one per language pair")
    max_source_length: Annotated[int, Ge(4), LARGEST] = option(128, "tokens of a source sentence with special tokens")
    max_target_length: Annotated[int, Ge(4), LARGEST] = option(128, "tokens of a target sentence with special tokens")
    too_long: Literal["drop", "cut"] = option(
        "drop", "drop or cut longer training pairs; evaluated pairs are always cut; the results count both"
    )
    max_train_examples: Count = option(0, "number of training pairs to sample at random; 0: use all")
    max_test_examples: Count = option(0, "number of pairs per table to sample at random for evaluation; 0: use all")

    training: TranslationTraining = field(default_factory=TranslationTraining)
    evaluate_every_steps: Count = option(0, "steps between evaluations on `dev`; 0: one epoch")
    save_every_steps: Count = option(0, "steps between checkpoints; 0: as evaluate_every_steps")
    max_dev_examples: Count = option(
        1000, "number of pairs per table to sample at random for the loss on dev; 0: use all"
    )
    dev_bleu_examples: Count = option(
        0, "number of these pairs to translate by greedy search for the curve of BLEU by step; 0: none"
    )
    selection: Literal["last", "dev_loss", "dev_bleu", "average"] = option(
        "last",
        "weights that are evaluated: the last ones, those of the checkpoint with the best loss or BLEU on dev, or the "
        "mean of the last `average_checkpoints`",
    )
    average_checkpoints: Positive = option(10, "number of checkpoints in the mean of `selection: average`")
    generation: Generation = field(default_factory=Generation)
    bleu_tokenizer: Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"] | None = option(
        None,
        "sacreBLEU's tokenizer; default: that of each pair's target language: zh, ja-mecab, ko-mecab, char for Thai "
        "and others without spaces, else 13a",
    )
    published: Published | None = option(None, "published scores to print next to ours")

    def languages_of(self, table: PairTable) -> tuple[str, str]:
        """Returns the source and the target language of a table."""
        return table.source_language or self.source_language, table.target_language or self.target_language

    @property
    def targets(self) -> dict[str, str]:
        """Returns the target language of each pair, such as en-de."""
        return {"-".join(pair): pair[1] for pair in map(self.languages_of, [*self.dev, *self.test])}

    @property
    def max_length(self) -> int:
        """Returns the number of positions that the model must have."""
        return max(self.max_source_length, self.max_target_length)

    def check(self) -> None:
        super().check()
        generation = self.generation
        if generation.beams == 1 and generation.length_penalty != 1.0:
            raise ValueError(
                f"generation.length_penalty is {generation.length_penalty}, and generation.beams is 1. Leave "
                "length_penalty out, or use more beams."
            )
        if not self.dev and (self.selection.startswith("dev") or self.dev_bleu_examples):
            raise ValueError(
                f"The recipe has no dev table; selection is {self.selection} and dev_bleu_examples "
                f"{self.dev_bleu_examples}. Add a table under `dev:`, or use selection=last and dev_bleu_examples=0."
            )
        if self.selection == "dev_bleu" and not self.dev_bleu_examples:
            raise ValueError(
                "selection is dev_bleu, and dev_bleu_examples is 0. Set dev_bleu_examples to the number of development "
                "pairs to translate, or use selection=dev_loss."
            )
        evaluate, save = self.evaluate_every_steps, self.save_every_steps
        if self.selection.startswith("dev") and save and (not evaluate or evaluate % save):
            raise ValueError(
                f"selection is {self.selection}, evaluate_every_steps {evaluate or '0 (once an epoch)'} and "
                f"save_every_steps {save}. Set save_every_steps to 0, or make evaluate_every_steps a multiple of it."
            )
