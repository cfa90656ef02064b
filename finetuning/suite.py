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

Writes the results of the whole benchmark into output_dir: results.json, results.md, results.csv and results.png.
"""

import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean

import pandas
from omegaconf import MISSING

from finetuning.page import (
    differences_to,
    is_at_chance,
    joint_warnings,
    language_table,
    markdown_list,
    markdown_table,
    print_table,
)
from finetuning.plots import plot_bars
from finetuning.published import XTREME_POOLING, find, languages_of, load, pair_of
from finetuning.recipe import Published, TaskRecipe
from finetuning.results import FORMAT, Results, Summary, read_results, run_name, summary, with_deviation
from finetuning.runs import run_all
from finetuning.tasks.registry import KINDS, kind_of, task_of
from zoo_core.command_line import SAME_COMMAND, CommandParser, user_errors
from zoo_core.processes import stop_signals
from zoo_core.provenance import write_csv, write_json
from zoo_core.recipes import load_recipe, nearest, option
from zoo_core.run_folders import not_own, run_lock

KIND = "benchmark"  # of the results.json of a suite
SUITES = Path(__file__).parent / "suites"
AT_CHANCE, LESS = "†", "§"
FOOTNOTES = {
    AT_CHANCE: "a seed is at chance, or at 0, in a language: see the warnings",
    LESS: "of other tasks or fewer languages: something is missing, was left out or has failed",
}

Tasks = dict[str, Results]  # by name


@dataclass
class SuiteTask:
    """A row of the table."""

    name: str = option(MISSING, "name of the task and its folder; also before its own overrides, as in xnli.max_length")
    category: str = option(MISSING, "category of the task; the table has its average")
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
        from zoo_core.console import quiet_libraries
        from zoo_core.processes import start_processes

        quiet_libraries()
        start_processes()
        left_out = leave_out_missing(recipes) if options.skip_missing else {}
        if not options.check_data:
            return run_suite(suite, recipes, left_out, ["finetuning/run.py", *argv])
        from finetuning.training import check_data

        for name, recipe in recipes.items():
            print(f"\n{name}")
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
    recipes: dict[str, TaskRecipe] = {}
    known, needed = dict.fromkeys(names), {task.init_from for task in suite.tasks}
    for task in suite.tasks:
        for override in own[task.name]:
            if override.partition("=")[0].strip() in ("model", "output_dir", "init_from" if task.init_from else ""):
                raise ValueError(f"Override `{task.name}.{override}`: this field is the whole suite's.")
        config = str((path.parent / task.recipe).resolve())
        kind = KINDS[kind_of(["--config", config])]
        fitting = {item.name: None for item in fields(kind.recipe_class)}
        known |= fitting
        given = [text for name, text in shared.items() if name.partition(".")[0] in fitting]
        if not kind.is_trained:
            given = [text for text in given if not text.startswith("seeds=")]
        kept = ["save_models=" + str(task.name in needed).lower()] if kind.is_trained else []
        start = [f"init_from={output / task.init_from}"] if task.init_from else []
        texts = [*kept, *task.overrides, *given, *own[task.name], *start, f"output_dir={output / task.name}"]
        try:
            recipes[task.name] = load_recipe(kind.recipe_class, config, texts)
        except ValueError as error:
            raise ValueError(f"Task {task.name}: {error}") from error
    if unused := [name for name in shared if name.partition(".")[0] not in known]:
        raise ValueError(
            f"Override `{shared[unused[0]]}`: no recipe of suite {suite.name} has this field, and it has no task of "
            f"that name. {nearest(unused[0].partition('.')[0], list(known))}"
        )
    wanted = set(chosen or names)
    for task in reversed(suite.tasks):  # what a task starts from is before it
        wanted |= {task.init_from} if task.name in wanted else set()
    return {name: recipe for name, recipe in recipes.items() if name in wanted}


def leave_out_missing(recipes: dict[str, TaskRecipe]) -> dict[str, str]:
    """Removes languages whose tables are missing, and tasks without training rows, languages or the task before them.

    Returns in words what was left out of each task.
    """
    from finetuning import missing

    left_out = {}
    for name, recipe in list(recipes.items()):
        try:
            before = Path(recipe.init_from or "").name
            if before in left_out and before not in recipes:
                raise ValueError(f"it starts from {before}, which is not run")
            if reason := missing.leave_out_missing(recipe):
                left_out[name] = reason
        except ValueError as error:
            left_out[name] = str(error)
            del recipes[name]
    return left_out


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
        PartialState().wait_for_everyone()
        if PartialState().is_main_process:
            left_out = left_out | {name: f"failed: {error}" for name, error in failed.items()}
            found = {name: read_results(output / name) for name in names if (output / name / "results.json").is_file()}
            if found:
                check_one_model(str(output), found)
                run = run_name(next(iter(found.values()))["model"]["folder"])
                write(suite, {run: found}, output / "results", left_out)
    if failed:
        raise ValueError(f"{', '.join(failed)} failed, see above. The same command runs only these again.")


def check_one_model(folder: str, found: Tasks) -> None:
    """Raises ValueError if the tasks of a folder were run with different models."""
    if len({frozenset(results["model"]["fingerprint"].split("+")) for results in found.values()}) > 1:
        names = "; ".join(f"{task}: {results['model']['folder']}" for task, results in found.items())
        raise ValueError(
            f"The tasks in {folder} were not run with the same model ({names}). Use one output_dir per model."
        )


def rows_of(suite: Suite) -> dict[str, list[str]]:
    """The rows of the table, and the tasks of each: tasks, the averages of categories, and the average of all."""
    rows: dict[str, list[str]] = {}
    for category in dict.fromkeys(task.category for task in suite.tasks):
        names = [task.name for task in suite.tasks if task.category == category]
        rows |= {name: [name] for name in names}
        rows |= {f"avg. {category}": names} if names[1:] else {}
    return rows | {"average": [task.name for task in suite.tasks]}


def column_of(suite: Suite, found: Tasks, left_out: dict[str, str]) -> dict[str, tuple[str, Summary]]:
    """A run's cell in each row, as text and as the mean over metrics, languages and tasks that have results.

    The score of a task is the mean over its languages, as in XTREME. Raises ValueError for a score that the results do
    not have.
    """
    tables = {}
    for task in suite.tasks:
        if task.name in found:
            results = found[task.name]
            if unknown := set(task.scores) - set(results.metrics):
                raise ValueError(f"Task {task.name} shows {min(unknown)!r}; its results have {results.metrics}.")
            scores = {name: results.table(name).mean(axis=1) for name in task.scores or [results.metric]}
            tables[task.name] = pandas.DataFrame(scores)
    trained = {name for name in tables if found[name].protocol.training_data}
    cells = {}
    for row, names in rows_of(suite).items():
        if own := {name: tables[name] for name in names if name in tables}:
            entry = average({name: table.mean(axis=1) for name, table in own.items()}, trained)
            text, mark = with_deviation(entry), LESS * (len(own) < len(names))
            if row in own:
                text = " / ".join(with_deviation(summary(scores)) for _, scores in own[row].items())
                mark = AT_CHANCE * is_at_chance(found[row]) + LESS * (row in left_out)
            cells[row] = text + mark, entry
    return cells


def average(scores: dict[str, pandas.Series], trained: set[str]) -> Summary:
    """The mean over tasks, seed by seed if all trained tasks have the same seeds, or else of the tasks' means.

    A task that trains nothing counts with its score for every seed, unless it has a score for each.
    """
    seeds = {tuple(of.index) for name, of in scores.items() if name in trained}
    seeds = seeds or {tuple(of.index) for of in list(scores.values())[:1]}
    if len(seeds) > 1:
        return {"scores": [], "mean": fmean(of.mean() for of in scores.values()), "sd": None}
    (index,) = seeds
    table = {name: of.to_list() if tuple(of.index) == index else of.mean() for name, of in scores.items()}
    return summary(pandas.DataFrame(table, index=index).mean(axis=1))


def published_of(suite: Suite, found: Tasks) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The published rows by title, as text by task, and a line for each task that they measure in another way."""
    columns: dict[str, dict[str, str]] = {}
    differs: dict[str, dict[str, None]] = {}
    for item in suite.published:
        table, row = find(item.paper, item.table, item.row)
        if table.columns_are != "tasks":
            raise ValueError(f"{item.table} of {item.paper} has columns for {table.columns_are}, not for tasks.")
        names, scores = [task.name for task in suite.tasks], [table.scores(row, metric) for metric in table.metrics]
        cells = {name: " / ".join(f"{of[name]:.1f}" for of in scores if name in of) for name in names}
        overall, mark = next(iter(row.average.values()), None), LESS * (set(table.columns) != set(names))
        columns[f"{load(item.paper).paper}, {item.table}: {item.row}"] = cells
        for task, results in found.items():
            if cells.get(task):
                ways = differences_to(results, [row.pooling or XTREME_POOLING.get(task)])
                languages = {pair_of(name, results.names) for name in languages_of(task, table) or results.names}
                ways += ["other languages"] * (languages != set(results.names))
                differs.setdefault(task, {}).update(dict.fromkeys(ways))
        cells["average"] = "" if overall is None else f"{overall:.1f}{mark}"
    said = "published scores were measured in another way"
    return columns, [f"{task}: {said}: {', '.join(ways)}" for task, ways in differs.items() if ways]


def write(suite: Suite, runs: dict[str, Tasks], path: Path, left_out: dict[str, str]) -> None:
    """Writes the table of some runs as JSON, Markdown, CSV (a row per score) and PNG, and shows it."""
    columns = {run: column_of(suite, found, left_out) for run, found in runs.items()}
    published, lines = published_of(suite, {task: of for found in runs.values() for task, of in found.items()})
    cells = [{row: text for row, (text, _) in column.items()} for column in columns.values()] + [*published.values()]
    rows = [[row, *(column.get(row, "") for column in cells)] for row in rows_of(suite)]
    table = ["task", *columns, *published], rows
    prefix = {run: f"{run}, " if runs.keys() - {run} else "" for run in runs}
    named = {prefix[run] + task: of for run, found in runs.items() for task, of in found.items()}
    warnings = [suite.note] if suite.note else []
    warnings += [*(f"{task}: {reason}" for task, reason in left_out.items()), *lines, *joint_warnings(named)]
    notes = [f"{mark} {text}" for mark, text in FOOTNOTES.items() if any(mark in cell for row in rows for cell in row)]
    names = [task.name for task in suite.tasks]
    bars = {run: {task: column[task][1] for task in names if task in column} for run, column in columns.items()}
    plot_bars(bars, path.with_suffix(".png"), suite.name, "score (%)")
    page = [f"# {suite.name}", "", *markdown_table(table), "", *(f"{line}  " for line in notes), ""]
    for run, found in runs.items():
        page += [f"## {run}", "", *markdown_table(language_table(found)), ""]
    page += [*markdown_list("Warnings", warnings), f"![scores]({path.name}.png)", ""]
    path.with_suffix(".md").write_text("\n".join(page), encoding="utf-8")
    frames = pandas.concat([of.frame(run=run) for run, found in runs.items() for of in found.values()])
    write_csv(path.with_suffix(".csv"), frames)
    scores = {run: {row: entry for row, (_, entry) in column.items()} for run, column in columns.items()}
    facts = {"format": FORMAT, "kind": KIND, "suite": asdict(suite), "left_out": left_out, "scores": scores}
    write_json(path.with_suffix(".json"), {**facts, "warnings": warnings})
    print_table(suite.name, table, [*notes, *warnings], f"{path}.json, md, csv, png")
