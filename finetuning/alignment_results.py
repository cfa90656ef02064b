"""Results of word alignment: results.json and what is made from it, with AER over layers.

The layout is that of `finetuning.results`, with language pairs where it has languages. The score is AER of the first
method at the reported layer, of which less is better; `layers` holds every score of every method and layer.
"""

import statistics
from pathlib import Path
from typing import Any

from finetuning.alignment_sweep import AVERAGE, BEST, BY_POSITION, SCORES, best_layer, plot_layers
from finetuning.result_files import (
    FORMAT,
    markdown_page,
    markdown_table,
    print_table,
    summary,
    table_names,
    with_deviation,
    write_files,
)
from finetuning.results import published_figures
from finetuning.word_alignment_recipe import WordAlignmentRecipe


def build_results(
    recipe: WordAlignmentRecipe,
    model: dict[str, Any],
    protocol: dict[str, Any],
    records: list[dict[str, Any]],
    warnings: list[str],
) -> dict[str, Any]:
    """The record of one task: one entry of results.json (DESIGN.md, "results.json"), by pair in place of language.

    `records` are the seeds' scores.json. Standard deviations are over seeds (n - 1), None for a single one.
    """
    pairs = list(records[0]["scores"])
    by_layer = {
        method: {
            str(layer): {
                pair: {
                    name: summary([record["scores"][pair][method][str(layer)][name] for record in records])
                    for name in SCORES
                }
                for pair in pairs
            }
            for layer in protocol["layers"]
        }
        for method in protocol["methods"]
    }
    reported = by_layer[protocol["method"]][str(protocol["layer"])]
    metrics = {name: {pair: reported[pair][name] for pair in pairs} for name in SCORES}
    published = [
        {**published_figures(item, pairs), "method": item.method, "layer": item.layer} for item in recipe.published
    ]
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
            "metric": {**records[0]["metric"], "unit": "percent", "greater_is_better": False},
        },
        "languages": metrics["aer"],
        "metrics": metrics,
        "average": summary([statistics.fmean(seeds) for seeds in _by_seed(metrics["aer"])]),
        "layers": by_layer,
        "source_score": None,  # no language is transferred from
        "transfer_gap": None,
        "published": published or None,
        "warnings": [*warnings, *_published_warnings(published, protocol), *_chance_warnings(records, protocol)],
    }


def _by_seed(entries: dict[str, dict[str, Any]]) -> list[tuple[float, ...]]:
    """The scores of each seed, from summaries by pair."""
    return list(zip(*(entry["scores"] for entry in entries.values()), strict=True))


def _published_warnings(published: list[dict[str, Any]], protocol: dict[str, Any]) -> list[str]:
    unscored = [item for item in published if not _is_scored(item, protocol)]
    vectors = dict.fromkeys(f"{item['method']} at layer {item['layer']}" for item in unscored)
    return [f"published figures are not shown: {', '.join(vectors)} was not scored"] if unscored else []


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


def chance_level(results: dict[str, Any]) -> dict[str, float]:
    """AER of links by position: of every pair and, of several, their average."""
    levels = {pair: scores["aer"] for pair, scores in results["protocol"]["by_position"].items()}
    return levels | ({AVERAGE: statistics.fmean(levels.values())} if len(levels) > 1 else {})


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Writes results.json, results.md, results.csv and layers.png into a folder."""
    write_files(results, to_markdown(results), to_rows(results), folder)
    panels = {method: curves(results, method) for method in results["protocol"]["methods"]}
    title = f"{results['task']}: {results['model']['folder']}, {results['protocol']['encoding']} encoding"
    levels = chance_level(results)
    by_position = dict.fromkeys(panels, levels.get(AVERAGE, next(iter(levels.values()))))
    plot_layers(panels, folder / "layers.png", title, results["protocol"]["layer"], by_position)


def curves(results: dict[str, Any], method: str | None = None) -> dict[str, dict[int, list[float]]]:
    """AER of every pair and, of several, their average: by layer, a list of one a seed. Default: the first method."""
    by_layer = results["layers"][method or results["protocol"]["method"]]
    lines = {
        pair: {int(layer): found[pair]["aer"]["scores"] for layer, found in by_layer.items()}
        for pair in results["languages"]
    }
    if len(lines) > 1:
        lines[AVERAGE] = {int(layer): _of_pair(found, AVERAGE)["aer"]["scores"] for layer, found in by_layer.items()}
    return lines


def to_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
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
            "encoding": protocol["encoding"],
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


def score_table(results: dict[str, Any], with_published: bool = True) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table that Markdown, card and screen show: pairs, methods and their average.

    Rows are of the reported layer, and of layers that published figures are of; then chance level, then those figures.
    Their names are too long for a screen: `with_published` says whether they are there.
    The best layer stands beside, with its AER: it is chosen on the very gold that it is scored on.
    """
    protocol, pairs = results["protocol"], list(results["languages"])
    published = [item for item in results["published"] or [] if _is_scored(item, protocol)]
    shown = [(method, protocol["layer"]) for method in protocol["methods"]]
    shown += [(item["method"], item["layer"]) for item in published]
    further = [name for name in SCORES if name != "aer"]
    columns = ["pair", "method", "layer", "AER", *(SCORES[name] for name in further), "best layer (on this gold)"]
    rows = []

    def line(title: str, name: str, layer: int | None, *cells: str) -> None:
        row = [title, name, "" if layer is None else str(layer), *cells]
        rows.append(row + [""] * (len(columns) - len(row)))

    for pair in [*pairs, *([AVERAGE] if pairs[1:] else [])]:
        title = f"**{pair}**" if pair == AVERAGE else pair
        for method, layer in dict.fromkeys(shown):
            by_layer = {int(number): _of_pair(found, pair) for number, found in results["layers"][method].items()}
            means = {number: found["aer"]["mean"] for number, found in by_layer.items()}
            best = best_layer(means)
            cells = [with_deviation(by_layer[layer][name]) for name in ("aer", *further)]
            line(title, method, layer, *cells, f"{best} ({means[best]:.1f})")
        chance = _of_pair(
            {
                p: {name: summary([score]) for name, score in found.items()}
                for p, found in protocol["by_position"].items()
            },
            pair,
        )
        line(title, BY_POSITION, None, *(with_deviation(chance[name]) for name in ("aer", *further)))
        for item in published if with_published else []:
            figure = item["average"] if pair == AVERAGE else item["languages"].get(pair)
            if figure is not None:
                name = f"{item['paper']}, {item['table']}: {item['row']} ({item['method']})"
                line(title, name, item["layer"], f"{figure:.2f}")
    return columns, rows


def _of_pair(found: dict[str, dict[str, dict[str, Any]]], pair: str) -> dict[str, dict[str, Any]]:
    """The scores of a pair, or of the average of all, by name; seed by seed."""
    if pair != AVERAGE:
        return found[pair]
    return {
        name: summary([statistics.fmean(seeds) for seeds in _by_seed({p: scores[name] for p, scores in found.items()})])
        for name in SCORES
    }


def layer_table(results: dict[str, Any], method: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows: AER of a method by layer, for every pair and their average."""
    lines = {name: {n: summary(seeds) for n, seeds in line.items()} for name, line in curves(results, method).items()}
    main = lines.get(AVERAGE) or next(iter(lines.values()))
    best = best_layer({layer: entry["mean"] for layer, entry in main.items()})
    rows = []
    for layer in main:
        remarks = [name for name, n in (("reported", results["protocol"]["layer"]), (BEST, best)) if n == layer]
        rows.append([str(layer), *(with_deviation(line[layer]) for line in lines.values()), ", ".join(remarks)])
    return ["layer", *lines, ""], rows


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
        f"layer: {protocol['layer']} of {protocol['depth']} ({protocol['selection']['rule']}), 0 being the embeddings; "
        "never chosen by the scores",
    ]
    for method, options in protocol["methods"].items():
        shown = ", ".join(f"{name} {value}" for name, value in options.items())
        lines.append(f"method: {method}" + (f" ({shown})" if shown else ""))
    lines += [
        f"encoding: {protocol['encoding']}; words are linked where any of their pieces are",
        f"{BY_POSITION}: each source word with the word at the same share of the target sentence",
        f"metric: {metric['name']} {metric['version']}, in percent, over the corpus; lower is better",
        f"fine-tuned before: {', '.join(protocol['fine_tuned_before']) or 'on nothing'}",
        f"seeds: {', '.join(map(str, results['seeds']))}",
    ]
    if with_model:
        prints = ", ".join(fingerprint[:19] for fingerprint in results["model"]["fingerprint"].split("+"))
        lines.append(f"model: {results['model']['folder']} ({prints})")
    return lines


def to_markdown(results: dict[str, Any]) -> str:
    """The results as a Markdown page: table, warnings, protocol, AER by layer."""
    page = markdown_page(
        f"{results['task']}, word alignment",
        score_table(results),
        results["warnings"],
        protocol_lines(results),
        "[AER by layer](layers.png)",
    )
    for method in results["protocol"]["methods"]:
        page += "\n".join(["", f"## AER by layer, {method}", "", *markdown_table(layer_table(results, method)), ""])
    return page


def print_results(results: dict[str, Any], folder: Path) -> None:
    """The table, the warnings and where everything is, on the screen."""
    title = f"{results['task']}, word alignment: {results['model']['folder']}"
    written = f"{folder}/results.json, results.md, results.csv, layers.png"
    print_table(title, score_table(results, with_published=False), results["warnings"], written, names=2)
