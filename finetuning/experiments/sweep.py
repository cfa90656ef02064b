"""Hyperparameters chosen on development rows alone: every point of a grid, one seed each, then the best, all seeds.

    python finetuning/run.py --config finetuning/recipes/veco/xnli.yaml --sweep model=runs/veco-large/model

The recipe's `sweep` names fields and the values that are tried with each other. A point is the recipe with one value
of each; it is trained with the first seed, in <output_dir>/sweep/<point>, and scored on the rows that `selection`
names. No evaluated row is predicted before the best point is known; that is then run with all seeds in output_dir
itself, and its results say what it was chosen from. Of equal points the first is taken; one that diverges is out.

Writes sweep.{json,md,csv,png} beside the results. With --resume finished points are read, not run.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas

from finetuning.recipe import Recipe, TaskRecipe
from finetuning.results.files import Table, markdown_table, print_table
from finetuning.results.plots import plot_lines
from finetuning.results.protocol import Protocol
from finetuning.results.table import FORMAT
from finetuning.tasks.registry import task_of
from zoo_core.provenance import read_json, write_csv, write_json
from zoo_core.recipes import change_recipe, read_yaml

# What a model is trained with. Anything else would give points other data, or scores that measure something else.
SWEPT = ("training", "max_length", "doc_stride", "evaluate_every_steps")
FOLDER = "sweep"
REMOVABLE = "Restore the file, or remove it: --sweep --resume writes it again."


@dataclasses.dataclass
class Point:
    """One choice of values, by dotted field, and what became of it."""

    values: dict[str, Any]
    name: str  # of its folder, and in messages
    score: float | None = None  # on the development rows, in percent; None until it is run, and where it diverged
    selected_step: int | None = None
    diverged: bool = False


def run(recipe: Recipe, resume: bool, command: list[str], execute: Callable[..., Any]) -> None:
    """Runs every point, then the best one; `execute` runs a task, as `running.run`.

    Each point is a run of its own, and refuses on --resume another recipe, model or data than it was started with.

    Raises ValueError for a recipe that cannot be swept (`points_of`), for a folder that is not empty without `resume`
    or holds a run that is not of this sweep, and where every point diverges.
    """
    from accelerate import PartialState

    from finetuning.checkpoints import CHECKPOINT
    from finetuning.run_folder import HALF_WRITTEN, RunFolder, check_same_data, not_empty
    from finetuning.seeds import Diverged
    from zoo_core.recording import check_recording
    from zoo_core.run_folders import not_own, remove_own

    points = points_of(recipe)
    recipe.check()
    check_recording(recipe.tracker, recipe.push_to_hub)
    recipes = [recipe_of(recipe, point) for point in points]
    model = check_points(points, recipes)
    folder = Path(recipe.output_dir)
    if not resume and (held := not_own(folder, HALF_WRITTEN)):
        raise not_empty(folder, held)
    earlier = read_earlier(folder, recipe, model)
    for point in points:  # all of them before the first is written
        point.diverged = earlier.get(point.name, {}).get("diverged", False)
    state = PartialState()
    state.wait_for_everyone()  # every process has looked at the folder before a file of this session appears

    def say(text: str) -> None:
        if state.is_main_process:
            print(f"sweep {text}", flush=True)

    data: dict[Path, Any] = {}
    for number, (point, own) in enumerate(zip(points, recipes, strict=True), start=1):
        place, path = f"[{number}/{len(points)}] {point.name}", Path(own.output_dir)
        if point.diverged:
            say(f"{place}: diverged, not run again")
            continue
        scored = [other for other in points if other.score is not None]
        say(place + (f", best so far {best_of(scored).score:.2f} ({best_of(scored).name})" if scored else ""))
        try:
            is_done = (path / f"seed-{own.seeds[0]}" / "scores.json").is_file()
            record = RunFolder(own, model, resume=True).finished(own.seeds[0]) if is_done else None
            record = record or execute(task_of(own), path.exists(), command, evaluate=False)[0]
            point.diverged = not math.isfinite(record["selection_score"])
            if not point.diverged:
                point.score, point.selected_step = record["selection_score"], record["selected_step"]
        except Diverged as error:
            point.diverged = True
            say(f"{place}: {error}")
        if state.is_main_process:
            remove_own(path / f"seed-{own.seeds[0]}" / "checkpoints", CHECKPOINT)
            write(recipe, model, points, None, folder)
        state.wait_for_everyone()
        if found := read_json(path / "run.json", {}):
            data[path] = found["data"]
            first = next(iter(data))
            check_same_data(first, data[first], data[path], f"Restore them and remove {path}")
    best = best_of(points)
    if state.is_main_process:
        write(recipe, model, points, best, folder)
        print_table(f"{recipe.task}, sweep", table_of(points, best), [], f"{folder}/sweep.json, md, csv, png")
    equal = sum(point.score == best.score for point in points)
    tie = f"{equal} points have the best score, and the first of them is taken: " if equal > 1 else ""
    say(f"{tie}{best.name} is taken, and run with seeds {recipe.seeds}")
    execute(task_of(recipe_of(recipe, best, final=True)), (folder / "recipe.yaml").is_file(), command)


def points_of(recipe: Recipe) -> list[Point]:
    """The points of a recipe's grid, the last field changing fastest.

    Raises ValueError for a recipe without a grid or without development scores, for fields that cannot be swept, and
    for fields with no value or one given twice.
    """
    grid = getattr(recipe, "sweep", None)
    if grid is None:
        raise ValueError(f"--sweep is given, and recipes of kind {recipe.kind} have no `sweep`. Leave it out.")
    if not grid:
        example = "sweep={training.learning_rate: [1e-5, 2e-5]}"
        raise ValueError(f"--sweep is given, and its `sweep` is empty. Set it, as in {example}.")
    if recipe.selection == "last":
        raise ValueError("--sweep is given, and selection is last. Use selection=source_dev or selection=mean_dev.")
    for field, values in grid.items():
        if field.partition(".")[0] not in SWEPT:
            raise ValueError(f"sweep names {field}. Sweep over fields of {', '.join(SWEPT)}.")
        distinct = {json.dumps(value) for value in values}
        if not values or len(distinct) < len(values):
            raise ValueError(f"sweep.{field} is {values}. Name one value or more, and each once.")
    last_parts = [field.rpartition(".")[2] for field in grid]
    names = [short if last_parts.count(short) == 1 else field for field, short in zip(grid, last_parts, strict=True)]
    return [
        Point(
            dict(zip(grid, values, strict=True)),
            ",".join(f"{name}={_shown(value)}" for name, value in zip(names, values, strict=True)),
        )
        for values in itertools.product(*grid.values())
    ]


def recipe_of(recipe: Recipe, point: Point, final: bool = False) -> Recipe:
    """The recipe of a point: with its values, and unless it is `final` one seed and a folder of its own, and no model
    is kept. Raises ValueError for fields that are not there and values of a wrong type.
    """
    own = change_recipe(recipe, [f"{field}={_shown(value)}" for field, value in point.values.items()])
    if final:
        return own
    folder = str(Path(recipe.output_dir) / FOLDER / point.name)
    kept = dict(save_models=False, push_to_hub=None)
    return dataclasses.replace(own, output_dir=folder, seeds=recipe.seeds[:1], sweep={}, **kept)


def check_points(points: list[Point], recipes: list[Recipe]) -> dict[str, Any]:
    """What run.json says of the model. Raises ValueError, before anything is run, for a point that cannot be."""
    from finetuning.checkpoints import check_positions, describe_start
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
    """The points of an earlier session by name.

    Raises ValueError for a sweep with another seed or model, and for a run in output_dir that is no point.
    """
    from finetuning.run_folder import check_same_recipe, check_same_weights

    earlier = read_json(folder / "sweep.json", {}, advice=REMOVABLE)
    if earlier:
        if earlier["seed"] != recipe.seeds[0]:
            raise ValueError(f"{folder} holds a sweep with seed {earlier['seed']}: put it first in seeds.")
        check_same_weights(folder, recipe.model, earlier["model"]["fingerprint"], model["fingerprint"])
    for point in earlier.get("points", []):
        path = folder / FOLDER / point["name"]
        if (path / "recipe.yaml").is_file() and set(point["values"]) == set(recipe.sweep):
            check_same_recipe(path, recipe_of(recipe, Point(point["values"], point["name"])))
    if (folder / "recipe.yaml").is_file():
        started = read_yaml(folder / "recipe.yaml")
        values = {name: _at(started, name) for name in recipe.sweep}
        if any(value not in recipe.sweep[name] for name, value in values.items()):
            raise ValueError(
                f"{folder} holds a run with {values}, which is no point of the sweep. Name another folder."
            )
    return {point["name"]: point for point in earlier.get("points", [])}


def best_of(points: list[Point]) -> Point:
    """The point with the best development score, the first of equal ones. Raises ValueError where all diverged."""
    scored = [point for point in points if point.score is not None]
    if not scored:
        raise ValueError(f"All {len(points)} points of the sweep diverged. Lower training.learning_rate in `sweep`.")
    return max(scored, key=lambda point: point.score)


def sweep_facts(recipe: TaskRecipe, model: dict[str, Any], protocol: Protocol) -> dict[str, Any] | None:
    """What a run's protocol says of the sweep that chose its values: fields, points and score.

    None where there was none in its folder, it chose other values, or it was of another recipe or model. Raises
    ValueError where it was of other data.
    """
    from finetuning.run_folder import check_same_data, check_same_recipe, data_of

    folder = Path(recipe.output_dir)
    found, values = read_json(folder / "sweep.json", {}, advice=REMOVABLE), dataclasses.asdict(recipe)
    taken = next((point for point in found.get("points", []) if point["values"] == found["taken"]), None)
    if not taken or found["model"]["fingerprint"] != model["fingerprint"]:
        return None
    if any(_at(values, name) != value for name, value in taken["values"].items()):
        return None
    point = folder / FOLDER / taken["name"]
    if (point / "recipe.yaml").is_file():
        try:
            check_same_recipe(point, recipe_of(recipe, Point(taken["values"], taken["name"])))
        except ValueError:
            return None
    if facts := read_json(point / "run.json", None):
        check_same_data(point, facts["data"], data_of(protocol))
    return {"fields": found["fields"], "points": len(found["points"]), "score": taken["score"]}


def write(recipe: Recipe, model: dict[str, Any], points: list[Point], taken: Point | None, folder: Path) -> None:
    """Writes sweep.{json,md,csv} and, once every point has run, sweep.png; `taken` is None until then."""
    found = [dataclasses.asdict(point) for point in points]
    content = {
        "format": FORMAT,
        "task": recipe.task,
        "setting": recipe.setting,
        "selection": recipe.selection,
        "seed": recipe.seeds[0],
        "model": model,
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


def table_of(points: list[Point], taken: Point | None) -> Table:
    """Header and rows: the values, the development score, and which point was taken."""
    rows = []
    for point in points:
        score = "diverged" if point.diverged else "" if point.score is None else f"{point.score:.2f}"
        rows.append([*map(_shown, point.values.values()), score, "taken" if point is taken else ""])
    return [*points[0].values, "dev score", ""], rows


def plot(recipe: Recipe, points: list[Point], taken: Point, path: Path, title: str) -> None:
    """Development scores over the values of the field that has most of them, a line for each choice of the others."""
    axis = max(recipe.sweep, key=lambda name: len(recipe.sweep[name]))
    lines: dict[str, dict[str, float]] = {}
    for value in recipe.sweep[axis]:  # in this order on the axis
        for point in points:
            if point.values[axis] == value and point.score is not None:
                others = [f"{name.rpartition('.')[2]} {_shown(v)}" for name, v in point.values.items() if name != axis]
                lines.setdefault(", ".join(others), {})[_shown(value)] = point.score
    level = {"": ("taken", taken.score)}
    plot_lines({"": lines}, path, title, axis, "development score (%)", level)


def _shown(value: Any) -> str:
    """A value as an override and a table have it: 1e-05, bf16, [0.9, 0.98]."""
    return value if isinstance(value, str) else json.dumps(value)


def _at(values: Any, name: str) -> Any:
    """What a recipe's values hold at a dotted name; None where it is not there."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, dict) else values[int(part)]
    return values
