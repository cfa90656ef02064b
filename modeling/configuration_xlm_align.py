"""Configuration of XLM-Align (Chi et al., ACL 2021)."""

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig


@strict
class XlmAlignConfig(EncoderConfig):
    """See `EncoderConfig` for the fields that all models share."""

    model_type = "xlm_align"
    class_prefix = "XlmAlign"
