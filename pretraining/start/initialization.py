"""The model and the tokenizer that a run starts from."""

import dataclasses
import logging
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForPreTraining, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from crosslingual_zoo.modeling.backbone import honors_block_masks
from crosslingual_zoo.modeling.checkpoints import auto_model_class, fresh_weights, installed_class, readable
from crosslingual_zoo.modeling.configuration_encoder import first_position, longest_input
from crosslingual_zoo.pretraining.objectives import OBJECTIVES
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.start.meta_pretrained import MetaCheckpoint, carry_over
from crosslingual_zoo.pretraining.start.pretrained import Pretrained, listed
from crosslingual_zoo.pretraining.start.vocabulary_matching import Matching
from crosslingual_zoo.zoo_core.recipes import nearest

logger = logging.getLogger(__name__)


class Start:
    """What a run starts from: a configuration that fits its tokenizer and its phases, and weights. Reads no files."""

    def __init__(self, recipe: Recipe):
        model, access = recipe.model, (recipe.hub_root, recipe.trust_remote_code)
        self.recipe, self.model = recipe, model
        self.start_from = Pretrained(model.start_from, "model.start_from", *access) if model.start_from else None
        self.source = MetaCheckpoint(model.meta_pretrained, *access) if model.meta_pretrained else None
        self.lacks_head = False  # set by `load`: whether the checkpoint's LM head starts at random

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Loads the tokenizer of the recipe, or that of the checkpoint that it starts from."""
        place, recipe = self.start_from, self.recipe
        if recipe.tokenizer:
            place = Pretrained(recipe.tokenizer, "tokenizer", recipe.hub_root, recipe.trust_remote_code)
        if not place:
            raise ValueError("tokenizer is empty. Set it, as to FacebookAI/xlm-roberta-base, or set model.start_from.")
        tokenizer = place.tokenizer()
        if tokenizer.mask_token_id is None:
            raise ValueError(f"{place} has no mask token. Use a masked-LM tokenizer such as XLM-R's.")
        return tokenizer

    @cached_property
    def model_class(self) -> type[PreTrainedModel]:
        """The class to train. Raises ValueError for a checkpoint that cannot be read."""
        return model_class(self.model.type, self.start_from)

    def build_config(self, tokenizer: PreTrainedTokenizerBase, checkpoint: Path | None = None) -> PreTrainedConfig:
        """Returns the configuration of the run, checked against the tokenizer and the recipe.

        `checkpoint`: that of a resumed run, which keeps its configuration even if defaults have changed.

        Raises `ValueError` for an unknown field of `model.config`, a checkpoint of another architecture, a vocabulary
        or special tokens that are not the tokenizer's, and what `_check_phases` finds.
        """
        config_class, given, learned = self.model_class.config_class, self.model.config, {}
        known = {field.name for field in dataclasses.fields(config_class)}
        if unknown := [name for name in given if name not in known]:
            reason = f"{config_class.__name__} has no such field. {nearest(unknown[0], known)}"
            raise ValueError(f"model.config.{unknown[0]}: {reason}")
        languages = {}  # of a model whose <mask> may carry one
        if "languages" in known:
            specials = sorted(set(tokenizer.all_special_ids))
            languages = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": specials}
            if any(one.language_share == 1 for phase in self.recipe.phases for one in phase.with_examples.values()):
                languages["languages"] = self.recipe.languages
        if checkpoint:
            config, source = config_class.from_pretrained(checkpoint / "model"), f"the checkpoint {checkpoint}"
            learned = config.to_dict()
        elif self.start_from:
            source = f"the checkpoint {self.start_from.name!r}"
            self.start_from.config()  # its error names the field if the checkpoint needs its own code
            learned, _ = config_class.get_config_dict(self.start_from.path)
            if learned.get("decoder_layers") is not None:
                raise ValueError(f"{self.start_from} is a translation model. Start from the encoder it was made from.")
            if learned.get("languages"):  # the rows of its language embedding keep their languages
                languages = {"special_token_ids": languages["special_token_ids"]} if languages else {}
            # tuned for the checkpoint's weights
            kept = {name: value for name, value in learned.items() if name != "word_alignment_layer"}
            with readable("model.config"):
                config = config_class.from_dict(kept | languages | given)
            counts_from_padding = first_position(config) > 0
            if not counts_from_padding and "pad_token_id" not in given and tokenizer.pad_token_id is not None:
                config.pad_token_id = tokenizer.pad_token_id  # whose row is not trained; it does nothing else
        else:
            source, ids = "model.config", ("pad_token_id", "bos_token_id", "eos_token_id")
            settings = {name: getattr(tokenizer, name) for name in ids} | {"vocab_size": len(tokenizer)} | languages
            settings |= (self.source.config_fields(given, tokenizer) if self.source else {}) | given
            with readable("model.config"):
                config = config_class(**settings)
        wanted = {"pad_token_id": tokenizer.pad_token_id}
        # more rows than tokens are unused, for example up to a multiple of 64
        if config.vocab_size < len(tokenizer) or self._is_smaller_than_own(tokenizer):
            wanted["vocab_size"] = len(tokenizer)
        if getattr(config, "languages", None):
            wanted["mask_token_id"] = tokenizer.mask_token_id
            if unknown := [code for code in self.recipe.languages if code not in config.languages]:
                known = f"a language of {source} ({', '.join(config.languages)})"
                raise ValueError(f"the recipe has text in {unknown[0]!r}, which is not {known}. Remove that text.")
        for name, value in wanted.items():
            if getattr(config, name) != value:
                found = f"{source} has {name} {getattr(config, name)}, and the tokenizer has {value}"
                raise ValueError(f"{found}. Use the tokenizer that belongs to the model.")
        self._check_phases(config, learned)
        return config

    def _is_smaller_than_own(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        """Returns whether the recipe names a tokenizer with fewer tokens than that of the checkpoint: another one."""
        if not self.start_from or not self.recipe.tokenizer:
            return False
        try:
            return len(tokenizer) < len(self.start_from.tokenizer())
        except ValueError:  # the checkpoint has none
            return False

    def _check_phases(self, config: PreTrainedConfig, learned: dict[str, Any]) -> None:
        """Raises ValueError for objectives that the model cannot learn, attention masks that it ignores, and rows
        longer than its positions. `learned` is the configuration of the checkpoint; empty for random weights."""
        can, attention, longest = learnable(self.model_class), self.model.attention, longest_input(config)
        corpora = self.recipe.named_corpora()
        for index, phase in enumerate(self.recipe.phases):
            for name, objective in phase.objectives.items():
                place = f"phases.{index}.objectives.{name}"
                if name not in can:
                    raise ValueError(f"{place}: a {self.model.type!r} model has only the objectives {', '.join(can)}.")
                objective.check(place, self.recipe.phases[: index + 1], corpora, config, learned)
                if objective.own_mask and ("flash" in attention or not honors_block_masks(config.backbone_config)):
                    kind = getattr(config.backbone_config, "model_type", config.model_type)
                    ignores = f"model.attention={attention} of a {kind!r}"
                    raise ValueError(f"{place} needs its own attention masks, which {ignores} ignores.")
                if name in phase.with_examples and objective.max_length > longest:
                    has = f"but the model has {longest} positions. Set it to {longest} or less."
                    raise ValueError(f"{place}.max_length is {objective.max_length}, {has}")

    def match(self, tokenizer: PreTrainedTokenizerBase) -> Matching | None:
        """Matches the meta-pretrained checkpoint's vocabulary to `tokenizer`'s; None if no rows are carried over."""
        return self.source.match(tokenizer) if self.source and self.source.carries_rows else None

    def build_model(
        self, config: PreTrainedConfig, matching: Matching | None = None, checkpoint: Path | None = None
    ) -> PreTrainedModel:
        """Returns the model to train. Weights are random (from `seed`), or those of the checkpoint where it has them.

        `matching`: the result of `match`. `checkpoint`: that of a resumed run.
        """
        attention = self.model.attention
        if attention == "flex_attention" and not torch.cuda.is_available():
            raise ValueError("model.attention is flex_attention, which cannot train on a CPU. Use sdpa.")
        torch.manual_seed(self.recipe.seed)
        try:
            model = self.load(config, checkpoint, attn_implementation=attention)
        except ImportError as error:  # of flash attention's package
            raise ValueError(f"model.attention is {attention}: {error} Install it, or use sdpa.") from error
        if self.source and not checkpoint:
            left = listed(carry_over(model, self.source, matching))
            logger.info("newly initialized, and not from %s: %s", self.source.name, left)
        model.set_skip_padding(self.model.skip_padding)
        if self.model.gradient_checkpointing:
            # renamed in transformers 5.2x; the lowest version that we support has only the old name
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        return model

    def load(self, config: PreTrainedConfig, checkpoint: Path | None = None, **options: str) -> PreTrainedModel:
        """Returns the model as it is loaded, with `options` of the library. Logs which weights the checkpoint lacks."""
        if self.start_from is None:
            return self.model_class(type(config).from_dict(config.to_dict(), **options))
        path = str(checkpoint / "model") if checkpoint else self.start_from.path
        options |= {"config": config, "dtype": torch.float32, "output_loading_info": True}
        with readable(path):  # other shapes are reported below, with the recipe's field
            model, report = self.model_class.from_pretrained(path, ignore_mismatched_sizes=True, **options)
        if report["mismatched_keys"]:  # also of a head, which would be dropped silently
            raise ValueError(
                f"{min(report['mismatched_keys'])[0]} of {self.start_from} has another shape than in the "
                "configuration. Leave sizes out of model.config, or correct the checkpoint's config.json."
            )
        if fresh := fresh_weights(model, report, str(self.start_from)):
            logger.info("%s lacks weights, which are newly initialized: %s", self.start_from.name, listed(fresh))
        self.lacks_head = any(name.startswith("lm_head.") and name.endswith(".weight") for name in fresh)
        return model


def model_class(model_type: str, checkpoint: Pretrained | None = None) -> type[PreTrainedModel]:
    """Returns `<Model>ForPreTraining` of a model type: the installed class, or that of a checkpoint of this type whose
    code is trusted. Raises ValueError if such a checkpoint cannot be read."""
    if checkpoint and checkpoint.trust_remote_code and checkpoint.config().model_type == model_type:
        return auto_model_class(AutoModelForPreTraining, checkpoint.path, trust_remote_code=True)
    return installed_class(model_type, "AutoModelForPreTraining")


def learnable(cls: type[PreTrainedModel]) -> list[str]:
    """Lists the objectives that a `<Model>ForPreTraining` class can learn: its own, and those with masked-LM loss."""
    return [name for name, objective in OBJECTIVES.items() if name in cls.objectives or objective.is_masked_lm]
