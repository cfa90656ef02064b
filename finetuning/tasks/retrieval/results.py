"""Results of retrieval: results.json and what is made from it, with the accuracy over layers.

The score is accuracy@1 at the reported layer, the mean of both directions.
"""

import math
from pathlib import Path
from typing import Any

from finetuning.results.by_language import published_figures, published_notes
from finetuning.results.files import print_table, table_names, with_deviation, write_files
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
from finetuning.tasks.retrieval.recipe import POOLINGS, RetrievalRecipe, of_earlier

SCORES = {"accuracy": "accuracy@1", "source_to_target": "source -> target", "target_to_source": "target -> source"}
ACCURACY = Measure(SCORES, greater_is_better=True, chance="chance", chance_field="chance")
OF_RUN = ("max_length", "cut_texts", "texts_without_tokens")  # of the protocol, but known with the tokenizer only


def build_results(
    recipe: RetrievalRecipe,
    model: dict[str, Any],
    protocol: dict[str, Any],
    records: list[dict[str, Any]],
    warnings: list[str],
) -> dict[str, Any]:
    """The record of one task, as `feature_results.build_results` describes it."""
    protocol = {**protocol, **{name: records[0][name] for name in OF_RUN}}
    pairs = list(records[0]["scores"])
    published = [{**published_figures(item, pairs), "score": item.score} for item in recipe.published]
    notes = [*published_notes(recipe.published), *text_warnings(protocol)]
    warnings = [*warnings, *notes, *_chance_warnings(records, protocol)]
    return feature_results.build_results(recipe, model, protocol, records, warnings, ACCURACY, published)


def text_warnings(protocol: dict[str, Any]) -> list[str]:
    """Texts that the model did not read whole, by pair."""
    said = {
        "cut_texts": f"are longer than {protocol['max_length']} positions and were cut",
        "texts_without_tokens": "have no tokens, nothing of them was read",
    }
    return [
        f"{pair}: {source} texts of the source and {target} of the target {what}"
        for field, what in said.items()
        for pair, (source, target) in protocol[field].items()
        if source or target
    ]


def _chance_warnings(records: list[dict[str, Any]], protocol: dict[str, Any]) -> list[str]:
    """Seeds whose accuracy is not two standard errors above chance, by pair."""
    method, layer = protocol["method"], str(protocol["layer"])
    warnings = []
    for record in records:
        at_chance = []
        for pair, by_method in record["scores"].items():
            found, chance = by_method[method][layer]["accuracy"], protocol["chance"][pair]["accuracy"]
            # both directions ask the same pairs: they are no two independent samples
            error = math.sqrt(chance * (100 - chance) / protocol["evaluated_rows"][pair])
            if found <= chance + 2 * error:
                at_chance.append(f"{pair} {found:.1f} (chance: {chance:.1f})")
        if at_chance:
            warnings.append(f"seed {record['seed']}: accuracy is at chance in {', '.join(at_chance)}")
    return warnings


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Writes results.json, results.md, results.csv and layers.png into a folder.

    The plot has a panel for both directions together and one for each, with a line for every pair and their average.
    """
    feature_results.plot_scores(results, folder / "layers.png", ACCURACY, {**SCORES, "accuracy": "both directions"})
    write_files(results, to_markdown(results), to_rows(results), folder)


def to_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a layer, pair, metric and seed, so that tables of several runs can simply be joined."""
    return feature_results.to_rows(results, max_length=results["protocol"]["max_length"])


def score_table(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table that Markdown, card and screen show: pairs and their average, of the reported layer.

    The best layer stands beside, with its accuracy: it is chosen on the very pairs that it is scored on. Published
    figures have a column each, which says what of ours corresponds.
    """
    protocol, pairs = results["protocol"], list(results["languages"])
    published = results["published"] or []
    by_layer = results["layers"][protocol["method"]]
    titles = {**SCORES, "accuracy": f"accuracy@1 (layer {protocol['layer']})"}
    columns = ["pair", "size", *titles.values(), "chance", "best layer (on this gold)"]
    columns += [f"{column_title(item, protocol)} ({SCORES[item['score']]})" for item in published]
    rows = []
    for pair in [*pairs, *([AVERAGE] if pairs[1:] else [])]:
        found = {int(layer): of_pair(of_layer, pair, ACCURACY) for layer, of_layer in by_layer.items()}
        scores = found[protocol["layer"]]
        chance = chance_of_pair(results, pair, ACCURACY)["accuracy"]["mean"]
        best = best_cell({layer: of_layer["accuracy"]["mean"] for layer, of_layer in found.items()}, ACCURACY)
        size = sum(protocol["evaluated_rows"].values()) if pair == AVERAGE else protocol["evaluated_rows"][pair]
        title = f"**{pair}**" if pair == AVERAGE else pair
        cells = [with_deviation(scores[name]) for name in SCORES]
        rows.append([title, f"{size:,}", *cells, f"{chance:.2f}", best, *published_cells(published, pair)])
    return columns, rows


def protocol_lines(results: dict[str, Any], with_model: bool = True) -> list[str]:
    """How the figures came about, one fact a line."""
    protocol, metric = results["protocol"], results["protocol"]["metric"]
    data = protocol["evaluation_data"]
    unpaired, empty = sum(sum(entry["unpaired"]) for entry in data), sum(entry["empty"] for entry in data)
    repeated = [sum(entry["repeated"][side] for entry in data) for side in (0, 1)]
    return [
        "setting: feature, nothing was trained; sentences are compared by the vectors of a layer",
        f"evaluated: {table_names(data)} ({sum(protocol['evaluated_rows'].values()):,} pairs; not read: "
        f"{unpaired:,} rows without a partner, {empty:,} pairs with an empty side)",
        layer_line(protocol),
        *vector_lines(protocol),
        f"found is the nearest by {protocol['similarity']} among all sentences of the other language, by exact search; "
        "of equally near ones the first",
        f"equal texts are one candidate, right for every pair that has them: {repeated[0]:,} pairs repeat a source "
        f"text, {repeated[1]:,} a target text",
        f"metric: {metric['name']} {metric['version']} of {metric['module']}, in percent: accuracy@1, the mean of both "
        "directions",
        *model_lines(results, with_model),
    ]


def vector_lines(protocol: dict[str, Any]) -> list[str]:
    """How a sentence becomes a vector, one fact a line."""
    cut = sum(map(sum, protocol["cut_texts"].values()))
    return [
        f"vector of a sentence: {POOLINGS[of_earlier(protocol)['pooling']]}",
        f"max length: {protocol['max_length']} positions ({cut:,} texts cut)",
    ]


def to_markdown(results: dict[str, Any]) -> str:
    """The results as a Markdown page: table, warnings, protocol, accuracy by layer."""
    pair = AVERAGE if len(results["languages"]) > 1 else next(iter(results["languages"]))
    lines = {title: feature_results.curves(results, ACCURACY, name=name)[pair] for name, title in SCORES.items()}
    layers = {pair: layer_table(lines, results["protocol"]["layer"], ACCURACY)}
    return feature_results.to_markdown(
        results, "retrieval", score_table(results), protocol_lines(results), ACCURACY, layers
    )


def print_results(results: dict[str, Any], folder: Path) -> None:
    """The table, the warnings and where everything is, on the screen."""
    title = f"{results['task']}, retrieval: {results['model']['folder']}"
    written = f"{folder}/results.json, results.md, results.csv, layers.png"
    print_table(title, score_table(results), results["warnings"], written)
