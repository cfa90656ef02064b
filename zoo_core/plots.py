"""What all plots share: a legend below, and the same color for a language everywhere."""

import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# XLM-R's languages. The first ten, of the benchmarks here, have different colors; others differ in dashes or marker.
LANGUAGES = (
    "en de fr es zh ru ar sw vi hi th tr ur bg el ja ko pt it nl fa he id ta te bn mr ml fi et eu hu af jv ka kk ms my "
    "tl yo am as az be br bs ca cs cy da eo fy ga gd gl gu ha hr hy is km kn ku ky la lo lt lv mg mk mn ne no om or pa "
    "pl ps ro sa sd si sk sl so sq sr su sv ug uk uz xh yi"
).split()
COLORS, DASHES, MARKERS = 10, ("-", "--", "-.", ":"), "osD^vPX*p"  # 360 lines, no two of which are alike


def line_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns a different style for each line, as arguments of matplotlib's `plot`.

    A language has the same color as its pair with English (`de-en`, `en->de`, `de/news`). Names without a language get
    the first colors that are left.
    """
    names = dict.fromkeys(names)
    taken: dict[int, str] = {}
    for name in sorted(names, key=lambda name: _number(name) is None):  # stable
        first = _number(name)
        numbers = itertools.count() if first is None else itertools.count(first, 10 * COLORS)
        taken[next(number for number in numbers if number not in taken)] = name
    styles = {
        name: {
            "color": f"C{number % COLORS}",
            "linestyle": DASHES[number // COLORS % len(DASHES)],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 4,
        }
        for number, name in taken.items()
    }
    return {name: styles[name] for name in names}


@contextmanager
def figure_of(
    path: str | Path, title: str, rows: int, columns: int, size: tuple[float, float], note: str = "", **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Makes a figure with a grid of axes, and writes it to `path` at the end, with one legend below.

    `note` is a line above the legend: the meaning of bars, bands and dots.
    """
    from matplotlib.figure import Figure  # slow to import

    width, _ = size
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    yield figure, grid
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_visible(axes.has_data())
    figure.suptitle(textwrap.fill(title, int(13 * width)), fontsize=10)
    handles = {text: line for axes in grid.flat for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles or note:
        names = [textwrap.fill(text, int(13 * width)) for text in handles]
        fitting = int(width / (0.6 + 0.07 * max(map(len, names), default=0)))
        place = dict(loc="outside lower center", ncols=max(1, min(fitting, len(names))), fontsize=8, frameon=False)
        figure.legend(handles.values(), names, title=textwrap.fill(note, int(13 * width)), title_fontsize=8, **place)
    figure.savefig(path, dpi=150)


def _number(name: str) -> int | None:
    """The place in LANGUAGES of a language, or of the first one of a pair that is not English."""
    found = [LANGUAGES.index(part) for part in re.split(r"->|[-/]", name) if part in LANGUAGES]
    return next(filter(None, found), found[0] if found else None)
