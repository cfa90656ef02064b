"""XLM-Align's denoising word alignment (Chi et al., ACL 2021, section 3): the model labels the links of translation
pairs and learns to predict them. The labels and the loss are those of `modeling/denoising_word_alignment.py`.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pretraining.objectives.base import Objective, Setting
from pretraining.objectives.tlm import Tlm
from pretraining.rows import encode_rows
from zoo_core.masking import IGNORED

if TYPE_CHECKING:
    from pretraining.held_out import Evaluator

logger = logging.getLogger(__name__)


@dataclass
class Dwa(Objective):
    """XLM-Align's denoising word alignment: find a masked word's partner in tlm's pairs; model.config sets the rest."""

    name = "dwa"
    text = "bitext"
    reads = Tlm
    predicts_tokens = False
    draws = True
    panels: ClassVar[dict[str, str]] = {"self_labels/": "share of self-labeled links that are right"}

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

    @staticmethod
    def measure(evaluator: "Evaluator", corpus: Any) -> dict[str, float | list[float]]:
        """Returns the share of self-labeled links that are right, and links per source token."""
        if not evaluator.alignment or not any(isinstance(found, Dwa) for found in evaluator.objectives):
            return {}
        right, share = self_label_accuracy(evaluator, corpus)
        return {f"self_labels/{corpus.name}": right, f"self_labels_per_token/{corpus.name}": share}


def self_label_accuracy(evaluator: "Evaluator", corpus: Any) -> tuple[float, float]:
    """Returns the share of right links among XLM-Align's own labels of held-out pairs, and links per source token.

    Pairs and errors are those of `alignment_accuracy`.
    """
    import torch
    from accelerate.utils import send_to_device

    right, found, tokens = 0, 0, 0
    for chunk in evaluator.one_to_one_pairs(corpus):
        batch = send_to_device(encode_rows(chunk, evaluator.tokenizer), evaluator.accelerator.device)
        with evaluator.accelerator.autocast():
            # nothing is masked: labels come from the original text
            labels = evaluator.model.self_label(batch | {"labels": torch.full_like(batch["input_ids"], IGNORED)})
        links_N3 = labels.links_PST.nonzero()
        right += int((links_N3[:, 1] == links_N3[:, 2]).sum())
        found += len(links_N3)
        tokens += int(labels.source_mask_PS.sum())
    return right / max(1, found), found / tokens
