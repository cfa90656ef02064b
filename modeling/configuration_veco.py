"""Configuration of VECO (Luo et al., ICLR submission 2020 and ACL 2021)."""

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig


@strict
class VecoConfig(EncoderConfig):
    """See `EncoderConfig` for the fields that all models share."""

    model_type = "veco"
    class_prefix = "Veco"

    # one cross-attention module a layer, used when plugged in (ACL paper, section 3.1)
    cross_attention: bool = True
