"""What results of word alignment say: AER by method and layer, of which less is better."""

from pathlib import Path
from typing import Any

from finetuning.results.files import table_names
from finetuning.results.report import Report, published_figures, published_notes
from finetuning.results.table import Results
from finetuning.tasks.features.results import curves, feature_facts, layer_line, plot_layers
from finetuning.tasks.word_alignment.layers import BY_POSITION, METRICS
from finetuning.tasks.word_alignment.recipe import WordAlignmentRecipe


def facts(recipe: WordAlignmentRecipe, protocol: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """See `Report.facts`."""
    pairs = list(records[0]["scores"])
    published = [published_figures(item, {"aer": item.languages, **item.further}, pairs) for item in recipe.published]
    warnings = [*published_notes(recipe.published), *_chance_warnings(records, protocol)]
    return feature_facts(recipe, protocol, records, published, warnings, is_higher_better=False)


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


def protocol_lines(results: Results) -> list[str]:
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
        f"encoding: {protocol['encoding']}; words are linked where any of their tokens are"
        + (", by ot_words as such" if "ot_words" in protocol["methods"] else ""),
        f"{BY_POSITION}: each source word with the word at the same share of the target sentence",
        f"metric: {metric['name']} {metric['version']}, in percent, over the corpus; lower is better",
    ]
    return lines


def cells(results: Results, language: str) -> dict[str, str]:
    """AER of links that know nothing of the words."""
    return {f"AER by {BY_POSITION}": f"{results.chance(language):.1f}"}


def plot(results: Results, folder: Path) -> str:
    """AER, a panel for each method."""
    panels = {method: curves(results, method=method) for method in results.methods}
    return plot_layers(results, folder, panels, dict.fromkeys(panels, results.chance(results.with_average[-1])), "AER")


REPORT = Report(facts, protocol_lines, plot, METRICS, "pair", cells)
