# SPDX-License-Identifier: Apache-2.0
"""Configuration of MetaXLM (Chi et al., 2021)."""

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig


@strict
class MetaXlmConfig(EncoderConfig):
    """The configuration of MetaXLM.

    The fields of all models, and their defaults, are those of `EncoderConfig`.

    Example:
        >>> config = MetaXlmConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
        >>> model = MetaXlmForMaskedLM(config)  # with random weights

    Source: Chi et al., 2021, section 3.
    """

    model_type = "metaxlm"
