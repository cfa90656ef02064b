"""The objectives by the names that recipes give them, a file each. A new one is its file and its line here."""

from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from crosslingual_zoo.pretraining.objectives.base import Collator, Objective
from crosslingual_zoo.pretraining.objectives.btmlm import BtmlmCollator
from crosslingual_zoo.pretraining.objectives.ca_mlm import CaMlmPairsCollator, CaMlmSegmentsCollator
from crosslingual_zoo.pretraining.objectives.camlm import CamlmCollator
from crosslingual_zoo.pretraining.objectives.dwa import Dwa
from crosslingual_zoo.pretraining.objectives.kd import Kd
from crosslingual_zoo.pretraining.objectives.links import LinksCollator
from crosslingual_zoo.pretraining.objectives.mlm import MlmCollator
from crosslingual_zoo.pretraining.objectives.tlm import TlmCollator

__all__ = ["OBJECTIVES", "Collator", "Objective", "Objectives"]

# a phase has them in this order
ALL = (MlmCollator, CaMlmSegmentsCollator, CaMlmPairsCollator, TlmCollator, CamlmCollator, BtmlmCollator, Dwa, Kd)
OBJECTIVES: dict[str, type[Objective]] = {objective.name: objective for objective in (*ALL, LinksCollator)}
if TYPE_CHECKING:
    Objectives = dict[str, Objective]
else:  # what a recipe's `objectives` may hold: each key is read by its class
    Objectives = TypedDict("Objectives", OBJECTIVES, total=False)
