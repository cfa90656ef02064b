"""The papers' claims on a real encoder, from the encoder to the page: `python -m bench.reproduce`, or `make reproduce`.

  python -m bench.reproduce --list                         # what is run, and the hours of one core it takes
  python -m bench.reproduce --hub_root ../shared/hub       # all of it: bench/reproduction.md, and its plots and tables
  python -m bench.reproduce --only dwa --seeds 1 --hours 5 # a part; a portion of five core hours

bench/reproduce.yaml says what: models, each a recipe and what it changes; tasks, each a recipe too; and the claims,
with the models and tasks that they compare. Every model is trained once a seed, in runs/reproduce, and every job is the
command that anybody would type. The same command again goes on: what is finished is kept, what was interrupted is
resumed. `--budget full` has the papers' sizes, and needs their GPUs.

Writes bench/results/reproduce.csv (a row for each score), reproduce-costs.csv (core hours and memory of each job) and
bench/reproduction.md with its plots, of whatever is finished.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import MISSING

from finetuning.tasks.registry import KINDS, kind_of
from zoo_core.console import quiet_libraries
from zoo_core.provenance import write_json
from zoo_core.recipes import load_recipe, nearest, option, user_errors

CONFIG = Path("bench/reproduce.yaml")


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
    plot: Literal["layers", "bars", "steps"] | None = option(None, "what is drawn")
    answer: str = option("", "what came out, and why where it is another order than the paper's")


@dataclass
class Plan:
    """bench/reproduce.yaml."""

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


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = make_parser()
    flags = parser.parse_args(argv)
    with user_errors():
        quiet_libraries()
        plan = load_recipe(Plan, str(CONFIG), [])
        claims = chosen_claims(plan, flags.only)
        jobs = jobs_of(plan, claims, flags)
        if flags.list:
            return show_list(claims, jobs, flags)
        failed = [] if flags.page else run_jobs(jobs, flags)
        from bench._reproduction import write_page  # pandas and matplotlib

        write_page(plan, flags)
        if failed:
            raise ValueError(f"{len(failed)} of {len(jobs)} jobs failed: {', '.join(failed)}. Their logs say why.")


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="CLAIM", help="these claims alone; --list has their names")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="default 1 2 3")
    parser.add_argument("--budget", choices=("small", "full"), default="small", help="small: CPU hours; full: GPUs")
    parser.add_argument("--hub_root", metavar="DIR", help="folder that mirrors the Hub; default: the Hub")
    parser.add_argument("--output", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="the runs' folders")
    parser.add_argument("--jobs", type=int, default=1, help="jobs at a time, one core each (default 1)")
    parser.add_argument("--hours", type=float, help="start nothing more after so many core hours; go on another day")
    parser.add_argument("--list", action="store_true", help="show what is run and what it takes, and stop")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page of what is finished")
    return parser


def chosen_claims(plan: Plan, names: list[str] | None) -> list[Claim]:
    """The claims of these names, or all. Raises ValueError for a name that none has."""
    known = [claim.name for claim in plan.claims]
    for name in names or ():
        if name not in known:
            raise ValueError(f"--only {name} is none of {', '.join(known)}. {nearest(name, known)}")
    return [claim for claim in plan.claims if not names or claim.name in names]


def jobs_of(plan: Plan, claims: list[Claim], flags: argparse.Namespace) -> list[Job]:
    """The jobs of some claims, each once: claim by claim, in it seed by seed."""
    jobs: dict[str, Job] = {}
    for claim in claims:
        for seed in flags.seeds:
            for model in claim.models:
                for job in [*model_jobs(plan, model, seed, flags), *task_jobs(plan, claim, model, seed, flags)]:
                    jobs.setdefault(job.name, job)
    return list(jobs.values())


def model_jobs(plan: Plan, name: str, seed: int, flags: argparse.Namespace) -> list[Job]:
    """The job that trains a model, behind that of the one it starts from; none of a model that is there."""
    model = plan.models[name]
    work: Work = getattr(model, flags.budget)
    if work.recipe is None:
        return []
    before = model_jobs(plan, model.start, seed, flags) if model.start else []
    folder = flags.output / f"{name}-{seed}"
    own = [f"output_dir={folder}", f"seed={seed}"]
    if model.start:
        own.append(f"model.start_from={model_folder(plan, model.start, seed, flags)}")
    command = [sys.executable, "-m", "pretraining.run", "--config", work.recipe, *work.set, *own, *hub(flags)]
    needs = tuple(job.name for job in before[-1:])
    return [
        *before,
        Job(folder.name, command, folder, "model/config.json", work.hours, log_of(folder.name, flags), needs),
    ]


def task_jobs(plan: Plan, claim: Claim, model: str, seed: int, flags: argparse.Namespace) -> list[Job]:
    """The jobs that measure a model; once, whatever the seed, where neither model nor task is trained."""
    is_there = plan.models[model].folder is not None
    jobs = []
    for name in claim.tasks:
        work: Work = getattr(plan.tasks[name], flags.budget)
        is_trained = KINDS[kind_of(["--config", work.recipe])].is_trained
        run = model if is_there and not is_trained else f"{model}-{seed}"
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
    return plan.models[name].folder or str(flags.output / f"{name}-{seed}" / "model")


def hub(flags: argparse.Namespace) -> list[str]:
    """The override that names the mirror of the Hub."""
    return [f"hub_root={flags.hub_root}"] if flags.hub_root else []


def show_list(claims: list[Claim], jobs: list[Job], flags: argparse.Namespace) -> None:
    """Prints the claims, and each job with its hours, whether it is done, and its command."""
    for claim in claims:
        print(f"{claim.name}: {claim.says} ({claim.paper})")
    print()
    for job in jobs:
        state = "done" if job.is_done else f"{job.hours:.2f} h"
        print(f"{job.name:40} {state:>8}  {' '.join(['python', *job.command[1:]])}")
    left = sum(job.hours for job in jobs if not job.is_done)
    print(f"\n{len(jobs)} jobs, {sum(job.hours for job in jobs):.1f} hours; {left:.1f} hours left")


def run_jobs(jobs: list[Job], flags: argparse.Namespace) -> list[str]:
    """Runs what is not done, `flags.jobs` at a time, and returns the names of those that failed, or need one that did.

    Ends the running ones, which keep what they have, where the user interrupts.
    """
    waiting = [job for job in jobs if not job.is_done]
    print(
        f"{len(jobs)} jobs, {len(jobs) - len(waiting)} done before, about {sum(job.hours for job in waiting):.1f} hours"
    )
    running: dict[int, tuple[Job, subprocess.Popen, float]] = {}
    failed: list[str] = []
    spent = 0.0
    try:
        while waiting or running:
            blocked = {job.name for job in waiting} | {job.name for job, *_ in running.values()}
            ready = [job for job in waiting if not blocked & set(job.needs) and not set(job.needs) & set(failed)]
            under_way = sum(job.hours for job, *_ in running.values())
            has_time = flags.hours is None or spent + under_way < flags.hours
            if ready and has_time and len(running) < flags.jobs:
                job = ready[0]
                waiting.remove(job)
                process = start(job)
                running[process.pid] = (job, process, time.time())
                continue
            if not running:
                failed += [job.name for job in waiting if set(job.needs) & set(failed)]
                break
            pid, status, usage = os.wait4(-1, 0)
            if pid not in running:
                continue
            job, process, began = running.pop(pid)
            process.returncode = os.waitstatus_to_exitcode(status)
            cost = {
                "hours": (time.time() - began) / 3600,
                "core_hours": (usage.ru_utime + usage.ru_stime) / 3600,
                "gib": usage.ru_maxrss / 2**20,
            }
            write_json(job.log.with_suffix(".json"), [*costs_of(job.log), cost])
            spent += cost["core_hours"]
            if not job.is_done:
                failed.append(job.name)
            state = "done" if job.is_done else f"failed: {job.log}"
            print(f"{job.name}: {state}, {cost['core_hours']:.2f} core hours; {len(waiting)} waiting", flush=True)
    except KeyboardInterrupt:
        for _, process, _ in running.values():
            process.terminate()
            process.wait()
        print("interrupted: the same command goes on here", file=sys.stderr)
        sys.exit(130)
    if waiting:
        print(f"{len(waiting)} jobs are left for another portion.")
    return failed


def start(job: Job) -> subprocess.Popen:
    """The process of a job, on one thread; an interrupted one goes on."""
    resume = ["--resume"] if (job.folder / "recipe.yaml").exists() else []
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with open(job.log, "a", encoding="utf-8") as log:
        return subprocess.Popen(
            [*job.command, *resume],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def costs_of(log: Path) -> list[dict[str, float]]:
    """What the portions of a job took."""
    path = log.with_suffix(".json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


if __name__ == "__main__":
    main()
