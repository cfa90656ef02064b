"""Results of mining: results.json and what is made from it, with F1 over layers.

The score is F1 at the reported layer, with the threshold of that layer and pair. `mining` of results.json holds what
each figure is made of: {pair: {layer: [one a seed]}}, with the counts of pairs and the threshold.
"""

import math
from pathlib import Path
from typing import Any

from finetuning.results.by_language import published_figures, published_notes
from finetuning.results.files import print_table, summary, table_names, with_deviation, write_files
from finetuning.results.layer_curves import AVERAGE, Measure
from finetuning.results.published_rows import column_title
from finetuning.tasks.features import results as feature_results
from finetuning.tasks.features.results import (
    best_cell,
    chance_of_pair,
    layer_line,
    layer_table,
    model_lines,
    of_pair,
    published_cells,
)
from finetuning.tasks.mining.recipe import MiningRecipe
from finetuning.tasks.retrieval.results import OF_RUN, text_warnings, vector_lines

SCORES = {"f1": "F1", "precision": "precision", "recall": "recall"}
F1 = Measure(SCORES, greater_is_better=True, chance="chance", chance_field="chance")
EDGES = {
    "all": "takes every pair that was proposed there: the best cut may lie beyond",
    "first": "takes the highest margin alone: it rests on a single pair, or pairs that are equal",
    "none": "could not be fitted: no proposed pair is right, and nothing is mined",
}


def build_results(
    recipe: MiningRecipe,
    model: dict[str, Any],
    protocol: dict[str, Any],
    records: list[dict[str, Any]],
    warnings: list[str],
) -> dict[str, Any]:
    """The record of one task, as `feature_results.build_results` describes it, and `mining`."""
    protocol = {**protocol, **{name: records[0][name] for name in OF_RUN}}
    mining = {
        pair: {str(layer): [record["mining"][pair][str(layer)] for record in records] for layer in protocol["layers"]}
        for pair in protocol["pool_sizes"]
    }
    published = [published_figures(item, list(mining)) for item in recipe.published]
    notes = [*published_notes(recipe.published), *text_warnings(protocol)]
    warnings = [*warnings, *notes, *_mining_warnings(mining, protocol, records)]
    results = feature_results.build_results(recipe, model, protocol, records, warnings, F1, published)
    return results | {"mining": mining}


def _mining_warnings(mining: dict[str, Any], protocol: dict[str, Any], records: list[dict[str, Any]]) -> list[str]:
    """Thresholds at the edge of what there is, and seeds at chance, by pair, at the reported layer."""
    layer, warnings = str(protocol["layer"]), []
    for number, record in enumerate(records):
        for pair, by_layer in mining.items():
            found = by_layer[layer][number]
            source, target = protocol["pool_sizes"][pair]
            where = f"seed {record['seed']}: {pair}"
            if found["edge"]:
                warnings.append(f"{where}: the threshold {EDGES[found['edge']]}")
            if any(without := found["without_margin"]):
                warnings.append(
                    f"{where}: {without[0]} sentences of the source and {without[1]} of the target are unlike all "
                    "others: no margin can be told of them, and they propose no pair"
                )
            # of as many pairs that are drawn at random, so many are right; about as often as a rare event happens
            expected = found["mined"] * found["gold"] / (source * target)
            if found["right"] <= expected + 2 * math.sqrt(expected):
                warnings.append(
                    f"{where}: F1 is at chance: {found['right']} of {found['mined']} mined pairs are right "
                    f"(drawn at random: {expected:.2g})"
                )
    return warnings


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Writes results.json, results.md, results.csv and layers.png (F1, precision, recall) into a folder."""
    feature_results.plot_scores(results, folder / "layers.png", F1, SCORES)
    write_files(results, to_markdown(results), to_rows(results), folder)


def to_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a layer, pair, metric and seed, so that tables of several runs can simply be joined."""
    return feature_results.to_rows(results, max_length=results["protocol"]["max_length"])


def score_table(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table that Markdown, card and screen show: pairs and their average, of the reported layer.

    The best layer stands beside, with its F1: it is chosen on the very gold that it is scored on. Published figures
    have a column each.
    """
    protocol, pairs = results["protocol"], list(results["languages"])
    published = results["published"] or []
    by_layer = results["layers"][protocol["method"]]
    titles = {**SCORES, "f1": f"F1 (layer {protocol['layer']})"}
    columns = ["pair", "pools", "gold", *titles.values(), "dev F1", "chance F1", "best layer (on this gold)"]
    columns += [column_title(item, protocol) for item in published]
    rows = []
    for pair in [*pairs, *([AVERAGE] if pairs[1:] else [])]:
        found = {int(layer): of_pair(of_layer, pair, F1) for layer, of_layer in by_layer.items()}
        scores = found[protocol["layer"]]
        cells = [with_deviation(scores[name]) for name in SCORES]
        chance = chance_of_pair(results, pair, F1)["f1"]["mean"]
        best = best_cell({layer: of_layer["f1"]["mean"] for layer, of_layer in found.items()}, F1)
        if pair == AVERAGE:
            names = [f"**{pair}**", "", f"{sum(protocol['evaluated_rows'].values()):,}"]
            of_dev = ""
        else:
            source, target = protocol["pool_sizes"][pair]
            names = [pair, f"{source:,} x {target:,}", f"{protocol['evaluated_rows'][pair]:,}"]
            dev = [of_seed["dev_f1"] for of_seed in results["mining"][pair][str(protocol["layer"])]]
            of_dev = "-" if None in dev else with_deviation(summary(dev))
        rows.append([*names, *cells, of_dev, f"{chance:.2f}", best, *published_cells(published, pair)])
    return columns, rows


def protocol_lines(results: dict[str, Any], with_model: bool = True) -> list[str]:
    """How the figures came about, one fact a line."""
    protocol, metric = results["protocol"], results["protocol"]["metric"]
    data = protocol["evaluation_data"]
    repeated = [sum(entry["repeated"][side] for entry in data) for side in (0, 1)]
    return [
        "setting: feature, nothing was trained; sentences are compared by the vectors of a layer",
        f"evaluated: {table_names(data)} ({sum(protocol['evaluated_rows'].values()):,} gold pairs)",
        layer_line(protocol),
        *vector_lines(protocol),
        f"pairs are ranked by the {protocol['margin']} margin of the cosine over {protocol['neighbors']} nearest "
        "neighbors, by exact search in both directions, and taken one-to-one",
        threshold_line(protocol),
        f"mined at layer {protocol['layer']}: "
        + "; ".join(_mined(pair, of_layers[str(protocol["layer"])]) for pair, of_layers in results["mining"].items()),
        f"equal texts of a pool are one candidate: {repeated[0]:,} sentences of the source and {repeated[1]:,} of the "
        "target repeat another one",
        f"metric: {metric['name']} {metric['version']} of {metric['module']}, in percent",
        *model_lines(results, with_model),
    ]


def _mined(pair: str, of_seeds: list[dict[str, Any]]) -> str:
    """`de-en 18 pairs from margin 1.011`, by seed."""
    found = [
        f"{one['mined']:,} pairs" + ("" if one["threshold"] is None else f" from margin {one['threshold']:.3f}")
        for one in of_seeds
    ]
    return f"{pair} {' / '.join(found)}"


def threshold_line(protocol: dict[str, Any]) -> str:
    """On which gold the threshold was fitted."""
    if protocol["threshold"] == "evaluated":
        return "threshold: best F1 on the evaluated gold itself, by pair and layer: an upper bound"
    found = []
    if protocol["dev_data"]:
        found.append(table_names(protocol["dev_data"]))
    if protocol["dev_fraction"]:
        found.append(f"{protocol['dev_fraction']:.0%} of the pools, kept apart")
    gold = sum(protocol["dev_rows"].values())
    return f"threshold: best F1 on dev, by pair and layer: {'; '.join(found)} ({gold:,} gold pairs)"


def to_markdown(results: dict[str, Any]) -> str:
    """The results as a Markdown page: table, warnings, protocol, scores by layer."""
    pair = AVERAGE if len(results["languages"]) > 1 else next(iter(results["languages"]))
    lines = {title: feature_results.curves(results, F1, name=name)[pair] for name, title in SCORES.items()}
    layers = {pair: layer_table(lines, results["protocol"]["layer"], F1)}
    return feature_results.to_markdown(results, "mining", score_table(results), protocol_lines(results), F1, layers)


def print_results(results: dict[str, Any], folder: Path) -> None:
    """The table, the warnings and where everything is, on the screen."""
    title = f"{results['task']}, mining: {results['model']['folder']}"
    written = f"{folder}/results.json, results.md, results.csv, layers.png"
    print_table(title, score_table(results), results["warnings"], written)
