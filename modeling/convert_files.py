"""Files of checkpoints: foreign ones read without running what is in them, ours written whole or not at all."""

import argparse
import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import safetensors.torch
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PreTrainedModel


def read_checkpoint(path: str | Path) -> tuple[dict[str, torch.Tensor], dict]:
    """A state dict, and the settings beside it: `args` or `cfg` of fairseq's {"model": ..., ...}, else none.

    `.safetensors`, or what torch.save wrote.

    Raises ValueError for a file that cannot be read, that holds other objects than tensors and settings (they are not
    loaded: pickled objects can run code), or no tensors.
    """
    try:
        if Path(path).suffix == ".safetensors":
            content = safetensors.torch.load_file(path)
        else:
            # a plain holder of attributes, in which fairseq keeps its command line
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises anything, KeyError for a text
        if objects := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"{path} holds objects of {objects[1]} beside its tensors: loading objects could run any code, and "
                "only tensors, numbers and fairseq's args are loaded. Where you trust the file, open it once with its "
                "own library and save the rest: torch.save({'model': checkpoint['model']}, 'weights.pt')."
            ) from error
        reason = f"{type(error).__name__} {error}".splitlines()[0]
        raise ValueError(
            f"{path} cannot be read: {reason}. It is missing, damaged or no checkpoint. Give a file that torch.save or "
            "safetensors wrote."
        ) from error
    settings = {}
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        for holder in (content.get("args"), as_dict(content.get("cfg")).get("model")):
            settings |= as_dict(holder)
        content = content["model"]
    others = [key for key, value in content.items() if not torch.is_tensor(value)] if isinstance(content, dict) else []
    if not isinstance(content, dict) or not content or others:
        what = f"entries that are no tensors ({', '.join(map(str, others[:3]))})" if others else "no state dict"
        raise ValueError(
            f"{path} holds {what}: a converter needs names and their tensors. Give the file of the weights alone, or "
            "{'model': state dict} as fairseq writes it."
        )
    return content, settings


def read_json(path: Path, advice: str = "Copy it again.") -> dict:
    """The object in a JSON file. Raises ValueError, which ends with `advice`, for a file that is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}, not an object")
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}. It is damaged, or no JSON. {advice}") from error
    return content


def as_dict(holder) -> dict:
    """The attributes of a Namespace, a dict as it is, nothing for anything else."""
    if isinstance(holder, argparse.Namespace):
        return vars(holder)
    return holder if isinstance(holder, dict) else {}


def load_zoo(folder: str, classes: Sequence[type[PreTrainedModel]], name: str) -> PreTrainedModel:
    """The model of a folder or Hub id of this zoo, of the class that it was saved from, in the type it was saved in.

    Args:
        classes: those that it may be of, all of one model type.
        name: what the model type is called.

    Raises ValueError for what is no checkpoint of these, and for one that lacks weights.
    """
    config_class = classes[0].config_class
    try:
        found, _ = config_class.get_config_dict(folder)
    except OSError as error:
        raise ValueError(
            f"{folder!r} holds no checkpoint: {str(error).splitlines()[0]} Give a folder that save_pretrained wrote (a "
            "run keeps its model in model/), or a Hub id that can be reached."
        ) from error
    by_name = {cls.__name__: cls for cls in classes}
    saved = (found.get("architectures") or [None])[0]
    if found.get("model_type") != config_class.model_type or saved not in by_name:
        raise ValueError(
            f"{folder!r} is a checkpoint of {found.get('model_type')!r}, class {saved!r}: only {name}'s can be written "
            f"in {name}'s layouts. Give a folder of one of {', '.join(by_name)}."
        )
    try:
        model, report = by_name[saved].from_pretrained(folder, output_loading_info=True, dtype="auto")
    except (OSError, SafetensorError, StrictDataclassError) as error:
        raise ValueError(
            f"the model of {folder!r} cannot be read: {' '.join(str(error).split())} Copy the folder again."
        ) from error
    if report["missing_keys"]:
        raise ValueError(
            f"{folder!r} lacks weights: {', '.join(sorted(report['missing_keys']))}. They would be random. Save the "
            "whole model again."
        )
    return model.eval()


def require_new(path: str | Path) -> None:
    """Raises ValueError for an output that is there already, but for an empty folder."""
    path = Path(path)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ValueError(
            f"{path} is there already and not empty: old and new files would be mixed. Name another output, or remove "
            "it first."
        )


@contextlib.contextmanager
def written_aside(path: str | Path) -> Iterator[Path]:
    """A path beside `path` to write to, a file or a folder, that takes its place only if all went well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield aside / path.name
        (aside / path.name).replace(path)
    finally:
        shutil.rmtree(aside)


def save_weights(content: dict, path: str | Path) -> None:
    """Writes tensors as `.safetensors` or, by any other name, with torch.save."""
    with written_aside(path) as aside:
        if Path(path).suffix == ".safetensors":
            # safetensors refuses tensors that are part of others
            content = {key: tensor.contiguous() for key, tensor in content.items()}
            safetensors.torch.save_file(content, aside, metadata={"format": "pt"})  # transformers reads no other
        else:
            torch.save(content, aside)
