"""Knowledge distillation from a teacher of one language: MetaXLM's baseline XLM+KD (Chi et al. 2021, section 5.3).

The teacher reads the masked texts of `mlm` with its own tokenizer and predicts the masked words
(`pretraining/start/teacher.py`). The loss is that of `modeling/modeling_metaxlm.py`.
"""

from dataclasses import dataclass

from crosslingual_zoo.pretraining.objectives.base import Objective
from crosslingual_zoo.pretraining.objectives.mlm import MlmCollator


@dataclass(kw_only=True)
class Kd(Objective):
    """MetaXLM's knowledge distillation, on the masked texts of `mlm` in the language of the recipe's `teacher`."""

    name, text, reads = "kd", MlmCollator.text, MlmCollator.name
    has_teacher = True
