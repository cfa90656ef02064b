"""The card of an adapter of the word aligner, from the files that `word-align adapt --save-adapter` writes."""

import math
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from safetensors import safe_open

from crosslingual_zoo.hub_cards.record import HUB, hub_id
from crosslingual_zoo.hub_cards.sections import markdown, plain
from crosslingual_zoo.zoo_core.provenance import ADAPTER_CONFIGURATION, ADAPTER_WEIGHTS, read_json


def adapter_values(folder: Path, repo: str | None, name: str | None, license: str | None) -> dict[str, Any]:
    """What the template shows of an adapter's folder, and `data`, the metadata.

    Raises ValueError for missing files, and for an adapter of a base model that is no Hub id.
    """
    settings = read_json(folder / ADAPTER_CONFIGURATION, needs=("base_model_name_or_path", "peft_type", "r"))
    base_model = settings["base_model_name_or_path"] or ""
    if not hub_id(base_model):
        file = folder / ADAPTER_CONFIGURATION
        raise ValueError(f"{file}: base_model_name_or_path is {base_model!r}. Write the Hub id of the base model.")
    facts = read_json(folder / "adaptation.json", needs=("data", "scores", "settings"))
    alignment = read_json(folder / "word_alignment.json", needs=("word_alignment_layer", "word_alignment_calibration"))
    title = repo or name or folder.name
    data_rows = list(map(data_row, facts["data"]))
    score_rows = list(map(score_row, facts["scores"]))
    return {
        "data": adapter_metadata(title, base_model, facts["data"], license),
        "name": title,
        "repo": repo or "path/to/this/folder",
        "base_model": base_model,
        "base_link": f"[{base_model}]({HUB}/{base_model})",
        "rank": settings["r"],
        "layers": describe_layers(settings.get("layers_to_transform")),
        "parameters": count_parameters(folder / ADAPTER_WEIGHTS),
        "layer": alignment["word_alignment_layer"],
        "is_calibrated": alignment["word_alignment_calibration"] is not None,
        "training_data": markdown(["data", "rows", "license"], data_rows),
        "settings": [f"**{name}**: {plain(str(value))}" for name, value in facts["settings"].items()],
        "scores": markdown(["gold links", "sentences", "before", "after"], score_rows),
        "notes": facts.get("notes", []),
        "license": license,
    }


def adapter_metadata(title: str, base_model: str, data: list[dict[str, Any]], license: str | None) -> ModelCardData:
    """The metadata at the head of an adapter's card; its languages are those of the training data."""
    languages: list[str] = []
    for data_set in data:
        languages += data_set.get("languages", [])
    return ModelCardData(
        model_name=title,
        language=list(dict.fromkeys(languages)) or None,
        license=license,
        library_name="peft",
        tags=["word-alignment", "cross-lingual", "lora"],
        base_model=base_model,
        base_model_relation="adapter",
        metrics=["aer"],
    )


def data_row(data: dict[str, Any]) -> list[str]:
    """Name with its link, number of rows and license of a data set."""
    name = plain(data["name"])
    if data.get("url"):
        name = f"[{name}]({data['url']})"
    return [name, f"{data['rows']:,}", plain(data.get("license") or "not known")]


def score_row(row: dict[str, Any]) -> list[str]:
    """AER of a set, without and with the adapter."""
    return [plain(row["name"]), f"{row['sentences']:,}", f"{row['before']:.1f}", f"{row['after']:.1f}"]


def describe_layers(numbers: list[int] | None) -> str:
    """`layers 1 to 7` of numbers from 0; PEFT leaves them out where all layers are adapted."""
    if not numbers:
        return "all layers"
    return f"layers {min(numbers) + 1} to {max(numbers) + 1}"


def count_parameters(file: Path) -> int:
    """The number of numbers in a safetensors file."""
    with safe_open(str(file), framework="numpy") as weights:
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())
