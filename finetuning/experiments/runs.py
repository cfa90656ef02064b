"""Many runs, brought together: each is what finetuning/run.py does with one recipe, in a folder of its own.

The runs follow each other in this process: libraries are loaded once, one model is in memory at a time. Several
processes all take part in each run, as in `accelerate launch --multi_gpu -m finetuning.experiments.transfer_matrix`.

The same command again goes on: finished runs are read, not run, and an interrupted one goes on from its last
checkpoint. Every recipe and every finished run is checked before anything is run.
"""

import argparse
import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from finetuning.recipe import Recipe, TaskRecipe
from finetuning.results.differences import differences, warnings_of
from finetuning.results.files import Table, markdown_list, markdown_table, print_table
from finetuning.results.published_rows import complete_published
from finetuning.results.table import FORMAT, Results, load_results
from finetuning.tasks.registry import KINDS, kind_of, task_of
from zoo_core.command_line import CommandParser
from zoo_core.provenance import folder_fingerprint, write_csv, write_json
from zoo_core.recipes import load_recipe
from zoo_core.run_folders import not_own, run_lock

NAME = re.compile(r"[\w+][\w .+-]*")  # of a model, such as MetaXLM or +Dict: it names a folder
OVERRIDE = re.compile(r"[\w.]+=")
SEED = "{seed}"
FINISHED, BEGUN, WAITING = "finished", "interrupted", "to do"


@dataclass(frozen=True)
class Run:
    """A recipe with its model and folder; `keys` are columns of the joined table, such as model and source."""

    name: str
    recipe: TaskRecipe
    keys: dict[str, Any]


def parser_of(description: str) -> CommandParser:
    """A parser with what every such command has: --config, --output and overrides of the recipe."""
    parser = CommandParser(description=description)
    parser.add_argument("--config", required=True, metavar="FILE", help="recipe of the runs")
    parser.add_argument("--output", required=True, metavar="DIR", help="where the table and the runs' folders are")
    parser.add_argument(
        "overrides", nargs="*", metavar="field=value", help="sets a field of the recipe in every run, as in seeds=[1,2]"
    )
    return parser


def add_models(parser: CommandParser) -> None:
    """Adds --model NAME=PATH, several times, and --languages."""
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="NAME=PATH",
        help="a name and a model folder or Hub id; once for each model, the first is what the others are compared with",
    )
    parser.add_argument("--languages", nargs="+", required=True, metavar="LANGUAGE", help="the languages of the table")


def parse(parser: CommandParser, argv: list[str] | None, fixed: dict[str, str]) -> argparse.Namespace:
    """The command line; `fixed` names fields of the recipe that options of the command set, and which ones.

    Raises ValueError for an override of such a field, and where --output is a file.
    """
    options = parser.parse_intermixed_args(argv)
    for values in list_options(options):  # `--languages en de seeds=[1]`: what follows a list is taken for a part of it
        options.overrides += [value for value in values if OVERRIDE.match(value) and not Path(value).exists()]
        values[:] = [value for value in values if value not in options.overrides]
    for override in options.overrides:
        field = override.partition("=")[0].strip()
        if flag := ({"output_dir": "--output"} | fixed).get(field):
            raise ValueError(f"Override `{override}`: {field} is another one in each run. Use {flag}.")
    if Path(options.output).is_file():
        raise ValueError(f"--output {options.output} is a file.")
    options.output = Path(options.output)
    return options


def list_options(options: argparse.Namespace) -> list[list[str]]:
    """The values of options that take several."""
    lists = [getattr(options, name, None) or [] for name in ("languages", "domains", "steps")]
    return [*lists, *getattr(options, "run", [])]


def named_models(options: argparse.Namespace) -> dict[str, str]:
    """The models by name. Raises ValueError for one without name or path, and as `check_names`."""
    pairs = [text.partition("=")[::2] for text in options.model]
    for text, (name, path) in zip(options.model, pairs, strict=True):
        if not name or not path:
            raise ValueError(f"--model {text} is not of the form NAME=PATH, as in --model XLM=runs/xlm/model.")
    check_names("--model", [name for name, _ in pairs])
    return dict(pairs)


def check_names(flag: str, names: list[str]) -> None:
    """Raises ValueError for names that are not all different, or cannot name a folder."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{flag} {name} stands twice: each is a part of the table and a folder of its own.")
        if not NAME.fullmatch(name):
            raise ValueError(f"{flag} {name} cannot name a folder. Use letters, digits, and _ . + - or spaces.")


def recipe_of(options: argparse.Namespace, model: str, folder: Path) -> TaskRecipe:
    """The recipe of a run; fine-tuned models, of which there are many, are kept only where an override asks for it."""
    recipe_class = KINDS[kind(options)].recipe_class
    keep = ["save_models=false"] if "save_models" in recipe_class.__dataclass_fields__ else []
    own = [f"model={model}", f"output_dir={folder}"]
    recipe = load_recipe(recipe_class, options.config, [*keep, *options.overrides, *own])
    complete_published(recipe)
    refuse_push(recipe)
    return recipe


def refuse_push(recipe: TaskRecipe) -> None:
    """Raises ValueError for a recipe that sends its model to the Hub: many runs would send theirs to one repository."""
    if recipe.push_to_hub:
        raise ValueError(f"push_to_hub is {recipe.push_to_hub}, which holds one model, and there are many runs.")


def kind(options: argparse.Namespace) -> str:
    """The kind of task of a command's recipe."""
    return kind_of(["--config", options.config, *options.overrides])


def check_has_languages(options: argparse.Namespace) -> None:
    """Raises ValueError for a kind of task that is not trained in one language and evaluated in others."""
    fitting = [name for name, other in KINDS.items() if issubclass(other.recipe_class, Recipe)]
    if kind(options) not in fitting:
        raise ValueError(f"kind is {kind(options)}, which has no language to be trained in. Use {', '.join(fitting)}.")


def run_all(runs: list[Run], output: Path, command: list[str]) -> list[Results]:
    """Runs what is not finished, and returns the results of every run.

    Raises ValueError for a finished run of another recipe or of other weights, for a model that is not there, where
    another command is at work in `output`, and where a run fails: with its name and its own message.
    """
    from accelerate import PartialState

    from finetuning.checkpoints import read_config
    from finetuning.seeds import check_hardware
    from zoo_core.console import quiet_libraries
    from zoo_core.processes import start_processes

    quiet_libraries()
    start_processes()
    check_hardware(runs[0].recipe.precision)
    with run_lock(output):
        fingerprint = functools.cache(folder_fingerprint)  # each model is that of many runs
        waiting = [(run, state) for run in runs if (state := state_of(run.recipe, fingerprint)) != FINISHED]
        check = functools.cache(read_config)  # of all, before the first run, which may take days
        for run, _ in waiting:
            for path in models_of(run.recipe):
                check(path, run.recipe.hub_root, run.recipe.trust_remote_code)
        say = print if PartialState().is_main_process else lambda *_: None
        say(f"{len(runs)} runs in {output}: {len(runs) - len(waiting)} finished before, {len(waiting)} to do")
        for number, (run, state) in enumerate(waiting, start=1):
            say(f"\n[{number}/{len(waiting)}] {run.name}: {run.recipe.output_dir}")
            try:
                execute(run.recipe, state, command, run.name)
            except ValueError as error:
                raise ValueError(
                    f"{run.name} ({run.recipe.output_dir}) failed: {error} The runs before it are kept: the same "
                    "command goes on here."
                ) from error
        PartialState().wait_for_everyone()
    return [load_results(Path(run.recipe.output_dir) / "results.json") for run in runs]


def execute(recipe: TaskRecipe, state: str, command: list[str], name: str) -> None:
    """Runs a recipe, or goes on with it. Ends the program where the user interrupts it."""
    from finetuning import running

    try:
        with run_lock(recipe.output_dir):
            running.run(task_of(recipe), state == BEGUN, command)
    except KeyboardInterrupt:
        print(f"interrupted in {name}: the same command goes on here", file=sys.stderr)
        sys.exit(130)


def state_of(recipe: TaskRecipe, fingerprint: Callable[[str], str]) -> str:
    """FINISHED, BEGUN or WAITING.

    Raises ValueError where the finished run is of another recipe, or its model has another `fingerprint` now.
    """
    from finetuning.checkpoints import best_seed, find_model
    from finetuning.run_folder import HALF_WRITTEN, check_same_recipe, check_same_start, check_same_weights

    folder = Path(recipe.output_dir)
    if not folder.is_dir() or not not_own(folder, HALF_WRITTEN):
        return WAITING
    if not (folder / "results.json").is_file():
        return BEGUN
    check_same_recipe(folder, recipe)
    results = load_results(folder / "results.json")
    if results["seeds"] != recipe.seeds:
        return BEGUN
    paths = [find_model(path, recipe.hub_root) for path in models_of(recipe)]
    if all(Path(path).is_dir() for path in paths):
        now = "+".join(map(fingerprint, paths))
        check_same_weights(folder, recipe.model, results["model"]["fingerprint"], now)
        if recipe.init_from:
            source, facts = best_seed(recipe.init_from, recipe.model, now)
            if (source / "config.json").is_file():  # the model may have been deleted since, to save space
                facts["fingerprint"] = fingerprint(str(source))
            check_same_start(folder, results["model"], {"init_from": facts})
    return FINISHED


def models_of(recipe: TaskRecipe) -> list[str]:
    """The model of a recipe, or those of its seeds."""
    return [recipe.model.replace(SEED, str(seed)) for seed in recipe.seeds] if SEED in recipe.model else [recipe.model]


def train_in(recipe: Recipe, language: str) -> None:
    """Makes `language` the source: keeps the training tables that have rows in it.

    Tables with `{language}` or a `language_column` are read in that language; others keep the language they have.
    Raises ValueError where no table is left.
    """
    from finetuning.data.rows import has_place_for_language

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
            f"No training table of the recipe has rows in {language}. Write {{language}} into its path or config, set "
            "language_column, or leave that language out."
        )
    recipe.train, recipe.source_language = kept, language


def evaluate_in(recipe: Recipe, languages: list[str]) -> None:
    """Evaluates these languages of the recipe's, in its order. Raises ValueError for one that it does not have."""
    kept, missing = [], list(languages)
    for table in recipe.evaluation:
        open_to_all = table.language_column and not table.languages
        table.languages = [name for name in missing if open_to_all or name in table.languages]
        if table.languages:
            kept.append(table)
            missing = [name for name in missing if name not in table.languages]
    if missing:
        raise ValueError(f"The recipe evaluates no {', '.join(missing)}. Add it to evaluation.N.languages.")
    recipe.evaluation = kept


def write_experiment(
    folder: Path,
    name: str,
    title: str,
    tables: dict[str, Table],
    runs: list[Run],
    results: list[Results],
    pictures: list[str],
    alike: str | None = None,
    **facts: Any,
) -> None:
    """Writes <name>.{json,md,csv} of all runs and shows the tables; the main process.

    Runs with the same value in column `alike`, or all of them, should differ in their models alone; what else does is
    said. The JSON has the joined long table as `scores`, and `facts`.
    """
    named = {run.name: found for run, found in zip(runs, results, strict=True)}
    groups: dict[Any, dict[str, Results]] = {}
    for run in runs:
        groups.setdefault(run.keys.get(alike), {})[run.name] = named[run.name]
    lines = dict.fromkeys(line for group in groups.values() for line in differences(group))
    differing = [line for line in lines if not line.startswith("model:")]
    warnings = warnings_of(named)
    table = pandas.concat([found.frame(**run.keys) for run, found in zip(runs, results, strict=True)])
    first = results[0]
    content = {
        "format": FORMAT,
        **{field: first[field] for field in ("task", "kind", "seeds")},
        "metric": first.protocol.metric.as_json(),
        "models": {run.name: found["model"] for run, found in zip(runs, results, strict=True)},
        **facts,
        "scores": table.drop(columns=["model", "task"]).to_dict("records"),
        "warnings": warnings,
        "differing": differing,
    }
    page = [f"# {title}", ""]
    for heading, shown in tables.items():
        page += [*([f"## {heading}", ""] if heading else []), *markdown_table(shown), ""]
    page += [*markdown_list("Warnings", warnings), *markdown_list("What differs between the runs", differing)]
    page += ["Each run's protocol stands in the results.md of its own folder.", ""]
    page += [line for picture in pictures for line in (f"![{title}]({picture})", "")]
    (folder / f"{name}.md").write_text("\n".join(page), encoding="utf-8")
    write_csv(folder / f"{name}.csv", table)
    write_json(folder / f"{name}.json", content)
    for heading, shown in tables.items():
        print_table(heading or title, shown, [])
    for line in [*(f"warning: {line}" for line in warnings), *(f"differs: {line}" for line in differing)]:
        print(line)
    print(f"written: {folder}/{name}.json, {name}.md, {name}.csv, {', '.join(pictures)}")
