"""What `bench.reproduce` runs: models, tasks and claims of bench/reproduce.yaml, and the jobs that they come to."""

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import MISSING

from finetuning.tasks.registry import KINDS, kind_of
from zoo_core.recipes import option


@dataclass
class Work:
    """A recipe of this project, with what is set in it, and how long one core takes."""

    recipe: str | None = option(None, "recipe, or suite; none: there is nothing to do")
    set: list[str] = option([], "fields of the recipe, as field=value")
    hours: float = option(0.0, "hours of one core, measured; of the papers' sizes: of the GPUs in `hardware`")
    hardware: str = option("one CPU core", "what the hours are of")


@dataclass
class Model:
    """A model that is trained once a seed."""

    small: Work = field(default_factory=Work)
    full: Work = field(default_factory=Work)
    start: str | None = option(None, "model of this list that it starts from; default: the recipe's own start")
    folder: str | None = option(None, "a model that is there already, and not trained")
    once: bool = option(False, "one seed is for all")


@dataclass
class Task:
    """What is measured of a model, once a seed."""

    small: Work = field(default_factory=Work)
    full: Work = field(default_factory=Work)


@dataclass
class Column:
    """A column of a claim's table: the mean over languages of one score, by seed."""

    name: str = option(MISSING, "its heading")
    task: str | None = option(None, "task; none: a figure of the pre-training run itself")
    metric: str = option(MISSING, "metric of the task, or figure of the run (held_out/btmlm/*: the mean of those)")
    where: dict[str, Any] = option({}, "other columns of the long table: method, layer, language (one or a list)")
    better: Literal["up", "down"] = option("up", "where better is")


@dataclass
class Claim:
    """A row of the table of claims."""

    name: str = option(MISSING, "what --only calls it")
    says: str = option(MISSING, "the claim")
    paper: str = option(MISSING, "paper, table, figure")
    published: str = option("", "the paper's own figures, of its own models")
    models: list[str] = option([], "models that it compares; the first is the one that others are compared with")
    tasks: list[str] = option([], "tasks that it measures")
    columns: list[Column] = option([], "columns of its table")
    plot: Literal["layers", "bars"] | None = option(None, "what is drawn")
    verdict: str = option("", "what came out, in a few words")
    answer: str = option("", "what came out, and why where it is another order than the paper's")


@dataclass
class Plan:
    """bench/reproduce.yaml."""

    about: str = option("", "the page's first paragraph")
    models: dict[str, Model] = option({}, "by name, which names its folder")
    tasks: dict[str, Task] = option({}, "by name")
    claims: list[Claim] = option([], "in the order in which they are run")


@dataclass(frozen=True)
class Job:
    """A command, the folder that it fills, and the file that is there when it is done."""

    name: str
    command: list[str]
    folder: Path
    result: str
    hours: float
    log: Path  # what it prints; beside it, as .json, what each of its portions took
    needs: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        return (self.folder / self.result).exists()


def jobs_of(plan: Plan, claims: list[Claim], flags: argparse.Namespace) -> list[Job]:
    """The jobs of some claims, each once: claim by claim, in it seed by seed."""
    jobs: dict[str, Job] = {}
    for claim in claims:
        for seed in flags.seeds:
            for model in claim.models:
                found = [*model_jobs(plan, model, seed, flags), *task_jobs(plan, claim, model, seed, flags)]
                jobs |= {job.name: job for job in found if job.name not in jobs}
    return list(jobs.values())


def run_of(plan: Plan, model: str, seed: int) -> str:
    """What a model of a seed, and its folder, is called."""
    return model if plan.models[model].once else f"{model}-{seed}"


def model_jobs(plan: Plan, name: str, seed: int, flags: argparse.Namespace) -> list[Job]:
    """The job that trains a model, behind that of the one it starts from; none of a model that is there."""
    model = plan.models[name]
    work: Work = getattr(model, flags.budget)
    if work.recipe is None:
        return []
    before = model_jobs(plan, model.start, seed, flags) if model.start else []
    run = run_of(plan, name, seed)
    folder = flags.output / run
    own = [f"output_dir={folder}", f"seed={seed}"]
    if model.start:
        own.append(f"model.start_from={model_folder(plan, model.start, seed, flags)}")
    command = [sys.executable, "-m", "pretraining.run", "--config", work.recipe, *work.set, *own, *hub(flags)]
    needs = tuple(job.name for job in before[-1:])
    return [*before, Job(run, command, folder, "model/config.json", work.hours, log_of(run, flags), needs)]


def task_jobs(plan: Plan, claim: Claim, model: str, seed: int, flags: argparse.Namespace) -> list[Job]:
    """The jobs that measure a model; once, whatever the seed, where neither model nor task is trained."""
    is_there = plan.models[model].folder is not None
    jobs = []
    for name in claim.tasks:
        work: Work = getattr(plan.tasks[name], flags.budget)
        is_trained = KINDS[kind_of(["--config", work.recipe])].is_trained
        run = model if is_there and not is_trained else run_of(plan, model, seed)
        folder = flags.output / run / "tasks" / name
        own = [f"model={model_folder(plan, model, seed, flags)}", f"output_dir={folder}"]
        own += [f"seeds=[{seed}]"] if is_trained else []
        command = [sys.executable, "-m", "finetuning.run", "--config", work.recipe, *work.set, *own, *hub(flags)]
        label = f"{run} {name}"
        needs = () if is_there else (run,)
        jobs.append(Job(label, command, folder, "results.json", work.hours, log_of(label, flags), needs))
    return jobs


def log_of(name: str, flags: argparse.Namespace) -> Path:
    """The log of a job."""
    return flags.output / "jobs" / f"{name}.txt"


def model_folder(plan: Plan, name: str, seed: int, flags: argparse.Namespace) -> str:
    """Where the model of a seed is, or will be."""
    return plan.models[name].folder or str(flags.output / run_of(plan, name, seed) / "model")


def hub(flags: argparse.Namespace) -> list[str]:
    """The override that names the mirror of the Hub."""
    return [f"hub_root={flags.hub_root}"] if flags.hub_root else []


def costs_of(log: Path) -> list[dict[str, float]]:
    """What the portions of a job took."""
    path = log.with_suffix(".json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
