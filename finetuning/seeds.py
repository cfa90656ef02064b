"""Functions for a seed of any kind of task: hardware checks, the Trainer's arguments, metrics, signals, its end."""

import contextlib
import functools
import json
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import evaluate
import torch
from accelerate import DistributedType, PartialState
from accelerate.tracking import WandBTracker
from accelerate.utils import gather, release_memory
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from finetuning.checkpoints import CHECKPOINT, last_complete_checkpoint, trainer_checkpoints
from finetuning.recipe import TrainedRecipe
from finetuning.results import run_name
from zoo_core.console import RunBar
from zoo_core.processes import Stopped, held_signals, main_first, received
from zoo_core.provenance import forget_machine, write_json, write_rows
from zoo_core.recording import PROJECT, CheckpointUploads
from zoo_core.run_folders import remove_own

METRICS = Path(__file__).parent / "metrics"
# scores of development rows; those by language are in the results
SHOWN = {"eval_loss": "loss", "eval_bleu": "BLEU", "eval_selection": "score"}


def check_hardware(precision: str) -> None:
    """Raises ValueError for half precision without an accelerator, and for one process that sees several GPUs."""
    state = PartialState()
    if precision == "fp16" and state.device.type == "cpu":
        raise ValueError(
            "training.precision is fp16, and this run is on a CPU, which does not support it. Use "
            "training.precision=fp32 or bf16, or a GPU."
        )
    if state.device.type == "cuda" and state.distributed_type == DistributedType.NO and torch.cuda.device_count() > 1:
        raise ValueError(
            f"One process sees {torch.cuda.device_count()} GPUs. Start one process per GPU with `accelerate launch "
            "--multi_gpu`, or hide the other GPUs with CUDA_VISIBLE_DEVICES=0."
        )


def training_arguments(
    arguments_class: type, recipe: TrainedRecipe, seed: int, folder: Path, **of_the_kind: Any
) -> Any:
    """The hyperparameters that all kinds of task have, in the Trainer's terms, and what the kind adds to them."""
    training = recipe.training
    arguments: TrainingArguments = arguments_class(
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
        logging_steps=50,
        disable_tqdm=True,  # `SeedProgress` shows it
        seed=seed,
        data_seed=seed,
        report_to=[recipe.tracker] if recipe.tracker in ("wandb", "trackio") else [],
        project=PROJECT,
        run_name=f"{run_name(recipe.model)}-{Path(recipe.output_dir).name}-seed-{seed}",
        **of_the_kind,
    )
    # with fp32, the Trainer would use the precision of `accelerate config`
    arguments.mixed_precision = "no" if training.precision == "fp32" else training.precision
    return arguments


def recompute_activations(model: torch.nn.Module) -> None:
    """Turns gradient checkpointing on."""
    # renamed in transformers 5.2x; our oldest supported version has only the old name
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


@functools.cache
def load_metric(name: str) -> evaluate.Metric:
    """Loads a metric of finetuning/metrics by its path, without the Hub."""
    with main_first():
        return evaluate.load(str(METRICS / name / f"{name}.py"), keep_in_memory=True)


def metric_facts(score: str, module: str) -> dict[str, str]:
    """Which metric a score comes from, for the records."""
    metric = load_metric(module)
    return {"name": score, "module": metric.name, "version": metric.version}


class SeedProgress(TrainerCallback):
    """Shows the progress of one seed: steps with their loss, one line per evaluation; and uploads its checkpoints."""

    def __init__(self, seed: int, push_to_hub: str | None):
        self.name, self.bar = f"seed {seed}", RunBar(PartialState().is_main_process)
        self.uploads = CheckpointUploads(push_to_hub, self.bar.say)

    def __enter__(self) -> "SeedProgress":
        self.bar.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.bar.__exit__(*exception)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.bar.begin(state.max_steps, state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.bar.step(state.global_step, self.name)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        if "loss" in logs:
            self.bar.note(f"loss {logs['loss']:.3f}")
        if scores := [f"{SHOWN[name]} {value:.3f}" for name, value in logs.items() if name in SHOWN]:
            self.bar.say(f"{self.name}  step {state.global_step}  dev " + "  ".join(scores))

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        self.uploads.push(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}", f"step {step}")


class KeepCheckpoints(TrainerCallback):
    """Removes the oldest checkpoints, except for `limit` of them, the current one and the best one.

    Replaces the Trainer's `save_total_limit`, which would also remove `checkpoint-12.bak`.
    Checkpoints that a signal saved between two regular ones are removed first: no recipe averages them.
    """

    def __init__(self, limit: int):
        self.limit = limit

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            names = [f"{PREFIX_CHECKPOINT_DIR}-{step}" for step in (state.global_step, state.best_global_step)]
            found = trainer_checkpoints(Path(args.output_dir))
            others = [path for path in found if path.name not in names]
            others.sort(key=lambda path: int(path.name.rpartition("-")[2]) % args.save_steps == 0)
            for path in others[: max(0, len(found) - self.limit)]:
                shutil.rmtree(path, ignore_errors=True)


class StopAtStep(TrainerCallback):
    """After a signal, saves the step that is being trained, and raises `Stopped` in all processes.

    After the last step of an epoch, or of the seed, there may be an evaluation. It runs before the step is saved,
    because the resumed run begins after it.
    """

    def __init__(self, progress: SeedProgress):
        self.progress = progress
        self.signal: signal.Signals | None = None

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.signal = _signal_of_any()
        is_end = state.epoch.is_integer() or control.should_training_stop
        if self.signal and not (is_end and args.save_strategy == SaveStrategy.EPOCH):  # saved when the epoch ends
            control.should_save = True

    def on_save(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.signal:
            self._stop(f"saved at step {state.global_step} in {args.output_dir}")

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.signal = _signal_of_any()
        if self.signal:
            self._stop(f"trained to its end, and saved in {args.output_dir}")

    def _stop(self, where: str) -> NoReturn:
        self.progress.bar.say(f"{self.progress.name} is {where}")
        PartialState().wait_for_everyone()  # a launcher ends the other processes when one has ended
        raise Stopped(self.signal)


def _signal_of_any() -> signal.Signals | None:
    """Returns the signal that any process received, or None; all processes must call this."""
    number, state = received(), PartialState()
    if state.num_processes > 1:
        highest = int(gather(torch.tensor([number or 0], device=state.device)).max())
        number = signal.Signals(highest) if highest else None
    return number


def train_or_resume(trainer: Trainer, recipe: TrainedRecipe, progress: SeedProgress, size: str, keep: int = 1) -> None:
    """Trains a seed from its last complete checkpoint, if there is one; not at all if that is of the last step.

    `size` describes the training data; `keep` checkpoints are kept in addition to the best one. Raises `Stopped` after
    a signal, once the step is saved.
    """
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(progress)
    trainer.add_callback(StopAtStep(progress))  # before another callback removes checkpoints
    trainer.add_callback(KeepCheckpoints(keep))
    if recipe.training.gradient_checkpointing:
        recompute_activations(trainer.model)
    resumed = last_complete_checkpoint(Path(trainer.args.output_dir))
    said = [f"{progress.name}: {size}"]
    if fresh := getattr(trainer.model, "fresh_parameters", None):
        prefix = f"{trainer.model.base_model_prefix}."
        heads = dict.fromkeys(name.removeprefix(prefix).partition(".")[0] for name in fresh["names"])
        said.append(f"fresh {', '.join(heads)} ({fresh['count']:,} parameters)" if heads else "nothing fresh")
    progress.bar.say(", ".join([*said, f"resumed from {resumed}"] if resumed else said))
    state = TrainerState.load_from_json(str(Path(resumed) / TRAINER_STATE_NAME)) if resumed else TrainerState()
    if resumed and state.global_step >= state.max_steps:  # the Trainer would train one more step
        trainer.state = state
        best = state.best_model_checkpoint if trainer.args.load_best_model_at_end else None
        trainer._load_from_checkpoint(best or resumed)
        return
    if trainer.is_world_process_zero():
        _start_tracker(trainer, recipe.tracker, state.global_step)
    with held_signals(), explained_writes(trainer.args.output_dir):
        trainer.train(resume_from_checkpoint=resumed)


def _start_tracker(trainer: Trainer, tracker: str | None, step: int) -> None:
    """Starts the tracker's run of this seed at `step`; the Trainer's own would be in another folder."""
    folder = Path(trainer.args.output_dir).parent  # the seed's folder; the checkpoints' folder is removed at the end
    if tracker == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter  # only where it is installed

        writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        trainer.add_callback(TensorBoardCallback(writer))
    elif tracker == "wandb":
        settings = {"name": trainer.args.run_name, "dir": str(folder), "reinit": "finish_previous"}
        WandBTracker(PROJECT, **settings).start()  # the Trainer logs to the active run


@contextlib.contextmanager
def explained_writes(folder: str | Path) -> Iterator[None]:
    """Raises ValueError where files cannot be written: safetensors, tokenizers and torch.save raise other errors."""
    try:
        yield
    except Exception as error:
        if not re.search("os error|inline_container", str(error)):  # of Rust, of torch.save
            raise
        raise ValueError(
            f"{folder} could not be written ({error}). Free some space on the disk, then resume with --resume."
        ) from error


class Diverged(ValueError):
    """A seed's training has diverged: its weights or losses are not finite."""


def diverged(seed: int, what: str) -> Diverged:
    """Returns the error of a seed whose training has diverged; `what` says how this was detected."""
    return Diverged(
        f"seed {seed}: {what}, training has diverged and its scores would be meaningless. Lower training.learning_rate "
        "or raise training.warmup_steps, and name another output_dir."
    )


def check_weights(model: torch.nn.Module, seed: int) -> None:
    """Raises ValueError for weights that are not numbers."""
    if not all(torch.isfinite(parameter).all() for parameter in model.parameters()):
        raise diverged(seed, "the fine-tuned weights are not finite")


def finite(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON does not have, by None in lists and dictionaries.

    A gradient norm is infinite when fp16's loss scaling skips an update.
    """
    return json.loads(json.dumps(value), parse_constant=lambda name: None)


Predictions = dict[str, Callable[[], Iterable[dict[str, Any]]]]  # by language or pair: makes the rows of its file


def finish_seed(folder: Path, record: dict[str, Any], predictions: Predictions) -> None:
    """Writes `predictions/<language>.jsonl` and then scores.json, with which the seed counts as finished.

    The record then has the number of processes as well.
    """
    for language, records in predictions.items():
        # a table may name languages freely: `pt/BR` must not become a folder
        name = re.sub(r'^\.|[%/\\:*?"<>|\x00-\x1f]', lambda match: f"%{ord(match[0]):02X}", language)
        rows = ({"language": language, **row} for row in records())
        write_rows(folder / "predictions" / f"{name}.jsonl", rows)
    record["processes"] = PartialState().num_processes
    write_json(folder / "scores.json", record)


def finish(
    trainer: Trainer,
    progress: SeedProgress,
    outcome: dict[str, Any],
    predictions: Predictions,
    folder: Path,
    save_model: bool,
) -> dict[str, Any]:
    """Leaves scores.json, predictions/, and model/ if it is to be kept, in the folder of a seed; removes its
    checkpoints.

    Returns what scores.json holds: `outcome` (of the kind of task) and what every seed records.
    """
    state = PartialState()
    record = {
        "seed": trainer.args.seed,
        **outcome,
        "steps": trainer.state.global_step,
        "selection_score": trainer.state.best_metric,
        "parameters": trainer.accelerator.unwrap_model(trainer.model).num_parameters(),
        "history": finite(trainer.state.log_history),
    }
    if save_model:
        with explained_writes(folder / "model"):
            trainer.save_model(str(folder / "model"))
    state.wait_for_everyone()
    if state.is_main_process:
        if save_model:
            forget_machine(folder / "model")
        finish_seed(folder, record, predictions)
        remove_own(folder / "checkpoints", CHECKPOINT)
    state.wait_for_everyone()
    if save_model:  # after the barrier: other processes do not wait for the upload
        progress.uploads.push(folder / "model", f"the model of step {outcome['selected_step']}")
    release_memory(trainer)
    return record
