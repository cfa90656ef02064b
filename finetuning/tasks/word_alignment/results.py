"""Results of word alignment: results.json and what is made from it, with AER over layers.

The score is AER of the first method at the reported layer, of which less is better.
"""

from pathlib import Path
from typing import Any

from finetuning.results.by_language import published_figures, published_notes
from finetuning.results.files import print_table, table_names, with_deviation, write_files
from finetuning.results.layer_curves import AVERAGE, plot_layers
from finetuning.tasks.features import results as feature_results
from finetuning.tasks.features.results import best_cell, layer_line, layer_table, model_lines, of_pair
from finetuning.tasks.word_alignment.layers import AER, BY_POSITION, SCORES
from finetuning.tasks.word_alignment.recipe import WordAlignmentRecipe


def build_results(
    recipe: WordAlignmentRecipe,
    model: dict[str, Any],
    protocol: dict[str, Any],
    records: list[dict[str, Any]],
    warnings: list[str],
) -> dict[str, Any]:
    """The record of one task, as `feature_results.build_results` describes it."""
    pairs = list(records[0]["scores"])
    published = [
        {**published_figures(item, pairs), "method": item.method, "layer": item.layer} for item in recipe.published
    ]
    warnings = [*warnings, *published_notes(recipe.published), *_chance_warnings(records, protocol)]
    return feature_results.build_results(recipe, model, protocol, records, warnings, AER, published)


def _is_scored(item: dict[str, Any], protocol: dict[str, Any]) -> bool:
    return item["method"] in protocol["methods"] and item["layer"] in protocol["layers"]


def _chance_warnings(records: list[dict[str, Any]], protocol: dict[str, Any]) -> list[str]:
    """Seeds whose links are no better than links by position, by pair."""
    method, layer = protocol["method"], str(protocol["layer"])
    warnings = []
    for record in records:
        chance = {pair: scores["aer"] for pair, scores in protocol["by_position"].items()}
        found = {pair: by_method[method][layer]["aer"] for pair, by_method in record["scores"].items()}
        if worse := [f"{pair} {aer:.1f} ({chance[pair]:.1f})" for pair, aer in found.items() if aer >= chance[pair]]:
            warnings.append(
                f"seed {record['seed']}: AER is no lower than that of links by position alone (in brackets) in "
                f"{', '.join(worse)}"
            )
    return warnings


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Writes results.json, results.md, results.csv and layers.png into a folder."""
    panels = {method: curves(results, method) for method in results["protocol"]["methods"]}
    title = f"{results['task']}: {results['model']['folder']}, {results['protocol']['encoding']} encoding"
    levels = feature_results.chance_level(results, AER)
    chance = dict.fromkeys(panels, levels.get(AVERAGE, next(iter(levels.values()))))
    plot_layers(panels, folder / "layers.png", AER, title, results["protocol"]["layer"], chance)
    write_files(results, to_markdown(results), to_rows(results), folder)


def curves(results: dict[str, Any], method: str | None = None) -> dict[str, dict[int, list[float]]]:
    """AER of every pair and, of several, their average: by layer, a list of one a seed. Default: the first method."""
    return feature_results.curves(results, AER, method)


def to_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a method, layer, pair, metric and seed, so that tables of several runs can simply be joined."""
    return feature_results.to_rows(results, encoding=results["protocol"]["encoding"])


def score_table(results: dict[str, Any], with_published: bool = True) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table that Markdown, card and screen show: pairs, methods and their average.

    Rows are of the reported layer, and of layers that published figures are of; then chance level, then those figures.
    Their names are too long for a screen: `with_published` says whether they are there.
    The best layer stands beside, with its AER: it is chosen on the very gold that it is scored on.
    """
    protocol, pairs = results["protocol"], list(results["languages"])
    published = results["published"] or []
    shown = [(method, protocol["layer"]) for method in protocol["methods"]]
    shown += [(item["method"], item["layer"]) for item in published if _is_scored(item, protocol)]
    further = [name for name in SCORES if name != "aer"]
    columns = ["pair", "method", "layer", "AER", *(SCORES[name] for name in further), "best layer (on this gold)"]
    rows = []

    def line(title: str, name: str, layer: int | None, *cells: str) -> None:
        row = [title, name, "" if layer is None else str(layer), *cells]
        rows.append(row + [""] * (len(columns) - len(row)))

    for pair in [*pairs, *([AVERAGE] if pairs[1:] else [])]:
        title = f"**{pair}**" if pair == AVERAGE else pair
        for method, layer in dict.fromkeys(shown):
            by_layer = {int(number): of_pair(found, pair, AER) for number, found in results["layers"][method].items()}
            cells = [with_deviation(by_layer[layer][name]) for name in ("aer", *further)]
            means = {number: found["aer"]["mean"] for number, found in by_layer.items()}
            line(title, method, layer, *cells, best_cell(means, AER))
        chance = feature_results.chance_of_pair(results, pair, AER)
        line(title, BY_POSITION, None, *(with_deviation(chance[name]) for name in ("aer", *further)))
        for item in published if with_published else []:
            figure = item["average"] if pair == AVERAGE else item["languages"].get(pair)
            if figure is not None:
                mark = "" if _is_scored(item, protocol) else " [not scored here]"
                name = f"{item['paper']}, {item['table']}: {item['row']} ({item['method']}){mark}"
                line(title, name, item["layer"], f"{figure:.2f}")
    return columns, rows


def protocol_lines(results: dict[str, Any], with_model: bool = True) -> list[str]:
    """How the figures came about, one fact a line."""
    protocol, metric = results["protocol"], results["protocol"]["metric"]
    gold = [entry["gold"] for entry in protocol["evaluation_data"]]
    links = sum(entry["possible_links"] for entry in gold)
    sure = sum(entry["sure_links"] for entry in gold)
    lines = [
        "setting: feature, nothing was trained; links are read from the vectors of a layer",
        f"evaluated: {table_names(protocol['evaluation_data'])} ({sum(protocol['evaluated_rows'].values()):,} "
        f"sentences with {links:,} gold links, {sure:,} of them sure; not scored: "
        f"gold links past their sentence, {sum(len(g['left_out']) for g in gold)}; sentences without gold, "
        f"{sum(g['sentences_without_gold'] for g in gold)})",
        layer_line(protocol),
    ]
    for method, options in protocol["methods"].items():
        shown = ", ".join(f"{name} {value}" for name, value in options.items())
        lines.append(f"method: {method}" + (f" ({shown})" if shown else ""))
    lines += [
        f"encoding: {protocol['encoding']}; words are linked where any of their tokens are",
        f"{BY_POSITION}: each source word with the word at the same share of the target sentence",
        f"metric: {metric['name']} {metric['version']}, in percent, over the corpus; lower is better",
        *model_lines(results, with_model),
    ]
    return lines


def to_markdown(results: dict[str, Any]) -> str:
    """The results as a Markdown page: table, warnings, protocol, AER by layer."""
    protocol = results["protocol"]
    layers = {method: layer_table(curves(results, method), protocol["layer"], AER) for method in protocol["methods"]}
    return feature_results.to_markdown(
        results, "word alignment", score_table(results), protocol_lines(results), AER, layers
    )


def print_results(results: dict[str, Any], folder: Path) -> None:
    """The table, the warnings and where everything is, on the screen."""
    title = f"{results['task']}, word alignment: {results['model']['folder']}"
    written = f"{folder}/results.json, results.md, results.csv, layers.png"
    print_table(title, score_table(results, with_published=False), results["warnings"], written, names=2)
