"""Results of tasks that read vectors of models as they are: every score by method, layer and pair of languages.

The layout is that of `finetuning.results.by_language`, with language pairs where it has languages: the scores are those
of the first method at the reported layer. `layers` holds every score, {method: {layer: {pair: {score: summary}}}}.
"""

import statistics
from pathlib import Path
from typing import Any

from finetuning.results.files import FORMAT, Table, markdown_page, markdown_table, summary, with_deviation
from finetuning.results.layer_curves import AVERAGE, BEST, Measure, plot_layers
from finetuning.tasks.features.recipe import FeatureRecipe


def build_results(
    recipe: FeatureRecipe,
    model: dict[str, Any],
    protocol: dict[str, Any],
    records: list[dict[str, Any]],
    warnings: list[str],
    measure: Measure,
    published: list[dict[str, Any]],
) -> dict[str, Any]:
    """The record of one task: one entry of results.json (ARCHITECTURE.md, "Results"), by pair in place of language.

    `records` are the seeds' scores.json, with `scores` {pair: {method: {layer: {score: %}}}}. Standard deviations are
    over seeds (n - 1), None for a single one.
    """
    pairs = list(records[0]["scores"])
    by_layer = {
        method: {
            str(layer): {
                pair: {
                    name: summary([record["scores"][pair][method][str(layer)][name] for record in records])
                    for name in measure.scores
                }
                for pair in pairs
            }
            for layer in protocol["layers"]
        }
        for method in protocol["methods"]
    }
    reported = by_layer[protocol["method"]][str(protocol["layer"])]
    metrics = {name: {pair: reported[pair][name] for pair in pairs} for name in measure.scores}
    return {
        "format": FORMAT,
        "model": {
            **model,
            "fingerprint": "+".join(record["model"]["fingerprint"] for record in records),
            "parameters": records[0]["parameters"],
        },
        "task": recipe.task,
        "kind": recipe.kind,
        "setting": "feature",
        "seeds": [record["seed"] for record in records],
        "hyperparameters": {"batch_size": recipe.batch_size, "precision": recipe.precision},
        "protocol": {
            **protocol,
            "metric": {**records[0]["metric"], "unit": "percent", "greater_is_better": measure.greater_is_better},
        },
        "languages": metrics[measure.name],
        "metrics": metrics,
        "average": of_pair(reported, AVERAGE, measure)[measure.name],
        "layers": by_layer,
        "source_score": None,  # no language is transferred from
        "transfer_gap": None,
        "published": published or None,
        "warnings": warnings,
    }


def of_pair(found: dict[str, dict[str, dict[str, Any]]], pair: str, measure: Measure) -> dict[str, dict[str, Any]]:
    """The scores of a pair, or of the average of all, by name; seed by seed. `found` are those of a layer, by pair."""
    if pair != AVERAGE:
        return found[pair]

    def by_seed(name: str) -> list[tuple[float, ...]]:
        return list(zip(*(scores[name]["scores"] for scores in found.values()), strict=True))

    return {name: summary([statistics.fmean(seeds) for seeds in by_seed(name)]) for name in measure.scores}


def chance_of_pair(results: dict[str, Any], pair: str, measure: Measure) -> dict[str, dict[str, Any]]:
    """Chance level of a pair, or of the average of all, as `of_pair` gives the scores."""
    levels = results["protocol"][measure.chance_field]
    found = {p: {name: summary([score]) for name, score in scores.items()} for p, scores in levels.items()}
    return of_pair(found, pair, measure)


def chance_level(results: dict[str, Any], measure: Measure, name: str | None = None) -> dict[str, float]:
    """Chance level of a score (default: the first), of every pair and, of several, their average."""
    pairs = list(results["languages"])
    return {
        pair: chance_of_pair(results, pair, measure)[name or measure.name]["mean"]
        for pair in [*pairs, *([AVERAGE] if pairs[1:] else [])]
    }


def curves(
    results: dict[str, Any], measure: Measure, method: str | None = None, name: str | None = None
) -> dict[str, dict[int, list[float]]]:
    """A score of every pair and, of several, their average: by layer, a list of one a seed.

    Default: the first score, the first method.
    """
    by_layer = results["layers"][method or results["protocol"]["method"]]
    pairs = list(results["languages"])
    return {
        pair: {
            int(layer): of_pair(found, pair, measure)[name or measure.name]["scores"]
            for layer, found in by_layer.items()
        }
        for pair in [*pairs, *([AVERAGE] if pairs[1:] else [])]
    }


def plot_scores(results: dict[str, Any], path: Path, measure: Measure, titles: dict[str, str]) -> None:
    """Draws every score over layers, in a panel of its own: a line for each pair and for their average."""
    panels, chance = {}, {}
    for name, title in titles.items():
        panels[title] = curves(results, measure, name=name)
        levels = chance_level(results, measure, name)
        chance[title] = levels.get(AVERAGE, next(iter(levels.values())))
    title = f"{results['task']}: {results['model']['folder']}"
    plot_layers(panels, path, measure, title, results["protocol"]["layer"], chance)


def to_rows(results: dict[str, Any], **columns: Any) -> list[dict[str, Any]]:
    """One row a method, layer, pair, metric and seed, so that tables of several runs can simply be joined."""
    protocol = results["protocol"]
    return [
        {
            "model": results["model"]["folder"],
            "task": results["task"],
            "setting": results["setting"],
            "language": pair,
            "seed": seed,
            "metric": metric,
            "score": score,
            "split": protocol["evaluated_split"],
            **columns,
            "method": method,
            "layer": int(layer),
            "reported": method == protocol["method"] and int(layer) == protocol["layer"],
        }
        for method, by_layer in results["layers"].items()
        for layer, pairs in by_layer.items()
        for pair, found in pairs.items()
        for metric, entry in found.items()
        for seed, score in zip(results["seeds"], entry["scores"], strict=True)
    ]


def best_cell(by_layer: dict[int, float], measure: Measure) -> str:
    """The best layer with its score, as in `8 (16.6)`."""
    best = measure.best(by_layer)
    return f"{best} ({by_layer[best]:.1f})"


def published_cells(published: list[dict[str, Any]], pair: str) -> list[str]:
    """What each row of published figures has for a pair, or as its average."""
    figures = [item["average"] if pair == AVERAGE else item["languages"].get(pair) for item in published]
    return ["" if figure is None else f"{figure:.1f}" for figure in figures]


def layer_table(lines: dict[str, dict[int, list[float]]], reported: int, measure: Measure) -> Table:
    """Header and rows: scores by layer, in a column for each of `lines` (by layer, a list of one a seed).

    The best layer is that of the average, else of the first line.
    """
    table = {name: {layer: summary(seeds) for layer, seeds in line.items()} for name, line in lines.items()}
    main = table.get(AVERAGE) or next(iter(table.values()))
    best = measure.best({layer: entry["mean"] for layer, entry in main.items()})
    rows = []
    for layer in main:
        remarks = [name for name, number in (("reported", reported), (BEST, best)) if number == layer]
        rows.append([str(layer), *(with_deviation(line[layer]) for line in table.values()), ", ".join(remarks)])
    return ["layer", *table, ""], rows


def layer_line(protocol: dict[str, Any]) -> str:
    """Which layer is reported, and how it was chosen, as the protocol says it."""
    return (
        f"layer: {protocol['layer']} of {protocol['depth']} ({protocol['selection']['rule']}), 0 being the embeddings; "
        "never chosen by the scores"
    )


def model_lines(results: dict[str, Any], with_model: bool) -> list[str]:
    """What was evaluated: seeds and models, as the protocol says it."""
    lines = [
        f"fine-tuned before: {', '.join(results['protocol']['fine_tuned_before']) or 'on nothing'}",
        f"seeds: {', '.join(map(str, results['seeds']))}",
    ]
    if with_model:
        prints = ", ".join(fingerprint[:19] for fingerprint in results["model"]["fingerprint"].split("+"))
        lines.append(f"model: {results['model']['folder']} ({prints})")
    return lines


def to_markdown(
    results: dict[str, Any], what: str, table: Table, protocol: list[str], measure: Measure, layers: dict[str, Table]
) -> str:
    """The results as a Markdown page: table, warnings, protocol, and the score by layer, a table for each of `layers`.

    `what` is the task in words.
    """
    title = f"{measure.title} by layer"
    page = markdown_page(f"{results['task']}, {what}", table, results["warnings"], protocol, f"[{title}](layers.png)")
    for name, of_layer in layers.items():
        page += "\n".join(["", f"## {title}, {name}", "", *markdown_table(of_layer), ""])
    return page
