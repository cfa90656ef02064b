"""The Trainer of one seed: its arguments, resume, signals, and the model that it leaves."""

import contextlib
import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import PartialState
from accelerate.utils import gather
from safetensors.torch import load_model
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy
from transformers.utils import SAFE_WEIGHTS_NAME

from crosslingual_zoo.finetuning.progress import say, shown_progress
from crosslingual_zoo.finetuning.recipe import TrainedRecipe
from crosslingual_zoo.finetuning.results import run_name
from crosslingual_zoo.finetuning.selection import EqualScores, best_evaluation
from crosslingual_zoo.zoo_core.processes import Stopped, held_signals, received
from crosslingual_zoo.zoo_core.provenance import PROJECT, forget_machine
from crosslingual_zoo.zoo_core.run_folders import DAMAGED, damaged_file, newest_whole, remove_own

CHECKPOINT = rf"{PREFIX_CHECKPOINT_DIR}-[0-9]+"  # the names of the Trainer's
NEEDED = (SAFE_WEIGHTS_NAME, OPTIMIZER_NAME, SCHEDULER_NAME)  # it would resume without the last two, in silence


def training_arguments(arguments_class: Any, recipe: TrainedRecipe, seed: int, folder: Path, **of_kind: Any) -> Any:
    """The hyperparameters that all kinds of task have, in the Trainer's terms, and what the kind adds to them."""
    training = recipe.training
    arguments = arguments_class(
        output_dir=str(folder),
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        learning_rate=training.learning_rate,
        warmup_steps=training.warmup_steps,
        lr_scheduler_type=training.schedule,
        weight_decay=training.weight_decay,
        adam_beta1=training.betas[0],
        adam_beta2=training.betas[1],
        adam_epsilon=training.epsilon,
        max_grad_norm=training.max_grad_norm,
        use_cpu=PartialState().device.type == "cpu",  # otherwise the Trainer requires a GPU for bf16
        bf16=training.precision == "bf16",
        fp16=training.precision == "fp16",
        # parts that no head uses (cross-attention, a language embedding) get no gradient
        ddp_find_unused_parameters=True,
        dataloader_num_workers=recipe.num_workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=20,
        logging_first_step=True,
        disable_tqdm=True,  # `shown_progress` has the bars
        seed=seed,
        data_seed=seed,
        report_to=[recipe.tracker] if recipe.tracker else [],
        project=PROJECT,
        run_name=f"{run_name(recipe.model)}-{Path(recipe.output_dir).name}-seed-{seed}",
        **of_kind,
    )
    # with fp32, the Trainer would use the precision of `accelerate config`
    arguments.mixed_precision = "no" if training.precision == "fp32" else training.precision
    return arguments


class SeedCallback(TrainerCallback):
    """Stops a seed after a signal: the step that is being trained is saved, and all processes raise `Stopped`.

    If an evaluation is due after that step, it runs before the seed stops: the resumed run begins with the next step.
    """

    signal = None

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.signal = _signal_of_any()
        ends_epoch = state.epoch.is_integer() or control.should_training_stop
        if self.signal and not (ends_epoch and args.save_strategy == SaveStrategy.EPOCH):  # saved when the epoch ends
            control.should_save = True

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        folder = Path(args.output_dir)
        if state.is_world_process_zero and args.save_strategy == SaveStrategy.STEPS:
            # a recipe averages regular checkpoints only, so one that a signal saved in between is removed
            for saved, path in complete_checkpoints(folder).items():
                if saved % args.save_steps and saved not in (step, state.best_global_step):
                    shutil.rmtree(path, ignore_errors=True)
        if self.signal:
            self._stop(f"seed {args.seed} is saved at step {step} in {folder}")

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.signal = _signal_of_any()
        if self.signal:
            self._stop(f"seed {args.seed} is trained to its end, and saved in {args.output_dir}")

    def _stop(self, where: str) -> NoReturn:
        say(where)
        PartialState().wait_for_everyone()  # a launcher ends the other processes when one has ended
        raise Stopped(self.signal)


def _signal_of_any() -> signal.Signals | None:
    """Returns the signal that any process received, or None; all processes must call this."""
    number = received()
    state = PartialState()
    if state.num_processes > 1:
        highest = int(gather(torch.tensor([number or 0], device=state.device)).max())
        number = signal.Signals(highest) if highest else None
    return number


def complete_checkpoints(folder: Path) -> dict[int, Path]:
    """The Trainer's checkpoints by step, oldest first: those with a trainer_state.json, which it writes last."""
    checkpoints = {}
    for file in folder.glob(f"*/{TRAINER_STATE_NAME}"):
        if re.fullmatch(CHECKPOINT, file.parent.name):
            with contextlib.suppress(OSError, TypeError, ValueError):  # of a damaged file
                state = TrainerState.load_from_json(str(file))
                checkpoints[state.global_step] = file.parent
    return dict(sorted(checkpoints.items()))


class Diverged(ValueError):
    """A seed's training has diverged."""


def train_seed(trainer: Trainer, recipe: TrainedRecipe, size: str) -> None:
    """Trains a seed from its last whole checkpoint, if there is one; not at all if that is of the last step.

    `size` describes the training data. Raises `Stopped` after a signal, once the step is saved, `Diverged` for weights
    that are not numbers, ValueError for damaged checkpoints, and OSError where a checkpoint cannot be written.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    seed = trainer.args.seed
    trainer.add_callback(SeedCallback())
    trainer.add_callback(EqualScores())
    if recipe.training.gradient_checkpointing:
        # our oldest transformers has the second name alone
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    folder = Path(trainer.args.output_dir)
    checkpoint = checkpoint_to_resume(folder, recipe)
    resumed = f", resumed from {checkpoint}" if checkpoint else ""
    say(f"seed {seed}: {size}{resumed}")
    state = TrainerState()
    if checkpoint:
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    if checkpoint and state.global_step >= state.max_steps:  # the Trainer would train one more step
        trainer.state = state
        selected = checkpoint
        if trainer.args.load_best_model_at_end and state.best_global_step:
            selected = checkpoint_of(folder, state.best_global_step)  # not the state's path: a run may be moved
        load_model(model, selected / SAFE_WEIGHTS_NAME)
    else:
        with held_signals(), no_half_checkpoint(trainer), shown_progress(trainer, recipe.main_score):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        best = trainer.state.best_global_step
        if trainer.args.load_best_model_at_end and best and not checkpoint_of(folder, best).is_dir():
            raise ValueError(
                f"{checkpoint_of(folder, best)}, the best checkpoint of seed {seed}, is gone: its weights cannot be "
                f"read. Restore it, or remove {folder} to train from the start."
            )
    if not all(torch.isfinite(parameter).all() for parameter in model.parameters()):
        raise Diverged(
            f"seed {seed}: the fine-tuned weights are not finite, training has diverged. Lower training.learning_rate "
            "or raise training.warmup_steps, and name another output_dir."
        )


def checkpoint_of(folder: Path, step: int) -> Path:
    """Returns the Trainer's checkpoint of a step."""
    return folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def checkpoint_to_resume(folder: Path, recipe: TrainedRecipe) -> Path | None:
    """Returns the newest whole checkpoint of a seed, and removes those that a kill or a power failure left useless.

    Raises ValueError if all are damaged, and if one is from which weights are still to be read at the end.
    """
    saved = complete_checkpoints(folder)
    newest = newest_whole(list(saved.values()), NEEDED)
    whole = [checkpoint for checkpoint in saved.values() if not damaged_file(checkpoint, NEEDED)]
    if newest:
        state = TrainerState.load_from_json(str(newest / TRAINER_STATE_NAME))
        for step, checkpoint in saved.items():
            is_read = step == state.best_global_step or recipe.selection == "average"
            if is_read and step < state.global_step and checkpoint not in whole:
                raise ValueError(
                    f"{damaged_file(checkpoint, NEEDED)} is {DAMAGED}, and {recipe.selection!r} needs its weights. "
                    f"Restore it, or remove {folder} to train from the start."
                )
    PartialState().wait_for_everyone()  # every process has looked at the checkpoints
    if PartialState().is_main_process:  # one that is half written would take the place of one to keep
        remove_own(folder, CHECKPOINT, whole)
    return newest


@contextlib.contextmanager
def no_half_checkpoint(trainer: Trainer) -> Iterator[None]:
    """Removes the checkpoint that is half written when an error ends the training, and raises OSError in its place.

    safetensors and torch.save have errors of their own for a full disk. The Trainer writes trainer_state.json last.
    """
    try:
        yield
    except Exception as error:
        folder = Path(trainer.args.output_dir)
        step = trainer.state.global_step
        checkpoint = checkpoint_of(folder, step)
        if not checkpoint.is_dir() or step in complete_checkpoints(folder):
            raise
        raise not_written(checkpoint, error) from error


def not_written(folder: Path, error: Exception) -> OSError:
    """Removes what was written of a folder before an error; returns the error for users."""
    if PartialState().is_main_process:
        shutil.rmtree(folder, ignore_errors=True)
    reason = str(error).strip().partition("\n")[0]
    return OSError(f"{folder} could not be written ({reason}). Free some space on the disk, then resume the run.")


def training_record(trainer: Trainer) -> dict[str, Any]:
    """Returns what a seed's record says of its training: steps, the score that selected the weights, and the log."""
    state = trainer.state
    best = best_evaluation(state)
    return {
        "steps": state.global_step,
        "selection_score": best.get("eval_selection"),
        "selection_loss": finite(best.get("eval_loss")),
        "history": finite(state.log_history),
    }


def save_model(trainer: Trainer, folder: Path) -> None:
    """Writes a seed's model, without what it says of this machine. Raises OSError where it cannot be written."""
    try:
        trainer.save_model(str(folder))
    except Exception as error:
        raise not_written(folder, error) from error
    if PartialState().is_main_process:
        forget_machine(folder)


def remove_checkpoints(trainer: Trainer) -> None:
    """Removes the checkpoints of a finished seed, and ends its run in the tracker: the next seed is one of its own."""
    if PartialState().is_main_process:
        remove_own(Path(trainer.args.output_dir), CHECKPOINT)
        if "wandb" in trainer.args.report_to:
            import wandb

            wandb.finish()


def finite(value: Any) -> Any:
    """Replaces NaN and infinity by None, such as gradient norms of updates that fp16's loss scaling skips."""
    return json.loads(json.dumps(value), parse_constant=lambda name: None)
