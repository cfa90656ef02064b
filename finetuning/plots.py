"""The three plots of results: bars, lines and a heat map. They are as wide as a page, and further panels are below.

A single number is not drawn.
"""

import itertools
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from crosslingual_zoo.finetuning.results import Summary
from crosslingual_zoo.zoo_core.plots import figure_of, line_styles


def plot_bars(groups: Mapping[str, Mapping[str, Summary]], path: Path, title: str, label: str) -> Path | None:
    """Bars of means over seeds, as {group: {name: summary}}; of several seeds also the deviation, and a dot a seed.

    Returns `path`; None for a single bar, which is not drawn.
    """
    names = list(dict.fromkeys(itertools.chain.from_iterable(groups.values())))
    entries = [entry for bars in groups.values() for entry in bars.values()]
    if len(entries) < 2:
        path.unlink(missing_ok=True)  # of an earlier run
        return None
    thickness = 0.8 / len(groups)
    height = 1.6 + len(names) * (0.12 + 0.18 * len(groups))
    note = ""
    if has_seeds(entries):
        note = "bar: mean of seeds; error bar: ± standard deviation; dot: a seed"
    with figure_of(path, title, 1, 1, (7.0, height), note) as grid:
        axes = grid[0, 0]
        for number, (group, bars) in enumerate(groups.items()):
            offset = (number - (len(groups) - 1) / 2) * thickness
            middles = [names.index(name) + offset for name in bars]
            means = [entry["mean"] for entry in bars.values()]
            axes.barh(middles, means, thickness, label=group if len(groups) > 1 else None)
            for y, entry in zip(middles, bars.values(), strict=True):
                _draw_scores(axes, y, entry)
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel(label)
    return path


def _draw_scores(axes: Any, y: float, entry: Summary) -> None:
    """The mean as a number next to its bar at `y`; of several seeds also an error bar and the dots."""
    end = max(entry["scores"])
    if entry["sd"] is not None:
        end = max(end, entry["mean"] + entry["sd"])
        axes.errorbar(entry["mean"], y, xerr=entry["sd"], color="black", capsize=2)
        # a mean would hide a collapsed seed
        axes.plot(entry["scores"], [y] * len(entry["scores"]), "k.", markersize=4)
    text = f"{entry['mean']:.1f}"
    axes.annotate(text, (end, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)


def plot_lines(
    panels: Mapping[str, Mapping[str, Mapping[int, Summary]]], path: Path, title: str, x_label: str, y_label: str
) -> Path | None:
    """Lines over whole numbers, with a band of the standard deviation over seeds, as {panel: {line: {x: summary}}}.

    A line of one name has one style in all panels. Returns `path`; None where no line has two points.
    """
    lines_of_panels = [points for lines in panels.values() for points in lines.values()]
    if max(map(len, lines_of_panels)) < 2:
        path.unlink(missing_ok=True)  # of an earlier run
        return None
    styles = line_styles(itertools.chain.from_iterable(panels.values()))
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    height = 4.0 if columns == 1 else 2.6
    size = (7.0, height * rows + 0.6 + 0.04 * len(styles))
    entries = [entry for points in lines_of_panels for entry in points.values()]
    note = ""
    if has_seeds(entries):
        note = "line: mean of seeds; band: ± standard deviation"
    with figure_of(path, title, rows, columns, size, note) as grid:
        for axes, (panel, lines) in zip(grid.flat, panels.items(), strict=False):
            for name, points in lines.items():
                means = np.array([entry["mean"] for entry in points.values()])
                spread = np.array([entry["sd"] or 0.0 for entry in points.values()])
                style = styles[name]
                steps = list(points)
                axes.plot(steps, means, label=name if len(styles) > 1 else None, **style)
                low = means - spread
                high = means + spread
                axes.fill_between(steps, low, high, color=style["color"], alpha=0.2, linewidth=0)
            axes.set_title(panel, fontsize=9)
            axes.set_xlabel(x_label)
            axes.xaxis.get_major_locator().set_params(integer=True)
        for axes in grid[:, 0]:
            axes.set_ylabel(textwrap.fill(y_label, 28))
    return path


def has_seeds(entries: list[Summary]) -> bool:
    """Whether some scores are means of several seeds."""
    return any(entry["sd"] is not None for entry in entries)


def plot_heat_map(table: pandas.DataFrame, path: Path, title: str, x_label: str, y_label: str) -> Path | None:
    """A heat map of a table with its numbers in percent. Returns `path`; None for a single number."""
    if table.size < 2:
        path.unlink(missing_ok=True)  # of an earlier run
        return None
    width = max(7.0, 2.0 + 0.5 * len(table.columns))
    height = max(2.4, 1.4 + 0.22 * len(table))
    values = table.to_numpy(dtype=float)
    with figure_of(path, title, 1, 1, (width, height)) as grid:
        axes = grid[0, 0]
        axes.imshow(values, aspect="auto", cmap="Blues", vmax=2 * np.nanmax(values))  # light: numbers are on it
        for (y, x), value in np.ndenumerate(values):
            axes.text(x, y, f"{value:.1f}", ha="center", va="center", fontsize=7)
        axes.set_xticks(range(len(table.columns)), table.columns, fontsize=8)
        axes.set_yticks(range(len(table)), table.index, fontsize=8)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
    return path
