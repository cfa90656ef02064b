"""Scores and transfer gap over the steps of pre-training: MetaXLM (2021), Figure 5, for any recipe and any runs.

    python -m finetuning.experiments.step_curves --config finetuning/recipes/metaxlm/xnli.yaml \\
      --run XLM runs/xlm --run MetaXLM runs/metaxlm --output runs/curves

Every checkpoint that a pre-training run has kept, and its final model, is fine-tuned with the same recipe (or evaluated
as it is, where the recipe's kind trains nothing). Several folders of one name are seeds of its pre-training. Writes
curves.json, curves.md, curves.csv and curves.png: the mean over the languages that were not trained on, the source
language, and the transfer gap, their difference; of a kind without a source language the average. Standard deviations
are over seeds, of fine-tuning and of pre-training.

A pre-training run keeps its two newest checkpoints only, unless it is told otherwise: `save_every_steps=2000
keep_checkpoints=0`. The same command again goes on; checkpoints that were added since are run. See
finetuning/experiments/grid.py.
"""

import json
from pathlib import Path
from typing import Any

from finetuning.experiments import grid
from finetuning.experiments.grid import GridRun
from finetuning.results.files import markdown_table, with_deviation, write_files
from finetuning.results.layer_curves import MARKERS
from zoo_core.recipes import user_errors

LINES = ("-", "--", "-.", ":")


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = grid.parser_of(__doc__)
    parser.add_argument(
        "--run",
        nargs="+",
        action="append",
        required=True,
        metavar=("NAME", "DIR"),
        help="a name and its folders of pretraining/run.py; once for each line of the plot",
    )
    parser.add_argument("--steps", nargs="+", metavar="N", help="steps to evaluate; default: all there are")
    with user_errors():
        asked = grid.parse(parser, argv, {"model": "--run"}, "step_curves")
        wanted = steps_of(asked.options.steps)
        models = {name: models_of(name, folders, wanted) for name, *folders in asked.options.run}
        grid.check_names("--run", [name for name, *_ in asked.options.run])
        runs = {
            (name, step, model): GridRun(
                f"{name}, step {step}" + (f", {folder}" if len(folders) > 1 else ""),
                asked.output / name / (folder if len(folders) > 1 else "") / f"step-{step}",
                str(model),
            )
            for name, folders in models.items()
            for folder, by_step in folders.items()
            for step, model in by_step.items()
        }
        results = grid.run_all(asked, list(runs.values()))
        curves: dict[str, dict[int, list[dict[str, Any]]]] = {name: {} for name in models}
        for (name, step, _), run in runs.items():
            curves[name].setdefault(step, []).append(results[run.name])
        write(curves, results, asked.output)


def steps_of(texts: list[str] | None) -> list[int] | None:
    """--steps as numbers. Raises ValueError for what is none."""
    if wrong := [text for text in texts or [] if not text.isdecimal()]:
        raise ValueError(
            f"--steps has {wrong[0]!r}, which is no number of a step. Checkpoints are named by numbers. Write, for "
            "example, --steps 2000 4000."
        )
    return None if texts is None else [int(text) for text in texts]


def models_of(name: str, folders: list[str], wanted: list[int] | None) -> dict[str, dict[int, Path]]:
    """Model folders by the name of a pre-training run's folder and by step; of several runs the steps that all have.

    Raises ValueError for a name without a folder, folders of one name, a folder that holds no checkpoint, and for
    wanted steps that are not there.
    """
    if not folders:
        raise ValueError(
            f"--run {name} has no folder: a line of the plot is a name and the folders of its pre-training runs. Write "
            "--run NAME DIR [DIR ...]."
        )
    found = {Path(folder).name: checkpoints_of(Path(folder)) for folder in folders}
    if len(found) < len(folders):
        raise ValueError(
            f"--run {name} has two folders that are called alike, of {', '.join(folders)}. Their results would be "
            "mixed in one folder. Name each once, and rename one of two."
        )
    steps = sorted(set.intersection(*(set(by_step) for by_step in found.values())))
    if missing := [step for step in wanted or [] if step not in steps]:
        raise ValueError(
            f"--steps has {missing[0]}, and {', '.join(folders)} has no model of that step: {steps}. A step without a "
            "checkpoint cannot be evaluated. Name some of these, or pre-train with keep_checkpoints=0."
        )
    if not steps:
        raise ValueError(
            f"{', '.join(folders)} have no step in common. Their seeds would not stand at one place of the curve. "
            "Pre-train them with the same save_every_steps, and keep_checkpoints=0."
        )
    return {folder: {step: by_step[step] for step in wanted or steps} for folder, by_step in found.items()}


def checkpoints_of(folder: Path) -> dict[int, Path]:
    """Model folders of a pre-training run by step: its checkpoints, and its final model where that is another step.

    Raises ValueError where there is none.
    """
    found = {
        int(path.parent.name.removeprefix("step-")): path
        for path in folder.glob("checkpoints/step-*/model")
        if path.parent.name.removeprefix("step-").isdecimal()
    }
    facts = folder / "run.json"
    last = json.loads(facts.read_text(encoding="utf-8")).get("steps") if facts.is_file() else None
    if last is not None and (folder / "model").is_dir():
        found.setdefault(last, folder / "model")
    if not found:
        raise ValueError(
            f"{folder} is no folder of a pre-training run with checkpoints: there is no checkpoints/step-N/model, and "
            "no finished model/ beside run.json. Nothing can be evaluated. Name the run's output_dir."
        )
    return dict(sorted(found.items()))


def write(curves: dict[str, dict[int, list[dict[str, Any]]]], results: dict[str, dict[str, Any]], folder: Path) -> None:
    """Writes curves.{json,md,csv,png} and shows the table; the main process. `curves`: results by name and step."""
    from accelerate import PartialState

    from finetuning.experiments.compare_runs import MODULES, check_alike, title_of

    if not PartialState().is_main_process:
        return
    check_alike(results)
    first = next(iter(results.values()))
    points = {
        name: {step: grid.pooled([grid.transfer_by_seed(found) for found in group]) for step, group in by_step.items()}
        for name, by_step in curves.items()
    }
    panels = panels_of(first)
    rows = [
        [str(step), name, *(with_deviation(found[panel]) for panel in panels)]
        for step in sorted({step for by_step in points.values() for step in by_step})
        for name, by_step in points.items()
        if (found := by_step.get(step))
    ]
    table = ["step", "run", *panels.values()], rows
    title = title_of({"": [first]})
    warnings, differing = grid.remarks([results])
    record = {
        **grid.head_of(first),
        "source_language": first.get("source_language"),
        "runs": {
            name: [
                {
                    "step": step,
                    "models": [found["model"] for found in group],
                    "seeds": [found["seeds"] for found in group],
                    "scores": points[name][step],
                    "languages": {
                        language: grid.pooled([{"": found["languages"][language]["scores"]} for found in group])[""]
                        for language in first["languages"]
                    },
                }
                for step, group in by_step.items()
            ]
            for name, by_step in curves.items()
        },
        "warnings": warnings,
        "differing": differing,
    }
    csv_rows = [
        {"run": name, "step": step, **row}
        for name, by_step in curves.items()
        for step, group in by_step.items()
        for found in group
        for row in MODULES[found["kind"]].to_rows(found)
    ]
    text = grid.page(
        f"{title}, over pre-training", [markdown_table(table)], warnings, differing, "![curves](curves.png)"
    )
    write_files(record, text, csv_rows, folder, "curves")
    plot(points, panels, folder / "curves.png", title)
    written = f"{folder}/curves.json, curves.md, curves.csv, curves.png"
    notes = [f"warning: {line}" for line in warnings]
    grid.show(f"{title}, over pre-training", {"": table}, notes, differing, written, names=2)


def panels_of(results: dict[str, Any]) -> dict[str, str]:
    """Titles of the panels by the name of the score."""
    source = results.get("source_language")
    others = [language for language in results["languages"] if language != source]
    several = f"mean of {len(others)} other languages" if len(others) > 1 else "".join(others)
    titles = {
        "others": several,
        "source": str(source),
        "gap": f"transfer gap ({source} - others)",
        "average": "average",
    }
    return {name: titles[name] for name in grid.transfer_by_seed(results)}


def plot(points: dict[str, dict[int, dict[str, Any]]], panels: dict[str, str], path: Path, title: str) -> None:
    """Draws each score over the steps of pre-training, a line a run, with standard deviations over seeds."""
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt

    size = (max(6.4, 1.0 + 3.6 * len(panels)), 3.6)  # room for title and legend
    figure, grid_of_axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
    for axes, (panel, name_of_panel) in zip(grid_of_axes[0], panels.items(), strict=True):
        for number, (name, by_step) in enumerate(points.items()):
            steps = list(by_step)
            entries = [found[panel] for found in by_step.values()]
            means = [entry["mean"] for entry in entries]
            style = dict(marker=MARKERS[number % len(MARKERS)], linestyle=LINES[number % len(LINES)], markersize=4)
            if panel == "gap":
                axes.axhline(0, color="gray", linewidth=0.6)
            axes.plot(steps, means, label=name, color=f"C{number}", **style)
            if any(entry["sd"] for entry in entries):
                low, high = ([e["mean"] + sign * (e["sd"] or 0.0) for e in entries] for sign in (-1, 1))
                axes.fill_between(steps, low, high, color=f"C{number}", alpha=0.2, linewidth=0)
        axes.set_title(name_of_panel, fontsize=9)
        axes.set_xlabel("pre-training steps")
        axes.spines[["top", "right"]].set_visible(False)
    grid_of_axes[0][0].set_ylabel("score (%)")
    handles, labels = grid_of_axes[0][0].get_legend_handles_labels()
    columns = min(3 if len(panels) == 1 else 5, len(labels))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
