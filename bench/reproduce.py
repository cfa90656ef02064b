"""The papers' claims on a real encoder, from the encoder to the page: `python -m bench.reproduce`, or `make reproduce`.

  python -m bench.reproduce --list                         # what is run, and the hours of one core it takes
  python -m bench.reproduce --hub_root ../shared/hub       # all of it: bench/reproduce.md, and its plots and tables
  python -m bench.reproduce --only dwa --seeds 1 --hours 5 # a part; a portion of five core hours
  python -m bench.reproduce --missing                      # what the results below have not yet

bench/reproduce.yaml says what: models, each a recipe and what it changes; tasks, each a recipe too; and the claims,
with the models and tasks that they compare. Every model is trained once a seed, in runs/reproduce, and every job is the
command that anybody would type. The same command again goes on: what is finished is kept, what was interrupted is
resumed. The encoder is in runs/e5_small: see pretraining/recipes/e5_small_head.yaml. `--budget full` is the papers' own
sizes (bench/reproduce_full.yaml), for GPUs and the Hub.

Writes bench/results/reproduce.csv (a row for each score), reproduce-costs.csv (core hours and memory of each job) and
bench/reproduce.md with its plots, of whatever is finished; of the papers' sizes reproduce_full.csv, and so on.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from bench._claims import Claim, Job, Plan, jobs_of
from bench._reproduction import recorded_costs, write_page
from zoo_core.command_line import CommandParser, user_errors
from zoo_core.console import quiet_libraries
from zoo_core.provenance import write_json
from zoo_core.recipes import load_recipe, nearest

NAMES = {"small": "reproduce", "full": "reproduce_full"}  # of the list, the page and the results, by budget


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    flags = read_flags(argv)
    with user_errors():
        quiet_libraries()
        plan = load_recipe(Plan, f"bench/{flags.name}.yaml", [])
        claims = chosen_claims(plan, flags.only)
        jobs = jobs_of(plan, claims, flags)
        if flags.missing:
            jobs = missing_jobs(jobs, flags.name)
        if flags.list:
            return show_list(claims, jobs, plan.unit)
        failed = [] if flags.page else run_jobs(jobs, flags)
        write_page(plan, jobs_of(plan, plan.claims, flags), flags)
        if failed:
            raise ValueError(f"{len(failed)} of {len(jobs)} jobs failed: {', '.join(failed)}. Their logs say why.")


def read_flags(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "--budget", choices=list(NAMES), default="small", help="small: one CPU core (default); full: the papers' sizes"
    )
    parser.add_argument("--only", nargs="+", metavar="CLAIM", help="these claims alone; --list has their names")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="default 1 2 3")
    parser.add_argument("--hub_root", metavar="DIR", help="folder that mirrors the Hub; default: the Hub")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="the runs' folders (default runs/reproduce, or runs/reproduce_full)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="jobs at a time, one core each (default 1)")
    parser.add_argument("--hours", type=float, help="start nothing more after so many core hours; go on another day")
    parser.add_argument("--missing", action="store_true", help="leave out what the results have, by the same command")
    parser.add_argument("--list", action="store_true", help="show what is run and what it takes, and stop")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page of what is finished")
    flags = parser.parse_args(argv)
    flags.name = NAMES[flags.budget]
    flags.output = flags.output or Path("runs") / flags.name
    return flags


def chosen_claims(plan: Plan, names: list[str] | None) -> list[Claim]:
    """The claims of these names, or all. Raises ValueError for a name that none has."""
    known = [claim.name for claim in plan.claims]
    for name in names or ():
        if name not in known:
            raise ValueError(f"--only {name} is none of {', '.join(known)}. {nearest(name, known)}")
    return [claim for claim in plan.claims if not names or claim.name in names]


def missing_jobs(jobs: list[Job], name: str) -> list[Job]:
    """Those whose command the results do not have, and what these need."""
    commands = set(recorded_costs(name)["command"])
    found: list[Job] = []
    needed: set[str] = set()
    for job in reversed(jobs):  # each stands behind what it needs
        if job.typed not in commands or job.name in needed:
            found.insert(0, job)
            needed |= set(job.needs)
    return found


def show_list(claims: list[Claim], jobs: list[Job], unit: str) -> None:
    """Prints the claims, and each job with its hours, whether it is done, and its command."""
    for claim in claims:
        print(f"{claim.name}: {claim.says} ({claim.paper})")
    print()
    for job in jobs:
        state = "done" if job.is_done else f"{job.hours:.2f} h"
        print(f"{job.name:40} {state:>8}  {job.typed}")
    left = sum(job.hours for job in jobs if not job.is_done)
    print(f"\n{len(jobs)} jobs, {sum(job.hours for job in jobs):.1f} {unit}; {left:.1f} left")


def run_jobs(jobs: list[Job], flags: argparse.Namespace) -> list[str]:
    """Runs what is not done, `flags.jobs` at a time, and returns the names of those that failed, or need one that did.

    Ends the running ones, which keep what they have, where the user interrupts. Raises ValueError for what was done by
    another command.
    """
    for job in jobs:
        if job.is_done and job.portions and job.portions[-1]["command"] != job.typed:
            raise ValueError(
                f"{job.folder} was made by `{job.portions[-1]['command']}`, and the list has `{job.typed}` "
                "now. Remove the folder, or give another --output."
            )
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
                for job in waiting:  # each behind what it needs
                    failed += [job.name] if set(job.needs) & set(failed) else []
                break
            pid, status, usage = os.wait4(-1, 0)
            if pid not in running:
                continue
            job, process, began = running.pop(pid)
            process.returncode = os.waitstatus_to_exitcode(status)
            cost = {
                "command": job.typed,
                "hours": (time.time() - began) / 3600,
                "core_hours": (usage.ru_utime + usage.ru_stime) / 3600,
                "gib": usage.ru_maxrss / 2**20,
            }
            write_json(job.log.with_suffix(".json"), [*job.portions, cost])
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
    if left := [job for job in waiting if job.name not in failed]:
        print(f"{len(left)} jobs are left for another portion.")
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


if __name__ == "__main__":
    main()
