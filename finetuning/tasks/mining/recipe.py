"""The mining recipe: every field that `finetuning/run.py` reads where `kind` is mining.

Mining finds the sentences of two pools that are translations of each other, with the vectors of an unchanged model. Few
sentences have a translation in the other pool. Nothing is trained. BUCC is such a task.
"""

from dataclasses import dataclass
from typing import Literal

from omegaconf import MISSING

from finetuning.recipe import Published
from finetuning.tasks.features.recipe import NamedPair
from finetuning.tasks.retrieval.recipe import SentenceRecipe
from zoo_core.recipes import Fraction, option
from zoo_core.tables import Table


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
    """Two pools to mine; `{language}` in any text field is replaced by each of `languages`."""

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
    published: list[Published] = option([], "published scores to print next to ours")

    def check(self) -> None:
        super().check()
        for position, table in enumerate(self.pairs):
            for name, pools in ((f"pairs.{position}", table), (f"pairs.{position}.dev", table.dev)):
                if pools is not None and (pools.source is None) != (pools.target is None):
                    there, lacks = ("source", "target") if pools.target is None else ("target", "source")
                    raise ValueError(
                        f"{name} has a pool for the {there} and none for the {lacks}. Set {name}.{lacks} too. Or leave "
                        "both out, and name the gold table's columns of text."
                    )
        without = [position for position, table in enumerate(self.pairs) if table.dev is None]
        if without and not self.dev_fraction:
            raise ValueError(
                f"pairs.{without[0]} has no dev, and dev_fraction is 0. Set pairs.{without[0]}.dev, or hold out a part "
                "of the pools, as in dev_fraction=0.2."
            )
        if self.dev_fraction and not without:
            raise ValueError(f"dev_fraction is {self.dev_fraction:g}, and every pair has dev. Leave one out.")
