"""What is known of each model type and stands in every card of it: idea, claims, when to take it, limits, citation.

The texts are templates/about/<model_type>.yaml over _shared.yaml. A claim names two rows of a published table
(published/), by which a test checks it; limits are keyed by what they are of, and {longest} is the longest input.
"""

import functools
import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

FOLDER = Path(__file__).parent / "templates" / "about"


@functools.cache
def about(model_type: str) -> dict[str, Any] | None:
    """The texts of a model type; None for one that is not of this zoo."""
    file = FOLDER / f"{model_type}.yaml"
    if not file.is_file():
        return None
    return OmegaConf.to_container(OmegaConf.merge(OmegaConf.load(FOLDER / "_shared.yaml"), OmegaConf.load(file)))


def known_limits(config: dict[str, Any], learned: list[str], is_fine_tuned: bool) -> list[str]:
    """The limits of a model's type, and of the data that it learned from (their paths) where that is the Bible."""
    if (texts := about(config["model_type"])) is None:
        return []
    from_zero = config.get("backbone_config") or config.get("positions_from_zero")  # else from behind the padding's
    longest = config["max_position_embeddings"] - (0 if from_zero else config["pad_token_id"] + 1)
    limits = texts["limits"] if is_fine_tuned else texts["limits"] | texts.get("limits_of_base", {})
    lines = [limit.format(longest=longest) for limit in limits.values()]
    religious = [path for path in learned if re.search("bible", path, re.IGNORECASE)]
    if religious:
        much = "All" if len(religious) == len(learned) else "Part"
        style = "it knows that vocabulary and style better than everyday text"
        lines.insert(0, f"{much} of its training text is the Bible: {style}.")
    return lines
