"""What `bench.reproduce` runs: the models, tasks and claims of a list, and the jobs that they need."""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import MISSING

from finetuning.experiments.engine import BEGUN, FINISHED, WAITING, Job
from finetuning.tasks.registry import KINDS, kind_of
from zoo_core.provenance import write_json
from zoo_core.recipes import option


@dataclass
class Work:
    """A model, or what is measured of one, once a seed: a recipe, what is set in it, and how long it takes."""

    recipe: str | None = option(None, "recipe; none: there is nothing to run")
    module: str | None = option(None, "command that reads it; default: pre-training of a model, fine-tuning of a task")
    set: list[str] = option([], "fields of the recipe, as field=value")
    start: str | None = option(None, "model of this list that a model starts from; default: the recipe's own start")
    start_field: str = option("model.start_from", "field of the recipe that names the model it starts from")
    folder: str | None = option(
        None, "folder or Hub id of an existing model; with start, a folder in its run, such as a checkpoint"
    )
    title: str | None = option(None, "name of a model in tables; default: its name in the list")
    hours: float = option(0.0, "hours of one CPU core: measured where reproduce-costs.csv has it, else an estimate")
    once: bool = option(False, "use one model, of seed 1, for all seeds")


@dataclass
class Column:
    """A column of a claim's table: the mean over languages of one score, by seed."""

    name: str = option(MISSING, "its heading")
    task: str | None = option(None, "task; none: a figure of the pre-training run itself")
    metric: str = option(MISSING, "metric of the task, or figure of the run (held_out/btmlm/*: the mean of those)")
    where: dict[str, Any] = option({}, "other columns of the long table: method, layer, language (one or a list)")
    better: Literal["up", "down"] = option("up", "where better is")
    digits: int = option(1, "behind the point")


@dataclass
class Claim:
    """A row of the table of claims."""

    name: str = option(MISSING, "what --only calls it")
    says: str = option(MISSING, "the claim")
    paper: str = option(MISSING, "paper, table, figure")
    published: str = option("", "the scores of the paper's own models, in sentences")
    models: list[str] = option([], "models that it compares, a row each")
    tasks: list[str] = option([], "tasks that it measures")
    seeds: list[int] = option([], "its seeds, where --seeds has more; default: all of them")
    columns: list[Column] = option([], "columns of its table")
    plot: Literal["layers", "bars"] | None = option(None, "what is drawn")
    outcome: Literal["yes", "in part", "no", "open"] | None = option(None, "whether it holds here; none: not run yet")
    verdict: str = option("", "the result, in a sentence or two")
    setup: str = option("", "the sentence above its table: what is compared, on what data")
    answer: str = option("", "the result, and why where the order is not the paper's")


@dataclass
class Plan:
    """bench/reproduce.yaml, or reproduce_full.yaml."""

    about: str = option("", "the page's first paragraphs")
    guide: str = option("", "the page's sections behind the list of claims: terms, scores, how to run")
    unit: str = option("core hours", "what hours are of")
    launch: list[str] = option([], "module, and its flags, that starts a job's; default: it is started by itself")
    models: dict[str, Work] = option({}, "by name, which names its folder")
    tasks: dict[str, Work] = option({}, "by name")
    claims: list[Claim] = option([], "in the order in which they are run")


@dataclass
class CommandJob(Job):
    """A command in a process of its own, on one thread; an interrupted one is resumed."""

    name: str
    command: list[str]
    folder: Path
    result: str  # file of the folder that exists when it is done
    hours: float
    log: Path  # what it prints; the .json of the same name has the cost of each portion
    needs: tuple[str, ...] = ()

    @property
    def typed(self) -> str:
        """The command as anybody would type it, without the place of the mirror."""
        return shlex.join(["python", *(word for word in self.command[1:] if not word.startswith("hub_root="))])

    @property
    def is_done(self) -> bool:
        return (self.folder / self.result).exists()

    @property
    def portions(self) -> list[dict[str, Any]]:
        """What each portion of it took, and the command."""
        path = self.log.with_suffix(".json")
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []

    def state(self) -> str:
        """FINISHED, BEGUN or WAITING. Raises ValueError where it was finished by another command."""
        if not self.is_done:
            return BEGUN if (self.folder / "recipe.yaml").exists() else WAITING
        if self.portions and self.portions[-1]["command"] != self.typed:
            raise ValueError(
                f"{self.folder} was made by `{self.portions[-1]['command']}`, and the list has `{self.typed}` now. "
                "Remove the folder, or give another --output."
            )
        return FINISHED

    def start(self, state: str) -> subprocess.Popen:
        self.began = time.time()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "a", encoding="utf-8") as log:
            return subprocess.Popen(
                [*self.command, *(["--resume"] if state == BEGUN else [])],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def ended(self, usage: Any) -> None:
        """Records what the portion took. Raises ValueError where the result is not there."""
        cost = {
            "command": self.typed,
            "hours": (time.time() - self.began) / 3600,
            "core_hours": (usage.ru_utime + usage.ru_stime) / 3600,
            "gib": usage.ru_maxrss / 2**20,
        }
        write_json(self.log.with_suffix(".json"), [*self.portions, cost])
        if not self.is_done:
            raise ValueError(f"see {self.log}")


def jobs_of(plan: Plan, claims: list[Claim], flags: argparse.Namespace) -> list[CommandJob]:
    """The jobs of some claims, each once: claim by claim, in it seed by seed."""
    jobs: dict[str, CommandJob] = {}
    for claim in claims:
        for seed in [seed for seed in flags.seeds if not claim.seeds or seed in claim.seeds]:
            for model in claim.models:
                found = [*model_jobs(plan, model, seed, flags), *task_jobs(plan, claim, model, seed, flags)]
                jobs |= {job.name: job for job in found if job.name not in jobs}
    return list(jobs.values())


def model_jobs(plan: Plan, name: str, seed: int, flags: argparse.Namespace) -> list[CommandJob]:
    """The job that trains a model, after that of the model it starts from; none for an existing model."""
    work = plan.models[name]
    before = model_jobs(plan, work.start, seed, flags) if work.start else []
    if work.folder is not None:
        return before
    run = run_of(plan, name, seed)
    own = [f"output_dir={flags.output / run}", f"seed={1 if work.once else seed}"]
    own += [f"{work.start_field}={model_folder(plan, work.start, seed, flags)}"] if work.start else []
    needs = tuple(job.name for job in before[-1:])
    return [
        *before,
        job_of(plan, "pretraining.run", work, run, flags.output / run, "model/config.json", own, needs, flags),
    ]


def task_jobs(plan: Plan, claim: Claim, model: str, seed: int, flags: argparse.Namespace) -> list[CommandJob]:
    """The jobs that measure a model; only once for all seeds, where neither is trained by seed."""
    is_there = not model_jobs(plan, model, seed, flags)
    jobs = []
    for name in claim.tasks:
        work = plan.tasks[name]
        is_trained = KINDS[kind_of(["--config", work.recipe])].is_trained
        is_one = is_there or plan.models[model].once
        run = model if is_one and not is_trained else f"{model}-{seed}"
        folder = flags.output / run / "tasks" / name
        own = [f"model={model_folder(plan, model, seed, flags)}", f"output_dir={folder}"]
        own += [f"seeds=[{seed}]"] if is_trained else []
        needs = tuple(job.name for job in model_jobs(plan, model, seed, flags)[-1:])
        jobs.append(job_of(plan, "finetuning.run", work, f"{run} {name}", folder, "results.json", own, needs, flags))
    return jobs


def job_of(
    plan: Plan,
    module: str,
    work: Work,
    name: str,
    folder: Path,
    result: str,
    own: list[str],
    needs: tuple[str, ...],
    flags: argparse.Namespace,
) -> CommandJob:
    """The job of a recipe; `own` are the overrides that no other job has."""
    hub = [f"hub_root={flags.hub_root}"] if flags.hub_root else []
    command = [
        sys.executable,
        "-m",
        *plan.launch,
        work.module or module,
        "--config",
        work.recipe,
        *work.set,
        *own,
        *hub,
    ]
    return CommandJob(name, command, folder, result, work.hours, flags.output / "jobs" / f"{name}.txt", needs)


def run_of(plan: Plan, model: str, seed: int) -> str:
    """What a model of a seed, and its folder, is called."""
    return model if plan.models[model].once else f"{model}-{seed}"


def model_folder(plan: Plan, name: str, seed: int, flags: argparse.Namespace) -> str:
    """Where the model of a seed is, or will be."""
    work = plan.models[name]
    if work.folder is not None and work.start is None:
        return work.folder
    run = work.start if work.folder is not None else name
    return str(flags.output / run_of(plan, run, seed) / (work.folder or "model"))
