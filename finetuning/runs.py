"""Runs one recipe many times, with another model or other values each time, and makes one table of all runs.

    python -m crosslingual_zoo.finetuning.runs --config finetuning/recipes/metaxlm/amazon.yaml \\
        --vary source_language=en,de,fr,ja --model XLM=runs/xlm/model --model MetaXLM=runs/metaxlm/model \\
        --output runs/matrix
    python -m crosslingual_zoo.finetuning.runs --config finetuning/recipes/metaxlm/paper.yaml#mlqa \\
        --model=XLM=runs/xlm/checkpoints/step-{2000..40000..2000}/model --output runs/curves

Each model is run with each combination of the values of --vary. The first example is the transfer matrix of MetaXLM
(Figure 6), the second its curves over the steps of pre-training (Figure 5): of several models of one NAME, the table
has the steps.

The command writes runs.md, runs.csv (a row for each score) and runs.png into --output, and each run into its own folder
there. To resume, use the same command: finished runs are not run again, and an interrupted one is resumed from its last
checkpoint. If a run fails, the others are run. Several processes work on each run together, as in `accelerate launch
--multi_gpu -m crosslingual_zoo.finetuning.runs ...`; they end together after an error that is not the user's.
"""

import argparse
import contextlib
import itertools
import json
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas

from crosslingual_zoo.finetuning.page import as_cells, axis_label, joint_warnings, plot_title, print_table, write_page
from crosslingual_zoo.finetuning.plots import plot_heat_map, plot_lines
from crosslingual_zoo.finetuning.recipe import Recipe, TaskRecipe
from crosslingual_zoo.finetuning.results import GAP, OTHERS, Results, load_results, read_results, with_deviation
from crosslingual_zoo.finetuning.tasks.registry import KINDS, kind_of, task_of
from crosslingual_zoo.zoo_core.command_line import SAME_COMMAND, CommandParser, user_errors
from crosslingual_zoo.zoo_core.console import quiet_libraries, say_loading
from crosslingual_zoo.zoo_core.processes import received, start_processes, stop_signals
from crosslingual_zoo.zoo_core.provenance import read_json
from crosslingual_zoo.zoo_core.recipes import change_recipe, load_recipe
from crosslingual_zoo.zoo_core.run_folders import FAILURE, not_own, run_lock

Keys = dict[str, Any]  # what a run differs in, by the name of the column
ALWAYS_RESUMED = "accepted for job queues that always add it: a run in the folder is resumed with and without it"
# Fields of the training and of the input's length. Others would change the rows of a point, or what scores measure.
SWEPT = ("training", "max_length", "doc_stride", "evaluate_every_steps")


def run_all(recipes: dict[str, TaskRecipe], command: list[str]) -> dict[str, str]:
    """Runs the recipes that have no results yet, in their order; returns why some failed, by name.

    Every process returns when all have.
    """
    from accelerate import PartialState
    from accelerate.utils import release_memory

    from crosslingual_zoo.finetuning import training

    failed: dict[str, str] = {}
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        folder = Path(recipe.output_dir)
        with noted_failure(name, folder, failed):
            is_done = is_finished(recipe)
            if PartialState().is_main_process:
                done = ", finished before" if is_done else ""
                print(f"[{number}/{len(recipes)}] {name}{done}: {folder}", flush=True)
            if not is_done:
                with run_lock(folder):
                    training.run(task_of(recipe), (folder / "run.json").is_file(), command)
        release_memory()  # of a failed run: here, no traceback holds its model any more
    PartialState().wait_for_everyone()
    return failed


@contextlib.contextmanager
def noted_failure(name: str, folder: Path, failed: dict[str, str]) -> Iterator[None]:
    """Makes any error of a run one line, and its entry in `failed`, so that other runs follow. Signals stop all.

    Errors of users are ValueErrors, in all processes, and errors of the system. The traceback of any other error is
    written to failure.txt in the run's folder.
    """
    try:
        (folder / FAILURE).unlink(missing_ok=True)
        yield
        return
    except Exception as error:
        reason = survived(error)
        if not isinstance(error, (ValueError, OSError)):
            reason += f" (traceback in {folder / FAILURE})"
            with contextlib.suppress(OSError):  # a full disk
                folder.mkdir(parents=True, exist_ok=True)
                (folder / FAILURE).write_text(traceback.format_exc(), encoding="utf-8")
    failed[name] = reason
    print(f"{name} failed: {reason}", file=sys.stderr)


def survived(error: Exception) -> str:
    """Returns an error as one line if other runs can follow, and else raises it.

    None follows after a signal. Of several processes, only one may have an error that is no ValueError, while the
    others wait for it in the middle of a step: it ends them all.
    """
    from accelerate import PartialState

    is_of_all = PartialState().num_processes == 1 or isinstance(error, ValueError)
    if received() or not is_of_all:
        raise error
    if isinstance(error, (ValueError, OSError)):
        return str(error)
    return traceback.format_exception_only(error)[0].partition("\n")[0]


def is_finished(recipe: TaskRecipe) -> bool:
    """Whether the folder of a recipe has results of all its seeds, and the models that it asks for.

    Raises ValueError for a model that cannot be read, and if the run in the folder has another recipe or other weights.
    """
    from crosslingual_zoo.finetuning.run_folder import RunFolder
    from crosslingual_zoo.finetuning.training import check_hardware

    check_hardware(recipe.precision)
    start, results = task_of(recipe).begin(), Path(recipe.output_dir) / "results.json"
    if not results.is_file():
        return False
    folder = RunFolder(recipe, start.identity, resume=True)
    return load_results(results)["seeds"] == recipe.seeds and not folder.without_model()


def sweep(recipe: Recipe, resume: bool, command: list[str]) -> None:
    """Runs every combination of the values in `sweep` with the first seed, then the best one with all seeds.

    A point is a run in <output_dir>/sweep/<point>, scored on the development rows that `selection` names. Evaluated
    rows are predicted only with the best point: of equal scores the one with the lower loss, then the first. A point
    that diverges is never the best. The results say what it was chosen from.

    Raises ValueError for a recipe that cannot be swept, for a folder that is not empty without `resume` or holds
    another run, if every point diverges, and, after all points, if one has failed: the best may be missing.
    """
    from accelerate import PartialState
    from accelerate.utils import release_memory

    from crosslingual_zoo.finetuning import training
    from crosslingual_zoo.finetuning.run_folder import not_empty

    folder = Path(recipe.output_dir)
    points = {name: change_recipe(recipe, overrides) for name, overrides in points_of(recipe).items()}
    for point in points.values():
        task_of(point).begin()
    if not resume and (held := not_own(folder, "")):
        raise not_empty(folder, held)
    PartialState().wait_for_everyone()  # every process has looked at the folder before a file of this session appears
    figures: dict[str, list[float | None]] = {}  # by point: score and loss on the development rows
    failed: dict[str, str] = {}
    for name, point in points.items():
        place = folder / "sweep" / name
        point = replace(point, output_dir=str(place), save_models=False, seeds=recipe.seeds[:1], sweep={})
        with noted_failure(name, place, failed):
            is_begun = (place / "run.json").is_file()
            try:
                records = training.run(task_of(point), is_begun, command, evaluate=False)
                figures[name] = [records[0]["selection_score"], records[0].get("selection_loss")]
            except training.Diverged as error:
                print(f"{name}: {error}", file=sys.stderr)
        release_memory()
    if failed:
        raise ValueError(
            f"{', '.join(failed)} failed, see above. Add --resume to run only these again, or leave their values out "
            "of `sweep`."
        )
    finite = pandas.DataFrame.from_dict(figures, "index", dtype=float, columns=["score", "loss"]).dropna(subset="score")
    if finite.empty:
        raise ValueError(f"All {len(points)} points of the sweep diverged. Lower training.learning_rate in `sweep`.")
    best = finite.round({"score": 6}).sort_values(["score", "loss"], ascending=[False, True], kind="stable").index[0]
    if PartialState().is_main_process:
        rows = []
        for name, score, loss in finite.itertuples():
            mark = "taken" if name == best else ""
            rows.append([name, f"{score:.2f}", f"{loss:.3f}", mark])
        print_table(f"{recipe.task}, sweep", (["point", "dev score", "dev loss", ""], rows), [])
    chosen_from = {"fields": recipe.sweep, "points": len(points), "score": float(finite.loc[best, "score"])}
    training.run(task_of(points[best]), (folder / "recipe.yaml").is_file(), command, sweep=chosen_from)


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
    found = {}
    for values in itertools.product(*grid.values()):
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        overrides = [f"{field}={text}" for field, text in zip(grid, texts, strict=True)]
        found[",".join(overrides).replace("training.", "")] = overrides
    return found


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    options = read_options(argv)
    with stop_signals(SAME_COMMAND), user_errors():
        points = list(recipes_of(options))
        recipes = {Path(recipe.output_dir).relative_to(options.output).as_posix(): recipe for _, recipe in points}
        if len({*recipes} - {"."}) < len(points):
            raise ValueError(f"{len(points)} runs need a folder each: name models or values, each once.")
        say_loading("the models")
        from accelerate import PartialState

        quiet_libraries()
        start_processes()
        with run_lock(options.output):
            list(map(is_finished, recipes.values()))  # raises errors before the first run
            if failed := run_all(
                recipes, ["crosslingual_zoo.finetuning.runs", *(sys.argv[1:] if argv is None else argv)]
            ):
                raise ValueError(f"{', '.join(failed)} failed, see above. The same command runs only these again.")
            if PartialState().is_main_process:
                write([(keys, read_results(recipe.output_dir)) for keys, recipe in points], options.output)


def read_options(argv: list[str] | None) -> argparse.Namespace:
    """Returns the parsed command line."""

    def named(text: str) -> tuple[str, str]:
        if not (match := re.fullmatch(r"([^=/.][^=/]*)=(.+)", text)):  # the name is also a folder's
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
        return match[1], match[2]

    parser = CommandParser(description=__doc__)
    several = dict(action="append", type=named, default=[])
    parser.add_argument("--config", required=True, metavar="FILE", help="the recipe")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder of the runs and the table")
    parser.add_argument("--resume", action="store_true", help=ALWAYS_RESUMED)
    text = "a model; checkpoints of one run have one NAME"
    parser.add_argument("--model", metavar="NAME=MODEL", help=text, **several)
    parser.add_argument("--vary", metavar="FIELD=A,B", help="a field of the recipe and its values", **several)
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="sets a field of the recipe in every run")
    return parser.parse_intermixed_args(argv)


def recipes_of(options: argparse.Namespace) -> Iterable[tuple[Keys, TaskRecipe]]:
    """What each run differs in, and its recipe. Raises ValueError for a recipe that does not fit."""
    recipe_class = KINDS[kind_of(["--config", options.config, *options.overrides])]
    kept, names = ["save_models=false"] if recipe_class.is_trained else [], [name for name, _ in options.model]
    values = [[(field, value) for value in text.split(",")] for field, text in options.vary]
    for (name, model), *point in itertools.product(options.model or [("", "")], *values):
        keys: Keys = {"run": name} if name else {}
        keys |= {"step": step_of(Path(model))} if names.count(name) > 1 else {}
        keys |= point
        folder = options.output / "/".join(str(value).replace("/", "-") for value in keys.values())
        own = [f"{field}={value}" for field, value in point] + ([f"model={model}"] if name else [])
        overrides = [*kept, *options.overrides, *own, f"output_dir={folder}"]
        yield keys, load_recipe(recipe_class, options.config, overrides)


def step_of(model: Path) -> int:
    """The step of a model of pre-training, in checkpoints/step-N/model or model of its run; ValueError for another."""
    match = re.fullmatch(r"step-(\d+)", model.parent.name)
    step = match[1] if match else read_json(model.parent / "run.json", {}).get("steps")
    if step is None:
        raise ValueError(f"{model} is no model of a pre-training run, so its step is unknown. Give it its own NAME.")
    return int(step)


def write(found: list[tuple[Keys, Results]], folder: Path) -> None:
    """Writes runs.md, runs.csv and runs.png, and shows the table."""
    keys, first = found[0]
    path = folder / "runs.png"
    runs = {", ".join(map(str, own.values())): results for own, results in found}
    if all("step" in own for own, _ in found):
        shown = first.with_average[-1:] if first.transfer_gap is None else [OTHERS, first["source_language"], GAP]
        panels: dict[str, dict[str, dict[int, Any]]] = {name: {} for name in shown}
        for (own, results), name in itertools.product(found, shown):
            line = ", ".join(value for key, value in own.items() if key != "step")
            panels[name].setdefault(line, {})[own["step"]] = results.of(name)
        title = plot_title(runs, "by step of pre-training")
        picture = plot_lines(panels, path, title, "pre-training steps", axis_label(first))
    else:
        means = {run: {name: of["mean"] for name, of in results.languages.items()} for run, results in runs.items()}
        title = plot_title(runs, "by run and language, in %")
        picture = plot_heat_map(pandas.DataFrame(means).T, path, title, "evaluated on", ", ".join(keys))
    columns: dict[str, dict[str, str]] = {}
    for run, results in runs.items():
        for name, entry in results.figures.items():
            columns.setdefault(name, {})[run] = with_deviation(entry)
    frames, table = [results.frame(**own) for own, results in found], as_cells(", ".join(keys), columns)
    write_page(folder / "runs", first.title, table, {"Warnings": joint_warnings(runs)}, picture, frames)


if __name__ == "__main__":
    main()
