"""Runs a task, top to bottom: reads and encodes the data, and for each seed builds, trains and scores a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import DistributedType, PartialState
from accelerate.utils import release_memory

from crosslingual_zoo.finetuning.models import fine_tuned_on
from crosslingual_zoo.finetuning.page import print_data, write_results
from crosslingual_zoo.finetuning.progress import say, say_evaluation
from crosslingual_zoo.finetuning.recipe import TaskRecipe
from crosslingual_zoo.finetuning.results import make_results
from crosslingual_zoo.finetuning.run_folder import RunFolder, finish_seed
from crosslingual_zoo.finetuning.seed import remove_checkpoints, save_model, train_seed, training_record
from crosslingual_zoo.finetuning.selection import kept_checkpoint
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.zoo_core.recording import check_recording

if TYPE_CHECKING:
    from crosslingual_zoo.finetuning.data.task_tables import Data
    from crosslingual_zoo.finetuning.tasks.base import Task

# Of a seed's scores.json: `seed`, `parameters`, `metric` (its name, module and version), `scores` (rows as in
# results.json), `facts` that the evaluation adds, `processes`, and of a training its steps, selection and log
Record = dict[str, Any]


def run_task(
    recipe: TaskRecipe, resume: bool, command: list[str], evaluate: bool = True, sweep: dict[str, Any] | None = None
) -> list[Record]:
    """Runs the seeds that are not finished, and writes and shows the results; returns the seeds' records.

    Without `evaluate` only the development rows are scored, and no results are written: a sweep selects by them.
    `sweep` is what the recipe's values were chosen from. A resumed run keeps it: results must not hide a selection.
    """
    # The recipe, the model that it starts from, and the folder
    recipe.check()
    task = task_of(recipe)
    start = task.open()
    folder = RunFolder(recipe, start.identity, resume)
    if recipe.is_trained:
        check_recording(recipe.tracker, None)

    # The data
    data = task.encode(task.read())
    sweep = sweep or (folder.facts or {}).get("sweep")
    if sweep:
        data.protocol["selection"]["sweep"] = sweep
    elif (folder.path / "sweep").exists():
        raise ValueError(f"{folder.path} has a sweep that is not finished. Use --sweep and --resume.")
    task.check_run(data)

    # The seeds. The first model is built before the run begins, so that a failure leaves nothing in the folder
    records = {seed: folder.finished(seed) for seed in recipe.seeds}
    waiting = [seed for seed, record in records.items() if record is None]
    model = task.build(waiting[0], data) if waiting else None
    folder.begin(data.protocol, command)
    if waiting:
        for warning in data.warnings:
            say(f"warning: {warning}")
    for seed in waiting:
        if model is None:
            model = task.build(seed, data)
        records[seed] = run_seed(task, seed, model, data, folder.path / f"seed-{seed}", evaluate)
        model = None

    # The results
    finished = list(records.values())
    if evaluate and PartialState().is_main_process:
        data.protocol["fine_tuned_before"] = fine_tuned_on(start.config)
        write_results(make_results(recipe, start.identity, data.protocol, finished, data.warnings), folder.path)
        for seed in recipe.seeds:
            saved = folder.path / f"seed-{seed}" / "model"
            if saved.is_dir():
                print(f"model: {saved}", flush=True)
    return finished


def run_seed(
    task: "Task", seed: int, model: torch.nn.Module, data: "Data", folder: Path, evaluate: bool = True
) -> Record:
    """Trains a model, if the task does, and scores it. Leaves scores.json, predictions/ and perhaps model/ in `folder`.

    Raises as `train_seed`, and OSError where the model cannot be written.
    """
    recipe = task.recipe
    record: Record = {"seed": seed, "parameters": sum(parameter.numel() for parameter in model.parameters())}
    predictor: Any = model
    if recipe.is_trained:
        predictor = trainer = task.trainer(seed, model, data, folder / "checkpoints")
        train_seed(trainer, recipe, task.describe(model, data))
        record["selected_step"] = task.select(trainer, data)
        record |= training_record(trainer)
        say(f"seed {seed}: {kept_checkpoint(trainer.state, record['selected_step'], recipe.main_score)}")

    predictions = {}
    if evaluate:
        say_evaluation(seed, data.protocol["evaluated_rows"])
        scored = task.score(predictor, data)
        predictions = scored.predictions
        record |= {
            "metric": {"name": recipe.main_score, **scored.metric},
            "scores": scored.scores,
            "facts": scored.facts,
        }

    state = PartialState()
    if recipe.is_trained and recipe.save_models:
        save_model(trainer, folder / "model")
    state.wait_for_everyone()
    if state.is_main_process:
        finish_seed(folder, record, predictions)
    if recipe.is_trained:
        remove_checkpoints(trainer)
        release_memory(trainer)
    state.wait_for_everyone()
    return record


def check_data(recipe: TaskRecipe) -> None:
    """Reads, checks and encodes all data as for a run, and prints counts. Nothing is trained or written."""
    recipe.check()
    task = task_of(recipe)
    task.open()
    data = task.encode(task.read())
    task.check_run(data)
    if PartialState().is_main_process:
        print_data(recipe.task, data)
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
