"""The fields that recipes without training share: they evaluate the vectors of an unchanged model, layer by layer."""

from dataclasses import dataclass
from typing import Literal

from omegaconf import MISSING

from finetuning.recipe import INIT_FROM, OUTPUT_DIR, TaskRecipe
from zoo_core.recipes import HUB_ROOT, LARGEST_BATCH, LICENSES, SEEDS, TRUST_REMOTE_CODE, option

SEED = "{seed}"


class NamedPair:
    """A pair of languages with a name."""

    @property
    def name(self) -> str:
        """Returns the name of the pair in the results."""
        return f"{self.source_language}-{self.target_language}"


@dataclass
class FeatureRecipe(TaskRecipe):
    """Evaluation of a model's vectors, layer by layer, on pairs of languages."""

    model: str = option(
        MISSING,
        "folder or Hub id of the checkpoint: an encoder of the zoo, or another one such as XLM-R; `{seed}` is "
        "replaced by each of `seeds`, as in runs/xlm_align-{seed}/model",
    )
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: the model's")
    init_from: str | None = option(None, INIT_FROM)
    output_dir: str = option(
        OUTPUT_DIR,
        "folder of the results: results.{json,md,csv}, scores.png and one folder per seed; "
        "default: runs/<model>/<task>",
    )
    hub_root: str | None = option(None, HUB_ROOT)
    licenses: dict[str, str] = option({}, LICENSES)
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    kind: str = option(MISSING, "kind of task")
    task: str = option(MISSING, "name of the task in the results, such as word_alignment")
    layer: int | Literal["middle", "two_thirds"] | None = option(
        None,
        "layer whose scores are the main results; 0: embeddings; middle: the layer halfway up, 6 of 12 or 12 of 24; "
        "two_thirds: 8 of 12 or 16 of 24; default: the layer three fifths of the way up, 7 of 12 or 14 of 24",
    )
    layers: list[int] = option([], "layers to evaluate; default: all, with the embeddings")
    batch_size: int = option(64, "inputs per forward pass", low=1, high=LARGEST_BATCH)
    precision: Literal["fp32", "bf16"] = option("fp32", "precision of the weights and the forward pass")
    seeds: list[int] = option(
        [1],
        "seeds that replace `{seed}` in model; results have the score of each, the mean and the standard deviation",
        below=SEEDS,
    )

    @property
    def pair_names(self) -> list[str]:
        """Returns the names of the evaluated pairs in the results."""
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
                f"layer is {self.layer}, and layers is {self.layers}. Add it, or leave layers out to evaluate all."
            )
        if self.init_from and SEED in self.model:
            raise ValueError(
                f"model is {self.model}, with another model for each seed, and init_from is {self.init_from}, which "
                "was fine-tuned from one model. Leave init_from out, and set model=runs/xnli/seed-{seed}/model."
            )
        if len(self.seeds) > 1 and SEED not in self.model:
            raise ValueError(
                f"seeds is {self.seeds}, and model is {self.model}. Write {{seed}} in place of the seed in model, or "
                "give one seed."
            )
