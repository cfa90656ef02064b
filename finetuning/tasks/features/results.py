"""What results of tasks share that read vectors of models as they are: every score by method, layer and pair."""

from pathlib import Path
from typing import Any

from finetuning.results.files import run_name
from finetuning.results.plots import plot_lines
from finetuning.results.report import plot_scores
from finetuning.results.table import AVERAGE, Results
from finetuning.tasks.features.recipe import FeatureRecipe


def feature_facts(
    recipe: FeatureRecipe,
    protocol: dict[str, Any],
    records: list[dict[str, Any]],
    published: list[dict[str, Any]],
    warnings: list[str],
    is_higher_better: bool = True,
) -> dict[str, Any]:
    """See `Report.facts`. Each seed may have a model of its own, whose fingerprints are joined by `+`."""
    metric = {**records[0]["metric"], "unit": "percent", "greater_is_better": is_higher_better}
    return {
        "setting": "feature",
        "model": {"fingerprint": "+".join(record["model"]["fingerprint"] for record in records)},
        "hyperparameters": {"batch_size": recipe.batch_size, "precision": recipe.precision},
        "protocol": {**protocol, "metric": metric},
        "published": published,
        "warnings": warnings,
    }


def layer_line(protocol: dict[str, Any]) -> str:
    """Which layer is reported, and how it was chosen, as the protocol says it."""
    return (
        f"layer: {protocol['layer']} of {protocol['depth']} ({protocol['selection']['rule']}), 0 being the embeddings; "
        "never chosen by the scores"
    )


def curves(results: Results, metric: str | None = None, method: str | None = None) -> dict[str, dict[int, Any]]:
    """A score of every pair and, of several, their average: by layer, the summary over seeds."""
    return {
        name: {layer: results.of(name, metric, method, layer) for layer in results.layers}
        for name in results.with_average
    }


def plot_layers(
    results: Results, folder: Path, panels: dict[str, dict[str, dict[int, Any]]], chance: dict[str, float], label: str
) -> str:
    """Draws scores over layers, 0 being the embeddings, a line for each pair and for their average: layers.png. Of a
    single layer, bars: scores.png.

    The plot of XLM-Align (ACL 2021), Figure 2, and of MetaXLM, Figures 3 and 4. `chance` is the level by panel.
    """
    layer, better = results["protocol"]["layer"], "higher" if results.is_higher_better else "lower"
    title = f"{results['task']}: {run_name(results['model']['folder'])}"
    if not results.layers[1:]:
        plot_scores(results, folder / "scores.png", f"{title}, layer {layer}")
        return "scores.png"
    of = f"chance, {AVERAGE}" if AVERAGE in results.with_average else "chance"
    plot_lines(
        panels,
        folder / "layers.png",
        title,
        "layer",
        f"{label} (%), {better} is better",
        {panel: (of, level) for panel, level in chance.items()},
        (layer, f"reported: {layer}"),
    )
    return "layers.png"


def plot_metrics(results: Results, folder: Path, titles: dict[str, str]) -> str:
    """`plot_layers` with a panel for each metric, by its title."""
    panels = {title: curves(results, metric) for metric, title in titles.items()}
    chance = {title: results.chance(results.with_average[-1], metric) for metric, title in titles.items()}
    return plot_layers(results, folder, panels, chance, "score")
