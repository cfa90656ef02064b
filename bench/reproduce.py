"""Tests the papers' claims on a real encoder, and writes the page: `python -m bench.reproduce`, or `make reproduce`.

  python -m bench.reproduce --list                              # list the jobs and their hours of one core
  python -m bench.reproduce --hub_root ../shared/hub            # run all jobs; write bench/reproduce.md and plots
  python -m bench.reproduce --hub_root ../shared/hub --only dwa --seeds 1    # run one claim with one seed

bench/reproduce.yaml lists the models and the tasks, each with its recipe, and the claims, each with the models and
tasks that it compares. Every model is trained once per seed, in runs/reproduce. Every job is a command that you could
type yourself. To resume, run the same command again: it keeps finished jobs and resumes interrupted ones. `--plan
bench/reproduce_full.yaml` has the papers' sizes, for GPUs and the Hub; its files are reproduce_full.md and so on.

First copy the encoder: `hf download intfloat/multilingual-e5-small --local-dir runs/e5_small`. The job `head` trains
its masked-LM head. The claims about MetaXLM start from sentence-transformers/all-MiniLM-L6-v2 in runs/minilm. The
recipes read data sets `local/...`, which the Hub does not have. Put them into the folder of --hub_root: "Local copies
of data" of pretraining/README.md has their sources.

The scores of the finished jobs are in bench/results/reproduce.csv. Rows of jobs that were not run are kept.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas

from crosslingual_zoo.finetuning.page import METRICS, markdown_table
from crosslingual_zoo.finetuning.plots import plot_bars, plot_lines
from crosslingual_zoo.finetuning.results import Summary, read_results, summary
from crosslingual_zoo.finetuning.tasks.registry import KINDS, kind_of
from crosslingual_zoo.pretraining.tracking import is_evaluation, read_events
from crosslingual_zoo.zoo_core.command_line import CommandParser, user_errors
from crosslingual_zoo.zoo_core.provenance import write_csv
from crosslingual_zoo.zoo_core.recipes import load_recipe

KEY = ["model", "seed", "task"]
COLUMNS = [*KEY, "language", "method", "layer", "metric", "value"]
RUN = "pre-training"  # the task of figures that a run of pre-training writes itself
SHOWN = ("aer", "accuracy", "f1", "exact_match", "token_accuracy", "target_to_source", "sacrebleu")


@dataclass
class Work:
    """A model, or what is measured of one, once a seed: a recipe, what is set in it, and how long it takes."""

    recipe: str | None = None  # none: there is nothing to run
    module: str | None = None  # command that reads it; default: pre-training of a model, fine-tuning of a task
    set: list[str] = field(default_factory=list)  # fields of the recipe, as field=value
    start: str | None = None  # model of this list that a model starts from; default: the recipe's own start
    start_field: str = "model.start_from"  # field of the recipe that names the model it starts from
    folder: str | None = None  # of an existing model, or Hub id; with start, a folder in its run, such as a checkpoint
    title: str | None = None  # name of a model in tables; default: its name in the list
    hours: float = 0.0  # of one CPU core
    once: bool = False  # use one model, of seed 1, for all seeds


@dataclass
class Column:
    """A column of a claim's table: the mean over languages of one score, by seed."""

    name: str
    metric: str  # of the task, or figure of the run (held_out/btmlm/*: the mean of those)
    task: str = RUN
    where: dict[str, Any] = field(default_factory=dict)  # other columns of the long table: method, layer, language
    better: Literal["up", "down"] = "up"
    digits: int = 1


@dataclass
class Claim:
    """A row of the table of claims. `seeds` are its own, where --seeds has more."""

    name: str
    says: str
    paper: str
    published: str = ""  # the scores of the paper's own models, in sentences
    models: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    plot: Literal["layers", "bars"] | None = None
    plot_title: str = ""  # what the plot shows here, for readers who know no paper
    outcome: Literal["yes", "in part", "no", "open"] | None = None  # whether it holds here; none: not run yet
    verdict: str = ""  # the result, in a sentence or two
    setup: str = ""  # the sentence above its table: what is compared, on what data
    answer: str = ""  # the result, and why where the order is not the paper's


@dataclass
class Plan:
    """bench/reproduce.yaml, or reproduce_full.yaml."""

    about: str = ""  # the page's first paragraphs
    guide: str = ""  # the page's sections behind the list of claims: terms, scores, how to run
    unit: str = "core hours"
    launch: list[str] = field(default_factory=list)  # module, and its flags, that starts a job's
    models: dict[str, Work] = field(default_factory=dict)
    tasks: dict[str, Work] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)  # in the order in which they are run


class Job(NamedTuple):
    """A command in a process of its own, on one thread. `result`: the file that exists when it is done."""

    command: list[str]  # after `python`, without the place of the mirror
    folder: Path
    result: Path
    hours: float

    @property
    def typed(self) -> str:
        """The command as anybody would type it."""
        return shlex.join(["python", *self.command])


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    default = Path("bench/reproduce.yaml")
    text = "models, tasks and claims (default %(default)s); the page is next to it"
    parser.add_argument("--plan", type=Path, metavar="FILE", default=default, help=text)
    parser.add_argument("--only", nargs="+", metavar="CLAIM", help="run only these claims; --list shows their names")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="seeds to train with (default 1 2 3)")
    text = "folder with copies of Hub repositories (DIR/owner/name); other ids are read from the Hub"
    parser.add_argument("--hub_root", metavar="DIR", help=text)
    text = "folder of the runs (default runs/NAME of the plan)"
    parser.add_argument("--output", type=Path, metavar="DIR", help=text)
    parser.add_argument("--list", action="store_true", help="list the jobs and their hours, and stop")
    parser.add_argument("--page", action="store_true", help="run nothing; write the page with the finished jobs")
    flags = parser.parse_args(argv)
    flags.output = flags.output or Path("runs") / flags.plan.stem
    with user_errors("run the same command again to resume"):
        plan = load_recipe(Plan, str(flags.plan), [])
        names = [claim.name for claim in plan.claims]
        unknown = set(flags.only or names) - set(names)
        if unknown:
            raise ValueError(f"--only has {', '.join(sorted(unknown))}; the claims are {', '.join(names)}")
        jobs = jobs_of(plan, [claim for claim in plan.claims if claim.name in (flags.only or names)], flags)
        if flags.list:
            return list_jobs(jobs, plan.unit)
        failed = [] if flags.page else run_jobs(jobs, flags)
        write_page(plan, flags)
        if failed:
            raise ValueError(f"{len(failed)} of {len(jobs)} jobs failed: {', '.join(failed)}. Read their logs.")


def list_jobs(jobs: dict[str, Job], unit: str) -> None:
    """Prints the jobs with their commands, and the hours that are left."""
    for name, job in jobs.items():
        state = "done" if job.result.exists() else f"{job.hours:.2f} h"
        print(f"{name:40} {state:>8}  {job.typed}")
    left = sum(job.hours for job in jobs.values() if not job.result.exists())
    total = sum(job.hours for job in jobs.values())
    print(f"{len(jobs)} jobs, {total:.1f} {unit}; {left:.1f} left")


def run_jobs(jobs: dict[str, Job], flags: argparse.Namespace) -> list[str]:
    """Runs or resumes the unfinished jobs in their order, and returns the failed ones.

    Raises ValueError, before anything is run, for a job that was done with another command. The log of a job has its
    command and what it prints.
    """
    logs = {name: flags.output / "jobs" / f"{name}.txt" for name in jobs}
    for name, job in jobs.items():
        if not job.result.exists() or not logs[name].is_file():
            continue
        if job.typed not in logs[name].read_text("utf-8").splitlines():
            raise ValueError(f"{job.folder} was not made by `{job.typed}`. Remove it, or give another --output.")
    (flags.output / "jobs").mkdir(parents=True, exist_ok=True)
    for number, (name, job) in enumerate(jobs.items(), 1):
        if job.result.exists():
            continue
        print(f"[{number}/{len(jobs)}] {name}: {job.folder}, {logs[name]}", flush=True)
        command = [sys.executable, *job.command]
        if flags.hub_root:
            command.append(f"hub_root={flags.hub_root}")
        if (job.folder / "recipe.yaml").exists():
            command.append("--resume")
        with open(logs[name], "a", encoding="utf-8") as log:
            print(job.typed, file=log, flush=True)
            subprocess.run(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return [name for name, job in jobs.items() if not job.result.exists()]


class Jobs:
    """The jobs of some claims by name. A job comes after the jobs that it needs."""

    def __init__(self, plan: Plan, output: Path):
        self.plan = plan
        self.output = output
        self.by_name: dict[str, Job] = {}

    def add(self, name: str, work: Work, module: str, folder: Path, result: str, *overrides: str) -> None:
        """Adds a job, unless it is there: the command of `work` with its overrides, and the file that it leaves."""
        command = ["-m", *self.plan.launch, work.module or module, "--config", work.recipe, *work.set]
        command += [f"output_dir={folder}", *overrides]
        self.by_name.setdefault(name, Job(command, folder, folder / result, work.hours))

    def add_model(self, name: str, seed: int) -> tuple[str, str]:
        """Adds the jobs that train a model and what it starts from; returns its run, and where it is or will be."""
        work = self.plan.models[name]
        start = self.add_model(work.start, seed)[1] if work.start else ""
        if work.folder is not None:
            run = f"{name}-{seed}" if start else name
            return run, str(Path(start).parent / work.folder)
        run = name if work.once else f"{name}-{seed}"
        overrides = [f"seed={1 if work.once else seed}"]
        if start:
            overrides.append(f"{work.start_field}={start}")
        self.add(run, work, "crosslingual_zoo.pretraining.run", self.output / run, "model/config.json", *overrides)
        return run, str(self.output / run / "model")

    def add_task(self, name: str, model: str, seed: int) -> None:
        """Adds the measurement of a model by a task, once a seed if the model or the task is trained."""
        work = self.plan.tasks[name]
        run, path = self.add_model(model, seed)
        overrides = [f"model={path}"]
        if KINDS[kind_of(["--config", work.recipe])].is_trained:
            run = f"{model}-{seed}"
            overrides.append(f"seeds=[{seed}]")
        folder = self.output / run / "tasks" / name
        self.add(f"{run} {name}", work, "crosslingual_zoo.finetuning.run", folder, "results.json", *overrides)


def jobs_of(plan: Plan, claims: list[Claim], flags: argparse.Namespace) -> dict[str, Job]:
    """Returns the jobs of some claims by name, in the order in which they are run: a claim has its seeds in order."""
    jobs = Jobs(plan, flags.output)
    for claim in claims:
        for seed in flags.seeds:
            if claim.seeds and seed not in claim.seeds:
                continue
            for model in claim.models:
                jobs.add_model(model, seed)
                for task in claim.tasks:
                    jobs.add_task(task, model, seed)
    return jobs.by_name


def write_page(plan: Plan, flags: argparse.Namespace) -> None:
    """Writes scores, plots and page. Rows of runs that are no longer there are kept."""
    results = flags.plan.parent / "results" / flags.plan.stem
    path = results.with_suffix(".csv")
    scores = pandas.DataFrame(scores_of(plan, flags), columns=COLUMNS)
    if path.exists():
        earlier = _read_scores(path)
        is_measured_again = earlier.set_index(KEY).index.isin(scores.set_index(KEY).index)
        earlier = earlier[~is_measured_again]
        scores = pandas.concat([earlier, scores]) if len(scores) else earlier
    write_csv(path, scores.sort_values([*KEY, *COLUMNS[3:-1]]), float_format="%.4g")
    scores = _read_scores(path)  # the page is the same with and without the runs
    rows = []
    sections = []
    for claim in plan.claims:
        is_of_claim = scores["model"].isin(claim.models) & scores["seed"].isin([0, *(claim.seeds or scores["seed"])])
        scores_of_claim = scores[is_of_claim]
        seeds = sorted(set(scores_of_claim["seed"]) - {0})
        anchor = re.sub(r"[^\w\- ]", "", claim.says.lower()).replace(" ", "-")
        outcome = claim.outcome or "not run yet"
        link = f"[{claim.says}](#{anchor})"
        rows.append([link, outcome, str(len(seeds)), f"`{claim.name}`"])
        sections += _section(plan, claim, scores_of_claim, seeds, results)
    overview = markdown_table((["claim", "result", "seeds", "name for `--only`"], rows))
    head = ["# The papers' claims on a real encoder", "", plan.about.strip(), "", *overview, "", plan.guide.strip(), ""]
    page = flags.plan.with_suffix(".md")
    page.write_text("\n".join([*head, *sections]), encoding="utf-8")
    print(f"written: {page}, {path}")


def _read_scores(path: Path) -> pandas.DataFrame:
    return pandas.read_csv(path, dtype={"language": str, "method": str}, keep_default_na=False, na_values=[""])


def scores_of(plan: Plan, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each score: model, seed (0 where nothing was trained), task, language, method, layer, metric, value."""
    for name in plan.models:
        for seed in (0, *flags.seeds):
            run = flags.output / (name if seed == 0 else f"{name}-{seed}")
            for row in _scores_of_run(run):
                yield {**row, "model": name, "seed": seed}


def _scores_of_run(run: Path) -> Iterator[dict[str, Any]]:
    """The scores of a run's tasks, and the figures of its own evaluations."""
    for path in sorted(run.glob("tasks/*/results.json")):
        task = path.parent.name
        results = read_results(path.parent)
        for row in results["scores"]:
            if row["metric"] in SHOWN and row["split"] != "dev":
                yield {**row, "task": task}
        if results["kind"] == "translation":
            for curve in results["curves"].values():
                if curve:
                    yield {"metric": "dev_loss", "value": curve[-1]["loss"], "task": task}
    if (run / "model" / "config.json").exists():
        last_values: dict[str, Any] = {}
        for event in read_events(run):
            last_values |= event
        for figure, value in last_values.items():
            if is_evaluation(figure):
                yield {"metric": figure, "value": value, "task": RUN}


def _section(plan: Plan, claim: Claim, scores: pandas.DataFrame, seeds: list[int], results: Path) -> list[str]:
    """The heading, table, plot and answer of a claim."""
    lines = [f"## {claim.says}", ""]
    if claim.outcome:
        lines += [f"**Result: {claim.outcome}.** {claim.verdict}", ""]
    lines += [f"**Paper** ({claim.paper}). {claim.published}".strip(), ""]
    titles = {name: plan.models[name].title or name for name in claim.models}
    rows = []
    for name, title in titles.items():
        rows.append([title, *(_cell(column, name, scores) for column in claim.columns)])
    if any(cell for row in rows for cell in row[1:]):
        header = [""]
        for column in claim.columns:
            arrow = "↓" if column.better == "down" else "↑"
            header.append(f"{column.name} {arrow}")
        seeds_line = f"Only seed {seeds[0]}."
        if len(seeds) > 1:
            seeds_line = f"Seeds {', '.join(map(str, seeds))}."
        lines += [f"{claim.setup} {seeds_line}".strip(), "", *markdown_table((header, rows)), ""]
        if claim.plot and all(row[1] for row in rows):
            lines += [f"![{claim.plot_title}](results/{draw(claim, titles, scores, results).name})", ""]
    if claim.answer:
        lines += [claim.answer.strip(), ""]
    return lines


def _grouped(keys: list[str], column: Column, model: str, scores: pandas.DataFrame) -> Any:
    """The values that a column takes of a model, in groups; keys that its `where` has are not looked at."""
    is_taken = (scores["model"] == model) & (scores["task"] == column.task)
    is_taken &= scores["metric"].map(lambda metric: fnmatchcase(metric, column.metric)).astype(bool)
    for name, values in column.where.items():
        if name not in keys:
            is_taken &= scores[name].isin(values if isinstance(values, list) else [values])
    return scores[is_taken].groupby(keys)["value"]


def _cell(column: Column, model: str, scores: pandas.DataFrame) -> str:
    """Mean and standard deviation over seeds of the means over languages."""
    by_seed = _grouped(["seed"], column, model, scores).mean()
    if not len(by_seed):
        return ""
    text = f"{by_seed.mean():.{column.digits}f}"
    if len(by_seed) > 1:
        text += f" ± {by_seed.std():.{column.digits}f}"
    return text


def draw(claim: Claim, titles: dict[str, str], scores: pandas.DataFrame, results: Path) -> Path:
    """The plot of a claim: its first column over the layers, a panel a language; or where more is better, as bars."""
    path = results.with_name(f"{results.name}-{claim.name}.png")
    if claim.plot == "bars":
        plot_bars(_bars(claim, titles, scores), path, claim.plot_title, "score (%), higher is better")
        return path
    column = claim.columns[0]
    panels: dict[str, dict[str, dict[int, Summary]]] = {}
    for model, title in titles.items():
        for (language, layer), values in _grouped(["language", "layer"], column, model, scores):
            panels.setdefault(language, {}).setdefault(title, {})[int(layer)] = summary(values)
    better = "lower" if column.better == "down" else "higher"
    label = f"{METRICS.get(column.metric, column.metric)} (%), {better} is better"
    plot_lines(panels, path, claim.plot_title, "layer", label)
    return path


def _bars(claim: Claim, titles: dict[str, str], scores: pandas.DataFrame) -> dict[str, dict[str, Summary]]:
    """The columns of which more is better, as {model: {column: summary over seeds}}."""
    bars: dict[str, dict[str, Summary]] = {}
    for model, title in titles.items():
        bars[title] = {}
        for column in claim.columns:
            by_seed = _grouped(["seed"], column, model, scores).mean()
            if column.better == "up" and len(by_seed):
                bars[title][column.name] = summary(by_seed)
    return bars


if __name__ == "__main__":
    main()
