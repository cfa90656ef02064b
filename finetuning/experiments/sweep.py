"""Hyperparameters chosen on development rows alone: every point of a grid, one seed each, then the best, all seeds.

    accelerate launch finetuning/run.py --config finetuning/recipes/veco/xnli.yaml --sweep model=runs/veco/model

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
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from finetuning.results.files import FORMAT, Table, markdown_table, print_table, write_files
from finetuning.tasks.registry import task_module
from zoo_core.recipes import change_recipe, read_yaml

# What a model is trained with. Anything else would give points other data, or scores that measure something else.
SWEPT = ("training", "max_length", "doc_stride", "evaluate_every_steps")
FOLDER = "sweep"


@dataclasses.dataclass
class Point:
    """One choice of values, by dotted field, and what became of it."""

    values: dict[str, Any]
    name: str  # of its folder, and in messages
    score: float | None = None  # on the development rows, in percent; None until it is run, and where it diverged
    selected_step: int | None = None
    diverged: bool = False


def run(recipe: Any, resume: bool, command: list[str], execute: Callable[..., Any]) -> None:
    """Runs every point, then the best one; `execute` is the runner of the recipe's kind (`finetuning.run`).

    Raises ValueError for a recipe that cannot be swept (`points_of`), for a folder that is not empty without `resume`
    or holds a run that is not of this sweep, where points were trained on other data, and where every point diverges.
    """
    from accelerate import PartialState

    from finetuning.checkpoints import describe_start
    from finetuning.run_folder import not_empty
    from finetuning.seeds import Diverged

    points = points_of(recipe)
    recipes = [recipe_of(recipe, point) for point in points]
    start = describe_start(recipe)
    for point, own in zip(points, recipes, strict=True):
        check_point(point, own, start)
    model = start[-1]
    folder = Path(recipe.output_dir)
    if not resume and folder.exists() and any(folder.iterdir()):
        raise not_empty(folder)
    known = read_points(folder, recipe, model, points)
    for point in points:  # all of them before the first is written
        point.diverged = known.get(point.name, {}).get("diverged", False)
    state = PartialState()
    state.wait_for_everyone()  # every process has looked at the folder before a file of this session appears
    for number, (point, own) in enumerate(zip(points, recipes, strict=True), start=1):
        place = f"[{number}/{len(points)}] {point.name}"
        if point.diverged:
            _say(f"{place}: diverged, not run again")
            continue
        _say(f"{place}, {_best_so_far(points)}")
        try:
            record = finished(own, model) or execute(own, Path(own.output_dir).exists(), command, evaluate=False)[0]
            point.diverged = not math.isfinite(record["selection_score"])
            if not point.diverged:
                point.score, point.selected_step = record["selection_score"], record["selected_step"]
        except Diverged as error:
            point.diverged = True
            _say(f"{place}: {error}")
        if state.is_main_process:
            shutil.rmtree(Path(own.output_dir) / f"seed-{own.seeds[0]}" / "checkpoints", ignore_errors=True)
            write(recipe, model, points, None, folder)
        state.wait_for_everyone()
        check_data(folder, points)
    best = best_of(points)
    if state.is_main_process:
        write(recipe, model, points, best, folder)
        header, rows = table_of(points, best)
        print_table(f"{recipe.task}, sweep", (header, rows), [], f"{folder}/sweep.json, md, csv, png", len(header) - 2)
    _say(tie_of(points, best) + f"{best.name} is taken, and run with {_counted(len(recipe.seeds), 'seed')}")
    execute(recipe_of(recipe, best, final=True), (folder / "recipe.yaml").is_file(), command)


def points_of(recipe: Any) -> list[Point]:
    """The points of a recipe's grid, the last field changing fastest.

    Raises ValueError for a recipe without a grid or without development scores, for fields that cannot be swept, and
    for fields with no value or one given twice.
    """
    grid = getattr(recipe, "sweep", None)
    if not grid:
        lacks = "its `sweep` is empty" if grid is not None else f"recipes of kind {recipe.kind} have no `sweep`"
        raise ValueError(
            f"--sweep is given, and {lacks}. There is nothing to try. Name fields and values, as in "
            "sweep={training.learning_rate: [1e-5, 2e-5]}, or leave --sweep out."
        )
    if recipe.selection == "last":
        raise ValueError(
            "--sweep is given, and selection is last: no development score would say which point is best, and "
            "evaluated rows may not. Use selection=source_dev or selection=mean_dev, or leave --sweep out."
        )
    for field, values in grid.items():
        if field.partition(".")[0] not in SWEPT:
            raise ValueError(
                f"sweep names {field}. Points that differ in it would have other data or be scored by something else, "
                f"and could not be compared. Sweep over fields of {', '.join(SWEPT)}."
            )
        shown = [json.dumps(value) for value in values]
        if not values or len(set(shown)) < len(shown):
            raise ValueError(
                f"sweep.{field} is {values}. Each value is a point of its own. Name one or more, and each once."
            )
    last_parts = [field.rpartition(".")[2] for field in grid]
    names = [short if last_parts.count(short) == 1 else field for field, short in zip(grid, last_parts, strict=True)]
    return [
        Point(
            dict(zip(grid, values, strict=True)),
            ",".join(f"{name}={_shown(value)}" for name, value in zip(names, values, strict=True)),
        )
        for values in itertools.product(*grid.values())
    ]


def recipe_of(recipe: Any, point: Point, final: bool = False) -> Any:
    """The recipe of a point: with its values, and unless it is `final` one seed and a folder of its own, and no model
    is kept. Raises ValueError for fields that are not there and values of a wrong type.
    """
    own = change_recipe(recipe, [f"{field}={_shown(value)}" for field, value in point.values.items()])
    if final:
        return own
    folder = str(Path(recipe.output_dir) / FOLDER / point.name)
    return dataclasses.replace(own, output_dir=folder, seeds=recipe.seeds[:1], save_models=False, sweep={})


def check_point(point: Point, recipe: Any, start: tuple[str, Any, Any, dict[str, Any]]) -> None:
    """Raises ValueError, before anything is run, for a point that its kind of task, this machine or the model refuses.

    `start` is the model's, as `describe_start` returns it.
    """

    from finetuning.checkpoints import check_positions
    from finetuning.seeds import check_hardware
    from finetuning.tasks.question_answering.windows import windowing
    from finetuning.trainer import check_setting

    path, config, tokenizer, _ = start
    try:
        check_hardware(recipe.training.precision)
        check_setting(recipe, task_module(recipe.kind).KIND)
        check_positions(recipe.max_length, config, path)
        if recipe.kind == "question_answering":
            longest = (recipe.max_question_length, recipe.max_answer_length)
            windowing(tokenizer, recipe.max_length, recipe.doc_stride, *longest)
    except ValueError as error:
        raise ValueError(f"sweep, {point.name}: {error}") from None


def read_points(folder: Path, recipe: Any, model: dict[str, Any], points: list[Point]) -> dict[str, dict[str, Any]]:
    """The points of an earlier session by name; none where there was none.

    Raises ValueError where output_dir holds a run that is not one of the points, or a sweep of another recipe, seed or
    model.
    """
    earlier = _read(folder / "sweep.json")
    if "recipe" not in earlier:  # of an older version, which did not say what had diverged
        earlier = {}
    else:
        check_same_sweep(folder, earlier, recipe, model)
        if earlier["seed"] != recipe.seeds[0]:
            raise ValueError(
                f"{folder} holds a sweep with seed {earlier['seed']}, and the first of seeds is {recipe.seeds[0]}. "
                f"Points of two seeds cannot be compared. Put {earlier['seed']} first, or name another output_dir."
            )
    if (folder / "recipe.yaml").is_file():
        started = read_yaml(folder / "recipe.yaml")
        if not any(all(_at(started, name) == value for name, value in point.values.items()) for point in points):
            values = ", ".join(f"{name} {_at(started, name)}" for name in recipe.sweep)
            raise ValueError(
                f"{folder} holds a run with {values}, which is no point of the sweep. The best point would be run "
                "where its results are. Name another output_dir, or add these values to the sweep."
            )
    return {point["name"]: point for point in earlier.get("points", [])}


def check_same_sweep(folder: Path, found: dict[str, Any], recipe: Any, model: dict[str, Any]) -> None:
    """Raises ValueError where the sweep `found` in a folder is of another model, or of another recipe in fields that
    it does not try."""
    from finetuning.run_folder import changes_that_count, check_same_start, check_same_weights

    if changes := changes_that_count(found["recipe"], _comparable(recipe), {*found["fields"], *recipe.sweep}):
        raise ValueError(
            f"{folder} holds a sweep of another recipe: {'; '.join(changes)}. Its points could not be compared with "
            "this one's. Give the recipe it was started with, or name another output_dir."
        )
    check_same_weights(folder, recipe.model, found["model"]["fingerprint"], model["fingerprint"])
    check_same_start(folder, found["model"], model)


def check_data(folder: Path, points: list[Point]) -> None:
    """Raises ValueError where points have not the data of the first one that has begun."""
    from finetuning.run_folder import check_same_data

    runs = {path: _read(path / "run.json") for path in (folder / FOLDER / point.name for point in points)}
    begun = {path: run["data"] for path, run in runs.items() if run}
    first = next(iter(begun), None)
    for path, data in begun.items():
        check_same_data(first, begun[first], data, f"Restore them and remove {path} or what was trained on others")


def finished(recipe: Any, model: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a point that was run to its end, of this very recipe and model; else None.

    Raises ValueError where it was of another recipe, or the model's weights have changed since.
    """
    from finetuning.run_folder import RunFolder

    if not (Path(recipe.output_dir) / f"seed-{recipe.seeds[0]}" / "scores.json").is_file():
        return None
    return RunFolder(recipe, model, resume=True).finished(recipe.seeds[0])


def best_of(points: list[Point]) -> Point:
    """The point with the best development score, the first of equal ones. Raises ValueError where all diverged."""
    scored = [point for point in points if point.score is not None]
    if not scored:
        raise ValueError(
            f"All {len(points)} points of the sweep diverged: no learning rate or warm-up of them fits. There is "
            "nothing to run. Lower training.learning_rate in `sweep`, in another output_dir."
        )
    return max(scored, key=lambda point: point.score)


def tie_of(points: list[Point], taken: Point) -> str:
    """Says that other points are as good as the one that is taken; empty where none is."""
    equal = sum(point.score == taken.score for point in points)
    return f"{equal} points have the best score, and the first of them is taken: it is no choice. " if equal > 1 else ""


def stamp(recipe: Any, model: dict[str, Any], protocol: dict[str, Any]) -> dict[str, Any]:
    """What a run's protocol says of the sweep that chose its values: `{"sweep": {fields, points, score}}`.

    Empty where there was none in its folder, it chose other values, or it was of another recipe or model. Raises
    ValueError where it was of other data.
    """
    from finetuning.run_folder import check_same_data, data_of

    folder = Path(recipe.output_dir)
    found = _read(folder / "sweep.json")
    values = dataclasses.asdict(recipe)
    if not found.get("taken") or "recipe" not in found:
        return {}
    if any(_at(values, name) != value for name, value in found["taken"].items()):
        return {}
    try:
        check_same_sweep(folder, found, recipe, model)
    except ValueError:
        return {}
    taken = next(point for point in found["points"] if point["values"] == found["taken"])
    point = folder / FOLDER / taken["name"]
    check_same_data(point, _read(point / "run.json").get("data", {}), data_of(protocol))
    return {"sweep": {"fields": found["fields"], "points": len(found["points"]), "score": taken["score"]}}


def write(recipe: Any, model: dict[str, Any], points: list[Point], taken: Point | None, folder: Path) -> None:
    """Writes sweep.{json,md,csv} and, once every point has run, sweep.png; `taken` is None until then."""
    record = {
        "format": FORMAT,
        "task": recipe.task,
        "setting": recipe.setting,
        "selection": recipe.selection,
        "seed": recipe.seeds[0],
        "model": model,
        "recipe": _comparable(recipe),
        "fields": recipe.sweep,
        "taken": taken and taken.values,
        "points": [dataclasses.asdict(point) for point in points],
    }
    rows = [
        {
            "task": recipe.task,
            **point.values,
            "seed": recipe.seeds[0],
            "score": point.score,
            "selected_step": point.selected_step,
            "diverged": point.diverged,
            "taken": point is taken,
        }
        for point in points
    ]
    title = f"{recipe.task} ({recipe.setting}), sweep"
    lines = [f"# {title}", "", *markdown_table(table_of(points, taken)), ""]
    lines += [f"Development scores in percent (selection: {recipe.selection}), seed {recipe.seeds[0]}.", ""]
    folder.mkdir(parents=True, exist_ok=True)
    if taken:
        plot(recipe, points, taken, folder / "sweep.png", title)
        lines += [tie_of(points, taken).strip(), ""] if tie_of(points, taken) else []
        lines += ["![development scores](sweep.png)", ""]
    write_files(record, "\n".join(lines), rows, folder, "sweep")


def table_of(points: list[Point], taken: Point | None) -> Table:
    """Header and rows: the values, the development score, and which point was taken."""
    rows = []
    for point in points:
        score = "diverged" if point.diverged else "" if point.score is None else f"{point.score:.2f}"
        rows.append([*map(_shown, point.values.values()), score, "taken" if point is taken else ""])
    return [*points[0].values, "dev score", ""], rows


def plot(recipe: Any, points: list[Point], taken: Point, path: Path, title: str) -> None:
    """Development scores over the values of the field that has most of them, a line for each choice of the others."""
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt

    from finetuning.results.layer_curves import MARKERS

    axis = max(recipe.sweep, key=lambda name: len(recipe.sweep[name]))
    values = recipe.sweep[axis]
    is_numeric = all(isinstance(value, (int, float)) for value in values)
    places = {_shown(value): place for place, value in enumerate(sorted(values) if is_numeric else values)}
    lines: dict[str, dict[int, float]] = {}
    for point in points:
        others = ", ".join(f"{name.rpartition('.')[2]} {_shown(v)}" for name, v in point.values.items() if name != axis)
        if point.score is not None:
            lines.setdefault(others, {})[places[_shown(point.values[axis])]] = point.score
    figure, axes = plt.subplots(figsize=(max(5.0, 1.8 + 0.9 * len(places)), 3.6), layout="constrained")
    for number, (label, scores) in enumerate(lines.items()):
        scores = dict(sorted(scores.items()))
        axes.plot(list(scores), list(scores.values()), marker=MARKERS[number % len(MARKERS)], markersize=4, label=label)
    style = dict(marker="o", markersize=13, markerfacecolor="none", markeredgecolor="black", linestyle="none")
    axes.plot(places[_shown(taken.values[axis])], taken.score, label="taken", **style)
    axes.set_xticks(range(len(places)), list(places))
    axes.set_xlabel(axis)
    axes.set_ylabel("development score (%)")
    axes.grid(axis="y", linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7, frameon=False, markerscale=0.6)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _read(file: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where there is none."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _comparable(recipe: Any) -> dict[str, Any]:
    """The fields of a recipe that figures depend on."""
    from finetuning.run_folder import MAY_CHANGE

    return {name: value for name, value in dataclasses.asdict(recipe).items() if name not in MAY_CHANGE}


def _shown(value: Any) -> str:
    """A value as an override and a table have it: 1e-05, bf16, [0.9, 0.98]."""
    return value if isinstance(value, str) else json.dumps(value)


def _at(values: Any, name: str) -> Any:
    """What a recipe's values hold at a dotted name; None where it is not there."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, dict) else values[int(part)]
    return values


def _best_so_far(points: list[Point]) -> str:
    if not any(point.score is not None for point in points):
        return "the first of them"
    best = best_of(points)
    return f"best so far {best.score:.2f} ({best.name})"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _say(text: str) -> None:
    from accelerate import PartialState

    if PartialState().is_main_process:
        print(f"sweep {text}", flush=True)
