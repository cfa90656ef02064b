"""The page of `bench.reproduce`: the long table of every finished run, and a table and a plot for each claim."""

import argparse
import re
import textwrap
from fnmatch import fnmatchcase
from pathlib import Path

import pandas

from bench._claims import Claim, Column, CommandJob, Plan
from finetuning.results.files import markdown_table
from finetuning.results.plots import plot_bars, plot_lines
from finetuning.results.table import read_results, summary
from pretraining.tracking import EVALUATIONS, read_events
from zoo_core.provenance import write_csv

FOLDER = Path("bench")
KEY = ["model", "seed", "task"]
COSTS = ["job", "core_hours", "gib", "command"]
NOT_PUBLISHED = "The paper gives no scores for this claim."
RUN = "pre-training"  # the task of figures that a run of pre-training writes itself
OUTCOMES = {
    "yes": "the claim holds here",
    "in part": "some of the claim holds here, or only under a condition",
    "no": "no gain appears after these steps",
    "open": "this experiment cannot tell: a gain is no larger than the differences between seeds, scores disagree, or "
    "the baseline has not learned anything yet",
}
SHOWN = ("aer", "accuracy", "f1", "exact_match", "token_accuracy", "target_to_source", "sacrebleu")


def write_page(plan: Plan, jobs: list[CommandJob], flags: argparse.Namespace) -> None:
    """Writes scores, costs, plots and page. Rows of runs that are no longer there are kept."""
    page, results = FOLDER / f"{flags.name}.md", FOLDER / "results" / flags.name
    scores = _joined(results.with_suffix(".csv"), _scores(plan, flags), KEY)
    costs = _joined(results.with_name(f"{results.name}-costs.csv"), _costs(jobs), ["job"])
    lines = ["# The papers' claims on a real encoder", "", *_overview(plan, scores, costs, results.name)]
    for claim in plan.claims:
        lines += _section(plan, claim, scores, results)
    page.write_text("\n".join(lines), encoding="utf-8")
    print(f"written: {page}, {results}.csv, {results}-costs.csv")


def recorded_costs(name: str) -> pandas.DataFrame:
    """The rows of the costs' file, of this machine or another: job, core hours, memory, command."""
    path = FOLDER / "results" / f"{name}-costs.csv"
    return pandas.read_csv(path) if path.exists() else pandas.DataFrame(columns=COSTS)


def _joined(path: Path, new: pandas.DataFrame, key: list[str]) -> pandas.DataFrame:
    """The table of a file, with the rows of `new` in place of those of the same key; it is written, and read again: the
    page is the same with and without the runs."""
    types = dict(dtype={"language": str, "method": str}, keep_default_na=False, na_values=[""])
    if path.exists():
        old = pandas.read_csv(path, **types)
        fresh = set(new[key].astype(str).agg("/".join, axis=1)) if len(new) else set()
        kept = old[~old[key].astype(str).agg("/".join, axis=1).isin(fresh)]
        new = pandas.concat([kept, new]) if len(new) else kept  # an empty one would turn numbers into objects
    new = new.sort_values([*key, *new.columns.difference([*key, "value"], sort=False)], ignore_index=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, new, float_format="%.4g")
    return pandas.read_csv(path, **types)


def _scores(plan: Plan, flags: argparse.Namespace) -> pandas.DataFrame:
    """A row for each score: model, seed (0 where nothing was trained), task, language, method, layer, metric, value."""
    columns = [*KEY, "language", "method", "layer", "metric", "value"]
    found = []
    for name in plan.models:
        for seed in (0, *flags.seeds):
            folder = flags.output / (name if seed == 0 else f"{name}-{seed}")
            for path in sorted(folder.glob("tasks/*/results.json")):
                results = read_results(path.parent)
                frame = results.frame()
                frame = frame[frame["metric"].isin(SHOWN) & frame["split"].ne("dev")]
                ends = [curve[-1]["loss"] for curve in results.get("curve", {}).values()]  # of a translation model
                frame = pandas.concat(
                    [frame, pandas.DataFrame({"metric": "dev_loss", "value": ends})] if ends else [frame]
                )
                found.append(frame.assign(model=name, seed=seed, task=path.parent.name))
            if (folder / "events.jsonl").exists() and (folder / "model" / "config.json").exists():
                figures = [
                    (event["step"], *item)
                    for event in read_events(folder)
                    for item in event.items()
                    if item[0].startswith(EVALUATIONS)
                ]
                last = pandas.DataFrame(figures, columns=["step", "metric", "value"])
                last = last[last["step"] == last["step"].max()]
                found.append(last.assign(model=name, seed=seed, task=RUN))
    return pandas.concat(found).reindex(columns=columns) if found else pandas.DataFrame(columns=columns)


def _costs(jobs: list[CommandJob]) -> pandas.DataFrame:
    """A row for each job: core hours of all its portions, the most memory, and the command."""
    found = [
        (
            job.name,
            sum(part["core_hours"] for part in job.portions),
            max(part["gib"] for part in job.portions),
            job.typed,
        )
        for job in jobs
        if job.portions and job.is_done
    ]
    return pandas.DataFrame(found, columns=COSTS)


def _overview(plan: Plan, scores: pandas.DataFrame, costs: pandas.DataFrame, name: str) -> list[str]:
    """What was run, how many claims hold, a row for each claim, what all of it took, and the guide."""
    outcomes = [claim.outcome for claim in plan.claims]
    counts = [[outcome, str(outcomes.count(outcome)), meaning] for outcome, meaning in OUTCOMES.items()]
    rows = [
        [
            f"[{claim.says}](#{_anchor(claim.says)})",
            claim.paper,
            claim.outcome or "not run yet",
            claim.verdict,
            str(len(_seeds(claim, scores))),
            f"`{claim.name}`",
        ]
        for claim in plan.claims
    ]
    total, most = costs["core_hours"].sum(), costs["gib"].max() if len(costs) else 0.0
    return [
        plan.about.strip(),
        "",
        *([*markdown_table((["result", "claims", "meaning"], counts)), ""] if any(outcomes) else []),
        *markdown_table((["claim", "paper", "result", "in short", "seeds", "name for `--only`"], rows)),
        "",
        f"All {len(costs)} jobs took {total:.1f} {plan.unit} and at most {most:.1f} GiB of memory. The results folder",
        f"has [every score](results/{name}.csv) and [each job's costs and command](results/{name}-costs.csv).",
        "",
        *([plan.guide.strip(), ""] if plan.guide else []),
    ]


def _seeds(claim: Claim, scores: pandas.DataFrame) -> set[int]:
    """The seeds that a claim's rows have."""
    found = set(scores[scores["model"].isin(claim.models)]["seed"]) - {0}
    return found & set(claim.seeds) if claim.seeds else found


def _wrapped(text: str) -> list[str]:
    """The lines of paragraphs and tables, the first paragraph wrapped, and an empty one."""
    first, *rest = text.split("\n", 1)
    return [*textwrap.wrap(first, 140, break_long_words=False, break_on_hyphens=False), *rest, ""]


def _anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _section(plan: Plan, claim: Claim, scores: pandas.DataFrame, results: Path) -> list[str]:
    """The heading, table, plot and answer of a claim."""
    lines = [
        f"## {claim.says}",
        "",
        *_wrapped(f"**Paper** ({claim.paper}). {claim.published.strip() or NOT_PUBLISHED}"),
    ]
    lines += _wrapped(f"**Result: {claim.outcome}.** {claim.verdict}") if claim.outcome else []
    if claim.seeds:  # so that rows are of one seed where one has no other
        scores = scores[scores["seed"].isin([0, *claim.seeds])]
    cells = {model: [_cell(column, model, scores) for column in claim.columns] for model in claim.models}
    if any(any(row) for row in cells.values()):
        header = ["", *(f"{column.name} {'↓' if column.better == 'down' else '↑'}" for column in claim.columns)]
        titles = {name: plan.models[name].title or name for name in claim.models}
        rows = [[titles[name], *row] for name, row in cells.items()]
        first, *others = map(str, sorted(_seeds(claim, scores)))
        seeds = f"Seeds {', '.join([first, *others])}." if others else f"Only seed {first}."
        lines += _wrapped(f"{claim.setup} {seeds}".strip())
        lines += [*markdown_table((header, rows)), ""]
        if claim.plot and all(row[0] for row in cells.values()):
            picture = _plot(claim, titles, scores, results)
            lines += [f"![{claim.says}](results/{picture.name})", ""]
    return [*lines, *([claim.answer.strip(), ""] if claim.answer else [])]


def _rows(column: Column, model: str, scores: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of the long table that a cell is made of."""
    rows = scores[(scores["model"] == model) & (scores["task"] == (column.task or RUN))]
    rows = rows[rows["metric"].map(lambda metric: fnmatchcase(metric, column.metric)).astype(bool)]
    for name, wanted in column.where.items():
        rows = rows[rows[name].isin(wanted if isinstance(wanted, list) else [wanted])]
    return rows


def _cell(column: Column, model: str, scores: pandas.DataFrame) -> str:
    """Mean and standard deviation over seeds of the mean over languages."""
    by_seed = _rows(column, model, scores).groupby("seed")["value"].mean()
    if not len(by_seed):
        return ""
    deviation = f" ± {by_seed.std():.{column.digits}f}" if len(by_seed) > 1 else ""
    return f"{by_seed.mean():.{column.digits}f}{deviation}"


def _plot(claim: Claim, titles: dict[str, str], scores: pandas.DataFrame, results: Path) -> Path:
    """The plot of a claim: its first column over the layers, a panel a language; or where more is better, as bars."""
    path = results.with_name(f"{results.name}-{claim.name}.png")
    if claim.plot == "bars":
        groups = {
            title: {column.name: summary(by_seed) for column in claim.columns if column.better == "up"
                    and len(by_seed := _rows(column, model, scores).groupby("seed")["value"].mean())}
            for model, title in titles.items()
        }  # fmt: skip
        plot_bars(groups, path, f"Our test of {claim.paper}", "score")
        return path
    first = claim.columns[0]
    where = {name: wanted for name, wanted in first.where.items() if name != "layer"}
    column = Column(name=first.name, task=first.task, metric=first.metric, where=where)
    panels: dict[str, dict[str, dict[int, dict]]] = {}
    for model, title in titles.items():
        for (language, layer), rows in _rows(column, model, scores).groupby(["language", "layer"]):
            panels.setdefault(language, {}).setdefault(title, {})[int(layer)] = summary(rows["value"])
    plot_lines(panels, path, f"Our test of {claim.paper}", "layer", first.metric.upper())
    return path
