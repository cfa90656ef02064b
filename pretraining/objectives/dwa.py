"""XLM-Align's denoising word alignment (Chi et al., ACL 2021, section 3): the model labels the links of translation
pairs and learns to predict them. The labels and the loss are those of `modeling/denoising_word_alignment.py`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crosslingual_zoo.pretraining.objectives.base import Objective
from crosslingual_zoo.pretraining.objectives.tlm import TlmCollator

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Dwa(Objective):
    """XLM-Align's denoising word alignment: find a masked word's partner in tlm's pairs; model.config sets the rest."""

    name, text, reads = "dwa", TlmCollator.text, TlmCollator.name
    reads_draws = True

    def check(self, path: str, phases: Sequence, corpora: Mapping, config: Any, learned: Mapping[str, Any]) -> None:
        """Raises ValueError for a phase that would predict nothing; warns of a model that has learned nothing yet."""
        if config.query_positions == "none":
            # with weight 0 an objective makes rows but is not learned, such as tlm in the paper's -TLM
            weights = [objective.weight for objective in phases[-1].objectives.values() if objective is not self]
            if self.weight and not any(weights):
                raise ValueError(
                    f"{path} predicts nothing, because model.config.query_positions is none. Set it to masked, or add "
                    "an objective to the phase."
                )
        elif self.weight and len(phases) == 1 and not learned:
            logger.warning(
                f"{path}: the model starts from random weights and labels its own links, which will be noise "
                "(XLM-Align, section 6). Set model.start_from to a pretrained model, or add a phase with mlm and "
                f"{TlmCollator.name} before this one."
            )
