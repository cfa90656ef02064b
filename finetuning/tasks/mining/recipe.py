"""The mining recipe: every field that `finetuning/run.py` reads where `kind` is mining.

Nothing is trained: of two pools of sentences, few of which are translations of each other, those that are have to be
found by the vectors of a model as it is. BUCC is such a task.
"""

from dataclasses import dataclass
from typing import Literal

from omegaconf import MISSING

from finetuning.tasks.features.recipe import NamedPair
from finetuning.tasks.retrieval.recipe import PublishedSentences, SentenceRecipe
from zoo_core.recipes import option
from zoo_core.tables import Table


@dataclass
class PoolTable(Table):
    """The sentences of one language, of which few have a translation in the other one's."""

    id_column: str = option("id", "column of the names by which gold knows the sentences")
    text_column: str = option("text", "column of the sentences")


@dataclass
class GoldTable(Table):
    """Pairs of sentences that are translations of each other."""

    source_column: str = option(
        MISSING, "column of the source's id in its pool; where there are no pools, of the source's text"
    )
    target_column: str = option(MISSING, "column of the target's id, or text")


@dataclass
class Pools:
    """Two pools of sentences and the pairs in them; without pools of their own, those that the pairs make."""

    gold: GoldTable = option(GoldTable(), "the pairs that are to be found")
    source: PoolTable | None = option(
        None, "sentences of the source language; default: those of the gold pairs alone, which are far easier to mine"
    )
    target: PoolTable | None = option(None, "sentences of the target language; with `source`, or not at all")


@dataclass
class MiningPools(Pools, NamedPair):
    """Two pools that are mined; `{language}` in any text field stands for each of `languages`."""

    source_language: str = option(MISSING, "language of the source's sentences, such as de or '{language}'")
    target_language: str = option(MISSING, "language of the target's sentences")
    languages: list[str] = option(
        [], "what `{language}` stands for in paths, configs, columns and so on, of all its tables: a pair each"
    )
    dev: Pools | None = option(None, "pools of their own, on whose gold the threshold is fitted")
    note: str | None = option(
        None, "what a reader must know where these are not the benchmark's own pools; it becomes a warning"
    )


@dataclass
class MiningRecipe(SentenceRecipe):
    """Mining of translations with the vectors of a model, by layer."""

    main_score = "f1"
    kind: Literal["mining"] = option("mining", "kind of task")
    pairs: list[MiningPools] = option([], "what is evaluated, each pair of languages by itself")
    neighbors: int = option(
        4, "k of the margin: sentences of the other pool that a sentence's likeness is compared to", low=1
    )
    threshold: Literal["dev", "evaluated"] = option(
        "dev",
        "on which gold the margin from which on pairs count is fitted, for each pair and layer; evaluated: on the very "
        "gold that is scored, an upper bound",
    )
    dev_fraction: float = option(
        0.0,
        "share of both pools, gold pairs and others alike, drawn at random, that is kept apart as dev, where a pair "
        "has no pools for that",
        low=0,
        below=1,
    )
    published: list[PublishedSentences] = option([], "published figures to print beside ours")

    def check(self) -> None:
        super().check()
        for position, table in enumerate(self.pairs):
            for name, pools in ((f"pairs.{position}", table), (f"pairs.{position}.dev", table.dev)):
                if pools is not None and (pools.source is None) != (pools.target is None):
                    there, lacks = ("source", "target") if pools.target is None else ("target", "source")
                    raise ValueError(
                        f"{name} has a pool for the {there} and none for the {lacks}: its gold names sentences of "
                        f"both. Name the table of the other one as {name}.{lacks}, or neither, and the gold's columns "
                        "of text."
                    )
        self._check_threshold()

    def _check_threshold(self) -> None:
        """Raises ValueError where it is not told what a threshold is fitted on, and for what does nothing."""
        without = [position for position, table in enumerate(self.pairs) if table.dev is None]
        if self.threshold == "evaluated":
            unused = [f"dev_fraction={self.dev_fraction:g}"] if self.dev_fraction else []
            unused += [f"pairs.{position}.dev" for position, table in enumerate(self.pairs) if table.dev is not None]
            if unused:
                raise ValueError(
                    f"threshold is evaluated, and there is {unused[0]}: nothing would be fitted on it. Leave it out, "
                    "or use threshold=dev, whose figures are no upper bound."
                )
        elif without and not self.dev_fraction:
            raise ValueError(
                f"pairs.{without[0]} has no dev, and dev_fraction is 0. Name pairs.{without[0]}.dev, keep a part of "
                "the pools apart, as by dev_fraction=0.2, or say threshold=evaluated."
            )
        elif self.dev_fraction and not without:
            raise ValueError(f"dev_fraction is {self.dev_fraction:g}, and every pair has dev. Leave one out.")
