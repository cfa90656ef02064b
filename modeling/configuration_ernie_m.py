# SPDX-License-Identifier: Apache-2.0
"""Configuration of ERNIE-M (Ouyang et al., EMNLP 2021)."""

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig


@strict
class ErnieMConfig(EncoderConfig):
    """The configuration of ERNIE-M.

    The fields of all models, and their defaults, are those of `XLMRobertaConfig`; `backbone_config` puts another
    architecture's encoder in their place.

    Args:
        num_languages, languages: rows of the embedding that <mask> carries, and their codes; BTMLM needs them.
        mask_token_id: which token carries it.
        special_token_ids: tokens that BTMLM never writes.
        add_pooling_layer: whether there is a tanh pooler on the first position.

    Raises `ValueError` for sizes that do not fit each other, and as `check_languages`.

    Example:
        >>> config = ErnieMConfig(languages=["en", "de"], mask_token_id=4, num_hidden_layers=2)
        >>> config.num_languages
        2

    Source: Ouyang et al., EMNLP 2021, section 3.
    """

    model_type = "ernie_m"
    class_prefix = "ErnieM"

    # tanh pooler on <s>, as in the released code; models without a use for it leave it out
    add_pooling_layer: bool = True
    # rows of the language embedding that <mask> carries (paper, section 3.1); 0: as many as `languages` names, or none,
    # as in the released checkpoints
    num_languages: int = 0
    # codes of the rows, in their order: what a pre-training corpus calls its language
    languages: list[str] | None = None
    # which tokens carry the language embedding
    mask_token_id: int | None = None
    # further tokens that BTMLM never writes, such as <unk>; pre-training sets it to the tokenizer's `all_special_ids`
    special_token_ids: list[int] | None = None

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.check_languages()

    def check_languages(self):
        """Counts the languages that have names. The model asks again: `from_pretrained(folder, languages=[...])` sets
        fields after `__post_init__`.

        Raises `ValueError` where `languages` and `num_languages` do not agree, for a negative number, and for languages
        without `mask_token_id`.
        """
        if self.languages:
            self.num_languages = self.num_languages or len(self.languages)
        if self.languages or self.num_languages < 0:
            names = self.languages or []
            if self.num_languages != len(set(names)) or self.num_languages != len(names):
                raise ValueError(
                    f"num_languages is {self.num_languages} and languages is {self.languages}: name each once, and "
                    "leave num_languages out."
                )
        if self.num_languages and self.mask_token_id is None:
            raise ValueError(
                f"num_languages is {self.num_languages} and mask_token_id is not set: set it to the tokenizer's."
            )
