"""Translation language modeling (Conneau and Lample 2019, section 3.4)."""

from dataclasses import dataclass

from pretraining.objectives.base import Collator, PackableObjective


class TlmCollator(Collator):
    """Translation language modeling: a masked token may be read off either side.

            a m b b
        a   x x x x
        m   x x x x
        b   x x x x
        b   x x x x

    Examples: `{"source": "The house is small.", "target": "Das Haus ist klein."}`, and for ERNIE-M with languages
    `source_language` and `target_language`. With languages, half of the rows teach the language embedding from the
    first step on, the others the <mask> that is used later, which says none (hub_cards/models/ernie_m.md, "What differs
    from the paper"). XLM-Align's `dwa` reads these rows.

    Source: XLM (Conneau and Lample, 2019), section 3.4.
    """

    name = "tlm"
    keys = ("source", "target")
    language_share = 0.5


@dataclass
class Tlm(PackableObjective):
    """Translation language modeling: masked words of a pair, predicted from both languages; of all models."""

    name = TlmCollator.name
    text = "bitext"
    collator_class = TlmCollator
