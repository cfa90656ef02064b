"""The recipes of kinds that train nothing: word_alignment, retrieval and mining evaluate the vectors of a model.

Every layer and every pair of languages is evaluated by itself.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from omegaconf import MISSING

from crosslingual_zoo.finetuning.data.rows import filled
from crosslingual_zoo.finetuning.recipe import NOTE, Published, TaskRecipe
from crosslingual_zoo.finetuning.tasks.translation.recipe import EvaluationPairs
from crosslingual_zoo.zoo_core.recipes import BatchSize, Count, Fraction, Positive, option
from crosslingual_zoo.zoo_core.tables import Table, resolve_hub_path

Method = Literal["ot_words", "ot", "ot_itermax", "itermax", "mutual", "softmax"]  # of modeling/optimal_transport.py
POOLINGS = {
    "mean": "mean of its states, without those of special tokens",
    "mean_with_special_tokens": "mean of its states, counting those of special tokens",
    "cls": "state of its first token, <s>",
}


@dataclass
class LanguagePairs:
    """Pairs of languages: `{language}` in any text field is replaced by each of `languages`, if there are any."""

    source_language: str = option(MISSING, "language of the source, such as de or '{language}'; of links, the first")
    target_language: str = option(MISSING, "language of the target")
    note: str | None = option(None, NOTE)
    languages: list[str] = option([], "values of `{language}` in all tables; each makes one pair of languages")
    language_names: dict[str, str] = option({}, "value of `{language}` in tables if it is not the code: {sw: swh}")

    @property
    def name(self) -> str:
        """Returns the name of the pair in the results."""
        return f"{self.source_language}-{self.target_language}"


@dataclass
class VectorRecipe(TaskRecipe):
    """Evaluation of a model's vectors, layer by layer."""

    layer: Count | Literal["middle", "two_thirds"] | None = option(
        None, "layer of the main results, from 0, the embeddings; default: three fifths of the way up, 7 of 12"
    )
    layers: list[Count] = option([], "layers to evaluate; default: all, with the embeddings")
    batch_size: BatchSize = option(64, "inputs per forward pass")
    precision: Literal["fp32", "bf16"] = option("fp32", "precision of the weights and the forward pass")
    published: list[Published] = option([], "published scores to print next to ours")

    @property
    def references(self) -> list[dict[str, Any]]:
        return [asdict(item) for item in self.published]

    def describe(self) -> dict[str, Any]:
        hyperparameters = {"batch_size": self.batch_size, "precision": self.precision}
        return {"setting": "feature", "hyperparameters": hyperparameters}

    def check(self) -> None:
        super().check()
        names = [pair.name for pair in expanded(self.pairs)]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"pairs has the pairs of languages {names}. Name at least one, and each only once.")


@dataclass
class AlignedPairs(LanguagePairs):
    """Sentences and their translations with gold links."""

    path: str | None = option(None, "folder of the files below: a path, or an id (owner/name) that hub_root mirrors")
    source: str = option(MISSING, "file of source sentences, words separated by blanks; or of `source ||| target`")
    target: str | None = option(None, "file of the target sentences; default: the source file has them")
    gold: str = option(MISSING, "file of the gold links")
    gold_format: Literal["auto", "alignv2", "pharaoh"] = option(
        "auto", "alignv2: lines of `sentence i j S|P`; pharaoh: a line of `i-j` (sure) and `ipj` (possible) a sentence"
    )
    gold_base: Annotated[int, Ge(0), Le(1)] | None = option(
        None, "first number of words (pharaoh) or sentences (alignv2), 0 or 1; default: detected if possible"
    )
    sentences: Literal["all", "even", "odd"] = option(
        "all", "sentences to evaluate, counted from 0; tune on one half (odd) and report the other (even)"
    )

    def files(self, hub_root: str | None) -> list[Path]:
        """Returns the paths of the source file, the target file (if there is one) and the gold file."""
        folder = Path(resolve_hub_path(self.path, hub_root)) if self.path else Path()
        return [folder / name for name in (self.source, self.target, self.gold) if name is not None]


@dataclass
class PublishedAlignment(Published):
    """Published AER of one of our methods and layers; it is never used in a computation."""

    method: str = option(MISSING, "method of `methods` that it corresponds to")
    layer: Count = option(MISSING, "layer of the vectors")


@dataclass
class WordAlignmentRecipe(VectorRecipe):
    """Word alignment with a model's vectors, by layer and method, compared with gold links."""

    task_class = "vectors.word_alignment:WordAlignmentTask"
    main_score = "aer"
    is_higher_better = False
    metrics = ("aer", "precision", "recall", "f1")
    notes = (
        "aer: share of wrong and missing links",
        "guessing: links by position, each source word with the word at the same share of the target",
    )
    task_type = "word-alignment"
    measures = "links between words, compared with people's; AER: share of wrong and missing links"
    kind: Literal["word_alignment"] = option("word_alignment", "kind of task")
    pairs: list[AlignedPairs] = option([], "pairs of languages to evaluate, each separately")
    methods: Annotated[list[Method], Len(1)] = option(["ot_words"], "methods, the main one first; mutual: SimAlign's")
    published: list[PublishedAlignment] = option([], "published scores to print next to ours")


@dataclass
class SentenceRecipe(VectorRecipe):
    """Evaluation of sentence vectors, layer by layer, on pairs of languages."""

    task_type = "sentence-similarity"
    max_length: Positive | None = option(None, "tokens of a sentence; longer ones are cut; default: the model's limit")
    pooling: Literal["mean", "mean_with_special_tokens", "cls"] = option(
        "mean", "vector of a sentence: the mean of its states, without or with special tokens, or the state of <s>"
    )

    @property
    def longest_input(self) -> int | None:
        return self.max_length


@dataclass
class RetrievalPairs(LanguagePairs, EvaluationPairs):
    """Sentences and their translations; `{language}` in any text field is replaced by each of `languages`."""


@dataclass
class RetrievalRecipe(SentenceRecipe):
    """Retrieval of translations with a model's vectors, layer by layer, in both directions."""

    task_class = "vectors.retrieval:RetrievalTask"
    main_score = "accuracy"
    notes = ("accuracy: share of sentences whose nearest one is the translation, mean of both directions",)
    measures = "finding the translation of a sentence among many"
    kind: Literal["retrieval"] = option("retrieval", "kind of task")
    pairs: list[RetrievalPairs] = option([], "pairs of languages to evaluate, each separately")


@dataclass
class PoolTable(Table):
    """The sentences of one language, few of which have a translation in the other pool."""

    id_column: str = option("id", "column of the sentence ids that the gold pairs use")
    text_column: str = option("text", "column of the sentences")


@dataclass
class GoldTable(Table):
    """Pairs of sentences that are translations of each other."""

    source_column: str = option(MISSING, "column of the source sentence's id in its pool; without pools, of its text")
    target_column: str = option(MISSING, "column of the target sentence's id; without pools, of its text")


@dataclass
class Pools:
    """Two pools of sentences and the gold pairs in them."""

    gold: GoldTable = option(GoldTable(), "the pairs to find")
    source: PoolTable | None = option(None, "source sentences; default: those of the gold pairs, far easier to mine")
    target: PoolTable | None = option(None, "target sentences; default: as of source")


@dataclass
class MiningPools(LanguagePairs, Pools):
    """Pools of a pair of languages; `{language}` in any text field is replaced by each of `languages`."""

    dev: Pools | None = option(None, "separate pools; the threshold is fitted on their gold pairs")


@dataclass
class MiningRecipe(SentenceRecipe):
    """Mining of translations with a model's vectors, layer by layer."""

    task_class = "vectors.mining:MiningTask"
    main_score = "f1"
    metrics = ("f1", "precision", "recall")
    notes = ("threshold: the best for F1 on dev, by pair of languages and layer",)
    measures = "finding translation pairs in two sets of sentences"
    kind: Literal["mining"] = option("mining", "kind of task")
    pairs: list[MiningPools] = option([], "pairs of languages to evaluate, each separately")
    dev_fraction: Fraction = option(0.0, "share of both pools to hold out at random as dev, for pairs without `dev`")


def expanded(pairs: list[Any]) -> list[Any]:
    """Returns a table for each pair of languages, with the language in place of `{language}`."""
    tables = []
    for pair in pairs:
        if pair.languages:
            tables += [filled(pair, language) for language in pair.languages]
        else:
            tables.append(pair)
    return tables
