"""VECO's cross-attention masked LM (ACL 2021, Figure 2): of adjacent segments, and of translations."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from pretraining.objectives.base import X_MASKS, Y_MASKS, Collator, MaskedObjective, Setting, Sides
from pretraining.rows import SIDES
from zoo_core.keyed_random import key_stream
from zoo_core.recipes import option

if TYPE_CHECKING:
    pass


class CaMlmCollator(Collator):
    """What both collators of CA-MLM share: x and y are separate inputs, which are masked separately.

        H stream (`inner`)        S stream (`cross`)
              a m a                     a m a | b m      to the last H of the other side
          a   x x x                 a   x x x | x x
          m   x x x                 m   x x x | x x
          a   x x x                 a   x x x | x x

    The sub-batch has `x` and `y`, each a full set of fields of its own length. Both streams see all of their own side.
    If `config.cross_stream` is causal (ICLR), the model restricts S to the positions before, because its decoder, which
    uses no collator, does the same.

    Examples: `{"source": ..., "target": ...}`, two adjacent segments of a document, or translations.
    """

    keys = ("source", "target")
    apart = True

    def rows(self, sides: Sides, keys_B: np.ndarray, language_rows_SB: np.ndarray) -> dict:
        # each side has its own keys: the papers mask them independently
        return {
            name: super(CaMlmCollator, self).rows(
                replace(sides, tokens=[sides.tokens[s]], lengths_SB=sides.lengths_SB[s : s + 1]),
                key_stream(keys_B, stream),
                language_rows_SB[s : s + 1],
            )
            for s, (name, stream) in enumerate(zip(SIDES, (X_MASKS, Y_MASKS), strict=True))
        }


class CaMlmSegmentsCollator(CaMlmCollator):
    """Cross-attention masked LM of adjacent segments of a document, which are separate inputs: `x` and `y`.

    Examples: `{"source": "The house is small.", "target": "It has two rooms."}`. Who sees whom: `picture(batch)`.

    Source: VECO (Luo et al., ACL 2021), section 2.2, Eq. 1.
    """

    name = "ca_mlm_segments"


class CaMlmPairsCollator(CaMlmCollator):
    """Cross-attention masked LM of translations, which are separate inputs: `x` and `y`.

    Examples: `{"source": "The house is small.", "target": "Das Haus ist klein."}`. Who sees whom: `picture(batch)`.

    Source: VECO (Luo et al., ACL 2021), section 2.2, Eq. 1.
    """

    name = "ca_mlm_pairs"


@dataclass
class CaMlm(MaskedObjective):
    """What both objectives of CA-MLM share."""

    terms: list[Literal["inner", "cross"]] = option(
        [], "parts of the loss. inner: each side is predicted from itself; cross: from both sides; default: both parts"
    )

    loss_terms: ClassVar[tuple[str, ...]] = ("inner", "cross")
    is_masked_lm: ClassVar[bool] = False

    @property
    def learned_terms(self) -> tuple[str, ...]:
        return tuple(term for term in self.loss_terms if not self.terms or term in self.terms)

    def check_model(self, setting: Setting) -> None:
        if not setting.config.cross_attention:
            raise ValueError(
                f"{setting.place} needs cross-attention, but {setting.source} has cross_attention false. Set "
                "model.config.cross_attention to true."
            )


@dataclass
class CaMlmSegments(CaMlm):
    """VECO's cross-attention masked LM of adjacent segments of monolingual text."""

    name = CaMlmSegmentsCollator.name
    text = "monolingual"
    collator_class = CaMlmSegmentsCollator


@dataclass
class CaMlmPairs(CaMlm):
    """VECO's cross-attention masked LM of translation pairs."""

    name = CaMlmPairsCollator.name
    text = "bitext"
    collator_class = CaMlmPairsCollator
