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
from zoo_core.recipes import nearest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """What a run begins with: a tokenizer, a configuration that fits it and the phases, and weights."""

    model: ModelStart
    start_from: Pretrained | None
    tokenizer_from: Pretrained | None  # where the recipe names none: `start_from`
    source: Source | None  # of model.meta_pretrained
    phases: list[Phase]
    languages: list[str]  # of the corpora
    back_translation: float  # evaluation.back_translation
    seed: int

    @classmethod
    def of(cls, recipe: Recipe) -> "Start":
        """The start of a recipe. Reads nothing."""
        model, access = recipe.model, (recipe.hub_root, recipe.trust_remote_code)
        start_from = Pretrained(model.start_from, "model.start_from", *access) if model.start_from else None
        return cls(
            model=model,
            start_from=start_from,
            tokenizer_from=Pretrained(recipe.tokenizer, "tokenizer", *access) if recipe.tokenizer else start_from,
            source=Source(model.meta_pretrained, *access) if model.meta_pretrained else None,
            phases=recipe.phases,
            languages=recipe.languages,
            back_translation=recipe.evaluation.back_translation,
            seed=recipe.seed,
        )

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the recipe, or that of the checkpoint it starts from."""
        if self.tokenizer_from is None:
            raise ValueError(
                "the recipe names no tokenizer, and no checkpoint to take one from. Set `tokenizer`, such as "
                "FacebookAI/xlm-roberta-base, or train one with pretraining.tools.train_tokenizer."
            )
        tokenizer, name = self.tokenizer_from.tokenizer(), self.tokenizer_from.name
        if tokenizer.mask_token_id is None:
            raise ValueError(f"the tokenizer {name!r} has no mask token. Take a masked-LM tokenizer such as XLM-R's.")
        return tokenizer

    @cached_property
    def model_class(self) -> type[PreTrainedModel]:
        """The class to train. Raises ValueError for a start that cannot be read."""
        return model_class(self.model.type, self.start_from)

    def build_config(self, tokenizer: PreTrainedTokenizerBase, checkpoint: Path | None = None) -> PreTrainedConfig:
        """The configuration of the run, checked against the tokenizer and the recipe.

        `checkpoint`: that of a run which is resumed. It goes on as it began, whatever the defaults are by now.

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
            of_tokenizer.pop("vocab_size")  # rows that its tokenizer does not use, such as up to a multiple of 64
        if getattr(config, "num_languages", 0):
            of_tokenizer["mask_token_id"] = tokenizer.mask_token_id
        for name, value in of_tokenizer.items():
            if getattr(config, name) != value:
                found = f"{source} has {name} {getattr(config, name)}, and the tokenizer {value}"
                raise ValueError(f"{found}. Use the tokenizer that belongs to the model.")
        self._check_objectives(config, source, learned)
        self._check_languages(config, source)
        return config

    def _started_config(self, config_class: type, languages: dict[str, Any]) -> PreTrainedConfig:
        """The configuration of `start_from`, with the fields of the recipe."""
        path, found = self.start_from.path, {}
        if (Path(path) / "config.json").is_file():  # refuses what needs code of its own, by its name
            self.start_from.config()
        with contextlib.suppress(OSError):  # of an id; of a folder without it there are no fields
            found, _ = config_class.get_config_dict(path)
        if not found:
            raise ValueError(f"{self.start_from} holds no config.json. A run folder keeps its model in model/.")
        if found.get("decoder_layers") is not None:
            raise ValueError(f"{self.start_from} is a translation model. Start from the encoder it was made of.")
        if found.get("num_languages"):
            # the checkpoint's rows have their meaning
            languages = {name: value for name, value in languages.items() if name == "special_token_ids"}
        found.pop("word_alignment_layer", None)  # chosen for the weights as they are
        check_weights(path)
        with readable("model.config"):
            return config_class.from_dict({**found, **languages, **self.model.config})

    def _language_fields(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Fields of the configuration, by default, of a model whose <mask> says its language.

        The languages are those of the recipe, in its order, where a phase has an objective that needs them.
        """
        specials = sorted(set(tokenizer.all_special_ids))
        settings: dict[str, Any] = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": specials}
        if any(found.needs_languages for phase in self.phases for found in phase.objectives.values()):
            settings["languages"] = self.languages
        return settings

    def _check_languages(self, config: PreTrainedConfig, source: str) -> None:
        """Raises `ValueError` for languages of the recipe that the model has no embedding for, or has without names,
        and for none where they are measured."""
        if not getattr(config, "num_languages", 0):
            if self.back_translation:
                raise ValueError(f"evaluation.back_translation is set, and {source} has no languages to write in.")
            return
        if config.languages is None:
            raise ValueError(f"{source} has languages without names. Name them in order in model.config.languages.")
        if unknown := [code for code in self.languages if code not in config.languages]:
            has = ", ".join(config.languages)
            raise ValueError(f"the recipe has text in {unknown[0]!r}, which is no language of {source} ({has}).")

    def _check_objectives(self, config: PreTrainedConfig, source: str, learned: Mapping[str, Any] | None) -> None:
        """Raises `ValueError` for an objective that the model, its attention or its positions do not allow; `learned`
        as in `Setting`."""
        before: list[Objective] = []
        can = learnable(self.model_class)
        for index, phase in enumerate(self.phases):
            beside = list(phase.objectives.values())
            for name, objective in phase.objectives.items():
                place = f"phases.{index}.objectives.{name}"
                if name not in can:
                    has = f"a {self.model.type!r} model has the objectives {', '.join(can)}"
                    raise ValueError(f"{place}: {has}. Take one of these.")
                objective.check_model(Setting(place, phase.name, beside, before, config, source, learned))
                _check_rows(self.model.attention, config, objective, place)
            before = before + beside

    def match(self, tokenizer: PreTrainedTokenizerBase) -> Matching | None:
        """The vocabulary of the meta-pretrained checkpoint matched to `tokenizer`'s; None without such a checkpoint."""
        if self.source is None:
            return None
        _ = self.source.tokenizer, self.source.weights  # refused before vocabularies are compared, which takes longer
        return self.source.match(tokenizer)

    def build_model(self, config: PreTrainedConfig, matching: Matching | None = None) -> PreTrainedModel:
        """The model to train: random weights from `seed`, or the checkpoint's with fresh ones where it has none.

        `matching`: what `match` returns; without it, nothing of a meta-pretrained checkpoint is carried over.
        """
        attention = self.model.attention
        if attention == "flex_attention" and not torch.cuda.is_available():
            raise ValueError("model.attention is flex_attention, which has no backward pass on a CPU. Use sdpa.")
        torch.manual_seed(self.seed)
        try:
            model = self._load_or_make(config)
        except ImportError as error:  # of flash attention's package
            raise ValueError(f"model.attention is {attention}: {error} Install it, or use sdpa.") from error
        if matching:
            for note in carry_over(model, self.source, matching):
                logger.info("%s: %s", self.source.name, note)
        model.set_skip_padding(self.model.skip_padding)
        if self.model.gradient_checkpointing:
            # renamed in transformers 5.2x; the lower end of our range knows the old name only
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable()
        return model

    def _load_or_make(self, config: PreTrainedConfig) -> PreTrainedModel:
        cls, attention = self.model_class, self.model.attention
        if self.start_from is None:
            return cls._from_config(config, attn_implementation=attention)
        path = self.start_from.path
        with readable(path):
            model, report = cls.from_pretrained(
                path,
                config=config,
                attn_implementation=attention,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # named below, in words of the recipe
            )
        if report["mismatched_keys"]:  # of a head too: that of the checkpoint would be dropped
            name = min(report["mismatched_keys"])[0]
            raise ValueError(
                f"{name} of {self.start_from} has another shape than the configuration says. Leave sizes out of "
                "model.config, or correct the checkpoint's config.json."
            )
        if fresh := fresh_weights(model, report, str(self.start_from)):
            name = self.start_from.name
            logger.info("%s lacks %d weights, which are newly initialized: %s", name, len(fresh), listed(fresh))
        return model


def model_class(model_type: str, checkpoint: Pretrained | None = None) -> type[PreTrainedModel]:
    """`<Model>ForPreTraining` of a model type: the installed one, or that of a checkpoint of this type whose code is
    trusted. Raises ValueError for such a checkpoint that cannot be read."""
    if checkpoint and checkpoint.trust_remote_code:
        checkpoint.config()
        if PreTrainedConfig.get_config_dict(checkpoint.path)[0].get("model_type") == model_type:
            return auto_model_class(AutoModelForPreTraining, checkpoint.path, checkpoint.trust_remote_code)
    return installed_class(model_type, "AutoModelForPreTraining")


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
    if isinstance(objective, ExampleObjective) and objective.max_length > longest:
        advice = f"Set {place}.max_length={longest}, or raise model.config.max_position_embeddings"
        raise ValueError(
            f"{place}.max_length is {objective.max_length}, and the model has {longest} positions. {advice}."
        )
