"""Word alignment by layer: scores of every layer and method from one forward pass, as a table and as a plot.

The plot is that of XLM-Align (ACL 2021), Figure 2, and MetaXLM, Figure 4: AER over layers, 0 being the embeddings.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from finetuning.alignment_files import Gold
from finetuning.alignment_pairs import split_at_spaces

SCORES = {"aer": "AER", "precision": "precision", "recall": "recall", "f1": "F1"}
BEST = "best (chosen on this gold)"
AVERAGE = "average"  # of the pairs of languages
BY_POSITION = "position"  # links that know nothing of the words

Pairs = Sequence[tuple[list[str] | str, list[str] | str]]
Scores = dict[str, dict[int, dict[str, float]]]  # by method, layer and name of the score
# one value, or one a seed
Lines = dict[str, dict[int, float | Sequence[float]]]  # by name and layer


def sweep(
    aligner: Any,
    pairs: Pairs,
    gold: dict[int, Gold],
    layers: Iterable[int] | None = None,
    methods: Iterable[str] | dict[str, dict[str, Any]] | None = None,
) -> Scores:
    """Scores in percent, {method: {layer: {aer, precision, recall, f1}}}, over the sentences that have gold links.

    `aligner` is a `modeling.word_alignment.WordAligner`, `pairs` are sentences as lists of words, or as words between
    white space, and `gold` holds links that fit them (`alignment_files.fit_gold`), by the sentence's position. Layers
    count from 0, the embeddings; default: all. Methods are names, or options by name; default: the aligner's own.

    Raises ValueError for gold without a link, and what the aligner refuses.
    """
    layers = list(range(aligner.num_layers + 1) if layers is None else layers)
    if methods is None:
        methods = {aligner.method: aligner.matching}
    elif not isinstance(methods, dict):
        methods = {method: {} for method in methods}
    sentences = sorted(gold)
    found: dict[str, dict[int, dict]] = {method: {layer: {} for layer in layers} for method in methods}
    wanted = (split_at_spaces(pairs[n]) for n in sentences)
    for sentence, by_layer in zip(sentences, aligner.align_layers(wanted, layers, methods=methods), strict=True):
        for layer in layers:
            for method in methods:
                found[method][layer][sentence] = by_layer[layer][method].links
    return {
        method: {layer: score(links, gold) for layer, links in by_layer.items()} for method, by_layer in found.items()
    }


def score(links: dict[int, list[tuple[int, int]]], gold: dict[int, Gold]) -> dict[str, float]:
    """AER, precision, recall and F1 in percent, of links by sentence against the gold of the same sentences.

    Raises ValueError where the sentences are not the same, and for gold without a link.
    """
    from finetuning.seeds import load_metric

    if links.keys() != gold.keys():
        raise ValueError(
            f"There are links for {len(links):,} sentences and gold for {len(gold):,}. They are held against each "
            "other sentence by sentence. Give links for the sentences of the gold, no more and no fewer."
        )
    return load_metric("aer").compute(
        predictions=[links[sentence] for sentence in gold],
        references=[{"sure": sorted(of.sure), "possible": sorted(of.possible)} for of in gold.values()],
    )


def position_links(source: int, target: int) -> list[tuple[int, int]]:
    """Links of each of `source` words to the word at the same share of a target of that many words: chance level."""
    if not target:
        return []
    return [(i, round(i * (target - 1) / max(source - 1, 1))) for i in range(source)]


def best_layer(by_layer: dict[int, float]) -> int:
    """The layer with the lowest AER, of equal ones the lowest: for the reader, never to select by."""
    return min(by_layer, key=by_layer.get)


def sweep_table(scores: Scores, reported_layer: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Header and rows of what `sweep` found: a row for each layer, the scores of each method."""
    several = len(scores) > 1
    columns = ["layer", *(f"{name} {method}" if several else name for method in scores for name in SCORES.values())]
    best = {
        method: best_layer({n: found["aer"] for n, found in by_layer.items()}) for method, by_layer in scores.items()
    }
    rows = []
    for layer in next(iter(scores.values())):
        remarks = ["reported"] if layer == reported_layer else []
        remarks += [f"{BEST}{f' of {method}' if several else ''}" for method, number in best.items() if number == layer]
        cells = [f"{by_layer[layer][name]:.1f}" for by_layer in scores.values() for name in SCORES]
        rows.append([str(layer), *cells, ", ".join(remarks)])
    return [*columns, ""], rows


def plot_layers(
    panels: dict[str, Lines],
    path: str | Path,
    title: str = "",
    mark: int | None = None,
    by_position: dict[str, float] | None = None,
    one_scale: bool = True,
) -> None:
    """Draws AER over layers: panels by their title, in each lines by their name.

    A layer has one AER in percent, or a list of one a seed, of which the mean is drawn, and the standard deviation
    around it. `mark` is the layer that is reported, `by_position` the AER of `position_links` by panel. `one_scale`:
    whether panels share the axis of AER.
    """
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    columns = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
    rows = -(-len(panels) // columns)
    size = (1.4 + 4.2 * columns, 0.9 + 3.1 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, sharey=one_scale, squeeze=False, layout="constrained")
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    colors = {name: f"C{number}" for number, name in enumerate(name for name in names if name != AVERAGE)}
    for axes, (panel, lines) in zip(grid.flat, panels.items(), strict=False):
        for name, by_layer in lines.items():
            values = [list(v) if isinstance(v, Sequence) else [v] for v in by_layer.values()]
            means = [statistics.fmean(seeds) for seeds in values]
            style = dict(color="black", linewidth=2.0) if name == AVERAGE else dict(color=colors[name])
            axes.plot(list(by_layer), means, marker=".", label=name, **style)
            if any(len(seeds) > 1 for seeds in values):
                spread = [statistics.stdev(seeds) if len(seeds) > 1 else 0.0 for seeds in values]
                low, high = ([m + sign * d for m, d in zip(means, spread, strict=True)] for sign in (-1, 1))
                axes.fill_between(list(by_layer), low, high, color=style["color"], alpha=0.2, linewidth=0)
        if by_position:
            label = f"{BY_POSITION}, {AVERAGE}" if AVERAGE in lines else BY_POSITION
            axes.axhline(by_position[panel], color="gray", linewidth=1.0, linestyle="--", label=label)
        if mark is not None:
            axes.axvline(mark, color="black", linewidth=0.8, linestyle=":")
        axes.set_title(panel, fontsize=9)
        axes.set_xlabel("layer" + (f" (reported: {mark})" if mark is not None else ""))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("AER (%), lower is better")
    handles = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=min(5, len(handles)),
        fontsize=8,
        frameon=False,
    )
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)
