"""Runs many jobs: reads the results of finished jobs, resumes interrupted ones, and runs the others.

A grid stops at the first failure. A suite runs the remaining tasks that do not need the failed one. The same command
resumes both. Jobs run one after the other in this process (`RecipeJob`), so that libraries are loaded once and one
model is in memory at a time. `bench.reproduce` runs several jobs at a time, each in its own process.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finetuning.recipe import TaskRecipe
from finetuning.results.table import load_results
from finetuning.tasks.registry import task_of
from zoo_core.run_folders import not_own, run_lock

FINISHED, BEGUN, WAITING = "finished", "interrupted", "to do"
SEED = "{seed}"  # in the model of a recipe: one model for each seed


class Job:
    """A job that fills a folder, after the jobs that it `needs`, by name."""

    name: str
    folder: Path
    needs: tuple[str, ...] = ()

    def state(self) -> str:
        """Returns FINISHED, BEGUN or WAITING. Raises ValueError if the folder holds something else."""
        raise NotImplementedError

    def start(self, state: str) -> subprocess.Popen | None:
        """Runs the job to its end, or returns the process that runs it. Raises ValueError if it fails."""
        raise NotImplementedError

    def ended(self, usage: Any) -> None:
        """Takes the resources that the ended process used. Raises ValueError if it failed."""


def run_jobs(
    jobs: Sequence[Job],
    keep_going: bool = False,
    at_once: int = 1,
    has_time: Callable[[list[Job]], bool] = lambda running: True,
    log: Callable[[str], None] = print,
) -> dict[str, str]:
    """Runs the jobs that are not finished, in their order, and returns why some failed, by name.

    With `keep_going`, a failure leaves out only the jobs that need the failed one; without it, the first failure is
    raised as ValueError. `has_time` says whether another job may start while others run. Ctrl-C ends the running
    processes and is raised.
    """
    failed: dict[str, str] = {}
    running: dict[int, tuple[Job, subprocess.Popen]] = {}

    def fail(job: Job, error: ValueError) -> None:
        if not keep_going:
            raise ValueError(f"{job.name} ({job.folder}) failed: {error} Finished runs are kept.") from error
        failed[job.name] = str(error)
        print(f"{job.name} failed: {error}", file=sys.stderr)

    states: dict[str, str] = {}
    for job in jobs:
        if all(states.get(name) == FINISHED for name in job.needs):  # the state of other jobs depends on these
            try:
                states[job.name] = job.state()
            except ValueError as error:
                if not keep_going:
                    raise
                fail(job, error)
    waiting = [job for job in jobs if states.get(job.name) != FINISHED and job.name not in failed]
    total = len(waiting)
    log(f"{len(jobs)} runs: {len(jobs) - total - len(failed)} finished before, {total} to do")
    try:
        while waiting or running:
            under_way = [job for job, _ in running.values()]
            blocked = {job.name for job in [*waiting, *under_way]}
            job = next((job for job in waiting if not blocked & set(job.needs)), None)
            if job and len(running) < at_once and has_time(under_way):
                waiting.remove(job)
                try:
                    if lost := [name for name in job.needs if name in failed]:
                        raise ValueError(f"it needs {lost[0]}, which failed.")
                    state = states.get(job.name) or job.state()
                    if state == FINISHED:
                        continue
                    log(f"\n[{total - len(waiting)}/{total}] {job.name}, {state}: {job.folder}")
                    if process := job.start(state):
                        running[process.pid] = job, process
                except ValueError as error:
                    fail(job, error)
            elif running:
                pid, status, usage = os.wait4(-1, 0)
                if pid in running:
                    job, process = running.pop(pid)
                    process.returncode = os.waitstatus_to_exitcode(status)
                    try:
                        job.ended(usage)
                    except ValueError as error:
                        fail(job, error)
            else:
                log(f"The time is up; {len(waiting)} jobs are left. Run the same command again for them.")
                break
    except BaseException:  # Ctrl-C or our own fault: leave no process behind
        for _, process in running.values():
            process.terminate()
            process.wait()
        raise
    return failed


@dataclass
class RecipeJob(Job):
    """A run of finetuning/run.py with one recipe. `keys` are columns of the joined table, such as model and source."""

    name: str
    recipe: TaskRecipe
    command: list[str]
    fingerprint: Callable[[str], str]  # of a model folder
    keys: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    def __post_init__(self):
        self.folder = Path(self.recipe.output_dir)

    def state(self) -> str:
        """Returns FINISHED, BEGUN or WAITING.

        Raises ValueError if the finished run has another recipe, or if the weights of its model have changed.
        """
        from finetuning.checkpoints import best_seed
        from finetuning.models import find_model
        from finetuning.run_folder import HALF_WRITTEN, check_same_recipe, check_same_start, check_same_weights

        recipe, folder = self.recipe, self.folder
        if not folder.is_dir() or not not_own(folder, HALF_WRITTEN):
            return WAITING
        if not (folder / "results.json").is_file():
            return BEGUN
        check_same_recipe(folder, recipe)
        results = load_results(folder / "results.json")
        if results["seeds"] != recipe.seeds:
            return BEGUN
        paths = [find_model(path, recipe.hub_root) for path in models_of(recipe)]
        if all(Path(path).is_dir() for path in paths):
            now = "+".join(map(self.fingerprint, paths))
            check_same_weights(folder, recipe.model, results["model"]["fingerprint"], now)
            if recipe.init_from:
                source, facts = best_seed(recipe.init_from, recipe.model, now)
                if (source / "config.json").is_file():  # the model may have been deleted since, to save space
                    facts["fingerprint"] = self.fingerprint(str(source))
                check_same_start(folder, results["model"], {"init_from": facts})
        return FINISHED

    def start(self, state: str) -> None:
        from finetuning import running

        with run_lock(self.folder):
            running.run(task_of(self.recipe), state == BEGUN, self.command)


def models_of(recipe: TaskRecipe) -> list[str]:
    """Returns the model of a recipe, or the models of its seeds."""
    return [recipe.model.replace(SEED, str(seed)) for seed in recipe.seeds] if SEED in recipe.model else [recipe.model]


def refuse_push(recipe: TaskRecipe) -> None:
    """Raises ValueError for a recipe that uploads its model: many runs would upload to the same Hub repository."""
    if recipe.push_to_hub:
        raise ValueError(
            f"push_to_hub is {recipe.push_to_hub}, which has room for one model, and there are many runs. Leave it out."
        )
