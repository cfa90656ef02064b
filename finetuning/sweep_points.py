"""The grid of a recipe's `sweep`, and what the results of a run say of the sweep that chose its values."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

from finetuning.recipe import Recipe, TaskRecipe
from finetuning.results.protocol import Protocol
from zoo_core.provenance import read_json
from zoo_core.recipes import change_recipe

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
            ",".join(f"{name}={shown(value)}" for name, value in zip(names, values, strict=True)),
        )
        for values in itertools.product(*grid.values())
    ]


def recipe_of(recipe: Recipe, point: Point, final: bool = False) -> Recipe:
    """The recipe of a point: with its values, and unless it is `final` one seed and a folder of its own, and no model
    is kept. Raises ValueError for fields that are not there and values of a wrong type.
    """
    own = change_recipe(recipe, [f"{field}={shown(value)}" for field, value in point.values.items()])
    if final:
        return own
    folder = str(Path(recipe.output_dir) / FOLDER / point.name)
    kept = dict(save_models=False, push_to_hub=None)
    return dataclasses.replace(own, output_dir=folder, seeds=recipe.seeds[:1], sweep={}, **kept)


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
    """A value as an override and a table have it: 1e-05, bf16, [0.9, 0.98]."""
    return value if isinstance(value, str) else json.dumps(value)


def value_at(values: Any, name: str) -> Any:
    """What a recipe's values hold at a dotted name; None where it is not there."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, dict) else values[int(part)]
    return values
