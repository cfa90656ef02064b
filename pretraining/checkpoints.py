"""The run folder: resuming a run, and checkpoints, which are always complete.

<output_dir>/recipe.yaml  run.json  events.jsonl  curves.png
             checkpoints/step-N/model/        loads like the final model
             checkpoints/step-N/              optimizer, random states, progress.json
             model/                           the result: this folder is the Hub repository
"""

import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from safetensors.torch import load_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from crosslingual_zoo.pretraining.data.corpora import Corpus
from crosslingual_zoo.pretraining.data.readings import reading_fingerprint
from crosslingual_zoo.pretraining.recipe import HEAD, Recipe
from crosslingual_zoo.pretraining.start.teacher import TeacherModel
from crosslingual_zoo.zoo_core.provenance import forget_machine, read_json, write_json
from crosslingual_zoo.zoo_core.recipes import load_recipe, recipe_differences, save_recipe
from crosslingual_zoo.zoo_core.run_folders import STEP, newest_whole, not_own, remove_own

# Half-written files of a killed run, in its folder and in checkpoints/. If only the first one exists, a new run may
# still start in the folder.
BEGUN = r"\.recipe\.yaml\.\d+\.tmp"
HALF_WRITTEN = rf"{BEGUN}|\.(run\.json|events\.jsonl)\.\d+\.tmp|\.model\.tmp"
HALF_A_CHECKPOINT = rf"\.{STEP}(\.old)?\.tmp"
NEEDED = ("progress.json", "optimizer.bin", "model/config.json", "model/model.safetensors")  # files of a checkpoint
FIELDS_SHOWN = 4  # changed fields that an error lists
# Fields that may differ on resume: they change the output of a run, and the training at most by rounding. Texts that
# another hub_root holds have fingerprints (`check_same_data`).
FREE_ON_RESUME = ("output_dir", "num_workers", "log_every_steps", "save_every_steps", "keep_checkpoints")
FREE_ON_RESUME += ("tracker", "push_to_hub", "licenses", "hub_root", "trust_remote_code")
FREE_ON_RESUME += ("evaluation.every_steps", "evaluation.batch_size", "model.attention", "model.skip_padding")


def open_run_folder(recipe: Recipe, resume: bool) -> tuple[Recipe, Path | None]:
    """Checks that a run can start or resume in its folder, which with `resume` may also be empty or missing.

    Returns the recipe, with its `head_phase` among the phases if the run has begun with it, and the newest whole
    checkpoint, if any.

    Raises `ValueError` for a folder that is not empty without `resume`, for `resume` with another recipe (naming the
    fields), for a run that is already finished, and if there are checkpoints of which none is whole.
    """
    folder = Path(recipe.output_dir)
    entries = not_own(folder, BEGUN)
    if not entries:
        return recipe, None
    if not resume:
        advice = "Resume the run with --resume, or give another output_dir."
        raise ValueError(f"{str(folder)!r} is not empty: it holds {entries[0]}. {advice}")
    if not (folder / "recipe.yaml").exists():
        raise ValueError(f"{str(folder)!r} is no run folder: it has no recipe.yaml. Correct output_dir.")
    before = load_recipe(Recipe, folder / "recipe.yaml", [])
    if recipe.head_phase and not before.head_phase:  # a run that began with the phase has it among the others
        recipe = recipe.with_head_phase()
    differences = recipe_differences(asdict(before), asdict(recipe))
    changed = [line for line in differences if not line.startswith(FREE_ON_RESUME)]
    if changed:
        shown = "; ".join(changed[:FIELDS_SHOWN])
        if len(changed) > FIELDS_SHOWN:
            shown += f"; and {len(changed) - FIELDS_SHOWN} more fields"
        numbering = " (phases.0 is the head phase)" if recipe.phases[0].name == HEAD else ""
        raise ValueError(f"the recipe has changed since this run started: {shown}{numbering}. Restore it.")
    if (folder / "model").exists():
        raise ValueError(f"the run in {str(folder)!r} is finished: start a new one from its model/ (model.start_from).")
    return recipe, newest_whole(checkpoints_of(folder), NEEDED)


def data_facts(corpora: list[Corpus], tokenizer: PreTrainedTokenizerBase, teacher: TeacherModel | None) -> dict:
    """Returns the data of a run with fingerprints, for run.json."""
    return {
        "tokenizer_fingerprint": reading_fingerprint(tokenizer),
        "corpora": [corpus.facts() for corpus in corpora],
        "teachers": [teacher.facts()] if teacher else [],
    }


def check_same_data(folder: Path, now: dict) -> None:
    """Raises `ValueError` if a resumed run would have other text, tokens or another teacher than at its start."""
    before = _fingerprints(read_json(folder / "run.json", now, needs=now))
    changed = [name for name, value in _fingerprints(now).items() if value != before.get(name)]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} changed since the run in {str(folder)!r} was started. Restore it, or start a new "
            "run in another output_dir with model.start_from=<this run>/checkpoints/step-N/model."
        )


def _fingerprints(facts: dict) -> dict[str, Any]:
    """Returns the fingerprints in the facts of a run, by what they are of."""
    fingerprints: dict[str, Any] = {"the tokenizer": facts["tokenizer_fingerprint"]}
    for corpus in facts["corpora"]:
        fingerprints[f"corpus {corpus['name']}"] = [table["fingerprint"] for table in corpus["tables"]]
    teachers = [(teacher["fingerprint"], teacher["tokenizer_fingerprint"]) for teacher in facts["teachers"]]
    fingerprints["the teacher"] = teachers
    return fingerprints


def start_run_folder(recipe: Recipe, is_main: bool = True, checkpoint: Path | None = None) -> None:
    """Removes half-written files of a killed run from a folder checked by `open_run_folder`, and writes the recipe.

    Damaged checkpoints, those after the `checkpoint` that `open_run_folder` returned, are removed, too.
    """
    folder = Path(recipe.output_dir)
    if is_main:
        if checkpoint:
            checkpoints = checkpoints_of(folder)
            for damaged in checkpoints[checkpoints.index(checkpoint) + 1 :]:
                _remove(damaged)
        remove_own(folder / "checkpoints", HALF_A_CHECKPOINT)
        remove_own(folder, HALF_WRITTEN)
        save_recipe(recipe, folder / "recipe.yaml")


def checkpoints_of(folder: Path) -> list[Path]:
    """Returns the complete checkpoints, oldest first. A checkpoint gets its name only when it is complete."""
    checkpoints = []
    for path in folder.glob("checkpoints/step-*"):
        if re.fullmatch(STEP, path.name) and path.is_dir():
            checkpoints.append(path)
    return sorted(checkpoints, key=lambda path: int(path.name.removeprefix("step-")))


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the newest complete checkpoint of a run, or None."""
    checkpoints = checkpoints_of(folder)
    return checkpoints[-1] if checkpoints else None


def save_model_folder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes weights, configuration, code and tokenizer as a folder for the Auto classes and the Hub."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    forget_machine(folder)


def register_model_folder(accelerator: Accelerator, tokenizer: PreTrainedTokenizerBase) -> None:
    """Makes accelerate save the weights only once, as `model/`, a folder that loads like the final one."""

    def save(models: list[PreTrainedModel], weights: list[dict], output_dir: str) -> None:
        if accelerator.is_main_process:
            model: Any = accelerator.unwrap_model(models[0])
            save_model_folder(model, tokenizer, Path(output_dir) / "model")
        weights.clear()

    def load(models: list[PreTrainedModel], input_dir: str) -> None:
        model: Any = accelerator.unwrap_model(models.pop())
        # tied weights are written only once, by the name that comes first, so not strict
        missing, unexpected = load_model(model, Path(input_dir) / "model" / "model.safetensors", strict=False)
        parameter_names = {name for name, _ in model.named_parameters()}
        if unexpected or parameter_names & set(missing):
            names = f"weights missing: {sorted(missing)[:3]}, not expected: {unexpected[:3]}"
            raise ValueError(f"the checkpoint {input_dir} belongs to another model ({names}).")
        model.tie_weights()

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def save_checkpoint(accelerator: Accelerator, folder: Path, progress: dict, keep: int) -> None:
    """Writes `checkpoints/step-N` under a temporary name, synchronizes and renames it, then removes older ones.

    `progress` is written to its progress.json; `step` is the number of steps done in all phases.

    Raises `ValueError` where it cannot be written (full disk, quota, permissions). Earlier checkpoints stay unchanged.
    """
    step = progress["step"]
    final = folder / "checkpoints" / f"step-{step}"
    aside = folder / "checkpoints" / f".step-{step}.tmp"
    try:
        if accelerator.is_main_process:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        accelerator.wait_for_everyone()
        accelerator.save_state(str(aside))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            write_json(aside / "progress.json", progress)
            _synchronize(aside)
            _remove(final)  # it exists only if the same step is saved again
            os.rename(aside, final)
            _synchronize(final.parent)
    except Exception as error:  # safetensors and torch.save each wrap the system's error in their own
        if not accelerator.is_main_process:
            raise  # the main process reports it, and cleans up
        shutil.rmtree(aside, ignore_errors=True)
        raise ValueError(
            f"the checkpoint of step {step} could not be written ({error}). The newest checkpoint is "
            f"{newest_checkpoint(folder)}. Free some space on the disk, then resume with --resume."
        ) from error
    if accelerator.is_main_process and keep:
        for old in checkpoints_of(folder)[:-keep]:
            _remove(old)
    accelerator.wait_for_everyone()


def publish_model(folder: Path, checkpoint: Path) -> None:
    """Copies the last checkpoint's model to `<run>/model`, completely or not at all."""
    aside = folder / ".model.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        shutil.copytree(checkpoint / "model", aside)
        _synchronize(aside)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    os.rename(aside, folder / "model")


def _remove(checkpoint: Path) -> None:
    """Renames a checkpoint, then removes it, so that a run that is killed here leaves no incomplete checkpoint.

    Files and links of that name are not checkpoints of a run, and stay.
    """
    if checkpoint.is_dir() and not checkpoint.is_symlink():
        shutil.rmtree(checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.old.tmp")))


def _synchronize(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
