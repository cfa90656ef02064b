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

import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

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


class Comparison(NamedTuple):
    """What the page shows of the runs."""

    scores: dict[str, dict[str, Summary]]  # by run and row of the table
    lists: dict[str, list[str]]  # of lines below it
    frames: list[pandas.DataFrame]  # all scores
    picture: Path | None


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    metavar = ("NAME", "DIR")
    text = "a name and its results folder"
    parser.add_argument("--run", nargs=2, action="append", required=True, metavar=metavar, help=text)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="where the comparison is written")
    options = parser.parse_args(argv)
    with user_errors():
        folders = dict(options.run)
        if len(folders) < len(options.run):
            raise ValueError(f"--run has the names {[name for name, _ in options.run]}. Give each run its own name.")
        contents = {name: load_results(Path(folder) / "results.json") for name, folder in folders.items()}
        subjects = {name: _subject(content) for name, content in contents.items()}
        if len(set(subjects.values())) > 1:
            raise ValueError(f"The runs are of several tasks or languages: {subjects}. Compare runs of one.")
        options.output.mkdir(parents=True, exist_ok=True)
        path = options.output / "comparison"
        first = next(iter(contents.values()))
        if isinstance(first, Results):
            title = first.title
            comparison = compare_tasks(contents, path)
        else:
            title = "Suites"
            comparison = compare_suites(contents, folders, path)
        texts = {}
        for run, summaries in comparison.scores.items():
            texts[run] = {name: with_deviation(entry) for name, entry in summaries.items()}
        write_page(path, title, as_cells("", texts), comparison.lists, comparison.picture, comparison.frames)


def _subject(content: Any) -> str:
    """What a run is of: a task and its languages, or a suite."""
    if isinstance(content, Results):
        return f"{content['kind']} {content['task']} in {', '.join(content.names)}"
    return "a suite"


def compare_tasks(runs: dict[str, Results], path: Path) -> Comparison:
    """Compares runs of one task, and draws them."""
    scores = {run: results.figures for run, results in runs.items()}
    lists = {"Warnings": joint_warnings(runs), "What differs between the runs": differences(runs)}
    frames = [results.frame(run=run) for run, results in runs.items()]
    return Comparison(scores, lists, frames, draw(runs, path.with_suffix(".png")))


def compare_suites(contents: dict[str, Any], folders: dict[str, str], path: Path) -> Comparison:
    """Compares runs of one suite, and draws them. Raises ValueError for tasks that were measured otherwise."""
    scores = {}
    bars = {}
    for run, content in contents.items():
        (scores[run],) = content["scores"].values()
        bars[run] = {name: entry for name, entry in scores[run].items() if name != AVERAGE}
    warnings = []
    frames = []
    for task in dict.fromkeys(itertools.chain.from_iterable(bars.values())):
        warnings += [f"{task} is missing in {run}" for run in bars if task not in bars[run]]
        runs = {run: read_results(Path(folders[run]) / task) for run in bars if task in bars[run]}
        frames += [results.frame(run=run) for run, results in runs.items()]
        lines = [line for line in differences(runs) if re.match(MEASURED, line)]
        if lines:
            raise ValueError(f"{task} was measured by different protocols: {'; '.join(lines)}.")
        warnings += [f"{task}: {line}" for line in joint_warnings(runs)]
    picture = plot_bars(bars, path.with_suffix(".png"), "Main score of each task", "score (%)")
    return Comparison(scores, {"Warnings": warnings}, frames, picture)


if __name__ == "__main__":
    main()
