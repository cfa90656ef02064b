"""Pages, tables and the plot of results, made from a results.json and the published rows that it names."""

import math
import re
from pathlib import Path
from typing import Any

from finetuning.plots import plot_bars, plot_lines
from finetuning.published import Reference, look_up
from finetuning.results import AVERAGE, LABEL_SCORES, Results, Summary, run_name, summary, with_deviation
from zoo_core.provenance import write_csv, write_json

Table = tuple[list[str], list[list[str]]]  # header and rows
OTHERS, GAP = "mean of others", "transfer gap"

FIGURE = re.compile(r"[*\s\d.,±+/%†()x-]*")  # a cell of figures; an empty one is among them


def references_of(results: Results) -> list[tuple[dict[str, Any], Reference]]:
    """The published rows that the results name, with their scores."""
    metric = "target_to_source" if results["kind"] == "retrieval" else results.metric
    return [
        (item, look_up(item, results["task"], results["kind"], metric, results.names)) for item in results["published"]
    ]


def lines_of(results: Results, with_model: bool = True) -> list[str]:
    """Returns how the scores were computed, one fact per line; with the model's name if `with_model`."""
    lines = [*results.get("lines", []), f"seeds: {', '.join(map(str, results['seeds']))}"]
    processes = dict.fromkeys(map(str, filter(None, results.get("processes", []))))
    if processes.keys() - {"1"}:
        lines.append(f"processes: {', '.join(processes)}")
    if with_model:
        prints = ", ".join(fingerprint[:19] for fingerprint in results["model"]["fingerprint"].split("+"))
        lines.append(f"model: {results['model']['folder']} ({prints})")
    return lines


def warnings_of(results: Results) -> list[str]:
    """The warnings of the results, and what a reader must know of the published rows."""
    lines, found = list(results["warnings"]), references_of(results)
    if before := results.protocol.fine_tuned_before:
        lines.append(f"the model was fine-tuned before, on {', '.join(before)}")
    if differs := differences_to(results, [published.pooling for _, published in found]) if found else []:
        lines.append(f"published scores were measured in another way: {', '.join(differs)}")
    return lines + [f"published, {published.title}: {published.note}" for _, published in found if published.note]


def joint_warnings(runs: dict[str, Results]) -> list[str]:
    """Returns the warnings of all runs, each once, with the names of the runs unless all have it."""
    lines: dict[str, list[str]] = {}
    for name, results in runs.items():
        for line in dict.fromkeys(warnings_of(results)):
            lines.setdefault(line, []).append(name)
    return [line if len(names) == len(runs) else f"{', '.join(names)}: {line}" for line, names in lines.items()]


def figures_of(results: Results, **columns: Any) -> list[dict[str, Any]]:
    """The reported scores, a row for each seed and language, their average, the mean of others and the transfer gap."""
    found = results.languages | ({AVERAGE: results.average} if results.names[1:] else {})
    found |= {OTHERS: results.transfer["others"], GAP: results.transfer["gap"]} if results.transfer else {}
    return [{**columns, "figure": name, "value": value} for name, of in found.items() for value in of["scores"]]


def pivot(rows: list[dict[str, Any]], index: list[str], column: str) -> dict[tuple, dict[str, Summary]]:
    """The values of rows by those of the columns of `index`, and by `column`."""
    cells: dict[tuple, dict[str, list[float]]] = {}
    for row in rows:
        cells.setdefault(tuple(row[name] for name in index), {}).setdefault(row[column], []).append(row["value"])
    return {place: {name: summary(values) for name, values in of.items()} for place, of in cells.items()}


def as_table(corner: list[str], cells: dict[tuple, dict[str, Summary]]) -> Table:
    """Header and rows of a pivot."""
    names = dict.fromkeys(name for of in cells.values() for name in of)
    return [*corner, *names], [
        [*map(str, place), *(with_deviation(of[name]) if name in of else "" for name in names)]
        for place, of in cells.items()
    ]


def is_at_chance(results: Results) -> bool:
    """Whether a seed is at chance, or at 0, in a language."""
    of_seeds = [line for line in results["warnings"] if line.startswith("seed ")]
    return any(" at chance" in line or " is 0 in " in line for line in of_seeds)


def differences_to(results: Results, poolings: list[str | None]) -> list[str]:
    """In a few words each, how the evaluation is not that of published rows with this pooling of sentence vectors."""
    own = results.protocol.pooling
    others = dict.fromkeys(pooling for pooling in poolings if own and pooling not in (None, own))
    return [*(results.protocol.differs or []), *(f"pooling {pooling.replace('_', ' ')}" for pooling in others)]


def score_table(results: Results) -> Table:
    """Header and rows: languages or pairs, their average and the transfer gap; scores, seeds, chance, published scores.

    If there are scores by method and layer, the reported layer of each method, and the layers of published scores.
    """
    own, published, seeds = results.protocol, references_of(results), results["seeds"]
    places = [(method, own.layer) for method in results.methods]
    places += [
        (item["method"], item["layer"])
        for item, _ in published
        if "layer" in item and item["method"] in results.methods and item["layer"] in results.layers
    ]
    rows: list[dict[str, str]] = []
    for language in results.with_average:
        for method, layer in dict.fromkeys(places):
            row = {"language": f"**{language}**" if language == AVERAGE else language}
            row |= {"method": method} if results.methods[1:] else {}
            row |= {"layer": str(layer)} if layer is not None else {}
            row |= {metric: with_deviation(results.of(language, metric, method, layer)) for metric in results.metrics}
            scores = results.of(language, method=method, layer=layer)["scores"]
            if seeds[1:]:  # the column of a single seed would repeat the mean
                row |= {f"seed {seed}": f"{score:.1f}" for seed, score in zip(seeds, scores, strict=True)}
            if (chance := results.chance(language)) is not None:
                row["guessing"] = f"{chance:.1f}"
            for item, reference in published:
                at = item.get("layer") if item.get("layer") in results.layers else own.layer
                fits = item.get("method") in (None, method) and at == layer
                where = f" ({item['method']}, layer {item['layer']})" if "layer" in item else ""
                for number, (metric, figures) in enumerate(reference.scores.items()):
                    average = None if number else reference.average
                    figure = average if language == AVERAGE else figures.get(language)
                    title = f"{reference.title}{where}"
                    title = title if metric == results.metric else f"{metric}: {title}"
                    row[title] = shown(figure) if fits else ""
            rows.append(row)
    if (gap := results.transfer_gap) is not None:
        name = f"gap ({results['source_language']} - mean of others)"
        rows.append({"language": name, results.metric: f"{gap:.1f}"})
    columns = [column for column in rows[0] if any(row.get(column) for row in rows)]
    return columns, [[row.get(column, "") for column in columns] for row in rows]


def layer_tables(results: Results) -> dict[str, Table]:
    """By method, the scores of each layer, for a single language or the average."""
    language, metrics = results.with_average[-1], results.metrics
    return {
        f"{method}, by layer": (
            ["layer", *metrics],
            [
                [str(layer), *(with_deviation(results.of(language, metric, method, layer)) for metric in metrics)]
                for layer in results.layers
            ],
        )
        for method in results.methods
    }


def label_tables(results: Results) -> dict[str, Table]:
    """By title, the scores of each label: their average over languages, and F1 in each language; means over seeds.

    In a language where a label does not occur, it has no score.
    """
    import pandas

    if "label_scores" not in results:
        return {}
    frame = pandas.DataFrame(results["label_scores"])
    means = frame[frame["support"] > 0].groupby(["language", "label"], sort=False)[list(LABEL_SCORES)].mean()
    average = means.groupby("label", sort=False).mean().reindex(frame["label"].unique())
    total = frame.groupby(["language", "label"], sort=False)["support"].first().groupby("label").sum()
    rows = [[label, *map(_cell, scores), f"{total[label]:,}"] for label, *scores in average.itertuples()]
    tables = {"Scores by label": (["label", *LABEL_SCORES, results.protocol.label_unit], rows)}
    if results.names[1:]:
        f1 = means["f1"].unstack("language").reindex(index=average.index, columns=results.names)
        rows = [[name, *map(_cell, scores)] for name, *scores in f1.itertuples()]
        tables["F1 by label and language"] = (["label", *f1.columns], rows)
    return tables


def page_of(results: Results, picture: str) -> str:
    """The results as a Markdown page: table, warnings, protocol, plot, scores by layer and by label."""
    lines = [f"# {results['task']}, {results.setting}", "", *markdown_table(score_table(results)), ""]
    lines += markdown_list("Warnings", warnings_of(results)) + markdown_list("Protocol", lines_of(results))
    lines += [f"![scores]({picture})", ""]
    by_layer = layer_tables(results) if results.layers[1:] else {}
    for heading, table in (by_layer | label_tables(results)).items():
        lines += [f"## {heading}", "", *markdown_table(table), ""]
    return "\n".join(lines)


def write_results(results: Results, folder: Path) -> None:
    """Writes scores.png, results.md, results.csv and results.json into a folder, and prints the table.

    The JSON is written last: a run counts as finished only if it exists.
    """
    draw(results, folder / "scores.png")
    (folder / "results.md").write_text(page_of(results, "scores.png"), encoding="utf-8")
    write_csv(folder / "results.csv", results.frame_with_labels())
    write_json(folder / "results.json", results)
    title = f"{results['task']}, {results.setting}: {results['model']['folder']}"
    table = score_table(Results({**results, "published": []}))  # more columns do not fit
    print_table(title, table, warnings_of(results), f"{folder}/results.json, md, csv and scores.png")


def draw(results: Results, path: Path) -> None:
    """Draws scores over layers (XLM-Align, Figure 2; MetaXLM, Figures 3, 4), BLEU over steps, or bars by language."""
    own, title = results.protocol, f"{results['task']}, {results.setting}: {run_name(results['model']['folder'])}"
    label = f"{results.metric} (%), {'higher' if results.is_higher_better else 'lower'} is better"
    if results.layers[1:]:
        panels = {method: {"method": method} for method in results.methods}
        if len(panels) == 1:
            panels, label = {metric: {"metric": metric} for metric in results.metrics}, "score (%)"
        lines = {
            panel: {
                name: {layer: results.of(name, layer=layer, **of) for layer in results.layers}
                for name in results.with_average
            }
            for panel, of in panels.items()
        }
        chance = {panel: results.chance(results.with_average[-1], of.get("metric")) for panel, of in panels.items()}
        chance = {panel: level for panel, level in chance.items() if level is not None}
        plot_lines(lines, path, title, "layer", label, chance, (own.layer, f"reported: {own.layer}"))
    elif curves := curves_of(results):
        plot_lines({"": curves}, path, title, "steps", "sacreBLEU on dev")
    else:
        alike = [
            reference
            for item, reference in references_of(results)
            if not differences_to(results, [reference.pooling]) and item.get("layer") in (None, own.layer)
        ]
        published = {reference.title: reference.scores.get(results.metric, {}) for reference in alike}
        average = results.average["mean"] if results.names[1:] else None
        chance = {name: level for name in results.names if (level := results.chance(name)) is not None}
        source = results.get("source_language")
        plot_bars({"": results.languages}, path, title, label, average, chance, published, source)


def curves_of(results: Results) -> dict[str, dict[int, float]]:
    """BLEU on dev while a translation model was trained, by seed and step; empty where it was not measured."""
    curves = {
        f"seed {seed}": {point["step"]: point["bleu"] for point in curve if point["bleu"] is not None}
        for seed, curve in results.get("curve", {}).items()
    }
    return {seed: curve for seed, curve in curves.items() if curve}


def shown(figure: float | None) -> str:
    """Returns a published score with one decimal, or two if the paper has them; empty if there is none."""
    if figure is None:
        return ""
    return f"{figure:.1f}" if round(figure, 1) == round(figure, 2) else f"{figure:.2f}"


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1f}"


def table_names(entries: list[dict[str, Any]]) -> str:
    """`google/xtreme PAWS-X.de, PAWS-X.en test`: tables of one dataset and split together.

    With translations in another table: `bible en test with bible de test`.
    """
    groups: dict[tuple, list[str]] = {}
    for entry in entries:
        path = Path(entry["path"])
        name = path.name if path.is_absolute() else str(path)  # without the folders of this machine
        if entry.get("where"):
            name += f" [{', '.join(f'{column}: {value}' for column, value in entry['where'].items())}]"
        target = f"with {table_names([entry['target']])}" if entry.get("target") else None
        groups.setdefault((name, entry["split"], target), []).extend(filter(None, [entry["config"]]))
    return "; ".join(
        " ".join(filter(None, (name, ", ".join(configs), split, target)))
        for (name, split, target), configs in groups.items()
    )


def markdown_table(table: Table) -> list[str]:
    """The lines of a Markdown table."""
    columns, rows = table
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(re.sub(r"[|<]", r"\\\g<0>", cell) for cell in line) + " |" for line in lines]


def markdown_list(title: str, lines: list[str]) -> list[str]:
    """A heading and its list; nothing for no lines."""
    return [f"## {title}", "", *(f"- {line}" for line in lines), ""] if lines else []


def print_table(title: str, table: Table, notes: list[str], written: str = "") -> None:
    """Prints the table, with columns of figures aligned to the right, the notes, and the names of written files."""
    from rich.console import Console
    from rich.table import Table as ScreenTable

    console = Console(highlight=False)
    columns, rows = table
    screen = ScreenTable(title=title)
    for position, column in enumerate(columns):
        is_figures = all(FIGURE.fullmatch(row[position]) for row in rows)
        screen.add_column(column, justify="right" if is_figures else "left")
    for row in rows:
        screen.add_row(*(cell.strip("*") for cell in row))
    console.print(screen)
    for note in notes:
        console.print(f"warning: {note}", style="yellow", markup=False, soft_wrap=True)
    if written:
        console.print(f"written: {written}", markup=False, soft_wrap=True)
