"""Tests the papers' claims on a real encoder, and writes the page: `python -m bench.reproduce`, or `make reproduce`.

  python -m bench.reproduce --list                              # list the jobs and their hours of one core
  python -m bench.reproduce --hub_root ../shared/hub            # run all jobs; write bench/reproduce.md and plots
  python -m bench.reproduce --hub_root ../shared/hub --missing  # run only the jobs that the results below lack
  # run one claim with one seed, for about five core hours
  python -m bench.reproduce --hub_root ../shared/hub --only dwa --seeds 1 --hours 5

bench/reproduce.yaml lists the models and the tasks, each with its recipe, and the claims, each with the models and
tasks that it compares. Every model is trained once per seed, in runs/reproduce. Every job is a command that you could
type yourself. To resume, run the same command again: it keeps finished jobs and resumes interrupted ones. `--budget
full` uses the papers' sizes (bench/reproduce_full.yaml), for GPUs and the Hub.

First copy the encoder: `hf download intfloat/multilingual-e5-small --local-dir runs/e5_small`. The job `head` trains
its masked-LM head. The claims about MetaXLM start from sentence-transformers/all-MiniLM-L6-v2 in runs/minilm. The
recipes read data sets `local/...`, which the Hub does not have. Put them into the folder of --hub_root: "Local copies
of data" of pretraining/README.md has their sources.

The command writes the results of the finished jobs: bench/results/reproduce.csv (a row for each score),
reproduce-costs.csv (core hours and memory of each job) and bench/reproduce.md with its plots. It keeps the rows of jobs
that it did not run. The files of `--budget full` are reproduce_full.csv and so on.
"""

import argparse
from pathlib import Path

from bench._claims import Claim, CommandJob, Plan, jobs_of
from bench._reproduction import recorded_costs, write_page
from finetuning.experiments.engine import run_jobs
from zoo_core.command_line import CommandParser, user_errors
from zoo_core.console import quiet_libraries
from zoo_core.recipes import load_recipe, nearest

NAMES = {"small": "reproduce", "full": "reproduce_full"}  # of the list, the page and the results, by budget


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    flags = read_flags(argv)
    with user_errors("run the same command again to resume"):
        quiet_libraries()
        plan = load_recipe(Plan, f"bench/{flags.name}.yaml", [])
        claims = chosen_claims(plan, flags.only)
        jobs = jobs_of(plan, claims, flags)
        if flags.missing:
            jobs = missing_jobs(jobs, flags.name)
        if flags.list:
            return show_list(claims, jobs, plan.unit)
        failed = {} if flags.page else run(jobs, flags)
        write_page(plan, jobs_of(plan, plan.claims, flags), flags)
        if failed:
            raise ValueError(f"{len(failed)} of {len(jobs)} jobs failed: {', '.join(failed)}. Read their logs.")


def read_flags(argv: list[str] | None = None) -> argparse.Namespace:
    """Returns the parsed command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "--budget",
        choices=list(NAMES),
        default="small",
        help="small: one CPU core (default; --list says how long); full: the papers' sizes",
    )
    parser.add_argument("--only", nargs="+", metavar="CLAIM", help="run only these claims; --list shows their names")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="seeds to train with (default 1 2 3)")
    parser.add_argument(
        "--hub_root",
        metavar="DIR",
        help="folder with copies of Hub repositories (DIR/owner/name); other ids are read from the Hub",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder of the runs (default runs/reproduce, or runs/reproduce_full)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="jobs to run at a time, one core each (default 1)")
    parser.add_argument(
        "--hours",
        type=float,
        help="core hours after which no further job starts",
    )
    parser.add_argument("--missing", action="store_true", help="leave out jobs whose exact command the results have")
    parser.add_argument("--list", action="store_true", help="list the jobs and their hours, and stop")
    parser.add_argument("--page", action="store_true", help="run nothing; write the page with the finished jobs")
    flags = parser.parse_args(argv)
    flags.name = NAMES[flags.budget]
    flags.output = flags.output or Path("runs") / flags.name
    return flags


def chosen_claims(plan: Plan, names: list[str] | None) -> list[Claim]:
    """Returns the claims of these names, or all. Raises ValueError for an unknown name."""
    known = [claim.name for claim in plan.claims]
    for name in names or ():
        if name not in known:
            raise ValueError(f"--only {name} is not one of {', '.join(known)}. {nearest(name, known)}")
    return [claim for claim in plan.claims if not names or claim.name in names]


def missing_jobs(jobs: list[CommandJob], name: str) -> list[CommandJob]:
    """Returns the jobs whose command the results lack, and the jobs that these need."""
    commands = set(recorded_costs(name)["command"])
    found: list[CommandJob] = []
    needed: set[str] = set()
    for job in reversed(jobs):  # each comes after what it needs
        if job.typed not in commands or job.name in needed:
            found.insert(0, job)
            needed |= set(job.needs)
    return found


def show_list(claims: list[Claim], jobs: list[CommandJob], unit: str) -> None:
    """Prints the claims, and each job with its hours, whether it is done, and its command."""
    for claim in claims:
        print(f"{claim.name}: {claim.says} ({claim.paper})")
    print()
    for job in jobs:
        state = "done" if job.is_done else f"{job.hours:.2f} h"
        print(f"{job.name:40} {state:>8}  {job.typed}")
    left = sum(job.hours for job in jobs if not job.is_done)
    print(f"\n{len(jobs)} jobs, {sum(job.hours for job in jobs):.1f} {unit}; {left:.1f} left")


def run(jobs: list[CommandJob], flags: argparse.Namespace) -> dict[str, str]:
    """Runs unfinished jobs, `flags.jobs` at a time and for about `flags.hours`; returns what failed, and why.

    Raises ValueError, before anything is run, for a job that was done with another command.
    """
    for job in jobs:
        job.state()
    before = sum(part["core_hours"] for job in jobs for part in job.portions)

    def has_time(running: list[CommandJob]) -> bool:
        spent = sum(part["core_hours"] for job in jobs for part in job.portions) - before
        return flags.hours is None or spent + sum(job.hours for job in running) < flags.hours

    return run_jobs(jobs, keep_going=True, at_once=flags.jobs, has_time=has_time)


if __name__ == "__main__":
    main()
