"""The three plots of results: bars, lines and a heat map. They are as wide as a page, and further panels are below."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas

from finetuning.results import AVERAGE, Summary
from zoo_core.plots import figure_of, line_styles

MOST_BANDS = 10  # with more lines, only the average has its deviation, and panels are as wide as the page
BAR = "bar: mean of seeds; error bar: ± standard deviation; dot: a seed"
LINE = "line: mean of seeds; band: ± standard deviation"


def plot_bars(
    groups: Mapping[str, Mapping[str, Summary]],
    path: str | Path,
    title: str,
    label: str,
    average: float | None = None,
    chance: Mapping[str, float | None] | None = None,
) -> None:
    """Bars with the standard deviation over seeds and a point a seed, by group and name, as {group: {name: summary}}.

    `average` is a line through all; `chance` what guessing scores, by name.
    """
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    thickness, colors = 0.8 / len(groups), line_styles(groups)
    several = any(entry["scores"][1:] for bars in groups.values() for entry in bars.values())
    size = (7.0, 1.6 + len(names) * (0.12 + 0.18 * len(groups)))
    with figure_of(path, title, 1, 1, size, BAR if several else "") as (_, grid):
        axes = grid[0, 0]
        for number, (group, bars) in enumerate(groups.items()):
            places = [names.index(name) + (number - (len(groups) - 1) / 2) * thickness for name in bars]
            means, spread = [e["mean"] for e in bars.values()], [e["sd"] or 0.0 for e in bars.values()]
            style = {"label": group, "color": colors[group]["color"], "xerr": spread if any(spread) else None}
            axes.barh(places, means, thickness, capsize=2, **style)
            for place, entry in zip(places, bars.values(), strict=True):
                if entry["scores"][1:]:  # each seed: a mean would hide a collapsed one
                    axes.plot(entry["scores"], [place] * len(entry["scores"]), "k.", markersize=4)
                right_of_axes = dict(transform=axes.get_yaxis_transform(), va="center", fontsize=8)
                axes.text(1.01, place, f"{entry['mean']:.1f}", **right_of_axes)
        if average is not None:
            axes.axvline(average, color="black", linewidth=0.8, linestyle="--", label=AVERAGE)
        if levels := {names.index(name): level for name, level in (chance or {}).items() if level is not None}:
            ends = [n - 0.45 for n in levels], [n + 0.45 for n in levels]
            axes.vlines(list(levels.values()), *ends, "red", label="chance")
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel(label)


def plot_lines(
    panels: Mapping[str, Mapping[str, Mapping[int, Summary]]],
    path: str | Path,
    title: str,
    x_label: str,
    y_label: str,
    chance: Mapping[str, float | None] | None = None,
    mark: tuple[float, str] | None = None,
) -> None:
    """Lines over whole numbers, with a band of the standard deviation over seeds, as {panel: {line: {x: value}}}.

    A line of one name has one style in all panels. `chance` is a panel's horizontal line, `mark` a vertical one, as
    (x, what it is).
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines if name != AVERAGE))
    is_crowded = len(names) > MOST_BANDS
    columns = 1 if is_crowded else 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    styles = line_styles(names) | {AVERAGE: dict(color="black", linewidth=2.5, zorder=3, marker=".")}
    size = (max(7.0, 3.2 * columns), (4.0 if columns == 1 else 2.6) * rows + 0.6 + 0.04 * len(names))
    several = any(e["sd"] for lines in panels.values() for points in lines.values() for e in points.values())
    with figure_of(path, title, rows, columns, size, LINE if several else "") as (_, grid):
        for axes, (panel, lines) in zip(grid.flat, panels.items(), strict=False):
            for name, points in lines.items():
                means, spread = [e["mean"] for e in points.values()], [e["sd"] or 0.0 for e in points.values()]
                axes.plot(list(points), means, label=name, **styles[name])
                if any(spread) and not (is_crowded and name != AVERAGE):
                    low, high = ([m + s * d for m, d in zip(means, spread, strict=True)] for s in (-1, 1))
                    axes.fill_between(list(points), low, high, color=styles[name]["color"], alpha=0.2, linewidth=0)
            if (chance or {}).get(panel) is not None:
                axes.axhline(chance[panel], color="red", linewidth=1.0, label="chance")
            if mark is not None:
                axes.axvline(mark[0], color="black", linewidth=0.8, linestyle=":")
            axes.set_title(panel, fontsize=9)
            axes.set_xlabel(x_label + (f" ({mark[1]})" if mark else ""))
            axes.xaxis.get_major_locator().set_params(integer=True)
        for axes in grid[:, 0]:
            axes.set_ylabel(y_label)


def plot_heat_map(table: pandas.DataFrame, path: str | Path, title: str, x_label: str, y_label: str) -> None:
    """A heat map of a table with its numbers in percent. Cells may be missing (NaN)."""
    size = (max(7.0, 2.0 + 0.5 * len(table.columns)), max(2.4, 1.4 + 0.22 * len(table)))
    low, high = table.min(axis=None), table.max(axis=None)
    with figure_of(path, title, 1, 1, size) as (figure, grid):
        axes = grid[0, 0]
        image = axes.imshow(table, aspect="auto", vmin=low, vmax=high)
        for (y, x), value in np.ndenumerate(table):
            if np.isnan(value):
                continue
            ink = "black" if value > (low + high) / 2 else "white"
            axes.text(x, y, f"{value:.1f}", ha="center", va="center", fontsize=7, color=ink)
        axes.set_xticks(range(len(table.columns)), table.columns, fontsize=8)
        axes.set_yticks(range(len(table)), table.index, fontsize=8)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        figure.colorbar(image, ax=axes, label="score (%)", shrink=0.8)
