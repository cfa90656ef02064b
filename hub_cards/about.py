"""What every card of a model type says: method, claims of the paper, when to use it, limits, citation.

The texts are in templates/about/<model_type>.yaml, which extends _shared.yaml. A claim names two rows of a published
table (finetuning/published/), and a test checks it there. Limits have names, and {longest} is the longest input.
"""

import functools
import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

FOLDER = Path(__file__).parent / "templates" / "about"
PICTURES = Path(__file__).parent / "models" / "figures"


@functools.cache
def about(model_type: str) -> dict[str, Any] | None:
    """Returns the texts of a model type; None for a type that is not of this zoo."""
    file = FOLDER / f"{model_type}.yaml"
    if not file.is_file():
        return None
    texts = OmegaConf.to_container(OmegaConf.merge(OmegaConf.load(FOLDER / "_shared.yaml"), OmegaConf.load(file)))
    return texts | {"alternatives": [other for other in texts["alternatives"].values() if other]}  # null: not of it


def pictures(model_type: str) -> dict[str, bytes]:
    """Returns the pictures of a model type's method, by their paths in a model folder; none for another type."""
    names = (about(model_type) or {}).get("pictures", ())
    return {f"provenance/figures/{name}": (PICTURES / name).read_bytes() for name in names}


def known_limits(config: dict[str, Any], learned: list[str], is_fine_tuned: bool) -> list[str]:
    """Returns the limits of a model's type and of the data that it learned from, given by their paths."""
    if (texts := about(config["model_type"])) is None:
        return []
    from_zero = config.get("backbone_config") or config.get("positions_from_zero")  # else from behind the padding's
    longest = config["max_position_embeddings"] - (0 if from_zero else config["pad_token_id"] + 1)
    limits = texts["limits"] if is_fine_tuned else texts["limits"] | texts.get("limits_of_base", {})
    lines = [limit.format(longest=longest) for limit in limits.values()]
    religious = [path for path in learned if re.search("bible", path, re.IGNORECASE)]
    if religious:
        much = "All" if len(religious) == len(learned) else "Part"
        style = "whose vocabulary and style it knows better than everyday text"
        lines.insert(0, f"{much} of its training text is the Bible, {style}.")
    return lines
