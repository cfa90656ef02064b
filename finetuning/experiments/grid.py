"""A grid: runs one recipe many times, each with another model, language or value, and makes one table of all runs.

    python -m finetuning.tools.grid transfer_matrix --config finetuning/recipes/metaxlm/amazon.yaml \\
      --languages en de fr ja --model XLM=runs/xlm/model --model MetaXLM=runs/metaxlm/model --output runs/matrix

A grid is a YAML file with the fields of `Grid`. The files in this folder reproduce the papers' figures. `axes` are the
differences between the runs; `table` and `plot` say what is shown.
"""

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from omegaconf import MISSING

from finetuning.recipe import Recipe, TaskRecipe
from finetuning.results.published_rows import complete_published
from finetuning.tasks.registry import KINDS, kind_of
from zoo_core.provenance import read_json
from zoo_core.recipes import load_recipe, nearest, option

GRIDS = Path(__file__).parent
MODEL, RUN = "model", "run"  # options of the command line that name models

Keys = dict[str, Any]  # a run's value on each axis, by the name of the axis


@dataclass
class Axis:
    """One difference between the runs of a grid."""

    name: str = option(MISSING, "column of the joined table; {name} in the grid's fields is replaced by a run's value")
    given_by: str = option(
        "",
        "option of the command line with its values: model (NAME=PATH, once per model), run (NAME DIR ..., folders of "
        "pre-training; their checkpoints have the keys run, folder and step), or the name of any other list",
    )
    values: list[Any] = option([], "its values, if no option of the command line has them")
    fills: bool = option(False, "replace {name} in path, config and `where` of the recipe's tables")


@dataclass
class Table:
    """Rows, columns and tables of the results."""

    rows: str = option(MISSING, "name of a row, as in {run}, step {step}")
    corner: str = option("", "heading of the rows")
    columns: str = option("", "axis whose values are the columns; default: the scores in `figures`")
    tables: str = option("", "axis with one table per value")
    figures: list[Literal["average", "languages", "source", "others", "gap"]] = option(
        ["average"],
        "scores of a run: the average, each language, the source language, the mean of the others, the transfer gap",
    )
    differences: bool = option(False, "add each of `tables` minus the first one")
    average: bool = option(False, "add a last row with the mean over the rows")


@dataclass
class Plot:
    """A plot of the table."""

    kind: Literal["heat_maps", "bars", "lines"] = option("bars", "heat_maps of each table, bars by row, or lines")
    lines: str = option("", "for lines: axis with one line per value")
    x: str = option("", "for lines: horizontal axis")
    x_label: str = option("", "label of the horizontal axis: of the columns, or of the numbers below the lines")
    y_label: str = option("", "label of the rows of a heat map")


@dataclass
class Grid:
    """Runs of one recipe, and their table."""

    about: str = option("", "text of --help")
    name: str = option(MISSING, "name of the files that are written: <name>.json, md, csv and png")
    title: str = option(MISSING, "title of the page, after the recipe's task")
    axes: list[Axis] = option([], "differences between the runs; the last one changes fastest")
    set: list[str] = option([], "fields of the recipe that the grid sets, as field=value, with {name} of an axis")
    train_in: str = option("", "axis with the language that a run is fine-tuned on")
    evaluate_in: Literal["", "own", "all"] = option("", "languages to evaluate: the recipe's; own: train_in's; or all")
    needs_setting: str = option("", "setting that the recipe must have")
    published: bool = option(False, "show the scores of the recipe's `published`, by the names of the rows")
    run: str = option(MISSING, "name of a run, as in {run}, from {source}")
    folder: str = option(MISSING, "its folder below --output, as in {run}/from-{source}")
    table: Table = field(default_factory=Table)
    plot: Plot | None = option(None, "plot of the table")

    @property
    def alike(self) -> list[str]:
        """Returns the axes except the model's: runs with the same values on these differ only in their models."""
        return [axis.name for axis in self.axes if axis.given_by not in (MODEL, RUN)]


def load_grid(name: str) -> Grid:
    """Reads a grid: the name of a file in finetuning/experiments, or a path.

    Raises ValueError for a grid that does not exist, and for fields that name an axis that it does not have.
    """
    known = sorted(path.stem for path in GRIDS.glob("*.yaml"))
    path = Path(name) if Path(name).is_file() else GRIDS / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"{name} is neither a file nor one of {', '.join(known)}. {nearest(name, known)}")
    grid = load_recipe(Grid, str(path), [])
    axes = [axis.name for axis in grid.axes]
    if not axes:
        raise ValueError(f"{path} has no axes. Name the differences between the runs.")
    if empty := [axis.name for axis in grid.axes if not axis.given_by and not axis.values]:
        raise ValueError(f"{path}: axis {empty[0]} has no values. Set `values`, or set `given_by` to an option.")
    if grid.plot and grid.plot.kind == "lines" and not (grid.plot.lines and grid.plot.x):
        raise ValueError(f"{path}: plot.kind is lines, which needs plot.lines and plot.x. Name one axis for each.")
    keys = [*axes, *(["folder", "step"] if any(axis.given_by == RUN for axis in grid.axes) else [])]
    table, plot = grid.table, grid.plot or Plot()
    named = {"train_in": grid.train_in, "table.columns": table.columns, "table.tables": table.tables}
    for place, key in {**named, "plot.lines": plot.lines, "plot.x": plot.x}.items():
        if key and key not in keys:
            raise ValueError(f"{path}: {place} is {key}, and the axes are {', '.join(keys)}. {nearest(key, keys)}")
    return grid


def recipes_of(grid: Grid, options: argparse.Namespace) -> Iterator[tuple[Keys, TaskRecipe]]:
    """Yields the runs of a grid: the keys and the recipe of each.

    `options` has config, output, overrides and the values of each axis, by `given_by`. The fine-tuned models, which
    need much space, are only kept if an override asks for it.
    """
    recipe_class = KINDS[kind_of(["--config", options.config, *options.overrides])].recipe_class
    of_languages = grid.train_in or grid.published or any(axis.fills for axis in grid.axes)
    if of_languages and not issubclass(recipe_class, Recipe):
        fitting = [name for name, other in KINDS.items() if issubclass(other.recipe_class, Recipe)]
        kind = recipe_class.__dataclass_fields__["kind"].default
        raise ValueError(f"kind is {kind}, which has no language to be trained in. Use {', '.join(fitting)}.")
    keep = ["save_models=false"] if "save_models" in recipe_class.__dataclass_fields__ else []
    points = [points_of(axis, options) for axis in grid.axes]
    languages = list(dict.fromkeys(keys[grid.train_in] for axis in points for keys, _ in axis if grid.train_in in keys))
    for point in itertools.product(*points):
        keys = {name: value for own, _ in point for name, value in own.items()}
        overrides = [override for _, own in point for override in own]
        own = [*overrides, f"output_dir={options.output / filled(grid.folder, keys)}"]
        given = [*keep, *options.overrides, *(filled(text, keys) for text in grid.set), *own]
        recipe = load_recipe(recipe_class, options.config, given)
        complete_published(recipe)
        if grid.needs_setting and recipe.setting != grid.needs_setting:
            raise ValueError(
                f"setting is {recipe.setting}, and this grid needs another one. Use setting={grid.needs_setting}."
            )
        fill_tables(grid, recipe, keys)
        if grid.train_in:
            train_in(recipe, keys[grid.train_in])
        if grid.evaluate_in:
            evaluate_in(recipe, languages if grid.evaluate_in == "all" else [keys[grid.train_in]])
        if grid.published and recipe.published:
            figure = recipe.published.languages.get(filled(grid.table.rows, keys))
            of_run = dict(languages={keys[grid.train_in]: figure}, further={}, average=None, average_over=[])
            recipe.published = None if figure is None else replace(recipe.published, **of_run)
        yield keys, recipe


def published_of(grid: Grid, options: argparse.Namespace) -> Any:
    """Returns the whole `published` of the recipe if the grid shows it, or else None."""
    if not grid.published:
        return None
    recipe = load_recipe(Recipe, options.config, [*options.overrides, "model=any"])
    complete_published(recipe)
    return recipe.published


def points_of(axis: Axis, options: argparse.Namespace) -> list[tuple[Keys, list[str]]]:
    """Returns the values of an axis: the keys of each, and the overrides that it sets in the recipe."""
    if axis.given_by == MODEL:
        return [({axis.name: name}, [f"model={path}"]) for name, path in options.model.items()]
    if axis.given_by == RUN:
        return [
            ({axis.name: name, "folder": folder, "step": step}, [f"model={model}"])
            for name, folders in options.run.items()
            for folder, by_step in checkpoints_in_common(name, folders, options.steps).items()
            for step, model in by_step.items()
        ]
    return [({axis.name: value}, []) for value in axis.values or getattr(options, axis.given_by)]


def filled(text: str, keys: Keys) -> str:
    """Returns the text with a run's values in place of `{name}`."""
    for name, value in keys.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def fill_tables(grid: Grid, recipe: Any, keys: Keys) -> None:
    """Replaces `{name}` of axes in path, config or `where` of the recipe's tables. Raises ValueError if none has it."""
    own = {axis.name: keys[axis.name] for axis in grid.axes if axis.fills}
    if not own:
        return
    tables = [*recipe.train, *recipe.evaluation]
    texts = [text for table in tables for text in (table.path, table.config or "", *table.where.values())]
    if unused := [name for name in own if not any(f"{{{name}}}" in text for text in texts)]:
        raise ValueError(f"The recipe has no table with {{{unused[0]}}} in path, config or where. Add it to a table.")
    for table in tables:
        table.path, table.config = filled(table.path, own), table.config and filled(table.config, own)
        table.where = {column: filled(text, own) for column, text in table.where.items()}


def train_in(recipe: Recipe, language: str) -> None:
    """Makes `language` the source: keeps the training tables that have rows in it.

    Tables with `{language}` or a `language_column` are read in that language; others keep their language.
    Raises ValueError if no table is left.
    """
    from finetuning.data.rows import has_place_for_language

    kept = []
    for table in recipe.train:
        names = table.languages
        if has_place_for_language(table) or table.language_column:
            if not names or language in names:
                table.languages = [language]
                kept.append(table)
        elif language in (names or [recipe.source_language]):
            kept.append(table)
    if not kept:
        raise ValueError(
            f"No training table of the recipe has rows in {language}. Write {{language}} into its path or config, set "
            "language_column, or leave out that language."
        )
    recipe.train, recipe.source_language = kept, language


def evaluate_in(recipe: Recipe, languages: list[str]) -> None:
    """Evaluates these languages, in the recipe's order. Raises ValueError for one that the recipe does not have."""
    kept, missing = [], list(languages)
    for table in recipe.evaluation:
        open_to_all = table.language_column and not table.languages
        table.languages = [name for name in missing if open_to_all or name in table.languages]
        if table.languages:
            kept.append(table)
            missing = [name for name in missing if name not in table.languages]
    if missing:
        raise ValueError(f"The recipe evaluates no {', '.join(missing)}. Add it to evaluation.N.languages.")
    recipe.evaluation = kept


def checkpoints_in_common(name: str, folders: list[str], wanted: list[int]) -> dict[str, dict[int, Path]]:
    """Returns model folders by the name of a pre-training run's folder and by step, for the steps that all runs have.

    Raises ValueError for folders with the same name, a folder without checkpoints, and wanted steps that are missing.
    """
    found = {Path(folder).name: checkpoints_of(Path(folder)) for folder in folders}
    if len(found) < len(folders):
        raise ValueError(f"--run {name} has two folders with the same name: {', '.join(folders)}. Rename one.")
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
    """Returns the model folders of a pre-training run by step: its checkpoints, and its final model if it is later.

    Raises ValueError if there is none.
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
