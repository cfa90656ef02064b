"""The run folder: what may be resumed, and checkpoints that are either complete or not there.

<output_dir>/recipe.yaml  run.json  events.jsonl  curves.png
             checkpoints/step-N/model/        loads like the final model
             checkpoints/step-N/              optimizer, random states, progress.json, checksums.json
             checkpoints/damaged-step-N/      one whose files no longer held what was written
             model/                           the result: this folder is the Hub repository
"""

import hashlib
import logging
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from accelerate import Accelerator
from safetensors.torch import load_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pretraining.recipe import Recipe
from zoo_core.provenance import forget_machine, read_json, write_json
from zoo_core.recipes import recipe_differences, recipe_of_run, save_recipe
from zoo_core.run_folders import STEP, not_own, remove_own

logger = logging.getLogger(__name__)

CHECKSUMS = "checksums.json"
# What a run that is killed leaves half written: in its folder, where a new run may still start if there is no more than
# the first, and in checkpoints/.
BEGUN = r"\.recipe\.yaml\.\d+\.tmp"
HALF_WRITTEN = rf"{BEGUN}|\.((run|not_finite|vocabulary_matching)\.json|events\.jsonl)\.\d+\.tmp|\.(model|push)\.tmp"
HALF_A_CHECKPOINT = rf"\.(damaged-)?{STEP}(\.old)?\.tmp"
THREADS = 4  # hashing lets go of the interpreter; weights and optimizer are two files
# Fields that change what is seen or kept of a run, never what is learned: they may differ on resume.
FREE_ON_RESUME = ("output_dir", "prepared", "num_workers", "log_every_steps", "save_every_steps", "keep_checkpoints")
FREE_ON_RESUME += ("tracker", "push_to_hub")
FREE_ON_RESUME += tuple(
    f"evaluation.{field}" for field in ("every_steps", "batch_size", "retrieval", "alignment", "back_translation")
)
FREE_ON_RESUME += ("model.attention", "model.skip_padding")


def open_run_folder(recipe: Recipe, resume: bool) -> None:
    """Check that a run may start, or go on, in its folder.

    Raises `ValueError` for a folder that is not empty without `resume`, for `resume` under another recipe (naming the
    fields), and for a run that is already finished.
    """
    folder = Path(recipe.output_dir)
    held = not_own(folder, BEGUN)
    if not held and resume:
        raise ValueError(f"there is nothing to resume: {str(folder)!r} is empty or missing.")
    if not held:
        return
    if not resume:
        advice = "Continue the run with --resume, or give another output_dir."
        raise ValueError(f"{str(folder)!r} is not empty: it holds {held[0]}. {advice}")
    if not (folder / "recipe.yaml").exists():
        raise ValueError(f"{str(folder)!r} is not a run folder: it holds no recipe.yaml.")
    before = recipe_of_run(folder / "recipe.yaml", Recipe)
    changed = [line for line in recipe_differences(before, asdict(recipe)) if not line.startswith(FREE_ON_RESUME)]
    if changed:
        raise ValueError(f"the recipe is not the one this run was started with: {'; '.join(changed)}.")
    if (folder / "model").exists():
        raise ValueError(f"the run in {str(folder)!r} is finished: model/ is there.")


def start_run_folder(recipe: Recipe) -> None:
    """Remove what a killed run left in the folder that `open_run_folder` has checked, and write the resolved recipe."""
    folder = Path(recipe.output_dir)
    remove_own(folder / "checkpoints", HALF_A_CHECKPOINT)
    remove_own(folder, HALF_WRITTEN)
    save_recipe(recipe, folder / "recipe.yaml")


def checkpoints_of(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first. What is being written has another name until it is whole."""
    found = (path for path in folder.glob("checkpoints/step-*") if re.fullmatch(STEP, path.name) and path.is_dir())
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run."""
    return next(reversed(checkpoints_of(folder)), None)


def checked_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose files hold what was written, None where there is no checkpoint at all.

    Damaged ones that are newer are put aside as `damaged-step-N`. Raises `ValueError` where all are damaged.
    """
    damaged = []
    for checkpoint in reversed(checkpoints_of(folder)):
        if not (found := damage(checkpoint)):
            for bad in damaged:
                aside = bad.with_name(f"damaged-{bad.name}")
                _remove(aside)
                bad.rename(aside)
            return checkpoint
        logger.warning("%s is damaged: %s", checkpoint, found)
        damaged.append(checkpoint)
    if damaged:
        raise ValueError(
            f"no checkpoint of {str(folder)!r} can be resumed; in {checkpoint.name}, {found.rstrip('.')}. Restore the "
            "files, or start a new run in another output_dir."
        )
    return None


def damage(checkpoint: Path) -> str | None:
    """What is wrong with the files of a checkpoint, by its `checksums.json`; None where nothing is."""
    try:
        written, found = read_json(checkpoint / CHECKSUMS), _checksums(checkpoint)
    except (OSError, ValueError) as error:
        return f"{CHECKSUMS} or another file cannot be read ({error})"
    changed = [name for name, checksum in written.items() if found.get(name) != checksum]
    if "progress.json" not in written:
        return f"{CHECKSUMS} does not list what a checkpoint has"
    others = f" and {len(changed) - 3} others" if len(changed) > 3 else ""
    return f"missing or changed since they were written: {', '.join(changed[:3])}{others}" if changed else None


def _checksums(folder: Path) -> dict[str, str]:
    """{path in the folder: sha256} of all files but the list itself."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / CHECKSUMS)
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip((str(path.relative_to(folder)) for path in files), pool.map(_sha256, files), strict=True))


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def save_model_folder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights, configuration, code and tokenizer: a folder that the Auto classes load and the Hub can hold."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    forget_machine(folder)


def register_model_folder(accelerator: Accelerator, tokenizer: PreTrainedTokenizerBase) -> None:
    """Have accelerate keep the weights as `model/`, a folder that loads like the final one, and not a second time."""

    def save(models, weights, output_dir):
        if accelerator.is_main_process:
            save_model_folder(accelerator.unwrap_model(models[0]), tokenizer, Path(output_dir) / "model")
        weights.clear()

    def load(models, input_dir):
        model = accelerator.unwrap_model(models.pop())
        # tied weights are written once, hence not strict
        missing, unexpected = load_model(model, Path(input_dir) / "model" / "model.safetensors", strict=False)
        if unexpected or set(missing) - set(model._tied_weights_keys):
            names = f"lacks {sorted(missing)[:3]} or holds {unexpected[:3]} besides"
            raise ValueError(f"the checkpoint {input_dir} is not of this model: it {names}.")
        model.tie_weights()

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def save_checkpoint(accelerator: Accelerator, folder: Path, progress: dict, keep: int) -> None:
    """Write `checkpoints/step-N`: aside first, then synchronized to disk and renamed, then older ones are dropped.

    `progress` goes into its progress.json; `step` is the number of steps done in all phases.

    Raises `ValueError` where the disk refuses (full, quota, permissions). What was there before stays as it was.
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
            write_json(aside / CHECKSUMS, _checksums(aside))
            _synchronize(aside)
            _remove(final)  # there only where the same step is saved again
            os.rename(aside, final)
            _synchronize(final.parent)
    except Exception as error:  # safetensors and torch.save each wrap the system's error in one of their own
        if not accelerator.is_main_process:
            raise  # the main process reports it, and tidies up
        shutil.rmtree(aside, ignore_errors=True)
        raise ValueError(
            f"the checkpoint of step {step} could not be written ({error}); the one before it is "
            f"{newest_checkpoint(folder)}. Free some space on the disk, then continue with --resume."
        ) from error
    if accelerator.is_main_process and keep:
        for old in checkpoints_of(folder)[:-keep]:
            _remove(old)
    accelerator.wait_for_everyone()


def publish_model(folder: Path, checkpoint: Path) -> None:
    """Copy the last checkpoint's model to `<run>/model`, whole or not at all."""
    aside = folder / ".model.tmp"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(checkpoint / "model", aside)
        _synchronize(aside)
        os.rename(aside, folder / "model")
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _remove(checkpoint: Path) -> None:
    """Take the name away first: a run that is killed in here leaves no half checkpoint that looks whole.

    Files and links of that name are no checkpoints of a run, and stay.
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
