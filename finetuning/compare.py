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

import re
from pathlib import Path

from finetuning.page import as_cells, curves_of, figures_of, print_table, write_page
from finetuning.plots import plot_bars, plot_lines
from finetuning.results import AVERAGE, Results, Summary, differences, load_results, read_results, summary
from zoo_core.command_line import CommandParser, user_errors

MOST_PANELS = 12  # languages side by side in a plot over layers; of more, only their average
# Facts of tasks of a suite that must be equal for comparable scores, for any models and any training.
MEASURED = r"protocol\.(evaluat|max_length|doc_stride|metric|pooling|similarity|margin|neighbors|dev_)"
Columns = dict[str, dict[str, Summary]]  # by run and row of the table


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    metavar, text = ("NAME", "DIR"), "a name and its result folders"
    parser.add_argument("--run", nargs="+", action="append", required=True, metavar=metavar, help=text)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="where the comparison is written")
    options = parser.parse_args(argv)
    with user_errors():
        folders = {name: list(map(Path, paths)) for name, *paths in options.run}
        if len(folders) < len(options.run) or not all(folders.values()):
            raise ValueError("--run needs NAME DIR [DIR ...], and each name once.")
        options.output.mkdir(parents=True, exist_ok=True)
        is_suite = "suite" in load_results(next(iter(folders.values()))[0] / "results.json")
        (compare_suites if is_suite else compare_tasks)(folders, options.output / "comparison")


def compare_tasks(folders: dict[str, list[Path]], path: Path) -> None:
    """Compares runs of one task. Raises ValueError for other tasks or languages, and for a seed that is given twice."""
    runs = {run: [read_results(path) for path in paths] for run, paths in folders.items()}
    named = {f"{run} {n}".removesuffix(" 1"): of for run, parts in runs.items() for n, of in enumerate(parts, 1)}
    compared = {name: f"{of['kind']} {of['task']} in {', '.join(of.names)}" for name, of in named.items()}
    if len(set(compared.values())) > 1:
        raise ValueError(f"The runs are of several tasks or languages: {compared}. Compare runs of one task.")
    for run, parts in runs.items():
        seeds = [seed for results in parts for seed in results["seeds"]]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"--run {run} has the seeds {seeds}. Name each seed's folder once.")
    columns, first = {run: figures_of(parts) for run, parts in runs.items()}, next(iter(named.values()))
    plot(first, runs, columns, path.with_suffix(".png"))
    write(first.title, columns, differences(named), runs, path)


def compare_suites(folders: dict[str, list[Path]], path: Path) -> None:
    """Compares runs of one suite. Raises ValueError for other folders, and for tasks that were measured otherwise."""
    columns: Columns = {}
    tasks: dict[str, dict[str, Results]] = {}
    for run, (folder, *_) in folders.items():
        content = load_results(folder / "results.json")
        if "suite" not in content:
            raise ValueError(f"{folder} holds no results of `finetuning/run.py --suite`. Compare tasks, or suites.")
        (columns[run],) = content["scores"].values()
        for name in [task["name"] for task in content["suite"]["tasks"] if task["name"] in columns[run]]:
            tasks.setdefault(name, {})[run] = read_results(folder / name)
    for task, runs in tasks.items():
        if lines := [line for line in differences(runs) if re.match(MEASURED, line)]:
            raise ValueError(f"{task} was measured by different protocols: {'; '.join(lines)}.")
    missing = [f"{task} is missing in {run}" for task, runs in tasks.items() for run in folders if run not in runs]
    found = {run: [runs[run] for runs in tasks.values() if run in runs] for run in folders}
    bars = {run: {name: entry for name, entry in of.items() if name in tasks} for run, of in columns.items()}
    plot_bars(bars, path.with_suffix(".png"), "suites", "score (%)")
    write("Suites", columns, missing, found, path)


def write(title: str, columns: Columns, lines: list[str], runs: dict[str, list[Results]], path: Path) -> None:
    """Writes comparison.md and comparison.csv, and shows the table."""
    names = dict.fromkeys(name for of in columns.values() for name in of)
    cells = as_cells([""], {(name,): {run: of[name] for run, of in columns.items() if name in of} for name in names})
    frames = [results.frame(run=run) for run, parts in runs.items() for results in parts]
    write_page(path, title, cells, {"What differs between the runs": lines}, path.with_suffix(".png"), frames)
    print_table(title, cells, [f"differs: {line}" for line in lines], f"{path}.md, csv, png")


def plot(first: Results, runs: dict[str, list[Results]], columns: Columns, path: Path) -> None:
    """Scores over layers or over the steps of training where there are any, else bars by language."""
    chance, names = {name: first.chance(name) for name in first.with_average}, [AVERAGE]
    if first.layers[1:]:
        names = first.with_average[::-1] if len(first.names) < MOST_PANELS else names
        panels = {
            name: {
                run: {
                    layer: summary(score for of in parts for score in of.of(name, layer=layer)["scores"])
                    for layer in parts[0].layers
                }
                for run, parts in runs.items()
            }
            for name in names
        }
        return plot_lines(panels, path, first.title, "layer", "score (%)", chance)
    curves = {}
    for run, parts in runs.items():  # of the steps at which all seeds were evaluated
        by_seed = [curve for results in parts for curve in curves_of(results).values()]
        steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
        curves[run] = {step: summary(curve[step]["mean"] for curve in by_seed) for step in steps}
    if all(curves.values()):
        return plot_lines({"": curves}, path, first.title, "steps", "sacreBLEU on dev")
    bars = {run: {name: of[name] for name in first.names} for run, of in columns.items()}
    plot_bars(bars, path, first.title, "score (%)", {name: chance[name] for name in first.names})


if __name__ == "__main__":
    main()
