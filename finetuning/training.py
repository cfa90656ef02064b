"""Runs a task: its seeds, each trained or resumed, and its results. Signals save a checkpoint first."""

import contextlib
import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from accelerate import DistributedType, PartialState
from accelerate.utils import gather, release_memory
from safetensors.torch import load_model
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy
from transformers.utils import SAFE_WEIGHTS_NAME

from crosslingual_zoo.finetuning.models import fine_tuned_on
from crosslingual_zoo.finetuning.page import print_data, write_results
from crosslingual_zoo.finetuning.progress import say, shown_progress
from crosslingual_zoo.finetuning.recipe import TrainedRecipe
from crosslingual_zoo.finetuning.results import run_name
from crosslingual_zoo.finetuning.run_folder import Predictions, RunFolder, finish_seed
from crosslingual_zoo.finetuning.selection import EqualScores, best_evaluation
from crosslingual_zoo.zoo_core.processes import Stopped, held_signals, received
from crosslingual_zoo.zoo_core.provenance import PROJECT, forget_machine
from crosslingual_zoo.zoo_core.recording import check_recording
from crosslingual_zoo.zoo_core.run_folders import DAMAGED, damaged_file, newest_whole, remove_own

if TYPE_CHECKING:
    from crosslingual_zoo.finetuning.tasks.base import Record, Task

CHECKPOINT = rf"{PREFIX_CHECKPOINT_DIR}-[0-9]+"  # the names of the Trainer's
NEEDED = (SAFE_WEIGHTS_NAME, OPTIMIZER_NAME, SCHEDULER_NAME)  # it would resume without the last two, in silence


def run(
    task: "Task", resume: bool, command: list[str], evaluate: bool = True, sweep: dict[str, Any] | None = None
) -> list["Record"]:
    """Runs the seeds that are not finished, and writes and shows the results; returns the seeds' records.

    Without `evaluate` only the development rows are scored, and no results are written: a sweep selects by them.
    `sweep` is what the recipe's values were chosen from. A resumed run keeps it: results must not hide a selection.
    """
    recipe, start, is_shown = task.recipe, task.begin(), evaluate and PartialState().is_main_process
    folder = RunFolder(recipe, start.identity, resume)
    check_recording(recipe.tracker, None)
    data = task.encode(task.read())
    if sweep := sweep or (folder.facts or {}).get("sweep"):
        data.protocol["selection"]["sweep"] = sweep
    elif (folder.path / "sweep").exists():
        raise ValueError(f"{folder.path} has a sweep that is not finished. Use --sweep and --resume.")
    task.check_run(data)
    records = {seed: folder.finished(seed) for seed in recipe.seeds}
    waiting = [seed for seed, record in records.items() if record is None]
    # built before the run begins, so that a failure leaves nothing in the folder
    models = [task.build(waiting[0], data)] if waiting else []
    folder.begin(data.protocol, command)
    for warning in data.warnings if waiting else []:
        say(f"warning: {warning}")
    for seed in waiting:
        model = models.pop() if models else task.build(seed, data)
        records[seed] = task.run_seed(seed, model, data, folder.path / f"seed-{seed}", evaluate)
    if is_shown:
        data.protocol["fine_tuned_before"] = fine_tuned_on(start.config)
        write_results(task.results(start.identity, data.protocol, list(records.values()), data.warnings), folder.path)
        for seed in recipe.seeds:
            model = folder.path / f"seed-{seed}" / "model"
            if model.is_dir():
                print(f"model: {model}", flush=True)
    return list(records.values())


def check_data(task: "Task") -> None:
    """Reads, checks and encodes all data as for a run, and prints counts. Nothing is trained or written."""
    task.begin()
    data = task.encode(task.read())
    task.check_run(data)
    if PartialState().is_main_process:
        print_data(task.recipe.task, task.data_lines(data.protocol), data)
        print("The data can be used. Nothing was trained or written.")


def check_hardware(precision: str) -> None:
    """Raises ValueError for half precision without an accelerator, and for one process that sees several GPUs."""
    state = PartialState()
    if precision == "fp16" and state.device.type == "cpu":
        raise ValueError("training.precision is fp16, which a CPU does not support. Use fp32 or bf16, or a GPU.")
    if state.device.type == "cuda" and state.distributed_type == DistributedType.NO and torch.cuda.device_count() > 1:
        raise ValueError(
            f"One process sees {torch.cuda.device_count()} GPUs. Start one process per GPU with `accelerate launch "
            "--multi_gpu`, or hide the other GPUs with CUDA_VISIBLE_DEVICES=0."
        )


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

    An evaluation after that step runs before, because the resumed run begins after it.
    """

    signal = None

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.signal = _signal_of_any()
        is_end = state.epoch.is_integer() or control.should_training_stop
        if self.signal and not (is_end and args.save_strategy == SaveStrategy.EPOCH):  # saved when the epoch ends
            control.should_save = True

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        step, folder = state.global_step, Path(args.output_dir)
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
    number, state = received(), PartialState()
    if state.num_processes > 1:
        highest = int(gather(torch.tensor([number or 0], device=state.device)).max())
        number = signal.Signals(highest) if highest else None
    return number


def complete_checkpoints(folder: Path) -> dict[int, Path]:
    """The Trainer's checkpoints by step, oldest first: those with a trainer_state.json, which it writes last."""
    found = {}
    for file in folder.glob(f"*/{TRAINER_STATE_NAME}"):
        if re.fullmatch(CHECKPOINT, file.parent.name):
            with contextlib.suppress(OSError, TypeError, ValueError):  # of a damaged file
                found[TrainerState.load_from_json(str(file)).global_step] = file.parent
    return dict(sorted(found.items()))


class Diverged(ValueError):
    """A seed's training has diverged."""


def train_seed(trainer: Trainer, recipe: TrainedRecipe, size: str) -> None:
    """Trains a seed from its last whole checkpoint, if there is one; not at all if that is of the last step.

    `size` describes the training data. Raises `Stopped` after a signal, once the step is saved, `Diverged` for weights
    that are not numbers, ValueError for damaged checkpoints, and OSError where a checkpoint cannot be written.
    """
    model, seed = trainer.accelerator.unwrap_model(trainer.model), trainer.args.seed
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
            selected = checkpoint_of(folder, state.best_global_step)  # the state has a path, from before it was moved
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
        folder, step = Path(trainer.args.output_dir), trainer.state.global_step
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


def finish_training(
    trainer: Trainer, recipe: TrainedRecipe, folder: Path, record: dict[str, Any], predictions: Predictions
) -> "Record":
    """Leaves scores.json, predictions/ and, if it is to be kept, model/ in the seed's folder, and removes checkpoints.

    Returns what scores.json holds: what a kind of task records, and facts of the training.
    """
    state = trainer.state
    best = best_evaluation(state)
    record = {
        "seed": trainer.args.seed,
        **record,
        "steps": state.global_step,
        "selection_score": best.get("eval_selection"),
        "selection_loss": finite(best.get("eval_loss")),
        "parameters": trainer.accelerator.unwrap_model(trainer.model).num_parameters(),
        "history": finite(state.log_history),
    }
    if recipe.save_models:
        try:
            trainer.save_model(str(folder / "model"))
        except Exception as error:
            raise not_written(folder / "model", error) from error
    PartialState().wait_for_everyone()
    if PartialState().is_main_process:
        if recipe.save_models:
            forget_machine(folder / "model")
        finish_seed(folder, record, predictions)
        remove_own(folder / "checkpoints", CHECKPOINT)
        if "wandb" in trainer.args.report_to:  # the next seed is a run of its own
            import wandb

            wandb.finish()
    PartialState().wait_for_everyone()
    release_memory(trainer)
    return record


def finite(value: Any) -> Any:
    """Replaces NaN and infinity by None, such as gradient norms of updates that fp16's loss scaling skips."""
    return json.loads(json.dumps(value), parse_constant=lambda name: None)
