"""The objectives by the names that recipes give them, a file each. A new one is its file and its line here."""

from typing import Annotated, Any

from typing_extensions import TypedDict

from pretraining.objectives.base import Collator, Objective
from pretraining.objectives.btmlm import BtmlmCollator
from pretraining.objectives.ca_mlm import CaMlmPairsCollator, CaMlmSegmentsCollator
from pretraining.objectives.camlm import CamlmCollator
from pretraining.objectives.dwa import Dwa
from pretraining.objectives.kd import Kd
from pretraining.objectives.links import LinksCollator
from pretraining.objectives.mlm import MlmCollator
from pretraining.objectives.tlm import TlmCollator

__all__ = ["OBJECTIVES", "Collator", "Objective", "Objectives"]

ALL = (MlmCollator, TlmCollator, CaMlmSegmentsCollator, CaMlmPairsCollator, CamlmCollator, BtmlmCollator, Dwa)
OBJECTIVES: dict[str, type[Objective]] = {objective.name: objective for objective in (*ALL, LinksCollator, Kd)}


class KeepOrder:
    """Keeps the keys of a TypedDict in the order of the recipe: pydantic would sort them like the class."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import WrapValidator  # --help does without

        def in_order(values: Any, validate: Any) -> dict:
            found = validate(values)
            return {name: found[name] for name in values}

        return WrapValidator(in_order).__get_pydantic_core_schema__(source, handler)


# what a recipe's `objectives` may hold: each key is read by its class
Objectives = Annotated[TypedDict("Objectives", OBJECTIVES, total=False), KeepOrder()]
