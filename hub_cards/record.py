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

    results: in the order of the command line. own: those of the run that fine-tuned this very model, at most one; seed:
    of this model there; rows: some evaluated rows, with the model's predictions, for the examples. held_out: the last
    evaluation in events.jsonl, in nats. licenses: of data sets by path, as recipes name them. base_model: Hub id of the
    start, where its owner names one; base_note: how the start differs. license: of the weights.
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
    own: list[Results] = field(default_factory=list)
    seed: str | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    licenses: dict[str, str] = field(default_factory=dict)
    base_model: str | None = None
    base_note: str | None = None
    license: str | None = None
    curves: Path | None = None  # where the run has its plot of losses


def read_record(folder: Path, results: Iterable[str | Path], name: str | None, **given: Any) -> Record:
    """The record of a model folder; paths of this machine are cut to their last part.

    The pre-training run is the folder above the model, or above the base of a fine-tuned model, if that is still in its
    place. The results of the run that fine-tuned the model (<run>/seed-N/model) are found without being named.

    Raises ValueError for missing or damaged files, and for results of other weights.
    """
    from crosslingual_zoo.modeling.checkpoints import load_config

    weights, place = folder_fingerprint(folder), folder.resolve().parent
    parameters = count_parameters(folder)
    load_config(str(folder))  # raises for a damaged one
    own_file = place.parent / "results.json"
    is_tuned = re.fullmatch(r"seed-\d+", place.name) is not None and own_file.is_file()
    found, licenses = _read_results([*results, *([own_file] if is_tuned else [])]), {}
    for file, content in found.items():
        measured = content["model"]["fingerprint"]
        if file != own_file and weights != measured:
            raise ValueError(
                f"{file} is of the weights {measured[:19]}, not {weights[:19]} of {folder}. Score it again."
            )
        licenses |= _recipe(file.parent).get("licenses") or {}
    made = folder.resolve()
    if is_tuned:
        base = Path(found[own_file]["model"]["folder"])
        is_there = (base / "config.json").is_file()
        made = base if is_there and folder_fingerprint(base) == found[own_file]["model"]["fingerprint"] else made
    known: dict[str, Any] = {}
    if made.name == "model" and "phases" in (recipe := _recipe(made.parent)):
        known = {"recipe": forget_paths(recipe), "run": forget_paths(read_json(made.parent / "run.json", {}))}
        plot = made.parent / "curves.png"
        known |= {"held_out": _held_out(made.parent), "curves": plot if plot.is_file() else None}
        licenses = (recipe.get("licenses") or {}) | licenses
    contents = {file: Results(forget_paths(content)) for file, content in found.items()}
    own = [contents[own_file]] if is_tuned else []
    rows = [row for content in own for row in example_rows(place / "predictions", content.names)]
    without_paths = [row for row in rows if forget_paths(row) == row]
    return Record(
        config=read_json(folder / "config.json"),
        parameters=parameters,
        name=given.get("repo") or name or run_name(folder),
        weights=weights,
        results=list(contents.values()),
        own=own,
        rows=without_paths,
        seed=place.name.removeprefix("seed-") if is_tuned else None,
        licenses=forget_paths(licenses),
        **known,
        **given,
    )


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
        parts = bare.removeprefix("file://").rstrip("/").split("/")[1:]
        named = [place for place, part in enumerate(parts) if not NAMELESS.fullmatch(part)]
        return f".../{'/'.join(parts[named[-1] if named else -1 :])}{match[0][len(bare) :]}"

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
    found: dict[Path, Results] = {}
    for path in map(Path, paths):
        files = [path / "results.json", *sorted(path.glob("*/results.json"))] if path.is_dir() else [path]
        contents = {file.resolve(): load_results(file) for file in files if file.is_file()}
        contents = {file: content for file, content in contents.items() if isinstance(content, Results)}
        if not contents:
            raise ValueError(f"{path} holds no results of finetuning/run.py. Relative paths start at {Path.cwd()}.")
        found |= contents
    return found


def _recipe(run_folder: Path) -> dict[str, Any]:
    file = run_folder / "recipe.yaml"
    return read_yaml(file) if file.is_file() else {}


def _held_out(run_folder: Path) -> dict[str, float]:
    file = run_folder / "events.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return next((json.loads(line) for line in reversed(lines) if '"held_out/' in line and line.endswith("}")), {})
