"""Fine-tunes and evaluates one model on every task of a benchmark, and makes one table of the results.

    python finetuning/run.py --suite xtreme model=FacebookAI/xlm-roberta-base
    python finetuning/run.py --suite xtreme model=FacebookAI/xlm-roberta-base seeds=[1,2,3]
    python finetuning/run.py --suite small model=runs/m/model hub_root=mirror --skip_missing

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
import sys
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pandas
from omegaconf import MISSING

from crosslingual_zoo.finetuning.data.rows import filled
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
from crosslingual_zoo.finetuning.runs import ALWAYS_RESUMED, run_all, survived
from crosslingual_zoo.finetuning.tasks.registry import KINDS, kind_of, task_of
from crosslingual_zoo.zoo_core.command_line import SAME_COMMAND, CommandParser, user_errors
from crosslingual_zoo.zoo_core.console import quiet_libraries, say_loading
from crosslingual_zoo.zoo_core.processes import start_processes, stop_signals
from crosslingual_zoo.zoo_core.provenance import write_json
from crosslingual_zoo.zoo_core.recipes import load_recipe, nearest, option
from crosslingual_zoo.zoo_core.run_folders import not_own, run_lock
from crosslingual_zoo.zoo_core.tables import Table, describe, plain_path, resolve_hub_path

SUITES = Path(__file__).parent / "suites"

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
    tasks: list[SuiteTask] = option([], "the tasks")
    published: list[Published] = option([], "rows to show next to ours, of tables whose columns are tasks")
    note: str | None = option(None, "caveat about the scores, which the results show as a warning")


def main(argv: list[str]) -> None:
    """Runs `finetuning/run.py --suite`."""
    parser = CommandParser(prog="finetuning/run.py", description=__doc__)
    parser.add_argument("--suite", required=True, metavar="NAME", help="a suite of finetuning/suites, or a YAML file")
    parser.add_argument("--tasks", type=lambda text: text.split(","), metavar="A,B", help="only these tasks")
    text = "leave out languages whose tables are not found, and tasks without any language; the results list them"
    parser.add_argument("--skip_missing", action="store_true", help=text)
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
        left_out: dict[str, str] = {}
        for name, recipe in list(recipes.items()) if options.skip_missing else ():
            try:
                if (start := Path(recipe.init_from or "").name) in left_out.keys() - recipes.keys():
                    raise FileNotFoundError(f"it starts from {start}, which is left out")
                left_out |= {name: reason} if (reason := leave_out_missing(recipe)) else {}
            except FileNotFoundError as error:
                left_out[name] = str(error)
                del recipes[name]
        if not options.check_data:
            return run_suite(suite, recipes, left_out, ["finetuning/run.py", *argv])
        check_suite(recipes)
        for name, reason in left_out.items():
            print(f"{name}: {reason}")


def check_suite(recipes: dict[str, TaskRecipe]) -> None:
    """Checks the data of all tasks. Raises ValueError, after the last one, if some cannot be used."""
    from crosslingual_zoo.finetuning.training import check_data

    failed = []
    for name, recipe in recipes.items():
        recipe.init_from = None  # that run is not made yet
        try:
            check_data(task_of(recipe))
        except Exception as error:
            failed.append(name)
            print(f"{name} failed: {survived(error)}", file=sys.stderr)
    if failed:
        raise ValueError(f"{', '.join(failed)} failed, see above. Nothing was trained or written.")


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
    given = [(override.partition("=")[0].partition(".")[0], override) for override in overrides]
    values = dict(override.split("=", 1) for override in overrides if "=" in override)
    if "model" not in values:
        raise ValueError(f"Suite {suite.name} needs a model, as in model=FacebookAI/xlm-roberta-base.")
    output = Path(values.get("output_dir", Path("runs") / run_name(values["model"]) / path.stem))
    names, starts = [task.name for task in suite.tasks], {task.init_from for task in suite.tasks}
    if len({*names}) < len(names):
        raise ValueError(f"{path} has several tasks of one name. Give each its own.")
    if unknown := [name for name in chosen or () if name not in names]:
        raise ValueError(f"--tasks has {unknown[0]!r}. {nearest(unknown[0], names)}")
    known, recipes = {*names}, {}
    for task in suite.tasks:
        config = str((path.parent / task.recipe).resolve())
        recipe_class = KINDS[kind_of(["--config", config])]
        fitting = {item.name for item in fields(recipe_class)}
        known |= fitting
        own = [override.partition(".")[2] for field, override in given if field == task.name]
        if fixed := [one for one in own if one.startswith(("model=", "output_dir=", "init_from="))]:
            raise ValueError(f"{task.name}.{fixed[0]}: a suite sets this field for all of its tasks.")
        kept = [f"save_models={str(task.name in starts).lower()}"] if recipe_class.is_trained else []
        of_all = [override for field, override in given if field in fitting]
        place = [f"output_dir={output / task.name}"]
        place += [f"init_from={output / task.init_from}"] if task.init_from else []
        try:
            recipe = load_recipe(recipe_class, config, [*kept, *task.overrides, *of_all, *own, *place])
        except ValueError as error:
            raise ValueError(f"Task {task.name}: {error}") from error
        recipes |= {task.name: recipe} if task.name in (chosen or names) else {}
    if unused := [field for field, _ in given if field not in known]:
        raise ValueError(f"No recipe has the field {unused[0]!r}. {nearest(unused[0], sorted(known))}")
    return recipes


def leave_out_missing(recipe: TaskRecipe) -> str:
    """Removes the tables that do not exist from a recipe, by language; returns which, as its results say it too.

    No rows are read. Raises FileNotFoundError if no table is left to train on, or to evaluate.
    """
    missing, source = [], getattr(recipe, "source_language", "")
    parts = [part for part in ("train", "evaluation", "pairs", "test") if hasattr(recipe, part)]
    for part in parts:
        tables = getattr(recipe, part)
        for table in list(tables):
            names = getattr(table, "languages", []) or [""]  # "" is the table of one language
            absent = [name for name in names if not exists(table, name or source, recipe.hub_root)]
            shown = [name or getattr(table, "name", None) or describe(table) for name in absent]
            missing += [f"{name} (training rows)" if part == "train" else name for name in shown]
            if absent == names:
                tables.remove(table)
            elif absent:
                table.languages = [name for name in names if name not in absent]
        if not tables:
            raise FileNotFoundError(f"does not exist, in `{part}`: {', '.join(missing)}")
    reason = f"does not exist: {', '.join(missing)}" if missing else ""
    if missing:
        evaluated = getattr(recipe, parts[-1])[0]
        evaluated.note = "; ".join(filter(None, (evaluated.note, f"left out, {reason}")))
    return reason


def exists(part: Any, language: str, hub_root: str | None, split: str = "train") -> bool:
    """Whether all tables and files of a part of a recipe can be found; `split` is that of a table without one."""
    import datasets

    part = filled(part, language) if hasattr(part, "language_names") else part
    split, inner = getattr(part, "split", None) or split, filter(is_dataclass, vars(part).values())
    files = part.files(hub_root) if hasattr(part, "files") else []
    if not all(file.is_file() for file in files) or not all(exists(one, language, hub_root, split) for one in inner):
        return False
    if not isinstance(part, Table) or Path(path := resolve_hub_path(part.path, hub_root)).is_file():
        return True
    try:
        plain = plain_path(path)
        has_config = part.config in (None, *datasets.get_dataset_config_names(plain))
        return has_config and re.split(r"[\[+]", split)[0] in datasets.get_dataset_split_names(plain, part.config)
    except (FileNotFoundError, ConnectionError):  # the latter of a Hub that cannot be reached
        return False


def run_suite(suite: Suite, recipes: dict[str, TaskRecipe], left_out: dict[str, str], command: list[str]) -> None:
    """Runs the tasks that are not finished, then writes and shows the table of all finished ones.

    Raises ValueError if another command uses the folder or it holds something else, and after all tasks if one has
    failed.
    """
    from accelerate import PartialState

    if not recipes:
        raise ValueError(f"No task of suite {suite.name} can be run: {left_out}. Check hub_root, or the connection.")
    names, output = [task.name for task in suite.tasks], Path(next(iter(recipes.values())).output_dir).parent
    with run_lock(output):
        if held := not_own(output, rf"\.?results\.(json|md|csv|png)(\.\d+\.tmp)?|{'|'.join(map(re.escape, names))}"):
            raise ValueError(f"output_dir {output} holds {held[0]}, which is not of suite {suite.name}. Name another.")
        PartialState().wait_for_everyone()  # every process has looked at the folder before the first file appears
        failed = run_all(recipes, command)
        left_out = left_out | {name: f"failed: {error}" for name, error in failed.items()}
        found = {name: read_results(output / name) for name in names if (output / name / "results.json").is_file()}
        models = {of["model"]["fingerprint"]: of["model"]["folder"] for of in found.values()}
        if len(models) > 1:
            raise ValueError(f"The tasks in {output} are of {', '.join(models.values())}. Name an output_dir for each.")
        if found and PartialState().is_main_process:
            write(suite, found, output / "results", left_out)
    if failed:
        raise ValueError(f"{', '.join(failed)} failed, see above. The same command runs only these again.")


def shown_of(suite: Suite, found: Tasks) -> dict[str, list[pandas.Series]]:
    """By task, its shown scores by seed, each averaged over languages. Raises ValueError for an unknown score."""
    shown = {task.name: task.scores or [found[task.name].metric] for task in suite.tasks if task.name in found}
    for name, scores in shown.items():
        if unknown := set(scores) - set(found[name].metrics):
            raise ValueError(f"Task {name} shows {min(unknown)!r}; its results have {found[name].metrics}.")
    return {name: [found[name].table(score)[AVERAGE] for score in scores] for name, scores in shown.items()}


def scores_of(suite: Suite, found: Tasks) -> dict[str, Summary]:
    """By task and AVERAGE: the mean over shown scores, languages and the tasks that have results, as XTREME.

    The average is taken seed by seed, where all trained tasks have the same seeds; a task that trains nothing counts
    alike for each. Otherwise it is one number, without a deviation.
    """
    scores = {name: sum(shown) / len(shown) for name, shown in shown_of(suite, found).items()}
    trained = [of.index for name, of in scores.items() if found[name]["protocol"]["training_data"]]
    seeds = trained[0] if trained and all(of.equals(trained[0]) for of in trained) else pandas.Index([0])
    by_seed = {name: of if of.index.equals(seeds) else of.mean() for name, of in scores.items()}
    average = pandas.DataFrame(by_seed, index=seeds).mean(axis=1)
    return {name: summary(of) for name, of in {**scores, AVERAGE: average}.items()}


def published_of(suite: Suite, found: Tasks) -> dict[str, dict[str, str]]:
    """The published rows as text by task, without those over other languages than ours.

    The results of a task get the rows that are shown next to it, so that their warnings say what differs.
    """
    columns: dict[str, dict[str, str]] = {}
    for item in map(asdict, suite.published):
        cells = columns[", ".join(item.values())] = {}
        for task, results in found.items():
            reference = look_up(item, task, results["kind"], results.metric, results.names)
            if averages := [f"{of[AVERAGE]:.1f}" for of in reference.scores.values() if AVERAGE in of]:
                cells[task] = " / ".join(averages)
                results["published"] = [*results["published"], item]
        table, row = find(**item)
        if set(table["columns"]) == set(cells):  # else its average is over other tasks
            cells[AVERAGE] = next((f"{average:.1f}" for average in row.get("average", {}).values()), "")
    return columns


def write(suite: Suite, found: Tasks, path: Path, left_out: dict[str, str]) -> None:
    """Writes the table of a model as JSON, Markdown, CSV (a row per score) and PNG, and shows it."""
    scores, published = scores_of(suite, found), published_of(suite, found)
    run, names = run_name(next(iter(found.values()))["model"]["folder"]), [task.name for task in suite.tasks]
    cells = {
        name: " / ".join(with_deviation(summary(of)) for of in shown) for name, shown in shown_of(suite, found).items()
    }
    table = as_cells("task", {run: {**cells, AVERAGE: with_deviation(scores[AVERAGE])}, **published})
    missing = [name for name in names if name not in found]
    warnings = [*filter(None, [suite.note]), *(f"{task}: {reason}" for task, reason in left_out.items())]
    warnings += [f"averages are over other tasks: without {', '.join(missing)}"] if missing else []
    warnings += joint_warnings(found)
    bars = {run: {name: scores[name] for name in found}}
    title = f"{run} on {suite.name}: main score of each task"
    picture = plot_bars(bars, path.with_suffix(".png"), title, "score (%)")
    write_page(path, suite.name, table, {"Warnings": warnings}, picture, [of.frame(run=run) for of in found.values()])
    facts = {"format": FORMAT, "kind": "benchmark", "suite": asdict(suite), "left_out": left_out}
    write_json(path.with_suffix(".json"), {**facts, "scores": {run: scores}, "warnings": warnings})
