"""XLM-Align's denoising word alignment (Chi et al., ACL 2021, section 3): the model labels the links of translation
pairs and learns to predict them. The labels and the loss are those of `modeling/denoising_word_alignment.py`.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretraining.objectives.base import Objective, Setting
from pretraining.objectives.tlm import Tlm

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)


@dataclass
class Dwa(Objective):
    """XLM-Align's denoising word alignment: find a masked word's partner in tlm's pairs; model.config sets the rest."""

    name = "dwa"
    text = "bitext"
    reads = Tlm
    predicts_tokens = False
    draws = True

    def check_model(self, setting: Setting) -> None:
        # with weight 0 an objective makes rows but is not learned, such as tlm in the paper's -TLM
        learned = [objective for objective in setting.together if objective.weight]
        if setting.config.query_positions == "none":
            if learned and all(isinstance(objective, Dwa) for objective in learned):
                raise ValueError(
                    f"{setting.place} predicts nothing, because model.config.query_positions is none. Set it to "
                    "masked, or add an objective to the phase."
                )
        elif self.weight and not setting.before and setting.learned is None:
            logger.warning(
                f"Phase {setting.phase!r} has {self.name}, but the model starts from random weights: it labels its own "
                "links, and these labels will be noise (XLM-Align, section 6). Set model.start_from to a pretrained "
                f"model, or add a phase with mlm and {Tlm.name} before this one."
            )
