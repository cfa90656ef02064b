"""Compares results: a table, a plot, and every difference in how the runs were trained and measured.

    python -m finetuning.compare --output runs/multi30k_compared \\
        --run VECO runs/multi30k-veco --run XLM runs/multi30k-xlm --run random runs/multi30k-random
    python -m finetuning.compare --output runs/xtreme_compared \\
        --run XLM runs/xlm/xtreme --run MetaXLM runs/metaxlm/xtreme

--run takes a name and an output folder of finetuning/run.py, or several: seeds of one task that were run separately.
The command writes comparison.md, comparison.csv (one row per score) and comparison.png. The plot has BLEU on dev over
the steps for translation, scores over layers for word alignment (XLM-Align, Figure 2; MetaXLM, Figure 4) and retrieval
(MetaXLM, Figure 3), and scores by language for other tasks. Of suites, the table has a row per task.
"""

from pathlib import Path
from typing import Any

import pandas

from finetuning import suite
from finetuning.page import Table, curves_of, markdown_list, markdown_table, print_table
from finetuning.plots import plot_bars, plot_lines
from finetuning.results import (
    AVERAGE,
    Results,
    check_alike,
    differences,
    join_seeds,
    load_results,
    read_results,
    summary,
    with_deviation,
)
from zoo_core.command_line import CommandParser, user_errors
from zoo_core.provenance import write_csv
from zoo_core.recipes import load_recipe

MOST_PANELS = 12  # languages side by side in a plot over layers; of more, only their average
# Facts that must be equal for comparable scores of one task, for any models and any training.
MEASURED = tuple(
    f"protocol.{field}"
    for field in (
        "evaluation_data", "evaluated_split", "evaluated_rows", "max_length", "doc_stride", "metric", "pooling",
        "similarity", "margin", "neighbors", "dev_data", "dev_fraction",
    )
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    metavar, text = ("NAME", "DIR"), "a name and its result folders"
    parser.add_argument("--run", nargs="+", action="append", required=True, metavar=metavar, help=text)
    parser.add_argument("--output", required=True, metavar="DIR", help="where the comparison is written")
    options = parser.parse_args(argv)
    with user_errors():
        folders = {name: paths for name, *paths in options.run}
        if len(folders) < len(options.run) or not all(folders.values()):
            raise ValueError("--run needs NAME DIR [DIR ...], and each name once.")
        file, output = Path(options.run[0][1]) / "results.json", Path(options.output)
        is_suite = file.is_file() and load_results(file).get("kind") == suite.KIND
        if is_suite:
            compare_suites(folders, output)
        else:
            write_comparison(read_runs(folders), output)


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
    check_alike(runs)
    return runs


def write_comparison(runs: dict[str, Results], folder: Path) -> None:
    """Writes comparison.md, comparison.csv and comparison.png into a folder, and shows the table."""
    folder.mkdir(parents=True, exist_ok=True)
    title, table, lines = next(iter(runs.values())).title, score_table(runs), differences(runs)
    plot(runs, folder / "comparison.png", title)
    page = [f"# {title}", "", *markdown_table(table), "", *markdown_list("What differs between the runs", lines)]
    (folder / "comparison.md").write_text("\n".join([*page, "![comparison](comparison.png)", ""]), encoding="utf-8")
    write_csv(folder / "comparison.csv", pandas.concat([results.frame(run=name) for name, results in runs.items()]))
    print_table(title, table, [f"differs: {line}" for line in lines], f"{folder}/comparison.md, csv, png")


def score_table(runs: dict[str, Results]) -> Table:
    """Header and rows: languages, their average and the seeds; runs."""
    names = next(iter(runs.values())).with_average
    rows = [[name, *(with_deviation(results.of(name)) for results in runs.values())] for name in names]
    seeds = ["seeds", *(", ".join(map(str, results["seeds"])) for results in runs.values())]
    return ["", *runs], [*rows, seeds]


def plot(runs: dict[str, Results], path: Path, title: str) -> None:
    """Scores over layers or over the steps of training where there are any, else bars by language."""
    first = next(iter(runs.values()))
    curves = {name: _bleu_of(results) for name, results in runs.items()}
    if first.layers[1:]:
        names = sorted(first.with_average, key=lambda name: name != AVERAGE)
        panels = {
            name: {run: {layer: r.of(name, layer=layer) for layer in r.layers} for run, r in runs.items()}
            for name in (names if len(names) <= MOST_PANELS else [AVERAGE])
        }
        chance = {name: level for name in panels if (level := first.chance(name)) is not None}
        plot_lines(panels, path, title, "layer", "score (%)", chance)
    elif all(curves.values()):
        plot_lines({"": curves}, path, title, "steps", "sacreBLEU on dev")
    else:
        chance = {name: level for name in first.names if (level := first.chance(name)) is not None}
        plot_bars({name: results.languages for name, results in runs.items()}, path, title, "score (%)", chance=chance)


def _bleu_of(results: Results) -> dict[int, Any]:
    """BLEU on dev at each step at which all seeds were evaluated; empty where dev was not translated."""
    by_seed = list(curves_of(results).values())
    steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
    return {step: summary(curve[step] for curve in by_seed) for step in steps}


def compare_suites(folders: dict[str, list[str]], output: Path) -> None:
    """Writes the table of suites with a row per task.

    Raises ValueError for folders without a suite's results, of different suites or models, and for runs of a task that
    were not measured in the same way, as MEASURED lists it.
    """
    suites, runs = {}, {}
    for name, (folder, *others) in folders.items():
        content = load_results(Path(folder) / "results.json")
        if others or content.get("kind") != suite.KIND:
            raise ValueError(f"--run {name} names no folder of `finetuning/run.py --suite`, or several. Name one.")
        suites[name] = load_recipe(suite.Suite, content.get("suite", {}), [])
        tasks = {task.name: Path(folder) / task.name for task in suites[name].tasks}
        runs[name] = {task: read_results(of) for task, of in tasks.items() if (of / "results.json").is_file()}
        suite.check_one_model(folder, runs[name])
    first = next(iter(suites.values()))
    if other := next((o for o in suites.values() if [t.name for t in o.tasks] != [t.name for t in first.tasks]), None):
        raise ValueError(f"The runs are of the suites {first.name} and {other.name}. Compare runs of one suite.")
    for task in [task.name for task in first.tasks]:
        lines = differences({name: found[task] for name, found in runs.items() if task in found})
        if lines := [line for line in lines if line.startswith(MEASURED)]:
            raise ValueError(f"{task} was measured by different protocols: {'; '.join(lines)}.")
    output.mkdir(parents=True, exist_ok=True)
    suite.write(first, runs, output / "comparison", {})


if __name__ == "__main__":
    main()
