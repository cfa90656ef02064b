"""A sweep: runs the combinations of the values in a recipe's `sweep`, then the best one with all seeds."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas

from crosslingual_zoo.finetuning.page import print_table
from crosslingual_zoo.finetuning.recipe import Recipe
from crosslingual_zoo.finetuning.runs import run_all
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.zoo_core.recipes import change_recipe
from crosslingual_zoo.zoo_core.run_folders import not_own

if TYPE_CHECKING:
    from crosslingual_zoo.finetuning.run_task import Record

# Fields of the training and of the input's length. Others would change the rows of a point, or what scores measure.
SWEPT = ("training", "max_length", "doc_stride", "evaluate_every_steps")


def sweep(recipe: Recipe, resume: bool, command: list[str]) -> None:
    """Runs every combination of the values in `sweep` with the first seed, then the best one with all seeds.

    A point is a run in <output_dir>/sweep/<point>, scored on the development rows that `selection` names. Evaluated
    rows are predicted only with the best point: of equal scores the one with the lower loss, then the first. A point
    that diverges is never the best. The results say what it was chosen from.

    Raises ValueError for a recipe that cannot be swept, for a folder that is not empty without `resume` or holds
    another run, if every point diverges, and, after all points, if one has failed: the best may be missing.
    """
    from accelerate import PartialState

    from crosslingual_zoo.finetuning.run_folder import not_empty
    from crosslingual_zoo.finetuning.run_task import run_task
    from crosslingual_zoo.finetuning.seed import Diverged

    folder = Path(recipe.output_dir)
    chosen = {name: change_recipe(recipe, overrides) for name, overrides in points_of(recipe).items()}
    points = {}
    for name, point in chosen.items():
        point.check()
        task_of(point).open()
        first_seed = recipe.seeds[:1]
        output_dir = str(folder / "sweep" / name)
        points[name] = replace(point, output_dir=output_dir, save_models=False, seeds=first_seed, sweep={})
    held = not_own(folder, "")
    if held and not resume:
        raise not_empty(folder, held)
    PartialState().wait_for_everyone()  # every process has looked at the folder before a file of this session appears
    runs = run_all(points, command, evaluate=False)
    for name, failure in list(runs.failed.items()):
        if failure.type is Diverged:
            del runs.failed[name]
    runs.check("Add --resume to run only these again, or leave their values out of `sweep`.")
    figures = figures_of(runs.records)
    if figures.empty:
        raise ValueError(f"All {len(points)} points of the sweep diverged. Lower training.learning_rate in `sweep`.")
    best = best_point(figures)
    if PartialState().is_main_process:
        rows = []
        for name, score, loss in figures.itertuples():
            rows.append([name, f"{score:.2f}", f"{loss:.3f}", "taken" if name == best else ""])
        print_table(f"{recipe.task}, sweep", (["point", "dev score", "dev loss", ""], rows), [])
    chosen_from = {"fields": recipe.sweep, "points": len(points), "score": float(figures.loc[best, "score"])}
    run_task(chosen[best], (folder / "recipe.yaml").is_file(), command, sweep=chosen_from)


def figures_of(records: dict[str, list["Record"]]) -> pandas.DataFrame:
    """Returns score and loss on the development rows of each point, without those whose score is no number."""
    figures = {}
    for name, (record,) in records.items():
        figures[name] = [record["selection_score"], record.get("selection_loss")]
    frame = pandas.DataFrame.from_dict(figures, "index", dtype=float, columns=["score", "loss"])
    return frame.dropna(subset="score")


def best_point(figures: pandas.DataFrame) -> str:
    """Returns the point with the highest score; of equal ones that with the lowest loss, then the first."""
    rounded = figures.round({"score": 6})
    return rounded.sort_values(["score", "loss"], ascending=[False, True], kind="stable").index[0]


def points_of(recipe: Recipe) -> dict[str, list[str]]:
    """The points of a recipe's `sweep` by name, as overrides; the last field changes fastest.

    Raises ValueError for a recipe without `sweep` or development scores, and for fields that cannot be swept.
    """
    grid = getattr(recipe, "sweep", None)
    if not grid or recipe.selection == "last":
        raise ValueError(
            "--sweep needs `sweep` of the recipe, as in sweep={training.learning_rate: [1e-5, 2e-5]}, and a selection "
            "by development rows: selection=source_dev or selection=mean_dev."
        )
    if not all(grid.values()) or any(field.partition(".")[0] not in SWEPT for field in grid):
        raise ValueError(f"sweep is {grid}. Name fields of {', '.join(SWEPT)}, and at least one value of each.")
    points = {}
    for values in itertools.product(*grid.values()):
        overrides = []
        for field, value in zip(grid, values, strict=True):
            text = value if isinstance(value, str) else json.dumps(value)
            overrides.append(f"{field}={text}")
        points[",".join(overrides).replace("training.", "")] = overrides
    return points
