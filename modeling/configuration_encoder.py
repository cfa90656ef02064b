# SPDX-License-Identifier: Apache-2.0
"""Configuration of the shared encoder, and the Auto classes that every model of the zoo answers to."""

import copy
import os
from typing import Any, ClassVar, cast

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from .backbone import ARCHITECTURES

# Types whose weights have our encoder's layout; only what a paper adds is fresh. BERT's have other names.
LIKE_ROBERTA = ("xlm-roberta", "roberta", "camembert", "xlm_align", "ernie_m", "metaxlm", "veco")
LOADABLE = (*LIKE_ROBERTA, "bert")
# Types that count positions from behind the padding's row, as RoBERTa does; others count from 0.
FROM_PADDING = (
    *LIKE_ROBERTA,
    "data2vec-text",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta-prelayernorm",
    "xlm-roberta-xl",
    "xmod",
)

HEADS = {
    "AutoModel": "Model",
    "AutoModelForPreTraining": "ForPreTraining",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
    "AutoModelForQuestionAnswering": "ForQuestionAnswering",
}

# What the zoo reads of an encoder's shape, under one name in all of them.
SHAPE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "initializer_range",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "type_vocab_size",
    "tie_word_embeddings",
)
# Arguments of `from_pretrained` that say where a checkpoint is.
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


@strict
class EncoderConfig(PreTrainedConfig):
    """What XLM-R's configuration holds; the defaults are those of `xlm-roberta-base`.

    With `backbone_config`, that of another architecture, the encoder is its library's class, and the fields of `SHAPE`
    are its own: they are read from there, and a change of one of them changes both.

    Raises `ValueError` where `hidden_size` is not a multiple of `num_attention_heads`, for a `pad_token_id` that is no
    token, and for a backbone of a model with cross-attention; wrong types are refused by `@strict`.
    """

    vocab_size: int = 250002
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    classifier_dropout: float | int | None = None
    # 512 positions and the two that XLM-R leaves unused: positions start at pad_token_id + 1
    max_position_embeddings: int = 514
    # BERT's way: the first position is row 0, and no rows are left unused
    positions_from_zero: bool = False
    # one row, as in XLM-R's checkpoints: a constant that is added everywhere
    type_vocab_size: int = 1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = True
    backbone_config: dict[str, Any] | PreTrainedConfig | None = None

    sub_configs = {"backbone_config": AutoConfig}
    # Auto class -> suffix of the class's name, for the heads that this model type has in addition to `HEADS`
    further_heads: ClassVar[dict[str, str]] = {}
    # Task -> the pipeline that the folder brings for it, as the library records it
    pipelines: ClassVar[dict[str, dict[str, Any]]] = {}
    # Not called add_cross_attention: XLM-R's checkpoints set that to false, and VECO starts from them.
    cross_attention = False
    add_pooling_layer = False
    lm_head_transform = True
    lm_head_scale = 1.0

    def __post_init__(self, **kwargs: Any) -> None:
        """The library's; fields of a backbone are read, sizes checked, and the Auto classes written down."""
        if isinstance(self.backbone_config, dict):
            self.backbone_config = AutoConfig.for_model(**self.backbone_config)
        if self.backbone_config is not None and type(self).cross_attention:
            raise ValueError(
                f"{type(self).__name__} has cross-attention inside layers of XLM-R's or BERT's shape, and no backbone: "
                f"this one is of model type {self.backbone_config.model_type!r}."
            )
        if self.backbone_config is not None:
            for name in SHAPE:
                setattr(self, name, getattr(self.backbone_config, name, getattr(self, name)))
        super().__post_init__(**kwargs)
        if self.backbone_config is None:
            self._check_sizes()
        if getattr(self, "auto_map", None) is None and self.model_type:
            self.auto_map = self._auto_map()
        if getattr(self, "custom_pipelines", None) is None and self.pipelines:
            self.custom_pipelines = copy.deepcopy(self.pipelines)

    def _check_sizes(self) -> None:
        if self.pad_token_id is None or not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id must be from 0 to {self.vocab_size - 1}, got {self.pad_token_id}.")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}."
            )

    def _auto_map(self) -> dict[str, str]:
        """Of every head, so that whichever was saved, every Auto class loads the folder."""
        config_class = type(self).__name__
        prefix = config_class.removesuffix("Config")
        auto_map = {"AutoConfig": f"configuration_{self.model_type}.{config_class}"}
        for auto_class, suffix in (HEADS | self.further_heads).items():
            auto_map[auto_class] = f"modeling_{self.model_type}.{prefix}{suffix}"
        return auto_map

    def __setattr__(self, key: str, value: Any) -> None:
        """The library's; a field of `SHAPE` changes in the backbone's configuration, too."""
        super().__setattr__(key, value)
        backbone = self.__dict__.get("backbone_config")
        # `resize_token_embeddings`, say, knows this configuration alone, and a folder loads by the backbone's
        if key in SHAPE and isinstance(backbone, PreTrainedConfig) and hasattr(backbone, key):
            setattr(backbone, key, value)

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The library's, for one of the `LOADABLE` model types; the entries that name files are left out.
        That of one of the `ARCHITECTURES` becomes `backbone_config`.

        Raises `ValueError` for any other model type: each of its weights would be missing, and random numbers loaded.
        """
        hub_arguments = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
        settings, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        model_type = settings.get("model_type", cls.model_type)
        if model_type in ARCHITECTURES:
            return {"model_type": cls.model_type, "backbone_config": settings}, kwargs
        if model_type not in (cls.model_type, *LOADABLE):
            raise ValueError(
                f"{pretrained_model_name_or_path} is of model type {model_type!r}, whose weights do not fit "
                f"{cls.__name__}: it loads those of {', '.join((*LOADABLE, *ARCHITECTURES))}."
            )
        names_files = ("auto_map", "custom_pipelines")  # those of this class are written anew
        settings = {name: value for name, value in settings.items() if name not in names_files}
        settings["model_type"] = cls.model_type
        if model_type == "bert":
            ids = ids_of_tokenizer(pretrained_model_name_or_path, **hub_arguments)
            settings |= {"positions_from_zero": True, "eos_token_id": None, **ids}
        return settings, kwargs


def ids_of_tokenizer(checkpoint: str | os.PathLike, **hub_arguments: Any) -> dict[str, int]:
    """Special ids of the tokenizer in the checkpoint's folder, or none if it has no tokenizer: BERT's configurations
    lack them, or have wrong ones (multilingual-e5's vocabulary is XLM-R's). `hub_arguments`: some of `HUB_ARGUMENTS`.
    """
    try:
        loaded = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False, **hub_arguments)
    except (OSError, ValueError):
        return {}
    tokenizer = cast(PreTrainedTokenizerBase, loaded)
    if len(tokenizer) == len(set(tokenizer.all_special_ids)):  # made up by the library, of a configuration alone
        return {}
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    return {name: number for name, number in ids.items() if number is not None}


def first_position(config: PreTrainedConfig) -> int:
    """The position of an input's first token in a model of this configuration, of this zoo or another."""
    has_backbone = getattr(config, "backbone_config", None) is not None
    if has_backbone or getattr(config, "positions_from_zero", False) or config.model_type not in FROM_PADDING:
        return 0
    return config.pad_token_id + 1


def longest_input(config: PreTrainedConfig) -> int | None:
    """Longest input in tokens, special tokens included; None where the model sets no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if not positions:
        return positions
    return positions - first_position(config)
