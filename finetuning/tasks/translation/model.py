"""Builds the translation model of a run from a checkpoint, and averages its checkpoints."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig, set_seed

from finetuning.models import find_model, readable_errors
from finetuning.tasks.translation.recipe import TranslationRecipe
from modeling.checkpoints import auto_model_class, load_whole, without_padding
from modeling.encoder_decoder import selected_layers
from modeling.modeling_veco import VecoForConditionalGeneration
from zoo_core.processes import main_first


def beam_search(recipe: TranslationRecipe, beams: int) -> dict[str, Any]:
    """Settings of `generate` for so many beams; greedy search knows no length penalty."""
    return {"num_beams": beams, "length_penalty": recipe.generation.length_penalty if beams > 1 else 1.0}


def check_architecture(recipe: TranslationRecipe) -> None:
    """Raises ValueError for a model that this kind of task cannot start from, or not with the recipe's fields."""
    try:
        config, _ = PreTrainedConfig.get_config_dict(find_model(recipe.model, recipe.hub_root))
    except OSError:
        return  # `describe_model` reports the fault
    kind, layers, is_translator = map(config.get, ("model_type", "num_hidden_layers", "is_encoder_decoder"))
    if layers is None or is_translator and kind != "veco":
        raise ValueError(f"{recipe.model} is of type {kind}. Name an encoder, or a translation model of this project.")
    asked, selection = recipe.decoder_layers, recipe.decoder_layer_selection
    if not is_translator:
        selected_layers(layers, asked, selection or "last")
        return
    made_of, is_tied = config["decoder_layer_indices"], config["tie_decoder"]
    confirms = {
        "decoder_layers": asked in (None, len(made_of)),
        "decoder_layer_selection": not selection or selected_layers(layers, len(made_of), selection) == made_of,
        "tie_decoder": recipe.tie_decoder in (None, is_tied),
    }
    if wrong := [name for name, is_so in confirms.items() if not is_so]:
        raise ValueError(
            f"{wrong[0]} is {getattr(recipe, wrong[0])}, and {recipe.model} has a decoder of layers {made_of}, "
            f"with tie_decoder {is_tied}. Leave it out."
        )


def build_model(recipe: TranslationRecipe, path: str, config: Any, seed: int) -> torch.nn.Module:
    """The translation model of one seed: built from an encoder, or a translation model that is trained further.

    Its generation settings are those for the recipe's test sentences, also after it is saved.
    """
    set_seed(seed)
    training, cls = recipe.training, VecoForConditionalGeneration
    dropout = {"hidden_dropout_prob": training.dropout, "attention_probs_dropout_prob": training.attention_dropout}
    settings = {name: value for name, value in dropout.items() if value is not None} | {"dtype": torch.float32}
    is_random = recipe.initialize == "random"
    with main_first(), readable_errors(path):
        if config.model_type == cls.config_class.model_type:
            cls = auto_model_class(AutoModelForSeq2SeqLM, path, recipe.trust_remote_code)
        if not config.is_encoder_decoder:
            model = cls.from_encoder(
                path,
                decoder_layers=recipe.decoder_layers,
                decoder_layer_selection=recipe.decoder_layer_selection or "last",
                tie_decoder=recipe.tie_decoder is not False,
                random=is_random,
                **settings,
            )
        elif is_random:
            model = cls(cls.config_class.from_pretrained(path, **settings))
        else:
            model = load_whole(AutoModelForSeq2SeqLM, path, path, recipe.trust_remote_code, **settings)
    model.generation_config.update(**beam_search(recipe, recipe.generation.beams))
    return without_padding(model)


def average_weights(model: torch.nn.Module, folders: list[Path]) -> None:
    """Sets the weights of `model` to the mean of those in the folders; what is tied stays one tensor.

    Raises ValueError for a missing folder, and for weights that are not those of this model.
    """
    if absent := [folder.name for folder in folders if not folder.is_dir()]:
        raise ValueError(f"{absent[0]} of {folders[0].parent} is gone. Remove the seed's folder and run it again.")
    mean: dict[str, torch.Tensor] = {}
    for folder in folders:
        for file in sorted(folder.glob("*.safetensors")):
            for name, tensor in load_file(file).items():
                # sums in double precision: the mean of n equal checkpoints is that checkpoint, bit by bit
                mean[name] = mean.get(name, 0) + tensor.double() / len(folders)
    own = model.state_dict()
    stored = {own[name].data_ptr() for name in mean if name in own}
    lacking = [name for name, tensor in own.items() if name not in mean and tensor.data_ptr() not in stored]
    if unknown := lacking + [name for name in mean if name not in own]:
        raise ValueError(f"The checkpoints of {folders[0].parent} are not of this model: only one has {unknown[0]}.")
    for name, tensor in mean.items():
        own[name].copy_(tensor)
