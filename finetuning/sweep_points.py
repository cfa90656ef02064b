"""The grid of a recipe's `sweep`, and the facts about a sweep in the results of a run."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

from finetuning.recipe import Recipe, TaskRecipe
from finetuning.results.protocol import Protocol
from zoo_core.provenance import read_json
from zoo_core.recipes import change_recipe

# Fields that only change the training. Others would change the data of a point, or what its scores measure.
SWEPT = ("training", "max_length", "doc_stride", "evaluate_every_steps")
FOLDER = "sweep"
REMOVABLE = "Restore the file, or remove it: --sweep --resume writes it again."


@dataclasses.dataclass
class Point:
    """One combination of values, by dotted field, and its outcome."""

    values: dict[str, Any]
    name: str  # of its folder, and in messages
    score: float | None = None  # on the development rows, in percent; None before the run, and if it diverged
    selected_step: int | None = None
    diverged: bool = False


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
            raise ValueError(f"sweep.{field} is {values}. Name at least one value, and each once.")
    last_parts = [field.rpartition(".")[2] for field in grid]
    names = [short if last_parts.count(short) == 1 else field for field, short in zip(grid, last_parts, strict=True)]
    return [
        Point(
            dict(zip(grid, values, strict=True)),
            ",".join(f"{name}={shown(value)}" for name, value in zip(names, values, strict=True)),
        )
        for values in itertools.product(*grid.values())
    ]


def recipe_of(recipe: Recipe, point: Point, final: bool = False) -> Recipe:
    """Returns the recipe of a point, with its values. Unless it is `final`, it has one seed and its own folder, and
    saves no model. Raises ValueError for unknown fields and values of a wrong type.
    """
    own = change_recipe(recipe, [f"{field}={shown(value)}" for field, value in point.values.items()])
    if final:
        return own
    folder = str(Path(recipe.output_dir) / FOLDER / point.name)
    kept = dict(save_models=False, push_to_hub=None)
    return dataclasses.replace(own, output_dir=folder, seeds=recipe.seeds[:1], sweep={}, **kept)


def sweep_facts(recipe: TaskRecipe, model: dict[str, Any], protocol: Protocol) -> dict[str, Any] | None:
    """Returns the facts about the sweep for a run's protocol: fields, points and score.

    Returns None if there was no sweep in its folder, or one with other values, another recipe or another model. Raises
    ValueError if the sweep had other data.
    """
    from finetuning.run_folder import check_same_data, check_same_recipe, data_of

    folder = Path(recipe.output_dir)
    found, values = read_json(folder / "sweep.json", {}, advice=REMOVABLE), dataclasses.asdict(recipe)
    taken = next((point for point in found.get("points", []) if point["values"] == found["taken"]), None)
    if not taken or found["model"]["fingerprint"] != model["fingerprint"]:
        return None
    if any(value_at(values, name) != value for name, value in taken["values"].items()):
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


def shown(value: Any) -> str:
    """Returns a value as written in overrides and tables: 1e-05, bf16, [0.9, 0.98]."""
    return value if isinstance(value, str) else json.dumps(value)


def value_at(values: Any, name: str) -> Any:
    """Returns the value at a dotted name of a recipe; None if there is none."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, dict) else values[int(part)]
    return values
