"""Masked language modeling (Devlin et al. 2019), of text in any number of languages (Conneau and Lample 2019, 3.3)."""

from dataclasses import dataclass

from pretraining.objectives.base import Collator, MaskedObjective


class MlmCollator(Collator):
    """Masked language modeling of text in one language: every token sees every token.

        a m a
    a   x x x
    m   x x x
    a   x x x

    Examples: `{"text": "The house is small."}`.

    Source: BERT (Devlin et al., 2019), section 3.1.
    """

    name = "mlm"


@dataclass
class Mlm(MaskedObjective):
    """Masked language modeling of monolingual text; of all models."""

    name = MlmCollator.name
    text = "monolingual"
    collator_class = MlmCollator
