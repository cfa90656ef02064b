"""Many runs of one recipe, to make one table of: what step_curves, transfer_matrix and supervised share.

Each run is what finetuning/run.py would do with the same recipe, in a folder of its own below --output, with its own
results.json, results.md and run.json. The runs follow each other in this process: libraries are loaded once, one model
is in memory at a time, and what is wrong with a run is told in its own words. Several processes all take part in each
run, as in `accelerate launch --multi_gpu -m finetuning.experiments.transfer_matrix ...`.

The same command again goes on: finished runs are read, not run, and an interrupted one goes on from its last
checkpoint. Every recipe and every finished run is checked before anything is run.
"""

import argparse
import functools
import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetuning.results.files import Table, load_results, print_table, summary
from finetuning.results.published_rows import complete_published
from finetuning.tasks.registry import KINDS, kind_of
from zoo_core.provenance import folder_fingerprint
from zoo_core.recipes import load_recipe
from zoo_core.tables import resolve_hub_path

NAME = re.compile(r"[\w+][\w .+-]*")  # of a model, such as MetaXLM or +Dict: it names a folder
OVERRIDE = re.compile(r"[\w.]+=")
SEED = "{seed}"


@dataclass(frozen=True)
class GridRun:
    """One run: its name in messages, its folder, the model that it starts from and what it changes in the recipe."""

    name: str
    folder: Path
    model: str
    adjust: Callable[[Any], None] = lambda recipe: None


@dataclass(frozen=True)
class Grid:
    """What a command line asks for: the options of the command, the recipe file, the overrides, and the command."""

    options: argparse.Namespace
    config: str
    overrides: list[str]
    output: Path
    command: list[str]


def parser_of(description: str) -> argparse.ArgumentParser:
    """A parser with the options that every grid has: --config, --output and overrides of the recipe."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="recipe of the runs; see `finetuning/run.py --help`",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="where the table and the runs' folders are")
    parser.add_argument(
        "overrides", nargs="*", metavar="field=value", help="sets a field of the recipe in every run, as in seeds=[1,2]"
    )
    return parser


def parse(parser: argparse.ArgumentParser, argv: list[str] | None, fixed: dict[str, str], program: str) -> Grid:
    """The command line; `fixed` names fields of the recipe that options of the command set, and which ones.

    Raises ValueError for an override of such a field.
    """
    options = parser.parse_intermixed_args(argv)
    lists = [getattr(options, name, None) or [] for name in ("languages", "domains", "steps")]
    for values in (*lists, *getattr(options, "run", [])):
        # `--languages en de seeds=[1]`: what follows a list is taken for a part of it
        options.overrides += [value for value in values if OVERRIDE.match(value) and not Path(value).exists()]
        values[:] = [value for value in values if value not in options.overrides]
    for override in options.overrides:
        field = override.partition("=")[0].strip()
        if flag := ({"output_dir": "--output"} | fixed).get(field):
            raise ValueError(
                f"Override `{override}`: {field} is another one in each run, and {flag} says which. It would be "
                f"overwritten. Use {flag}."
            )
    if Path(options.output).is_file():
        raise ValueError(
            f"--output {options.output} is a file. The table and the runs' folders need a folder. Name another one."
        )
    command = sys.argv if argv is None else [f"finetuning/{program}.py", *argv]
    return Grid(options, options.config, options.overrides, Path(options.output), command)


def add_models(parser: argparse.ArgumentParser) -> None:
    """Adds --model NAME=PATH, several times, and --languages."""
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="NAME=PATH",
        help="a name and a model folder or Hub id; once for each model, the first is what the others are compared with",
    )
    parser.add_argument("--languages", nargs="+", required=True, metavar="LANGUAGE", help="the languages of the table")


def named_models(options: argparse.Namespace) -> dict[str, str]:
    """The models by name. Raises ValueError for one without name or path, and as `check_names`."""
    pairs = [text.partition("=")[::2] for text in options.model]
    if wrong := [text for text, (name, path) in zip(options.model, pairs, strict=True) if not name or not path]:
        raise ValueError(
            f"--model {wrong[0]} is not of the form NAME=PATH. Models stand in the table by their names. Write, for "
            "example, --model XLM=runs/xlm/model."
        )
    check_names("--model", [name for name, _ in pairs])
    return dict(pairs)


def check_names(flag: str, names: list[str]) -> None:
    """Raises ValueError for names that are not all different, or cannot name a folder."""
    for name in names:
        twice = names.count(name) > 1
        if twice or not NAME.fullmatch(name):
            raise ValueError(
                f"{flag} {name} {'stands twice' if twice else 'cannot name a folder'}: each name is a row of the table "
                "and a folder of the output. Give each a name of its own, of letters, digits, and _ . + - or spaces."
            )


def check_values(flag: str, values: list[str]) -> None:
    """Raises ValueError for values that are not all different, or cannot name a folder."""
    for value in values:
        if values.count(value) > 1 or not NAME.fullmatch(value):
            raise ValueError(
                f"{flag} has {value!r}, {'twice' if values.count(value) > 1 else 'which cannot name a folder'}: each "
                "value is a part of the table, and of the name of a folder. Give each once, as in "
                f"{flag} {' '.join(dict.fromkeys(value for value in values if NAME.fullmatch(value)))}."
            )


def run_all(grid: Grid, runs: list[GridRun]) -> dict[str, dict[str, Any]]:
    """Runs what is not finished, and returns the results.json of every run by its name.

    Raises ValueError for a recipe that cannot be read or run, for a finished run of another recipe or of other weights,
    for a model that is not there, and where a run fails: with its name and its own message.
    """
    execute = KINDS[_kind(grid)].run_function
    recipes = {run: read_recipe(grid, run) for run in runs}
    for run, recipe in recipes.items():
        run.adjust(recipe)

    from accelerate import PartialState

    from finetuning.checkpoints import check_model
    from finetuning.seeds import check_hardware
    from zoo_core.processes import start_processes

    start_processes()
    recipe = recipes[runs[0]]
    check_hardware(getattr(recipe, "training", recipe).precision)
    fingerprint = functools.cache(folder_fingerprint)  # of a matrix' models, each is that of many runs
    waiting = [run for run in runs if not is_finished(recipes[run], fingerprint)]
    check = functools.cache(check_model)  # of all, before the first run, which may take days
    for run in waiting:
        for path in models_of(recipes[run]):
            check(path, recipes[run].hub_root)
    say = print if PartialState().is_main_process else lambda *_: None
    say(f"{len(runs)} runs in {grid.output}: {len(runs) - len(waiting)} finished before, {len(waiting)} to do")
    for number, run in enumerate(waiting, start=1):
        say(f"\n[{number}/{len(waiting)}] {run.name}: {run.folder}")
        begun = run.folder.is_dir() and any(run.folder.iterdir())
        try:
            execute(recipes[run], begun, grid.command)
        except ValueError as error:
            raise ValueError(
                f"{run.name} ({run.folder}) failed: {error} The runs before it are kept: the same command goes on here."
            ) from error
        except KeyboardInterrupt:
            print(f"interrupted in {run.name}: the same command goes on here", file=sys.stderr)
            sys.exit(130)
    PartialState().wait_for_everyone()
    return {run.name: _read(run.folder) for run in runs}


def read_recipe(grid: Grid, run: GridRun) -> Any:
    """The recipe of a run, before it is adjusted.

    Fine-tuned models are not kept unless an override asks for them: there are many.
    """
    recipe_class = KINDS[_kind(grid)].recipe_class
    own = [f"model={run.model}", f"output_dir={run.folder}"]
    keep = ["save_models=false"] if "save_models" in recipe_class.__dataclass_fields__ else []
    recipe = load_recipe(recipe_class, grid.config, [*keep, *grid.overrides, *own])
    complete_published(recipe)
    return recipe


def _kind(grid: Grid) -> str:
    return kind_of(["--config", grid.config, *grid.overrides])


def is_finished(recipe: Any, fingerprint: Callable[[str], str]) -> bool:
    """Whether a recipe was run to its end.

    Raises ValueError where the finished run is of another recipe, or its model has another `fingerprint` now.
    """
    from finetuning.checkpoints import best_seed
    from finetuning.run_folder import check_same_recipe, check_same_start, check_same_weights

    folder = Path(recipe.output_dir)
    if not (folder / "results.json").is_file():
        return False
    check_same_recipe(folder, recipe)
    results = _read(folder)
    if results["seeds"] != recipe.seeds:
        return False
    paths = [resolve_hub_path(path, recipe.hub_root) for path in models_of(recipe)]
    if all(Path(path).is_dir() for path in paths):
        now = "+".join(map(fingerprint, paths))
        check_same_weights(folder, recipe.model, results["model"]["fingerprint"], now)
        if getattr(recipe, "init_from", None):
            source, facts = best_seed(recipe.init_from, recipe.model, now)
            if (source / "config.json").is_file():  # the model may have been deleted since, to save space
                facts["fingerprint"] = fingerprint(str(source))
            check_same_start(folder, results["model"], {"init_from": facts})
    return True


def models_of(recipe: Any) -> list[str]:
    """The model of a recipe, or those of its seeds."""
    return [recipe.model.replace(SEED, str(seed)) for seed in recipe.seeds] if SEED in recipe.model else [recipe.model]


def _read(folder: Path) -> dict[str, Any]:
    return load_results(folder / "results.json")


def check_kind(grid: Grid) -> None:
    """Raises ValueError for a kind of task that is not trained in one language and evaluated in others."""
    kind = _kind(grid)
    if not KINDS[kind].is_by_language:
        fitting = [name for name, other in KINDS.items() if other.is_by_language]
        raise ValueError(
            f"{grid.config} is of kind {kind}, which has no language to be trained in. Here each run is fine-tuned in "
            f"a language of its own. Give a recipe of kind {', '.join(fitting)}."
        )


def train_in(recipe: Any, language: str) -> None:
    """Makes `language` the source: keeps the training tables that have rows in it.

    Tables with `{language}` or a `language_column` are read in that language; others keep the language they have.
    Raises ValueError where no table is left.
    """
    from finetuning.data.task_tables import has_place_for_language

    kept = []
    for table in recipe.train:
        names = table.languages
        if has_place_for_language(table) or table.language_column:
            if not names or language in names:
                table.languages = [language]
                kept.append(table)
        elif language in (names or [recipe.source_language]):
            kept.append(table)
    if not kept:
        raise ValueError(
            f"No training table of the recipe has rows in {language}: train.0 reads {recipe.train[0].path}, config "
            f"{recipe.train[0].config}. The same rows cannot train a model in every language. Write {{language}} where "
            "path or config names it, or set language_column, or leave that language out."
            if recipe.train
            else "The recipe has no train table. There is nothing to read. Add one under `train:`."
        )
    recipe.train, recipe.source_language = kept, language


def evaluate_in(recipe: Any, languages: list[str]) -> None:
    """Evaluates these languages of the recipe's, in its order. Raises ValueError for one that it does not have."""
    kept, missing = [], list(languages)
    for table in recipe.evaluation:
        open_to_all = table.language_column and not table.languages
        table.languages = [name for name in missing if open_to_all or name in table.languages]
        if table.languages:
            kept.append(table)
            missing = [name for name in missing if name not in table.languages]
    if missing:
        raise ValueError(
            f"The recipe evaluates no {', '.join(missing)}. A language without labeled rows has no score. Add it to "
            "evaluation.N.languages, or leave it out of --languages."
        )
    recipe.evaluation = kept


def transfer_by_seed(results: dict[str, Any]) -> dict[str, list[float]]:
    """One number a seed, in percent: `others`, `source` and `gap`, their difference; `average` where nothing transfers.

    `others` is the mean over the languages that were not trained on (MetaXLM, section 5.1; XTREME).
    """
    languages, source = results["languages"], results.get("source_language")
    others = [entry["scores"] for language, entry in languages.items() if language != source]
    if source not in languages or not others:
        return {"average": results["average"]["scores"]}
    means = [statistics.fmean(seeds) for seeds in zip(*others, strict=True)]
    own = languages[source]["scores"]
    return {"others": means, "source": own, "gap": [a - b for a, b in zip(own, means, strict=True)]}


def pooled(parts: list[dict[str, list[float]]]) -> dict[str, dict[str, Any]]:
    """Summaries over the seeds of several runs, name by name."""
    return {name: summary([score for part in parts for score in part[name]]) for name in parts[0]}


def head_of(results: dict[str, Any]) -> dict[str, Any]:
    """What a table's JSON says of the task that its runs share."""
    shared = {name: results[name] for name in ("format", "task", "kind", "seeds")}
    return {**shared, "metric": results["protocol"]["metric"]}


def rows_of(found: dict[str, dict[str, dict[str, Any]]], column: str) -> list[dict[str, Any]]:
    """The CSV's rows of runs by name and by what `column` names, such as a source language."""
    from finetuning.results.by_language import to_rows

    return [
        {"run": name, column: place, **row}
        for name, runs in found.items()
        for place, run in runs.items()
        for row in to_rows(run)
    ]


def remarks(groups: list[dict[str, dict[str, Any]]]) -> tuple[list[str], list[str]]:
    """Warnings of runs, and what differs beside the model in each of the groups that should be alike; runs by name.

    What all runs warn of is said once, the rest with the run's name.
    """
    from finetuning.experiments.compare_runs import differences

    results = {name: found for group in groups for name, found in group.items()}

    everywhere = set.intersection(*(set(found["warnings"]) for found in results.values()))
    first = next(iter(results.values()))
    warnings = [line for line in first["warnings"] if line in everywhere]
    for name, found in results.items():
        warnings += [f"{name}: {line}" for line in found["warnings"] if line not in everywhere]
    lines = [line for group in groups for line in differences({name: [found] for name, found in group.items()})]
    return warnings, [line for line in lines if not line.startswith("model:")]


def show(
    title: str, tables: dict[str, Table], notes: list[str], differing: list[str], written: str, names: int
) -> None:
    """The tables by their titles, whose first `names` columns are text, and what belongs to them, on the screen."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(f"\n{title}", style="bold", markup=False)
    for name, table in tables.items():
        print_table(name, table, [], "", names)
    for line in [*notes, *(f"differs: {line}" for line in differing), f"written: {written}"]:
        console.print(line, markup=False, soft_wrap=True)


def page(title: str, tables: list[list[str]], warnings: list[str], differing: list[str], picture: str) -> str:
    """A Markdown page of tables, each of lines, with what a reader must know, and the plot."""
    lines = [f"# {title}", ""]
    for table in tables:
        lines += [*table, ""]
    for heading, entries in (("Warnings", warnings), ("What differs between the runs", differing)):
        lines += [f"## {heading}", "", *(f"- {entry}" for entry in entries), ""] if entries else []
    lines += ["Each run's protocol stands in the results.md of its own folder.", "", picture, ""]
    return "\n".join(lines)
