# SPDX-License-Identifier: Apache-2.0
"""An encoder of the zoo made into a translation model: the unchanged encoder, and a decoder built from its layers.

VECO (Luo et al., ACL 2021), section 3.2 "Generation": all layers encode, with cross-attention plugged out; n of them
decode, with cross-attention plugged in and self-attention causal. Source `<s> x </s>`, decoder inputs
`</s> y_1 .. y_n`, predictions `y_1 .. y_n </s>`.

Legend: `B` sequences, `T` target positions, `S` source positions, `N` predictions, `H` hidden size, `V` vocabulary.
"""

import copy
import dataclasses
import logging
import re
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, GenerationMixin
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .attention_masks import prepare_attention_mask
from .configuration_encoder import EncoderConfig, first_position, longest_input
from .encoder import EncoderLayer, EncoderPreTrainedModel, count_positions, position_ids_of
from .masked_lm import LMHeadModel

logger = logging.getLogger(__name__)

# The library's name of keys and values kept from earlier positions: `cache` since 5.24.
CACHE = "cache" if "cache" in Seq2SeqLMOutput.__dataclass_fields__ else "past_key_values"

LONGEST_TRANSLATION = 200  # tokens, fairseq's default

# What a decoder layer takes over from an encoder layer; its cross-attention is its own.
SHARED_MODULES = ("attention", "intermediate", "output")


class Decoder(EncoderPreTrainedModel):
    """Layers of an encoder with causal self-attention and with cross-attention to another sequence, on a KV cache."""

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        self.layer = nn.ModuleList()
        for index in range(config.decoder_layers):
            layer = EncoderLayer(config, cross_attention=True, layer_index=index)
            layer.attention.self.is_causal = True
            self.layer.append(layer)
        self.post_init()

    @capture_outputs
    def forward(
        self,
        states_BTH: torch.Tensor,
        attention_mask: torch.Tensor | None,
        encoder_states_BSH: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """States of embedded tokens, the newest T of a sequence whose beginning is in the cache."""
        attention_mask = create_causal_mask(self.config, states_BTH, attention_mask, cache)
        encoder_attention_mask = prepare_attention_mask(
            self.config, states_BTH, encoder_attention_mask, encoder_states_BSH
        )
        for layer in self.layer:
            states_BTH = layer(
                states_BTH, attention_mask, encoder_states_BSH, encoder_attention_mask, cache=cache, **kwargs
            )
        cache_field: dict[str, Any] = {CACHE: cache}
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=states_BTH, **cache_field)


class ForConditionalGeneration(LMHeadModel, GenerationMixin):
    """Translation; built by `from_encoder`, loaded by AutoModelForSeq2SeqLM.

    Parameters: `roberta.*`, the encoder; `decoder.layer.J.*` with the names of an encoder's layer; `lm_head.*`.
    Embeddings (words, positions, LayerNorm) serve both sides, and the words are the output layer. With
    `config.tie_decoder`, `attention`, `intermediate` and `output` of decoder layer j are those of encoder layer
    `config.decoder_layer_indices[j]`, the same tensors, saved once; without, they began as copies.

    Deviations from the paper: it calls it "okay whether you continue to tie the self-attention parameters" (3.2) and
    ties them (6.1). Of the feed-forward it says nothing: here it goes with the self-attention, since pre-training has
    one of each for both streams.
    """

    starts_from: Any = None  # the masked-LM model of the architecture, which `from_encoder` loads; set by its file

    def __init__(self, config: EncoderConfig):
        if config.decoder_layers is None:
            raise ValueError(f"{type(self).__name__} got an encoder's configuration: make the model with from_encoder.")
        super().__init__(config)
        self.decoder = Decoder(config)
        if config.tie_decoder:
            self._tied_weights_keys = self._tied_weights_keys | self._shared_weights()
        self.post_init()
        # the encoder's, which leaves a decoder unread
        self._keys_to_ignore_on_load_unexpected = set()
        self.generation_config = self.translation_settings()

    def _shared_weights(self) -> dict[str, str]:
        """Names of the decoder's weights that are the encoder's -> their names there."""
        shared = {}
        for index, source in enumerate(self.config.decoder_layer_indices):
            for name, _ in self.decoder.layer[index].named_parameters():
                if name.split(".")[0] in SHARED_MODULES:
                    shared[f"decoder.layer.{index}.{name}"] = f"roberta.encoder.layer.{source}.{name}"
        return shared

    def translation_settings(self) -> GenerationConfig:
        """What `generate` does by default: beam 5 (section 6.1), from `</s>` (fairseq's convention) to `</s>`, within
        the model's positions: the last token is predicted and never read, and needs none."""
        return GenerationConfig(
            decoder_start_token_id=first(self.config.eos_token_id),
            bos_token_id=self.config.bos_token_id,
            eos_token_id=self.config.eos_token_id,
            pad_token_id=self.config.pad_token_id,
            num_beams=5,
            max_length=1 + min(LONGEST_TRANSLATION, cast(int, longest_input(self.config))),
            # fairseq never chooses it either; positions do not count it, so that it would shift all that follows
            suppress_tokens=[self.config.pad_token_id],
        )

    def generate(
        self, inputs: torch.Tensor | None = None, generation_config: GenerationConfig | None = None, **kwargs: Any
    ) -> Any:
        """The library's `generate`. `max_new_tokens` takes the place of the default `max_length`, where the library
        would warn that both are set."""
        is_limited = kwargs.get("max_new_tokens") is not None
        if generation_config is not None:
            is_limited = is_limited or generation_config.max_new_tokens is not None
        defaults = self.generation_config
        try:
            if is_limited:
                self.generation_config = copy.deepcopy(defaults)
                self.generation_config.max_length = None
            return super().generate(inputs, generation_config, **kwargs)
        finally:
            self.generation_config = defaults

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.roberta

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """`</s>` and all labels but the last, -100 as padding: (B, T) -> (B, T)."""
        start_B1 = labels.new_full((len(labels), 1), first(self.config.eos_token_id))
        shifted_BT = torch.cat([start_B1, labels[:, :-1]], 1)
        return shifted_BT.masked_fill(shifted_BT == -100, self.config.pad_token_id)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        cache: EncoderDecoderCache | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_logits: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits, and the mean cross-entropy of the labels.

        Args:
            input_ids: (B, S) source, `<s> x </s>`; or `encoder_outputs`, whose first entry are its states (B, S, H).
            attention_mask: (B, S), 1 for tokens of the source and 0 for padding on either side.
            decoder_input_ids: (B, T), `</s> y_1 .. y_n`; by default made from the labels. With a cache: the new ones.
            decoder_attention_mask: (B, T), cached positions included.
            labels: (B, T), `y_1 .. y_n </s>`, -100 for padding. The loss runs the head on the predicted positions only.
            past_key_values, cache: keys and values of earlier positions, by the library's old name or by its new one.
            use_cache: return them; by default where there are no labels, outside training.
            label_smoothing: share of the target that is spread over the vocabulary, only in the loss.
            output_logits: return `logits` (B, T, V); by default always but in training with labels.
            logits_to_keep: logits of the last so many positions only; 0: all.

        Raises:
            ValueError: neither labels nor decoder inputs; labels of another shape; more labels than positions.
        """
        # Not in the signature: Trainer would take it for a label without which nothing can be evaluated.
        label_smoothing = kwargs.pop("label_smoothing", 0.0)
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("neither decoder_input_ids nor labels were given: give one, or call generate().")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if encoder_outputs is None:
            encoder_outputs = self.roberta(input_ids, attention_mask=attention_mask, return_dict=True, **kwargs)
        if cache is None:
            cache = past_key_values
        if use_cache is None:
            use_cache = labels is None and not self.training
        if cache is None and use_cache:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        position_ids_BT = self.decoder_positions(decoder_input_ids, decoder_attention_mask, cache)
        self.roberta.embeddings.check_length(position_ids_BT)
        embedded_BTH = self.roberta.embeddings(decoder_input_ids, position_ids_BT, None, None)
        outputs = self.decoder(
            embedded_BTH,
            decoder_attention_mask,
            encoder_outputs[0],
            attention_mask,
            cache=cache,
            return_dict=True,
            **kwargs,
        )
        loss = None
        if labels is not None:
            loss = self.lm_head.mean_loss(outputs.last_hidden_state, labels, label_smoothing)
        if output_logits is None:
            output_logits = labels is None or not self.training
        logits = None
        if output_logits:
            logits = self.lm_head(outputs.last_hidden_state[:, -logits_to_keep:])
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            **{CACHE: cache},
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs[0],
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
        )

    def decoder_positions(
        self,
        decoder_input_ids: torch.Tensor,
        decoder_attention_mask: torch.Tensor | None,
        cache: EncoderDecoderCache | None,
    ) -> torch.Tensor:
        """Positions (B, T) of the new tokens, counted over the whole sequence with its cached beginning."""
        new = decoder_input_ids.shape[1]
        if decoder_attention_mask is not None and decoder_attention_mask.dim() == 2:
            return count_positions(decoder_attention_mask, first_position(self.config))[:, -new:]
        position_ids_BT = position_ids_of(decoder_input_ids, self.config)
        if cache is None:
            return position_ids_BT
        is_token_BT = decoder_input_ids.ne(self.config.pad_token_id)
        return position_ids_BT + cache.get_seq_length() * is_token_BT

    @classmethod
    def from_encoder(
        cls,
        pretrained_model_name_or_path: Any,
        decoder_layers: int | None = None,
        decoder_layer_selection: str = "last",
        tie_decoder: bool = True,
        random: bool = False,
        **kwargs: Any,
    ) -> "ForConditionalGeneration":
        """A translation model made of an encoder's folder or Hub id: one of VECO's, XLM-R, or another of this zoo.

        Args:
            decoder_layers: n, how many of the encoder's layers decode; by default all.
            decoder_layer_selection: which: `last` n, or `first` n.
            tie_decoder: self-attention and feed-forward of the decoder are the encoder's, or begin as copies of them.
            random: take the architecture only, and draw every weight.
            kwargs: as for `from_pretrained`: `dtype`, `attn_implementation`, `revision`, `hidden_dropout_prob`, ...

        What the folder lacks (cross-attention in all but VECO's, the LM head) is drawn, and a logged warning says so.

        Raises:
            ValueError: n below 1 or above the encoder's layers; an unknown selection; a folder that is a translation
                model already, no model of XLM-R's shape, or without a weight of the encoder.
        """
        fields = {field.name for field in dataclasses.fields(cls.config_class)} - {"dtype", "architectures"}
        changes = {name: kwargs.pop(name) for name in fields & kwargs.keys()}
        folder = pretrained_model_name_or_path
        saved, _ = cls.config_class.get_config_dict(folder, **kwargs)
        # an encoder that was loaded from a translation model's folder and saved again is an encoder
        if saved.get("decoder_layers") is not None and cls.__name__ in (saved.get("architectures") or ()):
            raise ValueError(f"{folder} is a translation model already: load it with from_pretrained.")
        if saved.get("eos_token_id", 2) is None:
            raise ValueError(f"{folder} has no eos_token_id: put its tokenizer into its folder.")
        # fields of this configuration only, and no auto_map: that of another model would name its files
        shape = {name: saved[name] for name in fields & saved.keys()} | changes
        shape |= {"cross_attention": True, "decoder_layers": None, "is_encoder_decoder": False, "plug_in": False}
        encoder_config = cls.config_class(**shape)
        indices = selected_layers(encoder_config.num_hidden_layers, decoder_layers, decoder_layer_selection)
        decoder_fields = {"decoder_layers": len(indices), "decoder_layer_indices": indices, "tie_decoder": tie_decoder}
        config = cls.config_class(**shape | decoder_fields)
        if random:
            model = cls(config).to(kwargs.get("dtype", torch.float32))
            fresh = ["every weight"]
        else:
            options = kwargs | {"config": encoder_config, "output_loading_info": True}
            encoder, report = cls.starts_from.from_pretrained(folder, **options)
            fresh = sorted(report["missing_keys"])
            check_loaded(folder, fresh)
            model = cls(config).to(encoder.device, encoder.dtype)
            model.load_state_dict(decoder_state(encoder.state_dict(), indices))
        attention = kwargs.get("attn_implementation")
        if attention:
            model.set_attn_implementation(attention)
        if fresh:
            without_numbers = [re.sub(r"\.\d+\.", ".*.", name) for name in fresh]
            names = ", ".join(dict.fromkeys(without_numbers))
            logger.warning("%s.from_encoder(%r): newly initialized: %s", cls.__name__, str(folder), names)
        return model


def check_loaded(folder: Any, missing: Sequence[str]) -> None:
    """Raises `ValueError` where a weight of the encoder is missing; LM head and cross-attention may be drawn."""
    lacking = [key for key in missing if not re.search(r"^lm_head\.|\.crossattention\.", key)]
    if lacking:
        raise ValueError(f"{folder} lacks {len(lacking)} weights of the encoder: {lacking[0]}, ...")


def first(token_ids: int | Sequence[int]) -> int:
    """The id, or the first of several."""
    return token_ids if isinstance(token_ids, int) else token_ids[0]


def selected_layers(available: int, decoder_layers: int | None, selection: str) -> list[int]:
    """Encoder layers that a decoder is made of, in order."""
    count = available if decoder_layers is None else decoder_layers
    if not 1 <= count <= available:
        raise ValueError(f"decoder_layers is {count}, but this encoder has {available} layers.")
    if selection == "first":
        return list(range(count))
    if selection == "last":
        return list(range(available - count, available))
    raise ValueError(f"decoder_layer_selection must be 'last' or 'first', got {selection!r}.")


def decoder_state(encoder_state: dict[str, torch.Tensor], indices: list[int]) -> dict[str, torch.Tensor]:
    """Weights of the translation model out of those of a masked-LM model with cross-attention."""
    state = {key: value for key, value in encoder_state.items() if ".crossattention." not in key}
    for index, source in enumerate(indices):
        prefix = f"roberta.encoder.layer.{source}."
        for key, value in encoder_state.items():
            if key.startswith(prefix):
                state[f"decoder.layer.{index}.{key.removeprefix(prefix)}"] = value
    return state
