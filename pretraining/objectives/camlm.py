"""ERNIE-M's cross-attention masked LM (Ouyang et al., EMNLP 2021, section 3.1, Figure 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crosslingual_zoo.pretraining.objectives.base import ORDER, X_MASKS, Y_MASKS, Collator
from crosslingual_zoo.pretraining.rows import Rows
from crosslingual_zoo.zoo_core.keyed_random import key_stream, uniform_of
from crosslingual_zoo.zoo_core.masking import IGNORED, mask_rows


@dataclass(kw_only=True)
class CamlmCollator(Collator):
    """ERNIE-M's cross-attention masked LM of translation pairs: each side is predicted only from the other.

    Equation: L = -sum_{i in M_x} log p(x_i | y_{\\M}) - sum_{i in M_y} log p(y_i | x_{\\M}).

            a m b m'
        a   x . . .      an unmasked token sees only its own side, else a side's words would return through the other
        m   . x x .      a masked token sees the other side, and the masked tokens of its own
        b   . . x .
        m'  x . . x

    Predicted tokens always become <mask>: the other masks of a side could read a token that is kept. At least one token
    of each side is not masked. Which side comes first is random, because BTMLM appends tokens to texts of either
    language.

    Examples: `{"source": "The house is small.", "target": "Das Haus ist klein."}`, and for ERNIE-M with languages
    `source_language` and `target_language`. Options: see `Collator`.

    Source: ERNIE-M (Ouyang et al., EMNLP 2021), section 3.1.
    """

    name, text = "camlm", "bitext"
    keys = ("source", "target")
    language_share = 1.0
    own_mask = True

    def arrange(
        self, sides: list[list[np.ndarray]], codes: Sequence[tuple[str, ...]], keys_B: np.ndarray
    ) -> tuple[list[list[np.ndarray]], Sequence[tuple[str, ...]]]:
        """Returns the sides of each pair in an order that is drawn, with their languages."""
        # by the row's key, so that a pair has the same order in every batch
        steps = np.where(uniform_of(key_stream(keys_B, ORDER)) < 0.5, -1, 1).tolist()
        pairs = [pair[::step] for pair, step in zip(zip(*sides, strict=True), steps, strict=True)]
        first, second = zip(*pairs, strict=True)
        codes = [codes_of_pair[::step] for codes_of_pair, step in zip(codes, steps, strict=False)]
        return [list(first), list(second)], codes

    def rows(self, sides: list[list[np.ndarray]], keys_B: np.ndarray, language_rows_SB: np.ndarray) -> dict:
        """Returns the fields; `attention_mask` is (B, T, T)."""
        from crosslingual_zoo.modeling.attention_masks import (
            camlm_mask,  # with transformers, which takes seconds to import
        )

        fields = super().rows(sides, keys_B, language_rows_SB)
        predicted_BT = fields["labels"].ne(IGNORED)
        fields["attention_mask"] = camlm_mask(fields["attention_mask"], fields["segment_ids"], predicted_BT)
        return fields

    def mask(self, rows: Rows, keys_B: np.ndarray, candidates_BT: np.ndarray | None = None) -> np.ndarray:
        """Returns labels of both sides, each masked by itself; every predicted token becomes <mask>."""
        labels_BT = np.full_like(rows.input_ids, IGNORED)
        is_known_BT = rows.input_ids != self.tokenizer.unk_token_id
        x_BT, y_BT = (is_side_BT & is_known_BT for is_side_BT in rows.of_side)
        for candidates_BT, other_BT, stream in ((x_BT, y_BT, X_MASKS), (y_BT, x_BT, Y_MASKS)):
            mask_rows(
                rows.input_ids,
                labels_BT,
                candidates_BT,
                # nothing is predicted if the other side has only unknown tokens
                np.where(other_BT.any(1), self.mask_probability, 0.0),
                key_stream(keys_B, stream),  # else equal sides would have equal masks
                self.tokenizer.mask_token_id,
                self.vocabulary,
                mask_share=1.0,
                leave=1,
            )
        return labels_BT
