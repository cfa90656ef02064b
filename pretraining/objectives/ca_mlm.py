"""VECO's cross-attention masked LM (ACL 2021, Figure 2): of adjacent segments, and of translations."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from pretraining.objectives.base import X_MASKS, Y_MASKS, Collator, MaskedObjective, Setting, Sides
from pretraining.rows import SIDES
from zoo_core.masking import key_stream
from zoo_core.recipes import option

if TYPE_CHECKING:
    from pretraining.held_out import Evaluator


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
    panels: ClassVar[dict[str, str]] = {"alignment_cross/": "alignment accuracy, cross-attention"}

    @property
    def learned_terms(self) -> tuple[str, ...]:
        return tuple(term for term in self.loss_terms if not self.terms or term in self.terms)

    def check_model(self, setting: Setting) -> None:
        if not setting.config.cross_attention:
            raise ValueError(
                f"{setting.place} needs cross-attention, but {setting.source} has cross_attention false. Set "
                "model.config.cross_attention to true."
            )

    @staticmethod
    def measure(evaluator: "Evaluator", corpus: Any) -> dict[str, float | list[float]]:
        """Returns the share of tokens with most cross-attention on their translation, best layer and by layer."""
        if not evaluator.alignment or not any(isinstance(found, CaMlm) for found in evaluator.objectives):
            return {}
        return evaluator.best_layer("alignment_cross", corpus, cross_attention_alignment(evaluator, corpus))


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


def cross_attention_alignment(evaluator: "Evaluator", corpus: Any) -> list[float]:
    """Returns by layer (L - 1,) the share of tokens with VECO's highest cross-attention weight on their translation.

    The weights are the mean over heads, in the stream that reads the last states of the other side. Nothing is masked,
    special tokens are left out, and both directions count. Pairs and errors are those of `alignment_accuracy`. If a
    token and its translation have the same position, as in the controlled pair, attention to the same position is also
    correct.
    """
    import torch

    from modeling.attention_masks import cross_stream_mask
    from pretraining.held_out import ordinary, right_tokens

    model = evaluator.model
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the only one that returns its weights
    right_L, count = 0, 0
    try:
        for chunk in evaluator.one_to_one_pairs(corpus):
            encoded = [evaluator.encode([[sides[side]] for sides in chunk]) for side in (0, 1)]
            for (own, _), (other, states) in (encoded, encoded[::-1]):
                with evaluator.accelerator.autocast():
                    output = model.roberta(
                        own["input_ids"],
                        attention_mask=cross_stream_mask(model.config, own["attention_mask"]),
                        encoder_hidden_states=states[-1],
                        encoder_attention_mask=other["attention_mask"],
                        output_attentions=True,
                    )
                own_BT, other_BS = ordinary(own), ordinary(other)
                weights = [layer_BATS.float().mean(1) for layer_BATS in output.cross_attentions]
                right_L = right_L + torch.stack(
                    [right_tokens(weights_BTS, own_BT, other_BS) for weights_BTS in weights]
                )
                count += int(own_BT.sum())
    finally:
        model.set_attn_implementation(attention)
    return (right_L / count).tolist()
