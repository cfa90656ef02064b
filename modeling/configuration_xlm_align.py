# SPDX-License-Identifier: Apache-2.0
"""Configuration of XLM-Align (Chi et al., ACL 2021)."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig


@strict
class XlmAlignConfig(EncoderConfig):
    """The configuration of XLM-Align.

    The fields of all models, and their defaults, are those of `EncoderConfig`. What follows is read in pre-training.

    Args:
        alignment_layer: whose states label the word alignment (Table 4); 0: the embeddings. Default: 5/6 of the layers.
        dwa_layer: whose states the pointer network reads (Table 5: 8, 10, 12). Default: the last.
        pointer_start: the pointer network's two maps before training: `random`, as in the paper, or `identity`, by
            which it points where the products of the states do, and teaches them from the first step on.
        labeling_rule: which links of `optimal_transport.align` are labels: those of `ot_itermax`, the paper's, whose
            options the next fields are, or of `ot_words`, in which tokens are the words.
        entropic_regularization: mu of Eq. 5.
        similarity_floor: epsilon of Eq. 1.
        sinkhorn_iterations: of Eq. 6 (Table 11).
        sinkhorn_first: which marginals an iteration normalizes first, `columns` (the released code) or `rows` (Eq. 6).
        filtering_iterations: of Eqs. 8 and 9; 0: no filter, the labels are the union of both directions (Table 6).
        filtering_discount: alpha of Eq. 9.
        filtering_rule: what becomes 0 between iterations: all cells whose row and column have a link (`released`, the
            public code), or the links alone (`eq9_printed`); see `symmetrization.itermax_links`.
        query_positions: which positions point at their translation (Table 7): those that are `masked`, 15% of the
            `unmasked`, one of the two of each link (`all_aligned`), or `none`. All of them need a link.

    Raises `ValueError` for a layer that the model does not have; the other numbers are checked where they are used.

    Example:
        >>> config = XlmAlignConfig(num_hidden_layers=12)
        >>> config.labeling_layer, config.pointer_layer
        (10, 12)

    Source: Chi et al., ACL 2021, section 3 and Tables 4 to 7 and 11.
    """

    model_type = "xlm_align"
    pipelines = {
        "word-alignment": {"impl": "pipeline_word_alignment.WordAlignmentPipeline", "pt": ["AutoModel"], "type": "text"}
    }

    alignment_layer: int | None = None
    dwa_layer: int | None = None
    pointer_start: Literal["random", "identity"] = "random"
    labeling_rule: Literal["ot_itermax", "ot_words"] = "ot_itermax"
    entropic_regularization: float | int = 1.0
    similarity_floor: float | int = 1e-6
    sinkhorn_iterations: int = 2
    sinkhorn_first: Literal["rows", "columns"] = "columns"
    filtering_iterations: int = 2
    filtering_discount: float | int = 0.9
    filtering_rule: Literal["released", "eq9_printed"] = "released"
    query_positions: Literal["masked", "unmasked", "all_aligned", "none"] = "masked"

    def __post_init__(self, **kwargs: Any) -> None:
        """That of all models; the layers must be there."""
        super().__post_init__(**kwargs)
        for name in ("alignment_layer", "dwa_layer"):
            layer = getattr(self, name)
            if layer is not None and not 0 <= layer <= self.num_hidden_layers:
                raise ValueError(f"{name} must be from 0 to {self.num_hidden_layers}, got {layer}.")

    @property
    def labeling_layer(self) -> int:
        """`alignment_layer`, or its default."""
        if self.alignment_layer is None:
            return round(self.num_hidden_layers * 5 / 6)
        return self.alignment_layer

    @property
    def pointer_layer(self) -> int:
        """`dwa_layer`, or its default."""
        if self.dwa_layer is None:
            return self.num_hidden_layers
        return self.dwa_layer
