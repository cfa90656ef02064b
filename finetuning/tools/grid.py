"""Runs one recipe many times, with another model, language or value each time, and makes one table of all runs.

    python -m finetuning.tools.grid transfer_matrix --config finetuning/recipes/metaxlm/amazon.yaml \\
      --languages en de fr ja --model XLM=runs/xlm/model --model MetaXLM=runs/metaxlm/model --output runs/matrix

GRID is one of finetuning/experiments (transfer_matrix, supervised, supervised_domains, step_curves), or a YAML file
with the same fields; `GRID --help` explains it. The command writes the table, a plot and the joined scores into
--output, and each run into its own folder there. To resume, use the same command: finished runs are not run again, and
an interrupted one is resumed from its last checkpoint. All recipes and all finished runs are checked before the first
run starts. Several processes work on each run together, as in
`accelerate launch --multi_gpu -m finetuning.tools.grid ...`.
"""

import argparse
import functools
import re
import sys
from pathlib import Path

from finetuning.experiments.grid import MODEL, RUN, Grid, filled, load_grid, published_of, recipes_of
from finetuning.results.differences import named_folders
from finetuning.results.table import load_results
from zoo_core.command_line import SAME_COMMAND, CommandParser, user_errors
from zoo_core.processes import stop_signals

NAME = re.compile(r"[\w+][\w .+-]*")  # name of a model, such as MetaXLM or +Dict; folders are named after it
OVERRIDE = re.compile(r"[\w.]+=")


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    given = sys.argv[1:] if argv is None else argv
    if not given or given[0].startswith("-"):
        parser = CommandParser(description=__doc__, usage="%(prog)s GRID --config FILE --output DIR [field=value ...]")
        parser.add_argument("grid", metavar="GRID", help="a grid of finetuning/experiments, or a YAML file")
        parser.parse_args(given)
    with stop_signals(SAME_COMMAND), user_errors(SAME_COMMAND):
        grid = load_grid(given[0])
        options = read_options(grid, given)
        run(grid, options, ["finetuning.tools.grid", *given])


def read_options(grid: Grid, argv: list[str]) -> argparse.Namespace:
    """Returns the command line: config, output, overrides, and the values of each axis by their option.

    Raises ValueError for values that are given twice or cannot name a folder, and for an override of a field that an
    axis or the grid sets.
    """
    parser = CommandParser(prog=f"finetuning.tools.grid {argv[0]}", description=grid.about)
    parser.add_argument("--config", required=True, metavar="FILE", help="recipe of the runs")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder for the table and the runs' folders")
    fixed = {"output_dir": "--output"} | {text.partition("=")[0]: "another grid" for text in grid.set}
    lists = []
    for axis in grid.axes:
        if axis.given_by == MODEL:
            text = "a name and a model folder or Hub id; once per model; later models are compared with the first"
            parser.add_argument("--model", action="append", required=True, metavar="NAME=PATH", help=text)
        elif axis.given_by == RUN:
            text = "a name and its folders of pretraining/run.py, which are seeds of one experiment; once per name"
            parser.add_argument("--run", nargs="+", action="append", required=True, metavar=("NAME", "DIR"), help=text)
            parser.add_argument(
                "--steps", nargs="+", default=[], metavar="N", help="steps of pre-training (default: all)"
            )
            lists.append("steps")
        elif axis.given_by:
            parser.add_argument(f"--{axis.given_by}", nargs="+", required=True, metavar=axis.name.upper())
            lists.append(axis.given_by)
        fixed |= {"model": f"--{axis.given_by}"} if axis.given_by in (MODEL, RUN) else {}
        fixed |= {"source_language": f"--{axis.given_by}"} if axis.name == grid.train_in else {}
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="sets a field of the recipe in every run")
    options = parser.parse_intermixed_args(argv[1:])
    # `--languages en de seeds=[1]`: argparse takes what follows a list as a part of it
    for values in [*(getattr(options, name) for name in lists), *(getattr(options, RUN, None) or [])]:
        options.overrides += [value for value in values if OVERRIDE.match(value) and not Path(value).exists()]
        values[:] = [value for value in values if value not in options.overrides]
    for override in options.overrides:
        field = override.partition("=")[0].strip()
        if field in fixed:
            raise ValueError(f"Override `{override}`: {field} differs between the runs. Use {fixed[field]}.")
    if Path(options.output).is_file():
        raise ValueError(f"--output {options.output} is a file. Name a folder.")
    options.output = Path(options.output)
    names = {axis.given_by: getattr(options, axis.given_by) for axis in grid.axes if axis.given_by in lists}
    if hasattr(options, "model"):
        pairs = [text.partition("=")[::2] for text in options.model]
        for text, (name, path) in zip(options.model, pairs, strict=True):
            if not name or not path:
                raise ValueError(f"--model {text} is not of the form NAME=PATH, as in --model XLM=runs/xlm/model.")
        options.model, names["model"] = dict(pairs), [name for name, _ in pairs]
    if hasattr(options, "run"):
        options.run = named_folders(options.run)
        names["run"] = list(options.run)
        for step in options.steps:
            if not step.isdecimal():
                raise ValueError(f"--steps has {step!r}, which is not a number. Give numbers, as in --steps 2000 4000.")
        options.steps = [int(step) for step in options.steps]
    for flag, values in names.items():
        for name in values:
            if values.count(name) > 1:
                raise ValueError(f"--{flag} {name} is given twice. Give each value once.")
            if not NAME.fullmatch(name):
                raise ValueError(f"--{flag} {name} cannot name a folder. Use letters, digits, and _ . + - or spaces.")
    return options


def run(grid: Grid, options: argparse.Namespace, command: list[str]) -> None:
    """Runs what is not finished, stops at the first failure, and writes the table.

    Raises ValueError for a finished run with another recipe or other weights, for a model that does not exist, and if
    another command uses --output.
    """
    from finetuning.experiments.engine import RecipeJob, models_of, refuse_push, run_jobs
    from zoo_core.provenance import folder_fingerprint

    fingerprint = functools.cache(folder_fingerprint)  # many runs have the same model
    jobs = []
    for keys, recipe in recipes_of(grid, options):
        refuse_push(recipe)
        jobs.append(RecipeJob(filled(grid.run, keys), recipe, command, fingerprint, keys))
    for field, values in {"run": [job.name for job in jobs], "folder": [str(job.folder) for job in jobs]}.items():
        if twice := [value for value in values if values.count(value) > 1]:
            raise ValueError(f"Two runs of the grid have {field} {twice[0]}. Write {{name}} of each axis into it.")

    from accelerate import PartialState

    from finetuning.experiments.table import write_grid
    from finetuning.models import read_config
    from finetuning.seeds import check_hardware
    from zoo_core.console import quiet_libraries
    from zoo_core.processes import start_processes
    from zoo_core.run_folders import run_lock

    quiet_libraries()
    start_processes()
    check_hardware(jobs[0].recipe.precision)
    is_main = PartialState().is_main_process
    with run_lock(options.output):
        check = functools.cache(read_config)  # check all before the first run, which may take days
        for job in jobs:
            for path in models_of(job.recipe):
                check(path, job.recipe.hub_root, job.recipe.trust_remote_code)
        run_jobs(jobs, log=print if is_main else lambda text: None)
        PartialState().wait_for_everyone()
        if is_main:
            results = [load_results(job.folder / "results.json") for job in jobs]
            write_grid(grid, jobs, results, published_of(grid, options), options.output)


if __name__ == "__main__":
    main()
