"""Runs one recipe many times, with another model or other values each time, and makes one table of all runs.

    python -m crosslingual_zoo.finetuning.runs --config finetuning/recipes/metaxlm/amazon.yaml \\
        --vary source_language=en,de,fr,ja --model XLM=runs/xlm/model --model MetaXLM=runs/metaxlm/model \\
        --output runs/matrix
    python -m crosslingual_zoo.finetuning.runs --config finetuning/recipes/metaxlm/paper.yaml#mlqa \\
        --model=XLM=runs/xlm/checkpoints/step-{2000..40000..2000}/model --output runs/curves

Each model is run with each combination of the values of --vary. The first example is the transfer matrix of MetaXLM
(Figure 6), the second its curves over the steps of pre-training (Figure 5): of several models of one NAME, the table
has the steps.

The command writes runs.md, runs.csv (a row for each score) and runs.png into --output, and each run into its own folder
there. To resume, use the same command: finished runs are not run again, and an interrupted one is resumed from its last
checkpoint. If a run fails, the others are run. Several processes work on each run together, as in `accelerate launch
--multi_gpu -m crosslingual_zoo.finetuning.runs ...`; they end together after an error that is not the user's.
"""

import argparse
import contextlib
import itertools
import re
import sys
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas

from crosslingual_zoo.finetuning.page import as_cells, axis_label, joint_warnings, plot_title, write_page
from crosslingual_zoo.finetuning.plots import plot_heat_map, plot_lines
from crosslingual_zoo.finetuning.recipe import TaskRecipe
from crosslingual_zoo.finetuning.results import GAP, OTHERS, Results, load_results, read_results, with_deviation
from crosslingual_zoo.finetuning.tasks.registry import KINDS, kind_of, task_of
from crosslingual_zoo.zoo_core.command_line import SAME_COMMAND, CommandParser, user_errors
from crosslingual_zoo.zoo_core.console import quiet_libraries, say_loading
from crosslingual_zoo.zoo_core.processes import received, start_processes, stop_signals
from crosslingual_zoo.zoo_core.provenance import read_json
from crosslingual_zoo.zoo_core.recipes import load_recipe
from crosslingual_zoo.zoo_core.run_folders import FAILURE, run_lock

if TYPE_CHECKING:
    from crosslingual_zoo.finetuning.run_task import Record

ALWAYS_RESUMED = "accepted for job queues that always add it: a run in the folder is resumed with and without it"


class Failure(NamedTuple):
    """Why a run failed. The error itself would hold the run's model in memory."""

    type: type[Exception]
    reason: str


class Runs(NamedTuple):
    """What became of several runs, by name."""

    records: dict[str, list["Record"]]  # of the seeds of each run that was not finished before
    failed: dict[str, Failure]

    def check(self, advice: str) -> None:
        """Raises ValueError, with the advice, if a run has failed."""
        if self.failed:
            raise ValueError(f"{', '.join(self.failed)} failed, see above. {advice}")


def run_all(recipes: dict[str, TaskRecipe], command: list[str], evaluate: bool = True) -> Runs:
    """Runs the recipes that have no results yet, in their order; after an error of one, the others are run.

    Every process returns when all have. `evaluate`: as of `run_task`.
    """
    from accelerate import PartialState
    from accelerate.utils import release_memory

    from crosslingual_zoo.finetuning.run_task import run_task

    runs = Runs({}, {})
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        folder = Path(recipe.output_dir)
        with noted_failure(name, runs.failed, folder):
            is_done = is_finished(recipe)
            if PartialState().is_main_process:
                done = ", finished before" if is_done else ""
                print(f"[{number}/{len(recipes)}] {name}{done}: {folder}", flush=True)
            if not is_done:
                with run_lock(folder):
                    runs.records[name] = run_task(recipe, (folder / "run.json").is_file(), command, evaluate)
        release_memory()  # of a failed run: here, no traceback holds its model any more
    PartialState().wait_for_everyone()
    return runs


@contextlib.contextmanager
def noted_failure(name: str, failed: dict[str, Failure], folder: Path | None = None) -> Generator[None]:
    """Makes any error of a run one line, and an entry in `failed`, so that other runs follow. Signals stop all.

    Errors of users are ValueErrors, in all processes, and errors of the system. The traceback of any other error is
    written to failure.txt in the run's folder, if there is one.
    """
    try:
        if folder is not None:
            (folder / FAILURE).unlink(missing_ok=True)
        yield
    except Exception as error:
        reason = survived(error)
        if folder is not None and not isinstance(error, (ValueError, OSError)):
            reason += f" (traceback in {folder / FAILURE})"
            with contextlib.suppress(OSError):  # a full disk
                folder.mkdir(parents=True, exist_ok=True)
                (folder / FAILURE).write_text(traceback.format_exc(), encoding="utf-8")
        failed[name] = Failure(type(error), reason)
        print(f"{name} failed: {reason}", file=sys.stderr)


def survived(error: Exception) -> str:
    """Returns an error as one line if other runs can follow, and else raises it.

    None follows after a signal. Of several processes, only one may have an error that is no ValueError, while the
    others wait for it in the middle of a step: it ends them all.
    """
    from accelerate import PartialState

    is_of_all = PartialState().num_processes == 1 or isinstance(error, ValueError)
    if received() or not is_of_all:
        raise error
    if isinstance(error, (ValueError, OSError)):
        return str(error)
    return traceback.format_exception_only(error)[0].partition("\n")[0]


def is_finished(recipe: TaskRecipe) -> bool:
    """Whether the folder of a recipe has results of all its seeds, and the models that it asks for.

    Raises ValueError for a model that cannot be read, and if the run in the folder has another recipe or other weights.
    """
    from crosslingual_zoo.finetuning.run_folder import RunFolder
    from crosslingual_zoo.finetuning.run_task import check_hardware

    check_hardware(recipe.precision)
    recipe.check()
    start = task_of(recipe).open()
    results = Path(recipe.output_dir) / "results.json"
    if not results.is_file():
        return False
    folder = RunFolder(recipe, start.identity, resume=True)
    return load_results(results)["seeds"] == recipe.seeds and not folder.without_model()


class Point(NamedTuple):
    """A run of the command: what it differs in, by the name of the column, and its recipe."""

    keys: dict[str, Any]
    recipe: TaskRecipe


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    options = read_options(argv)
    command = ["crosslingual_zoo.finetuning.runs", *(sys.argv[1:] if argv is None else argv)]
    with stop_signals(SAME_COMMAND), user_errors():
        points = list(product_of(options))
        recipes = {}
        for point in points:
            name = Path(point.recipe.output_dir).relative_to(options.output).as_posix()
            recipes[name] = point.recipe
        if len(recipes) < len(points) or "." in recipes:
            raise ValueError(f"{len(points)} runs need a folder each: name models or values, each once.")
        say_loading("the models")
        from accelerate import PartialState

        quiet_libraries()
        start_processes()
        with run_lock(options.output):
            for recipe in recipes.values():
                is_finished(recipe)  # raises errors before the first run
            run_all(recipes, command).check("The same command runs only these again.")
            if PartialState().is_main_process:
                write([(point.keys, read_results(point.recipe.output_dir)) for point in points], options.output)


def read_options(argv: list[str] | None) -> argparse.Namespace:
    """Returns the parsed command line."""

    def named(text: str) -> tuple[str, str]:
        match = re.fullmatch(r"([^=/.][^=/]*)=(.+)", text)  # the name is also a folder's
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
        return match[1], match[2]

    parser = CommandParser(description=__doc__)
    parser.add_argument("--config", required=True, metavar="FILE", help="the recipe")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder of the runs and the table")
    parser.add_argument("--resume", action="store_true", help=ALWAYS_RESUMED)
    several = dict(action="append", type=named, default=[])
    text = "a model; checkpoints of one run have one NAME"
    parser.add_argument("--model", metavar="NAME=MODEL", help=text, **several)
    parser.add_argument("--vary", metavar="FIELD=A,B", help="a field of the recipe and its values", **several)
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="sets a field of the recipe in every run")
    return parser.parse_intermixed_args(argv)


def product_of(options: argparse.Namespace) -> Iterator[Point]:
    """The runs of the command: each model with each combination of values. Raises ValueError for a recipe that does
    not fit."""
    recipe_class = KINDS[kind_of(["--config", options.config, *options.overrides])]
    names = [name for name, _ in options.model]
    values = []
    for field, text in options.vary:
        values.append([(field, value) for value in text.split(",")])
    for (name, model), *varied in itertools.product(options.model or [("", "")], *values):
        keys: dict[str, Any] = {}
        overrides = list(options.overrides)
        if recipe_class.is_trained:
            overrides.insert(0, "save_models=false")
        if name:
            keys["run"] = name
            overrides.append(f"model={model}")
        if names.count(name) > 1:
            keys["step"] = step_of(Path(model))
        for field, value in varied:
            keys[field] = value
            overrides.append(f"{field}={value}")
        folder = options.output / "/".join(str(value).replace("/", "-") for value in keys.values())
        overrides.append(f"output_dir={folder}")
        yield Point(keys, load_recipe(recipe_class, options.config, overrides))


def step_of(model: Path) -> int:
    """The step of a model of pre-training, in checkpoints/step-N/model or model of its run; ValueError for another."""
    match = re.fullmatch(r"step-(\d+)", model.parent.name)
    step = match[1] if match else read_json(model.parent / "run.json", {}).get("steps")
    if step is None:
        raise ValueError(f"{model} is no model of a pre-training run, so its step is unknown. Give it its own NAME.")
    return int(step)


def write(runs: list[tuple[dict[str, Any], Results]], folder: Path) -> None:
    """Writes runs.md, runs.csv and runs.png, and shows the table. `runs` are the keys and the results of each."""
    results_by_run = {", ".join(map(str, keys.values())): results for keys, results in runs}
    first_keys, first = runs[0]
    path = folder / "runs.png"
    if all("step" in keys for keys, _ in runs):
        title = plot_title(results_by_run, "by step of pre-training")
        picture = plot_lines(_by_step(runs), path, title, "pre-training steps", axis_label(first))
    else:
        means = {}
        for run, results in results_by_run.items():
            means[run] = {name: entry["mean"] for name, entry in results.languages.items()}
        title = plot_title(results_by_run, "by run and language, in %")
        picture = plot_heat_map(pandas.DataFrame(means).T, path, title, "evaluated on", ", ".join(first_keys))
    columns: dict[str, dict[str, str]] = {}
    for run, results in results_by_run.items():
        for name, entry in results.figures.items():
            columns.setdefault(name, {})[run] = with_deviation(entry)
    frames = [results.frame(**keys) for keys, results in runs]
    lists = {"Warnings": joint_warnings(results_by_run)}
    write_page(folder / "runs", first.title, as_cells(", ".join(first_keys), columns), lists, picture, frames)


def _by_step(runs: list[tuple[dict[str, Any], Results]]) -> dict[str, dict[str, dict[int, Any]]]:
    """Scores as {average, or others, source and gap: {run: {step: summary}}}."""
    first = runs[0][1]
    names = first.with_average[-1:] if first.transfer_gap is None else [OTHERS, first["source_language"], GAP]
    panels: dict[str, dict[str, dict[int, Any]]] = {name: {} for name in names}
    for keys, results in runs:
        line = ", ".join(value for key, value in keys.items() if key != "step")
        for name in names:
            panels[name].setdefault(line, {})[keys["step"]] = results.of(name)
    return panels


if __name__ == "__main__":
    main()
