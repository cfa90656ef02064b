"""The three plots of results: bars, lines and a heat map. They are as wide as a page, and further panels are below."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetuning.results import AVERAGE, Summary, summary
from zoo_core.plots import figure_of, line_styles

MOST_BANDS = 10  # with more lines, only the average has its deviation, and panels are as wide as the page
SOURCE, OTHERS = "#d98324", "#3c6e91"
BAR = "bar: mean of seeds; error bar: ± standard deviation; dot: a seed"
LINE = "line: mean of seeds; band: ± standard deviation"


def plot_bars(
    groups: Mapping[str, Mapping[str, Summary]],
    path: str | Path,
    title: str,
    label: str,
    average: float | None = None,
    chance: Mapping[str, float] | None = None,
    marks: Mapping[str, Mapping[str, float]] | None = None,
    highlighted: str | None = None,
) -> None:
    """Bars with the standard deviation over seeds and a point a seed, by group and name, as {group: {name: summary}}.

    `average` is a line through all; `chance` what guessing scores, by name; `marks` are published figures, a series of
    points by its label and name. Of a single group, the bar of the `highlighted` name has another color.
    """
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    colors = {group: style["color"] for group, style in line_styles(groups).items()}
    thickness = 0.8 / len(groups)
    several = any(entry["scores"][1:] for bars in groups.values() for entry in bars.values())
    size = (7.0, 1.6 + len(names) * (0.12 + 0.18 * len(groups)))
    with figure_of(path, title, 1, 1, size, BAR if several else "") as (_, grid):
        axes = grid[0, 0]
        for number, (group, bars) in enumerate(groups.items()):
            places = [names.index(name) + (number - (len(groups) - 1) / 2) * thickness for name in bars]
            means, spread = [e["mean"] for e in bars.values()], [e["sd"] or 0.0 for e in bars.values()]
            style: dict[str, Any] = {"label": group, "color": colors[group]}
            if len(groups) == 1:
                style = {"color": [SOURCE if name == highlighted else OTHERS for name in bars]}
            axes.barh(places, means, thickness, xerr=spread if any(spread) else None, capsize=2, **style)
            for place, entry in zip(places, bars.values(), strict=True):
                if entry["scores"][1:]:  # each seed: a mean would hide a collapsed one
                    axes.plot(entry["scores"], [place] * len(entry["scores"]), "k.", markersize=4)
                right_of_axes = dict(transform=axes.get_yaxis_transform(), va="center", fontsize=8)
                axes.text(1.01, place, f"{entry['mean']:.1f}", **right_of_axes)
        if average is not None:
            axes.axvline(average, color="black", linewidth=0.8, linestyle="--", label=AVERAGE)
        if chance:
            at = [names.index(name) for name in chance]
            axes.vlines(list(chance.values()), [n - 0.45 for n in at], [n + 0.45 for n in at], "red", label="chance")
        for number, (text, figures) in enumerate((marks or {}).items()):
            if shown := [name for name in names if name in figures]:
                style = dict(linestyle="none", markeredgecolor="white", markersize=7, color=f"C{len(groups) + number}")
                points = [figures[name] for name in shown], [names.index(name) for name in shown]
                axes.plot(*points, marker="DosP^v"[number % 6], label=text, **style)
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel(label)


def plot_lines(
    panels: Mapping[str, Mapping[str, Mapping[Any, Summary | float]]],
    path: str | Path,
    title: str,
    x_label: str,
    y_label: str,
    chance: Mapping[str, float] | None = None,
    mark: tuple[float, str] | None = None,
) -> None:
    """Lines over numbers or names, with a band of the standard deviation over seeds, as {panel: {line: {x: value}}}.

    A line of one name has one style in all panels, that of a language in all plots. `chance` is a panel's horizontal
    line, `mark` a vertical one, as (x, what it is).
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines if name != AVERAGE))
    is_crowded = len(names) > MOST_BANDS
    columns = 1 if is_crowded else 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    width = 1.0 if is_crowded else 1.5
    styles = {name: {"label": name, "linewidth": width} | style for name, style in line_styles(names).items()}
    styles[AVERAGE] = dict(color="black", linewidth=2.5, label=AVERAGE, zorder=3, marker=".")
    size = (max(7.0, 3.2 * columns), (4.0 if columns == 1 else 2.6) * rows + 0.6 + 0.04 * len(names))
    entries = [entry for lines in panels.values() for points in lines.values() for entry in points.values()]
    note = LINE if any(isinstance(entry, Mapping) and entry["sd"] for entry in entries) else ""
    with figure_of(path, title, rows, columns, size, note) as (_, grid):
        for axes, (panel, lines) in zip(grid.flat, panels.items(), strict=False):
            for name, points in lines.items():
                entries = [v if isinstance(v, Mapping) else summary([v]) for v in points.values()]
                means, spread = [e["mean"] for e in entries], [e["sd"] or 0.0 for e in entries]
                axes.plot(list(points), means, **styles[name])
                if any(spread) and not (is_crowded and name != AVERAGE):
                    low, high = ([m + s * d for m, d in zip(means, spread, strict=True)] for s in (-1, 1))
                    axes.fill_between(list(points), low, high, color=styles[name]["color"], alpha=0.2, linewidth=0)
            if panel in (chance or {}):
                axes.axhline(chance[panel], color="red", linewidth=1.0, label="chance")
            if mark is not None:
                axes.axvline(mark[0], color="black", linewidth=0.8, linestyle=":")
            axes.set_title(panel, fontsize=9)
            axes.set_xlabel(x_label + (f" ({mark[1]})" if mark else ""))
            if all(isinstance(x, int) for points in lines.values() for x in points):
                axes.xaxis.get_major_locator().set_params(integer=True)
        for axes in grid[:, 0]:
            axes.set_ylabel(y_label)


def plot_heat_map(
    rows: Mapping[str, Mapping[str, float]], path: str | Path, title: str, x_label: str, y_label: str
) -> None:
    """A heat map with its numbers in percent, as {row: {column: value}}. Cells may be missing."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    matrix = [[row.get(name, math.nan) for name in columns] for row in rows.values()]
    values = [value for row in matrix for value in row if not math.isnan(value)]
    size = (max(7.0, 2.0 + 0.5 * len(columns)), max(2.4, 1.4 + 0.22 * len(rows)))
    with figure_of(path, title, 1, 1, size) as (figure, grid):
        axes = grid[0, 0]
        image = axes.imshow(matrix, aspect="auto", vmin=min(values), vmax=max(values))
        for (y, row), (x, _) in itertools.product(enumerate(matrix), enumerate(columns)):
            if not math.isnan(row[x]):
                ink = "black" if row[x] > (min(values) + max(values)) / 2 else "white"
                axes.text(x, y, f"{row[x]:.1f}", ha="center", va="center", fontsize=7, color=ink)
        axes.set_xticks(range(len(columns)), columns, fontsize=8)
        axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        figure.colorbar(image, ax=axes, label="score (%)", shrink=0.8)
