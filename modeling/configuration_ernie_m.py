"""Configuration of ERNIE-M (Ouyang et al., EMNLP 2021)."""

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig


@strict
class ErnieMConfig(EncoderConfig):
    """See `EncoderConfig` for the fields that all models share.

    Raises `ValueError` where `languages` and `num_languages` do not agree, and for languages without `mask_token_id`.
    """

    model_type = "ernie_m"
    class_prefix = "ErnieM"

    # tanh pooler on <s>, as in the released code; models without a use for it leave it out
    add_pooling_layer: bool = True
    # rows of the language embedding that <mask> carries (paper, section 3.1); 0: none, as in the released checkpoints
    num_languages: int = 0
    # codes of the rows, in their order: what a pre-training corpus calls its language
    languages: list[str] | None = None
    # which pieces carry the language embedding
    mask_token_id: int | None = None

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        if self.languages is not None:
            self.num_languages = self.num_languages or len(self.languages)
            if self.num_languages != len(set(self.languages)) or self.num_languages != len(self.languages):
                raise ValueError(
                    f"num_languages is {self.num_languages} and languages is {self.languages}: each language has one "
                    "row of the language embedding. Name each once, and leave num_languages out."
                )
        if self.num_languages and self.mask_token_id is None:
            raise ValueError(
                f"num_languages is {self.num_languages} and mask_token_id is not set: the language embedding is added "
                "where <mask> stands. Set mask_token_id to the tokenizer's."
            )
