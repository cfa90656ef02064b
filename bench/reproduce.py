"""The papers' claims on a real encoder, from the encoder to the page: `python -m bench.reproduce`, or `make reproduce`.

  python -m bench.reproduce --list                         # what is run, and the hours of one core it takes
  python -m bench.reproduce --hub_root ../shared/hub       # all of it: bench/reproduce.md, and its plots and tables
  python -m bench.reproduce --only dwa --seeds 1 --hours 5 # a part; a portion of five core hours
  python -m bench.reproduce --missing                      # what the results below have not yet

bench/reproduce.yaml says what: models, each a recipe and what it changes; tasks, each a recipe too; and the claims,
with the models and tasks that they compare. Every model is trained once a seed, in runs/reproduce, and every job is the
command that anybody would type. The same command again continues: what is finished is kept, what was interrupted is
resumed. The encoder is in runs/e5_small: see pretraining/recipes/e5_small_head.yaml. `--budget full` is the papers' own
sizes (bench/reproduce_full.yaml), for GPUs and the Hub.

Writes bench/results/reproduce.csv (a row for each score), reproduce-costs.csv (core hours and memory of each job) and
bench/reproduce.md with its plots, of whatever is finished; of the papers' sizes reproduce_full.csv, and so on.
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
    with user_errors("the same command continues"):
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
    parser.add_argument(
        "--hours",
        type=float,
        help="start nothing more after so many core hours",
    )
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


def missing_jobs(jobs: list[CommandJob], name: str) -> list[CommandJob]:
    """Those whose command the results do not have, and what these need."""
    commands = set(recorded_costs(name)["command"])
    found: list[CommandJob] = []
    needed: set[str] = set()
    for job in reversed(jobs):  # each stands behind what it needs
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
    """Runs what is not done, `flags.jobs` at a time and for about `flags.hours`; returns what failed, and why.

    Raises ValueError, before anything is run, for what was done by another command.
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
