"""Fine-tunes and evaluates one model on every task of a benchmark, and makes one table of the results.

    python finetuning/run.py --suite xtreme model=FacebookAI/xlm-roberta-base
    python finetuning/run.py --suite xtreme model=FacebookAI/xlm-roberta-base seeds=[1,2,3]
    python finetuning/run.py --suite small model=runs/m/model hub_root=mirror skip_missing=true

A suite is a YAML file that names a recipe for each task (finetuning/suites/). `field=value` sets a field in every
recipe that has it, `task.field=value` in the recipe of one task. Each task is a run of finetuning/run.py with its
recipe, in its own folder, output_dir/<task>. The default of output_dir is runs/<model>/<suite>.

To resume, use the same command: finished tasks are not run again, and an interrupted one is resumed from its last
checkpoint. If a task fails, the others are run, and the last line names the failed one. Fine-tuned models are only kept
if another task starts from them, or with save_models=true.

Writes the results of the whole benchmark into output_dir: results.json, results.md, results.csv and results.png. The
score of a task is its mean over languages and shown metrics.
"""

import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

import pandas
from annotated_types import Len
from omegaconf import MISSING

from crosslingual_zoo.finetuning.page import as_cells, joint_warnings, write_page
from crosslingual_zoo.finetuning.plots import plot_bars
from crosslingual_zoo.finetuning.published import find, look_up
from crosslingual_zoo.finetuning.recipe import Published, TaskRecipe
from crosslingual_zoo.finetuning.results import (
    AVERAGE,
    FORMAT,
    Results,
    Summary,
    read_results,
    run_name,
    summary,
    with_deviation,
)
from crosslingual_zoo.finetuning.runs import ALWAYS_RESUMED, Failure, noted_failure, run_all
from crosslingual_zoo.finetuning.tasks.registry import KINDS, kind_of
from crosslingual_zoo.zoo_core.command_line import SAME_COMMAND, CommandParser, user_errors
from crosslingual_zoo.zoo_core.console import quiet_libraries, say_loading
from crosslingual_zoo.zoo_core.processes import start_processes, stop_signals
from crosslingual_zoo.zoo_core.provenance import write_json
from crosslingual_zoo.zoo_core.recipes import load_recipe, nearest, option
from crosslingual_zoo.zoo_core.run_folders import not_own, run_lock
from crosslingual_zoo.zoo_core.tables import MissingTable

SUITES = Path(__file__).parent / "suites"

FIXED = ("model", "output_dir", "init_from")  # a suite sets them for all of its tasks

Tasks = dict[str, Results]  # by name


@dataclass
class SuiteTask:
    """A row of the table."""

    name: str = option(MISSING, "name of the task and its folder; also before its own overrides, as in xnli.max_length")
    recipe: str = option(MISSING, "recipe, relative to the suite's file")
    overrides: list[str] = option([], "fields of the recipe that this suite sets, as field=value")
    scores: list[str] = option([], "scores in results.json to show and average, as in [f1, exact_match]; default: main")
    init_from: str | None = option(None, "earlier task of this suite whose fine-tuned model this one starts from")


@dataclass
class Suite:
    """The tasks of a benchmark, in the order in which they are run."""

    name: str = option(MISSING, "name of the benchmark in the results")
    tasks: Annotated[list[SuiteTask], Len(1)] = option([], "the tasks")
    published: list[Published] = option([], "rows to show next to ours, of tables whose columns are tasks")
    note: str | None = option(None, "caveat about the scores, which the results show as a warning")


def main(argv: list[str]) -> None:
    """Runs `finetuning/run.py --suite`."""
    parser = CommandParser(prog="finetuning/run.py", description=__doc__)
    parser.add_argument("--suite", required=True, metavar="NAME", help="a suite of finetuning/suites, or a YAML file")
    parser.add_argument("--tasks", type=lambda text: text.split(","), metavar="A,B", help="only these tasks")
    text = "read and encode the data of every task, list by language what is cut, split or left out, and stop"
    parser.add_argument("--check_data", action="store_true", help=text)
    parser.add_argument("--resume", action="store_true", help=ALWAYS_RESUMED)
    text = "sets a field in every recipe that has it, or in one task's"
    parser.add_argument("overrides", nargs="*", metavar="[task.]field=value", help=text)
    options = parser.parse_intermixed_args(argv)
    with stop_signals(SAME_COMMAND), user_errors():
        suite, path = load_suite(options.suite)
        recipes = read_recipes(suite, path, options.overrides, options.tasks)
        say_loading("the models")
        quiet_libraries()
        start_processes()
        if options.check_data:
            check_suite(recipes)
        else:
            run_suite(suite, recipes, ["finetuning/run.py", *argv])


def check_suite(recipes: dict[str, TaskRecipe]) -> None:
    """Checks the data of all tasks. Raises ValueError, after the last one, if some cannot be used."""
    from crosslingual_zoo.finetuning.run_task import check_data

    failed: dict[str, Failure] = {}
    for name, recipe in recipes.items():
        recipe.init_from = None  # that run is not made yet
        with noted_failure(name, failed):
            check_data(recipe)
    used = {name: failure for name, failure in failed.items() if not is_left_out(failure, recipes[name])}
    if used:
        raise ValueError(f"{', '.join(used)} failed, see above. Nothing was trained or written.")


def is_left_out(failure: Failure, recipe: TaskRecipe) -> bool:
    """Whether a task failed because its tables were not found, which its recipe allows."""
    return recipe.skip_missing and failure.type is MissingTable


def load_suite(name: str) -> tuple[Suite, Path]:
    """Reads a suite: the name of a file in finetuning/suites, or a path. Returns the suite and the path."""
    path = Path(name) if Path(name).is_file() else SUITES / f"{name}.yaml"
    return load_recipe(Suite, str(path), []), path


def read_recipes(suite: Suite, path: Path, overrides: list[str], chosen: list[str] | None) -> dict[str, TaskRecipe]:
    """Returns the recipes of the chosen tasks, by default of all, with the overrides.

    A fine-tuned model is kept if another task starts from it, or if an override sets `save_models`. Raises ValueError
    for an unknown task, a field that no recipe has, a field of one task that the suite sets for all, without a model,
    and as `load_recipe`.
    """
    values = dict(override.split("=", 1) for override in overrides if "=" in override)
    if "model" not in values:
        raise ValueError(f"Suite {suite.name} needs a model, as in model=FacebookAI/xlm-roberta-base.")
    output = Path(values.get("output_dir", Path("runs") / run_name(values["model"]) / path.stem))
    names = [task.name for task in suite.tasks]
    if len(set(names)) < len(names):
        raise ValueError(f"{path} has several tasks of one name. Give each its own.")
    for name in chosen or []:
        if name not in names:
            raise ValueError(f"--tasks has {name!r}. {nearest(name, names)}")
    starts = {task.init_from for task in suite.tasks}
    fields_and_tasks = set(names)
    recipes = {}
    for task in suite.tasks:
        config = (path.parent / task.recipe).resolve()
        recipe_class = KINDS[kind_of(["--config", str(config)])]
        fields_and_tasks |= {field.name for field in fields(recipe_class)}
        of_task = overrides_of(task, recipe_class, overrides)
        if recipe_class.is_trained:
            of_task.insert(0, f"save_models={str(task.name in starts).lower()}")
        of_task.append(f"output_dir={output / task.name}")
        if task.init_from:
            of_task.append(f"init_from={output / task.init_from}")
        try:
            recipe = load_recipe(recipe_class, config, of_task)
        except ValueError as error:
            raise ValueError(f"Task {task.name}: {error}") from error
        if task.name in (chosen or names):
            recipes[task.name] = recipe
    for override in overrides:
        field = first_name(override)
        if field not in fields_and_tasks:
            raise ValueError(f"No recipe has the field {field!r}. {nearest(field, sorted(fields_and_tasks))}")
    return recipes


def first_name(override: str) -> str:
    """`training` of training.epochs=1: a field, or the name of a task."""
    return override.partition("=")[0].partition(".")[0]


def overrides_of(task: SuiteTask, recipe_class: type[TaskRecipe], overrides: list[str]) -> list[str]:
    """The overrides of a task: those of the suite's file, those for all tasks that it has the fields of, and its own.

    Raises ValueError for a field that the suite sets for all tasks.
    """
    names = {field.name for field in fields(recipe_class)}
    of_all = [override for override in overrides if first_name(override) in names]
    of_task = [override.partition(".")[2] for override in overrides if first_name(override) == task.name]
    for override in of_task:
        if override.partition("=")[0] in FIXED:
            raise ValueError(f"{task.name}.{override}: a suite sets this field for all of its tasks.")
    return [*task.overrides, *of_all, *of_task]


def run_suite(suite: Suite, recipes: dict[str, TaskRecipe], command: list[str]) -> None:
    """Runs the tasks that are not finished, then writes and shows the table of all finished ones.

    Raises ValueError if another command uses the folder or it holds something else, and after all tasks if one has
    failed.
    """
    from accelerate import PartialState

    names = [task.name for task in suite.tasks]
    output = Path(next(iter(recipes.values())).output_dir).parent
    with run_lock(output):
        held = not_own(output, rf"\.?results\.(json|md|csv|png)(\.\d+\.tmp)?|{'|'.join(map(re.escape, names))}")
        if held:
            raise ValueError(f"output_dir {output} holds {held[0]}, which is not of suite {suite.name}. Name another.")
        PartialState().wait_for_everyone()  # every process has looked at the folder before the first file appears
        runs = run_all(recipes, command)
        results_by_task = {}
        for name in names:
            if (output / name / "results.json").is_file():
                results_by_task[name] = read_results(output / name)
        models = {results["model"]["fingerprint"]: results["model"]["folder"] for results in results_by_task.values()}
        if len(models) > 1:
            raise ValueError(f"The tasks in {output} are of {', '.join(models.values())}. Name an output_dir for each.")
        if results_by_task and PartialState().is_main_process:
            reasons = {name: failure.reason for name, failure in runs.failed.items()}
            write(suite, results_by_task, output / "results", reasons)
    left_out = [name for name, failure in runs.failed.items() if is_left_out(failure, recipes[name])]
    for name, recipe in recipes.items():
        if name in left_out or Path(recipe.init_from or "").name in left_out:
            runs.failed.pop(name, None)
    runs.check("The same command runs only these again.")


def shown_of(suite: Suite, results_by_task: Tasks) -> dict[str, list[pandas.Series]]:
    """By task, its shown scores by seed, each averaged over languages. Raises ValueError for an unknown score."""
    scores_by_task = {}
    for task in suite.tasks:
        if task.name not in results_by_task:
            continue
        results = results_by_task[task.name]
        metrics = task.scores or [results.metric]
        unknown = set(metrics) - set(results.metrics)
        if unknown:
            raise ValueError(f"Task {task.name} shows {min(unknown)!r}; its results have {results.metrics}.")
        scores_by_task[task.name] = [results.table(metric)[AVERAGE] for metric in metrics]
    return scores_by_task


def scores_of(suite: Suite, results_by_task: Tasks) -> dict[str, Summary]:
    """By task and AVERAGE: the mean over shown scores, languages and the tasks that have results, as XTREME.

    The average is taken seed by seed, where all trained tasks have the same seeds; a task that trains nothing counts
    alike for each. Otherwise it is one number, without a deviation.
    """
    scores = {}
    for name, series_by_metric in shown_of(suite, results_by_task).items():
        scores[name] = sum(series_by_metric) / len(series_by_metric)
    trained = [scores[name].index for name in scores if results_by_task[name]["protocol"]["training_data"]]
    seeds = pandas.Index([0])
    if trained and all(index.equals(trained[0]) for index in trained):
        seeds = trained[0]
    by_seed = {}
    for name, series in scores.items():
        by_seed[name] = series if series.index.equals(seeds) else series.mean()
    scores[AVERAGE] = pandas.DataFrame(by_seed, index=seeds).mean(axis=1)
    return {name: summary(series) for name, series in scores.items()}


def published_of(suite: Suite, results_by_task: Tasks) -> dict[str, dict[str, str]]:
    """The published rows as text by task, without those over other languages than ours.

    The results of a task get the rows that are shown next to it, so that their warnings say what differs.
    """
    columns: dict[str, dict[str, str]] = {}
    for item in map(asdict, suite.published):
        cells: dict[str, str] = {}
        for task, results in results_by_task.items():
            reference = look_up(item, task, results["kind"], results.metric, results.names)
            averages = [f"{scores[AVERAGE]:.1f}" for scores in reference.scores.values() if AVERAGE in scores]
            if averages:
                cells[task] = " / ".join(averages)
                results["published"] = [*results["published"], item]
        table, row = find(**item)
        if set(table["columns"]) == set(cells):  # else its average is over other tasks
            averages = list(row.get("average", {}).values())
            cells[AVERAGE] = f"{averages[0]:.1f}" if averages else ""
        columns[", ".join(item.values())] = cells
    return columns


def write(suite: Suite, results_by_task: Tasks, path: Path, failed: dict[str, str]) -> None:
    """Writes the table of a model as JSON, Markdown, CSV (a row per score) and PNG, and shows it.

    `failed` has the reasons of tasks without results.
    """
    scores = scores_of(suite, results_by_task)
    published = published_of(suite, results_by_task)
    run = run_name(next(iter(results_by_task.values()))["model"]["folder"])
    cells = {}
    for name, series_by_metric in shown_of(suite, results_by_task).items():
        cells[name] = " / ".join(with_deviation(summary(series)) for series in series_by_metric)
    cells[AVERAGE] = with_deviation(scores[AVERAGE])
    warnings = [suite.note] if suite.note else []
    warnings += [f"{task} failed: {reason}" for task, reason in failed.items()]
    missing = [task.name for task in suite.tasks if task.name not in results_by_task]
    if missing:
        warnings.append(f"averages are over other tasks: without {', '.join(missing)}")
    warnings += joint_warnings(results_by_task)
    bars = {run: {name: scores[name] for name in results_by_task}}
    title = f"{run} on {suite.name}: main score of each task"
    picture = plot_bars(bars, path.with_suffix(".png"), title, "score (%)")
    frames = [results.frame(run=run) for results in results_by_task.values()]
    write_page(path, suite.name, as_cells("task", {run: cells, **published}), {"Warnings": warnings}, picture, frames)
    content = {"format": FORMAT, "kind": "benchmark", "suite": asdict(suite), "failed": failed}
    write_json(path.with_suffix(".json"), {**content, "scores": {run: scores}, "warnings": warnings})
