"""What results of retrieval say: accuracy@1 by layer, the mean of both directions."""

import math
from pathlib import Path
from typing import Any

from finetuning.results.files import table_names
from finetuning.results.report import Report, published_figures, published_notes
from finetuning.results.table import AVERAGE, Results
from finetuning.tasks.features.results import feature_facts, layer_line, plot_metrics
from finetuning.tasks.retrieval.recipe import POOLINGS, RetrievalRecipe, of_earlier

METRICS = {"accuracy": "accuracy@1", "source_to_target": "source -> target", "target_to_source": "target -> source"}
OF_RUN = ("max_length", "cut_texts", "texts_without_tokens")  # of the protocol, but known with the tokenizer only


def facts(recipe: RetrievalRecipe, protocol: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """See `Report.facts`."""
    protocol = {**protocol, **{name: records[0][name] for name in OF_RUN}}
    pairs = list(records[0]["scores"])
    published = [
        published_figures(item, {item.score: item.languages, **item.further}, pairs) for item in recipe.published
    ]
    warnings = [*published_notes(recipe.published), *text_warnings(protocol), *_chance_warnings(records, protocol)]
    return feature_facts(recipe, protocol, records, published, warnings)


def text_warnings(protocol: dict[str, Any]) -> list[str]:
    """Texts that the model did not read whole, by pair."""
    reasons = {
        "cut_texts": f"are longer than {protocol['max_length']} positions and were cut",
        "texts_without_tokens": "have no tokens, nothing of them was read",
    }
    return [
        f"{pair}: {source} texts of the source and {target} of the target {reason}"
        for field, reason in reasons.items()
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


def protocol_lines(results: Results) -> list[str]:
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
    ]


def vector_lines(protocol: dict[str, Any]) -> list[str]:
    """How a sentence becomes a vector, one fact a line."""
    cut = sum(map(sum, protocol["cut_texts"].values()))
    return [
        f"vector of a sentence: {POOLINGS[of_earlier(protocol)['pooling']]}",
        f"max length: {protocol['max_length']} positions ({cut:,} texts cut)",
    ]


def cells(results: Results, language: str) -> dict[str, str]:
    """Number of pairs, and the accuracy of a guess."""
    rows = results["protocol"]["evaluated_rows"]
    size = sum(rows.values()) if language == AVERAGE else rows[language]
    return {"size": f"{size:,}", "chance": f"{results.chance(language):.2f}"}


def plot(results: Results, folder: Path) -> str:
    """A panel for both directions together and one for each."""
    return plot_metrics(results, folder, {**METRICS, "accuracy": "both directions"})


REPORT = Report(facts, protocol_lines, plot, METRICS, "pair", cells)
