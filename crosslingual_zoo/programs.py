"""Runs of recipes as functions: what `pretraining/run.py` and `finetuning/run.py` do."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from finetuning import running
from finetuning.results.published_rows import complete_published
from finetuning.results.table import Results, read_results
from finetuning.seeds import check_hardware
from finetuning.tasks.registry import KINDS, kind_of, task_of
from pretraining import training
from pretraining.recipe import Recipe
from pretraining.recipe_checks import check_recipe
from zoo_core.console import quiet_libraries
from zoo_core.processes import start_processes
from zoo_core.recipes import load_recipe
from zoo_core.run_folders import run_lock


def pretrain(
    recipe: str | os.PathLike | Mapping[str, Any], overrides: Iterable[str] = (), resume: bool = False
) -> Path:
    """Pre-trains a model from a recipe, as `pretraining/run.py --config recipe` does.

    Args:
        recipe: a YAML file, or a dictionary with the same fields. `pretraining/run.py --help` lists the fields with
            their units.
        overrides: `field=value`, as on the command line: `phases.0.steps=100`.
        resume: continue the run in `output_dir` from its newest complete checkpoint.

    Returns the folder of the model, `<output_dir>/model`, which `from_pretrained` loads.

    Raises:
        ValueError: a recipe, model or text that cannot be used, a run folder in use, or a loss that is not finite.
        KeyboardInterrupt: after Ctrl-C, at once. `resume` continues from the last checkpoint (`save_every_steps`).

    Example:
        >>> folder = pretrain(
        ...     "pretraining/recipes/xlm_align/smoke.yaml", ["phases.0.steps=20", "output_dir=runs/short"]
        ... )
        >>> model = XlmAlignModel.from_pretrained(folder)

    Source: the objectives' papers; each recipe's head names its own.
    """
    given = list(overrides)
    loaded = load_recipe(Recipe, recipe, given)
    check_recipe(loaded)
    training.pretrain(loaded, resume=resume, argv=_command("pretraining/run.py", recipe, given, loaded.output_dir))
    return Path(loaded.output_dir) / "model"


def finetune(
    recipe: str | os.PathLike | Mapping[str, Any], overrides: Iterable[str] = (), resume: bool = False
) -> Results:
    """Fine-tunes and evaluates a model by a recipe, as `finetuning/run.py --config recipe` does.

    Args:
        recipe: a YAML file, or a dictionary with the same fields. `finetuning/run.py --help kind=KIND` lists the fields
            with their units.
        overrides: `field=value`, as on the command line: `model=runs/short/model`.
        resume: continue the run in `output_dir`; finished seeds are kept.

    Returns the results, which `<output_dir>/results.json` holds: scores in percent, by language and seed.

    Raises:
        ValueError: a recipe, model or rows that cannot be used, a run folder in use, or a loss that is not finite.
        KeyboardInterrupt: after Ctrl-C, at once. `resume` continues from the last checkpoint.

    Example:
        >>> topics = finetune("finetuning/recipes/xlm_align/sample.yaml", ["model=runs/short/model", "seeds=[1]"])
        >>> sorted(topics.languages)
        ['de', 'en', 'es', 'fr', 'zh']
        >>> mean = topics.of("de")["mean"]  # percent

    Source: XTREME (Hu et al., 2020), section 3, for the protocol of its tasks.
    """
    given = list(overrides)
    kind = [f"kind={recipe['kind']}"] if isinstance(recipe, Mapping) and "kind" in recipe else []
    config = [] if isinstance(recipe, Mapping) else ["--config", str(recipe)]
    loaded = load_recipe(KINDS[kind_of([*kind, *config, *given])].recipe_class, recipe, given)
    complete_published(loaded)
    quiet_libraries()
    start_processes()
    check_hardware(loaded.precision)
    with run_lock(loaded.output_dir):
        running.run(task_of(loaded), resume, _command("finetuning/run.py", recipe, given, loaded.output_dir))
    return read_results(loaded.output_dir)


def _command(program: str, recipe: Any, overrides: list[str], output_dir: str) -> list[str]:
    """The command that does the same, for run.json. A dictionary is in the recipe that the run folder keeps."""
    if isinstance(recipe, Mapping):
        return [program, "--config", f"{output_dir}/recipe.yaml"]
    return [program, "--config", str(recipe), *overrides]
