"""Builds the translation model of a run from a checkpoint, and averages its checkpoints."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from transformers import AutoModelForSeq2SeqLM, set_seed

from crosslingual_zoo.finetuning.tasks.translation.recipe import TranslationRecipe
from crosslingual_zoo.modeling.checkpoints import auto_model_class, load_whole, without_padding
from crosslingual_zoo.modeling.encoder_decoder import selected_layers
from crosslingual_zoo.modeling.layer_states import check_finite
from crosslingual_zoo.modeling.modeling_veco import VecoForConditionalGeneration
from crosslingual_zoo.modeling.symmetrization import wide
from crosslingual_zoo.zoo_core.processes import main_first


def search_settings(recipe: TranslationRecipe, beams: int) -> dict[str, Any]:
    """Settings of `generate` for so many beams; greedy search knows no length penalty."""
    length_penalty = recipe.generation.length_penalty if beams > 1 else 1.0
    return {"num_beams": beams, "length_penalty": length_penalty}


def check_architecture(recipe: TranslationRecipe, config: Any) -> None:
    """Raises ValueError for a model that this kind of task cannot start from, or not with the recipe's fields."""
    layers = getattr(config, "num_hidden_layers", None)
    if layers is None or config.is_encoder_decoder and config.model_type != "veco":
        raise ValueError(
            f"{recipe.model} is of type {config.model_type}. Name an encoder, or a translation model of this project."
        )
    if not config.is_encoder_decoder:
        selected_layers(layers, recipe.decoder_layers, recipe.decoder_layer_selection or "last")
        return
    for name in ("decoder_layers", "tie_decoder", "decoder_layer_selection"):
        value = getattr(config, name, None)
        asked = getattr(recipe, name)
        if asked not in (None, value):
            raise ValueError(
                f"{name} is {asked}, and {recipe.model} already has a decoder ({name} {value}). Leave it out."
            )


def build_model(recipe: TranslationRecipe, path: str, config: Any, seed: int) -> torch.nn.Module:
    """The translation model of one seed: built from an encoder, or a translation model that is trained further.

    Its generation settings are those for the recipe's test sentences, also after it is saved.
    """
    set_seed(seed)
    training = recipe.training
    model_class = VecoForConditionalGeneration
    settings: dict[str, Any] = {"dtype": torch.float32}
    if training.dropout is not None:
        settings["hidden_dropout_prob"] = training.dropout
    if training.attention_dropout is not None:
        settings["attention_probs_dropout_prob"] = training.attention_dropout
    is_random = recipe.initialize == "random"
    with main_first():
        if config.model_type == model_class.config_class.model_type:
            model_class = auto_model_class(AutoModelForSeq2SeqLM, path, recipe.trust_remote_code)
        if not config.is_encoder_decoder:
            model = model_class.from_encoder(
                path,
                decoder_layers=recipe.decoder_layers,
                decoder_layer_selection=recipe.decoder_layer_selection or "last",
                tie_decoder=recipe.tie_decoder is not False,
                random=is_random,
                **settings,
            )
        elif is_random:
            model = model_class(model_class.config_class.from_pretrained(path, **settings))
        else:
            model = load_whole(AutoModelForSeq2SeqLM, path, path, recipe.trust_remote_code, **settings)
    check_finite(model, path)
    model.generation_config.update(**search_settings(recipe, recipe.generation.beams))
    return without_padding(model)


@torch.no_grad()
def average_weights(model: torch.nn.Module, folders: list[Path]) -> None:
    """Sets the weights of `model` to the mean of those in the folders; what is tied stays one tensor."""
    mean: dict[str, torch.Tensor] = {}
    for folder in folders:
        load_model(model, folder / "model.safetensors")
        for name, weight in model.named_parameters():
            # sums in double precision: the mean of n equal checkpoints is that checkpoint, bit by bit
            mean[name] = mean.get(name, 0) + wide(weight) / len(folders)
    for name, weight in model.named_parameters():
        weight.copy_(mean[name])
