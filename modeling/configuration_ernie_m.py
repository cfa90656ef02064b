# SPDX-License-Identifier: Apache-2.0
"""Configuration of ERNIE-M (Ouyang et al., EMNLP 2021)."""

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig


@strict
class ErnieMConfig(EncoderConfig):
    """The configuration of ERNIE-M.

    The fields of all models, and their defaults, are those of `EncoderConfig`.

    Args:
        add_pooling_layer: whether there is a tanh pooler on <s>, as in the released code, in models that use it.
        languages: codes of the rows of the embedding that <mask> carries (section 3.1), in their order: what a
            pre-training corpus calls its language. BTMLM needs them; the released checkpoints have none (None).
        mask_token_id: which token carries it; the model asks for it where there are languages.
        special_token_ids: further tokens that BTMLM never writes, such as <unk>; pre-training sets it.

    Example:
        >>> config = ErnieMConfig(languages=["en", "de"], mask_token_id=4, num_hidden_layers=2)
        >>> len(config.languages)
        2

    Source: Ouyang et al., EMNLP 2021, section 3.
    """

    model_type = "ernie_m"

    add_pooling_layer: bool = True
    languages: list[str] | None = None
    mask_token_id: int | None = None
    special_token_ids: list[int] | None = None
