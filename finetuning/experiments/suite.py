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

Writes the results of the whole benchmark into output_dir: results.json, results.md, results.csv, results.png and
results-languages.png.
"""

import argparse
import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

from finetuning.experiments import benchmark
from finetuning.experiments.engine import RecipeJob, models_of, refuse_push, run_jobs
from finetuning.experiments.missing_tables import leave_out_missing, source_of
from finetuning.experiments.suite_recipe import Suite, SuiteTask, in_order, load_suite
from finetuning.recipe import TaskRecipe
from finetuning.results.files import run_name
from finetuning.results.published_rows import complete_published
from finetuning.results.table import read_results
from finetuning.tasks.registry import KINDS, kind_of, task_of
from zoo_core.command_line import SAME_COMMAND, CommandParser, user_errors
from zoo_core.interruption import stop_signals
from zoo_core.provenance import read_json, write_json
from zoo_core.recipes import load_recipe, nearest
from zoo_core.run_folders import not_own, run_lock

MARKER = "suite.json"  # in the folder of a suite: its name and tasks


def main(argv: list[str]) -> None:
    """Runs `finetuning/run.py --suite`."""
    parser = CommandParser(prog="finetuning/run.py", description=__doc__)
    parser.add_argument("--suite", required=True, metavar="NAME", help="a suite of finetuning/suites, or a YAML file")
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="only these tasks of the suite")
    parser.add_argument(
        "--skip_missing",
        action="store_true",
        help="leave out languages whose tables are not found, and tasks without any language; the results list them",
    )
    parser.add_argument(
        "--check_data",
        action="store_true",
        help="read and encode the data of every task, list by language what is cut, split or left out, and stop",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="[task.]field=value", help="sets a field in every recipe, or in one task's"
    )
    options = parser.parse_intermixed_args(argv)
    with stop_signals(SAME_COMMAND, SAME_COMMAND), user_errors(SAME_COMMAND):
        suite, path = load_suite(options.suite)
        chosen = choose_tasks(suite, options)
        recipes = read_recipes(suite, path, options.overrides, chosen)
        from zoo_core.console import quiet_libraries
        from zoo_core.processes import start_processes

        quiet_libraries()
        start_processes()
        left_out = leave_out_missing(recipes) if options.skip_missing else {}
        if options.check_data:
            return check_data(recipes, left_out)
        run_suite(suite, recipes, left_out, ["finetuning/run.py", *argv])


def check_data(recipes: dict[str, TaskRecipe], left_out: dict[str, str]) -> None:
    """Prints `--check_data` of run.py by task; a task that starts from another is read with the original model."""
    from finetuning.running import check_data as check

    for name, recipe in recipes.items():
        print(f"\n{name}")
        check(task_of(dataclasses.replace(recipe, init_from=None)))
    for name, reason in left_out.items():
        print(f"{name}: {reason}")


def choose_tasks(suite: Suite, options: argparse.Namespace) -> list[str]:
    """Returns the names of the tasks to run. Raises ValueError for a task that the suite does not have."""
    names = [task.name for task in suite.tasks]
    chosen = options.tasks or names
    # `--tasks xnli model=...`: argparse takes what follows a list as a part of it
    options.overrides += [name for name in chosen if "=" in name]
    chosen = [name for name in chosen if "=" not in name]
    if unknown := [name for name in chosen if name not in names]:
        raise ValueError(
            f"--tasks has {unknown[0]}; suite {suite.name} has {', '.join(names)}. {nearest(unknown[0], names)}"
        )
    return chosen


def read_recipes(suite: Suite, path: Path, overrides: list[str], chosen: list[str]) -> dict[str, Any]:
    """Returns the recipes of the given tasks, in the order in which they can be run, with the overrides.

    Fine-tuned models are kept if another task starts from them, or if an override asks for it.

    Raises ValueError for an override of a field that no recipe has or of an unknown task, without a model, and as
    `load_recipe`.
    """
    names = [task.name for task in suite.tasks]
    own: dict[str, list[str]] = {name: [] for name in names}
    shared: dict[str, str] = {}
    for override in overrides:
        first, _, rest = override.partition(".")
        if first in names and "=" in rest:
            own[first].append(rest)
        else:
            shared[override.partition("=")[0].strip()] = override
    if "model" not in shared:
        raise ValueError(f"Suite {suite.name} needs a model, as in model=FacebookAI/xlm-roberta-base.")
    default = Path("runs") / run_name(shared["model"].partition("=")[2]) / path.stem
    output = Path(shared.pop("output_dir", "").partition("=")[2] or default)
    used: set[str] = set()
    recipes = {}
    needed = {task.init_from for task in suite.tasks}
    wanted = set(chosen)
    while new := {suite.task(name).init_from for name in wanted} - wanted - {None}:
        wanted |= new
    for task in in_order(suite):
        _refuse_what_the_suite_sets(task, own[task.name])
        config = str((path.parent / task.recipe).resolve())
        kind = KINDS[kind_of(["--config", config])]
        fields = {field.name for field in dataclasses.fields(kind.recipe_class)}
        if "init_from" not in fields:
            raise ValueError(
                f"Task {task.name} of suite {suite.name} is of kind translation, which suites do not support."
            )
        fitting = [name for name in shared if name.partition(".")[0] in fields and (name != "seeds" or kind.is_trained)]
        used |= set(fitting)
        kept = ["save_models=" + str(task.name in needed).lower()] if "save_models" in fields else []
        start = [f"init_from={output / task.init_from}"] if task.init_from else []
        given = [*kept, *task.overrides, *(shared[name] for name in fitting), *own[task.name], *start]
        try:
            recipes[task.name] = load_recipe(kind.recipe_class, config, [*given, f"output_dir={output / task.name}"])
            complete_published(recipes[task.name])
            refuse_push(recipes[task.name])
        except ValueError as error:
            raise ValueError(f"Task {task.name}: {error}") from error
    if unused := [name for name in shared if name not in used]:
        raise ValueError(
            f"Override `{shared[unused[0]]}`: no recipe of suite {suite.name} has a field {unused[0]}, and it has no "
            f"task of that name. {nearest(unused[0].partition('.')[0], [*names, *fields])}"
        )
    return {name: recipe for name, recipe in recipes.items() if name in wanted}


def _refuse_what_the_suite_sets(task: SuiteTask, overrides: list[str]) -> None:
    """Raises ValueError if an override sets a field of the whole suite for one task."""
    for override in overrides:
        field = override.partition("=")[0].strip()
        if field in ("output_dir", "model") or (field == "init_from" and task.init_from):
            raise ValueError(
                f"Override `{task.name}.{override}`: {field} is the whole suite's. Leave out the task's name."
            )


def run_suite(suite: Suite, recipes: dict[str, TaskRecipe], left_out: dict[str, str], command: list[str]) -> None:
    """Runs the tasks that are not finished, then writes and shows the table of all finished ones.

    Raises ValueError if another command uses the folder, and after all tasks if one has failed.
    """
    from accelerate import PartialState

    from finetuning.run_folder import check_same_recipe
    from finetuning.seeds import check_hardware
    from zoo_core.provenance import folder_fingerprint

    if not recipes:
        raise ValueError(f"No task of suite {suite.name} can be run: {left_out}. Check hub_root, or the connection.")
    is_main = PartialState().is_main_process
    fingerprint = functools.cache(folder_fingerprint)
    jobs = []
    for name, recipe in recipes.items():
        source = source_of(recipe)
        needs = (source,) if source in recipes else ()
        jobs.append(RecipeJob(name, recipe, command, fingerprint, needs=needs))
    output = jobs[0].folder.parent
    with run_lock(output):
        check_folder(suite, output)
        for job in jobs:
            check_hardware(job.recipe.precision)
            check_length(job.name, job.recipe)
            if (job.folder / "recipe.yaml").is_file():
                check_same_recipe(job.folder, job.recipe)
        PartialState().wait_for_everyone()  # every process has looked at the folder before the first file appears
        if is_main:
            write_json(output / MARKER, _names(suite))
            for name, reason in left_out.items():
                print(f"{name} is left out: {reason}")
        failed = run_jobs(jobs, keep_going=True, log=print if is_main else lambda text: None)
        PartialState().wait_for_everyone()
        if is_main:
            report(suite, left_out | {name: f"failed: {error}" for name, error in failed.items()}, output)
    if failed:
        raise ValueError(f"{', '.join(failed)} failed, see above. The same command runs only these again.")


def check_folder(suite: Suite, output: Path) -> None:
    """Raises ValueError if the folder holds something other than runs of this suite."""
    if not_own(output, rf"\.{re.escape(MARKER)}\.\d+\.tmp"):
        found = read_json(output / MARKER, None)
        if found != _names(suite):
            held = f"the suite {found['name']}: {', '.join(found['tasks'])}" if found else "something else"
            raise ValueError(f"output_dir {output} holds {held}. Name another folder, as in output_dir=runs/mine.")


def _names(suite: Suite) -> dict[str, Any]:
    return {"name": suite.name, "tasks": [task.name for task in suite.tasks]}


def check_length(name: str, recipe: TaskRecipe) -> None:
    """Raises ValueError for a model that does not exist, or has fewer positions than a task's inputs."""
    from finetuning.models import read_config
    from modeling.model_types import longest_input

    for model in models_of(recipe):
        positions = longest_input(read_config(model, recipe.hub_root, recipe.trust_remote_code))
        if None not in (recipe.max_length, positions) and recipe.max_length > positions:
            raise ValueError(
                f"{name}.max_length is {recipe.max_length}, and {model} has {positions} positions. Set "
                f"{name}.max_length={positions}."
            )


def report(suite: Suite, left_out: dict[str, str], output: Path) -> None:
    """Writes the table of the suite into `output`, and shows it.

    It includes tasks that an earlier command ran and that are not part of this one.
    """
    found = [task.name for task in suite.tasks if (output / task.name / "results.json").is_file()]
    results = {name: read_results(output / name) for name in found}
    if not results:
        return
    benchmark.check_one_model(str(output), results)
    name = run_name(next(iter(results.values()))["model"]["folder"])
    runs = {name: results}
    benchmark.write(benchmark.build({name: dataclasses.asdict(suite)}, runs, left_out), runs, output, "results")
