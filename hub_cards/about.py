"""What is known of each model type and stands in every card of it: idea, claims, when to take it, limits, citation.

The texts are templates/about/<model_type>.yaml, read as strictly as recipes: an unknown or a missing key is an error. A
claim names two rows of a published table (published/), so that what it says can be checked there.
"""

import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import MISSING

from zoo_core import published
from zoo_core.recipes import load_recipe, option

FOLDER = Path(__file__).parent / "templates" / "about"
HUB = "https://huggingface.co"


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
class Rather:
    """Models that serve a purpose better."""

    when: str = option(MISSING, "the purpose")
    models: dict[str, str] = option({}, "name -> id on the Hub")
    why: str = option(MISSING, "why they do")


@dataclass
class Texts:
    """A file of templates/about/."""

    name: str = option(MISSING, "model and venue, as a card says it")
    title: str = option(MISSING, "title of the paper")
    arxiv: str = option(MISSING, "number of the paper on arXiv")
    summary: str = option(MISSING, "the idea, in two or three sentences")
    citation: str = option(MISSING, "BibTeX of the paper")
    claims: list[Claim] = option([], "what the paper reports")
    take_when: list[str] = option([], "when to take the model")
    rather: dict[str, Rather] = option({}, "when to take another one, by purpose")
    limits: dict[str, str] = option({}, "limits and risks, by what they are of")


@dataclass(frozen=True)
class About:
    """What a card says of a model type; all of it empty for a model that is not of this zoo. Lines are Markdown."""

    name: str = ""
    title: str = ""
    url: str = ""  # the paper's page on the Hub
    summary: str = ""
    claims: list[str] = field(default_factory=list)  # each the paper's own, with its table
    take_when: list[str] = field(default_factory=list)
    rather: list[str] = field(default_factory=list)  # with links to the Hub
    limits: list[str] = field(default_factory=list)
    citation: str = ""  # BibTeX


def about(config: dict[str, Any], run: dict[str, Any] | None = None) -> About:
    """What is known of a model's type.

    Args:
        config: what its config.json holds; the length limit is computed from it.
        run: run.json of its pre-training, where it is known: a corpus of one kind of text is a limit too.

    Raises ValueError for a file of templates/about/ that has unknown keys, lacks one, or has a value of another type.
    """
    model_type = config.get("model_type", "")
    if model_type not in model_types():
        return About()
    texts = read_texts(model_type)
    longest = config["max_position_embeddings"] - config["pad_token_id"] - 1  # positions begin behind the padding's
    return About(
        name=texts.name,
        title=texts.title,
        url=f"{HUB}/papers/{texts.arxiv}",
        summary=texts.summary,
        claims=[f"{claim.text} ({claim.table})" for claim in texts.claims],
        take_when=list(texts.take_when),
        rather=[_rather(entry) for entry in texts.rather.values()],
        limits=[*_of_the_run(run or {}), *(limit.format(longest=longest) for limit in texts.limits.values())],
        citation=texts.citation,
    )


def model_types() -> list[str]:
    """The model types that there are texts for."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml") if not file.stem.startswith("_"))


@functools.cache
def read_texts(model_type: str) -> Texts:
    """The file of a model type. Raises ValueError as `about`, and for a claim whose rows are in no published table."""
    texts = load_recipe(Texts, str(FOLDER / f"{model_type}.yaml"), [])
    for claim in texts.claims:
        for row in (claim.ours, claim.theirs):
            published.find(model_type, claim.table, row)
    return texts


def _rather(entry: Rather) -> str:
    models = ", ".join(f"[{name}]({HUB}/{repo})" for name, repo in entry.models.items())
    return f"{entry.when}: {models} ({entry.why})"


def _of_the_run(run: dict[str, Any]) -> list[str]:
    """A line where the run was on the Bible, which many languages have and which is nothing like the news."""
    paths = [table["path"] for corpus in run.get("corpora", []) for table in corpus["tables"]]
    religious = [path for path in paths if re.search("bible", path, re.IGNORECASE)]
    if not religious:
        return []
    much = "All" if len(religious) == len(paths) else "Part"
    return [f"{much} of its training text is the Bible: it knows that vocabulary and style better than everyday text."]
