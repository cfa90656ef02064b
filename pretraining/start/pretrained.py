"""Checkpoints and tokenizers that a recipe names: read, or refused with the name of the field."""

import re
from collections.abc import Iterable

import torch
from transformers import (
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from modeling.checkpoints import download_pinned, load_auto_model, load_config, load_tokenizer
from modeling.fresh_weights import fresh_weights
from zoo_core.console import without_load_report
from zoo_core.tables import looks_like_missing_folder, resolve_hub_path


def existing_path(name: str, field: str, hub_root: str | None) -> str:
    """The folder or Hub id that a field of the recipe names; the downloaded folder of an `owner/name@revision`.

    Raises ValueError for a folder or a revision that is not there.
    """
    path = download_pinned(resolve_hub_path(name, hub_root))
    if looks_like_missing_folder(path):
        raise ValueError(
            f"{field} {name!r} is not there: neither a folder nor, by its form, a Hub id. A run folder keeps its model "
            "in model/; the first lines of a recipe name the command that makes what it needs."
        )
    return path


def read_tokenizer(
    name: str, field: str, hub_root: str | None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub id. Raises ValueError where there is none, or its code would have to run."""
    path = existing_path(name, field, hub_root)
    try:
        return load_tokenizer(path, trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"no tokenizer could be loaded from {field} {name!r}: {_reason(error, path)}") from error


def check_own_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    given: str | None,
    model_name: str,
    field: str,
    hub_root: str | None,
    trust_remote_code: bool = False,
) -> None:
    """Compares the tokenizer `given` in `field`, apart from the model, with one that lies beside the model's weights.

    Raises ValueError where ids stand for other tokens; added tokens, and ids that only one of the two has, are left to
    `check_vocabulary`. Nothing is compared where nothing was given or the model's folder holds no tokenizer.
    """
    if given is None:
        return
    with without_load_report():
        try:
            own = read_tokenizer(model_name, field, hub_root, trust_remote_code)
        except ValueError:
            return
    # beside a configuration alone, transformers makes a tokenizer of special tokens: all of them added
    ours, theirs = _ordinary_tokens(tokenizer), _ordinary_tokens(own)
    common = sorted(ours.keys() & theirs.keys())
    if others := [number for number in common if ours[number] != theirs[number]]:
        number = others[0]
        raise ValueError(
            f"{len(others):,} of {len(common):,} ids stand for other tokens in {field} {given!r} than in the tokenizer "
            f"of {model_name!r} (id {number} is {ours[number]!r} and {theirs[number]!r}). Leave {field} out, or name "
            "the checkpoint's own tokenizer."
        )


def _ordinary_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """{id: token}, without special and added tokens."""
    added = {*tokenizer.get_added_vocab().values(), *tokenizer.all_special_ids}
    return {number: token for token, number in tokenizer.get_vocab().items() if number not in added}


def read_config(name: str, field: str, hub_root: str | None, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The configuration of a checkpoint. Raises ValueError where there is none that transformers can read."""
    path = existing_path(name, field, hub_root)
    try:
        return load_config(path, trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(f"{field} {name!r} holds no configuration that can be read: {_reason(error, path)}") from error


def read_masked_lm(
    name: str,
    field: str,
    hub_root: str | None,
    config: PreTrainedConfig,
    trust_remote_code: bool = False,
    is_whole: bool = False,
) -> tuple[PreTrainedModel, list[str]]:
    """A masked language model in float32, and the names of its weights that are random: those of a head that the
    checkpoint lacks, unless it has to be whole.

    Raises ValueError for weights that cannot be read, and for what else it lacks (`fresh_weights`).
    """
    path = existing_path(name, field, hub_root)
    try:
        with without_load_report():  # the caller reports what is missing
            model, report = load_auto_model(
                AutoModelForMaskedLM,
                path,
                trust_remote_code,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (OSError, ValueError) as error:
        raise ValueError(f"the weights of {field} {name!r} cannot be read: {_reason(error, path)}") from error
    return model, fresh_weights(model, report, f"{field} {name!r}", is_whole)


def listed(names: Iterable[str]) -> str:
    """Names of weights in order, each once for all layers, whose number is `*`."""
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in sorted(names))) or "nothing"


def _reason(error: Exception, path: str) -> str:
    """The first line of an error, without the path that the message has named."""
    return (str(error).strip().splitlines() or [""])[0].removeprefix(f"{path}: ")
