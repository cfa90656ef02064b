"""Pre-training runs side by side: held-out losses, retrieval and alignment over the steps, by language.

    python -m pretraining.tools.compare --output runs/compared \\
        --run XLM runs/xlm-1 runs/xlm-2 --run MetaXLM runs/metaxlm-1 runs/metaxlm-2

--run takes a name and one or more run folders of pretraining/run.py; several folders are seeds of one experiment.
Writes comparison.png (means over seeds, and the range of the seeds), comparison.md (every figure at the last step that
all runs were evaluated at) and comparison.csv (every figure of every evaluation of every folder).
"""

import argparse
import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path

from pretraining.tracking import read_events
from zoo_core.recipes import user_errors

# what evaluations write for readers, in the order of the panels
FIGURES = ("held_out/", "retrieval/", "alignment_joint/", "alignment_separate/", "alignment_cross/", "self_labels/")
MARKERS = "osD^vPX*"
TITLES = {"held_out/": "held-out loss (nats), ", "retrieval/": "retrieval accuracy, "}

# figure -> step -> value of each folder that has it
Curves = dict[str, dict[int, list[float]]]


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--run", nargs="+", action="append", required=True, metavar=("NAME", "DIR"), help="a name and its run folders"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="where the comparison is written")
    flags = parser.parse_args(argv)
    with user_errors():
        folders = folders_of(flags.run)
        events = {name: [evaluations(folder) for folder in group] for name, group in folders.items()}
        curves = {name: curves_of(group) for name, group in events.items()}
        output = Path(flags.output)
        output.mkdir(parents=True, exist_ok=True)
        page = to_markdown(curves, {name: len(group) for name, group in folders.items()}, differences(folders))
        (output / "comparison.md").write_text(page, encoding="utf-8")
        write_csv(events, folders, output / "comparison.csv")
        plot(curves, output / "comparison.png")
        print(page + f"\nwritten: {output}/comparison.md, comparison.csv, comparison.png")


def folders_of(runs: list[list[str]]) -> dict[str, list[Path]]:
    """The folders of each name. Raises ValueError for a name without folders, or one that is given twice."""
    found: dict[str, list[Path]] = {}
    for name, *folders in runs:
        if not folders:
            raise ValueError(
                f"--run {name} names no folder. There is nothing to show under that name. Give a name and then one or "
                "more run folders, as in --run XLM runs/xlm."
            )
        if name in found:
            raise ValueError(
                f"--run {name} is given twice. Two lines of a plot cannot have one name. Give all folders of one "
                "experiment behind one --run, or another name."
            )
        found[name] = [Path(folder) for folder in folders]
    return found


def evaluations(folder: Path) -> list[dict]:
    """The events of a run that hold evaluations. Raises ValueError for a folder without any."""
    found = [event for event in read_events(folder) if any(key.startswith(FIGURES) for key in event)]
    if not found:
        raise ValueError(
            f"{folder} holds no evaluations of a pre-training run (events.jsonl is missing, or has none). There is "
            "nothing to compare. Name a folder that pretraining/run.py wrote, of a recipe with "
            "evaluation.held_out_fraction."
        )
    return found


def differences(folders: dict[str, list[Path]]) -> list[str]:
    """Sentences on what makes figures of these runs incomparable, as far as their run.json say."""
    found = defaultdict(list)
    for name, group in folders.items():
        for folder in group:
            path = folder / "run.json"
            facts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            if fingerprint := facts.get("tokenizer_fingerprint"):
                found[fingerprint].append(name)
    if len(found) < 2:
        return []
    groups = "; ".join(", ".join(dict.fromkeys(names)) for names in found.values())
    return [f"These runs have tokenizers of their own ({groups}): losses a token, in nats, cannot be compared."]


def curves_of(group: list[list[dict]]) -> Curves:
    """Every figure over the steps, with a value for each folder of a group that was evaluated there."""
    curves: Curves = defaultdict(lambda: defaultdict(list))
    for events in group:
        for event in events:
            for key, value in event.items():
                if key.startswith(FIGURES):
                    curves[key][event["step"]].append(value)
    return curves


def to_markdown(curves: dict[str, Curves], seeds: dict[str, int], warnings: list[str]) -> str:
    """A table of every figure at the last step at which all folders of all runs were evaluated; where there is none, at
    the last one of each run."""
    figures = list(dict.fromkeys(key for found in curves.values() for key in found))
    shared = [
        {step for step, values in found[key].items() if len(values) == seeds[name]}
        for name, found in curves.items()
        for key in figures
        if key in found
    ]
    common = set.intersection(*shared)
    count = ", ".join(f"{name} {number}" for name, number in seeds.items())
    lines = ["# Pre-training runs side by side", "", f"Seeds: {count}.", ""]
    lines += [line for warning in warnings for line in (f"**Note:** {warning}", "")]
    steps = dict.fromkeys(curves, max(common, default=0))
    if common:
        lines += [f"After {max(common):,} steps, a figure a seed:", ""]
    else:
        steps = {name: max(max(by_step) for by_step in found.values()) for name, found in curves.items()}
        each = ", ".join(f"{name} {step:,}" for name, step in steps.items())
        lines += [f"There is no step at which all of them were evaluated. The last of each: {each}.", ""]
    lines += ["| | " + " | ".join(curves) + " |"]
    lines += ["|---|" + "---|" * len(curves)]
    for key in sorted(figures, key=_order):
        cells = [
            ", ".join(f"{value:.3f}" for value in found.get(key, {}).get(steps[name], []))
            for name, found in curves.items()
        ]
        lines.append(f"| {_title(key)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _order(key: str) -> tuple[int, str]:
    return next(place for place, prefix in enumerate(FIGURES) if key.startswith(prefix)), key


def _title(key: str) -> str:
    prefix = next(prefix for prefix in FIGURES if key.startswith(prefix))
    rest = key.removeprefix(prefix)
    if prefix == "held_out/":
        rest = rest.replace("/", " ", 1)  # behind the objective; names of corpora have slashes of their own
    return TITLES.get(prefix, prefix.rstrip("/").replace("_", " ") + ", ") + rest


def write_csv(events: dict[str, list[list[dict]]], folders: dict[str, list[Path]], path: Path) -> None:
    """A row for each figure of each evaluation of each folder."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["run", "folder", "step", "figure", "value"])
        for name, group in events.items():
            for folder, found in zip(folders[name], group, strict=True):
                for event in found:
                    for key, value in event.items():
                        if key.startswith(FIGURES):
                            writer.writerow([name, folder, event["step"], key, value])


def plot(curves: dict[str, Curves], path: Path) -> None:
    """A panel a figure: the mean of each run over its seeds, in a band from the lowest to the highest."""
    from matplotlib.figure import Figure

    keys = sorted({key for found in curves.values() for key in found}, key=_order)
    columns = min(4, len(keys))
    rows = -(-len(keys) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows + 0.4), layout="constrained")
    handles = {}
    for place, key in enumerate(keys):
        axes = figure.add_subplot(rows, columns, place + 1)
        for number, (name, found) in enumerate(curves.items()):
            if key not in found:
                continue
            steps = sorted(found[key])
            values = [found[key][step] for step in steps]
            means = [statistics.fmean(group) for group in values]
            marker = MARKERS[number % len(MARKERS)]
            (line,) = axes.plot(steps, means, marker=marker, markersize=4, color=f"C{number % 10}")
            axes.fill_between(
                steps, [min(v) for v in values], [max(v) for v in values], color=line.get_color(), alpha=0.2
            )
            handles[name] = line
        axes.set(title=_title(key), xlabel="step")
        axes.grid(alpha=0.3)
    handles = {name: handles[name] for name in curves}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
