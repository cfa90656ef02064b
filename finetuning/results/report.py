"""Writes results as files, pages and tables on the screen. A kind of task adds to them in a subclass of `Report`."""

import math
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from finetuning.results.files import Table, markdown_page, markdown_table, print_table, table_names
from finetuning.results.plots import plot_bars
from finetuning.results.protocol import Protocol
from finetuning.results.published_rows import OTHERWISE, column_title, marks
from finetuning.results.table import AVERAGE, LABEL_SCORES, Results, with_deviation
from zoo_core.provenance import write_csv, write_json

BEST = "best (chosen on these data)"
WIDEST = 20  # columns of a page's table; results.csv has them all


class Report:
    """The files, pages and tables of the results of one task."""

    protocol_class: ClassVar[type[Protocol]] = Protocol
    titles: ClassVar[dict[str, str]] = {}  # what metrics are called; others by their own name
    unit: ClassVar[str] = "language"  # what a row of the table is: a language, or a pair

    def __init__(self, results: Results):
        self.results = results

    @cached_property
    def protocol(self) -> Protocol:
        """The protocol with the facts of the kind of task."""
        return self.protocol_class.of(self.results["protocol"])

    def lines(self) -> list[str]:
        """Returns the lines above the table: what was evaluated, with which metric, and facts of the kind of task."""
        metric = self.protocol.metric
        data = f"evaluated: {table_names(self.protocol.evaluation_data)}"
        return [data, f"metric: {metric.name} {metric.version}, in {metric.unit}"]

    def cells(self, language: str) -> dict[str, str]:
        """Further columns of the table, for a language or the AVERAGE."""
        return {}

    def plot(self, folder: Path) -> str | None:
        """Draws the plot into a folder and returns the name of its file; None where there is nothing to draw."""
        plot_scores(self.results, folder / "scores.png", f"{self.results['task']}, {self.results.setting}")
        return "scores.png"

    def title_of(self, metric: str) -> str:
        """Returns the displayed name of a metric."""
        return self.titles.get(metric, metric)

    def table(self, with_published: bool = True) -> Table:
        """Returns header and rows: languages or pairs, average and transfer gap; metrics, seeds, published scores.

        If there are scores by method and layer, the table has the reported layer of each method, the layers of
        published scores, and the best layer, which is chosen on the same gold links that score it.
        """
        results, protocol = self.results, self.results.protocol
        # the column of a single seed would repeat the mean
        metrics, seeds = results.metrics, results["seeds"] if results["seeds"][1:] else []

        def otherwise(item: dict[str, Any]) -> str:
            return OTHERWISE * bool(marks(protocol, item.get("pooling")))

        published = sorted(results["published"], key=otherwise) if with_published else []
        places = [(method, protocol.layer) for method in results.methods]
        for item in published:
            if "layer" in item and item["method"] in results.methods and item["layer"] in results.layers:
                places.append((item["method"], item["layer"]))
        rows: list[dict[str, str]] = []
        for language in results.with_average:
            for method, layer in dict.fromkeys(places):
                entry = results.of(language, method=method, layer=layer)
                row = {self.unit: f"**{language}**" if language == AVERAGE else language}
                row |= {"method": method} if results.methods[1:] else {}
                row |= {"layer": str(layer)} if layer is not None else {}
                for metric in metrics:
                    row[self.title_of(metric)] = with_deviation(results.of(language, metric, method, layer))
                if seeds:
                    row |= {f"seed {n}": f"{score:.1f}" for n, score in zip(seeds, entry["scores"], strict=True)}
                row |= self.cells(language)
                if results.layers[1:]:
                    best = best_layer(results, language, method)
                    row["best layer on these data"] = (
                        f"{best} ({results.of(language, method=method, layer=best)['mean']:.1f})"
                    )
                for item in published:
                    own = item.get("layer") if item.get("layer") in results.layers else protocol.layer
                    fits = item.get("method") in (None, method) and own == layer
                    for metric, figures in item["figures"].items():
                        figure = item["average"].get(metric) if language == AVERAGE else figures.get(language)
                        title = column_title(item, protocol)
                        title += f" ({item['method']}, layer {item['layer']})" if "layer" in item else ""
                        title = title if metric == results.metric else f"{self.title_of(metric)}: {title}"
                        row[title] = shown(figure) + otherwise(item) if fits and figure is not None else ""
                rows.append(row)
        if results.transfer_gap is not None:
            gap = f"gap ({results['source_language']} - mean of others)"
            rows.append({self.unit: gap, self.title_of(results.metric): f"{results.transfer_gap:.1f}"})
        columns = list(rows[0])
        return columns, [[row.get(column, "") for column in columns] for row in rows]

    def layer_tables(self) -> dict[str, Table]:
        """Returns by method the metrics of each layer, for a single language or the average."""
        results, language = self.results, self.results.with_average[-1]
        tables = {}
        for method in results.methods:
            best = best_layer(results, language, method)
            rows = []
            for layer in results.layers:
                notes = [name for name, n in (("reported", results.protocol.layer), (BEST, best)) if n == layer]
                cells = [with_deviation(results.of(language, metric, method, layer)) for metric in results.metrics]
                rows.append([str(layer), *cells, ", ".join(notes)])
            tables[str(method)] = (["layer", *(self.title_of(metric) for metric in results.metrics), ""], rows)
        return tables

    def label_tables(self) -> dict[str, Table]:
        """By title, the scores of each label: their average over languages, and F1 in each language; means over seeds.

        In a language where a label does not occur, it has no score.
        """
        results = self.results
        if "label_scores" not in results:
            return {}
        frame, unit = results.label_frame(), results.protocol.label_unit
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

    def protocol_lines(self, with_model: bool = True) -> list[str]:
        """Returns how the scores were computed, one fact per line; with the model's name if `with_model`."""
        lines = [
            *self.lines(),
            f"seeds: {', '.join(map(str, self.results['seeds']))}",
        ]
        if before := self.protocol.fine_tuned_before:
            lines.append(f"fine-tuned before: on {', '.join(before)}")
        processes = self.results.get("processes", [])
        if any(count not in (None, 1) for count in processes):
            lines.append(f"processes: {', '.join(map(str, dict.fromkeys(processes)))}")
        if with_model:
            model = self.results["model"]
            prints = ", ".join(fingerprint[:19] for fingerprint in model["fingerprint"].split("+"))
            lines.append(f"model: {model['folder']} ({prints})")
        return lines

    def to_markdown(self, picture: str | None) -> str:
        """The results as a Markdown page: table, warnings, protocol, plot, scores by layer."""
        results = self.results
        title = f"{results['task']}, {results.setting}"
        link = f"[scores]({picture})" if picture else None
        page = markdown_page(title, self.table(), results["warnings"], self.protocol_lines(), link)
        if results.layers[1:]:
            for method, table in self.layer_tables().items():
                page += "\n".join(["", f"## {method}, by layer", "", *markdown_table(table), ""])
        if tables := self.label_tables():
            for heading, table in tables.items():
                page += "\n".join(["", f"## {heading}", "", *markdown_table(table), ""])
            if results.names[1:] and len(tables) == 1:
                page += "\nF1 by label and language is in results.csv.\n"
            unit = results.protocol.label_unit
            page += f"\n`{unit}`: how many have the label. A language in which none has it has no score.\n"
        return page

    def write(self, folder: Path) -> None:
        """Writes the plot, results.md, results.csv and results.json into a folder.

        The JSON is written last: a run counts as finished only if it exists.
        """
        picture = self.plot(folder)
        (folder / "results.md").write_text(self.to_markdown(picture), encoding="utf-8")
        write_csv(folder / "results.csv", self.results.frame_with_labels())
        write_json(folder / "results.json", self.results)

    def print(self, folder: Path) -> None:
        """Prints the table, the warnings and the names of the files."""
        results = self.results
        table = self.table(with_published=len(results["published"]) < 2)  # more columns do not fit
        title = f"{results['task']}, {results.setting}: {results['model']['folder']}"
        print_table(title, table, results["warnings"], f"{folder}/results.json, results.md, results.csv and a plot")


def best_layer(results: Results, language: str, method: str | None = None) -> int:
    """Returns the layer with the best score, the lowest of equal ones. It informs readers and never selects a layer."""
    sign = 1 if results.is_higher_better else -1
    return max(results.layers, key=lambda layer: sign * results.of(language, method=method, layer=layer)["mean"])


def _mean_over(*counts: str) -> str:
    return f", mean over {' and '.join(filter(None, counts))}" if any(counts) else ""


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1f}"


def shown(figure: float | None) -> str:
    """Returns a published score with one decimal, or two if the paper has them; empty if there is none."""
    if figure is None:
        return ""
    return f"{figure:.1f}" if round(figure, 1) == round(figure, 2) else f"{figure:.2f}"


def plot_scores(results: Results, path: Path, title: str, highlighted: str | None = None) -> None:
    """Draws the reported score of each language or pair, chance, and published figures that were measured alike."""
    own = results.protocol
    published = {
        column_title(item, own): item["figures"].get(results.metric, {})
        for item in results["published"]
        if not marks(own, item.get("pooling"))
        and all(item.get(name) in (None, getattr(own, name)) for name in ("method", "layer"))
    }
    average = results.average["mean"] if results.names[1:] else None
    unit = "%" if own.metric.unit == "percent" else own.metric.unit
    bars = {"": results.languages}
    plot_bars(bars, path, title, f"{results.metric} ({unit})", average, results.chances, published, highlighted)


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
    """Returns caveats about the published scores."""
    return list(dict.fromkeys(f"published, {item.paper}, {item.table}: {item.note}" for item in published if item.note))
