"""A self-contained page that shows word links: sentences with their links, the similarity of all words, a search.

The template takes in style and script; nothing is loaded from anywhere. Words reach it as JSON and are set as text.
"""

import tempfile
import webbrowser
from pathlib import Path
from typing import Any

from finetuning.align.output import require_writable

TEMPLATE = "alignment_page.html.jinja"
MARKER = '<meta name="generator" content="word-align">'  # only files with it are overwritten
MATRIX_WORDS = 150  # of a side; a browser takes seconds to draw more cells, and nobody can read them


def new_page() -> Path:
    """Returns the path of a page without a name; the file is kept."""
    return Path(tempfile.mkdtemp(prefix="word-align-")) / "page.html"


def open_page(path: Path) -> bool:
    """Opens the page in the browser; returns False if there is none."""
    try:
        return webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        return False


class Page:
    """Collects pairs, then writes the page."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.pairs: list[dict[str, Any]] = []
        require_writable(path, "--html")
        if self.path.exists() and MARKER not in self.path.read_text(encoding="utf-8", errors="replace")[:2000]:
            raise ValueError(f"{self.path} exists and is no page of word links. Name another file.")

    def add(self, alignment: Any) -> None:
        """Adds a `modeling.word_alignment.WordAlignment` with probabilities and similarity, and all its likely links.

        The similarity of a pair with more than `MATRIX_WORDS` words on a side is left out.
        """
        has_matrix = max(len(alignment.source), len(alignment.target)) <= MATRIX_WORDS
        self.pairs.append(
            {
                "source": alignment.source,
                "target": alignment.target,
                "links": [
                    [i, j, int(1e6 * probability) / 1e6]  # rounded down: it must not exceed the threshold by rounding
                    for (i, j), probability in zip(alignment.links, alignment.probabilities, strict=True)
                ],
                # whole hundredths: colors show no more, and they need half the bytes
                "similarity": [[round(100 * value) for value in row] for row in alignment.similarity]
                if has_matrix
                else None,
                "windows": alignment.windows,
            }
        )

    def write(
        self, title: str, facts: dict[str, str], total: int, threshold: float | None = None, link_all: bool = False
    ) -> None:
        """Writes the page. title: of the input. facts: how the links were made. total: pairs of the whole input.

        threshold: the lowest probability of the links that are shown at first; the page has a slider for it. None: show
        all links, because their probabilities are not calibrated. link_all: whether to show the likeliest link of each
        source word always.
        """
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            undefined=StrictUndefined,
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        page = environment.get_template(TEMPLATE).render(
            title=title,
            facts=facts,
            data={"pairs": self.pairs, "total": total, "threshold": threshold, "link_all": link_all},
        )
        self.path.write_text(page, encoding="utf-8")
