"""Checkpoints and tokenizers that a recipe names: read, or refused in the recipe's words."""

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from common.tables import looks_like_missing_folder, resolve_hub_path


def existing_path(name: str, field: str, hub_root: str | None) -> str:
    """The folder or Hub id that a field of the recipe names. Raises ValueError for a folder that is not there."""
    path = resolve_hub_path(name, hub_root)
    if looks_like_missing_folder(path):
        raise ValueError(
            f"{field} {name!r} is not there: neither a folder nor, by its form, a Hub id. Check the path; a run folder "
            "keeps its model in model/, and the first lines of a recipe name the command that makes what it needs."
        )
    return path


def read_tokenizer(name: str, field: str, hub_root: str | None, remedy: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub id. Raises ValueError where there is none; `remedy` says what to do then."""
    path = existing_path(name, field, hub_root)
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=True)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no tokenizer could be loaded from {field} {name!r}: {str(error).splitlines()[0]} {remedy}"
        ) from error


def read_config(name: str, field: str, hub_root: str | None) -> PreTrainedConfig:
    """The configuration of a checkpoint. Raises ValueError where there is none that transformers can read."""
    path = existing_path(name, field, hub_root)
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=True)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{field} {name!r} holds no configuration that transformers can read: {str(error).splitlines()[0]} Give a "
            "folder that save_pretrained wrote (a run folder keeps its model in model/), or a Hub id that can be "
            "reached."
        ) from error


def read_masked_lm(
    name: str, field: str, hub_root: str | None, config: PreTrainedConfig
) -> tuple[PreTrainedModel, set[str]]:
    """A masked language model in float32, and the names of its parameters that the checkpoint lacks or has in another
    shape: random numbers stand there.

    Raises ValueError for weights that cannot be read.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # what is missing is told by the caller
    try:
        model, report = AutoModelForMaskedLM.from_pretrained(
            resolve_hub_path(name, hub_root),
            config=config,
            trust_remote_code=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"the weights of {field} {name!r} cannot be read: {str(error).splitlines()[0]} Copy the folder again, or "
            "name one that save_pretrained wrote."
        ) from error
    finally:
        logging.set_verbosity(verbosity)
    return model, {*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])}
