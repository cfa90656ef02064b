"""Runs one recipe many times, with another model, language or value each time, and makes one table of all runs.

    python -m finetuning.runs transfer_matrix --config finetuning/recipes/metaxlm/amazon.yaml --languages en,de,fr,ja \\
        --model XLM=runs/xlm/model --model MetaXLM=runs/metaxlm/model --output runs/matrix
    python -m finetuning.runs product --config finetuning/recipes/xlm_align/sample.yaml --model A=runs/a/model \\
        --vary max_train_examples=100,200 --output runs/examples

FIGURE is one of:
  transfer_matrix  each model, fine-tuned on each language and evaluated on all (MetaXLM, section 5.2 and Figure 6)
  supervised       each model, fine-tuned and tested in one language, and in one of --domains, which replaces
                   `{domain}` in path, config or `where` of the tables (MetaXLM, section 4.3 and Table 2)
  step_curves      each checkpoint of pre-training that --run NAME=FOLDER has kept (MetaXLM, Figure 5); folders of one
                   NAME are seeds of its pre-training. To keep all: save_every_steps=2000 keep_checkpoints=0
  product          each model with each combination of the values of --vary

The command writes FIGURE.md, FIGURE.csv (a row for each score) and FIGURE.png into --output, and each run into its own
folder there. To resume, use the same command: finished runs are not run again, and an interrupted one is resumed from
its last checkpoint. All recipes and finished runs are checked before the first run starts. Several processes work on
each run together, as in `accelerate launch --multi_gpu -m finetuning.runs ...`.
"""

import argparse
import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas

from finetuning.page import Table, joint_warnings, markdown_list, markdown_table, print_table, shown
from finetuning.plots import plot_bars, plot_heat_maps, plot_lines
from finetuning.published import find
from finetuning.recipe import Recipe, TaskRecipe
from finetuning.results import AVERAGE, Results, Summary, load_results, summary, with_deviation
from finetuning.tasks.registry import KINDS, kind_of, task_of
from zoo_core.command_line import SAME_COMMAND, CommandParser, user_errors
from zoo_core.processes import stop_signals
from zoo_core.provenance import read_json, write_csv, write_json
from zoo_core.recipes import change_recipe, load_recipe
from zoo_core.run_folders import not_own, run_lock

Keys = dict[str, Any]  # what a run differs in, by the name of the column
FIGURES = ("transfer_matrix", "supervised", "step_curves", "product")
OTHERS, GAP = "mean of others", "transfer gap"
NAME = re.compile(r"[\w+][\w .+-]*")  # of a model, such as MetaXLM or +Dict; folders are named after it
# Fields that only change the training. Others would change the data of a point, or what its scores measure.
SWEPT = ("training", "max_length", "doc_stride", "evaluate_every_steps")


def run_all(recipes: dict[str, TaskRecipe], command: list[str], keep_going: bool = False) -> dict[str, str]:
    """Runs the recipes that have no results yet, in their order; returns why some failed, by name.

    Without `keep_going`, all are checked before the first run, and the first failure is raised as ValueError.
    """
    from accelerate import PartialState

    from finetuning import training
    from finetuning.run_folder import HALF_WRITTEN

    log = print if PartialState().is_main_process else lambda text: None
    failed: dict[str, str] = {}
    if not keep_going:
        finished = sum([is_finished(recipe) for recipe in recipes.values()])
        log(f"{len(recipes)} runs: {finished} finished before, {len(recipes) - finished} to do")
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        folder = Path(recipe.output_dir)
        try:
            if is_finished(recipe):
                log(f"[{number}/{len(recipes)}] {name}: finished before")
                continue
            resume = folder.is_dir() and bool(not_own(folder, HALF_WRITTEN))
            log(f"\n[{number}/{len(recipes)}] {name}, {'interrupted' if resume else 'to do'}: {folder}")
            with run_lock(folder):
                training.run(task_of(recipe), resume, command)
        except ValueError as error:
            if not keep_going:
                raise ValueError(f"{name} ({folder}) failed: {error} Finished runs are kept.") from error
            failed[name] = str(error)
            print(f"{name} failed: {error}", file=sys.stderr)
    return failed


def is_finished(recipe: TaskRecipe) -> bool:
    """Whether the folder of a recipe has results of all its seeds.

    Raises ValueError for a model that cannot be read, and if the run in the folder has another recipe or other weights.
    """
    from finetuning.run_folder import RunFolder
    from finetuning.training import check_hardware

    if recipe.push_to_hub:
        raise ValueError(
            f"push_to_hub is {recipe.push_to_hub}, which has room for one model, and there are many runs. Leave it out."
        )
    check_hardware(recipe.precision)
    task, results = task_of(recipe), Path(recipe.output_dir) / "results.json"
    start = task.begin()
    if not results.is_file():
        return False
    folder = RunFolder(recipe, start.identity, resume=True)
    if not KINDS[recipe.kind].is_trained:
        task.check_run(None, folder)  # the weights of each seed's model
    return load_results(results)["seeds"] == recipe.seeds


def sweep(recipe: Recipe, resume: bool, command: list[str]) -> None:
    """Runs every combination of the values in `sweep` with the first seed, then the best one with all seeds.

    A point is a run in <output_dir>/sweep/<point>, scored on the development rows that `selection` names. Evaluated
    rows are predicted only with the best point, the first of equal ones; a point that diverges is never the best. The
    scores are in sweep.json, and the results say what they were chosen from.

    Raises ValueError for a recipe that cannot be swept, for a folder that is not empty without `resume` or holds
    another run, if the data have changed between points, and if every point diverges.
    """
    from accelerate import PartialState

    from finetuning import training
    from finetuning.run_folder import HALF_WRITTEN, RunFolder, not_empty
    from finetuning.training import Diverged, check_hardware

    folder, is_main = Path(recipe.output_dir), PartialState().is_main_process
    points = points_of(recipe)
    of_point = {name: change_recipe(recipe, overrides) for name, (_, overrides) in points.items()}
    once = dict(seeds=recipe.seeds[:1], sweep={}, save_models=False, push_to_hub=None)
    recipes = {name: replace(own, output_dir=str(folder / "sweep" / name), **once) for name, own in of_point.items()}
    identity: dict[str, Any] = {}
    for name, own in recipes.items():
        try:
            check_hardware(own.precision)
            identity = task_of(own).begin().identity
        except ValueError as error:
            raise ValueError(f"sweep, {name}: {error}") from None
    if not resume and (held := not_own(folder, HALF_WRITTEN)):
        raise not_empty(folder, held)
    PartialState().wait_for_everyone()  # every process has looked at the folder before a file of this session appears
    scores: dict[str, float] = {}
    for number, (name, own) in enumerate(recipes.items(), 1):
        is_begun = bool(not_own(Path(own.output_dir), HALF_WRITTEN))
        record = RunFolder(own, identity, True).finished(own.seeds[0]) if is_begun else None
        if is_main:
            print(f"[{number}/{len(recipes)}] {name}{': finished before' * bool(record)}", flush=True)
        try:
            record = record or training.run(task_of(own), is_begun, command, evaluate=False)[0]
            scores[name] = record["selection_score"]
        except Diverged as error:
            scores[name] = math.nan
            print(f"{name}: {error}", file=sys.stderr)
    data = [read_json(Path(own.output_dir) / "run.json", {}).get("data") for own in recipes.values()]
    if any(one not in (None, data[0]) for one in data):
        raise ValueError(f"The data have changed between the points of {folder}/sweep. Remove the older points.")
    best = max(scores, key=lambda name: -math.inf if math.isnan(scores[name]) else scores[name])
    if math.isnan(scores[best]):
        raise ValueError(f"All {len(scores)} points of the sweep diverged. Lower training.learning_rate in `sweep`.")
    if is_main:
        found = [{"values": points[name][0], "score": None if math.isnan(s) else s} for name, s in scores.items()]
        facts = {"fields": recipe.sweep, "model": identity["fingerprint"], "taken": points[best][0], "points": found}
        write_json(folder / "sweep.json", facts)
        rows = [[name, f"{score:.2f}", "taken" if name == best else ""] for name, score in scores.items()]
        print_table(f"{recipe.task}, sweep", (["point", "dev score", ""], rows), [], f"{folder}/sweep.json")
        print(f"best point: {best}; running it with seeds {recipe.seeds}", flush=True)
    PartialState().wait_for_everyone()
    training.run(task_of(of_point[best]), (folder / "recipe.yaml").is_file(), command)


def points_of(recipe: Recipe) -> dict[str, tuple[Keys, list[str]]]:
    """The points of a recipe's `sweep` by name, as values and overrides; the last field changes fastest.

    Raises ValueError for a recipe without `sweep` or development scores, and for fields that cannot be swept.
    """
    grid = getattr(recipe, "sweep", None)
    if not grid:
        raise ValueError("--sweep needs `sweep` of the recipe, as in sweep={training.learning_rate: [1e-5, 2e-5]}.")
    if recipe.selection == "last":
        raise ValueError("--sweep is given, and selection is last. Use selection=source_dev or selection=mean_dev.")
    for field, values in grid.items():
        if field.partition(".")[0] not in SWEPT:
            raise ValueError(f"sweep names {field}. Sweep over fields of {', '.join(SWEPT)}.")
        if not values or len({json.dumps(value) for value in values}) < len(values):
            raise ValueError(f"sweep.{field} is {values}. Name at least one value, and each once.")
    found = {}
    for values in itertools.product(*grid.values()):
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        overrides = [f"{field}={text}" for field, text in zip(grid, texts, strict=True)]
        found[",".join(overrides).replace("training.", "")] = dict(zip(grid, values, strict=True)), overrides
    return found


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    options = read_options(argv)
    with stop_signals(SAME_COMMAND), user_errors(SAME_COMMAND):
        points = list(recipes_of(options))
        from accelerate import PartialState

        from zoo_core.console import quiet_libraries
        from zoo_core.processes import start_processes

        quiet_libraries()
        start_processes()
        recipes = {Path(recipe.output_dir).relative_to(options.output).as_posix(): recipe for _, recipe in points}
        if len(recipes) < len(points):
            raise ValueError(f"{len(points)} runs would share {len(recipes)} folders. Give each value once.")
        with run_lock(options.output):
            run_all(recipes, ["finetuning.runs", *(sys.argv[1:] if argv is None else argv)])
            PartialState().wait_for_everyone()
            if PartialState().is_main_process:
                write(options, [(keys, load_results(Path(r.output_dir) / "results.json")) for keys, r in points])


def read_options(argv: list[str] | None) -> argparse.Namespace:
    """Returns the parsed command line."""

    def listed(text: str) -> list[str]:
        return text.split(",")

    def named(text: str) -> tuple[str, str]:
        name, _, path = text.partition("=")
        if not NAME.fullmatch(name) or not path:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not NAME=VALUE with letters, digits, spaces, _ . + - in NAME"
            )
        return name, path

    parser = CommandParser(description=__doc__)
    parser.add_argument("figure", metavar="FIGURE", choices=FIGURES, help="what differs between the runs")
    parser.add_argument("--config", required=True, metavar="FILE", help="the recipe")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder of the runs and the table")
    of_models = dict(action="append", type=named, default=[])
    parser.add_argument("--model", metavar="NAME=MODEL", help="a model; once per model", **of_models)
    parser.add_argument("--run", metavar="NAME=DIR", help="step_curves: a run of pre-training", **of_models)
    parser.add_argument("--languages", type=listed, metavar="A,B", help="transfer_matrix and supervised: the languages")
    parser.add_argument("--domains", type=listed, default=[""], metavar="A,B", help="supervised: the domains")
    parser.add_argument("--steps", type=listed, default=[], metavar="N,N", help="step_curves: steps; default: all")
    vary = dict(action="append", type=named, default=[], metavar="FIELD=A,B")
    parser.add_argument("--vary", help="product: a field of the recipe and its values", **vary)
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="sets a field of the recipe in every run")
    options = parser.parse_intermixed_args(argv)
    needs = {"step_curves": ["run"], "product": ["vary"]}.get(options.figure, ["model", "languages"])
    if absent := [name for name in needs if not getattr(options, name)]:
        parser.error(f"{options.figure} needs --{absent[0]}")
    return options


def recipes_of(options: argparse.Namespace) -> Iterable[tuple[Keys, Any]]:
    """The recipe of each run of a figure, and what it differs in. Raises ValueError for a recipe that does not fit."""
    kind = KINDS[kind_of(["--config", options.config, *options.overrides])]

    def load(keys: Keys, own: list[str]) -> Any:
        kept = ["save_models=false"] if kind.is_trained else []
        folder = options.output / "/".join(str(value).replace("/", "-") for value in keys.values())
        return load_recipe(kind.recipe_class, options.config, [*kept, *options.overrides, *own, f"output_dir={folder}"])

    if options.figure in ("transfer_matrix", "supervised") and not issubclass(kind.recipe_class, Recipe):
        raise ValueError(f"{options.config} has kind {kind.recipe_class.kind}, which has no language to be trained in.")
    if options.figure == "transfer_matrix":
        for (name, model), source in itertools.product(options.model, options.languages):
            keys = {"run": name, "from": source}
            yield keys, in_language(load(keys, [f"model={model}", "published=null"]), source, options.languages)
    elif options.figure == "supervised":
        for (name, model), language, domain in itertools.product(options.model, options.languages, options.domains):
            keys = {"run": name, "trained and tested on": f"{language} {domain}".strip()}
            recipe = load(keys, [f"model={model}", "setting=supervised"])
            yield keys, in_language(with_domain(recipe, domain), language, [language])
    elif options.figure == "step_curves":
        for name, folder, step, model in checkpoints_of(options.run, options.steps):
            keys = {"run": name, "folder": folder, "step": step}
            yield keys, load(keys, [f"model={model}"])
    else:
        names, values = zip(*((field, text.split(",")) for field, text in options.vary), strict=True)
        for (name, model), *point in itertools.product(options.model or [("", "")], *values):
            keys = ({"run": name} if name else {}) | dict(zip(names, point, strict=True))
            own = [f"{field}={value}" for field, value in zip(names, point, strict=True)]
            yield keys, load(keys, [*own, *([f"model={model}"] if name else [])])


def in_language(recipe: Recipe, source: str, evaluated: Sequence[str]) -> Recipe:
    """Makes `source` the language of the training rows, and evaluates these languages.

    Tables with `{language}` or a `language_column` are read in that language; others keep their language.
    Raises ValueError if no training table is left, or if a language is not evaluated.
    """
    from finetuning.data.rows import has_place_for_language

    train, evaluation, left = [], [], list(evaluated)
    for table in recipe.train:
        if has_place_for_language(table) or table.language_column:
            if source in (table.languages or [source]):
                train.append(replace(table, languages=[source]))
        elif source in (table.languages or [recipe.source_language]):
            train.append(table)
    for table in recipe.evaluation:
        is_open = table.language_column and not table.languages
        if own := [name for name in left if is_open or name in table.languages]:
            evaluation.append(replace(table, languages=own))
            left = [name for name in left if name not in own]
    if not train or left:
        raise ValueError(
            f"No {'evaluation' if train else 'training'} table has rows in {left[0] if train else source}. "
            "Write {language} into its path or config, set language_column, or leave out that language."
        )
    return replace(recipe, train=train, evaluation=evaluation, source_language=source)


def with_domain(recipe: Recipe, domain: str) -> Recipe:
    """Replaces `{domain}` in the texts of a recipe. Raises ValueError for a domain without a place, or none for one."""
    text = json.dumps(asdict(recipe))
    if ("{domain}" in text) != bool(domain):
        raise ValueError(
            "Give --domains for a recipe with {domain} in path, config or where of its tables, and only then."
        )
    return load_recipe(type(recipe), json.loads(text.replace("{domain}", json.dumps(domain)[1:-1])), [])


def checkpoints_of(runs: list[tuple[str, str]], wanted: list[str]) -> Iterable[tuple[str, str, int, Path]]:
    """Name, folder, step and model of each checkpoint of pre-training runs, and of the final model if it is later.

    Of folders of one name, the steps that all have. Raises ValueError for a folder without checkpoints, and for wanted
    steps that are missing.
    """
    found: dict[str, dict[str, dict[int, Path]]] = {}
    for name, folder in runs:
        models = {int(p.parent.name[5:]): p for p in Path(folder).glob("checkpoints/step-*/model") if p.is_dir()}
        last = read_json(Path(folder) / "run.json", {}).get("steps")
        if last is not None and (Path(folder) / "model").is_dir():
            models.setdefault(last, Path(folder) / "model")
        if not models:
            raise ValueError(
                f"{folder} is no folder of a pre-training run with checkpoints (checkpoints/step-N/model)."
            )
        found.setdefault(name, {})[Path(folder).name] = models
    for name, folders in found.items():
        steps = sorted(set.intersection(*map(set, folders.values())))
        if missing := [step for step in wanted if step not in map(str, steps)]:
            raise ValueError(f"--steps has {missing[0]}, and the folders of {name} have models of the steps {steps}.")
        if not steps:
            raise ValueError(f"The folders of {name} have no step in common. Pre-train them with keep_checkpoints=0.")
        for folder, models in folders.items():
            yield from ((name, folder, step, models[step]) for step in steps if not wanted or str(step) in wanted)


def write(options: argparse.Namespace, found: list[tuple[Keys, Results]]) -> None:
    """Writes <figure>.md, csv and png into the output folder, and shows the tables; runs in one cell are pooled."""
    figure, (_, first) = options.figure, found[0]
    path, title = options.output / figure, f"{first.title}, {figure.replace('_', ' ')}"
    rows = pandas.DataFrame([row for item in found for row in figures_of(*item)])
    names = [name for name in rows.columns if name not in ("run", "folder", "figure", "value")]
    rows["row"], rows["run"] = rows[names].astype(str).agg(", ".join, axis=1), rows.get("run", "")
    corner, picture, published = ", ".join(names), path.with_suffix(".png"), {}
    if figure == "supervised":
        tables = {"": cells(rows, "run")}
        for column in tables[""].values():
            of_seeds = zip(*(entry["scores"] for entry in column.values()), strict=True)
            column[AVERAGE] = summary(map(statistics.fmean, of_seeds))
        published = published_of(first, set(rows["row"]))
        plot_bars(tables[""], picture, title, "score (%)", marks={"published": published} if published else None)
    elif figure == "step_curves":
        kept = [OTHERS, first.get("source_language"), GAP] if first.transfer else [first.with_average[-1]]
        rows = rows[rows["figure"].isin(kept)]
        tables = {run: cells(of_run, "figure") for run, of_run in rows.groupby("run", sort=False)}
        panels: dict[str, dict[str, dict[int, Summary]]] = {}
        for run, columns in tables.items():
            for name in kept:
                panels.setdefault(name, {})[run] = {int(step): of for step, of in columns[name].items()}
        plot_lines(panels, picture, title, "pre-training steps", "score (%)")
    else:
        tables = {run: cells(of_run, "figure") for run, of_run in rows.groupby("run", sort=False)}
        if figure == "transfer_matrix":
            maps = {
                run: {row: {name: columns[name][row]["mean"] for name in first.names} for row in options.languages}
                for run, columns in tables.items()
            }
            plot_heat_maps(maps, picture, title, "evaluated on", "fine-tuned on")
        else:
            groups = {run: columns[first.with_average[-1]] for run, columns in tables.items()}
            plot_bars(groups, picture, title, "score (%)")
    page = [f"# {title}", ""]
    for name, columns in tables.items():
        table = as_table(corner, columns, published)
        page += [*([f"## {name}", ""] if name else []), *markdown_table(table), ""]
        print_table(name or title, table, [])
    warnings = joint_warnings({", ".join(map(str, keys.values())): results for keys, results in found})
    page += [*markdown_list("Warnings", warnings), f"![{title}]({picture.name})", ""]
    path.with_suffix(".md").write_text("\n".join(page), encoding="utf-8")
    write_csv(path.with_suffix(".csv"), pandas.concat([results.frame(**keys) for keys, results in found]))
    print(f"written: {path}.md, csv, png")


def figures_of(keys: Keys, results: Results) -> list[dict[str, Any]]:
    """The reported scores of a run, a row for each seed and language, average, mean of others and transfer gap."""
    transfer, found = results.transfer, results.languages
    found |= {OTHERS: transfer["others"], GAP: transfer["gap"]} if transfer else {}
    found |= {AVERAGE: results.average} if results.names[1:] else {}
    return [{**keys, "figure": name, "value": score} for name, entry in found.items() for score in entry["scores"]]


def cells(rows: pandas.DataFrame, columns: str) -> dict[str, dict[str, Summary]]:
    """The scores of a table by the values of a column and by `row`."""
    return {
        name: {row: summary(values) for row, values in of_column.groupby("row", sort=False)["value"]}
        for name, of_column in rows.groupby(columns, sort=False)
    }


def as_table(corner: str, columns: dict[str, dict[str, Summary]], published: dict[str, float]) -> Table:
    """Header and rows of {column: {row: summary}}, with a last column of published scores."""
    names = dict.fromkeys(row for column in columns.values() for row in column)
    rows = [
        [row, *(with_deviation(column[row]) if row in column else "" for column in columns.values())] for row in names
    ]
    if not published:
        return [corner, *columns], rows
    return [corner, *columns, "published"], [[*row, shown(published.get(row[0]))] for row in rows]


def published_of(results: Results, names: Iterable[str]) -> dict[str, float]:
    """The scores of the published row that a recipe names, by column, and their average if the columns are `names`."""
    if not results["published"]:
        return {}
    item = results["published"][0]
    table, row = find(item["paper"], item["table"], item["row"])
    scores = {column: score for column, score in table.scores(row, results.metric).items() if column in names}
    return scores | ({AVERAGE: row.average[results.metric]} if set(table.columns) == set(scores) else {})


if __name__ == "__main__":
    main()
