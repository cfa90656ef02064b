"""What results of mining say: F1 by layer, with the threshold of that layer and pair.

`mining` of results.json holds what each figure is made of: {pair: {layer: [one a seed]}}, with the counts of pairs and
the threshold.
"""

import math
from pathlib import Path
from typing import Any

from finetuning.results.files import table_names
from finetuning.results.report import Report, published_figures, published_notes
from finetuning.results.table import AVERAGE, Results, summary, with_deviation
from finetuning.tasks.features.results import feature_facts, layer_line, plot_metrics
from finetuning.tasks.mining.recipe import MiningRecipe
from finetuning.tasks.retrieval.results import OF_RUN, text_warnings, vector_lines

METRICS = {"f1": "F1", "precision": "precision", "recall": "recall"}
EDGES = {
    "all": "takes every pair that was proposed there: the best cut may lie beyond",
    "first": "takes the highest margin alone: it rests on a single pair, or pairs that are equal",
    "none": "could not be fitted: no proposed pair is right, and nothing is mined",
}


def facts(recipe: MiningRecipe, protocol: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """See `Report.facts`."""
    protocol = {**protocol, **{name: records[0][name] for name in OF_RUN}}
    mining = {
        pair: {str(layer): [record["mining"][pair][str(layer)] for record in records] for layer in protocol["layers"]}
        for pair in protocol["pool_sizes"]
    }
    published = [published_figures(item, {"f1": item.languages, **item.further}, mining) for item in recipe.published]
    notes = [*published_notes(recipe.published), *text_warnings(protocol)]
    warnings = [*notes, *_mining_warnings(mining, protocol, records)]
    return feature_facts(recipe, protocol, records, published, warnings) | {"mining": mining}


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


def protocol_lines(results: Results) -> list[str]:
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


def cells(results: Results, language: str) -> dict[str, str]:
    """Sizes of the pools, gold pairs, F1 on the rows that the threshold was fitted on, and F1 of a guess."""
    protocol = results["protocol"]
    if language == AVERAGE:
        own = {"pools": "", "gold": f"{sum(protocol['evaluated_rows'].values()):,}", "dev F1": ""}
    else:
        dev = [of_seed["dev_f1"] for of_seed in results["mining"][language][str(protocol["layer"])]]
        own = {
            "pools": " x ".join(f"{size:,}" for size in protocol["pool_sizes"][language]),
            "gold": f"{protocol['evaluated_rows'][language]:,}",
            "dev F1": "-" if None in dev else with_deviation(summary(dev)),
        }
    return own | {"chance F1": f"{results.chance(language):.2f}"}


def plot(results: Results, folder: Path) -> str:
    """F1, precision and recall."""
    return plot_metrics(results, folder, METRICS)


REPORT = Report(facts, protocol_lines, plot, METRICS, "pair", cells)
