# SPDX-License-Identifier: Apache-2.0
"""An encoder of another architecture below the zoo's heads and objectives: its library's class, unchanged.

A configuration with `backbone_config` has one. What the zoo must know of an architecture is an entry of
`ARCHITECTURES`: where its masked-LM head is, and how a block mask is handed to it. Weights are called as in its own
checkpoints, below `roberta.backbone.` and `lm_head.parts.`.

Legend: `B` sequences, `T` positions, `H` hidden size.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import sliding_window_bidirectional_overlay
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from .attention_masks import prepare_attention_mask


def one_mask(model: PreTrainedModel, embeddings_BTH: Tensor, allow_BTT: Tensor) -> Tensor:
    """A mask for all layers, as the attention implementation wants it."""
    return prepare_attention_mask(model.config, embeddings_BTH, allow_BTT)


def mask_by_layer_type(model: PreTrainedModel, embeddings_BTH: Tensor, allow_BTT: Tensor) -> dict[str, Tensor]:
    """A mask for layers that attend to everything, and one for those that attend within a window."""
    is_near = sliding_window_bidirectional_overlay(model.config.sliding_window)
    position_T = torch.arange(allow_BTT.shape[1], device=allow_BTT.device)
    within_BTT = allow_BTT & is_near(0, 0, position_T[:, None], position_T)
    return {
        "full_attention": prepare_attention_mask(model.config, embeddings_BTH, allow_BTT),
        "sliding_attention": prepare_attention_mask(model.config, embeddings_BTH, within_BTT),
    }


@dataclass(frozen=True)
class Architecture:
    """What the zoo has to know of a model type.

    transform: the module of its `...ForMaskedLM` between last states and output embeddings; None: there is none.
    block_mask: makes of (model, embeddings, boolean mask (B, T, T)) the model's `attention_mask`; None: there is none.
    """

    transform: str | None
    block_mask: Callable[[PreTrainedModel, Tensor, Tensor], Any] | None


ARCHITECTURES = {
    "modernbert": Architecture("head", mask_by_layer_type),
    "eurobert": Architecture(None, one_mask),
    "deberta-v2": Architecture("cls.predictions.transform", None),
}


# BERT is XLM-R's layout under other names; the sentence head (`cls.seq_relationship`) has no place here.
BERT_NAMES = {
    r"^bert\.": "roberta.",
    r"^cls\.predictions\.transform\.dense\.": "lm_head.dense.",
    r"^cls\.predictions\.transform\.LayerNorm\.gamma$": "lm_head.layer_norm.weight",  # of the checkpoints of 2018
    r"^cls\.predictions\.transform\.LayerNorm\.beta$": "lm_head.layer_norm.bias",
    r"^cls\.predictions\.transform\.LayerNorm\.": "lm_head.layer_norm.",
    r"^cls\.predictions\.decoder\.": "lm_head.decoder.",
    r"^cls\.predictions\.bias$": "lm_head.bias",
}


def architecture_of(backbone_config: PreTrainedConfig) -> Architecture:
    """Raises ValueError for a model type that has no entry."""
    if backbone_config.model_type not in ARCHITECTURES:
        types = ", ".join(ARCHITECTURES)
        raise ValueError(f"the model type of the backbone must be one of {types}, got {backbone_config.model_type!r}.")
    return ARCHITECTURES[backbone_config.model_type]


def honors_block_masks(backbone_config: PreTrainedConfig | None) -> bool:
    """Whether a (B, T, T) mask can be given to the encoder; None is XLM-R's shape, which can."""
    return backbone_config is None or architecture_of(backbone_config).block_mask is not None


def make_backbone(config: PreTrainedConfig, auto_class: Any = AutoModel) -> PreTrainedModel:
    """The encoder of `config.backbone_config` by its library's class, or with its masked-LM head (`auto_class`)."""
    architecture_of(config.backbone_config)
    attention = config._attn_implementation
    if attention == "sdpa":
        attention = None  # the library's choice: sdpa where the architecture has it
    return auto_class.from_config(config.backbone_config, attn_implementation=attention)


def renamed(whole: PreTrainedModel, name: str) -> str:
    """What a parameter of a `...ForMaskedLM` is called below the zoo's heads and objectives."""
    base, _, rest = name.partition(".")
    if base == whole.base_model_prefix:
        return f"roberta.backbone.{rest}"
    return f"lm_head.parts.{name}"


def key_mapping(backbone_config: PreTrainedConfig) -> dict[str, str]:
    """Patterns of the names in a checkpoint of the architecture, with or without a masked-LM head -> names here."""
    with torch.device("meta"):
        whole = AutoModelForMaskedLM.from_config(backbone_config)
    prefix = whole.base_model_prefix
    patterns = {f"^{re.escape(prefix)}\\.": "roberta.backbone."}
    for name, _ in whole.base_model.named_children():
        patterns[f"^{re.escape(name)}\\."] = f"roberta.backbone.{name}."
    for name, _ in whole.named_children():
        if name != prefix:
            patterns[f"^{re.escape(name)}\\."] = f"lm_head.parts.{name}."
    return patterns


def run_backbone(
    model: PreTrainedModel,
    attention_mask: Tensor | None,
    num_layers: int | None,
    output_hidden_states: bool | None = None,
    **inputs: Tensor | None,
) -> BaseModelOutputWithPoolingAndCrossAttentions:
    """Encode, by the conventions of `EncoderModel.forward`; positions and token types are the library's own.

    Raises ValueError for a block mask that the architecture cannot honor.
    """
    # not every architecture has a name for token types
    encoder_inputs: dict[str, Any] = {name: value for name, value in inputs.items() if value is not None}
    if attention_mask is not None and attention_mask.dim() == 3:
        block_mask = architecture_of(model.config).block_mask
        if block_mask is None:
            raise ValueError(f"{model.config.model_type} takes no (B, T, T) attention_mask: train mlm, tlm and dwa.")
        if "inputs_embeds" not in encoder_inputs:
            encoder_inputs["inputs_embeds"] = model.get_input_embeddings()(encoder_inputs.pop("input_ids"))
        attention_mask = block_mask(model, encoder_inputs["inputs_embeds"], attention_mask)
    returns_all = bool(output_hidden_states)
    outputs = model(
        **encoder_inputs,
        attention_mask=attention_mask,
        output_hidden_states=returns_all or num_layers is not None,
        return_dict=True,
    )
    return BaseModelOutputWithPoolingAndCrossAttentions(
        last_hidden_state=outputs.last_hidden_state if num_layers is None else outputs.hidden_states[num_layers],
        hidden_states=outputs.hidden_states if returns_all else None,
        attentions=outputs.attentions,
    )
