# SPDX-License-Identifier: Apache-2.0
"""The encoder that all four models share: a post-LayerNorm Transformer with XLM-R's parameter names.

Because the names are XLM-R's, `from_pretrained("FacebookAI/xlm-roberta-base")` loads every weight; only what a paper
adds is fresh. VECO's cross-attention (section 3.1) sits between self-attention and feed-forward, with a LayerNorm.

Legend: `B` sequences, `T` positions, `S` positions of the other sequence, `H` hidden size, `A` heads, `D` = H/A.
"""

from contextlib import contextmanager

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention_masks import Packing, is_real, prepare_attention_mask
from .backbone import ARCHITECTURES, BERT_NAMES, honors_block_masks, key_mapping, make_backbone, run_backbone
from .configuration_encoder import HUB_ARGUMENTS, first_position, longest_input


def count_positions(is_token_BT: torch.Tensor, first: int) -> torch.Tensor:
    """Positions (B, T): tokens count from `first`, `first_position`; padding on either side is at the row
    before it, XLM-R's padding row, or at row 0 where there is none."""
    is_token_BT = is_token_BT.long()
    return (is_token_BT.cumsum(1) * is_token_BT + first - 1).clamp(min=0)


def position_ids_of(input_ids_BT: torch.Tensor, config) -> torch.Tensor:
    """The positions (B, T) that a model of `config` gives these tokens by default."""
    return count_positions(input_ids_BT.ne(config.pad_token_id), first_position(config))


class Embeddings(nn.Module):
    """Word, position and (constant) token-type embeddings, summed and normalized."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(
            config.max_position_embeddings,
            config.hidden_size,
            padding_idx=None if config.positions_from_zero else config.pad_token_id,
        )
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def position_ids(self, input_ids_BT, inputs_embeds_BTH):
        """Positions (B, T), or (1, T) of embedded tokens, where the caller gives none."""
        if input_ids_BT is not None:
            return position_ids_of(input_ids_BT, self.config)
        first = first_position(self.config)
        return torch.arange(first, first + inputs_embeds_BTH.shape[1], device=inputs_embeds_BTH.device)[None]

    def forward(self, input_ids_BT, position_ids_BT, token_type_ids_BT, inputs_embeds_BTH):
        first, limit = first_position(self.config), longest_input(self.config)
        if position_ids_BT is None:
            position_ids_BT = self.position_ids(input_ids_BT, inputs_embeds_BTH)
        if position_ids_BT.shape[1] > limit:
            # Only then can a position be out of range; looking costs a synchronization on a GPU.
            longest = int(position_ids_BT.max()) - first + 1
            if longest > limit:
                raise ValueError(
                    f"an input of {longest} tokens is longer than the model's {limit} positions: cut it "
                    "(truncation=True)."
                )
        if inputs_embeds_BTH is None:
            inputs_embeds_BTH = self.word_embeddings(input_ids_BT)
        if token_type_ids_BT is None:
            token_type = self.token_type_embeddings.weight[0]
        else:
            token_type = self.token_type_embeddings(token_type_ids_BT)
        summed_BTH = inputs_embeds_BTH + token_type + self.position_embeddings(position_ids_BT)
        return self.dropout(self.LayerNorm(summed_BTH))


# What `Embeddings` reads of a batch, in its order.
TOKEN_FIELDS = ("input_ids", "position_ids", "token_type_ids", "inputs_embeds")


def eager_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Plain attention that also returns its weights (B, A, T, S); `attention_mask` is additive."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class MultiHeadAttention(nn.Module):
    """Queries from one sequence, keys and values from the same (self) or another one (cross)."""

    def __init__(self, config, layer_index=None):
        super().__init__()
        self.config = config
        self.layer_index = layer_index  # the row of a cache that is this module's
        self.head_size = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = config.attention_probs_dropout_prob
        # sdpa takes a module without this for a causal one whenever the mask is None
        self.is_causal = False

    def heads(self, projected_BTH):
        """(B, T, H) -> (B, A, T, D)."""
        return projected_BTH.view(*projected_BTH.shape[:-1], -1, self.head_size).transpose(1, 2)

    def keys_and_values(self, keys_BSH, cache):
        """Keys and values (B, A, S, D) each; subclasses say what an `EncoderDecoderCache` adds to them."""
        return self.heads(self.key(keys_BSH)), self.heads(self.value(keys_BSH))

    def forward(self, states_BTH, keys_BSH, attention_mask, cache=None, **kwargs):
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        kwargs |= {"dropout": self.dropout if self.training else 0.0, "scaling": self.head_size**-0.5}
        query, keys_and_values = self.heads(self.query(states_BTH)), self.keys_and_values(keys_BSH, cache)
        context_BTAD, weights = attend(self, query, *keys_and_values, attention_mask, **kwargs)
        return context_BTAD.reshape(states_BTH.shape), weights


class SelfAttention(MultiHeadAttention):
    """A class of its own, so that `output_attentions` can distinguish self-attention from cross-attention."""

    def keys_and_values(self, keys_BSH, cache):
        """Those of all positions so far: the cache's, and behind them those of `keys_BSH`, which it takes in."""
        keys, values = super().keys_and_values(keys_BSH, cache)
        if cache is None:
            return keys, values
        return cache.self_attention_cache.update(keys, values, self.layer_index)


class CrossAttention(MultiHeadAttention):
    """Queries from this sequence, keys and values from the other one."""

    def keys_and_values(self, keys_BSH, cache):
        """Those of the other sequence, which stays the same while this one grows: computed once, then the cache's."""
        if cache is None:
            return super().keys_and_values(keys_BSH, None)
        of_other = cache.cross_attention_cache
        if cache.is_updated.get(self.layer_index):
            return of_other.layers[self.layer_index].keys, of_other.layers[self.layer_index].values
        cache.is_updated[self.layer_index] = True
        return of_other.update(*super().keys_and_values(keys_BSH, None), self.layer_index)


class ResidualOutput(nn.Module):
    """Linear map, dropout, residual connection, LayerNorm (post-LN)."""

    def __init__(self, input_size, config):
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, states, residual_BTH):
        return self.LayerNorm(self.dropout(self.dense(states)) + residual_BTH)


class AttentionBlock(nn.Module):
    """Attention with its residual output; the names `self` and `output` are XLM-R's."""

    def __init__(self, attention_class, config, layer_index=None):
        super().__init__()
        self.self = attention_class(config, layer_index)
        self.output = ResidualOutput(config.hidden_size, config)

    def forward(self, states_BTH, keys_BSH, attention_mask, **kwargs):
        context_BTH, _ = self.self(states_BTH, keys_BSH, attention_mask, **kwargs)
        return self.output(context_BTH, states_BTH)


class Intermediate(nn.Module):
    """First half of the feed-forward block."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, states_BTH):
        return self.activation(self.dense(states_BTH))


class EncoderLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention if another sequence is given, feed-forward.

    A decoder's layer knows its index, the row of the cache that is its own.
    """

    def __init__(self, config, cross_attention: bool, layer_index: int | None = None):
        super().__init__()
        self.attention = AttentionBlock(SelfAttention, config, layer_index)
        self.crossattention = AttentionBlock(CrossAttention, config, layer_index) if cross_attention else None
        self.intermediate = Intermediate(config)
        self.output = ResidualOutput(config.intermediate_size, config)

    def forward(self, states_BTH, attention_mask, encoder_states_BSH=None, encoder_attention_mask=None, **kwargs):
        states_BTH = self.attention(states_BTH, states_BTH, attention_mask, **kwargs)
        if encoder_states_BSH is not None:
            states_BTH = self.crossattention(states_BTH, encoder_states_BSH, encoder_attention_mask, **kwargs)
        return self.output(self.intermediate(states_BTH), states_BTH)


def first_states(states_BTH, attention_mask):
    """(B, H) states of the first real position of each row, with padding on either side.

    `attention_mask` is (B, T) or (B, T, T), as `EncoderModel.forward` takes it; without one, no position is padding.
    """
    if attention_mask is None:
        return states_BTH[:, 0]
    first_B = is_real(attention_mask).int().argmax(1)  # of equals the first
    return states_BTH.gather(1, first_B[:, None, None].expand(-1, 1, states_BTH.shape[2]))[:, 0]


class PoolerLinear(nn.Linear):
    """Its fresh weights are the same for every seed: adapters (PEFT) do not save it, and read what it makes."""


class Pooler(nn.Module):
    """tanh of a linear map of each text's first state: (B, H) -> (B, H)."""

    def __init__(self, config):
        super().__init__()
        self.dense = PoolerLinear(config.hidden_size, config.hidden_size)

    def forward(self, first_BH):
        return torch.tanh(self.dense(first_BH))


# weights that an encoder or a task's head leaves out
LM_HEAD = r"^lm_head\.(bias$|decoder\.|dense\.|layer_norm\.|parts\.)"


class EncoderPreTrainedModel(PreTrainedModel):
    """What the library has to know of every model of the zoo. The prefix is XLM-R's."""

    base_model_prefix = "roberta"
    encoder_class = None  # the encoder of the model type, set by its file
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
    skip_padding = False

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """The library's; every weight of another architecture's checkpoint has its place here too (`key_mapping`)."""
        of_hub = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
        found = {}
        if pretrained_model_name_or_path is not None:
            found, _ = PreTrainedConfig.get_config_dict(pretrained_model_name_or_path, **of_hub)
        if found.get("model_type") == "bert":
            kwargs["key_mapping"] = BERT_NAMES
        elif found.get("model_type") in ARCHITECTURES:
            kwargs["key_mapping"] = key_mapping(AutoConfig.for_model(**found))
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, *args, **kwargs):
        """The library's; what came from another architecture's checkpoint is saved under the names it has here."""
        kwargs.setdefault("save_original_format", False)
        return super().save_pretrained(*args, **kwargs)

    def _init_weights(self, module):
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


class EncoderModel(EncoderPreTrainedModel):
    """Tokens in, one state a token out.

    `pooler` exists if `config.add_pooling_layer` is set (ERNIE-M) and the caller uses it. With
    `config.backbone_config` the encoder is another library class, `backbone`, and there are no layers of our own.
    """

    def __init__(self, config, add_pooling_layer: bool = True, backbone: PreTrainedModel | None = None):
        super().__init__(config)
        if config.backbone_config is None:
            self.embeddings = Embeddings(config)
            layers = (EncoderLayer(config, config.cross_attention) for _ in range(config.num_hidden_layers))
            self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})  # XLM-R's name
        else:
            self.backbone = make_backbone(config) if backbone is None else backbone
        self.pooler = Pooler(config) if add_pooling_layer and config.add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self):
        if self.config.backbone_config is not None:
            return self.backbone.get_input_embeddings()
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value):
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
        **kwargs,
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

        Raises:
            ValueError: neither or both of `input_ids` and `inputs_embeds`; more tokens than positions; a mask of
                another shape; `encoder_hidden_states` for a model without cross-attention; `num_layers` out of range.

        Example:
            >>> inputs = tokenizer(["The house is small.", "Das Haus."], padding=True, return_tensors="pt")
            >>> states_BTH = model(**inputs).last_hidden_state
        """
        depth = self.config.num_hidden_layers
        if num_layers is not None and not 0 <= num_layers <= depth:
            raise ValueError(f"num_layers must be from 0 (the embeddings) to {depth}, got {num_layers}.")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds.")
        if encoder_hidden_states is not None and not self.config.cross_attention:
            raise ValueError("encoder_hidden_states need a model with cross-attention: leave them out.")
        inputs = {"input_ids": input_ids, "token_type_ids": token_type_ids, "position_ids": position_ids}
        inputs |= {"inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
        cross = {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": encoder_attention_mask}
        packings = self.packings(**inputs, **cross, **kwargs) if self.skip_padding else None
        if packings is not None:
            inputs, cross = self.packed(*packings, inputs, cross)
        if self.config.backbone_config is not None:
            outputs = run_backbone(self.backbone, **inputs, num_layers=num_layers, **kwargs)
        else:
            outputs = self.encode(
                self.embeddings(*(inputs[name] for name in TOKEN_FIELDS)),
                inputs["attention_mask"],
                *cross.values(),
                num_layers,
                return_dict=True,
                **kwargs,
            )
        if packings is not None:
            last_PWH, unpack = outputs.last_hidden_state, packings[0].unpack
            outputs.last_hidden_state = last_BTH = unpack(last_PWH)
            if outputs.hidden_states is not None:
                all_states = (last_BTH if of is last_PWH else unpack(of) for of in outputs.hidden_states)
                outputs.hidden_states = tuple(all_states)
        if self.pooler is not None and num_layers is None:
            pooled_BH = self.pooler(first_states(outputs.last_hidden_state, attention_mask))
            # made anew: as a tuple, fields are in the order in which they were set
            outputs = type(outputs)(**dict(outputs) | {"pooler_output": pooled_BH})
        return outputs

    @merge_with_config_defaults
    @capture_outputs
    def encode(
        self, states_BTH, attention_mask, encoder_states_BSH, encoder_attention_mask, num_layers, **kwargs
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """The layers, on embedded tokens; masks as `forward` takes them."""
        attention_mask = prepare_attention_mask(self.config, states_BTH, attention_mask)
        if encoder_states_BSH is not None:
            encoder_attention_mask = prepare_attention_mask(
                self.config, states_BTH, encoder_attention_mask, encoder_states_BSH
            )
        for layer in self.encoder.layer[:num_layers]:
            states_BTH = layer(states_BTH, attention_mask, encoder_states_BSH, encoder_attention_mask, **kwargs)
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=states_BTH)

    def packings(
        self, input_ids, inputs_embeds, attention_mask, encoder_hidden_states, encoder_attention_mask, **kwargs
    ) -> tuple[Packing, Packing] | None:
        """That of the batch and that of the one attended to, perhaps itself; None without padding, or if it stays."""
        if (
            kwargs.get("output_attentions", getattr(self.config, "output_attentions", False))
            or "flash" in self.config._attn_implementation  # leaves out the padding itself, in attention
            or not honors_block_masks(self.config.backbone_config)
            or torch.compiler.is_compiling()
            or torch.jit.is_tracing()
        ):
            return None
        tokens = input_ids if inputs_embeds is None else inputs_embeds
        found, padding = [], 0
        for states, mask in ((tokens, attention_mask), (encoder_hidden_states, encoder_attention_mask)):
            if states is None:
                continue
            if mask is None:
                mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
            elif mask.dtype == torch.bool and mask.shape == (*tokens.shape[:2], states.shape[1]):
                mask = mask.any(1) if found else is_real(mask)
            elif mask.shape != states.shape[:2]:
                return None  # `prepare_attention_mask` refuses it
            found.append(Packing(mask.bool(), found[0].row_of if found else None))
            padding += mask.numel() - len(found[-1].padded_F)
        return (found[0], found[-1]) if padding and found[0].shape[1] else None

    def packed(self, own: Packing, other: Packing, inputs: dict, cross: dict) -> tuple[dict, dict]:
        """The inputs of `forward` in rows."""

        def mask(keys, given):
            return own.mask(keys, given if given is not None and given.dim() == 3 else None)

        if inputs["position_ids"] is None and self.config.backbone_config is None:
            inputs["position_ids"] = self.embeddings.position_ids(inputs["input_ids"], inputs["inputs_embeds"])
        elif inputs["position_ids"] is None:
            inputs["position_ids"] = torch.arange(own.padded_shape[1], device=own.padded_F.device)[None]
        fields = {name: None if inputs[name] is None else own.pack(inputs[name]) for name in TOKEN_FIELDS}
        fields["attention_mask"] = mask(own, inputs["attention_mask"])
        states_BSH, allowed = cross.values()
        if states_BSH is not None:
            cross = {"encoder_hidden_states": other.pack(states_BSH), "encoder_attention_mask": mask(other, allowed)}
        return fields, cross


@contextmanager
def without_dropout(model: nn.Module):
    """The model in evaluation mode, for this block only."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in was_training.items():
            module.training = training
