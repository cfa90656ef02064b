"""The three plots of results: bars, lines and a heat map. They are as wide as a page, and further panels are below."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas

from finetuning.results import Summary
from zoo_core.plots import figure_of, line_styles


def plot_bars(groups: Mapping[str, Mapping[str, Summary]], path: str | Path, title: str, label: str) -> None:
    """Bars with the standard deviation over seeds and a point a seed, as {group: {name: summary}}."""
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    thickness = 0.8 / len(groups)
    note = "bar: mean of seeds; error bar: ± standard deviation; dot: a seed"
    with figure_of(path, title, 1, 1, (7.0, 1.6 + len(names) * (0.12 + 0.18 * len(groups))), note) as grid:
        axes = grid[0, 0]
        for number, (group, bars) in enumerate(groups.items()):
            places = [names.index(name) + (number - (len(groups) - 1) / 2) * thickness for name in bars]
            means, spread = [e["mean"] for e in bars.values()], [e["sd"] or 0.0 for e in bars.values()]
            bar = axes.barh(places, means, thickness, xerr=spread if any(spread) else None, capsize=2, label=group)
            axes.bar_label(bar, fmt="%.1f", padding=4, fontsize=8)
            for place, entry in zip(places, bars.values(), strict=True):  # a mean would hide a collapsed seed
                axes.plot(entry["scores"], [place] * len(entry["scores"]), "k.", markersize=4)
        axes.set_yticks(range(len(names)), names, fontsize=9)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel(label)


def plot_lines(
    panels: Mapping[str, Mapping[str, Mapping[int, Summary]]], path: str | Path, title: str, x_label: str, y_label: str
) -> None:
    """Lines over whole numbers, with a band of the standard deviation over seeds, as {panel: {line: {x: summary}}}.

    A line of one name has one style in all panels.
    """
    styles = line_styles(name for lines in panels.values() for name in lines)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    size = (7.0, (4.0 if columns == 1 else 2.6) * rows + 0.6 + 0.04 * len(styles))
    with figure_of(path, title, rows, columns, size, "line: mean of seeds; band: ± standard deviation") as grid:
        for axes, (panel, lines) in zip(grid.flat, panels.items(), strict=False):
            for name, points in lines.items():
                means, spread = (np.array([e[key] or 0.0 for e in points.values()]) for key in ("mean", "sd"))
                axes.plot(list(points), means, label=name, **styles[name])
                color = styles[name]["color"]
                axes.fill_between(list(points), means - spread, means + spread, color=color, alpha=0.2, linewidth=0)
            axes.set_title(panel, fontsize=9)
            axes.set_xlabel(x_label)
            axes.xaxis.get_major_locator().set_params(integer=True)
        for axes in grid[:, 0]:
            axes.set_ylabel(y_label)


def plot_heat_map(table: pandas.DataFrame, path: str | Path, title: str, x_label: str, y_label: str) -> None:
    """A heat map of a table with its numbers in percent."""
    size = (max(7.0, 2.0 + 0.5 * len(table.columns)), max(2.4, 1.4 + 0.22 * len(table)))
    with figure_of(path, title, 1, 1, size) as grid:
        axes = grid[0, 0]
        axes.imshow(table, aspect="auto", cmap="Blues", vmax=2 * table.max(axis=None))  # light: numbers are on it
        for (y, x), value in np.ndenumerate(table):
            axes.text(x, y, f"{value:.1f}", ha="center", va="center", fontsize=7)
        axes.set_xticks(range(len(table.columns)), table.columns, fontsize=8)
        axes.set_yticks(range(len(table)), table.index, fontsize=8)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
