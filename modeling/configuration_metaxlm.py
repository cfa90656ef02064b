# SPDX-License-Identifier: Apache-2.0
"""Configuration of MetaXLM (Chi et al., 2021)."""

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig


@strict
class MetaXlmConfig(EncoderConfig):
    """See `EncoderConfig` for the fields that all models share."""

    model_type = "metaxlm"
    class_prefix = "MetaXlm"
