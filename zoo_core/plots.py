"""What all plots share: a legend below, and lines of which no two are alike."""

import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DASHES, MARKERS = ("-", "--", "-.", ":"), "osD^vPX*p"  # with 10 colors: 360 lines, no two of which are alike


def line_styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns a different style for each line, as arguments of matplotlib's `plot`."""

    def style(n: int) -> dict[str, Any]:
        return dict(color=f"C{n % 10}", linestyle=DASHES[n // 10 % 4], marker=MARKERS[n % 9], markersize=4)

    return {name: style(n) for n, name in enumerate(dict.fromkeys(names))}


@contextmanager
def figure_of(
    path: str | Path, title: str, rows: int, columns: int, size: tuple[float, float], note: str = "", **options: Any
) -> Iterator[Any]:
    """Makes a figure with a grid of axes, and writes it to `path` at the end, with one legend below. `note` is a line
    above the legend: the meaning of bars, bands and dots."""
    from matplotlib.figure import Figure  # slow to import

    width, figure = size[0], Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    yield grid
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
