"""Searches hyperparameters on development rows: runs every combination with one seed, then the best with all seeds.

    python finetuning/run.py --config finetuning/recipes/veco/xnli.yaml --sweep model=runs/veco-large/model

The recipe's `sweep` names fields and the values to try. A point is the recipe with one value of each field. It is
trained with the first seed, in <output_dir>/sweep/<point>, and scored on the development rows that `selection` names.
Evaluated rows are predicted only with the best point, which is run with all seeds in output_dir itself; its results
name the points. If points are equal, the first is taken. A point that diverges is not taken.

Writes sweep.{json,md,csv,png} next to the results. With --resume finished points are not run again.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
from accelerate import PartialState

from finetuning.experiments.engine import BEGUN, FINISHED, WAITING, Job, run_jobs
from finetuning.recipe import Recipe
from finetuning.results.files import Table, markdown_table, print_table
from finetuning.results.plots import plot_lines
from finetuning.results.table import FORMAT
from finetuning.sweep_points import FOLDER, REMOVABLE, Point, points_of, recipe_of, shown, value_at
from finetuning.tasks.registry import task_of
from zoo_core.provenance import read_json, write_csv, write_json
from zoo_core.recipes import read_yaml
from zoo_core.run_folders import not_own, remove_own


@dataclasses.dataclass
class Sweep:
    """A recipe with a grid, its points, and the files that report their scores."""

    recipe: Recipe
    points: list[Point]
    model: dict[str, Any]  # as in run.json
    command: list[str]
    execute: Callable[..., Any]  # runs a task, as `running.run`
    data: tuple[Path, Any] | None = None  # folder of the first finished point, and what it read

    @property
    def folder(self) -> Path:
        return Path(self.recipe.output_dir)

    def write(self, taken: Point | None = None) -> None:
        """Writes sweep.{json,md,csv} and, once a point is `taken`, sweep.png."""
        recipe, points, folder = self.recipe, self.points, self.folder
        found = [dataclasses.asdict(point) for point in points]
        content = {
            "format": FORMAT,
            "task": recipe.task,
            "setting": recipe.setting,
            "selection": recipe.selection,
            "seed": recipe.seeds[0],
            "model": self.model,
            "fields": recipe.sweep,
            "taken": taken and taken.values,
            "points": found,
        }
        title = f"{recipe.task} ({recipe.setting}), sweep"
        lines = [f"# {title}", "", *markdown_table(table_of(points, taken)), ""]
        lines += [f"Development scores in percent (selection: {recipe.selection}), seed {recipe.seeds[0]}.", ""]
        folder.mkdir(parents=True, exist_ok=True)
        if taken:
            plot(recipe, points, taken, folder / "sweep.png", title)
            lines += ["![development scores](sweep.png)", ""]
        rows = [
            {"task": recipe.task, **point["values"], "seed": recipe.seeds[0]}
            | {name: point[name] for name in ("score", "selected_step", "diverged")}
            | {"taken": bool(taken) and point["name"] == taken.name}
            for point in found
        ]
        (folder / "sweep.md").write_text("\n".join(lines), encoding="utf-8")
        write_csv(folder / "sweep.csv", pandas.DataFrame(rows))
        write_json(folder / "sweep.json", content)


@dataclasses.dataclass
class PointJob(Job):
    """The run of a point with the first seed; it predicts no evaluated row."""

    sweep: Sweep
    point: Point
    recipe: Recipe

    def __post_init__(self):
        self.name, self.folder = self.point.name, Path(self.recipe.output_dir)

    def state(self) -> str:
        """Returns the state, and takes the score of a finished point. A point that diverged is finished."""
        from finetuning.run_folder import RunFolder

        if self.point.diverged:
            return FINISHED
        seed = self.recipe.seeds[0]
        if (self.folder / f"seed-{seed}" / "scores.json").is_file():
            if record := RunFolder(self.recipe, self.sweep.model, resume=True).finished(seed):
                self.take(record)
                return FINISHED
        return BEGUN if self.folder.exists() else WAITING

    def start(self, state: str) -> None:
        from finetuning.seeds import Diverged

        sweep = self.sweep
        try:
            (record,) = sweep.execute(task_of(self.recipe), state == BEGUN, sweep.command, evaluate=False)
        except Diverged as error:
            record = {"selection_score": math.nan}
            if PartialState().is_main_process:
                print(f"{self.name}: {error}")
        self.take(record)

    def take(self, record: dict[str, Any]) -> None:
        """Takes the score of a run. Raises ValueError if its data differ from those of earlier points."""
        from finetuning.checkpoints import CHECKPOINT
        from finetuning.run_folder import check_same_data

        self.point.diverged = not math.isfinite(record["selection_score"])
        if not self.point.diverged:
            self.point.score, self.point.selected_step = record["selection_score"], record["selected_step"]
        if PartialState().is_main_process:
            remove_own(self.folder / f"seed-{self.recipe.seeds[0]}" / "checkpoints", CHECKPOINT)
            self.sweep.write()
        PartialState().wait_for_everyone()
        if found := read_json(self.folder / "run.json", {}):
            self.sweep.data = first, data = self.sweep.data or (self.folder, found["data"])
            check_same_data(first, data, found["data"], f"Restore them and remove {self.folder}")


def run(recipe: Recipe, resume: bool, command: list[str], execute: Callable[..., Any]) -> None:
    """Runs every point, then the best one; `execute` runs a task, as `running.run`.

    Each point is a run of its own. With --resume its recipe, model and data must be those that it was started with.

    Raises ValueError for a recipe that cannot be swept (`points_of`), for a folder that is not empty without `resume`
    or holds a run that is not of this sweep, and if every point diverges.
    """
    from finetuning.run_folder import HALF_WRITTEN, not_empty
    from zoo_core.recording import check_recording

    points = points_of(recipe)
    recipe.check()
    check_recording(recipe.tracker, recipe.push_to_hub)
    recipes = [recipe_of(recipe, point) for point in points]
    sweep = Sweep(recipe, points, check_points(points, recipes), command, execute)
    folder = sweep.folder
    if not resume and (held := not_own(folder, HALF_WRITTEN)):
        raise not_empty(folder, held)
    earlier = read_earlier(folder, recipe, sweep.model)
    for point in points:
        point.diverged = earlier.get(point.name, {}).get("diverged", False)
    state = PartialState()
    state.wait_for_everyone()  # every process has looked at the folder before a file of this session appears
    log = functools.partial(print, flush=True) if state.is_main_process else lambda text: None
    run_jobs([PointJob(sweep, *both) for both in zip(points, recipes, strict=True)], log=log)
    best = best_of(points)
    if state.is_main_process:
        sweep.write(best)
        print_table(f"{recipe.task}, sweep", table_of(points, best), [], f"{folder}/sweep.json, md, csv, png")
    equal = sum(point.score == best.score for point in points)
    tie = f"{equal} points have the best score; the first of them is used. " if equal > 1 else ""
    log(f"{tie}best point: {best.name}; running it with seeds {recipe.seeds}")
    execute(task_of(recipe_of(recipe, best, final=True)), (folder / "recipe.yaml").is_file(), command)


def check_points(points: list[Point], recipes: list[Recipe]) -> dict[str, Any]:
    """Returns the model as in run.json. Raises ValueError, before anything is run, for a point that cannot be run."""
    from finetuning.checkpoints import describe_start
    from finetuning.models import check_positions
    from finetuning.seeds import check_hardware

    start = describe_start(recipes[0])
    for point, recipe in zip(points, recipes, strict=True):
        task = task_of(recipe)
        try:
            check_hardware(recipe.precision)
            task.check()
            check_positions(recipe.max_length, start.config, start.path)
            task.check_start(start)
        except ValueError as error:
            raise ValueError(f"sweep, {point.name}: {error}") from None
    return start.identity


def read_earlier(folder: Path, recipe: Recipe, model: dict[str, Any]) -> dict[str, Any]:
    """Returns the points of an earlier session by name.

    Raises ValueError for a sweep with another seed or model, and for a run in output_dir that is not a point.
    """
    from finetuning.run_folder import check_same_recipe, check_same_weights

    earlier = read_json(folder / "sweep.json", {}, advice=REMOVABLE)
    if earlier:
        if earlier["seed"] != recipe.seeds[0]:
            raise ValueError(f"{folder} holds a sweep with seed {earlier['seed']}. Name this seed first in seeds.")
        check_same_weights(folder, recipe.model, earlier["model"]["fingerprint"], model["fingerprint"])
    for point in earlier.get("points", []):
        path = folder / FOLDER / point["name"]
        if (path / "recipe.yaml").is_file() and set(point["values"]) == set(recipe.sweep):
            check_same_recipe(path, recipe_of(recipe, Point(point["values"], point["name"])))
    if (folder / "recipe.yaml").is_file():
        started = read_yaml(folder / "recipe.yaml")
        values = {name: value_at(started, name) for name in recipe.sweep}
        if any(value not in recipe.sweep[name] for name, value in values.items()):
            raise ValueError(
                f"{folder} holds a run with {values}, which is no point of the sweep. Name another folder."
            )
    return {point["name"]: point for point in earlier.get("points", [])}


def best_of(points: list[Point]) -> Point:
    """Returns the point with the best development score, the first of equal ones. Raises ValueError if all diverged."""
    scored = [point for point in points if point.score is not None]
    if not scored:
        raise ValueError(f"All {len(points)} points of the sweep diverged. Lower training.learning_rate in `sweep`.")
    return max(scored, key=lambda point: point.score)


def table_of(points: list[Point], taken: Point | None) -> Table:
    """Returns header and rows: the values, the development score, and which point was taken."""
    rows = []
    for point in points:
        score = "diverged" if point.diverged else "" if point.score is None else f"{point.score:.2f}"
        rows.append([*map(shown, point.values.values()), score, "taken" if point is taken else ""])
    return [*points[0].values, "dev score", ""], rows


def plot(recipe: Recipe, points: list[Point], taken: Point, path: Path, title: str) -> None:
    """Plots development scores over the field with most values, one line per combination of the other values."""
    axis = max(recipe.sweep, key=lambda name: len(recipe.sweep[name]))
    lines: dict[str, dict[str, float]] = {}
    for value in recipe.sweep[axis]:  # in this order on the axis
        for point in points:
            if point.values[axis] == value and point.score is not None:
                others = [f"{name.rpartition('.')[2]} {shown(v)}" for name, v in point.values.items() if name != axis]
                lines.setdefault(", ".join(others), {})[shown(value)] = point.score
    level = {"": ("taken", taken.score)}
    plot_lines({"": lines}, path, title, axis, "development score (%)", level)
