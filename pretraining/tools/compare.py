"""Compare pre-training runs: held-out losses, retrieval and alignment over the steps, by language.

    python -m pretraining.tools.compare --output runs/compared \\
        --run XLM runs/xlm-1 runs/xlm-2 --run MetaXLM runs/metaxlm-1 runs/metaxlm-2

--run takes a name and one or more run folders of pretraining/run.py. Several folders are seeds of one experiment.

The command writes three files:
  comparison.png  curves: the mean over seeds, and the range of the seeds
  comparison.md   every figure at the last step at which all runs were evaluated
  comparison.csv  every figure of every evaluation of every folder
"""

from pathlib import Path

import pandas as pd

from pretraining.tracking import EVALUATIONS, read_events
from zoo_core.command_line import CommandParser, user_errors
from zoo_core.plots import figure_of, line_styles
from zoo_core.provenance import read_json, write_csv

TITLES = {"held_out/": "held-out loss (nats), ", "retrieval/": "retrieval accuracy, "}


def main(argv: list[str] | None = None) -> None:
    """Runs the command; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument(
        "--run", nargs="+", action="append", required=True, metavar=("NAME", "DIR"), help="a name and its run folders"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write")
    flags = parser.parse_args(argv)
    with user_errors():
        names = [name for name, *_ in flags.run]
        for name, *folders in flags.run:
            if not folders or names.count(name) > 1:
                raise ValueError(
                    f"--run {name} has no folder, or is given twice. Give each name once, followed by all its folders."
                )
        table = pd.concat(
            [evaluations(folder).assign(run=name, folder=folder) for name, *folders in flags.run for folder in folders]
        )[["run", "folder", "step", "figure", "value"]]
        output = Path(flags.output)
        output.mkdir(parents=True, exist_ok=True)
        page = to_markdown(table, differences(flags.run))
        (output / "comparison.md").write_text(page, encoding="utf-8")
        write_csv(output / "comparison.csv", table)
        plot(table, output / "comparison.png")
        print(page + f"\nwritten: {output}/comparison.md, comparison.csv, comparison.png")


def evaluations(folder: str) -> pd.DataFrame:
    """Returns the figures of all evaluations of a run: step, figure, value.

    Raises ValueError for a folder without evaluations.
    """
    found = [
        (event["step"], key, value)
        for event in read_events(Path(folder))
        for key, value in event.items()
        if key.startswith(EVALUATIONS)
    ]
    if not found:
        raise ValueError(
            f"{folder} has no evaluations of a pre-training run. Give a folder that pretraining/run.py wrote with "
            "evaluation.held_out_fraction above 0."
        )
    return pd.DataFrame(found, columns=["step", "figure", "value"])


def differences(runs: list[list[str]]) -> list[str]:
    """Returns sentences on why figures of these runs cannot be compared, according to their run.json."""
    found: dict[str, list[str]] = {}
    for name, *folders in runs:
        for path in (Path(folder) / "run.json" for folder in folders):
            if fingerprint := read_json(path, {}).get("tokenizer_fingerprint"):
                found.setdefault(fingerprint, []).append(name)
    if len(found) < 2:
        return []
    groups = "; ".join(", ".join(dict.fromkeys(names)) for names in found.values())
    return [f"These runs have different tokenizers ({groups}). Do not compare their losses: they are nats per token."]


def to_markdown(table: pd.DataFrame, warnings: list[str]) -> str:
    """Returns a table of every figure at the last step at which all folders of all runs were evaluated.

    Where there is no such step, the table has the last evaluation of each run.
    """
    runs = list(table["run"].unique())
    seeds = table.groupby("run")["folder"].nunique()
    common = set.intersection(*(set(group["step"]) for _, group in table.groupby(["folder", "figure"])))
    lines = ["# Pre-training runs side by side", "", f"Seeds: {', '.join(f'{run} {seeds[run]}' for run in runs)}.", ""]
    lines += [line for warning in warnings for line in (f"**Note:** {warning}", "")]
    if common:
        last = dict.fromkeys(runs, max(common))
        lines += [f"After {max(common):,} steps, one figure per seed:", ""]
    else:
        last = dict(table.groupby("run")["step"].max())
        each = ", ".join(f"{run} {last[run]:,}" for run in runs)
        lines += [f"There is no step at which all runs were evaluated. The last step of each run: {each}.", ""]
    lines += ["| | " + " | ".join(runs) + " |", "|---|" + "---|" * len(runs)]
    table = table[table["step"] == table["run"].map(last)]
    for figure in sorted(table["figure"].unique(), key=_order):
        values = [table[(table["figure"] == figure) & (table["run"] == run)]["value"] for run in runs]
        cells = [", ".join(f"{value:.3f}" for value in of_run) for of_run in values]
        lines.append(f"| {_title(figure)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _order(figure: str) -> tuple[int, str]:
    return next(place for place, prefix in enumerate(EVALUATIONS) if figure.startswith(prefix)), figure


def _title(figure: str) -> str:
    prefix, _, rest = figure.partition("/")
    if prefix == "held_out":
        rest = rest.replace("/", " ", 1)  # only the first: names of corpora have slashes, too
    return TITLES.get(f"{prefix}/", prefix.replace("_", " ") + ", ") + rest


def plot(table: pd.DataFrame, path: Path) -> None:
    """Draws one panel per figure: the mean of each run over its seeds, in a band from the lowest to the highest."""
    figures = sorted(table["figure"].unique(), key=_order)
    styles = line_styles(table["run"].unique())
    columns = min(3, len(figures))
    rows = -(-len(figures) // columns)
    size = (max(6.0, 3.3 * columns), 2.6 * rows + 0.8)
    has_seeds = table.groupby("run")["folder"].nunique().max() > 1
    note = "line: mean over the seeds; band: from the lowest seed to the highest" if has_seeds else ""
    with figure_of(path, "Pre-training runs side by side", rows, columns, size, note) as (_, grid):
        for axes, name in zip(grid.flat, figures, strict=False):
            for run, of_run in table[table["figure"] == name].groupby("run", sort=False):
                by_step = of_run.groupby("step")["value"].agg(["mean", "min", "max"])
                axes.plot(by_step["mean"], label=run, **styles[run])
                axes.fill_between(by_step.index, by_step["min"], by_step["max"], color=styles[run]["color"], alpha=0.2)
            axes.set_title(_title(name), fontsize=9)
            axes.set_xlabel("step")


if __name__ == "__main__":
    main()
