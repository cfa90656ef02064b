"""What all plots share: a legend below, and lines of which no two are alike."""

import textwrap
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# with 10 colors: 360 lines, no two of which are alike
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*p"
CHARACTERS_AN_INCH = 13


def line_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns a different style for each line, as arguments of matplotlib's `plot`."""
    styles = {}
    for number, name in enumerate(dict.fromkeys(names)):
        styles[name] = {
            "color": f"C{number % 10}",
            "linestyle": DASHES[number // 10 % len(DASHES)],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 4,
        }
    return styles


@contextmanager
def figure_of(
    path: str | Path, title: str, rows: int, columns: int, size: tuple[float, float], note: str = "", **options: Any
) -> Generator[Any]:
    """Makes a figure with a grid of axes, and writes it to `path` at the end, with one legend below. `note` is a line
    above the legend: the meaning of bars, bands and dots."""
    from matplotlib.figure import Figure  # slow to import

    width, _ = size
    characters = int(CHARACTERS_AN_INCH * width)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    yield grid
    lines = {}  # by their labels
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_visible(axes.has_data())
        handles, labels = axes.get_legend_handles_labels()
        lines |= dict(zip(labels, handles, strict=True))
    figure.suptitle(textwrap.fill(title, characters), fontsize=10)
    if lines or note:
        longest = max(map(len, lines), default=0)
        fitting = int(width / (0.6 + 0.07 * min(longest, characters)))
        figure.legend(
            lines.values(),
            [textwrap.fill(label, characters) for label in lines],
            title=textwrap.fill(note, characters),
            loc="outside lower center",
            ncols=max(1, min(fitting, len(lines))),
            fontsize=8,
            title_fontsize=8,
            frameon=False,
        )
    figure.savefig(path, dpi=150)
