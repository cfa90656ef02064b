"""How results become files, pages and tables on the screen, the same for every kind of task.

What a kind adds is its `Report`: fields of results.json, what its metrics are called, how its figures came about, and
its plot.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetuning.results.files import Table, markdown_page, markdown_table, print_table
from finetuning.results.plots import plot_bars
from finetuning.results.published_rows import OTHERWISE, column_title, marks
from finetuning.results.table import (
    AVERAGE,
    FORMAT,
    LABEL_SCORES,
    Results,
    labels_of_record,
    rows_of_record,
    with_deviation,
)
from finetuning.tasks.registry import results_module
from zoo_core.provenance import write_csv, write_json

BEST = "best (chosen on this gold)"
WIDEST = 20  # columns of a page's table; results.csv has them all


@dataclass(frozen=True)
class Report:
    """What a kind of task says of its results."""

    facts: Callable[[Any, dict[str, Any], list[dict[str, Any]]], dict[str, Any]]
    """Fields of results.json, given recipe, protocol and the seeds' scores.json: setting, hyperparameters, protocol,
    warnings, published, and what else the kind has."""

    protocol_lines: Callable[[Results], list[str]]
    """How the figures came about, one fact a line."""

    plot: Callable[[Results, Path], str | None]
    """Draws the plot into a folder and returns the name of its file; None where there is nothing to draw."""

    titles: dict[str, str]
    """What metrics are called; others by their own name."""

    unit: str = "language"
    """What a row of the table is: a language, or a pair."""

    cells: Callable[[Results, str], dict[str, str]] = lambda results, language: {}
    """Further columns of the table, for a language or the AVERAGE."""


def report_of(kind: str) -> Report:
    """The report of a kind of task."""
    return results_module(kind).REPORT


def build_results(
    recipe: Any,
    model: dict[str, Any],
    protocol: dict[str, Any],
    records: list[dict[str, Any]],
    warnings: list[str],
) -> Results:
    """results.json of one task (ARCHITECTURE.md, "Results"); `records` are the seeds' scores.json."""
    report = report_of(recipe.kind)
    facts = report.facts(recipe, protocol, records)
    split, metrics = facts["protocol"]["evaluated_split"], report.titles or None
    of_labels = [row for record in records for row in labels_of_record(record)]
    return Results(
        {
            "format": FORMAT,
            "task": recipe.task,
            "kind": recipe.kind,
            "seeds": [record["seed"] for record in records],
            **facts,
            "model": {**model, "parameters": records[0]["parameters"]} | facts.get("model", {}),
            "scores": [row for record in records for row in rows_of_record(record, split, metrics)],
            **({"label_scores": of_labels} if of_labels else {}),
            "warnings": [*warnings, *facts["warnings"]],
        }
    )


def with_outcomes(protocol: dict[str, Any], records: list[dict[str, Any]], **of_the_metric: Any) -> dict[str, Any]:
    """The protocol with what the seeds selected, which parameters they drew, and the metric."""
    fresh = records[0].get("fresh_parameters")
    return {
        **protocol,
        **({"fresh_parameters": {**fresh, "seeds": [record["seed"] for record in records]}} if fresh else {}),
        "selection": {
            **protocol["selection"],
            "selected_steps": [record["selected_step"] for record in records],
            "scores": [record["selection_score"] for record in records],
        },
        "metric": {**records[0]["metric"], "unit": "percent", **of_the_metric},
    }


def score_table(results: Results, with_published: bool = True) -> Table:
    """Header and rows: languages or pairs, their average and the transfer gap; metrics, seeds, published figures.

    Where scores are by method and layer, the reported layer of each method, and those that published figures are of;
    beside them the best layer, which is chosen on the very gold that it is scored on.
    """
    report = report_of(results["kind"])
    metrics, seeds = results.metrics, results["seeds"] if results["seeds"][1:] else []

    def otherwise(item: dict[str, Any]) -> str:
        return OTHERWISE * bool(marks(results["protocol"], item.get("pooling")))

    published = sorted(results["published"], key=otherwise) if with_published else []
    places = [(method, results["protocol"].get("layer")) for method in results.methods]
    for item in published:
        if "layer" in item and item["method"] in results.methods and item["layer"] in results.layers:
            places.append((item["method"], item["layer"]))
    rows: list[dict[str, str]] = []
    for language in results.with_average:
        for method, layer in dict.fromkeys(places):
            entry = results.of(language, method=method, layer=layer)
            row = {report.unit: f"**{language}**" if language == AVERAGE else language}
            row |= {"method": method} if results.methods[1:] else {}
            row |= {"layer": str(layer)} if layer is not None else {}
            for metric in metrics:
                row[title_of(report, metric)] = with_deviation(results.of(language, metric, method, layer))
            if seeds:
                row |= {f"seed {n}": f"{score:.1f}" for n, score in zip(seeds, entry["scores"], strict=True)}
            row |= report.cells(results, language)
            if results.layers[1:]:
                best = best_layer(results, language, method)
                row["best layer (on this gold)"] = (
                    f"{best} ({results.of(language, method=method, layer=best)['mean']:.1f})"
                )
            for item in published:
                own = item.get("layer") if item.get("layer") in results.layers else results["protocol"].get("layer")
                fits = item.get("method") in (None, method) and own == layer
                for metric, figures in item["figures"].items():
                    figure = item["average"].get(metric) if language == AVERAGE else figures.get(language)
                    title = column_title(item, results["protocol"])
                    title += f" ({item['method']}, layer {item['layer']})" if "layer" in item else ""
                    title = title if metric == results.metric else f"{title_of(report, metric)}: {title}"
                    row[title] = shown(figure) + otherwise(item) if fits and figure is not None else ""
            rows.append(row)
    if results.transfer_gap is not None:
        gap = f"gap ({results['source_language']} - mean of others)"
        rows.append({report.unit: gap, title_of(report, results.metric): f"{results.transfer_gap:.1f}"})
    columns = list(rows[0])
    return columns, [[row.get(column, "") for column in columns] for row in rows]


def title_of(report: Report, metric: str) -> str:
    """What a metric is called."""
    return report.titles.get(metric, metric)


def shown(figure: float | None) -> str:
    """A published figure with one decimal, or two where it is printed with them; empty where there is none."""
    if figure is None:
        return ""
    return f"{figure:.1f}" if round(figure, 1) == round(figure, 2) else f"{figure:.2f}"


def best_layer(results: Results, language: str, method: str | None = None) -> int:
    """The layer with the best score, of equal ones the lowest: for the reader, never to select by."""
    sign = 1 if results.is_higher_better else -1
    return max(results.layers, key=lambda layer: sign * results.of(language, method=method, layer=layer)["mean"])


def layer_tables(results: Results) -> dict[str, Table]:
    """By method, the metrics of each layer: of the one language, or of the average."""
    report, language = report_of(results["kind"]), results.with_average[-1]
    tables = {}
    for method in results.methods:
        best = best_layer(results, language, method)
        rows = []
        for layer in results.layers:
            notes = [name for name, n in (("reported", results["protocol"]["layer"]), (BEST, best)) if n == layer]
            cells = [with_deviation(results.of(language, metric, method, layer)) for metric in results.metrics]
            rows.append([str(layer), *cells, ", ".join(notes)])
        tables[str(method)] = (["layer", *(title_of(report, metric) for metric in results.metrics), ""], rows)
    return tables


def label_tables(results: Results) -> dict[str, Table]:
    """By title, the scores of each label: their average over languages, and F1 in each language; means over seeds.

    In a language where a label does not occur, it has no score.
    """
    if "label_scores" not in results:
        return {}
    frame, unit = results.label_frame(), results["protocol"]["label_unit"]
    support = frame.groupby(["language", "label"], sort=False)["support"].first()
    means = frame[frame["support"] > 0].groupby(["language", "label"], sort=False)[list(LABEL_SCORES)].mean()
    average = means.groupby("label", sort=False).mean().reindex(frame["label"].unique())
    total = support.groupby("label").sum()
    seeds = f"{len(results['seeds'])} seeds" if results["seeds"][1:] else ""
    languages = f"{len(results.names)} languages" if results.names[1:] else ""
    tables = {
        f"Scores by label{_mean_over(languages, seeds)}": (
            ["label", *LABEL_SCORES, unit],
            [[label, *map(_cell, scores), f"{total[label]:,}"] for label, *scores in average.itertuples()],
        )
    }
    if results.names[1:]:
        f1 = means["f1"].unstack("label").reindex(index=results.names, columns=average.index)
        f1, unit = (f1.T, "label") if len(f1.columns) > len(f1) else (f1, "language")
        if len(f1.columns) <= WIDEST:
            rows = [[name, *map(_cell, scores)] for name, *scores in f1.itertuples()]
            tables[f"F1 by label and language{_mean_over(seeds)}"] = ([unit, *f1.columns], rows)
    return tables


def _mean_over(*counts: str) -> str:
    return f", mean over {' and '.join(filter(None, counts))}" if any(counts) else ""


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1f}"


def protocol_lines(results: Results, with_model: bool = True) -> list[str]:
    """How the figures came about, one fact a line; with whose they are."""
    lines = [
        *report_of(results["kind"]).protocol_lines(results),
        f"fine-tuned before: {', '.join(results['protocol']['fine_tuned_before']) or 'on nothing'}",
        f"seeds: {', '.join(map(str, results['seeds']))}",
    ]
    if with_model:
        prints = ", ".join(fingerprint[:19] for fingerprint in results["model"]["fingerprint"].split("+"))
        lines.append(f"model: {results['model']['folder']} ({prints})")
    return lines


def to_markdown(results: Results, picture: str | None) -> str:
    """The results as a Markdown page: table, warnings, protocol, plot, scores by layer."""
    title = f"{results['task']}, {results.setting}"
    link = f"[scores]({picture})" if picture else None
    page = markdown_page(title, score_table(results), results["warnings"], protocol_lines(results), link)
    if results.layers[1:]:
        for method, table in layer_tables(results).items():
            page += "\n".join(["", f"## {method}, by layer", "", *markdown_table(table), ""])
    if tables := label_tables(results):
        for heading, table in tables.items():
            page += "\n".join(["", f"## {heading}", "", *markdown_table(table), ""])
        if results.names[1:] and len(tables) == 1:
            page += "\nF1 by label and language is in results.csv.\n"
        unit = results["protocol"]["label_unit"]
        page += f"\n`{unit}`: how many have the label. A language in which none has it has no score.\n"
    return page


def write_results(results: Results, folder: Path) -> None:
    """Writes the plot, results.md, results.csv and results.json into a folder.

    The JSON comes last: where it is, everything is, and a run that was stopped before is not finished.
    """
    picture = report_of(results["kind"]).plot(results, folder)
    (folder / "results.md").write_text(to_markdown(results, picture), encoding="utf-8")
    write_csv(folder / "results.csv", results.frame_with_labels())
    write_json(folder / "results.json", results)


def print_results(results: Results, folder: Path) -> None:
    """The table, the warnings and where everything is, on the screen."""
    table = score_table(results, with_published=len(results["published"]) < 2)  # more columns do not fit
    title = f"{results['task']}, {results.setting}: {results['model']['folder']}"
    print_table(title, table, results["warnings"], f"{folder}/results.json, results.md, results.csv and a plot")


def plot_scores(results: Results, path: Path, title: str, highlighted: str | None = None) -> None:
    """Draws the reported score of each language or pair, chance, and published figures that were measured alike."""
    own = results["protocol"]
    published = {
        column_title(item, own): item["figures"].get(results.metric, {})
        for item in results["published"]
        if not marks(own, item.get("pooling"))
        and all(item.get(name) in (None, own.get(name)) for name in ("method", "layer"))
    }
    average = results.average["mean"] if results.names[1:] else None
    bars = {"": results.languages}
    plot_bars(bars, path, title, f"{results.metric} (%)", average, results.chances, published, highlighted)


def published_figures(item: Any, figures: dict[str, dict[str, float]], languages: Iterable[str]) -> dict[str, Any]:
    """Published `figures` {metric: {language: %}} of the evaluated languages; the average only if it is over the same.

    `item` is a `Published` of a recipe. The average is of the first metric.
    """
    languages, main = list(languages), next(iter(figures))
    over = list(getattr(item, "average_over", None) or figures[main])
    average = getattr(item, "average", None)
    return {
        "paper": item.paper,
        "table": item.table,
        "row": item.row,
        "figures": {
            metric: {name: scores[name] for name in languages if name in scores} for metric, scores in figures.items()
        },
        "average": {main: average} if average is not None and set(over) == set(languages) else {},
        "average_over": over,
        **{name: getattr(item, name) for name in ("pooling", "method", "layer") if hasattr(item, name)},
        "note": item.note,
    }


def published_notes(published: Iterable[Any]) -> list[str]:
    """What a reader must know of the published figures."""
    return list(dict.fromkeys(f"published, {item.paper}, {item.table}: {item.note}" for item in published if item.note))
