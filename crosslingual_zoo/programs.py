"""Runs of recipes as functions: what `pretraining/run.py` and `finetuning/run.py` do."""

import contextlib
import logging
import os
import signal
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

from crosslingual_zoo.finetuning.results import Results, read_results
from crosslingual_zoo.finetuning.run_task import check_hardware, run_task
from crosslingual_zoo.finetuning.tasks.registry import KINDS, kind_of
from crosslingual_zoo.pretraining import training
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.zoo_core.console import quiet_libraries
from crosslingual_zoo.zoo_core.processes import start_processes, stop_signals
from crosslingual_zoo.zoo_core.recipes import load_recipe
from crosslingual_zoo.zoo_core.run_folders import run_lock


def pretrain(
    recipe: str | os.PathLike | Mapping[str, Any], overrides: Iterable[str] = (), resume: bool = False
) -> Path:
    """Pre-trains a model from a recipe, as `pretraining/run.py --config recipe` does.

    Args:
        recipe: a YAML file, the row of a table (`FILE#ROW`), or a dictionary with the same fields.
            `pretraining/run.py --help` lists the fields with their units.
        overrides: `field=value`, as on the command line: `phases.0.steps=100`.
        resume: continue the run in `output_dir` from its newest complete checkpoint.

    Returns the folder of the model, `<output_dir>/model`, which `from_pretrained` loads.

    Raises:
        ValueError: a recipe, model or text that cannot be used, a run folder in use, a loss that is not finite, or
            another precision than that of an earlier run of this process.
        KeyboardInterrupt: after Ctrl-C, when the step is done and saved. `resume` continues there.

    Example:
        >>> folder = pretrain(
        ...     "pretraining/recipes/xlm_align/smoke.yaml", ["phases.0.steps=20", "output_dir=runs/short"]
        ... )
        >>> model = XlmAlignModel.from_pretrained(folder)

    Source: the objectives' papers; the comment at the top of each recipe names its paper.
    """
    overrides = list(overrides)
    loaded = load_recipe(Recipe, recipe, overrides)
    loaded.check()
    command = _command("pretraining/run.py", recipe, overrides, loaded.output_dir, resume)
    with _run():
        training.pretrain(loaded, resume, argv=command)
    return Path(loaded.output_dir) / "model"


def finetune(
    recipe: str | os.PathLike | Mapping[str, Any], overrides: Iterable[str] = (), resume: bool = False
) -> Results:
    """Fine-tunes and evaluates a model by a recipe, as `finetuning/run.py --config recipe` does.

    Args:
        recipe: a YAML file, the row of a table (`FILE#ROW`), or a dictionary with the same fields.
            `finetuning/run.py --help kind=KIND` lists the fields with their units.
        overrides: `field=value`, as on the command line: `model=runs/short/model`.
        resume: continue the run in `output_dir`; finished seeds are kept.

    A recipe's `sweep` is not tried: that is `finetuning/run.py --sweep`.

    Returns the results, which `<output_dir>/results.json` holds: scores in percent, by language and seed.

    Raises:
        ValueError: a recipe, model or rows that cannot be used, a run folder in use, or a loss that is not finite.
        KeyboardInterrupt: after Ctrl-C, when the step is done and saved. `resume` continues there.

    Example:
        >>> topics = finetune("finetuning/recipes/xlm_align/sample.yaml", ["model=runs/short/model", "seeds=[1]"])
        >>> sorted(topics.languages)
        ['de', 'en', 'es', 'fr', 'zh']
        >>> mean = topics.of("de")["mean"]  # percent

    Source: XTREME (Hu et al., 2020), section 3, for the protocol of its tasks.
    """
    overrides = list(overrides)
    if not isinstance(recipe, Mapping):
        arguments = ["--config", str(recipe)]
    elif "kind" in recipe:
        arguments = [f"kind={recipe['kind']}"]
    else:
        arguments = []
    kind = kind_of([*arguments, *overrides])
    loaded = load_recipe(KINDS[kind], recipe, overrides)
    command = _command("finetuning/run.py", recipe, overrides, loaded.output_dir, resume)
    with _run():
        quiet_libraries()
        start_processes()
        check_hardware(loaded.precision)
        with run_lock(loaded.output_dir):
            run_task(loaded, resume, command)
    return read_results(loaded.output_dir)


@contextlib.contextmanager
def _run() -> Generator[None]:
    """Ctrl-C saves first, and is then a KeyboardInterrupt. The log is restored after it."""
    root = logging.getLogger()
    level = root.level
    handlers = list(root.handlers)
    try:
        with stop_signals("resume=True continues the run"):
            yield
    except SystemExit as stopped:
        if stopped.code != 128 + signal.SIGINT:
            raise
        raise KeyboardInterrupt from None
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def _command(program: str, recipe: Any, overrides: list[str], output_dir: str, resume: bool) -> list[str]:
    """A command for run.json. It names the recipe of the run folder where the recipe was a dictionary."""
    if isinstance(recipe, Mapping):
        command = [program, "--config", f"{output_dir}/recipe.yaml"]
    else:
        command = [program, "--config", str(recipe), *overrides]
    if resume:
        command.append("--resume")
    return command
