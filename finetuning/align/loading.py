"""Loads the aligner of the options, and determines its layer."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from finetuning.align.options import ModelOptions
from finetuning.align.pairs import Side
from finetuning.align.screen import count_of

PAIRS_FOR_LAYER, LEAST_PAIRS_FOR_LAYER = 200, 20
CLEARLY = 1.1  # on 12 pairs of languages, the highest value is within this factor, and its layer has no lower AER
# in the order of transformers: the first one that exists is read
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def load_aligner(options: ModelOptions, screen: Any, all_layers: bool | None = None, **rule: Any) -> Any:
    """Loads the aligner; `rule` are arguments of `WordAligner.from_pretrained`.

    `all_layers`: whether to load all layers; by default, if `rule` names no layer.
    """
    import torch
    from transformers.utils import logging

    from finetuning.models import find_model, readable_errors
    from modeling.word_alignment import WordAligner
    from zoo_core.processes import main_first
    from zoo_core.provenance import model_files
    from zoo_core.vocabularies import check_vocabulary

    with main_first(), readable_errors(options.model):
        download(options.model, screen.quiet)
    with screen.status(f"loading {options.model}"), main_first(), readable_errors(options.model):
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        device, path = _device(options.device), find_model(options.model)
        if Path(path).is_dir():
            model_files(Path(path))
        tokenizer = find_model(options.tokenizer, what="Tokenizer") if options.tokenizer else path
        aligner = WordAligner.from_pretrained(
            path,
            tokenizer,
            all_layers=rule.get("layer") is None if all_layers is None else all_layers,
            device=device,
            dtype=torch.bfloat16 if options.precision == "bf16" else torch.float32,
            trust_remote_code=options.trust_remote_code,
            batch_size=options.batch_size or (256 if device.type == "cuda" else 64),
            **rule,
        )
        config = aligner.states.model.config
        check_vocabulary(aligner.tokenizer, config, tokenizer, path, "Name the model's own tokenizer.")
        return aligner


def download(model: str, quiet: bool) -> None:
    """Downloads the weights of a model that is neither a folder nor in the Hub's cache: prints this, with their size if
    it is known, and shows a bar. With `quiet`, loading downloads them later.

    Raises ValueError if the Hub cannot be reached. Loading reports a folder that does not exist, and what the Hub
    refuses.
    """
    from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError

    from modeling.checkpoints import split_revision
    from zoo_core.tables import looks_like_missing_folder

    if Path(model).exists() or looks_like_missing_folder(model):
        return
    name, revision = split_revision(model)
    try:
        if any(isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in WEIGHTS):
            return
        found = {file.path: file.size for file in HfApi().get_paths_info(name, list(WEIGHTS), revision=revision)}
    except (HfHubHTTPError, HFValidationError):
        return
    except (HTTPError, OSError):
        why = "HF_HUB_OFFLINE forbids downloads" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
        raise ValueError(
            f"There is no folder {model} in {Path.cwd()}, no copy of it from the Hub on this machine, and {why}. "
            "Name an encoder that is here: --model FOLDER|ID."
        ) from None
    if quiet:
        return
    first = next((name for name in WEIGHTS if name in found), "")
    size = f" ({found[first] / 1e9:,.2f} GB)" if first.endswith((".safetensors", ".bin")) else ""
    print(f"downloading {model} from the Hub, once{size}", file=sys.stderr, flush=True)
    if size:
        try:
            hf_hub_download(name, first, revision=revision)
        except HfHubHTTPError:  # gated, or gone: as above
            return
        except HTTPError as error:
            raise ValueError(f"The download of {model} broke off: {error}. The same command resumes it.") from None


def _device(name: str | None) -> Any:
    import torch
    from accelerate import PartialState

    state = PartialState()
    if state.num_processes > 1:
        if name not in (None, state.device.type):
            raise ValueError(
                f"--device is {name}, and each of the {state.num_processes} processes takes a device of its own, of "
                f"type {state.device.type}. Leave out --device."
            )
        return state.device
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"--device {name} cannot be used: {reason}.") from None


def report_precision(precision: str, screen: Any) -> None:
    """Prints the precision of the encoder, and its effect."""
    # bfloat16 keeps 8 bits, and products of matrices add in an order that depends on the shape of the batch
    effect = ": about 1 link in 200 depends on the other pairs of the batch" if precision == "bf16" else ""
    screen.print(f"precision {precision}{effect} (--precision)")


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turns a lack of device memory into a user error."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"The device ran out of memory: {reason} Lower --batch-size.") from None


def choose_layer(aligner: Any, pairs: Iterable[tuple[Side, Side]], screen: Any, earlier: int | None = None) -> None:
    """Sets the aligner's layer by the first `PAIRS_FOR_LAYER` pairs, or to an earlier run's, and prints why."""
    of = f"of {aligner.num_layers}"
    if aligner.recommended_layer is not None:
        screen.print(f"layer {aligner.layer} {of}: the model's configuration recommends it (--layer auto)")
        return
    if earlier is not None and earlier <= aligner.num_layers:
        aligner.layer = earlier
        return
    first = islice(pairs, PAIRS_FOR_LAYER)
    usable = [pair for pair in first if all("".join(side).strip() for side in pair)]
    if len(usable) < LEAST_PAIRS_FOR_LAYER:
        why = f"the default: {count_of(len(usable), 'pair')} cannot tell the best"
        screen.print(f"layer {aligner.layer} {of}, {why} (--layer auto)")
        return
    with screen.status("comparing layers"), memory_errors():
        values = aligner.compare_layers(usable)
    default, aligner.layer = aligner.layer, clear_layer(values, aligner.layer)
    why = f"it tells {len(usable):,} pairs best from sentences that do not belong together"
    if aligner.layer == default:
        why = f"the default; no other layer is clearly better by {len(usable):,} pairs"
    screen.print(f"layer {aligner.layer} {of}: {why} (--layer auto)")


def clear_layer(values: dict[int, float], default: int) -> int:
    """Returns the layer that separates translations best if it is clearly better, or else the default."""
    best = max(values, key=values.get)
    return best if values[best] > CLEARLY * max(values[default], 0.0) else default
