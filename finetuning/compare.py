"""Compares results: a table, a plot, and every difference in how the runs were trained and measured.

    python -m crosslingual_zoo.finetuning.compare --output runs/multi30k_compared \\
        --run VECO runs/multi30k-veco --run XLM runs/multi30k-xlm --run random runs/multi30k-random
    python -m crosslingual_zoo.finetuning.compare --output runs/xtreme_compared \\
        --run XLM runs/xlm/xtreme --run MetaXLM runs/metaxlm/xtreme

--run takes a name and an output folder of finetuning/run.py. The command writes comparison.md, comparison.csv (one row
per score) and comparison.png. The plot has BLEU on dev over the steps for translation, scores over layers for word
alignment (XLM-Align, Figure 2; MetaXLM, Figure 4) and retrieval (MetaXLM, Figure 3), and scores by language for other
tasks. Of suites, the table has a row per task.
"""

import re
from pathlib import Path
from typing import Any

import pandas

from crosslingual_zoo.finetuning.page import as_cells, draw, joint_warnings, write_page
from crosslingual_zoo.finetuning.plots import plot_bars
from crosslingual_zoo.finetuning.results import (
    AVERAGE,
    Results,
    Summary,
    differences,
    load_results,
    read_results,
    with_deviation,
)
from crosslingual_zoo.zoo_core.command_line import CommandParser, user_errors

# Facts of tasks of a suite that must be equal for comparable scores, for any models and any training.
MEASURED = r"protocol\.(evaluat|max_length|doc_stride|metric|pooling|similarity|margin|neighbors|dev_)"
# scores by run and row of the table, lists of lines below it, tables of all scores, and the picture if there is one
Compared = tuple[dict[str, dict[str, Summary]], dict[str, list[str]], list[pandas.DataFrame], Path | None]


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    metavar, text = ("NAME", "DIR"), "a name and its results folder"
    parser.add_argument("--run", nargs=2, action="append", required=True, metavar=metavar, help=text)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="where the comparison is written")
    options = parser.parse_args(argv)
    with user_errors():
        contents = {name: load_results(Path(folder) / "results.json") for name, folder in options.run}
        if len(contents) < len(options.run):
            raise ValueError(f"--run has the names {[name for name, _ in options.run]}. Give each run its own name.")
        if len({isinstance(content, Results) for content in contents.values()}) > 1:
            raise ValueError("The runs are of tasks and of suites. Compare tasks, or suites.")
        options.output.mkdir(parents=True, exist_ok=True)
        path, first = options.output / "comparison", contents[options.run[0][0]]
        if isinstance(first, Results):
            title = first.title
            columns, lists, frames, picture = compare_tasks(contents, path)
        else:
            title = "Suites"
            columns, lists, frames, picture = compare_suites(contents, dict(options.run), path)
        texts = {run: {name: with_deviation(entry) for name, entry in of.items()} for run, of in columns.items()}
        write_page(path, title, as_cells("", texts), lists, picture, frames)


def compare_tasks(runs: dict[str, Results], path: Path) -> Compared:
    """Compares runs of one task, and draws them. Raises ValueError for other tasks or languages."""
    compared = {name: f"{of['kind']} {of['task']} in {', '.join(of.names)}" for name, of in runs.items()}
    if len(set(compared.values())) > 1:
        raise ValueError(f"The runs are of several tasks or languages: {compared}. Compare runs of one task.")
    columns = {run: of.figures for run, of in runs.items()}
    frames = [of.frame(run=run) for run, of in runs.items()]
    lists = {"Warnings": joint_warnings(runs), "What differs between the runs": differences(runs)}
    return columns, lists, frames, draw(runs, path.with_suffix(".png"))


def compare_suites(contents: dict[str, Any], folders: dict[str, str], path: Path) -> Compared:
    """Compares runs of one suite, and draws them. Raises ValueError for tasks that were measured otherwise."""
    columns = {run: next(iter(of["scores"].values())) for run, of in contents.items()}
    bars = {run: {name: entry for name, entry in of.items() if name != AVERAGE} for run, of in columns.items()}
    warnings, frames = [], []
    for task in dict.fromkeys(name for of in bars.values() for name in of):
        warnings += [f"{task} is missing in {run}" for run in bars if task not in bars[run]]
        runs = {run: read_results(Path(folders[run]) / task) for run in bars if task in bars[run]}
        frames += [of.frame(run=run) for run, of in runs.items()]
        if lines := [line for line in differences(runs) if re.match(MEASURED, line)]:
            raise ValueError(f"{task} was measured by different protocols: {'; '.join(lines)}.")
        warnings += [f"{task}: {line}" for line in joint_warnings(runs)]
    picture = plot_bars(bars, path.with_suffix(".png"), "Main score of each task", "score (%)")
    return columns, {"Warnings": warnings}, frames, picture


if __name__ == "__main__":
    main()
