"""The model and the tokenizer that a run starts from."""

import contextlib
import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForPreTraining, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from modeling.backbone import honors_block_masks
from modeling.checkpoints import auto_model_class, check_weights, installed_class, readable
from modeling.fresh_weights import fresh_weights
from pretraining.objectives import OBJECTIVES, ExampleObjective, Objective
from pretraining.objectives.base import Setting
from pretraining.recipe import ModelStart, Phase, Recipe
from pretraining.start.meta_pretrained import Source, carry_over
from pretraining.start.pretrained import Pretrained, listed
from pretraining.start.vocabulary_matching import Matching
from pretraining.trainable import is_trainable
from zoo_core.recipes import nearest

logger = logging.getLogger(__name__)

HEAD_RECIPE = "pretraining/recipes/e5_small_head.yaml"


@dataclass(frozen=True)
class Start:
    """What a run starts from: a tokenizer, a configuration that fits it and the phases, and weights."""

    model: ModelStart
    start_from: Pretrained | None
    tokenizer_from: Pretrained | None  # if the recipe names none: `start_from`
    source: Source | None  # of model.meta_pretrained
    phases: list[Phase]
    languages: list[str]  # of the corpora
    seed: int

    @classmethod
    def of(cls, recipe: Recipe) -> "Start":
        """Returns the start of a recipe, without reading files."""
        model, access = recipe.model, (recipe.hub_root, recipe.trust_remote_code)
        start_from = Pretrained(model.start_from, "model.start_from", *access) if model.start_from else None
        return cls(
            model=model,
            start_from=start_from,
            tokenizer_from=Pretrained(recipe.tokenizer, "tokenizer", *access) if recipe.tokenizer else start_from,
            source=Source(model.meta_pretrained, *access) if model.meta_pretrained else None,
            phases=recipe.phases,
            languages=recipe.languages,
            seed=recipe.seed,
        )

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Loads the tokenizer of the recipe, or that of the checkpoint that it starts from."""
        if self.tokenizer_from is None:
            raise ValueError(
                "the recipe names neither a tokenizer nor a checkpoint that has one. Set `tokenizer`, for example to "
                "FacebookAI/xlm-roberta-base, or train one with pretraining.tools.train_tokenizer."
            )
        tokenizer, name = self.tokenizer_from.tokenizer(), self.tokenizer_from.name
        if tokenizer.mask_token_id is None:
            raise ValueError(f"the tokenizer {name!r} has no mask token. Use a masked-LM tokenizer such as XLM-R's.")
        return tokenizer

    @cached_property
    def model_class(self) -> type[PreTrainedModel]:
        """The class to train. Raises ValueError for a checkpoint that cannot be read."""
        return model_class(self.model.type, self.start_from)

    def build_config(self, tokenizer: PreTrainedTokenizerBase, checkpoint: Path | None = None) -> PreTrainedConfig:
        """Returns the configuration of the run, checked against the tokenizer and the recipe.

        `checkpoint`: that of a resumed run, which keeps its configuration even if defaults have changed.

        Raises `ValueError` for an unknown field of `model.config`, a checkpoint of another architecture, a vocabulary
        or special tokens that are not the tokenizer's, and examples longer than the positions.
        """
        config_class = self.model_class.config_class
        known = {field.name for field in dataclasses.fields(config_class)}
        for name in self.model.config:
            if name not in known:
                reason = f"{config_class.__name__} has no such field. {nearest(name, known)}"
                raise ValueError(f"model.config.{name}: {reason}")
        languages = self._language_fields(tokenizer) if "languages" in known else {}
        learned = None
        if checkpoint:
            config, source = config_class.from_pretrained(checkpoint / "model"), f"the checkpoint {checkpoint}"
            learned = config.to_dict()
        elif self.start_from:
            config, source = self._started_config(config_class, languages), f"the checkpoint {self.start_from.name!r}"
            learned = PreTrainedConfig.get_config_dict(self.start_from.path)[0]
        else:
            source, given = "model.config", self.model.config
            settings = {"vocab_size": len(tokenizer), **languages}
            if self.source:
                settings |= self.source.config_fields(given, tokenizer)
            settings |= given
            for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
                settings.setdefault(name, getattr(tokenizer, name))
            with readable("model.config"):
                config = config_class(**settings)
        of_tokenizer = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        is_own_tokenizer = self.start_from and self.tokenizer_from is self.start_from
        if is_own_tokenizer and config.vocab_size > len(tokenizer):
            of_tokenizer.pop("vocab_size")  # unused rows, for example up to a multiple of 64
        if getattr(config, "num_languages", 0):
            of_tokenizer["mask_token_id"] = tokenizer.mask_token_id
        for name, value in of_tokenizer.items():
            if getattr(config, name) != value:
                found = f"{source} has {name} {getattr(config, name)}, and the tokenizer has {value}"
                raise ValueError(f"{found}. Use the tokenizer that belongs to the model.")
        self._check_objectives(config, source, learned)
        self._check_languages(config, source)
        return config

    def _started_config(self, config_class: type, languages: dict[str, Any]) -> PreTrainedConfig:
        """Returns the configuration of `start_from` with the fields of the recipe."""
        path, found = self.start_from.path, {}
        if (Path(path) / "config.json").is_file():  # its error names the field if the checkpoint needs its own code
            self.start_from.config()
        with contextlib.suppress(OSError):  # no such id, or a folder without config.json
            found, _ = config_class.get_config_dict(path)
        if not found:
            raise ValueError(f"{self.start_from} has no config.json. The model of a run is in its subfolder model/.")
        if found.get("decoder_layers") is not None:
            raise ValueError(f"{self.start_from} is a translation model. Start from the encoder it was made from.")
        if found.get("num_languages"):
            # the rows of the checkpoint's language embedding keep their languages
            languages = {name: value for name, value in languages.items() if name == "special_token_ids"}
        found.pop("word_alignment_layer", None)  # tuned for the checkpoint's weights
        check_weights(path)
        with readable("model.config"):
            return config_class.from_dict({**found, **languages, **self.model.config})

    def _language_fields(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Returns default fields of the configuration of a model whose <mask> carries a language.

        If an objective needs languages, they are those of the recipe, in its order.
        """
        specials = sorted(set(tokenizer.all_special_ids))
        settings: dict[str, Any] = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": specials}
        if any(found.needs_languages for phase in self.phases for found in phase.objectives.values()):
            settings["languages"] = self.languages
        return settings

    def _check_languages(self, config: PreTrainedConfig, source: str) -> None:
        """Raises `ValueError` for a language of the recipe without an embedding in the model, and for languages without
        names."""
        if not getattr(config, "num_languages", 0):
            return
        if config.languages is None:
            raise ValueError(f"{source} has languages without names. List their codes in model.config.languages.")
        if unknown := [code for code in self.languages if code not in config.languages]:
            has = ", ".join(config.languages)
            raise ValueError(
                f"the recipe has text in {unknown[0]!r}, which is not a language of {source} ({has}). Remove that text."
            )

    def _check_objectives(self, config: PreTrainedConfig, source: str, learned: Mapping[str, Any] | None) -> None:
        """Raises `ValueError` for an objective that the model, its attention or its positions do not support.

        `learned` is that of `Setting`.
        """
        before: list[Objective] = []
        can = learnable(self.model_class)
        for index, phase in enumerate(self.phases):
            together = list(phase.objectives.values())
            for name, objective in phase.objectives.items():
                place = f"phases.{index}.objectives.{name}"
                if name not in can:
                    has = f"a {self.model.type!r} model has the objectives {', '.join(can)}"
                    raise ValueError(f"{place}: {has}. Use one of these.")
                objective.check_model(Setting(place, phase.name, together, before, config, source, learned))
                _check_rows(self.model.attention, config, objective, place)
            before = before + together

    def match(self, tokenizer: PreTrainedTokenizerBase) -> Matching | None:
        """Matches the meta-pretrained checkpoint's vocabulary to `tokenizer`'s; None without such a checkpoint."""
        if self.source is None:
            return None
        _ = self.source.tokenizer, self.source.weights  # their errors come before the slow comparison of vocabularies
        return self.source.match(tokenizer)

    def build_model(
        self, config: PreTrainedConfig, matching: Matching | None = None, checkpoint: Path | None = None
    ) -> PreTrainedModel:
        """Returns the model to train. Weights are random (from `seed`), or those of the checkpoint where it has them.

        `matching`: the result of `match`; without it, nothing of a meta-pretrained checkpoint is carried over.
        `checkpoint`: that of a resumed run.
        """
        attention = self.model.attention
        if attention == "flex_attention" and not torch.cuda.is_available():
            raise ValueError("model.attention is flex_attention, which cannot train on a CPU. Use sdpa.")
        torch.manual_seed(self.seed)
        try:
            model = self.load(config, checkpoint, attn_implementation=attention)
        except ImportError as error:  # of flash attention's package
            raise ValueError(f"model.attention is {attention}: {error} Install it, or use sdpa.") from error
        if matching:
            for note in carry_over(model, self.source, matching):
                logger.info("%s: %s", self.source.name, note)
        model.set_skip_padding(self.model.skip_padding)
        if self.model.gradient_checkpointing:
            # renamed in transformers 5.2x; the lowest version that we support has only the old name
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable()
        return model

    def load(self, config: PreTrainedConfig, checkpoint: Path | None = None, **options: str) -> PreTrainedModel:
        """Returns the model as it is loaded, with `options` of the library. Logs which weights the checkpoint lacks."""
        cls = self.model_class
        if self.start_from is None:
            return cls._from_config(config, **options)
        path = str(checkpoint / "model") if checkpoint else self.start_from.path
        with readable(path):
            model, report = cls.from_pretrained(
                path,
                config=config,
                **options,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below, with the recipe's field
            )
        if report["mismatched_keys"]:  # also of a head, which would be dropped silently
            name = min(report["mismatched_keys"])[0]
            raise ValueError(
                f"{name} of {self.start_from} has another shape than in the configuration. Leave sizes out of "
                "model.config, or correct the checkpoint's config.json."
            )
        if fresh := fresh_weights(model, report, str(self.start_from)):
            name = self.start_from.name
            logger.info("%s lacks %d weights, which are newly initialized: %s", name, len(fresh), listed(fresh))
            has_head = not any(key.startswith("lm_head.") and key.endswith(".weight") for key in fresh)
            encoder = [key for key, _ in model.named_parameters() if key.startswith("roberta.")]
            learning = [phase for phase in self.phases if any(is_trainable(key, phase) for key in encoder)]
            objectives = [found for phase in learning for found in phase.objectives.values() if found.predicts_tokens]
            if not has_head and any(weight for found in objectives for weight in found.loss_weights().values()):
                logger.info("the LM head starts at random: train it first with %s", HEAD_RECIPE)
        return model


def model_class(model_type: str, checkpoint: Pretrained | None = None) -> type[PreTrainedModel]:
    """Returns `<Model>ForPreTraining` of a model type: the installed class, or that of a checkpoint of this type whose
    code is trusted. Raises ValueError if such a checkpoint cannot be read."""
    if checkpoint and checkpoint.trust_remote_code:
        checkpoint.config()
        if PreTrainedConfig.get_config_dict(checkpoint.path)[0].get("model_type") == model_type:
            return auto_model_class(AutoModelForPreTraining, checkpoint.path, checkpoint.trust_remote_code)
    return installed_class(model_type, "AutoModelForPreTraining")


def learnable(cls: type[PreTrainedModel]) -> list[str]:
    """Lists the objectives that a `<Model>ForPreTraining` class can learn: its own, and those with masked-LM loss."""
    return [name for name, objective in OBJECTIVES.items() if name in cls.objectives or objective.is_masked_lm]


def _check_rows(attention: str, config: PreTrainedConfig, objective: Objective, place: str) -> None:
    """Raises `ValueError` for attention masks that the model ignores, and for rows longer than its positions."""
    if objective.own_mask and "flash" in attention:
        raise ValueError(f"{place} needs its own attention masks, which model.attention={attention} ignores. Use sdpa.")
    if objective.own_mask and not honors_block_masks(config.backbone_config):
        raise ValueError(
            f"{place} needs its own attention masks, which a model of type {config.backbone_config.model_type} does "
            "not support. Leave it out."
        )
    longest = config.longest_input
    if isinstance(objective, ExampleObjective) and objective.max_length > longest:
        advice = f"Set {place}.max_length={longest}, or raise model.config.max_position_embeddings"
        raise ValueError(
            f"{place}.max_length is {objective.max_length}, but the model has {longest} positions. {advice}."
        )
