"""Pages, tables and the plot of results, made from a results.json and the published rows that it names."""

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas

from crosslingual_zoo.finetuning.plots import plot_bars, plot_lines
from crosslingual_zoo.finetuning.published import Reference, look_up
from crosslingual_zoo.finetuning.results import AVERAGE, Results, run_name, summary, with_deviation
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.provenance import write_csv, write_json

if TYPE_CHECKING:
    from crosslingual_zoo.finetuning.data.task_tables import Data

Cells = tuple[list[str], list[list[str]]]  # header and rows
METRICS = {
    "aer": "alignment error rate",
    "bleu": "BLEU",
    "exact_match": "exact match",
    "f1": "F1",
    "sacrebleu": "BLEU",
}  # in plots
WHOLE_FILE = "whole file"  # the split of a table that is a file
MOST_PANELS = 12  # languages and their average, side by side in a plot over layers; of more, only the average


def references_of(results: Results) -> list[tuple[dict[str, Any], Reference]]:
    """The published rows that the results name, with their scores."""
    task = results["task"], results["kind"], results.metric, results.names
    return [(item, look_up(item, *task)) for item in results["published"]]


def warnings_of(results: Results) -> list[str]:
    """The warnings of the results, and what a reader must know of the published rows."""
    lines, own = [*results["warnings"], *results.at_chance()], results["protocol"]
    found = [of for _, of in references_of(results)]
    if own["fine_tuned_before"]:
        lines.append(f"the model was fine-tuned before, on {', '.join(own['fine_tuned_before'])}")
    others = {of.pooling: None for of in found if of.pooling and own.get("pooling", of.pooling) != of.pooling}
    differs = [*own.get("differs", []), *(f"pooling {pooling.replace('_', ' ')}" for pooling in others)]
    if found and differs:
        lines.append(f"published scores were measured in another way: {', '.join(differs)}")
    return lines + [f"published, {reference.title}: {reference.note}" for reference in found if reference.note]


def joint_warnings(runs: dict[str, Results]) -> list[str]:
    """Returns the warnings of all runs, each once, with the names of the runs unless all have it."""
    lines: dict[str, list[str]] = {}
    for name, results in runs.items():
        for line in dict.fromkeys(warnings_of(results)):
            lines.setdefault(line, []).append(name)
    return [line if len(names) == len(runs) else f"{', '.join(names)}: {line}" for line, names in lines.items()]


def as_cells(corner: str, columns: dict[str, dict[str, str]]) -> Cells:
    """Header and rows of columns, each with texts by row; some may be missing."""
    rows = dict.fromkeys(row for of in columns.values() for row in of)
    return [corner, *columns], [[row, *(of.get(row, "") for of in columns.values())] for row in rows]


def score_table(results: Results) -> Cells:
    """Header and rows: languages or pairs, and means over them; scores, chance, published scores.

    If there are scores by method and layer, the reported layer of each method, and the layers of published scores.
    """
    own, published = results["protocol"], references_of(results)
    places = [(method, own.get("layer")) for method in results.methods]
    places += [(item["method"], item["layer"]) for item, _ in published if "method" in item]
    places = [place for place in dict.fromkeys(places) if place[0] in results.methods and place[1] in results.layers]
    rows = {}
    for name, (method, layer) in itertools.product(results.figures, places):
        where = f" ({method}, layer {layer})" if places[1:] else ""
        rows[name, method, layer] = (f"**{name}**" if name == AVERAGE else name) + where
    columns = {
        metric: {row: with_deviation(results.of(name, metric, *place)) for (name, *place), row in rows.items()}
        for metric in results.metrics
    }
    chance = {row: results.chance(name) for (name, *_), row in rows.items()}
    columns["guessing"] = {row: f"{score:.1f}" for row, score in chance.items() if score is not None}
    for item, reference in published:
        place = [item.get("method", own.get("method")), item.get("layer", own.get("layer"))]
        where = f" ({item['method']}, layer {item['layer']})" if "method" in item else ""
        for metric, figures in reference.scores.items():
            title = ("" if metric == results.metric else f"{metric}: ") + reference.title + where
            figures_there = {row: figures.get(name) for (name, *at), row in rows.items() if at == place}
            # with two decimals where the paper has them
            columns[title] = {row: f"{of:.2f}".removesuffix("0") for row, of in figures_there.items() if of is not None}
    return as_cells("language", {title: of for title, of in columns.items() if of})


def write_results(results: Results, folder: Path) -> None:
    """Writes scores.png (unless it had a single bar), results.md, results.csv and results.json, and prints the table.

    The JSON is written last: a run counts as finished only if it exists.
    """
    table, model = score_table(results), results["model"]
    title = f"{results['task']}, {results.setting.replace('_', '-')}: {model['folder']}"
    identity = model["fingerprint"].rpartition("@")[2][:19]
    run = f"seeds: {', '.join(map(str, results['seeds']))}", f"model: {model['folder']} ({identity})"
    lists = {"Warnings": warnings_of(results), "Protocol": [*results["lines"], *run]}
    picture = draw({run_name(model["folder"]): results}, folder / "scores.png")
    write_page(folder / "results", title, table, lists, picture, [results.frame()])
    write_json(folder / "results.json", results)


def draw(runs: dict[str, Results], path: Path) -> Path | None:
    """Draws scores over layers (XLM-Align, Figure 2; MetaXLM, Figures 3, 4), BLEU over steps, or bars by language.

    Over layers, each language has a panel, or their average alone if they are many, and each run or method a line.
    Returns `path`; None for a single number, which is not drawn.
    """
    first, curves = next(iter(runs.values())), {}
    for run, results in runs.items():
        for seed, curve in results.get("curve", {}).items():
            points = {point["step"]: summary([point["bleu"]]) for point in curve if point["bleu"] is not None}
            curves |= {f"{run}, seed {seed}": points} if points else {}
    if first.layers[1:]:
        lines = [(run, results, None) for run, results in runs.items()]
        lines = lines if lines[1:] else [(method, first, method) for method in first.methods]
        panels = {
            name: {
                line: {layer: results.of(name, None, method, layer) for layer in results.layers}
                for line, results, method in lines
            }
            for name in (first.with_average[::-1] if len(first.names) < MOST_PANELS else [AVERAGE])
        }
        x_label = f"layer (reported: {first['protocol']['layer']})"
        return plot_lines(panels, path, plot_title(runs, "by layer"), x_label, axis_label(first))
    if curves:
        return plot_lines({"": curves}, path, plot_title(runs, "during training"), "steps", "BLEU on development pairs")
    bars = {run: results.languages for run, results in runs.items()}
    return plot_bars(bars, path, plot_title(runs, "by language"), axis_label(first))


def plot_title(runs: dict[str, Results], by: str) -> str:
    """What a plot shows, as `e5 on xnli (test): accuracy by language`; of several runs, its legend has the names."""
    first = next(iter(runs.values()))
    split = first["protocol"]["evaluated_split"]
    data = first["task"] if split == WHOLE_FILE else f"{first['task']} ({split})"
    model = f"{next(iter(runs))} on " if len(runs) == 1 else ""
    return f"{model}{data}: {METRICS.get(first.metric, first.metric)} {by}"


def axis_label(results: Results) -> str:
    """The main metric, in percent."""
    lower = "" if results.is_higher_better else ", lower is better"
    return f"{METRICS.get(results.metric, results.metric)} (%){lower}"


def table_names(entries: list[dict[str, Any]]) -> str:
    """`google/xtreme PAWS-X.de, PAWS-X.en test`: tables of one dataset and split together.

    With translations in another table: `bible en test with bible de test`.
    """
    groups: dict[tuple, list[str]] = {}
    for entry in entries:
        path = Path(entry["path"])
        name = path.name if path.is_absolute() else str(path)  # without the folders of this machine
        name += "".join(f" [{column}: {value}]" for column, value in entry.get("where", {}).items())
        target = f" with {table_names([entry['target']])}" if entry.get("target") else ""
        groups.setdefault((name, entry["split"] + target), []).extend(filter(None, [entry["config"]]))
    return "; ".join(" ".join(filter(None, (name, ", ".join(of), rest))) for (name, rest), of in groups.items())


def markdown_table(table: Cells) -> list[str]:
    """The lines of a Markdown table. Its cells are Markdown, in which "|" and "<" are escaped if they are not yet."""
    columns, rows = table
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(re.sub(r"(\\.)|[|<]", _escaped, cell) for cell in line) + " |" for line in lines]


def _escaped(found: re.Match[str]) -> str:
    is_escaped_already = found[1] is not None
    return found[0] if is_escaped_already else f"\\{found[0]}"


def write_page(
    path: Path,
    title: str,
    table: Cells,
    lists: dict[str, list[str]],
    picture: Path | None,
    frames: list[pandas.DataFrame],
) -> None:
    """Writes `path`.md: a table, lists that are not empty, and the picture next to it if there is one; and `path`.csv.

    Prints the table, and the first list as warnings.
    """
    page = [f"# {title}", "", *markdown_table(table), ""]
    for heading, lines in lists.items():
        page += [f"## {heading}", "", *(f"- {line}" for line in lines), ""] if lines else []
    page += [f"![scores]({picture.name})", ""] if picture else []
    path.with_suffix(".md").write_text("\n".join(page), encoding="utf-8")
    write_csv(path.with_suffix(".csv"), pandas.concat(frames))
    written = [f"{path}.md", "csv", *([picture.name] if picture else [])]
    print_table(title, table, next(iter(lists.values())), ", ".join(written))


def print_table(title: str, table: Cells, notes: list[str], written: str = "") -> None:
    """Prints the table, the notes, and the names of written files."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    screen = Table(*table[0], title=title)
    for row in table[1]:
        screen.add_row(*(cell.replace("**", "") for cell in row))
    console.print(screen)
    for note in notes:
        console.print(f"warning: {note}", style="yellow", markup=False, soft_wrap=True)
    if written:
        console.print(f"written: {written}", markup=False, soft_wrap=True)


def print_data(task: str, lines: list[dict[str, Any]], data: "Data") -> None:
    """Prints the columns of counts that are not all 0, and how many rows or words have each label."""
    if names := getattr(data, "label_names", None):
        parts = {"train": {"all": data.train}, "dev": data.dev, "evaluation": data.evaluation}
        for line in lines:
            labels = pandas.Series(parts[line["part"]][line["language"]]["labels"][:]).explode().value_counts()
            counts = (f"{names[label]} {count:,}" for label, count in labels.items() if label != IGNORED)
            line["labels"] = ", ".join(counts)
    table = pandas.DataFrame(lines)
    table = table.loc[:, table.astype(bool).any()].astype(str)
    print_table(f"{task}: data", ([*table], table.to_numpy().tolist()), data.warnings)
