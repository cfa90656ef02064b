"""VECO's cross-attention masked LM (ACL 2021, Figure 2): of adjacent segments, and of translations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from crosslingual_zoo.pretraining.objectives.base import X_MASKS, Y_MASKS, Collator
from crosslingual_zoo.pretraining.rows import SIDES
from crosslingual_zoo.zoo_core.keyed_random import key_stream
from crosslingual_zoo.zoo_core.recipes import option


@dataclass(kw_only=True)
class CaMlmCollator(Collator):
    """What both objectives of CA-MLM share: x and y are separate inputs, which are masked separately.

        H stream (`inner`)        S stream (`cross`)
              a m a                     a m a | b m      to the last H of the other side
          a   x x x                 a   x x x | x x
          m   x x x                 m   x x x | x x
          a   x x x                 a   x x x | x x

    The sub-batch has `x` and `y`, each a full set of fields of its own length. Both streams see all of their own side.
    If `config.cross_stream` is causal (ICLR), the model restricts S to the positions before, because its decoder, which
    uses no collator, does the same. The equation is that of `modeling/modeling_veco.py` (Eq. 1).

    Examples: `{"source": ..., "target": ...}`, two adjacent segments of a document, or translations.
    """

    # pyrefly: ignore[bad-override]  # an option of this objective alone
    terms: list[Literal["inner", "cross"]] = option(
        [], "parts of the loss. inner: each side is predicted from itself; cross: from both sides; default: both parts"
    )

    keys = ("source", "target")
    apart = True
    is_masked_lm = False

    def check(self, path: str, phases: Sequence, corpora: Mapping, config: Any, learned: Mapping[str, Any]) -> None:
        """Raises ValueError for a model without cross-attention."""
        if not config.cross_attention:
            raise ValueError(f"{path} needs cross-attention. Set model.config.cross_attention to true.")

    def rows(self, sides: list[list[np.ndarray]], keys_B: np.ndarray, language_rows_SB: np.ndarray) -> dict:
        """Returns a set of fields for each side, `x` and `y`."""
        fields = {}
        # each side has its own keys: the papers mask them independently
        for name, side, stream in zip(SIDES, sides, (X_MASKS, Y_MASKS), strict=True):
            fields[name] = super().rows([side], key_stream(keys_B, stream), language_rows_SB)
        return fields


@dataclass(kw_only=True)
class CaMlmSegmentsCollator(CaMlmCollator):
    """VECO's cross-attention masked LM of adjacent segments of monolingual text.

    The segments are separate inputs, `x` and `y`. Examples:
    `{"source": "The house is small.", "target": "It has two rooms."}`. Options: see `Collator`; `terms` is one of a
    recipe.

    Source: VECO (Luo et al., ACL 2021), section 2.2, Eq. 1.
    """

    name, text = "ca_mlm_segments", "monolingual"


@dataclass(kw_only=True)
class CaMlmPairsCollator(CaMlmCollator):
    """VECO's cross-attention masked LM of translation pairs.

    The translations are separate inputs, `x` and `y`. Examples:
    `{"source": "The house is small.", "target": "Das Haus ist klein."}`. Options: see `Collator`; `terms` is one of a
    recipe.

    Source: VECO (Luo et al., ACL 2021), section 2.2, Eq. 1.
    """

    name, text = "ca_mlm_pairs", "bitext"
