"""Runs of one task side by side: a table, a plot, and every difference in how they were trained and measured.

The plot has BLEU on dev over the steps for translation, scores over layers for word alignment (XLM-Align, Figure 2;
MetaXLM, Figure 4) and retrieval (MetaXLM, Figure 3), and scores by language for other tasks; means and standard
deviations over seeds.
"""

from pathlib import Path
from typing import Any

import pandas

from finetuning.results.differences import check_alike, differences, join_seeds
from finetuning.results.files import markdown_list, markdown_table, pivot, print_table
from finetuning.results.plots import plot_bars, plot_lines
from finetuning.results.table import AVERAGE, Results, read_results, summary
from finetuning.tasks.translation.results import curve_of
from zoo_core.provenance import write_csv

# Most languages, or pairs, side by side on a page. If there are more, each is a row of the table, and the plot over
# layers has only their average.
MOST_LANGUAGES = 12


def read_runs(folders: dict[str, list[str]]) -> dict[str, Results]:
    """The results of every run by its name, seeds of several folders as one.

    Raises ValueError for a folder without results, folders that are no seeds of one experiment, and runs of different
    tasks or languages.
    """
    runs = {}
    for name, paths in folders.items():
        parts = [read_results(path) for path in paths]
        check_alike(dict(zip(paths, parts, strict=True)))
        runs[name] = join_seeds(f"--run {name}", parts)
    if runs:
        check_alike(runs)
    return runs


def write_comparison(runs: dict[str, Results], folder: Path) -> None:
    """Writes comparison.md, comparison.csv and comparison.png into a folder, and shows the table."""
    folder.mkdir(parents=True, exist_ok=True)
    first = next(iter(runs.values()))
    title, table, lines = first.title, score_table(runs), differences(runs)
    plot(runs, folder / "comparison.png", title)
    page = [f"# {title}", "", *markdown_table(table), "", *markdown_list("What differs between the runs", lines)]
    (folder / "comparison.md").write_text("\n".join([*page, "![comparison](comparison.png)", ""]), encoding="utf-8")
    tables = pandas.concat([results.frame(run=name) for name, results in runs.items()])
    write_csv(folder / "comparison.csv", tables)
    print_table(title, table, [])
    for line in lines:
        print(f"differs: {line}")
    print(f"written: {folder}/comparison.md, comparison.csv, comparison.png")


def score_table(runs: dict[str, Results]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: runs, with their score in each language, the average of several, and the seeds behind it.

    Of many languages, rows and columns are exchanged.
    """
    by_run: dict[str, dict[str, Any]] = {
        name: {language: results.of(language) for language in results.with_average}
        | {"seeds": ", ".join(map(str, results["seeds"]))}
        for name, results in runs.items()
    }
    names = next(iter(runs.values())).with_average
    if len(names) > MOST_LANGUAGES:
        return pivot("run", by_run)
    return pivot("run", {column: {run: cells[column] for run, cells in by_run.items()} for column in [*names, "seeds"]})


def plot(runs: dict[str, Results], path: Path, title: str) -> None:
    """Scores over layers or over the steps of training where there are any, else bars by language."""
    first = next(iter(runs.values()))
    if first.layers[1:]:
        names = sorted(first.with_average, key=lambda name: name != AVERAGE)
        names = names if len(names) <= MOST_LANGUAGES else [AVERAGE]
        panels = {
            name: {
                run: {layer: results.of(name, layer=layer) for layer in results.layers} for run, results in runs.items()
            }
            for name in names
        }
        levels = {name: ("chance", chance) for name in names if (chance := first.chance(name)) is not None}
        plot_lines(panels, path, title, "layer", "score (%)", levels, same_scale=False)
        return
    curves = {name: _bleu_of(results) for name, results in runs.items()}
    if all(curves.values()):
        plot_lines({"": curves}, path, first["task"], "steps", "sacreBLEU on dev")
    else:
        groups = {name: results.languages for name, results in runs.items()}
        plot_bars(groups, path, title, "score (%)", chance=first.chances)


def _bleu_of(results: Results) -> dict[int, Any]:
    """BLEU on dev at each step at which all seeds were evaluated; empty where dev was not translated."""
    by_seed = curve_of(results, "bleu").values()
    steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    return {step: summary(curve[step] for curve in by_seed) for step in steps}
