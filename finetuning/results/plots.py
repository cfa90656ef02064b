"""The three plots of results: bars, lines and heat maps, each a PNG or whatever else matplotlib writes."""

import math
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finetuning.results.table import AVERAGE, Summary, summary

MOST_COLORS = 10  # lines of a panel that can be told apart; the average is black
MARKERS = "osD^vPX*"  # a line has its own marker too, for those who see no colors
SOURCE, OTHERS = "#d98324", "#3c6e91"


@contextmanager
def _figure(path: str | Path, title: str, rows: int, columns: int, size: tuple[float, float], **options: Any):
    """A grid of axes, as a list of rows, that is written to `path` at the end."""
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
    yield figure, grid
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _legend(figure: Any, grid: Any, columns: int) -> None:
    handles = {text: line for axes in grid.flat for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        place = dict(loc="outside lower center", ncols=min(columns, len(handles)), fontsize=8, frameon=False)
        figure.legend(handles.values(), handles.keys(), **place)


def plot_bars(
    groups: Mapping[str, Mapping[str, Summary]],
    path: str | Path,
    title: str,
    label: str,
    levels: Mapping[str, float] | None = None,
    marks: Mapping[str, Mapping[str, float]] | None = None,
    highlighted: str | None = None,
) -> None:
    """Bars with the standard deviation over seeds and a point a seed, by group and name, as {group: {name: summary}}.

    `levels` are horizontal lines by their label; `marks` published figures, a series of points by its label and name.
    Of a single group, the bar of the `highlighted` name has another color.
    """
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    size = (max(5.0, 3.0 + 0.25 * len(names) * (1 + len(groups))), 4.0)
    with _figure(path, title, 1, 1, size) as (figure, grid):
        axes, width = grid[0, 0], 0.8 / len(groups)
        for number, (group, bars) in enumerate(groups.items()):
            places = [names.index(name) + (number - (len(groups) - 1) / 2) * width for name in bars]
            means, spread = [e["mean"] for e in bars.values()], [e["sd"] or 0.0 for e in bars.values()]
            style: dict[str, Any] = {"label": group}
            if len(groups) == 1:
                style = {"color": [SOURCE if name == highlighted else OTHERS for name in bars]}
            axes.bar(places, means, width, yerr=spread if any(spread) else None, capsize=2, **style)
            for place, entry in zip(places, bars.values(), strict=True):
                if entry["scores"][1:]:  # every seed: a mean hides one that collapsed
                    axes.plot([place] * len(entry["scores"]), entry["scores"], "k.", markersize=4)
                if len(groups) == 1:  # at the foot of the bar, where nothing else is drawn
                    axes.text(place, 2, f"{entry['mean']:.1f}", ha="center", fontsize=8, color="white")
        for number, (text, level) in enumerate((levels or {}).items()):
            axes.axhline(level, color="black", linewidth=0.8, linestyle=("--", ":", "-.")[number % 3], label=text)
        for number, (text, figures) in enumerate((marks or {}).items()):
            shown = [name for name in names if name in figures]
            style = dict(linestyle="none", markeredgecolor="white", markersize=6, color=f"C{3 + number}")
            marker = "DosP^v"[number % 6]
            axes.plot([names.index(n) for n in shown], [figures[n] for n in shown], marker=marker, label=text, **style)
        axes.set_xticks(range(len(names)), names, rotation=0 if len("".join(names)) < 90 else 60)
        axes.set_ylim(0, 100)
        axes.set_ylabel(label)
        _legend(figure, grid, 3)


def plot_lines(
    panels: Mapping[str, Mapping[str, Mapping[Any, Summary | float]]],
    path: str | Path,
    title: str,
    x_label: str,
    y_label: str,
    levels: Mapping[str, tuple[str, float]] | None = None,
    mark: tuple[float, str] | None = None,
    same_scale: bool = True,
) -> None:
    """Lines over numbers or names, with a band of the standard deviation over seeds, as {panel: {line: {x: value}}}.

    `levels` are a panel's horizontal line, as (label, value); `mark` a vertical one, as (x, what it is). Where a panel
    has more lines than colors, all but the AVERAGE are drawn in gray, without bands. `same_scale`: whether panels share
    the axis of the values.
    """
    columns = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
    rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines if name != AVERAGE))
    is_crowded = len(names) > MOST_COLORS
    styles = {
        name: dict(color=f"C{number}", label=name, marker=MARKERS[number % len(MARKERS)], markersize=4)
        for number, name in enumerate(names)
    }
    if is_crowded:
        styles = dict.fromkeys(names, dict(color="0.75", linewidth=0.7, marker=".", label=f"each of {len(names)}"))
    styles[AVERAGE] = dict(color="black", linewidth=2.0, label=AVERAGE, zorder=3, marker=".")
    size = (max(5.0, 1.4 + 4.0 * columns), 1.2 + 3.0 * rows)
    with _figure(path, title, rows, columns, size, sharey=same_scale) as (figure, grid):
        for axes, (panel, lines) in zip(grid.flat, panels.items(), strict=False):
            for name, points in lines.items():
                entries = [v if isinstance(v, Mapping) else summary([v]) for v in points.values()]
                means, spread = [e["mean"] for e in entries], [e["sd"] or 0.0 for e in entries]
                axes.plot(list(points), means, **styles[name])
                if any(spread) and not (is_crowded and name != AVERAGE):
                    low, high = ([m + s * d for m, d in zip(means, spread, strict=True)] for s in (-1, 1))
                    axes.fill_between(list(points), low, high, color=styles[name]["color"], alpha=0.2, linewidth=0)
            if levels and panel in levels:
                text, level = levels[panel]
                axes.axhline(level, color="gray", linewidth=1.0, linestyle="--", label=text)
            if mark is not None:
                axes.axvline(mark[0], color="black", linewidth=0.8, linestyle=":")
            axes.set_title(panel, fontsize=9)
            axes.set_xlabel(x_label + (f" ({mark[1]})" if mark else ""))
            if all(isinstance(x, int) for points in lines.values() for x in points):
                axes.xaxis.get_major_locator().set_params(integer=True)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel(y_label)
        _legend(figure, grid, 3 if columns == 1 else 5)


def plot_heat_maps(
    panels: Mapping[str, Mapping[str, Mapping[str, float]]],
    path: str | Path,
    title: str,
    label: str,
    x_label: str = "",
    y_label: str = "",
    around_zero: bool = False,
) -> None:
    """A heat map a panel with its numbers, all on one scale, as {panel: {row: {column: value}}}; cells may be missing.

    `around_zero` is for differences: colors tell their sign.
    """
    columns = {panel: list(dict.fromkeys(c for row in rows.values() for c in row)) for panel, rows in panels.items()}
    values = [value for rows in panels.values() for row in rows.values() for value in row.values()]
    far = max(map(abs, values)) or 1.0
    style = (
        dict(cmap="RdBu", vmin=-far, vmax=far)
        if around_zero
        else dict(cmap="viridis", vmin=min(values), vmax=max(values))
    )
    heights = [0.8 + 0.35 * len(rows) for rows in panels.values()]
    size = (max(6.4, 2.0 + 0.5 * max(map(len, columns.values()))), max(2.4, 0.6 + sum(heights)))
    with _figure(path, title, len(panels), 1, size, gridspec_kw={"height_ratios": heights}) as (figure, grid):
        for axes, (panel, rows) in zip(grid[:, 0], panels.items(), strict=True):
            names = columns[panel]
            matrix = [[row.get(name, math.nan) for name in names] for row in rows.values()]
            image = axes.imshow(matrix, aspect="auto", **style)
            for y, row in enumerate(matrix):
                for x, value in enumerate(row):
                    if not math.isnan(value):
                        red, green, blue, _ = image.cmap(image.norm(value))
                        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
                        text = f"{value:+.1f}" if around_zero else f"{value:.1f}"
                        axes.text(x, y, text, ha="center", va="center", fontsize=7, color=ink)
            axes.set_xticks(range(len(names)), names, fontsize=8)
            axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
            axes.set_title(panel, fontsize=9)
        figure.colorbar(image, ax=list(grid[:, 0]), label=label, shrink=0.8)
