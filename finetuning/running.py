"""Runs a task: every seed, then its results; or only reads and checks its data, for `--check_data`."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas
from accelerate import PartialState

from finetuning.checkpoints import fine_tuned_on, last_complete_checkpoint
from finetuning.data.data_report import as_table, print_labels
from finetuning.page import print_table, write_results
from finetuning.recipe import TaskRecipe
from finetuning.run_folder import RunFolder
from finetuning.tasks.base import Record, Task
from zoo_core.provenance import read_json
from zoo_core.recording import check_recording


def run(task: Task, resume: bool, command: list[str], evaluate: bool = True) -> list[Record]:
    """Runs the seeds that are not finished, and writes and shows the results; returns the seeds' records.

    Without `evaluate` only the development rows are scored, and no results are written: a sweep selects by them.
    """
    recipe, start = task.recipe, task.begin()
    folder = RunFolder(recipe, start.identity, resume)
    check_recording(recipe.tracker, recipe.push_to_hub)
    data = task.encode(task.read())
    # results name the values of --sweep that these were chosen from: they must not hide a selection
    if sweep := sweep_facts(recipe, start.identity):
        data.protocol.selection.sweep = sweep
    if evaluate and PartialState().is_main_process:
        print_labels(recipe.task, data, most_languages=5)
    task.check_run(data, folder)
    records = each_seed(
        recipe.seeds,
        folder,
        lambda: folder.begin(data.protocol, command),
        lambda seed: task.build(seed, data),
        lambda seed, model: task.run_seed(seed, model, data, folder.of_seed(seed), evaluate),
    )
    if evaluate and PartialState().is_main_process:
        data.protocol.fine_tuned_before = fine_tuned_on(start.config)
        write_results(task.results(start.identity, data.protocol, records, data.warnings), folder.path)
    return records


def sweep_facts(recipe: TaskRecipe, model: dict[str, Any]) -> dict[str, Any] | None:
    """Fields, points and score of the sweep in the run's folder, if it chose these values for this model."""
    found = read_json(Path(recipe.output_dir) / "sweep.json", {})
    if not found or found["model"] != model["fingerprint"]:
        return None
    (values,) = pandas.json_normalize(asdict(recipe)).to_dict("records")
    if any(values.get(name) != value for name, value in found["taken"].items()):
        return None
    score = next(point["score"] for point in found["points"] if point["values"] == found["taken"])
    return {"fields": found["fields"], "points": len(found["points"]), "score": score}


def each_seed(
    seeds: list[int],
    folder: RunFolder,
    begin: Callable[[], None],
    build: Callable[[int], Any],
    run_seed: Callable[[int, Any], Record],
) -> list[Record]:
    """Returns the records of all seeds; finished seeds are not run again.

    The first model is built before the run begins, so that a failure leaves nothing in the folder.
    """
    records = {seed: folder.finished(seed) for seed in seeds}
    waiting = [seed for seed, record in records.items() if record is None]
    models = [build(waiting[0])] if waiting else []
    begin()
    for seed in waiting:
        folder.check_is_there()
        began, is_main = folder.path / f"seed-{seed}", PartialState().is_main_process
        if folder.facts and is_main and began.is_dir() and not last_complete_checkpoint(began / "checkpoints"):
            print(f"seed {seed}: no checkpoint: from the beginning", file=sys.stderr)
        try:
            records[seed] = run_seed(seed, models.pop() if models else build(seed))
        finally:  # the Trainer recreates a removed folder, or fails while writing into it
            folder.check_is_there()
    return list(records.values())


def check_data(task: Task) -> None:
    """Reads, checks and encodes all data as for a run, and prints counts. Nothing is trained or written."""
    recipe = task.recipe
    task.begin()
    read = task.read()
    data = task.encode(read)
    task.check_run(data)
    if PartialState().is_main_process:
        table = as_table(task.data_lines(read, data))
        print_table(f"{recipe.task}: data of {recipe.kind}", table, data.warnings)
        print_labels(recipe.task, data)
        print("The data can be used. Nothing was trained or written.")
