"""Scores and transfer gap over the steps of pre-training: MetaXLM (2021), Figure 5, for any recipe and any runs.

    python -m finetuning.experiments.step_curves --config finetuning/recipes/metaxlm/xnli.yaml \\
      --run XLM runs/xlm --run MetaXLM runs/metaxlm --output runs/curves

Every checkpoint that a pre-training run has kept, and its final model, is fine-tuned with the same recipe (or evaluated
as it is, where the recipe's kind trains nothing). Several folders of one name are seeds of its pre-training. Writes
curves.json, curves.md, curves.csv and curves.png: the mean over the languages that were not trained on, the source
language, and the transfer gap, their difference; of a kind without a source language the average. Standard deviations
are over seeds, of fine-tuning and of pre-training.

A pre-training run keeps its two newest checkpoints only, unless it is told otherwise: `save_every_steps=2000
keep_checkpoints=0`. The same command again goes on; checkpoints that were added since are run.
"""

import sys
from pathlib import Path
from typing import Any

from finetuning.experiments import runs as many
from finetuning.experiments.runs import Run
from finetuning.results.differences import check_alike, named_folders
from finetuning.results.files import pivot
from finetuning.results.plots import plot_lines
from finetuning.results.table import AVERAGE, Results, Summary, summary
from zoo_core.command_line import user_errors
from zoo_core.provenance import read_json


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = many.parser_of(__doc__)
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
        options = many.parse(parser, argv, {"model": "--run"})
        folders = named_folders(options.run)
        many.check_names("--run", list(folders))
        for step in options.steps or []:
            if not step.isdecimal():
                raise ValueError(f"--steps has {step!r}, which is no number, as in --steps 2000 4000.")
        wanted = [int(step) for step in options.steps or []]
        runs = []
        for name, models in {name: models_of(name, paths, wanted) for name, paths in folders.items()}.items():
            for folder, by_step in models.items():
                of = folder if len(models) > 1 else ""
                for step, model in by_step.items():
                    recipe = many.recipe_of(options, str(model), options.output / name / of / f"step-{step}")
                    title = f"{name}, step {step}" + (f", {of}" if of else "")
                    runs.append(Run(title, recipe, {"run": name, "folder": folder, "step": step}))
        results = many.run_all(runs, options.output, sys.argv if argv is None else argv)
        write(runs, results, options.output)


def models_of(name: str, folders: list[str], wanted: list[int]) -> dict[str, dict[int, Path]]:
    """Model folders by the name of a pre-training run's folder and by step; of several runs the steps that all have.

    Raises ValueError for folders of one name, a folder that holds no checkpoint, and wanted steps that are not there.
    """
    found = {Path(folder).name: checkpoints_of(Path(folder)) for folder in folders}
    if len(found) < len(folders):
        raise ValueError(f"--run {name} has two folders that are called alike, of {', '.join(folders)}.")
    steps = sorted(set.intersection(*(set(by_step) for by_step in found.values())))
    if missing := [step for step in wanted if step not in steps]:
        raise ValueError(f"--steps has {missing[0]}, and {', '.join(folders)} has no model of that step: {steps}.")
    if not steps:
        raise ValueError(
            f"{', '.join(folders)} have no step in common. Pre-train them with the same save_every_steps, and "
            "keep_checkpoints=0."
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
    last = read_json(folder / "run.json", {}).get("steps")
    if last is not None and (folder / "model").is_dir():
        found.setdefault(last, folder / "model")
    if not found:
        raise ValueError(f"{folder} is no folder of a pre-training run with checkpoints (checkpoints/step-N/model).")
    return dict(sorted(found.items()))


def write(runs: list[Run], results: list[Results], folder: Path) -> None:
    """Writes curves.{json,md,csv,png} and shows the table; the main process."""
    from accelerate import PartialState

    if not PartialState().is_main_process:
        return
    check_alike({run.name: found for run, found in zip(runs, results, strict=True)})
    seeds: dict[str, dict[str, dict[int, list[float]]]] = {}  # by panel, run and step: seeds of all its folders
    for run, found in zip(runs, results, strict=True):
        for panel, entry in panels_of(found).items():
            by_step = seeds.setdefault(panel, {}).setdefault(run.keys["run"], {})
            by_step.setdefault(run.keys["step"], []).extend(entry["scores"])
    panels: dict[str, dict[str, dict[int, Summary]]] = {
        panel: {name: {step: summary(by_step[step]) for step in sorted(by_step)} for name, by_step in by_run.items()}
        for panel, by_run in seeds.items()
    }
    columns: dict[str, dict[str, Any]] = {
        panel: {f"{name}, step {step}": entry for name, by_step in by_run.items() for step, entry in by_step.items()}
        for panel, by_run in panels.items()
    }
    title = f"{results[0].title}, over pre-training"
    plot_lines(panels, folder / "curves.png", title, "pre-training steps", "score (%)", same_scale=False)
    table = pivot("run", columns)
    facts = {"source_language": results[0].get("source_language"), "curves": panels}
    many.write_experiment(folder, "curves", title, {"": table}, runs, results, ["curves.png"], **facts)


def panels_of(results: Results) -> dict[str, Summary]:
    """What is drawn of a run, by its title."""
    if not results.transfer:
        return {AVERAGE: results.average}
    source = results["source_language"]
    others = [language for language in results.languages if language != source]
    titles = {
        "others": f"mean of {len(others)} other languages" if others[1:] else others[0],
        "source": source,
        "gap": f"transfer gap ({source} - others)",
    }
    return {titles[key]: entry for key, entry in results.transfer.items()}


if __name__ == "__main__":
    main()
