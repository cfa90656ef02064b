"""A self-contained page that shows word links: sentences with their links, and a matrix of their probabilities.

The template takes in style and script; nothing is loaded from anywhere. Words reach it as JSON and are set as text.
"""

import html
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"
MARKER = '<meta name="generator" content="word-align">'  # only files with it are overwritten


def check_page(path: str | Path) -> None:
    """Raises ValueError if no page can be written at `path`, or if it would replace another file."""
    path = Path(path)
    changed_path = path if path.exists() else path.parent
    if path.is_dir() or not os.access(changed_path, os.W_OK):
        raise ValueError(f"--html {path} cannot be written. Name a file in a folder that exists.")
    if path.exists():
        text = path.read_text(encoding="utf-8", errors="replace")
        if MARKER not in text[:2000]:
            raise ValueError(f"{path} exists and is no page of word links. Name another file.")


def write_page(
    path: str | Path, alignments: Iterable[Any], facts: str, threshold: float | None = None, link_all: bool = False
) -> None:
    """Writes the page.

    alignments: `modeling.word_alignment.WordAlignment`s with probabilities, and all their likely links.
    facts: how the links were made. threshold: the lowest probability of the links that are shown at first; the page
    has a slider for it. None: show all links, because their probabilities are not calibrated. link_all: whether to
    show the likeliest link of each source word always.
    """
    data = {"pairs": list(map(_as_json, alignments)), "threshold": threshold, "linkAll": link_all}
    page = _template("page.html")
    page = page.replace("{{ style }}", _template("links.css"))
    page = page.replace("{{ script }}", _template("links.js"))
    page = page.replace("{{ facts }}", html.escape(facts))
    page = page.replace("{{ data }}", json.dumps(data).replace("<", "\\u003c"))  # last: words may hold the others
    Path(path).write_text(page, encoding="utf-8")


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _as_json(alignment: Any) -> dict[str, Any]:
    links = []
    for (i, j), probability in zip(alignment.links, alignment.probabilities, strict=True):
        rounded_down = int(1e6 * probability) / 1e6  # it must not exceed the threshold by rounding
        links.append([i, j, rounded_down])
    return {"source": alignment.source, "target": alignment.target, "links": links}
