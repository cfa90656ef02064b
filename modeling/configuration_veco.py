# SPDX-License-Identifier: Apache-2.0
"""Configuration of VECO (Luo et al., ICLR submission 2020 and ACL 2021)."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig


@strict
class VecoConfig(EncoderConfig):
    """The configuration of VECO.

    The fields of all models, and their defaults, are those of `EncoderConfig`.

    Args:
        cross_attention: whether layers have the cross-attention module, which is used when it is plugged in.
        cross_stream: what the stream that reads the other sequence sees of its own: all (`bidirectional`, CA-MLM of the
            ACL paper) or the positions before (`causal`, CS-MLM of the ICLR submission).
        plug_in: whether heads read [H:S] of a text and its translation, instead of H.
        decoder_layers: of a translation model, which `from_encoder` makes (section 3.2); None: this is an encoder.
        decoder_layer_indices: the encoder layer that each decoder layer was made from.
        tie_decoder: whether self-attention and feed-forward of a decoder layer are that encoder layer's.
        lm_head_transform: False: states times embeddings, without XLM-R's dense, GELU and LayerNorm (fairseq's files).
        lm_head_scale: what states are multiplied with then: fairseq scales only the embeddings that it looks up.

    Raises `ValueError` for sizes that do not fit each other, and for a backbone, which has no cross-attention module.

    Example:
        >>> config = VecoConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
        >>> model = VecoForPreTraining(config)  # with random weights

    Source: Luo et al., ACL 2021, sections 2.1 and 3.
    """

    model_type = "veco"
    further_heads = {"AutoModelForSeq2SeqLM": "ForConditionalGeneration"}

    cross_attention: bool = True
    cross_stream: Literal["bidirectional", "causal"] = "bidirectional"
    plug_in: bool = False
    decoder_layers: int | None = None
    decoder_layer_indices: list[int] | None = None
    tie_decoder: bool = True
    lm_head_transform: bool = True
    lm_head_scale: float = 1.0

    def __post_init__(self, **kwargs: Any) -> None:
        """That of all models; a translation model's cross-attention is in its decoder."""
        super().__post_init__(**kwargs)
        if self.decoder_layers is not None:
            # every other Auto class loads the encoder from such a folder, and its cross-attention is the decoder's
            self.is_encoder_decoder = True
            self.cross_attention = False
