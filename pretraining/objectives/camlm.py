"""ERNIE-M's cross-attention masked LM (Ouyang et al., EMNLP 2021, section 3.1, Figure 2)."""

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

    def arrange(self, sides, codes, keys_B):
        # by the row's key, so that a pair has the same order in every batch
        turned = (uniform_of(key_stream(keys_B, ORDER)) < 0.5).tolist()
        pairs = [(y, x) if turn else (x, y) for x, y, turn in zip(*sides, turned, strict=True)]
        codes = [of_row[::-1] if turn else of_row for of_row, turn in zip(codes, turned, strict=False)]
        return [list(side) for side in zip(*pairs, strict=True)], codes

    def rows(self, sides, keys_B, language_rows_SB):
        from crosslingual_zoo.modeling.attention_masks import (
            camlm_mask,  # with transformers, which takes seconds to import
        )

        fields = super().rows(sides, keys_B, language_rows_SB)
        predicted_BT = fields["labels"].ne(IGNORED)
        return fields | {"attention_mask": camlm_mask(fields["attention_mask"], fields["segment_ids"], predicted_BT)}

    def mask(self, rows: Rows, keys_B: np.ndarray) -> np.ndarray:
        labels = np.full_like(rows.input_ids, IGNORED)
        known = rows.input_ids != self.tokenizer.unk_token_id
        of_side, mask_id = [tokens & known for tokens in rows.of_side], self.tokenizer.mask_token_id
        for candidates, other, stream in zip(of_side, of_side[::-1], (X_MASKS, Y_MASKS), strict=True):
            # nothing is predicted if the other side has only unknown tokens
            share_B = np.where(other.any(1), self.mask_probability, 0.0)
            keys = key_stream(keys_B, stream)  # else equal sides would have equal masks
            mask_rows(
                rows.input_ids, labels, candidates, share_B, keys, mask_id, self.vocabulary, mask_share=1.0, leave=1
            )
        return labels
