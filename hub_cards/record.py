"""What a card is made of: config.json, recipe.yaml and run.json of the run that wrote a model, and its results."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crosslingual_zoo.finetuning.results import Results, load_results, run_name
from crosslingual_zoo.hub_cards.example_rows import example_rows
from crosslingual_zoo.zoo_core.provenance import folder_fingerprint, read_json
from crosslingual_zoo.zoo_core.recipes import read_yaml
from crosslingual_zoo.zoo_core.tables import HUB_ID

HUB = "https://huggingface.co"
# A path begins where no word, URL or other path continues, and is not the end of a tag such as </s>.
ABSOLUTE = re.compile(
    r"(?<![\w:/.<\\-])(?:file://)?(?:~[\w-]*|[A-Za-z]:)?/[^\s'\"`,;()\[\]{}|<>/][^\s'\"`,;()\[\]{}|<>]*"
)
NAMELESS = re.compile(r"model|results\.json|checkpoints|(seed|step)-\d+")  # parts of a path that name no model


@dataclass(frozen=True)
class Record:
    """All that is known of a model. Recipe, run and held-out losses of a fine-tuned model are those of its base.

    results: in the order of the command line. own_results: those of the run that fine-tuned this very model, at most
    one; seed: of this model there; rows: some evaluated rows, with the model's predictions, for the examples. held_out:
    the last evaluation in events.jsonl, in nats. licenses: of data sets by path, as recipes name them. base_model: Hub
    id of the start, where its owner names one; base_note: how the start differs. license: of the weights.
    """

    config: dict[str, Any]
    parameters: int
    name: str
    weights: str = ""
    repo: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    results: list[Results] = field(default_factory=list)
    own_results: list[Results] = field(default_factory=list)
    seed: str | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    licenses: dict[str, str] = field(default_factory=dict)
    base_model: str | None = None
    base_note: str | None = None
    license: str | None = None
    curves: Path | None = None  # where the run has its plot of losses


def read_record(
    folder: Path,
    results: Iterable[str | Path],
    name: str | None,
    repo: str | None,
    license: str | None,
    base_model: str | None,
    base_note: str | None,
) -> Record:
    """The record of a model folder; paths of this machine are cut to their last part.

    The pre-training run is the folder above the model, or above the base of a fine-tuned model, if that is still in its
    place. The results of the run that fine-tuned the model (<run>/seed-N/model) are found without being named.

    Raises ValueError for missing or damaged files, and for results of other weights.
    """
    from crosslingual_zoo.modeling.checkpoints import load_config

    weights = folder_fingerprint(folder)
    parameters = count_parameters(folder)
    load_config(str(folder))  # raises for a damaged one
    paths = [*results]
    seed_folder = folder.resolve().parent
    own_file = seed_folder.parent / "results.json"
    is_tuned = re.fullmatch(r"seed-\d+", seed_folder.name) is not None and own_file.is_file()
    if is_tuned:
        paths.append(own_file)
    contents = _read_results(paths)
    for file, content in contents.items():
        measured = content["model"]["fingerprint"]
        if file != own_file and weights != measured:
            raise ValueError(
                f"{file} is of the weights {measured[:19]}, not {weights[:19]} of {folder}. Score it again."
            )
    pretrained = folder.resolve()
    if is_tuned and _is_in_place(contents[own_file]["model"]):
        pretrained = Path(contents[own_file]["model"]["folder"])
    pretraining = _pretraining(pretrained)
    licenses = pretraining.pop("licenses", {})
    for file in contents:
        licenses |= _recipe(file.parent).get("licenses") or {}
    cards_results = {file: Results(forget_paths(content)) for file, content in contents.items()}
    tuning: dict[str, Any] = {}
    if is_tuned:
        own_results = cards_results[own_file]
        rows = example_rows(seed_folder / "predictions", own_results.names)
        tuning = {
            "own_results": [own_results],
            "rows": [row for row in rows if forget_paths(row) == row],
            "seed": seed_folder.name.removeprefix("seed-"),
        }
    return Record(
        config=read_json(folder / "config.json"),
        parameters=parameters,
        name=repo or name or run_name(folder),
        weights=weights,
        repo=repo,
        results=list(cards_results.values()),
        licenses=forget_paths(licenses),
        base_model=base_model,
        base_note=base_note,
        license=license,
        **pretraining,
        **tuning,
    )


def _is_in_place(model: dict[str, Any]) -> bool:
    """Whether the folder of a model, as results name it, still has these weights."""
    folder = Path(model["folder"])
    return (folder / "config.json").is_file() and folder_fingerprint(folder) == model["fingerprint"]


def _pretraining(model: Path) -> dict[str, Any]:
    """The fields of Record that a model's pre-training run gives; none where there is no run.

    It is in the folder above the model, or that of `word-align adapt` next to it.
    """
    run_folder = Path(f"{model}.training") / "run"
    if model.name == "model" and not run_folder.is_dir():
        run_folder = model.parent
    recipe = _recipe(run_folder)
    if "phases" not in recipe:
        return {}
    fields = {
        "recipe": forget_paths(recipe),
        "run": forget_paths(read_json(run_folder / "run.json", {})),
        "held_out": _held_out(run_folder),
        "licenses": recipe.get("licenses") or {},
    }
    plot = run_folder / "curves.png"
    if plot.is_file():
        fields["curves"] = plot
    return fields


def has_code(folder: Path) -> bool:
    """Returns whether transformers needs code that the folder's configurations name, and so `trust_remote_code`."""
    config = read_json(folder / "config.json", {})
    tokenizer_config = read_json(folder / "tokenizer_config.json", {})
    return bool(config.get("auto_map") or config.get("custom_pipelines") or tokenizer_config.get("auto_map"))


def hub_id(path: str) -> bool:
    """Returns whether a path is an id of the Hub, owner/name. Folders, local/name of a mirror and runs/name are not."""
    return bool(HUB_ID.fullmatch(path)) and not path.startswith(("local/", "runs/")) and not Path(path).exists()


def forget_paths(value: Any) -> Any:
    """A value of JSON or YAML with `.../name` in place of absolute paths, in keys and values."""

    def last_part(match: re.Match) -> str:
        bare = match[0].rstrip(".:!?")
        ending = match[0][len(bare) :]
        parts = bare.removeprefix("file://").rstrip("/").split("/")[1:]
        start = len(parts) - 1
        for position, part in enumerate(parts):
            if not NAMELESS.fullmatch(part):
                start = position
        return f".../{'/'.join(parts[start:])}{ending}"

    return json.loads(ABSOLUTE.sub(last_part, json.dumps(value, ensure_ascii=False, default=str)))


def count_parameters(folder: Path) -> int:
    """Returns the number of parameters in the safetensors of a model folder, tied ones once; reads no tensor."""
    from huggingface_hub import get_local_safetensors_metadata
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    try:
        return sum(get_local_safetensors_metadata(folder).parameter_count.values())
    except (NotASafetensorsRepoError, SafetensorsParsingError) as error:
        raise ValueError(f"{error} Load the model, and save it with save_pretrained.") from None


def _read_results(paths: Iterable[str | Path]) -> dict[Path, Results]:
    """The results.json of each path: a file, the folder of a run, or that of a suite with a folder for each task."""
    results: dict[Path, Results] = {}
    for path in map(Path, paths):
        files = [path]
        if path.is_dir():
            files = [path / "results.json", *sorted(path.glob("*/results.json"))]
        has_results = False
        for file in filter(Path.is_file, files):
            content = load_results(file)
            if isinstance(content, Results):
                results[file.resolve()] = content
                has_results = True
        if not has_results:
            raise ValueError(f"{path} holds no results of finetuning/run.py. Relative paths start at {Path.cwd()}.")
    return results


def _recipe(run_folder: Path) -> dict[str, Any]:
    file = run_folder / "recipe.yaml"
    return read_yaml(file) if file.is_file() else {}


def _held_out(run_folder: Path) -> dict[str, float]:
    file = run_folder / "events.jsonl"
    if not file.is_file():
        return {}
    lines = file.read_text(encoding="utf-8").splitlines()
    for line in reversed(lines):
        if '"held_out/' in line and line.endswith("}"):
            return json.loads(line)
    return {}
