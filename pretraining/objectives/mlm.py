"""Masked language modeling (Devlin et al. 2019), of text in any number of languages (Conneau and Lample 2019, 3.3)."""

from dataclasses import dataclass

from crosslingual_zoo.pretraining.objectives.base import Collator


@dataclass(kw_only=True)
class MlmCollator(Collator):
    """Masked language modeling of monolingual text; of all models.

    Every token sees every token. Equation: L = -sum_{i in M} log p(x_i | x_{\\M}), with M the masked tokens of x.

            a m a
        a   x x x
        m   x x x
        a   x x x

    Examples: `{"text": "The house is small."}`. Options: see `Collator`.

    Source: BERT (Devlin et al., 2019), section 3.1.
    """

    name, text = "mlm", "monolingual"
