"""Translation language modeling (Conneau and Lample 2019, section 3.4)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pretraining.data.languages import Languages
from pretraining.objectives.base import DRAW, Collator, PackableObjective
from pretraining.rows import Block
from zoo_core.masking import bits_of, key_stream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
    from the paper"). XLM-Align's `dwa` reads these rows: with `draws` they have a random number a position as well,
    which `config.query_positions` unmasked and all_aligned choose their queries by.
    """

    name = "tlm"
    keys = ("source", "target")
    language_share = 0.5

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        mask_probability: float = 0.15,
        max_length: int = 256,
        languages: Languages | list[str] | None = None,
        draws: bool = False,
    ):
        super().__init__(tokenizer, mask_probability, max_length, languages)
        self.extra_fields = ("draws",) if draws else ()

    def extras(self, block: Block, keys_N: np.ndarray) -> dict[str, np.ndarray]:
        if not self.extra_fields:
            return {}
        from modeling.modeling_xlm_align import DRAWS  # transformers' models take seconds to import

        return {"draws": bits_of(key_stream(keys_N, DRAW), block.input_ids.shape[1]) % DRAWS}


@dataclass
class Tlm(PackableObjective):
    """Translation language modeling of translation pairs; of all models."""

    name = TlmCollator.name
    text = "bitext"
    collator_class = TlmCollator

    def collator(
        self, tokenizer: "PreTrainedTokenizerBase", languages: Languages | None = None, draws: bool = False
    ) -> TlmCollator:
        return TlmCollator(tokenizer, self.mask_probability, self.max_length, languages, draws)
