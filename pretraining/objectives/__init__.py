"""The objectives by the names that recipes give them, a file each. A new one is its file and its line here."""

from typing import Annotated, Any

from typing_extensions import TypedDict

from pretraining.objectives.base import Collator, Collators, ExampleObjective, MaskedObjective, Objective
from pretraining.objectives.btmlm import Btmlm, BtmlmCollator
from pretraining.objectives.ca_mlm import CaMlmPairs, CaMlmPairsCollator, CaMlmSegments, CaMlmSegmentsCollator
from pretraining.objectives.camlm import Camlm, CamlmCollator
from pretraining.objectives.dwa import Dwa
from pretraining.objectives.kd import Kd
from pretraining.objectives.links import Links, LinksCollator
from pretraining.objectives.mlm import Mlm, MlmCollator
from pretraining.objectives.picture import picture
from pretraining.objectives.tlm import Tlm, TlmCollator

__all__ = [
    "OBJECTIVES",
    "BtmlmCollator",
    "CaMlmPairsCollator",
    "CaMlmSegmentsCollator",
    "CamlmCollator",
    "Collator",
    "Collators",
    "ExampleObjective",
    "LinksCollator",
    "MaskedObjective",
    "MlmCollator",
    "Objective",
    "Objectives",
    "TlmCollator",
    "picture",
]

OBJECTIVES: dict[str, type[Objective]] = {
    objective.name: objective for objective in (Mlm, Tlm, CaMlmSegments, CaMlmPairs, Camlm, Btmlm, Dwa, Links, Kd)
}


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
