"""The word-alignment recipe: every field that `finetuning/run.py` reads where `kind` is word_alignment.

Word alignment links words by the vectors of an unchanged model, and compares the links with gold links, which people
made. Nothing is trained.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le
from omegaconf import MISSING

from finetuning.recipe import Published
from finetuning.tasks.features.recipe import FeatureRecipe, NamedPair
from zoo_core.recipes import Count, option
from zoo_core.tables import resolve_hub_path


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
class WordAlignmentRecipe(FeatureRecipe):
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

    def check(self) -> None:
        from modeling.optimal_transport import METHODS

        super().check()
        unknown = [method for method in self.methods if method not in METHODS]
        if unknown or not self.methods or len(set(self.methods)) < len(self.methods):
            raise ValueError(
                f"methods is {self.methods}. Use some of {', '.join(METHODS)}, each once, as in methods=[ot, itermax]."
            )
