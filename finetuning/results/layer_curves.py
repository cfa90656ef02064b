"""Scores over the layers of models: what they measure, which layer is best, and the plot, 0 being the embeddings.

The plot is that of XLM-Align (ACL 2021), Figure 2, and of MetaXLM, Figures 3 and 4.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

AVERAGE = "average"  # of the pairs of languages
BEST = "best (chosen on this gold)"
MOST_COLORS = 10  # lines of a panel that can be told apart; the average is black
MARKERS = "osD^vPX*"  # a line is told by its marker too, where colors are not

# one value, or one a seed
Lines = dict[str, dict[int, float | Sequence[float]]]  # by name and layer


@dataclass(frozen=True)
class Measure:
    """What is scored by layer, in percent.

    scores: titles by name; the first is the score that results are about, others stand beside it.
    chance, chance_field: what chance level is called, and the field of the protocol that holds it, {pair: {score: %}}.
    """

    scores: dict[str, str]
    greater_is_better: bool
    chance: str
    chance_field: str

    @property
    def name(self) -> str:
        """The score that results are about."""
        return next(iter(self.scores))

    @property
    def title(self) -> str:
        """Its title."""
        return self.scores[self.name]

    def best(self, by_layer: dict[int, float]) -> int:
        """The layer with the best score, of equal ones the lowest: for the reader, never to select by."""
        return (max if self.greater_is_better else min)(by_layer, key=by_layer.get)


def plot_layers(
    panels: dict[str, Lines],
    path: str | Path,
    measure: Measure,
    title: str = "",
    mark: int | None = None,
    chance: dict[str, float] | None = None,
    one_scale: bool = True,
) -> None:
    """Draws a score over layers: panels by their title, in each lines by their name.

    A layer has one score in percent, or a list of one a seed, of which the mean is drawn, and the standard deviation
    around it. `mark` is the layer that is reported, `chance` the chance level by panel. `one_scale`: whether panels
    share the axis of the score. Where there are more lines than colors, all but the average are drawn in gray, and
    without deviation.
    """
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    columns = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
    rows = -(-len(panels) // columns)
    size = (1.4 + 4.2 * columns, 0.9 + 3.1 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, sharey=one_scale, squeeze=False, layout="constrained")
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines if name != AVERAGE))
    styles = {
        name: dict(color=f"C{number}", label=name, marker=MARKERS[number % len(MARKERS)], markersize=4)
        for number, name in enumerate(names)
    }
    if len(names) > MOST_COLORS:
        styles = dict.fromkeys(names, dict(color="0.75", linewidth=0.7, label=f"each of {len(names)}"))
    styles[AVERAGE] = dict(color="black", linewidth=2.0, label=AVERAGE, zorder=3)
    for axes, (panel, lines) in zip(grid.flat, panels.items(), strict=False):
        for name, by_layer in lines.items():
            values = [list(v) if isinstance(v, Sequence) else [v] for v in by_layer.values()]
            means = [statistics.fmean(seeds) for seeds in values]
            axes.plot(list(by_layer), means, **{"marker": "."} | styles[name])
            is_one_of_many = len(names) > MOST_COLORS and name != AVERAGE  # their bands would cover each other
            if any(len(seeds) > 1 for seeds in values) and not is_one_of_many:
                spread = [statistics.stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in values]
                low, high = ([m + sign * d for m, d in zip(means, spread, strict=True)] for sign in (-1, 1))
                axes.fill_between(list(by_layer), low, high, color=styles[name]["color"], alpha=0.2, linewidth=0)
        if chance:
            label = f"{measure.chance}, {AVERAGE}" if AVERAGE in lines else measure.chance
            axes.axhline(chance[panel], color="gray", linewidth=1.0, linestyle="--", label=label)
        if mark is not None:
            axes.axvline(mark, color="black", linewidth=0.8, linestyle=":")
        axes.set_title(panel, fontsize=9)
        axes.set_xlabel("layer" + (f" (reported: {mark})" if mark is not None else ""))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel(f"{measure.title} (%), {'higher' if measure.greater_is_better else 'lower'} is better")
    handles = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=min(3 if columns == 1 else 5, len(handles)),
        fontsize=8,
        frameon=False,
    )
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)
