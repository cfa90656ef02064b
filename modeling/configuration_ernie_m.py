"""Configuration of ERNIE-M (Ouyang et al., EMNLP 2021)."""

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig


@strict
class ErnieMConfig(EncoderConfig):
    """See `EncoderConfig` for the fields that all models share."""

    model_type = "ernie_m"
    class_prefix = "ErnieM"

    # tanh pooler on <s>, as in the released code; only the base model carries it
    add_pooling_layer: bool = True
