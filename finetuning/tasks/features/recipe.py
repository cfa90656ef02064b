"""What recipes have in common that train nothing: a model's vectors, as they are, are evaluated by layer."""

from dataclasses import dataclass
from typing import Literal

from omegaconf import MISSING

from finetuning.recipe import INIT_FROM, OUTPUT_DIR, TaskRecipe
from zoo_core.recipes import LARGEST_BATCH, SEEDS, TRUST_REMOTE_CODE, option

SEED = "{seed}"


class NamedPair:
    """A pair of languages with a name, of whatever is evaluated on it."""

    @property
    def name(self) -> str:
        """The pair as results name it."""
        return f"{self.source_language}-{self.target_language}"


@dataclass
class FeatureRecipe(TaskRecipe):
    """Evaluation of the vectors of a model, by layer, on pairs of languages."""

    model: str = option(
        MISSING,
        "checkpoint, a folder or a Hub id: an encoder of the zoo, or another like XLM-R; `{seed}` stands for each of "
        "`seeds`, as in runs/xlm_align-{seed}/model",
    )
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: that of the model")
    init_from: str | None = option(None, INIT_FROM)
    output_dir: str = option(
        OUTPUT_DIR,
        "folder of the results: results.{json,md,csv}, layers.png or scores.png, one folder per seed",
    )
    hub_root: str | None = option(
        None, "folder that mirrors the Hub (<hub_root>/<owner>/<name>); ids found there are read from there"
    )
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    kind: str = option(MISSING, "kind of task")
    task: str = option(MISSING, "name of the task in the results, such as word_alignment")
    layer: int | Literal["middle"] | None = option(
        None,
        "layer whose scores are the results, 0: embeddings; middle: half of the layers, 6 of 12 and 12 of 24; default: "
        "two thirds of the layers, 8 of 12",
    )
    layers: list[int] = option([], "layers that are scored; default: all, embeddings included")
    batch_size: int = option(64, "inputs in a forward pass", low=1, high=LARGEST_BATCH)
    precision: Literal["fp32", "bf16"] = option("fp32", "of the weights and the forward pass")
    name: str | None = option(None, "name of the model beside those of compare_with; default: that of its run")
    compare_with: dict[str, list[str]] = option(
        {},
        "by the name of another model: folders of results of this task, several are its seeds; comparison.{md,csv,png} "
        "then show the scores over layers of all models",
    )
    seeds: list[int] = option(
        [1],
        "of the models that `{seed}` stands for; scores are reported by seed, with mean and standard deviation",
        below=SEEDS,
    )

    @property
    def pair_names(self) -> list[str]:
        """The evaluated pairs of languages, as results name them."""
        return [pair.name for pair in self.pairs]

    def check(self) -> None:
        super().check()
        if not self.pairs:
            raise ValueError("The recipe has no pairs of languages. Add one under `pairs:`.")
        names = self.pair_names
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(
                f"The pair {twice[0]} is evaluated twice. Remove one, or evaluate it in another output_dir."
            )
        if isinstance(self.layer, int) and self.layers and self.layer not in self.layers:
            raise ValueError(
                f"layer is {self.layer}, and layers is {self.layers}. Add it, or leave layers out to score all."
            )
        if self.init_from and SEED in self.model:
            raise ValueError(
                f"model is {self.model}, and init_from is {self.init_from}: a run is fine-tuned from one model, and "
                "here each seed has another. Name the fine-tuned models by model=runs/xnli/seed-{seed}/model."
            )
        if len(self.seeds) > 1 and SEED not in self.model:
            raise ValueError(
                f"seeds is {self.seeds}, and model is {self.model}. Write {{seed}} where the model's folder names its "
                "own, or give one seed."
            )
