"""The translation recipe: every field that `finetuning/run.py` reads where `kind` is translation.

A recipe is a YAML file of these fields; `key=value` on the command line overrides one of them (`decoder_layers=6`).
Reading, checking and printing is done by `zoo_core.recipes`.
"""

from dataclasses import dataclass, field
from typing import Literal

from omegaconf import MISSING

from finetuning.recipe import OUTPUT_DIR, Hyperparameters, PublishedRow, TrainedRecipe
from zoo_core.recipes import MOST_WORKERS, PUSH_TO_HUB, SEEDS, TRACKER, TRUST_REMOTE_CODE, option
from zoo_core.tables import Table


@dataclass
class TargetTable(Table):
    """Translations that have a table of their own."""

    split: str | None = option(None, "split of the dataset; default: that of the table of the sources")


@dataclass
class PairTable(Table):
    """Sentences and their translations: two columns of one table, or one column of each of two tables."""

    source_column: str = option(MISSING, "column of the text to translate; translation.en reaches into a struct")
    target_column: str = option(MISSING, "column of the translation, in `target` where the target has its own table")
    target: TargetTable | None = option(
        None, "table of the translations, where they have their own: aligned row by row, or joined on `join_on`"
    )
    join_on: str | None = option(None, "column of ids that both tables have; rows with the same id are a pair")
    source_language: str | None = option(None, "language of the source column; default: the recipe's")
    target_language: str | None = option(None, "language of the target column; default: the recipe's")


@dataclass
class TrainingPairs(PairTable):
    """Pairs to train on."""

    source_mask_probability: float = option(
        0.0,
        "share of the source's tokens that are masked, anew in every epoch (80% <mask>, 10% random, 10% kept)",
        low=0,
        below=1,
    )
    predict: Literal["all", "masked"] = option(
        "all", "masked: the target column is the source column, and only its masked tokens are predicted"
    )


@dataclass
class EvaluationPairs(PairTable):
    """Pairs to translate and score."""

    split: str = option("test", "evaluated split; nothing is ever selected on it")
    note: str | None = option(
        None, "what a reader must know where this is not the benchmark's own test; it becomes a warning of the results"
    )


@dataclass
class TranslationTraining(Hyperparameters):
    """Hyperparameters."""

    max_tokens: int = option(
        4096,
        "size of a step, padding included: pairs times the longest side among them, over all processes and "
        "micro-batches; pairs of alike length are together",
        low=1,
    )
    layerwise_decay: float = option(
        1.0,
        "d: encoder layer i of n (from 0) learns at d^(n-i) of the rate, a decoder layer as the encoder layer that it "
        "was made of, the embeddings at d^(n+1), the rest of the LM head at 1",
        above=0,
        high=1,
    )
    epochs: float = option(10.0, "passes over the training pairs", low=0, high=10**6)
    schedule: Literal["linear", "inverse_sqrt", "constant", "cosine"] = option("linear", "after the warm-up")
    betas: list[float] = option([0.9, 0.98], "AdamW's beta1 and beta2", low=0, below=1)
    epsilon: float = option(1e-8, "AdamW's epsilon", above=0)
    label_smoothing: float = option(
        0.1, "share of the probability that is spread over all tokens of the vocabulary", low=0, below=1
    )
    dropout: float | None = option(None, "dropout of the hidden states; default: the model's own", low=0, below=1)
    attention_dropout: float | None = option(
        None, "dropout of the attention weights; default: the model's own", low=0, below=1
    )


@dataclass
class Generation:
    """How the test sentences are translated."""

    beams: int = option(5, "hypotheses that beam search keeps; 1: greedy", low=1, high=1024)
    length_penalty: float = option(
        1.0, "a hypothesis' log-probability is divided by its length to this power; not with 1 beam"
    )
    max_tokens: int = option(2048, "size of a batch of sources, padding included, per process", low=1)


@dataclass
class PublishedTranslation(PublishedRow):
    """Published BLEU by pair."""

    sacrebleu: dict[str, float] = option({}, "sacreBLEU of each pair, such as en-de")
    bleu: dict[str, float] = option({}, "tokenized case-insensitive BLEU (multi-bleu.perl) of each pair")


@dataclass
class TranslationRecipe(TrainedRecipe):
    """Fine-tuning of an encoder, or of a translation model, on translation pairs."""

    main_score, task_type = "sacrebleu", "translation"
    model: str = option(
        MISSING,
        "checkpoint to start from, a folder or a Hub id: an encoder (VECO, XLM-R, another of the zoo), from which the "
        "translation model is built, or a translation model, which is trained further",
    )
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: that of the model")
    output_dir: str = option(OUTPUT_DIR, "folder of the results: results.{json,md,csv}, bleu.png, one folder per seed")
    hub_root: str | None = option(
        None, "folder that mirrors the Hub (<hub_root>/<owner>/<name>); ids found there are read from there"
    )
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    kind: Literal["translation"] = option("translation", "kind of task")
    task: str = option(MISSING, "name of the task in the results, such as wmt14")
    source_language: str = option(MISSING, "language that is translated")
    target_language: str = option(MISSING, "language that it is translated into")

    initialize: Literal["pretrained", "random"] = option(
        "pretrained", "random: the same architecture and tokenizer, all weights drawn anew from each seed"
    )
    decoder_layers: int | None = option(None, "layers of the decoder; default: as many as the encoder has", low=1)
    decoder_layer_selection: Literal["last", "first"] | None = option(
        None, "which of the encoder's layers the decoder is made from; default: the last"
    )
    tie_decoder: bool | None = option(
        None,
        "the decoder shares self-attention and feed-forward with the encoder layers it was made from; default: true. "
        "A translation model that is trained further has its decoder: these three can only confirm it",
    )

    train: list[TrainingPairs] = option([], "training pairs; several tables are mixed")
    dev: list[PairTable] = option([], "development pairs: loss, and BLEU of the first pair's sentences")
    test: list[EvaluationPairs] = option([], "what is evaluated: one table a language pair")
    max_source_length: int = option(128, "tokens of a source, special tokens included", low=4)
    max_target_length: int = option(128, "tokens of a target, special tokens included", low=4)
    too_long: Literal["drop", "cut"] = option(
        "drop", "what happens to longer training pairs; evaluated ones are always cut; all are counted"
    )
    max_train_examples: int = option(0, "training pairs used, drawn at random; 0: all")
    max_test_examples: int = option(0, "evaluated pairs of each table, drawn at random; 0: all")

    training: TranslationTraining = field(default_factory=TranslationTraining)
    evaluate_every_steps: int = option(0, "updates between evaluations on `dev`; 0: once an epoch")
    save_every_steps: int = option(0, "updates between checkpoints; 0: as evaluate_every_steps")
    max_dev_examples: int = option(1000, "development pairs of each table for the loss, drawn at random; 0: all")
    dev_bleu_examples: int = option(0, "of these, pairs that are translated for the curve of BLEU over steps; 0: none")
    dev_beams: int = option(1, "hypotheses of beam search on dev; 1: greedy, several times faster", low=1, high=1024)
    selection: Literal["last", "dev_loss", "dev_bleu", "average"] = option(
        "last",
        "which weights are evaluated: the last; those of the checkpoint with the best loss or BLEU on dev; or the mean "
        "of the last `average_checkpoints`",
    )
    average_checkpoints: int = option(10, "checkpoints in the mean of `selection: average`", low=1)
    generation: Generation = field(default_factory=Generation)
    bleu_tokenizer: Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"] = option(
        "13a", "sacreBLEU's tokenizer of the target language; 13a: its default"
    )
    seeds: list[int] = option(
        [1], "one run each; scores are reported by seed, with mean and standard deviation", below=SEEDS
    )
    num_workers: int = option(0, "data-loading processes per training process", high=MOST_WORKERS)
    save_models: bool = option(True, "keep each seed's translation model, in seed-N/model")
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = option(None, TRACKER)
    push_to_hub: str | None = option(None, PUSH_TO_HUB)
    published: PublishedTranslation | None = option(None, "published figures to print beside ours")

    @property
    def max_length(self) -> int:
        """Positions that the model must have."""
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
                "selection is dev_bleu, and dev_bleu_examples is 0: no development pair is translated. Set "
                "dev_bleu_examples, or use selection=dev_loss."
            )
        evaluate, save = self.evaluate_every_steps, self.save_every_steps
        if self.selection.startswith("dev") and save and (not evaluate or evaluate % save):
            raise ValueError(
                f"selection is {self.selection}, evaluate_every_steps {evaluate or '0 (once an epoch)'} and "
                f"save_every_steps {save}. Set save_every_steps to 0, or make evaluate_every_steps a multiple of it."
            )
