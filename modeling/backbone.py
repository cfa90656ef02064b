# SPDX-License-Identifier: Apache-2.0
"""An encoder of another architecture below the zoo's heads and objectives: its library's class, unchanged.

A configuration with `backbone_config` has one. What the zoo must know of an architecture is an entry of
`ARCHITECTURES`: where its masked-LM head is, and how a block mask is handed to it. Weights are called as in its own
checkpoints, below `roberta.backbone.` and `lm_head.parts.`.

Legend: `B` sequences, `T` positions, `H` hidden size, `V` vocabulary.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedModel
from transformers.masking_utils import create_bidirectional_sliding_window_mask
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from .attention_masks import prepare_attention_mask


def one_mask(model, embeddings_BTH, allow_BTT) -> torch.Tensor:
    """A mask for all layers, as the attention implementation wants it."""
    return prepare_attention_mask(model.config, embeddings_BTH, allow_BTT)


def mask_by_layer_type(model, embeddings_BTH, allow_BTT) -> dict[str, torch.Tensor]:
    """A mask for layers that attend to everything, and one for those that attend within a window."""
    window = create_bidirectional_sliding_window_mask(
        config=model.config, inputs_embeds=embeddings_BTH[:1], attention_mask=None
    )
    if window is None:  # the whole row fits
        within_BTT = allow_BTT
    else:
        within_BTT = allow_BTT & (window[:, 0] if window.dtype == torch.bool else window[:, 0].eq(0))
    return {
        "full_attention": prepare_attention_mask(model.config, embeddings_BTH, allow_BTT),
        "sliding_attention": prepare_attention_mask(model.config, embeddings_BTH, within_BTT),
    }


@dataclass(frozen=True)
class Architecture:
    """What the zoo has to know of a model type.

    transform: the module of its `...ForMaskedLM` between last states and output embeddings; None: there is none.
    block_mask: makes of (model, embeddings, boolean mask (B, T, T)) what the model takes as `attention_mask`; None:
        it can honor none.
    """

    transform: str | None
    block_mask: Callable[..., Any] | None


ARCHITECTURES = {
    "modernbert": Architecture("head", mask_by_layer_type),
    "eurobert": Architecture(None, one_mask),
    "deberta-v2": Architecture("cls.predictions.transform", None),
}


# BERT is XLM-R's layout under other names; the sentence head (`cls.seq_relationship`) has no place here.
BERT_NAMES = {
    r"^bert\.": "roberta.",
    r"^cls\.predictions\.transform\.dense\.": "lm_head.dense.",
    r"^cls\.predictions\.transform\.LayerNorm\.": "lm_head.layer_norm.",
    r"^cls\.predictions\.decoder\.": "lm_head.decoder.",
    r"^cls\.predictions\.bias$": "lm_head.bias",
}


def architecture_of(backbone_config) -> Architecture:
    """Raises ValueError for a model type that has no entry."""
    if backbone_config.model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"a backbone of model type {backbone_config.model_type!r} is not known: {known} are.")
    return ARCHITECTURES[backbone_config.model_type]


def honors_block_masks(backbone_config) -> bool:
    """Whether a (B, T, T) mask can be given to the encoder; None is XLM-R's shape, which can."""
    return backbone_config is None or architecture_of(backbone_config).block_mask is not None


def make_backbone(config, auto_class=AutoModel) -> PreTrainedModel:
    """The encoder of `config.backbone_config` by its library's class, or with its masked-LM head (`auto_class`)."""
    architecture_of(config.backbone_config)
    wanted = config._attn_implementation
    if wanted == "sdpa" and not auto_class._model_mapping[type(config.backbone_config)]._supports_sdpa:
        wanted = "eager"
    return auto_class.from_config(config.backbone_config, attn_implementation=wanted)


def renamed(whole: PreTrainedModel, name: str) -> str:
    """What a parameter of a `...ForMaskedLM` is called below the zoo's heads and objectives."""
    base, _, rest = name.partition(".")
    return f"roberta.backbone.{rest}" if base == whole.base_model_prefix else f"lm_head.parts.{name}"


def key_mapping(backbone_config) -> dict[str, str]:
    """Patterns of the names in a checkpoint of the architecture, with or without a masked-LM head -> names here."""
    with torch.device("meta"):
        whole = AutoModelForMaskedLM.from_config(backbone_config)
    base = whole.base_model_prefix
    names = {f"{base}.": "roberta.backbone."}
    names |= {f"{name}.": f"roberta.backbone.{name}." for name, _ in whole.base_model.named_children()}
    names |= {f"{name}.": f"lm_head.parts.{name}." for name, _ in whole.named_children() if name != base}
    return {"^" + re.escape(name): target for name, target in names.items()}


def run_backbone(
    model: PreTrainedModel,
    first_position: int,
    input_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    num_layers: int | None,
    output_hidden_states: bool | None = None,
    **kwargs,
) -> BaseModelOutputWithPoolingAndCrossAttentions:
    """Encode, by the conventions of `EncoderModel.forward`: positions count from `first_position`.

    Raises ValueError for a block mask that the architecture cannot honor.
    """
    if attention_mask is not None and attention_mask.dim() == 3:
        if inputs_embeds is None:
            inputs_embeds, input_ids = model.get_input_embeddings()(input_ids), None
        attention_mask = block_mask(model, inputs_embeds, attention_mask)
    if position_ids is not None:
        position_ids = (position_ids - first_position).clamp(min=0)
    wants_all = output_hidden_states or num_layers is not None
    outputs = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        inputs_embeds=inputs_embeds,
        output_hidden_states=wants_all,
        return_dict=True,
        **kwargs,
    )
    states = outputs.last_hidden_state if num_layers is None else outputs.hidden_states[num_layers]
    return BaseModelOutputWithPoolingAndCrossAttentions(
        last_hidden_state=states,
        hidden_states=outputs.hidden_states if output_hidden_states else None,
        attentions=outputs.attentions,
    )


def block_mask(model: PreTrainedModel, embeddings_BTH: torch.Tensor, allow_BTT: torch.Tensor) -> Any:
    """What the architecture takes for a block mask."""
    if not honors_block_masks(model.config):
        raise ValueError(
            f"{model.config.model_type} has no way to honor a (B, T, T) attention_mask: train mlm, tlm and dwa, in "
            "rows that are not packed."
        )
    return architecture_of(model.config).block_mask(model, embeddings_BTH, allow_BTT)
