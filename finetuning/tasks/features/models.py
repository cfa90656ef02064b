"""Models whose vectors are evaluated as they are, one a seed: which, at which layers, and their records."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import AutoModel

from finetuning.checkpoints import describe_start, load_pretrained
from finetuning.run_folder import RunFolder
from finetuning.seeds import Predictions, finish_seed, load_metric
from finetuning.tasks.features.recipe import SEED, FeatureRecipe

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class SeedModel:
    """A model to read vectors from, before its weights are loaded."""

    path: str
    config: Any
    tokenizer: Any
    identity: dict[str, Any]


def describe_models(recipe: FeatureRecipe) -> dict[int, SeedModel]:
    """The model of each seed: one for all, or that for which `{seed}` stands."""
    models = {}
    for seed in recipe.seeds:
        own = replace(recipe, model=recipe.model.replace(SEED, str(seed)))
        models[seed] = SeedModel(*describe_start(own, getattr(recipe, "max_length", None)))
    depths = {seed: model.config.num_hidden_layers for seed, model in models.items()}
    first = depths[recipe.seeds[0]]
    if len(set(depths.values())) > 1:
        raise ValueError(
            f"The models of seeds {list(depths)} have {list(depths.values())} layers. Evaluate each kind in an "
            "output_dir of its own, and bring them together by compare_with."
        )
    for field, layers in (
        ("layer", [recipe.layer] if isinstance(recipe.layer, int) else []),
        ("layers", recipe.layers),
    ):
        if beyond := [layer for layer in layers if not 0 <= layer <= first]:
            raise ValueError(
                f"{field} has {beyond[0]}, and {recipe.model} has {first} layers. Give 0 (the embeddings) to {first}."
            )
    return models


def layer_protocol(recipe: FeatureRecipe, depth: int) -> dict[str, Any]:
    """Which layers of a model of `depth` layers are scored, and which one is reported, for the protocol."""
    relative = {None: (round(2 * depth / 3), "two thirds of the layers"), "middle": (depth // 2, "the middle layer")}
    layer, rule = relative.get(recipe.layer, (recipe.layer, "named in the recipe"))
    layers = sorted(set(recipe.layers)) or list(range(depth + 1))
    if layer not in layers:
        raise ValueError(
            f"layers is {recipe.layers}, and the layer that is reported is {layer} of {depth} ({rule}). Add it, or "
            "name another one by `layer`."
        )
    return {
        "layer": layer,
        "layers": layers,
        "depth": depth,
        "selection": {
            "rule": rule,
            "data": None,  # no layer is ever chosen by the scores
        },
    }


def load_encoder(recipe: FeatureRecipe, model: SeedModel) -> Any:
    """The encoder of one seed's model on this process' device. Raises ValueError for weights that cannot be read."""
    with PartialState().main_process_first():
        encoder = load_pretrained(
            AutoModel,
            model.path,
            model.identity["folder"],
            recipe.trust_remote_code,
            dtype=DTYPES[recipe.precision],
        )
    return encoder.to(PartialState().device)


def record_seed(
    seed: int,
    model: SeedModel,
    encoder: Any,
    folder: Path,
    metric: str,
    evaluate: Callable[[], tuple[dict[str, Any], Predictions]],
) -> dict[str, Any]:
    """What `evaluate` finds, and whose it is; left as scores.json, beside predictions, in the folder of the seed.

    `evaluate` uses `metric`, of finetuning/metrics. The main process does it; others wait. Its ValueError is raised in
    all of them.
    """
    state = PartialState()
    load_metric(metric)  # here, where all processes are: they wait for each other when one is loaded
    record: dict[str, Any] = {}
    failure: list[str | None] = [None]
    if state.is_main_process:
        try:
            found, predictions = evaluate()
            record = {
                "seed": seed,
                "model": model.identity,
                "parameters": sum(parameter.numel() for parameter in encoder.parameters()),
                **found,
            }
            finish_seed(folder, record, predictions)
        except ValueError as error:
            failure = [str(error)]
    broadcast_object_list(failure)
    if failure[0] is not None:  # in every process, or the others would go on as if there were scores
        raise ValueError(failure[0])
    return record


def identity_of(recipe: FeatureRecipe, models: dict[int, SeedModel]) -> dict[str, Any]:
    """What run.json says of the model; of a model a seed, each seed's own record has the fingerprint."""
    identity = next(iter(models.values())).identity
    return {**identity, "folder": recipe.model, "fingerprint": None} if SEED in recipe.model else identity


def check_finished(folder: RunFolder, models: dict[int, SeedModel]) -> None:
    """Raises ValueError where a finished seed was scored with other weights than its model has now."""
    for seed, model in models.items():
        then = (folder.finished(seed) or {}).get("model", model.identity)["fingerprint"]
        now = model.identity["fingerprint"]
        if then != now:
            raise ValueError(
                f"The weights of {model.identity['folder']} have changed since seed {seed} was scored in "
                f"{folder.path}: {then[:15]} -> {now[:15]}. Restore the model, or name another folder."
            )


def span(layers: list[int]) -> str:
    """`0 to 12`, or `0, 8` where some between are left out."""
    return f"{layers[0]} to {layers[-1]}" if layers == list(range(layers[0], layers[-1] + 1)) else str(layers)[1:-1]
