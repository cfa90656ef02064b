"""Pages, tables and the plot of results, made from a results.json and the published rows that it names."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas

from crosslingual_zoo.finetuning.facts import data_lines, lines_of, setting_in_words, shown_facts
from crosslingual_zoo.finetuning.plots import plot_bars, plot_lines
from crosslingual_zoo.finetuning.published import Reference, look_up
from crosslingual_zoo.finetuning.results import AVERAGE, Results, Summary, run_name, summary, with_deviation
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.provenance import write_csv, write_json

if TYPE_CHECKING:
    from crosslingual_zoo.finetuning.data.task_tables import Data

Cells = tuple[list[str], list[list[str]]]  # header and rows
References = list[tuple[dict[str, Any], Reference]]  # published rows that results name, and their scores
METRICS = {
    "aer": "alignment error rate",
    "bleu": "BLEU",
    "exact_match": "exact match",
    "f1": "F1",
    "sacrebleu": "BLEU",
}  # in plots
WHOLE_FILE = "whole file"  # the split of a table that is a file
MOST_PANELS = 12  # languages and their average, side by side in a plot over layers; of more, only the average


def references_of(results: Results) -> References:
    """The published rows that the results name, with their scores."""
    references = []
    for item in results["published"]:
        reference = look_up(item, results["task"], results["kind"], results.metric, results.names)
        references.append((item, reference))
    return references


def warnings_of(results: Results, references: References) -> list[str]:
    """The warnings of the results, and what a reader must know of the published rows."""
    protocol = results["protocol"]
    lines = [*results["warnings"], *results.at_chance()]
    if protocol["fine_tuned_before"]:
        lines.append(f"the model was fine-tuned before, on {', '.join(protocol['fine_tuned_before'])}")
    differs = list(protocol.get("differs", []))
    for _, reference in references:
        if reference.pooling and protocol.get("pooling", reference.pooling) != reference.pooling:
            differs.append(f"pooling {reference.pooling.replace('_', ' ')}")
    if references and differs:
        lines.append(f"published scores were measured in another way: {', '.join(dict.fromkeys(differs))}")
    for _, reference in references:
        if reference.note:
            lines.append(f"published, {reference.title}: {reference.note}")
    return lines


def joint_warnings(runs: dict[str, Results]) -> list[str]:
    """Returns the warnings of all runs, each once, with the names of the runs unless all have it."""
    runs_by_line: dict[str, list[str]] = {}
    for name, results in runs.items():
        for line in dict.fromkeys(warnings_of(results, references_of(results))):
            runs_by_line.setdefault(line, []).append(name)
    lines = []
    for line, names in runs_by_line.items():
        lines.append(line if len(names) == len(runs) else f"{', '.join(names)}: {line}")
    return lines


def as_cells(corner: str, columns: dict[str, dict[str, str]]) -> Cells:
    """Header and rows of columns, each with texts by row; some may be missing."""
    names = dict.fromkeys(name for texts in columns.values() for name in texts)
    rows = []
    for name in names:
        rows.append([name, *(texts.get(name, "") for texts in columns.values())])
    return [corner, *columns], rows


class ScoredRow(NamedTuple):
    """A row of a table of scores: of a language or a mean, by one method and one layer."""

    name: str
    method: str | None
    layer: int | None


def score_table(results: Results, references: References) -> Cells:
    """Header and rows: languages or pairs, and means over them; scores, chance, published scores.

    If there are scores by method and layer, the reported layer of each method, and the layers of published scores.
    """
    sources = _scored_layers(results, references)
    titles: dict[ScoredRow, str] = {}
    for name in results.figures:
        for method, layer in sources:
            title = f"**{name}**" if name == AVERAGE else name
            if len(sources) > 1:
                title += f" ({method}, layer {layer})"
            titles[ScoredRow(name, method, layer)] = title
    columns: dict[str, dict[str, str]] = {}
    for metric in results.metrics:
        columns[metric] = {}
        for row, title in titles.items():
            columns[metric][title] = with_deviation(results.of(row.name, metric, row.method, row.layer))
    guessing = {title: results.chance(row.name) for row, title in titles.items()}
    columns["guessing"] = {title: f"{score:.1f}" for title, score in guessing.items() if score is not None}
    for item, reference in references:
        columns |= _published_columns(results, item, reference, titles)
    return as_cells("language", {title: texts for title, texts in columns.items() if texts})


def _scored_layers(results: Results, references: References) -> list[tuple[str | None, int | None]]:
    """The methods and layers of the table, each once."""
    pairs = [(method, results["protocol"].get("layer")) for method in results.methods]
    for item, _ in references:
        if "method" in item and item["method"] in results.methods and item["layer"] in results.layers:
            pairs.append((item["method"], item["layer"]))
    return list(dict.fromkeys((method, layer) for method, layer in pairs if layer in results.layers))


def _published_columns(
    results: Results, item: dict[str, Any], reference: Reference, titles: dict[ScoredRow, str]
) -> dict[str, dict[str, str]]:
    """The columns of a published row: a column a metric, with texts in the rows of its method and layer."""
    method = item.get("method", results["protocol"].get("method"))
    layer = item.get("layer", results["protocol"].get("layer"))
    columns = {}
    for metric, scores in reference.scores.items():
        column = reference.title
        if metric != results.metric:
            column = f"{metric}: {column}"
        if "method" in item:
            column += f" ({method}, layer {layer})"
        columns[column] = {}
        for row, title in titles.items():
            if (row.method, row.layer) == (method, layer) and row.name in scores:
                # with two decimals where the paper has them
                columns[column][title] = f"{scores[row.name]:.2f}".removesuffix("0")
    return columns


def write_results(results: Results, folder: Path) -> None:
    """Writes scores.png (unless it would show one number), results.md, results.csv and results.json; prints the table.

    The JSON is written last: a run counts as finished only if it exists.
    """
    model = results["model"]
    references = references_of(results)
    title = f"{results['task']}, {setting_in_words(results.setting)}: {model['folder']}"
    fingerprint = model["fingerprint"].rpartition("@")[2][:19]  # "sha256:" and 12 digits, or 19 of a commit
    facts = [*lines_of(shown_facts(results)), *results["notes"]]
    facts.append(f"seeds: {', '.join(map(str, results['seeds']))}")
    facts.append(f"model: {model['folder']} ({fingerprint})")
    lists = {"Warnings": warnings_of(results, references), "Protocol": facts}
    picture = draw({run_name(model["folder"]): results}, folder / "scores.png")
    write_page(folder / "results", title, score_table(results, references), lists, picture, [results.frame()])
    write_json(folder / "results.json", results)


def draw(runs: dict[str, Results], path: Path) -> Path | None:
    """Draws scores over layers (XLM-Align, Figure 2; MetaXLM, Figures 3, 4), BLEU over steps, or bars by language.

    Over layers, each language has a panel, or their average alone if they are many, and each run or method a line.
    Returns `path`; None for a single number, which is not drawn.
    """
    first = next(iter(runs.values()))
    if len(first.layers) > 1:
        x_label = f"layer (reported: {first['protocol']['layer']})"
        return plot_lines(_by_layer(runs), path, plot_title(runs, "by layer"), x_label, axis_label(first))
    curves = _bleu_curves(runs)
    if curves:
        return plot_lines({"": curves}, path, plot_title(runs, "during training"), "steps", "BLEU on development pairs")
    bars = {run: results.languages for run, results in runs.items()}
    return plot_bars(bars, path, plot_title(runs, "by language"), axis_label(first))


def _by_layer(runs: dict[str, Results]) -> dict[str, dict[str, dict[int, Summary]]]:
    """Scores over layers as {language: {run, or method of a single run: {layer: summary}}}."""
    first = next(iter(runs.values()))
    panels: dict[str, dict[str, dict[int, Summary]]] = {}
    names = [AVERAGE]
    if len(first.names) < MOST_PANELS:
        names = first.with_average[::-1]
    for name in names:
        panels[name] = {}
        if len(runs) > 1:
            for run, results in runs.items():
                panels[name][run] = {layer: results.of(name, layer=layer) for layer in results.layers}
        else:
            for method in first.methods:
                panels[name][method] = {layer: first.of(name, method=method, layer=layer) for layer in first.layers}
    return panels


def _bleu_curves(runs: dict[str, Results]) -> dict[str, dict[int, Summary]]:
    """BLEU on development pairs by step, a line for each seed of each run."""
    curves = {}
    for run, results in runs.items():
        for seed, curve in results["curves"].items():
            with_bleu = [point for point in curve if point["bleu"] is not None]
            if with_bleu:
                curves[f"{run}, seed {seed}"] = {point["step"]: summary([point["bleu"]]) for point in with_bleu}
    return curves


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


def markdown_table(table: Cells) -> list[str]:
    """The lines of a Markdown table. Its cells are Markdown, in which "|" and "<" are escaped if they are not yet."""
    columns, rows = table
    lines = []
    for cells in [columns, ["---"] * len(columns), *rows]:
        escaped = [re.sub(r"(\\.)|[|<]", _escaped, cell) for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    return lines


def _escaped(match: re.Match[str]) -> str:
    is_escaped_already = match[1] is not None
    return match[0] if is_escaped_already else f"\\{match[0]}"


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
        if lines:
            page += [f"## {heading}", "", *(f"- {line}" for line in lines), ""]
    written = [f"{path}.md", "csv"]
    if picture:
        page += [f"![scores]({picture.name})", ""]
        written.append(picture.name)
    path.with_suffix(".md").write_text("\n".join(page), encoding="utf-8")
    write_csv(path.with_suffix(".csv"), pandas.concat(frames))
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


def print_data(task: str, data: "Data") -> None:
    """Prints the columns of counts that are not all 0, and how many rows or words have each label."""
    lines = data_lines(data.protocol)
    names = getattr(data, "label_names", None)
    if names:
        parts = {"train": {"all": data.train}, "dev": data.dev, "evaluation": data.evaluation}
        for line in lines:
            rows = parts[line["part"]][line["language"]]
            count_by_label = pandas.Series(rows["labels"][:]).explode().value_counts()
            texts = [f"{names[label]} {count:,}" for label, count in count_by_label.items() if label != IGNORED]
            line["labels"] = ", ".join(texts)
    table = pandas.DataFrame(lines)
    table = table.loc[:, table.astype(bool).any()].astype(str)
    print_table(f"{task}: data", ([*table], table.to_numpy().tolist()), data.warnings)
