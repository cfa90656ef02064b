"""Collects provenance/ of a model folder: its pre-training run, or that of its base, and the results of its tasks.

Only runs and results of these weights, or of the weights that they were fine-tuned from, are collected. Facts of the
machine are left out.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from finetuning.page import draw
from finetuning.results import Results, load_results
from finetuning.suite import KIND as SUITE
from hub_cards.record import CURVES, FOLDER, Record, Result, check_record, forget_paths, read_record
from zoo_core.provenance import folder_fingerprint, read_json
from zoo_core.recipes import read_yaml

FIGURE = "scores.png"  # what a run writes next to its results.json


def collect(record: Record, folder: Path, results: Iterable[str | Path], run_dir: str | Path | None) -> Record:
    """The record with these results and with the pre-training run in `run_dir`, or in the folder above the model.

    The results of the run that fine-tuned the model are always collected, if they are in a folder above it, and so is
    the record of its base, if that is still in its place. Results replace earlier ones of the same run folder, task,
    setting and seeds; others are kept. `results` are files, folders of runs and folders of suites.

    Raises ValueError for results that are missing, illegible, or of other weights, and for a run of another model.
    """
    run_folder = Path(run_dir) if run_dir else folder.resolve().parent
    if found := _pretraining(folder, run_folder, record.weights, is_named=bool(run_dir)):
        recipe, run, figures = found
        is_local = _local_names(record, _started_in(run_folder, recipe), run)
        figures = {path: bytes_ for path, bytes_ in record.figures.items() if path != CURVES} | figures
        record = replace(
            record,
            recipe=forget_paths(recipe, is_local),
            run=forget_paths(run, is_local),
            figures=figures,
            licenses=record.licenses | forget_paths(recipe.get("licenses") or {}, is_local),
        )
    collected: set[str] = set()
    paths, own = [*results], folder.resolve().parents[1] / "results.json"
    if own.is_file() and _is_own(own, folder):  # of the run that fine-tuned the model
        paths.append(own)
    for file, content in _found_results(paths):
        _check_weights(file, content, folder, record.weights)
        about = {"own": _is_own(file, folder), "folder": _shown_folder(file.parent)}
        sessions = read_json(file.parent / "run.json", {}).get("sessions", [])
        about["date"] = sessions[-1]["started"][:10] if sessions else None
        if about["own"]:
            about["seed"] = int(folder.resolve().parent.name.removeprefix("seed-"))
            record = _with_base(record, content["model"], file.parent)
        record, name = _with_result(record, content, about, file.parent, collected)
        collected.add(name)
    return record


def _with_base(record: Record, model: dict[str, Any], run_folder: Path) -> Record:
    """The record with what is known of the model that a run fine-tuned, where that is still in its folder."""
    recipe_file = run_folder / "recipe.yaml"
    started_in = _started_in(run_folder, read_yaml(recipe_file)) if recipe_file.is_file() else None
    folder = (started_in or Path()) / model["folder"]
    if not (folder / "config.json").is_file() or folder_fingerprint(folder) != model["fingerprint"]:
        return record
    known = Record(model["fingerprint"]) if check_record(folder) else read_record(folder)
    base = collect(known, folder, (), None)
    return replace(
        record,
        recipe=base.recipe or record.recipe,
        run=base.run or record.run,
        figures=record.figures | {path: bytes_ for path, bytes_ in base.figures.items() if path == CURVES},
        licenses=base.licenses | record.licenses,
        base_model=record.base_model or base.repo,
    )


def _started_in(run_folder: Path, recipe: dict[str, Any]) -> Path | None:
    """The folder in which a run was started, by its output_dir; the recipe's relative paths begin there."""
    output = Path(recipe.get("output_dir") or "/")
    place = run_folder.resolve()
    if output.is_absolute() or place.parts[-len(output.parts) :] != output.parts:
        return None
    return Path(*place.parts[: -len(output.parts)])


def _local_names(record: Record, started_in: Path | None, facts: dict[str, Any]) -> Callable[[str], bool]:
    """Whether a path that could be an id of the Hub is a folder: seen from here, or from where the run was started, or
    as the run wrote down, or as it was collected before."""
    collected = json.dumps([record.recipe, record.run, [result.content for result in record.results]])
    known = set(re.findall(r'"\./([^"]+)"', collected))
    model, start = facts.get("model") or {}, facts.get("meta_pretrained") or {}
    known |= {start["path"]} if start.get("fingerprint") else set()
    known |= {model["folder"]} if str(model.get("fingerprint")).startswith("sha256:") else set()
    places = [Path(), *([started_in] if started_in else [])]
    return lambda path: path in known or any((place / path).exists() for place in places)


def _pretraining(
    folder: Path, run_folder: Path, weights: str, is_named: bool
) -> tuple[dict[str, Any], dict[str, Any], dict[str, bytes]] | None:
    """Recipe, run facts and curves of the run that made the model, if there is one."""
    made = run_folder / "model"
    if not is_named and made.resolve() != folder.resolve():
        return None
    recipe = read_yaml(run_folder / "recipe.yaml") if (run_folder / "recipe.yaml").is_file() else {}
    if "phases" not in recipe:
        if is_named:
            raise ValueError(f"{run_folder} has no recipe.yaml with phases. Name the folder of a pre-training run.")
        return None
    if is_named and not (made.is_dir() and folder_fingerprint(made) == weights):
        raise ValueError(f"The run in {run_folder} made another model. Name the one that made {folder}.")
    facts, curves = read_json(run_folder / "run.json", {}), run_folder / "curves.png"
    return recipe, facts, {CURVES: curves.read_bytes()} if curves.is_file() else {}


def _found_results(paths: Iterable[str | Path]) -> Iterable[tuple[Path, Results]]:
    """The results.json of each path: a file, the folder of a run, or that of a suite with a folder for each task."""
    found: dict[Path, tuple[Path, Results]] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise ValueError(f"Results not found: {path}. Relative paths start at {Path.cwd()}.")
        file = path / "results.json" if path.is_dir() else path
        known = _known(file)
        results = {file: known}
        if known is None or known["kind"] == SUITE:
            tasks = [task["name"] for task in (known or {}).get("suite", {}).get("tasks", [])]
            rank = {name: place for place, name in enumerate(tasks)}
            files = sorted(file.parent.glob("*/results.json"))
            files.sort(key=lambda task: rank.get(task.parent.name, len(rank)))
            results = {task: content for task in files if (content := _known(task))}
            if not results or (known is None and not path.is_dir()):
                raise ValueError(f"{path} is neither a results.json of finetuning/run.py nor a folder of results.")
        found |= {file.resolve(): (file, content) for file, content in results.items()}
    return found.values()


def _known(file: Path) -> dict[str, Any] | None:
    """What a results.json holds; None for a file that is none."""
    try:
        content = load_results(file)
        return content if content["kind"] == SUITE or content["model"]["fingerprint"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_weights(file: Path, content: Results, folder: Path, weights: str) -> None:
    """Raises ValueError for results of other weights, unless their run fine-tuned the model."""
    measured = content["model"]["fingerprint"]
    # results of several seeds' models name them all
    if weights not in measured.split("+") and not _is_own(file, folder):
        raise ValueError(
            f"{file} is of the weights {measured[:19]}, and {folder} has {weights[:19]}. Evaluate it again."
        )


def _is_own(file: Path, folder: Path) -> bool:
    """Whether the run of a results.json fine-tuned the model: <run>/seed-N/model."""
    seed_folder = folder.resolve().parent
    return re.fullmatch(r"seed-\d+", seed_folder.name) is not None and seed_folder.parent == file.resolve().parent


def _shown_folder(folder: Path) -> str:
    """The last two parts of a run's folder, which name a suite and its task; none of a home folder's own."""
    folder = folder.resolve()
    below = folder.relative_to(Path.home()) if folder.is_relative_to(Path.home()) else folder.relative_to("/")
    return str(Path(*below.parts[-2:]))


def _with_result(
    record: Record, content: dict[str, Any], about: dict[str, Any], run_folder: Path, collected: set[str]
) -> tuple[Record, str]:
    """The record with one more results.json, or with a new one in its place, and its name; those that were just
    `collected` keep theirs."""
    recipe_file = run_folder / "recipe.yaml"
    recipe = read_yaml(recipe_file) if recipe_file.is_file() else {}
    is_local = _local_names(record, _started_in(run_folder, recipe), content)
    shown = Results(forget_paths(content, is_local))
    name = _name(record, shown, about["folder"], collected)
    drawn = {f"{FOLDER}/figures/{name}-{plot}": bytes_ for plot, bytes_ in _plots(content, shown, run_folder).items()}
    result = Result(name, shown, figures=list(drawn), **about)
    old = next((result for result in record.results if result.name == name), None)
    gone = old.figures if old else []
    record = replace(
        record,
        results=[result if r is old else r for r in record.results] + ([] if old else [result]),
        figures={path: bytes_ for path, bytes_ in record.figures.items() if path not in gone} | drawn,
        licenses=record.licenses | forget_paths(recipe.get("licenses") or {}, is_local),
    )
    return record, name


def _name(record: Record, content: dict[str, Any], folder: str, collected: set[str]) -> str:
    """What a results.json is called: as the same one, or an earlier one of its run, was; else by its task."""

    def identity(content: dict[str, Any], folder: str) -> tuple:
        fields = (content["kind"], content["task"], content["setting"], content["protocol"].get("plug_in"))
        return (folder, *fields, tuple(content["seeds"]))

    this = identity(content, folder)
    same = [result.name for result in record.results if result.content == content]
    earlier = [r.name for r in record.results if identity(r.content, r.folder) == this and r.name not in collected]
    if same or earlier:
        return (same or earlier)[0]
    task = re.sub(r"[^\w.-]+", "-", content["task"]).strip("-.") or "task"
    taken = {result.name for result in record.results}
    names = (task if number == 1 else f"{task}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def _plots(content: dict[str, Any], shown: dict[str, Any], run_folder: Path) -> dict[str, bytes]:
    """The plots of a run; drawn anew where they would show a path of this machine."""
    if not (run_folder / FIGURE).is_file():
        return {}
    if not Path(content["model"]["folder"]).is_absolute():
        return {FIGURE: (run_folder / FIGURE).read_bytes()}
    with tempfile.TemporaryDirectory() as folder:
        draw(shown, Path(folder) / FIGURE)
        return {FIGURE: (Path(folder) / FIGURE).read_bytes()}
