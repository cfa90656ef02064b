"""What is known of each model type and stands in every card of it: idea, claims, when to take it, limits, citation.

The texts are templates/about/<model_type>.yaml, read as strictly as recipes: an unknown or a missing key is an error. A
claim names two rows of a published table (published/), by which a test checks it.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import MISSING

from zoo_core.recipes import load_recipe, option

FOLDER = Path(__file__).parent / "templates" / "about"


@dataclass
class Claim:
    """What a paper says its model does better than another one, and the two rows that it says it by."""

    text: str = option(MISSING, "the comparison, without its figures")
    table: str = option(MISSING, "table of the paper")
    metric: str = option(MISSING, "metric of that table")
    ours: str = option(MISSING, "row of the paper's model")
    theirs: str = option(MISSING, "row of the other model")
    better: Literal["higher", "lower"] = option("higher", "which figures are better")


@dataclass
class Alternative:
    """Models that serve a purpose better."""

    when: str = option(MISSING, "the purpose")
    models: dict[str, str] = option({}, "name -> id on the Hub")
    why: str = option(MISSING, "why they do")


@dataclass
class About:
    """A file of templates/about/."""

    name: str = option(MISSING, "model and venue, as a card says it")
    title: str = option(MISSING, "title of the paper")
    arxiv: str = option(MISSING, "number of the paper on arXiv")
    summary: str = option(MISSING, "the idea, in two or three sentences")
    citation: str = option(MISSING, "BibTeX of the paper")
    claims: list[Claim] = option([], "what the paper reports")
    take_when: list[str] = option([], "when to take the model")
    alternatives: dict[str, Alternative] = option({}, "when to take another one, by purpose")
    limits: dict[str, str] = option({}, "limits and risks, by what they are of; {longest} is the longest input")
    limits_of_base: dict[str, str] = option({}, "those of a model that is not fine-tuned")


@functools.cache
def about(model_type: str) -> About | None:
    """The texts of a model type; None for one that is not of this zoo. Raises ValueError for a file with a fault."""
    file = FOLDER / f"{model_type}.yaml"
    return load_recipe(About, str(file), []) if file.is_file() else None


def known_limits(config: dict[str, Any], learned: list[str], is_fine_tuned: bool) -> list[str]:
    """The limits of a model's type, and of the data that it learned from (their paths) where that is the Bible."""
    if (texts := about(config["model_type"])) is None:
        return []
    from_zero = config.get("backbone_config") or config.get("positions_from_zero")  # else from behind the padding's
    longest = config["max_position_embeddings"] - (0 if from_zero else config["pad_token_id"] + 1)
    limits = texts.limits if is_fine_tuned else texts.limits | texts.limits_of_base
    lines = [limit.format(longest=longest) for limit in limits.values()]
    religious = [path for path in learned if re.search("bible", path, re.IGNORECASE)]
    if religious:
        much = "All" if len(religious) == len(learned) else "Part"
        style = "it knows that vocabulary and style better than everyday text"
        lines.insert(0, f"{much} of its training text is the Bible: {style}.")
    return lines
