"""The recipes of kinds that train nothing: word_alignment, retrieval and mining evaluate the vectors of a model.

Every layer and every pair of languages is evaluated by itself.
"""

from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le
from omegaconf import MISSING

from finetuning.recipe import INIT_FROM, Published, TaskRecipe
from finetuning.tasks.translation.recipe import EvaluationPairs
from zoo_core.recipes import BatchSize, Count, Fraction, Positive, Seed, option
from zoo_core.tables import Table, resolve_hub_path

SEED, PLACE = "{seed}", "{language}"
POOLINGS = {
    "mean": "mean of its states, without those of special tokens",
    "mean_with_special_tokens": "mean of its states, counting those of special tokens",
    "cls": "state of its first token, <s>",
}
Pooling = Literal["mean", "mean_with_special_tokens", "cls"]


class NamedPair:
    """A pair of languages with a name."""

    @property
    def name(self) -> str:
        """Returns the name of the pair in the results."""
        return f"{self.source_language}-{self.target_language}"


@dataclass
class VectorRecipe(TaskRecipe):
    """Evaluation of a model's vectors, layer by layer, on pairs of languages."""

    model: str = option(
        MISSING,
        "folder or Hub id of the checkpoint: an encoder of the zoo, or another one such as XLM-R; `{seed}` is "
        "replaced by each of `seeds`, as in runs/xlm_align-{seed}/model",
    )
    init_from: str | None = option(None, INIT_FROM)
    layer: Count | Literal["middle", "two_thirds"] | None = option(
        None,
        "layer whose scores are the main results; 0: embeddings; middle: the layer halfway up, 6 of 12 or 12 of 24; "
        "two_thirds: 8 of 12 or 16 of 24; default: the layer three fifths of the way up, 7 of 12 or 14 of 24",
    )
    layers: list[Count] = option([], "layers to evaluate; default: all, with the embeddings")
    batch_size: BatchSize = option(64, "inputs per forward pass")
    precision: Literal["fp32", "bf16"] = option("fp32", "precision of the weights and the forward pass")
    seeds: list[Seed] = option(
        [1], "seeds that replace `{seed}` in model; results have the score of each, the mean and the standard deviation"
    )
    published: list[Published] = option([], "published scores to print next to ours")

    @property
    def pair_names(self) -> list[str]:
        """Returns the names of the evaluated pairs in the results."""
        return [pair.name for pair in expanded(self.pairs)]

    def check(self) -> None:
        super().check()
        names = self.pair_names
        if not names or len(set(names)) < len(names):
            raise ValueError(f"pairs has the pairs of languages {names}. Name at least one, and each only once.")
        if self.init_from and SEED in self.model:
            raise ValueError(
                f"model is {self.model}, with another model for each seed, and init_from is {self.init_from}, which "
                "was fine-tuned from one model. Leave init_from out, and set model=runs/xnli/seed-{seed}/model."
            )
        if len(self.seeds) > 1 and SEED not in self.model:
            raise ValueError(
                f"seeds is {self.seeds}, and model is {self.model}. Write {{seed}} in place of the seed in model."
            )


@dataclass
class AlignedPairs(NamedPair):
    """Sentences and their translations with gold links."""

    source_language: str = option(MISSING, "language of the source, whose word comes first in a gold link")
    target_language: str = option(MISSING, "language of the target")
    path: str | None = option(None, "folder of the files below: a path, or an id (owner/name) that hub_root mirrors")
    source: str = option(
        MISSING, "file with one source sentence per line, words separated by blanks; or with pairs, `source ||| target`"
    )
    target: str | None = option(None, "file of the target sentences; default: the source file has them")
    gold: str = option(MISSING, "file of the gold links")
    gold_format: Literal["auto", "alignv2", "pharaoh"] = option(
        "auto",
        "alignv2: a line `sentence i j S|P` per link; pharaoh: a line of `i-j` (sure), `ipj` (possible) per sentence",
    )
    gold_base: Annotated[int, Ge(0), Le(1)] | None = option(
        None,
        "first number of the file, 0 or 1: of words in pharaoh, of sentences in alignv2; default: detected if possible",
    )
    sentences: Literal["all", "even", "odd"] = option(
        "all", "sentences to evaluate, counted from 0; tune on one half (odd) and report the other (even)"
    )
    note: str | None = option(None, "how the data differ from the benchmark's own; the results show it as a warning")

    def files(self, hub_root: str | None) -> list[Path]:
        """Returns the paths of the source file, the target file (if there is one) and the gold file."""
        folder = Path(resolve_hub_path(self.path, hub_root)) if self.path else Path()
        return [folder / name for name in (self.source, self.target, self.gold) if name is not None]


@dataclass
class PublishedAlignment(Published):
    """Published AER, printed next to ours of the same method and layer; it is never used in a computation."""

    method: str = option(MISSING, "method of `methods` that it corresponds to")
    layer: Count = option(MISSING, "layer of the vectors")


@dataclass
class WordAlignmentRecipe(VectorRecipe):
    """Word alignment with a model's vectors, by layer and method, compared with gold links."""

    main_score, task_type = "aer", "word-alignment"
    measures = "links between words, compared with people's; AER: share of wrong and missing links"
    kind: Literal["word_alignment"] = option("word_alignment", "kind of task")
    pairs: list[AlignedPairs] = option([], "pairs of languages to evaluate, each separately")
    methods: list[str] = option(
        ["ot_words"],
        "methods that link words: ot_words (ours), ot, ot_itermax (XLM-Align), itermax, mutual (SimAlign), softmax "
        "(awesome-align); the first gives the main results, and the results list the others too",
    )
    encoding: Literal["joint", "separate"] = option(
        "separate",
        "separate: each sentence in its own input, as in SimAlign; joint: both in one, as in XLM-Align's labeling",
    )
    published: list[PublishedAlignment] = option([], "published scores to print next to ours")

    @property
    def pair_names(self) -> list[str]:
        return [pair.name for pair in self.pairs]

    def check(self) -> None:
        from modeling.optimal_transport import METHODS

        super().check()
        unknown = [method for method in self.methods if method not in METHODS]
        if unknown or not self.methods or len(set(self.methods)) < len(self.methods):
            raise ValueError(
                f"methods is {self.methods}. Use some of {', '.join(METHODS)}, each once, as in methods=[ot, itermax]."
            )


@dataclass
class SentenceRecipe(VectorRecipe):
    """Evaluation of sentence vectors, layer by layer, on pairs of languages."""

    task_type = "sentence-similarity"
    max_length: Positive | None = option(
        None,
        "tokens of a sentence with special tokens; longer ones are cut, and the results count them; default: the "
        "model's maximum",
    )
    pooling: Pooling = option(
        "mean",
        "vector of a sentence: the mean of its states, without or with those of special tokens, or cls: the state of "
        "its first token, <s>",
    )


@dataclass
class RetrievalPairs(EvaluationPairs, NamedPair):
    """Sentences and their translations; `{language}` in any text field is replaced by each of `languages`."""

    source_language: str = option(MISSING, "language of the source column, such as de or '{language}'")
    target_language: str = option(MISSING, "language of the target column")
    languages: list[str] = option(
        [], "values of `{language}` in the text fields, also of `target`; each makes one pair of languages"
    )
    language_names: dict[str, str] = option(
        {},
        "value of `{language}` if it is not the language code, as in {sw: swh}; source_language and "
        "target_language always have the code",
    )


@dataclass
class RetrievalRecipe(SentenceRecipe):
    """Retrieval of translations with a model's vectors, layer by layer, in both directions."""

    main_score = "accuracy"
    measures = "finding the translation of a sentence among many"
    kind: Literal["retrieval"] = option("retrieval", "kind of task")
    pairs: list[RetrievalPairs] = option([], "pairs of languages to evaluate, each separately")

    def check(self) -> None:
        super().check()
        for position, table in enumerate(self.pairs):
            if table.target is None and (table.source_column == table.target_column or table.join_on is not None):
                raise ValueError(
                    f"pairs.{position} has no target, source_column {table.source_column}, target_column "
                    f"{table.target_column} and join_on {table.join_on}. Name two columns of one table, or the table "
                    "of the translations as `target`."
                )


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
    """Two pools of sentences and the gold pairs in them; by default, the pools are the sentences of the gold pairs."""

    gold: GoldTable = option(GoldTable(), "the pairs to find")
    source: PoolTable | None = option(
        None, "sentences of the source language; default: only those of the gold pairs, which are far easier to mine"
    )
    target: PoolTable | None = option(None, "sentences of the target language; required with `source`, and only then")


@dataclass
class MiningPools(Pools, NamedPair):
    """Pools of a pair of languages; `{language}` in any text field is replaced by each of `languages`."""

    source_language: str = option(MISSING, "language of the source sentences, such as de or '{language}'")
    target_language: str = option(MISSING, "language of the target sentences")
    languages: list[str] = option(
        [], "values of `{language}` in the text fields of all tables; each makes one pair of languages"
    )
    dev: Pools | None = option(None, "separate pools; the threshold is fitted on their gold pairs")
    note: str | None = option(None, "how the pools differ from the benchmark's own; the results show it as a warning")


@dataclass
class MiningRecipe(SentenceRecipe):
    """Mining of translations with a model's vectors, layer by layer."""

    main_score = "f1"
    measures = "finding translation pairs in two sets of sentences"
    kind: Literal["mining"] = option("mining", "kind of task")
    pairs: list[MiningPools] = option([], "pairs of languages to evaluate, each separately")
    dev_fraction: Fraction = option(
        0.0,
        "share of both pools to sample at random and hold out as dev, gold pairs and other sentences alike; for pairs "
        "of languages without `dev`",
    )

    def check(self) -> None:
        super().check()
        for position, table in enumerate(self.pairs):
            for name, pools in ((f"pairs.{position}", table), (f"pairs.{position}.dev", table.dev)):
                if pools is not None and (pools.source is None) != (pools.target is None):
                    raise ValueError(f"{name} has one of source and target. Set both, or leave both out.")
        without = [position for position, table in enumerate(self.pairs) if table.dev is None]
        if bool(without) != bool(self.dev_fraction):
            raise ValueError(
                f"dev_fraction is {self.dev_fraction:g}, and pairs without dev are {without}. Name dev in all pairs, "
                "or hold out a part of the pools, as in dev_fraction=0.2."
            )


def expanded(tables: list[Any]) -> list[Any]:
    """Returns a table for each pair of languages, with the language in place of `{language}`."""
    found = []
    for position, table in enumerate(tables):
        is_open = _filled(table, "") != table
        if is_open != bool(table.languages):
            raise ValueError(
                f"pairs.{position}.languages is {table.languages}. Write {PLACE} in path, config or a column, and list "
                f"its values, as in pairs.{position}.languages=[de, fr]."
            )
        found += [_of_language(table, language) for language in table.languages] if is_open else [table]
    return found


def _of_language(table: Any, language: str) -> Any:
    """Returns the table of one language: its code in language fields, and elsewhere its entry in `language_names`."""
    named = _filled(table, getattr(table, "language_names", {}).get(language, language))
    languages = {name: getattr(table, name).replace(PLACE, language) for name in ("source_language", "target_language")}
    return replace(named, **languages)


def _filled(table: Any, language: str) -> Any:
    """Returns the table, with its inner tables, with the language in place of `{language}`."""
    texts = {name: value for name, value in vars(table).items() if isinstance(value, str)}
    changes: dict[str, Any] = {name: text.replace(PLACE, language) for name, text in texts.items() if PLACE in text}
    within = {name: value for name, value in vars(table).items() if is_dataclass(value)}
    return replace(table, **changes, **{name: _filled(value, language) for name, value in within.items()})
