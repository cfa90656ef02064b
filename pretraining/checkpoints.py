"""The run folder: what may be resumed, and checkpoints that are either complete or not there.

<output_dir>/recipe.yaml  run.json  events.jsonl  curves.png
             checkpoints/step-N/model/        loads like the final model
             checkpoints/step-N/              optimizer, random states, progress.json, checksums.json
             checkpoints/damaged-step-N/      one whose files no longer held what was written
             model/                           the result: this folder is the Hub repository
"""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from accelerate import Accelerator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pretraining.checksums import damage, write_checksums
from pretraining.recipe import Recipe
from zoo_core.provenance import forget_machine, write_json
from zoo_core.recipes import recipe_differences, recipe_of_run, save_recipe

logger = logging.getLogger(__name__)

# Fields that change what is seen or kept of a run, never what is learned: they may differ on resume.
FREE_ON_RESUME = ("output_dir", "prepared", "num_workers", "log_every_steps", "save_every_steps", "keep_checkpoints")
FREE_GROUPS = (
    "evaluation.every_steps",
    "evaluation.batch_size",
    "evaluation.retrieval",
    "evaluation.alignment",
    "evaluation.back_translation",
    "model.attention",
    "model.skip_padding",
)


def open_run_folder(recipe: Recipe, resume: bool) -> None:
    """Check that a run may start, or go on, in its folder.

    Raises `ValueError` for a folder that is not empty without `resume`, for `resume` under another recipe (naming the
    fields), and for a run that is already finished.
    """
    folder = Path(recipe.output_dir)
    # the lock, and what a killed start had begun to write, have a dot in front
    if not folder.exists() or not any(not path.name.startswith(".") for path in folder.iterdir()):
        if resume:
            raise ValueError(
                f"there is nothing to resume: {str(folder)!r} is empty or missing. Start without --resume."
            )
        return
    if not resume:
        raise ValueError(
            f"the run folder {str(folder)!r} is not empty: a new run would overwrite what is there. Continue it with "
            "--resume, or give another output_dir."
        )
    if not (folder / "recipe.yaml").exists():
        raise ValueError(f"{str(folder)!r} holds no recipe.yaml: it is not a run folder. Give another output_dir.")
    differences = [
        line
        for line in recipe_differences(recipe_of_run(folder / "recipe.yaml", Recipe), _as_dict(recipe))
        if not line.split(":")[0].startswith((*FREE_ON_RESUME, *FREE_GROUPS))
    ]
    if differences:
        raise ValueError(
            "the recipe is not the one this run was started with: " + "; ".join(differences) + ". Resumed under it, "
            "the result would belong to neither. Restore these fields, or start a new run in another output_dir."
        )
    if (folder / "model").exists():
        raise ValueError(f"the run in {str(folder)!r} is finished: model/ is there. Nothing is left to resume.")


def _as_dict(recipe: Recipe) -> dict:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.structured(recipe))


def start_run_folder(recipe: Recipe) -> None:
    """Make the folder and write the resolved recipe."""
    folder = Path(recipe.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in (*folder.glob("checkpoints/.*.tmp"), *folder.glob(".*.tmp")):  # of a run that was killed at it
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    save_recipe(recipe, folder / "recipe.yaml")


def checkpoints_of(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first. What is being written has another name until it is whole."""
    return sorted(folder.glob("checkpoints/step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run."""
    return next(reversed(checkpoints_of(folder)), None)


def sound_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose files hold what was written, None where there is no checkpoint at all.

    Damaged ones that are newer are said and put aside as `damaged-step-N`. Raises `ValueError` where all are damaged.
    """
    damaged = []
    for checkpoint in reversed(checkpoints_of(folder)):
        if not (found := damage(checkpoint)):
            break
        damaged.append((checkpoint, found))
        logger.warning("%s is damaged: %s", checkpoint, found)
    else:
        if damaged:
            raise ValueError(
                f"no checkpoint of {str(folder)!r} can be resumed: "
                + "; ".join(f"{checkpoint.name}: {found}" for checkpoint, found in damaged)
                + ". Training on from other weights would give another run. Restore a checkpoint from a copy, or start "
                "anew in another output_dir."
            )
        return None
    for bad, _ in damaged:
        aside = bad.with_name(f"damaged-{bad.name}")
        _remove(aside)
        logger.warning("%s is kept as %s; the run goes on from %s", bad, aside.name, checkpoint.name)
        bad.rename(aside)
    return checkpoint


@contextlib.contextmanager
def writing(what: str, folder: Path) -> Iterator[None]:
    """Turns what the system refuses while `what` is written into an error that says how to go on.

    Raises `ValueError`; checkpoints stay as they are.
    """
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{what} of {str(folder)!r} could not be written: {error}. The disk may be full; {_kept(folder)}. Free "
            "some space, then continue with --resume."
        ) from error


def _kept(folder: Path) -> str:
    newest = newest_checkpoint(folder)
    return f"{newest} is untouched" if newest else "no checkpoint was written before"


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
        from safetensors.torch import load_model

        model = accelerator.unwrap_model(models.pop())
        # tied weights are written once, hence not strict
        missing, unexpected = load_model(model, Path(input_dir) / "model" / "model.safetensors", strict=False)
        if unexpected or set(missing) - set(model._tied_weights_keys):
            raise ValueError(
                f"the checkpoint {input_dir} lacks {sorted(missing)[:3]} or holds {unexpected[:3]} besides: it is not "
                "of this model and cannot be resumed. Resume from another one, or start anew."
            )
        model.tie_weights()

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def save_checkpoint(accelerator: Accelerator, folder: Path, progress: dict, keep: int) -> Path:
    """Write `checkpoints/step-N`: aside first, then synchronized to disk and renamed, then older ones are dropped.

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
            write_checksums(aside)
            _synchronize(aside)
            _remove(final)  # there only where the same step is saved again
            os.rename(aside, final)
            _synchronize(final.parent)
    except Exception as error:  # safetensors and torch.save each wrap the system's error in one of their own
        if not accelerator.is_main_process:
            raise  # the main process says what happened, and tidies up
        shutil.rmtree(aside, ignore_errors=True)
        raise ValueError(
            f"the checkpoint of step {step} could not be written: {error}. The disk may be full; {_kept(folder)}. Free "
            "some space (or lower keep_checkpoints), then continue with --resume."
        ) from error
    if accelerator.is_main_process and keep:
        for old in checkpoints_of(folder)[:-keep]:
            _remove(old)
    accelerator.wait_for_everyone()
    return final


def load_checkpoint(accelerator: Accelerator, checkpoint: Path) -> dict:
    """Restore weights, optimizer and random states into the prepared objects."""
    accelerator.load_state(str(checkpoint))
    return read_progress(checkpoint)


def read_progress(checkpoint: Path) -> dict:
    """Where a checkpoint stands: `phase`, `update` (done in that phase), `step` (done in all), `scheduler`."""
    return json.loads((checkpoint / "progress.json").read_text(encoding="utf-8"))


def publish_model(folder: Path, checkpoint: Path) -> None:
    """Copy the last checkpoint's model to `<run>/model`, whole or not at all. Raises `ValueError` as `writing`."""
    aside = folder / ".model.tmp"
    with writing("model/", folder):
        try:
            shutil.rmtree(aside, ignore_errors=True)
            shutil.copytree(checkpoint / "model", aside)
            _synchronize(aside)
            os.rename(aside, folder / "model")
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
            raise


def _remove(checkpoint: Path) -> None:
    """Take the name away first: a run that is killed in here leaves no half checkpoint that looks whole."""
    if checkpoint.exists():
        shutil.rmtree(checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.old.tmp")))


def _synchronize(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
