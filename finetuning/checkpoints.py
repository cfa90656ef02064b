"""Checkpoints of a run, of any kind of task: the one that it starts from, and the one that it resumes from."""

import re
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from finetuning.models import Start, describe_model
from finetuning.recipe import TaskRecipe
from finetuning.results import Protocol
from zoo_core.provenance import folder_fingerprint, read_json

CHECKPOINT = rf"{PREFIX_CHECKPOINT_DIR}-[0-9]+"  # the names of the Trainer's


def fine_tuned_on(config: Any) -> list[str]:
    """Returns the tasks that a model was fine-tuned on, as its configuration names them."""
    return list(getattr(config, "fine_tuned_on", None) or [])


def describe_start(recipe: TaskRecipe, max_length: int | None = None) -> Start:
    """Returns `describe_model` of the model that a recipe starts from: its `model`, or the one that `init_from` made.

    Identity and fingerprint are those of `model`; `init_from` in the identity names the fine-tuned model.
    Raises ValueError as `describe_model` and `best_seed` do, and if the run kept no models.
    """
    described = describe_model(recipe.model, recipe.tokenizer, recipe.hub_root, max_length, recipe.trust_remote_code)
    if recipe.init_from is None:
        return described
    identity = described.identity
    folder, facts = best_seed(recipe.init_from, recipe.model, identity["fingerprint"])
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"init_from is {recipe.init_from}, and {folder} does not exist: that run kept no models. Name a run that "
            "trains, and run it with save_models=true."
        )
    facts["fingerprint"] = folder_fingerprint(folder)
    tuned = describe_model(str(folder), recipe.tokenizer, recipe.hub_root, max_length, recipe.trust_remote_code)
    return tuned._replace(identity={**identity, "init_from": facts})


def best_seed(run: str, model: str, fingerprint: str) -> tuple[Path, dict[str, Any]]:
    """Returns the model folder of the seed with the best development score, and the facts that results show of it.

    It is the first seed of a run without selection (`selection: last`). `fingerprint` is that of `model`.
    """
    results_file = Path(run) / "results.json"
    if not results_file.is_file():
        raise ValueError(
            f"init_from is {run}, and there is no results.json: it is not a finished run of finetuning/run.py. Finish "
            "that run first, or leave init_from out."
        )
    results = read_json(results_file, needs=("model", "protocol", "seeds", "task", "setting"))
    if results["model"]["fingerprint"] != fingerprint:
        raise ValueError(
            f"init_from is {run}, which was fine-tuned from {results['model']['folder']} "
            f"({results['model']['fingerprint'][:19]}), and model is {model} ({fingerprint[:19]}). Use the same "
            "model for both."
        )
    scores = Protocol(results["protocol"]).selection.scores or [None]
    best = 0 if None in scores else max(range(len(scores)), key=scores.__getitem__)
    seed = results["seeds"][best]
    facts = {"run": run, "task": results["task"], "setting": results["setting"], "seed": seed}
    return Path(run) / f"seed-{seed}" / "model", facts


def trainer_checkpoints(folder: Path) -> list[Path]:
    """Returns the Trainer's checkpoints in a folder, oldest first. `checkpoint-12.bak` is not one of them."""
    found = (path for path in folder.glob("*") if re.fullmatch(CHECKPOINT, path.name) and path.is_dir())
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def last_complete_checkpoint(folder: Path) -> str | None:
    """Returns the newest complete checkpoint of the Trainer, which has a trainer_state.json."""

    def is_complete(checkpoint: Path) -> bool:
        try:
            return bool(read_json(checkpoint / "trainer_state.json"))
        except (OSError, ValueError):
            return False

    found = reversed(trainer_checkpoints(folder))
    return next((str(checkpoint) for checkpoint in found if is_complete(checkpoint)), None)
