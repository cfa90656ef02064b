"""The word-alignment recipe: every field that `finetuning/run.py` reads where `kind` is word_alignment.

Nothing is trained: links are read from the vectors of a model as it is, and held against links made by hand.
"""

from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import MISSING

from common.recipes import option
from finetuning.recipe import Published, check_ranges

SEED = "{seed}"


@dataclass
class AlignedPairs:
    """Sentences and their translations with links made by hand."""

    source_language: str = option(MISSING, "language of the source, whose words a gold link names first")
    target_language: str = option(MISSING, "language of the target")
    path: str | None = option(
        None, "folder in which the files below lie: a path, or an id (owner/name) that hub_root mirrors"
    )
    source: str = option(
        MISSING, "file of the source sentences, one a line, words between spaces; or of lines `source ||| target`"
    )
    target: str | None = option(None, "file of the target sentences; default: they stand in the file of the source")
    gold: str = option(MISSING, "file of the links made by hand")
    gold_format: Literal["auto", "alignv2", "pharaoh"] = option(
        "auto", "alignv2: `sentence i j S|P` a line; pharaoh: a line of `i-j` (sure) and `ipj` (possible) a sentence"
    )
    gold_base: int | None = option(
        None, "0 or 1, from which the file counts: words of pharaoh, sentences of alignv2; default: where it shows"
    )
    note: str | None = option(
        None, "what a reader must know where this is not the benchmark's own data; it becomes a warning of the results"
    )

    @property
    def name(self) -> str:
        """The pair as results name it."""
        return f"{self.source_language}-{self.target_language}"


@dataclass
class PublishedAlignment(Published):
    """Published AER; printed beside our figures of the same method and layer, never computed with."""

    method: str = option(MISSING, "method of `methods` that corresponds")
    layer: int = option(MISSING, "layer of the vectors")


@dataclass
class WordAlignmentRecipe:
    """Word alignment with the vectors of a model, by layer and method, against links made by hand."""

    model: str = option(
        MISSING,
        "checkpoint, a folder or a Hub id: an encoder of the zoo, or another like XLM-R; `{seed}` stands for each of "
        "`seeds`, as in runs/xlm_align-{seed}/model",
    )
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: that of the model")
    output_dir: str = option(MISSING, "folder of the results: results.{json,md,csv}, layers.png, one folder per seed")
    hub_root: str | None = option(
        None, "folder that mirrors the Hub (<hub_root>/<owner>/<name>); ids found there are read from there"
    )
    kind: Literal["word_alignment"] = option("word_alignment", "kind of task")
    task: str = option(MISSING, "name of the task in the results, such as word_alignment")
    pairs: list[AlignedPairs] = option([], "what is evaluated, each pair of languages by itself")
    methods: list[str] = option(
        ["ot"],
        "how links are read from vectors: ot, ot_itermax (XLM-Align), itermax, mutual (SimAlign), softmax "
        "(awesome-align); the first is the one whose scores are the results, others stand beside it",
    )
    options: dict[str, dict[str, Any]] = option(
        {}, "by method: its options, such as {ot: {sinkhorn_iterations: 3}}; default: the papers'"
    )
    encoding: Literal["joint", "separate"] = option(
        "separate", "separate: each sentence by itself, as SimAlign; joint: both in one input, as XLM-Align labels"
    )
    layer: int | None = option(
        None, "layer whose scores are the results, 0: embeddings; default: at two thirds of the layers, 8 of 12"
    )
    layers: list[int] = option([], "layers that are scored; default: all, embeddings included")
    batch_size: int = option(64, "pairs in a forward pass")
    precision: Literal["fp32", "bf16"] = option("fp32", "of the weights and the forward pass")
    name: str | None = option(None, "name of the model beside those of compare_with; default: that of its run")
    compare_with: dict[str, list[str]] = option(
        {},
        "by the name of another model: folders of results of this task, several are its seeds; comparison.{md,csv,png} "
        "then show AER over layers of all models",
    )
    seeds: list[int] = option(
        [1], "of the models that `{seed}` stands for; scores are reported by seed, with mean and standard deviation"
    )
    published: list[PublishedAlignment] = option([], "published figures to print beside ours")


def check_recipe(recipe: WordAlignmentRecipe) -> None:
    """Raises ValueError for values that cannot be run, and for fields that contradict each other."""
    from modeling.optimal_transport import METHODS

    check_ranges(
        recipe,
        ("batch_size", recipe.batch_size, recipe.batch_size > 0),
        ("layers", recipe.layers, all(layer >= 0 for layer in recipe.layers)),
    )
    if not recipe.pairs:
        raise ValueError("The recipe has no pairs of languages. There is nothing to align. Add one under `pairs:`.")
    names = [pair.name for pair in recipe.pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"The pair {twice[0]} is evaluated twice. A result has one score per pair of languages. Remove one, or "
            "evaluate it in another output_dir."
        )
    unknown = [method for method in (*recipe.methods, *recipe.options) if method not in METHODS]
    if unknown or not recipe.methods or len(set(recipe.methods)) < len(recipe.methods):
        raise ValueError(
            f"methods is {recipe.methods}, and options are of {list(recipe.options)}. Each method is scored once, by "
            f"its name. Give some of {', '.join(METHODS)}, as in methods=[ot, itermax]."
        )
    if unused := [method for method in recipe.options if method not in recipe.methods]:
        raise ValueError(
            f"options has some of {unused[0]}, and methods is {recipe.methods}. They would do nothing. Add the method, "
            "or leave them out."
        )
    if recipe.layer is not None and recipe.layers and recipe.layer not in recipe.layers:
        raise ValueError(
            f"layer is {recipe.layer}, and layers is {recipe.layers}. The layer that is reported has to be scored. Add "
            "it, or leave layers out to score all."
        )
    several = len(recipe.seeds) > 1
    if several and SEED not in recipe.model:
        raise ValueError(
            f"seeds is {recipe.seeds}, and model is {recipe.model}. Nothing is drawn at random here: every seed would "
            "have the same scores. Write {seed} where the model's folder names its own, or give one seed."
        )
