"""What a card is made of, kept next to the weights in provenance/: recipe, run facts, results and figures.

Anybody with a copy of the folder can render its card again and look up every number. record.json names the weights that
all of it belongs to. It names no path of the machine that it was collected on.
"""

import json
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from finetuning.results import Results, load_results
from modeling.word_alignment import DEFAULT_METHOD
from zoo_core.provenance import folder_fingerprint, read_json, written_aside
from zoo_core.recipes import read_yaml
from zoo_core.tables import HUB_ID

FORMAT = 1
HUB = "https://huggingface.co"
FOLDER, INDEX = "provenance", "provenance/record.json"
RECIPE, RUN, RESULTS = "provenance/recipe.yaml", "provenance/run.json", "provenance/results"
FIGURES = "provenance/figures"
CURVES = f"{FIGURES}/curves.png"
REMEDY = "Collect it again: hub_cards.card with --run, --results and --overwrite."
RESULT_FIELDS = ("folder", "own", "date", "seed", "figures")  # of a Result, in record.json
MACHINE_KEYS = ("is_local", "local_files_only")
# A path begins where no word, URL or other path continues, and is not the end of a tag such as </s>.
ABSOLUTE = re.compile(
    r"(?<![\w:/.<\\-])(?:file://)?(?:~[\w-]*|[A-Za-z]:)?/[^\s'\"`,;()\[\]{}|<>/][^\s'\"`,;()\[\]{}|<>]*"
)
OURS = re.compile(r"(provenance|\.eval_results)(/[\w-][\w.-]*)+")  # the files that hub_cards writes next to the card
NAMELESS = re.compile(r"model|results\.json|checkpoints|(seed|step)-\d+")  # parts of a path that name no model


@dataclass(frozen=True)
class Result:
    """A results.json of finetuning/run.py, without paths of the machine."""

    name: str  # of the file in provenance/results, without its ending
    content: Results
    own: bool  # whether its run fine-tuned this very model; else it was measured on these weights
    folder: str  # the run's, without what leads to it on the machine
    date: str | None = None  # the day on which its run was last started, ISO 8601
    seed: int | None = None  # of this model, where its run fine-tuned several
    figures: list[str] = field(default_factory=list)  # paths of its plots, from the model folder

    @cached_property
    def shown(self) -> Results:
        """The results as cards show them: word alignment by the pipeline's default rule, where it was scored."""
        if DEFAULT_METHOD not in self.content.methods:
            return self.content
        return Results({**self.content, "protocol": self.content["protocol"] | {"method": DEFAULT_METHOD}})


@dataclass(frozen=True)
class Record:
    """All that provenance/ holds; empty where it holds nothing. Recipe and run of a fine-tuned model are its base's."""

    weights: str
    recipe: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    figures: dict[str, bytes] = field(default_factory=dict)
    licenses: dict[str, str] = field(default_factory=dict)  # of data sets by path, as recipes name them
    name: str | None = None  # what the model is called where it has no id on the Hub
    repo: str | None = None
    base_model: str | None = None  # Hub id of what the weights started from, where its owner named one
    license: dict[str, str] = field(default_factory=dict)  # of the weights: `id`; of `other`, `name` and `link`

    @property
    def curves(self) -> str | None:
        """Path of the loss curves from the model folder, if they are there."""
        return CURVES if CURVES in self.figures else None


def hub_id(path: str) -> bool:
    """Returns whether a path is an id of the Hub, owner/name; local/name of a mirror, and runs/name, are not."""
    return bool(HUB_ID.fullmatch(path)) and not path.startswith(("local/", "runs/"))


def check_record(folder: str | Path) -> list[str]:
    """What is wrong with provenance/ of a model folder, a message each; empty where it is right, or not there."""
    folder = Path(folder)
    if not any(path.is_file() for path in (folder / FOLDER).rglob("*")):
        return []
    index = read_index(folder)
    if index is None:
        return [f"{INDEX} is missing or not legible. {REMEDY}"]
    weights = folder_fingerprint(folder)
    if index["weights"] != weights:
        return [f"{INDEX} is of the weights {index['weights'][:19]}, and these are {weights[:19]}. {REMEDY}"]
    return []


def read_record(folder: str | Path) -> Record:
    """provenance/ of a model folder, without the results and figures that somebody took out.

    Raises ValueError for a record with a problem, and for a folder without weights.
    """
    folder = Path(folder)
    weights = folder_fingerprint(folder)
    if problems := check_record(folder):
        raise ValueError(problems[0])
    index = read_index(folder)
    if index is None:
        return Record(weights)
    recipe = read_yaml(folder / RECIPE) if (folder / RECIPE).is_file() else {}
    figures = {f"{FIGURES}/{file.name}": file.read_bytes() for file in sorted((folder / FIGURES).glob("*.png"))}
    results = []
    for name, about in index["results"].items():
        if (file := folder / RESULTS / name).is_file():
            shown = [figure for figure in about["figures"] if figure in figures]
            results.append(Result(Path(name).stem, load_results(file), **{**about, "figures": shown}))
    given = {name: index.get(name) for name in ("name", "repo", "base_model", "license", "licenses")}
    return Record(weights, recipe, read_json(folder / RUN, {}), results, figures, **given)


def write_record(folder: Path, record: Record, further: dict[str, bytes]) -> None:
    """Writes provenance/ and `further` files (by path) into a model folder, each file at once; record.json first,
    so that an interrupted call can be repeated.

    Of the results and figures that it wrote before, those that are no longer needed are removed.
    """
    files = dict(further) | record.figures
    if record.recipe:
        files[RECIPE] = yaml.safe_dump(record.recipe, sort_keys=False, allow_unicode=True).encode()
    if record.run:
        files[RUN] = _json(record.run)
    for result in record.results:
        files[f"{RESULTS}/{result.name}.json"] = _json(result.content)
    before = read_index(folder)
    index = {
        "format": FORMAT,
        "weights": record.weights,
        "name": record.name,
        "repo": record.repo,
        "base_model": record.base_model,
        "license": record.license,
        "results": {
            f"{result.name}.json": {field: getattr(result, field) for field in RESULT_FIELDS}
            for result in record.results
        },
        "licenses": record.licenses,
    }
    for path, content in {INDEX: _json(index), **files}.items():
        file = folder / path
        if not file.is_file() or file.read_bytes() != content:
            with written_aside(file) as stream:
                stream.buffer.write(content)
    for path in (files_of_results(before) if before else set()) - files.keys():
        (folder / path).unlink(missing_ok=True)


def files_of_results(index: dict[str, Any]) -> set[str]:
    """The files that hub_cards wrote for the results in a record.json: copies, plots and scores for the Hub."""
    found = {figure for about in index["results"].values() for figure in about["figures"]}
    for name in index["results"]:
        found |= {f"{RESULTS}/{name}", f".eval_results/{Path(name).stem}.yaml"}
    return found


def forget_paths(value: Any, is_local: Callable[[str], bool] | None = None) -> Any:
    """A value of JSON or YAML without what says on which machine it was written.

    Absolute paths become `.../` and their last part; a relative one that could be taken for an id of the Hub, and is a
    folder by `is_local` (by default: seen from here), begins with `./`. Nested keys and values alike; what marks a file
    as local is left out.
    """
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in MACHINE_KEYS}
        return {forget_paths(key, is_local): forget_paths(item, is_local) for key, item in kept.items()}
    if isinstance(value, list):
        return [forget_paths(item, is_local) for item in value]
    if not isinstance(value, str):
        return value
    if HUB_ID.fullmatch(value):
        return f"./{value}" if (is_local or os.path.exists)(value) else value
    if re.match(r"~?/[^/.]", value) and os.path.exists(os.path.expanduser(value)):
        return _last_part(value)  # it may have blanks in it
    text = ABSOLUTE.sub(lambda match: _last_part(match[0]), value)
    host = socket.gethostname()
    return re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "host", text) if len(host) > 5 else text


def _last_part(path: str) -> str:
    """`.../name` of an absolute path; of `name/model` and the like both parts."""
    bare = path.rstrip(".:!?")
    parts = bare.removeprefix("file://").rstrip("/").split("/")[1:]
    named = [place for place, part in enumerate(parts) if not NAMELESS.fullmatch(part)]
    return f".../{'/'.join(parts[named[-1] if named else -1 :])}{path[len(bare) :]}"


def read_index(folder: Path) -> dict[str, Any] | None:
    """record.json of a model folder; None where there is none, or it names files that are not hub_cards' own."""
    try:
        return parse_index((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def parse_index(text: str) -> dict[str, Any] | None:
    """What a record.json says; None for what is none."""
    try:
        index = json.loads(text)
        fits = index["format"] == FORMAT and {"weights", "name", "repo", "license", "licenses"} <= index.keys()
        return index if fits and all(map(OURS.fullmatch, files_of_results(index))) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
