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
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"--html {path} cannot be written. Name a file in a folder that exists.")
    if path.exists() and MARKER not in path.read_text(encoding="utf-8", errors="replace")[:2000]:
        raise ValueError(f"{path} exists and is no page of word links. Name another file.")


def write_page(
    path: str | Path, found: Iterable[Any], facts: str, threshold: float | None = None, link_all: bool = False
) -> None:
    """Writes the page.

    found: `modeling.word_alignment.WordAlignment`s with probabilities, and all their likely links.
    facts: how the links were made. threshold: the lowest probability of the links that are shown at first; the page
    has a slider for it. None: show all links, because their probabilities are not calibrated. link_all: whether to
    show the likeliest link of each source word always.
    """
    data = {"pairs": list(map(_as_json, found)), "threshold": threshold, "linkAll": link_all}
    parts = {
        "{{ style }}": (TEMPLATES / "links.css").read_text(encoding="utf-8"),
        "{{ script }}": (TEMPLATES / "links.js").read_text(encoding="utf-8"),
        "{{ facts }}": html.escape(facts),
        "{{ data }}": json.dumps(data).replace("<", "\\u003c"),  # last: words may hold the others
    }
    page = (TEMPLATES / "page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace(name, text)
    Path(path).write_text(page, encoding="utf-8")


def _as_json(alignment: Any) -> dict[str, Any]:
    links = zip(alignment.links, alignment.probabilities, strict=True)
    return {
        "source": alignment.source,
        "target": alignment.target,
        # rounded down: a probability must not exceed the threshold by rounding
        "links": [[i, j, int(1e6 * probability) / 1e6] for (i, j), probability in links],
    }
