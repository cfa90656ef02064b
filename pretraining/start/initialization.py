"""The model and the tokenizer that a run starts from."""

import dataclasses
import logging
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForPreTraining, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from crosslingual_zoo.modeling.backbone import honors_block_masks
from crosslingual_zoo.modeling.checkpoints import auto_model_class, fresh_weights, installed_class, readable
from crosslingual_zoo.modeling.configuration_encoder import EncoderConfig, first_position, longest_input
from crosslingual_zoo.modeling.masked_lm import ForPreTraining
from crosslingual_zoo.pretraining.objectives import OBJECTIVES, Collator
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.start.meta_pretrained import MetaCheckpoint, carry_over
from crosslingual_zoo.pretraining.start.pretrained import Pretrained, listed, start_of
from crosslingual_zoo.pretraining.start.vocabulary_matching import Matching
from crosslingual_zoo.zoo_core.recipes import nearest

logger = logging.getLogger(__name__)


class StartConfig(NamedTuple):
    """The configuration of a run."""

    config: EncoderConfig
    source: str  # where it comes from, in errors
    learned: dict[str, Any]  # the configuration of the checkpoint whose weights are loaded; empty for random weights


class Start:
    """What a run starts from: a configuration that fits its tokenizer and its phases, and weights. Reads no files."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.model = recipe.model
        self.start_from = start_of(recipe)
        self.source = None
        if self.model.meta_pretrained:
            self.source = MetaCheckpoint(self.model.meta_pretrained, recipe.hub_root, recipe.trust_remote_code)
        self.lacks_head = False  # set by `load`: whether the checkpoint's LM head starts at random

    @cached_property
    def model_class(self) -> type[ForPreTraining]:
        """The class to train. Raises ValueError for a checkpoint that cannot be read."""
        return model_class(self.model.type, self.start_from)

    @property
    def config_class(self) -> Any:
        """The class of its configuration."""
        return self.model_class.config_class

    def build_config(self, tokenizer: PreTrainedTokenizerBase, checkpoint: Path | None = None) -> EncoderConfig:
        """Returns the configuration of the run, checked against the tokenizer and the recipe.

        `checkpoint`: that of a resumed run, which keeps its configuration even if defaults have changed.

        Raises `ValueError` for an unknown field of `model.config`, a checkpoint of another architecture, a vocabulary
        or special tokens that are not the tokenizer's, and what `_check_phases` finds.
        """
        field_names = {field.name for field in dataclasses.fields(self.config_class)}
        for name in self.model.config:
            if name not in field_names:
                reason = f"{self.config_class.__name__} has no such field. {nearest(name, field_names)}"
                raise ValueError(f"model.config.{name}: {reason}")
        if checkpoint:
            start = self._resumed(checkpoint)
        elif self.start_from:
            start = self._continued(self.start_from, tokenizer)
        else:
            start = self._from_scratch(tokenizer)
        self._check_tokenizer(start, tokenizer)
        self._check_languages(start)
        self._check_phases(start)
        return start.config

    def _resumed(self, checkpoint: Path) -> StartConfig:
        """The configuration of a checkpoint of this run."""
        config = self.config_class.from_pretrained(checkpoint / "model")
        return StartConfig(config, f"the checkpoint {checkpoint}", config.to_dict())

    def _continued(self, start_from: Pretrained, tokenizer: PreTrainedTokenizerBase) -> StartConfig:
        """That of `model.start_from`, with `model.config`."""
        start_from.config()  # its error names the field if the checkpoint needs its own code
        learned, _ = self.config_class.get_config_dict(start_from.path)
        if learned.get("decoder_layers") is not None:
            raise ValueError(f"{start_from} is a translation model. Start from the encoder it was made from.")
        fields = dict(learned)
        fields.pop("word_alignment_layer", None)  # tuned for the checkpoint's weights
        for name, value in self._language_fields(tokenizer).items():
            # the rows of the checkpoint's language embedding keep their languages
            if name == "special_token_ids" or not learned.get("languages"):
                fields[name] = value
        with readable("model.config"):
            config = self.config_class.from_dict(fields | self.model.config)
        counts_from_padding = first_position(config) > 0
        is_free = not counts_from_padding and "pad_token_id" not in self.model.config
        if is_free and tokenizer.pad_token_id is not None:
            config.pad_token_id = tokenizer.pad_token_id  # whose row is not trained; it does nothing else
        return StartConfig(config, f"the checkpoint {start_from.name!r}", learned)

    def _from_scratch(self, tokenizer: PreTrainedTokenizerBase) -> StartConfig:
        """That of random weights, or of `model.meta_pretrained`, with `model.config`."""
        fields = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        fields["vocab_size"] = len(tokenizer)
        fields |= self._language_fields(tokenizer)
        if self.source:
            fields |= self.source.config_fields(self.model.config, tokenizer)
        with readable("model.config"):
            config = self.config_class(**fields | self.model.config)
        return StartConfig(config, "model.config", {})

    def _language_fields(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Fields of a model whose <mask> may carry a language; none of other models."""
        if "languages" not in {field.name for field in dataclasses.fields(self.config_class)}:
            return {}
        special_ids = sorted(set(tokenizer.all_special_ids))
        fields = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": special_ids}
        collators = [collator for phase in self.recipe.phases for collator in phase.with_examples.values()]
        if any(collator.language_share == 1 for collator in collators):
            fields["languages"] = self.recipe.languages
        return fields

    def _check_tokenizer(self, start: StartConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ValueError for a vocabulary or special tokens that are not the tokenizer's."""
        expected = {"pad_token_id": tokenizer.pad_token_id}
        # more rows than tokens are unused, for example up to a multiple of 64
        if start.config.vocab_size < len(tokenizer) or self._is_smaller_than_own(tokenizer):
            expected["vocab_size"] = len(tokenizer)
        if getattr(start.config, "languages", None):
            expected["mask_token_id"] = tokenizer.mask_token_id
        for name, value in expected.items():
            model_value = getattr(start.config, name)
            if model_value != value:
                problem = f"{start.source} has {name} {model_value}, and the tokenizer has {value}"
                raise ValueError(f"{problem}. Use the tokenizer that belongs to the model.")

    def _is_smaller_than_own(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        """Returns whether the recipe names a tokenizer with fewer tokens than that of the checkpoint: another one."""
        if not self.start_from or not self.recipe.tokenizer:
            return False
        try:
            return len(tokenizer) < len(self.start_from.tokenizer())
        except ValueError:  # the checkpoint has none
            return False

    def _check_languages(self, start: StartConfig) -> None:
        languages = getattr(start.config, "languages", None)
        if not languages:
            return
        for code in self.recipe.languages:
            if code not in languages:
                reason = f"not a language of {start.source} ({', '.join(languages)})"
                raise ValueError(f"the recipe has text in {code!r}, which is {reason}. Remove that text.")

    def _check_phases(self, start: StartConfig) -> None:
        """Raises ValueError for objectives that the model cannot learn, attention masks that it ignores, and rows
        longer than its positions."""
        learnable_names = learnable(self.model_class)
        longest = longest_input(start.config)
        backbone: Any = start.config.backbone_config  # a dict has become a configuration
        ignores_masks = "flash" in self.model.attention or not honors_block_masks(backbone)
        corpora = self.recipe.named_corpora()
        phases = self.recipe.phases
        for index, phase in enumerate(phases):
            for name, objective in phase.objectives.items():
                field = f"phases.{index}.objectives.{name}"
                if name not in learnable_names:
                    only = ", ".join(learnable_names)
                    raise ValueError(f"{field}: a {self.model.type!r} model has only the objectives {only}.")
                objective.check(field, phases[: index + 1], corpora, start.config, start.learned)
                if objective.own_mask and ignores_masks:
                    kind = getattr(backbone, "model_type", start.config.model_type)
                    combination = f"model.attention={self.model.attention} of a {kind!r}"
                    raise ValueError(f"{field} needs its own attention masks, which {combination} ignores.")
                if longest is not None and isinstance(objective, Collator) and objective.max_length > longest:
                    limit = f"but the model has {longest} positions. Set it to {longest} or less."
                    raise ValueError(f"{field}.max_length is {objective.max_length}, {limit}")

    def match(self, tokenizer: PreTrainedTokenizerBase) -> Matching | None:
        """Matches the meta-pretrained checkpoint's vocabulary to `tokenizer`'s; None if no rows are carried over."""
        if self.source is None or not self.source.carries_rows:
            return None
        return self.source.match(tokenizer)

    def build_model(
        self, config: EncoderConfig, matching: Matching | None = None, checkpoint: Path | None = None
    ) -> ForPreTraining:
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
            fresh = carry_over(model, self.source, matching)
            logger.info("newly initialized, and not from %s: %s", self.source.name, listed(fresh))
        model.set_skip_padding(self.model.skip_padding)
        if self.model.gradient_checkpointing:
            # renamed in transformers 5.2x; the lowest version that we support has only the old name
            has_new_name = hasattr(model, "activation_checkpointing_enable")
            getattr(model, "activation_checkpointing_enable" if has_new_name else "gradient_checkpointing_enable")()
        if self.model.compile:
            compile_layers(model)
        return model

    def load(self, config: EncoderConfig, checkpoint: Path | None = None, **options: Any) -> ForPreTraining:
        """Returns the model as it is loaded, with `options` of the library. Logs which weights the checkpoint lacks."""
        if self.start_from is None:
            return self.model_class(type(config).from_dict(config.to_dict(), **options))
        path = str(checkpoint / "model") if checkpoint else self.start_from.path
        options |= {"config": config, "dtype": torch.float32, "output_loading_info": True}
        with readable(path):  # other shapes are reported below, with the recipe's field
            loaded: Any = self.model_class.from_pretrained(path, ignore_mismatched_sizes=True, **options)
        model, report = loaded
        if report["mismatched_keys"]:  # also of a head, which would be dropped silently
            raise ValueError(
                f"{min(report['mismatched_keys'])[0]} of {self.start_from} has another shape than in the "
                "configuration. Leave sizes out of model.config, or correct the checkpoint's config.json."
            )
        fresh = fresh_weights(model, report, str(self.start_from))
        if fresh:
            logger.info("%s lacks weights, which are newly initialized: %s", self.start_from.name, listed(fresh))
        self.lacks_head = any(name.startswith("lm_head.") and name.endswith(".weight") for name in fresh)
        return model


def model_class(model_type: str, checkpoint: Pretrained | None = None) -> type[ForPreTraining]:
    """Returns `<Model>ForPreTraining` of a model type: the installed class, or that of a checkpoint of this type whose
    code is trusted. Raises ValueError if such a checkpoint cannot be read."""
    if checkpoint and checkpoint.trust_remote_code and checkpoint.config().model_type == model_type:
        return auto_model_class(AutoModelForPreTraining, checkpoint.path, trust_remote_code=True)
    return installed_class(model_type, "AutoModelForPreTraining")


def compile_layers(model: torch.nn.Module) -> None:
    """Lets torch compile each layer of an encoder, of any architecture, when it is first called. Names of weights stay.

    Layers share their code, which serves all sizes of a batch. Inductor may not choose code by its speed: a resumed run
    would get other code, and other last bits.
    """
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):  # the library's class of all layers
            layer.compile(dynamic=True, options={"deterministic": True})


@contextmanager
def compiler_errors(is_compiled: bool = True) -> Generator[None]:
    """Raises `ValueError`, of one line, where torch cannot compile: it has no compiler, or the model is beyond it.
    An error of a model that is not compiled, or of memory, stays what it is."""
    try:
        yield
    except RuntimeError as error:
        if not is_compiled or isinstance(error, torch.OutOfMemoryError):
            raise
        reason, *_ = str(error).partition("\n\n")  # then come hints for those who write compilers
        message = f"model.compile is true, but torch cannot compile this model here: {' '.join(reason.split())}"
        raise ValueError(f"{message} Set it to false.") from error


def learnable(cls: Any) -> list[str]:
    """Lists the objectives that a `<Model>ForPreTraining` class can learn: its own, and those with masked-LM loss."""
    return [name for name, objective in OBJECTIVES.items() if name in cls.objectives or objective.is_masked_lm]
