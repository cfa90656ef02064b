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
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas
from omegaconf import MISSING

from finetuning.data.rows import filled
from finetuning.data.task_tables import training_languages
from finetuning.page import DIFFERS, differences_to, joint_warnings, write_page
from finetuning.plots import plot_bars
from finetuning.published import find, load, look_up
from finetuning.recipe import LabeledTable, Published, TaskRecipe
from finetuning.results import AVERAGE, FORMAT, Results, Summary, read_results, run_name, summary, with_deviation
from finetuning.runs import run_all
from finetuning.tasks.registry import KINDS, kind_of, task_of
from zoo_core.command_line import SAME_COMMAND, CommandParser, user_errors
from zoo_core.console import quiet_libraries
from zoo_core.processes import start_processes, stop_signals
from zoo_core.provenance import write_json
from zoo_core.recipes import load_recipe, nearest, option
from zoo_core.run_folders import not_own, run_lock
from zoo_core.tables import Table, describe, resolve_hub_path

NOT_THERE = (FileNotFoundError, ConnectionError)  # of tables; the latter of a Hub that cannot be reached
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
    text = "sets a field in every recipe that has it, or in one task's"
    parser.add_argument("overrides", nargs="*", metavar="[task.]field=value", help=text)
    options = parser.parse_intermixed_args(argv)
    with stop_signals(SAME_COMMAND), user_errors(SAME_COMMAND):
        suite, path = load_suite(options.suite)
        recipes = read_recipes(suite, path, options.overrides, options.tasks)
        quiet_libraries()
        start_processes()
        left_out: dict[str, str] = {}
        for name, recipe in list(recipes.items()) if options.skip_missing else ():
            try:
                if recipe.init_from and Path(recipe.init_from).name not in recipes:
                    raise FileNotFoundError(f"it starts from {Path(recipe.init_from).name}, which is not run")
                left_out |= {name: reason} if (reason := leave_out_missing(recipe)) else {}
            except NOT_THERE as error:
                left_out[name] = str(error)
                del recipes[name]
        if not options.check_data:
            return run_suite(suite, recipes, left_out, ["finetuning/run.py", *argv])
        from finetuning.training import check_data

        for recipe in recipes.values():
            check_data(task_of(replace(recipe, init_from=None) if recipe.init_from else recipe))
        for name, reason in left_out.items():
            print(f"{name}: {reason}")


def load_suite(name: str) -> tuple[Suite, Path]:
    """Reads a suite: the name of a file in finetuning/suites, or a path. Returns the suite and the path.

    Raises ValueError for a suite that does not exist, for two tasks with one name, and for a task that starts from one
    that is not before it.
    """
    known = sorted(path.stem for path in SUITES.glob("*.yaml"))
    path = Path(name) if Path(name).is_file() else SUITES / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"--suite {name} is neither a file nor one of {', '.join(known)}. {nearest(name, known)}")
    suite = load_recipe(Suite, str(path), [])
    names = [task.name for task in suite.tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{path} has the tasks {', '.join(names) or '(none)'}. Name at least one, and each only once.")
    for number, task in enumerate(suite.tasks):
        if task.init_from not in (None, *names[:number]):
            raise ValueError(f"Task {task.name} of {path} starts from {task.init_from!r}, which is no task before it.")
    return suite, path


def read_recipes(suite: Suite, path: Path, overrides: list[str], chosen: list[str] | None) -> dict[str, TaskRecipe]:
    """Returns the recipes of the chosen tasks and of those that they start from, with the overrides.

    Fine-tuned models are kept if another task starts from them, or if an override asks for it.

    Raises ValueError for an unknown task, an override of a field that no recipe has, without a model, and as
    `load_recipe`.
    """
    names = [task.name for task in suite.tasks]
    if unknown := [name for name in chosen or () if name not in names]:
        raise ValueError(f"--tasks has {unknown[0]!r}. {nearest(unknown[0], names)}")
    own: dict[str, list[str]] = {name: [] for name in names}
    shared: dict[str, str] = {}  # by field
    for override in overrides:
        field = override.partition("=")[0].strip()
        task, _, of_task = field.partition(".")
        if task not in names:
            shared[field] = override
        elif of_task in ("model", "output_dir", "init_from"):
            raise ValueError(f"Override `{override}`: this field is the whole suite's.")
        else:
            own[task].append(override.partition(".")[2])
    if "model" not in shared:
        raise ValueError(f"Suite {suite.name} needs a model, as in model=FacebookAI/xlm-roberta-base.")
    default = Path("runs") / run_name(shared["model"].partition("=")[2]) / path.stem
    output = Path(shared.pop("output_dir", "").partition("=")[2] or default)
    recipes: dict[str, TaskRecipe] = {}
    known, wanted, starts = {*names}, {*(chosen or names)}, {task.init_from for task in suite.tasks}
    for task in suite.tasks:
        config = str((path.parent / task.recipe).resolve())
        kind = KINDS[kind_of(["--config", config])]
        fitting = {item.name for item in fields(kind.recipe_class)} - ({"seeds"} if not kind.is_trained else set())
        known |= fitting
        texts = [f"save_models={str(task.name in starts).lower()}"] if kind.is_trained else []
        texts += [*task.overrides, *(text for name, text in shared.items() if name.partition(".")[0] in fitting)]
        texts += [*own[task.name], *([f"init_from={output / task.init_from}"] if task.init_from else [])]
        try:
            recipes[task.name] = load_recipe(kind.recipe_class, config, [*texts, f"output_dir={output / task.name}"])
        except ValueError as error:
            raise ValueError(f"Task {task.name}: {error}") from error
    if unused := [name for name in shared if name.partition(".")[0] not in known]:
        raise ValueError(
            f"Override `{shared[unused[0]]}`: no recipe has this field. {nearest(unused[0], sorted(known))}"
        )
    for task in reversed(suite.tasks):  # what a task starts from is before it
        wanted |= {task.init_from} if task.name in wanted else set()
    return {name: recipe for name, recipe in recipes.items() if name in wanted}


def leave_out_missing(recipe: TaskRecipe) -> str:
    """Removes the languages whose tables do not exist from a recipe; returns which, as its results say it too.

    No rows are read. Raises one of `NOT_THERE` if training rows do not exist, or if no language is left to evaluate.
    """
    for table in getattr(recipe, "train", []):
        languages = training_languages(recipe, table) if isinstance(table, LabeledTable) else []
        for language in languages or [""]:
            find_tables(table, language, recipe.hub_root)
    missing: dict[str, str] = {}
    tables = next(getattr(recipe, name) for name in ("evaluation", "pairs", "test") if hasattr(recipe, name))
    for table in list(tables):
        languages, found = getattr(table, "languages", []), []
        for language in languages or [""]:
            try:
                find_tables(table, language, recipe.hub_root)
                found.append(language)
            except NOT_THERE as error:
                missing[language or getattr(table, "name", table.path)] = str(error)
        if not found:
            tables.remove(table)
        elif languages:
            table.languages = found
    if not tables:
        raise FileNotFoundError(f"no table exists: {next(iter(missing.values()), 'none is named')}")
    reason = f"does not exist: {', '.join(missing)}" if missing else ""
    if missing:
        tables[0].note = "; ".join(filter(None, (tables[0].note, f"left out, {reason}")))
    return reason


def find_tables(part: Any, language: str, hub_root: str | None, split: str = "train") -> None:
    """Looks for every table in a part of a recipe, in a language. Raises one of `NOT_THERE` where there is none.

    `split` is that of a table without one, such as a pair's other side.
    """
    import datasets

    if hasattr(part, "files"):
        for file in part.files(hub_root):
            file.stat()
    if language:
        part = filled(part, language)
    split = getattr(part, "split", None) or split
    for inner in filter(is_dataclass, vars(part).values()):
        find_tables(inner, "", hub_root, split)
    if isinstance(part, Table) and not Path(path := resolve_hub_path(part.path, hub_root)).is_file():
        is_there = part.config in (None, *datasets.get_dataset_config_names(path))
        splits = datasets.get_dataset_split_names(path, part.config) if is_there else []
        if re.split(r"[\[+]", split)[0] not in splits:
            raise FileNotFoundError(f"{describe(part)} does not exist.")


def run_suite(suite: Suite, recipes: dict[str, TaskRecipe], left_out: dict[str, str], command: list[str]) -> None:
    """Runs the tasks that are not finished, then writes and shows the table of all finished ones.

    Raises ValueError if another command uses the folder or it holds something else, for a model that cannot be read,
    and after all tasks if one has failed.
    """
    from accelerate import PartialState

    from finetuning.models import read_config

    if not recipes:
        raise ValueError(f"No task of suite {suite.name} can be run: {left_out}. Check hub_root, or the connection.")
    names, first = [task.name for task in suite.tasks], next(iter(recipes.values()))
    output = Path(first.output_dir).parent
    read_config(first.model.replace("{seed}", str(first.seeds[0])), first.hub_root, first.trust_remote_code)
    with run_lock(output):
        if held := not_own(output, rf"\.?results\.(json|md|csv|png)(\.\d+\.tmp)?|{'|'.join(map(re.escape, names))}"):
            raise ValueError(f"output_dir {output} holds {held[0]}, which is not of suite {suite.name}. Name another.")
        PartialState().wait_for_everyone()  # every process has looked at the folder before the first file appears
        failed = run_all(recipes, command, keep_going=True)
        if PartialState().is_main_process:
            left_out = left_out | {name: f"failed: {error}" for name, error in failed.items()}
            found = {name: read_results(output / name) for name in names if (output / name / "results.json").is_file()}
            if len({frozenset(of["model"]["fingerprint"].split("+")) for of in found.values()}) > 1:
                models = "; ".join(f"{task}: {of['model']['folder']}" for task, of in found.items())
                raise ValueError(f"The tasks in {output} have other models ({models}). Use one output_dir per model.")
            if found:
                write(suite, found, output / "results", left_out)
    if failed:
        raise ValueError(f"{', '.join(failed)} failed, see above. The same command runs only these again.")


def scores_of(suite: Suite, found: Tasks) -> dict[str, Summary]:
    """By task and AVERAGE: the mean over shown metrics, languages and the tasks that have results, as XTREME.

    It is taken seed by seed if all trained tasks have the same seeds; a task that trains nothing counts with its score
    for every seed, unless it has a score for each. With other seeds, it is the mean of the tasks' means. Raises
    ValueError for a score that the results do not have.
    """
    scores, trained = {}, []
    for task in suite.tasks:
        if (results := found.get(task.name)) is None:
            continue
        if unknown := set(task.scores) - set(results.metrics):
            raise ValueError(f"Task {task.name} shows {min(unknown)!r}; its results have {results.metrics}.")
        shown = [results.table(name)[AVERAGE] for name in task.scores or [results.metric]]
        scores[task.name] = sum(shown) / len(shown)
        trained += [task.name] if results.protocol.training_data else []
    seeds, *others = dict.fromkeys(tuple(scores[name].index) for name in trained or [*scores][:1])
    own = {name: of if tuple(of.index) == seeds else of.mean() for name, of in scores.items()}
    average = summary(pandas.DataFrame(own, index=seeds).mean(axis=1))
    if others:
        average = {"scores": [], "mean": fmean(of.mean() for of in scores.values()), "sd": None}
    return {**{name: summary(of) for name, of in scores.items()}, AVERAGE: average}


def published_of(suite: Suite, found: Tasks) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The published rows by title, as text by task, and a line for each task that they measure in another way."""
    columns: dict[str, dict[str, str]] = {}
    differs: dict[str, dict[str, None]] = {}
    for item in suite.published:
        table, row = find(item.paper, item.table, item.row)
        scores = [table.scores(row, metric) for metric in table.metrics]
        cells = {
            task.name: " / ".join(f"{of[task.name]:.1f}" for of in scores if task.name in of) for task in suite.tasks
        }
        columns[f"{load(item.paper).paper}, {item.table}: {item.row}"] = cells
        for task, results in found.items():
            if cells[task]:
                reference = look_up(asdict(item), task, results["kind"], results.metric, results.names)
                ways = differences_to(results, [reference.pooling])
                ways += ["other languages"] * (reference.average is None)
                differs.setdefault(task, {}).update(dict.fromkeys(ways))
        if set(table.columns) == set(cells):  # else its average is over other tasks
            cells[AVERAGE] = next((f"{average:.1f}" for average in row.average.values()), "")
    return columns, [f"{task}: {DIFFERS}: {', '.join(ways)}" for task, ways in differs.items() if ways]


def write(suite: Suite, found: Tasks, path: Path, left_out: dict[str, str]) -> None:
    """Writes the table of a model as JSON, Markdown, CSV (a row per score) and PNG, and shows it."""
    scores, (published, lines) = scores_of(suite, found), published_of(suite, found)
    run = run_name(next(iter(found.values()))["model"]["folder"])
    cells = {row: with_deviation(entry) for row, entry in scores.items()}
    for task in suite.tasks:
        if task.name in found:
            shown = [found[task.name].of(AVERAGE, name) for name in task.scores or [found[task.name].metric]]
            cells[task.name] = " / ".join(map(with_deviation, shown))
    columns = [cells, *published.values()]
    names = [task.name for task in suite.tasks]
    table = ["task", run, *published], [[row, *(of.get(row, "") for of in columns)] for row in (*names, AVERAGE)]
    missing = [name for name in names if name not in found]
    warnings = [*filter(None, [suite.note]), *(f"{task}: {reason}" for task, reason in left_out.items())]
    warnings += [f"averages are over other tasks: without {', '.join(missing)}"] if missing else []
    warnings += [*lines, *joint_warnings(found)]
    picture = path.with_suffix(".png")
    plot_bars({run: {name: scores[name] for name in found}}, picture, suite.name, "score (%)")
    write_page(path, suite.name, table, {"Warnings": warnings}, picture, [of.frame(run=run) for of in found.values()])
    facts = {"format": FORMAT, "kind": "benchmark", "suite": asdict(suite), "left_out": left_out}
    write_json(path.with_suffix(".json"), {**facts, "scores": {run: scores}, "warnings": warnings})
