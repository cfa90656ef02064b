# SPDX-License-Identifier: Apache-2.0
"""The encoder that all four models share: a post-LayerNorm Transformer with XLM-R's parameter names.

Because the names are XLM-R's, `from_pretrained("FacebookAI/xlm-roberta-base")` loads every weight; only what a paper
adds is fresh. VECO's cross-attention (section 3.1) sits between self-attention and feed-forward, with a LayerNorm.

Legend: `B` sequences, `T` positions, `S` positions that are attended to (of the same or the other sequence), `H` hidden
size, `A` heads, `D` = H/A; `P` packed rows, `W` and `K` their positions that attend and are attended to.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, Cache, EncoderDecoderCache, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention_masks import Packing, is_real, prepare_attention_mask
from .backbone import ARCHITECTURES, BERT_NAMES, honors_block_masks, key_mapping, make_backbone, run_backbone
from .configuration_encoder import HUB_ARGUMENTS, EncoderConfig, first_position, longest_input


def count_positions(is_token_BT: torch.Tensor, first: int) -> torch.Tensor:
    """Positions (B, T): tokens are counted from `first`, see `first_position`. Padding, on either side, is at the
    position before it, which is XLM-R's padding row; at 0 if there is none."""
    is_token_BT = is_token_BT.long()
    return (is_token_BT.cumsum(1) * is_token_BT + first - 1).clamp(min=0)


def position_ids_of(input_ids_BT: torch.Tensor, config: EncoderConfig) -> torch.Tensor:
    """The positions (B, T) that a model of `config` gives these tokens by default."""
    is_token_BT = input_ids_BT.ne(cast(int, config.pad_token_id))
    return count_positions(is_token_BT, first_position(config))


class Embeddings(nn.Module):
    """Word, position and (constant) token-type embeddings, summed and normalized."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.config = config
        padding = config.pad_token_id
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=padding)
        self.position_embeddings = nn.Embedding(
            config.max_position_embeddings,
            config.hidden_size,
            padding_idx=None if config.positions_from_zero else padding,
        )
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def default_positions(self, tokens: torch.Tensor) -> torch.Tensor:
        """Positions (B, T) of token ids (B, T), or (1, T) of embedded tokens (B, T, H)."""
        if tokens.dim() == 2:
            return position_ids_of(tokens, self.config)
        first = first_position(self.config)
        return torch.arange(first, first + tokens.shape[1], device=tokens.device)[None]

    def check_length(self, position_ids_BT: torch.Tensor) -> None:
        """Raises `ValueError` for positions that the model does not have."""
        limit = longest_input(self.config)
        if limit is None or position_ids_BT.shape[1] <= limit:
            return
        # Only now can a position be out of range; looking costs a synchronization on a GPU.
        longest = int(position_ids_BT.max()) - first_position(self.config) + 1
        if longest > limit:
            raise ValueError(
                f"an input of {longest} tokens is longer than the model's {limit} positions: cut it (truncation=True, "
                "or max_length of a collator)."
            )

    def forward(
        self,
        input_ids_BT: torch.Tensor | None,
        position_ids_BT: torch.Tensor,
        token_type_ids_BT: torch.Tensor | None,
        inputs_embeds_BTH: torch.Tensor | None,
    ) -> torch.Tensor:
        """Embeddings (B, T, H). Positions and types are (B, T), or (1, T) for all rows."""
        if inputs_embeds_BTH is None:
            inputs_embeds_BTH = self.word_embeddings(input_ids_BT)
        if token_type_ids_BT is None:
            token_type = self.token_type_embeddings.weight[0]
        else:
            token_type = self.token_type_embeddings(token_type_ids_BT)
        summed_BTH = inputs_embeds_BTH + token_type + self.position_embeddings(position_ids_BT)
        return self.dropout(self.LayerNorm(summed_BTH))


# What `Embeddings.forward` reads of a batch, in the order of its arguments.
TOKEN_FIELDS = ("input_ids", "position_ids", "token_type_ids", "inputs_embeds")


def eager_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain attention of a query (B, A, T, D) to key and value (B, A, S, D): contexts (B, T, A, D) and, unlike others,
    weights (B, A, T, S). `attention_mask` is added to the scores."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class MultiHeadAttention(nn.Module):
    """Queries from one sequence, keys and values from the same (self) or another one (cross)."""

    def __init__(self, config: EncoderConfig, layer_index: int | None = None):
        super().__init__()
        self.config = config
        self.layer_index: Any = layer_index  # of this module's keys and values in a cache; None without one
        self.head_size = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = config.attention_probs_dropout_prob
        # sdpa takes a module without this for a causal one whenever the mask is None
        self.is_causal = False

    def heads(self, projected_BTH: torch.Tensor) -> torch.Tensor:
        """(B, T, H) -> (B, A, T, D)."""
        return projected_BTH.view(*projected_BTH.shape[:-1], -1, self.head_size).transpose(1, 2)

    def keys_and_values(
        self, attended_BSH: torch.Tensor, cache: EncoderDecoderCache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (B, A, S, D) each; subclasses say what an `EncoderDecoderCache` adds to them."""
        return self.heads(self.key(attended_BSH)), self.heads(self.value(attended_BSH))

    def forward(
        self,
        states_BTH: torch.Tensor,
        attended_BSH: torch.Tensor,
        attention_mask: Any,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        attention = cast(str, self.config._attn_implementation)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(attention, eager_attention)
        query = self.heads(self.query(states_BTH))
        key, value = self.keys_and_values(attended_BSH, cache)
        kwargs["dropout"] = self.dropout if self.training else 0.0
        kwargs["scaling"] = self.head_size**-0.5
        context_BTAD, weights = attend(self, query, key, value, attention_mask, **kwargs)
        return context_BTAD.reshape(states_BTH.shape), weights


class SelfAttention(MultiHeadAttention):
    """A class of its own, so that `output_attentions` can distinguish self-attention from cross-attention."""

    def keys_and_values(
        self, attended_BSH: torch.Tensor, cache: EncoderDecoderCache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of all positions so far: the cache's, and behind them those of `attended_BSH`, which it takes in."""
        keys, values = super().keys_and_values(attended_BSH, cache)
        if cache is None:
            return keys, values
        return cache.self_attention_cache.update(keys, values, self.layer_index)


class CrossAttention(MultiHeadAttention):
    """Queries from this sequence, keys and values from the other one."""

    def keys_and_values(
        self, attended_BSH: torch.Tensor, cache: EncoderDecoderCache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of the other sequence, which stays the same while this one grows: computed once, then the cache's."""
        if cache is None:
            return super().keys_and_values(attended_BSH, None)
        cross_cache: Cache = cache.cross_attention_cache
        if cache.is_updated.get(self.layer_index):
            layer = cross_cache.layers[self.layer_index]
            return layer.keys, layer.values
        cache.is_updated[self.layer_index] = True
        keys, values = super().keys_and_values(attended_BSH, None)
        return cross_cache.update(keys, values, self.layer_index)


class ResidualOutput(nn.Module):
    """Linear map, dropout, residual connection, LayerNorm (post-LN)."""

    def __init__(self, input_size: int, config: EncoderConfig):
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, states: torch.Tensor, residual_BTH: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(states)) + residual_BTH)


class AttentionBlock(nn.Module):
    """Attention with its residual output; the names `self` and `output` are XLM-R's."""

    def __init__(
        self, attention_class: type[MultiHeadAttention], config: EncoderConfig, layer_index: int | None = None
    ):
        super().__init__()
        self.self = attention_class(config, layer_index)
        self.output = ResidualOutput(config.hidden_size, config)

    def forward(
        self, states_BTH: torch.Tensor, attended_BSH: torch.Tensor, attention_mask: Any, **kwargs: Any
    ) -> torch.Tensor:
        context_BTH, _ = self.self(states_BTH, attended_BSH, attention_mask, **kwargs)
        return self.output(context_BTH, states_BTH)


class Intermediate(nn.Module):
    """First half of the feed-forward block."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, states_BTH: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(states_BTH))


class EncoderLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention if another sequence is given, feed-forward.

    A decoder's layer knows its index, under which a cache has its keys and values.
    """

    def __init__(self, config: EncoderConfig, cross_attention: bool, layer_index: int | None = None):
        super().__init__()
        self.attention = AttentionBlock(SelfAttention, config, layer_index)
        self.crossattention: Any = None
        if cross_attention:
            self.crossattention = AttentionBlock(CrossAttention, config, layer_index)
        self.intermediate = Intermediate(config)
        self.output = ResidualOutput(config.intermediate_size, config)

    def forward(
        self,
        states_BTH: torch.Tensor,
        attention_mask: Any,
        encoder_states_BSH: torch.Tensor | None = None,
        encoder_attention_mask: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        states_BTH = self.attention(states_BTH, states_BTH, attention_mask, **kwargs)
        if encoder_states_BSH is not None:
            states_BTH = self.crossattention(states_BTH, encoder_states_BSH, encoder_attention_mask, **kwargs)
        return self.output(self.intermediate(states_BTH), states_BTH)


def first_states(states_BTH: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """(B, H) states of the first real position of each row, with padding on either side.

    `attention_mask` is (B, T) or (B, T, T), as `EncoderModel.forward` takes it; without one, no position is padding.
    """
    if attention_mask is None:
        return states_BTH[:, 0]
    first_B = is_real(attention_mask).int().argmax(1)  # of equals the first
    return states_BTH.gather(1, first_B[:, None, None].expand(-1, 1, states_BTH.shape[2]))[:, 0]


class PoolerLinear(nn.Linear):
    """Its fresh weights are the same for every seed. PEFT does not save it with an adapter, so that whoever loads the
    adapter makes it anew, and has to get the weights that it was trained with."""


class Pooler(nn.Module):
    """tanh of a linear map of each text's first state: (B, H) -> (B, H)."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = PoolerLinear(config.hidden_size, config.hidden_size)

    def forward(self, first_BH: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(first_BH))


# weights that an encoder or a task's head leaves out
LM_HEAD = r"^lm_head\.(bias$|decoder\.|dense\.|layer_norm\.|parts\.)"


class EncoderPreTrainedModel(PreTrainedModel):
    """What the library has to know of every model of the zoo. The prefix is XLM-R's."""

    config: Any  # of the model type's class
    config_class: Any
    base_model_prefix = "roberta"
    encoder_class: Any = None  # the encoder of the model type, set by its file
    # The losses are means over the micro-batch. Trainer takes a forward with **kwargs for one that divides by the
    # examples of the whole step, and would scale the loss up by processes and accumulation.
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    _keys_to_ignore_on_load_unexpected = [LM_HEAD]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["Embeddings", "EncoderLayer"]
    _can_record_outputs = {
        "hidden_states": EncoderLayer,
        "attentions": SelfAttention,
        "cross_attentions": CrossAttention,
    }
    skip_padding = False  # see `set_skip_padding`

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """The library's; every weight of another architecture's checkpoint has its place here too (`key_mapping`)."""
        hub_arguments = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
        saved_config = {}
        if pretrained_model_name_or_path is not None:
            saved_config, _ = PreTrainedConfig.get_config_dict(pretrained_model_name_or_path, **hub_arguments)
        model_type = saved_config.get("model_type")
        if model_type == "bert":
            kwargs["key_mapping"] = BERT_NAMES
        elif model_type in ARCHITECTURES:
            kwargs["key_mapping"] = key_mapping(AutoConfig.for_model(**saved_config))
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """The library's; what came from another architecture's checkpoint is saved under the names it has here."""
        kwargs.setdefault("save_original_format", False)
        return super().save_pretrained(*args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PoolerLinear):
            drawn_HH = torch.randn(module.weight.shape, generator=torch.Generator().manual_seed(0), device="cpu")
            init.copy_(module.weight, self.config.initializer_range * drawn_HH)

    def set_skip_padding(self, skip: bool) -> None:
        """Sets whether the texts of a batch share rows (`Packing`), so that next to nothing is computed at padding: the
        same numbers in less time. Off by default.

        Outputs keep their shapes, and are zero at padding. Like the attention implementation, this is a setting of the
        object, and is not saved. It has no effect without padding, for attention weights, under flash attention, in an
        exported or compiled model, and on an encoder that takes no block masks (DeBERTa).
        """
        for module in self.modules():
            if isinstance(module, EncoderPreTrainedModel):
                module.skip_padding = skip


class PaddedBatch(NamedTuple):
    """Sequences that are attended to.

    states: (B, S) tokens or (B, S, H) states; attention_mask: as `EncoderModel.forward` takes it; lengths: the numbers
    of tokens of the B sequences, on the CPU; None: not known, or padding is on the left, too.
    """

    states: torch.Tensor
    attention_mask: torch.Tensor | None
    lengths: Sequence[int] | None

    def check(self) -> None:
        """Raises `ValueError` for lengths of other sequences."""
        if self.lengths is None:
            return
        count, width = self.states.shape[:2]
        if len(self.lengths) != count or max(self.lengths, default=0) > width:
            raise ValueError(
                f"text_lengths are {self.lengths}, and the batch has {count} rows of {width} positions: give the "
                "number of tokens of each row, or leave them out."
            )

    @property
    def has_padding(self) -> bool | None:
        """Whether there is padding; None: only the mask says it, which is on the device."""
        if self.lengths is None:
            return None
        return min(self.lengths, default=0) < self.states.shape[1]

    def block_mask(self) -> torch.Tensor | None:
        """The mask, unless it only tells tokens from padding."""
        if self.attention_mask is None or self.attention_mask.dim() == 2:
            return None
        return self.attention_mask

    def needed_mask(self) -> torch.Tensor | None:
        """The mask; None in place of a padding mask that is known to have no padding."""
        if self.lengths is not None and not self.has_padding:
            return self.block_mask()
        return self.attention_mask

    def real_positions(self, queries: int, is_self: bool) -> np.ndarray | None:
        """(B, S) which positions are tokens, on the CPU; None for a mask that `prepare_attention_mask` refuses.

        Without `lengths`, this waits for a GPU, once.

        Args:
            queries: number of positions that attend, the rows of a block mask.
            is_self: whether they are the same positions. Then a position that attends is a token, even if nothing
                attends to it.
        """
        mask = self.attention_mask
        count, width = self.states.shape[:2]
        if mask is not None:
            is_boolean_block = mask.dtype == torch.bool and mask.shape == (count, queries, width)
            if mask.shape != (count, width) and not is_boolean_block:
                return None
        if self.lengths is not None:
            return np.arange(width) < np.asarray(self.lengths)[:, None]
        if mask is None:
            return np.ones((count, width), dtype=bool)
        if self.block_mask() is None or is_self:
            return is_real(mask).cpu().numpy()
        return mask.any(1).cpu().numpy()


class EncoderModel(EncoderPreTrainedModel):
    """Tokens in, one state a token out.

    `pooler` exists if `config.add_pooling_layer` is set (ERNIE-M) and the caller uses it. With
    `config.backbone_config` the encoder is another library class, `backbone`, and there are no layers of our own.
    """

    def __init__(self, config: EncoderConfig, add_pooling_layer: bool = True, backbone: PreTrainedModel | None = None):
        super().__init__(config)
        if config.backbone_config is None:
            self.embeddings = Embeddings(config)
            layers = [EncoderLayer(config, config.cross_attention) for _ in range(config.num_hidden_layers)]
            self.encoder: Any = nn.ModuleDict({"layer": nn.ModuleList(layers)})  # XLM-R's name
        else:
            self.backbone = make_backbone(config) if backbone is None else backbone
        self.pooler = Pooler(config) if add_pooling_layer and config.add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        if self.config.backbone_config is not None:
            return self.backbone.get_input_embeddings()
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: Any) -> None:
        if self.config.backbone_config is not None:
            self.backbone.set_input_embeddings(value)
        else:
            self.embeddings.word_embeddings = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        num_layers: int | None = None,
        text_lengths: Sequence[int] | None = None,
        encoder_text_lengths: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Encode.

        Args:
            input_ids: (B, T) tokens, or `inputs_embeds` (B, T, H) in their place.
            attention_mask: (B, T), 0 for padding on either side; or boolean (B, T, T), True: row attends to column.
            token_type_ids: (B, T), type 0 by default. An architecture without types reads none, as in its library.
            position_ids: (B, T), as the library of the architecture counts them, from `first_position`: 0 of
                BERT's shape and of a backbone, `pad_token_id + 1` of XLM-R's. By default without padding, in order.
            encoder_hidden_states: (B, S, H) states of another sequence, for the cross-attention of every layer.
            encoder_attention_mask: (B, S), or boolean (B, T, S).
            num_layers: layers to run, for those who want the states of a lower one: `last_hidden_state` is that of
                layer `num_layers` (0: the embeddings, without `hidden_states`); only a backbone computes the rest.
            text_lengths, encoder_text_lengths: (B,) numbers of tokens that are not padding, on the CPU, of `input_ids`
                and of `encoder_hidden_states`, if all padding is on the right. The masks say the same, but they are on
                the device, and reading them there waits for a GPU.

        Raises:
            ValueError: neither or both of `input_ids` and `inputs_embeds`; more tokens than positions; a mask of
                another shape; `encoder_hidden_states` for a model without cross-attention; `num_layers` out of range;
                lengths of other texts.

        Example:
            >>> inputs = tokenizer(["The house is small.", "Das Haus."], padding=True, return_tensors="pt")
            >>> states_BTH = model(**inputs).last_hidden_state
        """
        self._check_arguments(input_ids, inputs_embeds, encoder_hidden_states, num_layers)
        # one of them was given
        states = cast(torch.Tensor, input_ids if inputs_embeds is None else inputs_embeds)
        texts = PaddedBatch(states, attention_mask, text_lengths)
        texts.check()
        others = None
        if encoder_hidden_states is not None:
            others = PaddedBatch(encoder_hidden_states, encoder_attention_mask, encoder_text_lengths)
            others.check()
        if self.config.backbone_config is None:
            if position_ids is None:
                position_ids = self.embeddings.default_positions(states)
            self.embeddings.check_length(position_ids)
        tokens: dict[str, Any] = {  # `TOKEN_FIELDS`
            "input_ids": input_ids,
            "position_ids": position_ids,
            "token_type_ids": token_type_ids,
            "inputs_embeds": inputs_embeds,
        }
        packings = self._packings(texts, others, **kwargs) if self.skip_padding else None
        if packings is not None:
            tokens, texts, others = self._packed(packings, tokens, texts, others)
        if self.config.backbone_config is not None:
            mask = texts.needed_mask()
            outputs = run_backbone(self.backbone, **tokens, attention_mask=mask, num_layers=num_layers, **kwargs)
        else:
            embedded_BTH = self.embeddings(*tokens.values())
            outputs = self.encode(embedded_BTH, texts, others, num_layers, return_dict=True, **kwargs)
        if packings is not None:
            unpack_states(outputs, packings[0])
        if self.pooler is not None and num_layers is None:
            last_BTH = cast(torch.Tensor, outputs.last_hidden_state)
            pooled_BH = self.pooler(first_states(last_BTH, attention_mask))
            # made anew: as a tuple, fields are in the order in which they were set
            outputs = type(outputs)(**dict(outputs) | {"pooler_output": pooled_BH})
        return outputs

    @merge_with_config_defaults
    @capture_outputs
    def encode(
        self,
        states_BTH: torch.Tensor,
        texts: PaddedBatch,
        others: PaddedBatch | None,
        num_layers: int | None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """The layers, on embedded tokens of the `texts`, with cross-attention to the `others`.

        `output_hidden_states` is for the decorator. Compiled layers that read it would be compiled for each value.
        """
        attention_mask = prepare_attention_mask(
            self.config, states_BTH, texts.needed_mask(), has_padding=bool(texts.has_padding)
        )
        encoder_states_BSH = None
        encoder_attention_mask = None
        if others is not None:
            encoder_states_BSH = others.states
            encoder_attention_mask = prepare_attention_mask(
                self.config, states_BTH, others.needed_mask(), encoder_states_BSH, bool(others.has_padding)
            )
        for layer in self.encoder.layer[:num_layers]:
            states_BTH = layer(states_BTH, attention_mask, encoder_states_BSH, encoder_attention_mask, **kwargs)
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=states_BTH)

    def _check_arguments(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor | None,
        num_layers: int | None,
    ) -> None:
        depth = self.config.num_hidden_layers
        if num_layers is not None and not 0 <= num_layers <= depth:
            raise ValueError(f"num_layers must be from 0 (the embeddings) to {depth}, got {num_layers}.")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds; a collator's batch is for pre-training.")
        if encoder_hidden_states is not None and not self.config.cross_attention:
            raise ValueError("encoder_hidden_states need a model with cross-attention: leave them out.")

    def _keeps_padding(self, output_attentions: bool | None = None, **kwargs: Any) -> bool:
        """Whether texts cannot share rows; see `set_skip_padding`."""
        if output_attentions is None:
            output_attentions = getattr(self.config, "output_attentions", False)
        is_exported = torch.compiler.is_compiling() or torch.jit.is_tracing()
        skips_by_itself = "flash" in str(self.config._attn_implementation)  # leaves out the padding in attention
        takes_block_masks = honors_block_masks(self.config.backbone_config)
        return output_attentions or is_exported or skips_by_itself or not takes_block_masks

    def _packings(
        self, texts: PaddedBatch, others: PaddedBatch | None, **kwargs: Any
    ) -> tuple[Packing, Packing] | None:
        """The packing of the `texts`, and that of what they attend to: the `others`, or the texts. None if there is no
        padding, or if it stays."""
        if self._keeps_padding(**kwargs):
            return None
        device = texts.states.device
        width = texts.states.shape[1]
        is_real_BT = texts.real_positions(width, is_self=True)
        is_real_BS = is_real_BT
        if others is not None:
            is_real_BS = others.real_positions(width, is_self=False)
        if is_real_BT is None or is_real_BS is None or not is_real_BT.any():
            return None
        if is_real_BT.all() and is_real_BS.all():
            return None
        packing = Packing(is_real_BT, device)
        if others is None:
            return packing, packing
        return packing, Packing(is_real_BS, device, packing.row_of_text)

    def _packed(
        self,
        packings: tuple[Packing, Packing],
        tokens: dict[str, Any],
        texts: PaddedBatch,
        others: PaddedBatch | None,
    ) -> tuple[dict[str, Any], PaddedBatch, PaddedBatch | None]:
        """Tokens, texts and others, several in a row."""
        packing, other_packing = packings
        if tokens["position_ids"] is None:  # a backbone counts those of a row
            positions_1T = torch.arange(packing.padded_shape[1], device=texts.states.device)[None]
            tokens = tokens | {"position_ids": positions_1T}
        tokens_PW: dict[str, Any] = {}
        for name, values_BT in tokens.items():
            tokens_PW[name] = None if values_BT is None else packing.pack(values_BT)
        states_PW = tokens_PW["input_ids"]
        if states_PW is None:
            states_PW = tokens_PW["inputs_embeds"]
        mask_PWW = packing.mask(packing, texts.block_mask())
        if others is not None:
            mask_PWK = packing.mask(other_packing, others.block_mask())
            others = PaddedBatch(other_packing.pack(others.states), mask_PWK, None)
        return tokens_PW, PaddedBatch(states_PW, mask_PWW, None), others


def unpack_states(outputs: BaseModelOutputWithPoolingAndCrossAttentions, packing: Packing) -> None:
    """Replaces the states of packed rows by those of the padded batch."""
    last_PWH = cast(torch.Tensor, outputs.last_hidden_state)
    last_BTH = packing.unpack(last_PWH)
    outputs.last_hidden_state = last_BTH
    if outputs.hidden_states is not None:
        states = [last_BTH if state is last_PWH else packing.unpack(state) for state in outputs.hidden_states]
        outputs.hidden_states = tuple(states)


@contextmanager
def without_dropout(model: nn.Module) -> Generator[None]:
    """The model in evaluation mode, for this block only."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in was_training.items():
            module.training = training
