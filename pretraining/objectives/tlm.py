"""Translation language modeling (Conneau and Lample 2019, section 3.4)."""

from dataclasses import dataclass

from crosslingual_zoo.pretraining.objectives.base import Collator


@dataclass(kw_only=True)
class TlmCollator(Collator):
    """Translation language modeling: masked words of a pair, predicted from both languages; of all models.

    Equation: L = -sum_{i in M} log p(z_i | z_{\\M}), with z the row `<s> x </s></s> y </s>` and M its masked tokens.

            a m b b
        a   x x x x
        m   x x x x
        b   x x x x
        b   x x x x

    Examples: `{"source": "The house is small.", "target": "Das Haus ist klein."}`, and for ERNIE-M with languages
    `source_language` and `target_language`. With languages, half of the rows train the language embedding from the
    first step; the others train the <mask> without language of later use (hub_cards/models/ernie_m.md, "Differences
    from the paper"). XLM-Align's `dwa` reads these rows. Options: see `Collator`.

    Source: XLM (Conneau and Lample, 2019), section 3.4.
    """

    name, text = "tlm", "bitext"
    keys = ("source", "target")
    language_share = 0.5
