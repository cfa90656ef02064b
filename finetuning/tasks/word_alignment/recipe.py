"""The word-alignment recipe: every field that `finetuning/run.py` reads where `kind` is word_alignment.

Nothing is trained: links are read from the vectors of a model as it is, and held against links made by hand.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import MISSING

from finetuning.recipe import Published
from finetuning.tasks.features.recipe import FeatureRecipe, NamedPair
from zoo_core.recipes import option
from zoo_core.tables import resolve_hub_path


@dataclass
class AlignedPairs(NamedPair):
    """Sentences and their translations with links made by hand."""

    source_language: str = option(MISSING, "language of the source, whose words a gold link names first")
    target_language: str = option(MISSING, "language of the target")
    path: str | None = option(
        None, "folder in which the files below lie: a path, or an id (owner/name) that hub_root mirrors"
    )
    source: str = option(
        MISSING, "file of the source sentences, one a line, words between blanks; or of pairs, by ` ||| ` or a tab"
    )
    target: str | None = option(None, "file of the target sentences; default: they stand in the file of the source")
    gold: str = option(MISSING, "file of the links made by hand")
    gold_format: Literal["auto", "alignv2", "pharaoh"] = option(
        "auto", "alignv2: `sentence i j S|P` a line; pharaoh: a line of `i-j` (sure) and `ipj` (possible) a sentence"
    )
    gold_base: int | None = option(
        None,
        "0 or 1, from which the file counts: words of pharaoh, sentences of alignv2; default: where it shows",
        high=1,
    )
    sentences: Literal["all", "even", "odd"] = option(
        "all", "which are scored, counted from 0: choose by one half (odd) and report the other (even)"
    )
    note: str | None = option(
        None, "what a reader must know where this is not the benchmark's own data; it becomes a warning of the results"
    )

    def files(self, hub_root: str | None) -> list[Path]:
        """Where the files of source, target (if it has one) and gold are, or should be."""
        folder = Path(resolve_hub_path(self.path, hub_root)) if self.path else Path()
        return [folder / name for name in (self.source, self.target, self.gold) if name is not None]


@dataclass
class PublishedAlignment(Published):
    """Published AER; printed beside our figures of the same method and layer, never computed with."""

    method: str = option(MISSING, "method of `methods` that corresponds")
    layer: int = option(MISSING, "layer of the vectors")


@dataclass
class WordAlignmentRecipe(FeatureRecipe):
    """Word alignment with the vectors of a model, by layer and method, against links made by hand."""

    main_score, task_type = "aer", "word-alignment"
    kind: Literal["word_alignment"] = option("word_alignment", "kind of task")
    pairs: list[AlignedPairs] = option([], "what is evaluated, each pair of languages by itself")
    methods: list[str] = option(
        ["ot_words"],
        "how links are read from vectors: ot_words (ours), ot, ot_itermax (XLM-Align), itermax, mutual (SimAlign), "
        "softmax (awesome-align); the first is the one whose scores are the results, others stand beside it",
    )
    options: dict[str, dict[str, Any]] = option(
        {}, "by method: its options, such as {ot: {sinkhorn_iterations: 3}}; default: ours and the papers'"
    )
    encoding: Literal["joint", "separate"] = option(
        "separate", "separate: each sentence by itself, as SimAlign; joint: both in one input, as XLM-Align labels"
    )
    published: list[PublishedAlignment] = option([], "published figures to print beside ours")

    def check(self) -> None:
        from modeling.optimal_transport import METHODS

        super().check()
        unknown = [method for method in (*self.methods, *self.options) if method not in METHODS]
        if unknown or not self.methods or len(set(self.methods)) < len(self.methods):
            raise ValueError(
                f"methods is {self.methods}, and options are of {list(self.options)}. Give some of "
                f"{', '.join(METHODS)}, as in methods=[ot, itermax]."
            )
        if unused := [method for method in self.options if method not in self.methods]:
            raise ValueError(
                f"options has some of {unused[0]}, and methods is {self.methods}. Add the method, or leave them out."
            )
