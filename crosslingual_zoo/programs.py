"""Runs of recipes as functions: what `pretraining/run.py` and `finetuning/run.py` do."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetuning.results.table import Results


def pretrain(recipe: str | Path, overrides: Iterable[str] = (), resume: bool = False) -> Path:
    """Pre-trains a model from a recipe, as `pretraining/run.py --config recipe` does.

    Args:
        recipe: a YAML file.
        overrides: `field=value` for fields of the recipe.
        resume: continue the run in its `output_dir` from the newest checkpoint.

    Returns the folder of the model, `<output_dir>/model`, which `from_pretrained` loads.

    Raises ValueError for a recipe or data that cannot be used, and where training diverges.

    Example:
        >>> pretrain("pretraining/recipes/xlm_align/smoke.yaml", ["output_dir=runs/mine"])
        PosixPath('runs/mine/model')
    """
    from pretraining import training
    from pretraining.recipe import Recipe
    from pretraining.recipe_checks import check_recipe
    from zoo_core.recipes import load_recipe

    given = list(overrides)
    loaded = load_recipe(Recipe, str(recipe), given)
    check_recipe(loaded)
    training.pretrain(loaded, resume=resume, argv=_command("pretraining/run.py", recipe, given))
    return Path(loaded.output_dir) / "model"


def finetune(recipe: str | Path, overrides: Iterable[str] = (), resume: bool = False) -> "Results":
    """Fine-tunes and evaluates a model by a recipe, as `finetuning/run.py --config recipe` does.

    Args:
        recipe: a YAML file of any kind of task.
        overrides: `field=value` for fields of the recipe, such as `model=runs/mine/model`.
        resume: continue the run in its `output_dir`; finished seeds are kept.

    Returns the results, also in `<output_dir>/results.json`: a dictionary whose `scores` are in percent.

    Raises ValueError for a recipe, a model or data that cannot be used, and where training diverges.

    Example:
        >>> finetune("finetuning/recipes/xlm_align/sample.yaml", ["model=runs/mine/model"]).mean("en")
        {'mean': 61.7, 'std': 0.0}
    """
    from finetuning import running
    from finetuning.results.published_rows import complete_published
    from finetuning.results.table import read_results
    from finetuning.seeds import check_hardware
    from finetuning.tasks.registry import KINDS, kind_of, task_of
    from zoo_core.recipes import load_recipe
    from zoo_core.run_folders import run_lock

    given = list(overrides)
    kind = KINDS[kind_of(["--config", str(recipe), *given])]
    loaded = load_recipe(kind.recipe_class, str(recipe), given)
    complete_published(loaded)
    check_hardware(loaded.precision)
    with run_lock(loaded.output_dir):
        running.run(task_of(loaded), resume, _command("finetuning/run.py", recipe, given))
    return read_results(loaded.output_dir)


def _command(program: str, recipe: Any, overrides: list[str]) -> list[str]:
    """The command that does the same, for run.json."""
    return [program, "--config", str(recipe), *overrides]
