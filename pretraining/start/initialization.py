"""The model and the tokenizer that a run starts from."""

import contextlib
import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForPreTraining, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from modeling.backbone import honors_block_masks
from modeling.checkpoints import auto_model_class, check_weights, installed_class, readable
from modeling.fresh_weights import fresh_weights
from pretraining.objectives import OBJECTIVES, MaskedObjective, Objective
from pretraining.objectives.base import Setting
from pretraining.recipe import Recipe
from pretraining.start.meta_pretrained import Source, carry_over, start_settings
from pretraining.start.pretrained import existing_path, listed, read_config, read_tokenizer
from pretraining.start.vocabulary_matching import Matching
from zoo_core.recipes import nearest

logger = logging.getLogger(__name__)

IN_RUN_FOLDER = "A run folder keeps its model in model/."


def load_tokenizer(recipe: Recipe) -> PreTrainedTokenizerBase:
    """The tokenizer of the recipe, or that of the checkpoint it starts from."""
    name = recipe.tokenizer or recipe.model.start_from
    if not name:
        raise ValueError(
            "the recipe names no tokenizer, and no checkpoint to take one from. Set `tokenizer`, such as "
            "FacebookAI/xlm-roberta-base, or train one with pretraining.tools.train_tokenizer."
        )
    field = "tokenizer" if recipe.tokenizer else "model.start_from"
    tokenizer = read_tokenizer(name, field, recipe.hub_root, recipe.trust_remote_code)
    if tokenizer.mask_token_id is None:
        raise ValueError(f"the tokenizer {name!r} has no mask token. Take a masked-LM tokenizer such as XLM-R's.")
    return tokenizer


def model_class(model_type: str, start: str | None = None, trust_remote_code: bool = False) -> type[PreTrainedModel]:
    """`<Model>ForPreTraining` of a model type: the installed one, or that of `start`, a checkpoint of this type, where
    its code is trusted."""
    if start and trust_remote_code and PreTrainedConfig.get_config_dict(start)[0].get("model_type") == model_type:
        return auto_model_class(AutoModelForPreTraining, start, trust_remote_code)
    return installed_class(model_type, "AutoModelForPreTraining")


def class_of_run(recipe: Recipe) -> type[PreTrainedModel]:
    """The class that a recipe trains. Raises ValueError for a start that cannot be read."""
    start = recipe.model.start_from
    if start and recipe.trust_remote_code:
        read_config(start, "model.start_from", recipe.hub_root, recipe.trust_remote_code)
        start = existing_path(start, "model.start_from", recipe.hub_root)
    return model_class(recipe.model.type, start, recipe.trust_remote_code)


def build_config(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, checkpoint: Path | None = None
) -> PreTrainedConfig:
    """The configuration of the run, checked against the tokenizer and the recipe.

    `checkpoint`: that of a run which is resumed. It goes on as it began, whatever the defaults are by now.

    Raises `ValueError` for an unknown field of `model.config`, a checkpoint of another architecture, a vocabulary or
    special tokens that are not the tokenizer's, and examples longer than the positions.
    """
    config_class = class_of_run(recipe).config_class
    known = {field.name for field in dataclasses.fields(config_class)}
    for name in recipe.model.config:
        if name not in known:
            raise ValueError(f"model.config.{name}: {config_class.__name__} has no such field. {nearest(name, known)}")
    start, languages = recipe.model.start_from, _language_fields(recipe, known, tokenizer)
    if checkpoint:
        config, source = config_class.from_pretrained(checkpoint / "model"), f"the checkpoint {checkpoint}"
    elif start:
        config, source = _config_of_checkpoint(config_class, recipe, languages), f"the checkpoint {start!r}"
    else:
        source, given = "model.config", recipe.model.config
        settings = {"vocab_size": len(tokenizer), **languages}
        if recipe.model.meta_pretrained:
            settings |= start_settings(
                recipe.model.meta_pretrained, given, tokenizer, recipe.hub_root, recipe.trust_remote_code
            )
        settings |= given
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            settings.setdefault(name, getattr(tokenizer, name))
        with readable("model.config"):
            config = config_class(**settings)
    of_tokenizer = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if start and not recipe.tokenizer and config.vocab_size > len(tokenizer):
        of_tokenizer.pop("vocab_size")  # rows that its tokenizer does not use, such as up to a multiple of 64
    if getattr(config, "num_languages", 0):
        of_tokenizer["mask_token_id"] = tokenizer.mask_token_id
    for name, value in of_tokenizer.items():
        if getattr(config, name) != value:
            found = f"{source} has {name} {getattr(config, name)}, and the tokenizer {value}"
            raise ValueError(f"{found}. Use the tokenizer that belongs to the model.")
    _check_languages(recipe, config, source)
    learned = config.to_dict() if checkpoint else None
    if start and not checkpoint:
        learned = PreTrainedConfig.get_config_dict(existing_path(start, "model.start_from", recipe.hub_root))[0]
    _check_objectives(recipe, config, source, learned)
    return config


def _check_objectives(recipe: Recipe, config: PreTrainedConfig, source: str, learned: Mapping[str, Any] | None) -> None:
    """Raises `ValueError` for an objective that the model, its attention or its positions do not allow; `learned` as in
    `Setting`."""
    before: list[Objective] = []
    for index, phase in enumerate(recipe.phases):
        beside = list(phase.objectives.values())
        for name, objective in phase.objectives.items():
            place = f"phases.{index}.objectives.{name}"
            can = learnable(class_of_run(recipe))
            if name not in can:
                raise ValueError(
                    f"{place}: a {recipe.model.type!r} model has the objectives {', '.join(can)}. Take one of these."
                )
            objective.check_model(Setting(place, phase.name, beside, before, config, source, learned))
            _check_rows(recipe.model.attention, config, objective, place)
        before = before + beside


def learnable(cls: type[PreTrainedModel]) -> list[str]:
    """The objectives that a `<Model>ForPreTraining` class can learn: its own, and those whose loss is masked LM."""
    return [name for name, objective in OBJECTIVES.items() if name in cls.objectives or objective.is_masked_lm]


def _check_rows(attention: str, config: PreTrainedConfig, objective: Objective, place: str) -> None:
    """Raises `ValueError` for masks that the attention ignores, and for rows longer than the model's positions."""
    if objective.own_mask and "flash" in attention:
        raise ValueError(f"{place} has masks of its own, which model.attention={attention} ignores. Use sdpa.")
    is_packed = getattr(objective, "packed", False)
    if (objective.own_mask or is_packed) and not honors_block_masks(config.backbone_config):
        what = "needs masks of its own" if objective.own_mask else "packed needs masks of its own"
        raise ValueError(f"{place} {what}, which a model of type {config.backbone_config.model_type} cannot honor.")
    longest = config.longest_input
    if isinstance(objective, MaskedObjective) and objective.max_length > longest:
        advice = f"Set {place}.max_length={longest}, or raise model.config.max_position_embeddings"
        raise ValueError(
            f"{place}.max_length is {objective.max_length}, and the model has {longest} positions. {advice}."
        )


def _language_fields(recipe: Recipe, known: set[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Fields of the configuration, by default, of a model whose <mask> says its language; none where it does not.

    The languages are those of the recipe, in its order, where a phase has an objective that needs them.
    """
    if "languages" not in known:
        return {}
    settings: dict[str, Any] = {"mask_token_id": tokenizer.mask_token_id}
    settings["special_token_ids"] = sorted(set(tokenizer.all_special_ids))
    if any(found.needs_languages for phase in recipe.phases for found in phase.objectives.values()):
        settings["languages"] = recipe.languages
    return settings


def _check_languages(recipe: Recipe, config: PreTrainedConfig, source: str) -> None:
    """Raises `ValueError` for languages of the recipe that the model has no embedding for, or has without names, and
    for none where they are measured."""
    if not getattr(config, "num_languages", 0):
        if recipe.evaluation.back_translation:
            raise ValueError(f"evaluation.back_translation is set, and {source} has no languages to write in.")
        return
    if config.languages is None:
        raise ValueError(f"{source} has languages without names. Name them in order in model.config.languages.")
    if unknown := [code for code in recipe.languages if code not in config.languages]:
        has = ", ".join(config.languages)
        raise ValueError(f"the recipe has text in {unknown[0]!r}, which is no language of {source} ({has}).")


def _config_of_checkpoint(config_class, recipe: Recipe, languages: dict[str, Any]) -> PreTrainedConfig:
    start = recipe.model.start_from
    path, found = existing_path(start, "model.start_from", recipe.hub_root), {}
    if (Path(path) / "config.json").is_file():  # refuses what needs code of its own, by its name
        read_config(start, "model.start_from", recipe.hub_root, recipe.trust_remote_code)
    with contextlib.suppress(OSError):  # of an id; of a folder without it there are no fields
        found, _ = config_class.get_config_dict(path)
    if not found:
        raise ValueError(f"model.start_from {start!r} holds no config.json. {IN_RUN_FOLDER}")
    if found.get("decoder_layers") is not None:
        raise ValueError(f"model.start_from {start!r} is a translation model. Start from the encoder it was made of.")
    if found.get("num_languages"):
        # the checkpoint's rows have their meaning
        languages = {name: value for name, value in languages.items() if name == "special_token_ids"}
    found.pop("word_alignment_layer", None)  # chosen for the weights as they are
    check_weights(path)
    with readable("model.config"):
        return config_class.from_dict({**found, **languages, **recipe.model.config})


def build_model(
    recipe: Recipe, config: PreTrainedConfig, matched: tuple[Source, Matching] | None = None
) -> PreTrainedModel:
    """The model to train: random weights from `recipe.seed`, or the checkpoint's with fresh ones where it has none.

    `matched`: what `meta_pretrained.match` returns, of a recipe with model.meta_pretrained.
    """
    attention = recipe.model.attention
    if attention == "flex_attention" and not torch.cuda.is_available():
        raise ValueError("model.attention is flex_attention, which has no backward pass on a CPU. Use sdpa.")
    torch.manual_seed(recipe.seed)
    try:
        model = _load_or_make(recipe, config)
        if matched:
            notes = carry_over(model, *matched, recipe.model.meta_pretrained.initialize)
            for note in notes:
                logger.info("%s: %s", matched[0].name, note)
    except ImportError as error:  # of flash attention's package
        raise ValueError(f"model.attention is {attention}: {error} Install it, or use sdpa.") from error
    model.set_skip_padding(recipe.model.skip_padding)
    if recipe.model.gradient_checkpointing:
        # renamed in transformers 5.2x; the lower end of our range knows the old name only
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    return model


def _load_or_make(recipe: Recipe, config: PreTrainedConfig) -> PreTrainedModel:
    cls = class_of_run(recipe)
    start = recipe.model.start_from
    if not start:
        return cls._from_config(config, attn_implementation=recipe.model.attention)
    path = existing_path(start, "model.start_from", recipe.hub_root)
    with readable(path):
        model, report = cls.from_pretrained(
            path,
            config=config,
            attn_implementation=recipe.model.attention,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # named below, in words of the recipe
        )
    if report["mismatched_keys"]:  # of a head too: that of the checkpoint would be dropped
        name = min(report["mismatched_keys"])[0]
        raise ValueError(
            f"{name} of model.start_from {start!r} has another shape than the configuration says. Leave sizes out of "
            "model.config, or correct the checkpoint's config.json."
        )
    if fresh := fresh_weights(model, report, f"model.start_from {start!r}"):
        logger.info("%s lacks %d weights, which start at random: %s", start, len(fresh), listed(fresh))
    return model
