# SPDX-License-Identifier: Apache-2.0
"""Loads checkpoints that a user names, and runs no code of theirs unless the user trusts it.

The classes installed here load the model types of the zoo and ERNIE-M's tokenizer, even if the checkpoint brings code;
transformers loads every other type. `trust_remote_code=True` runs the checkpoint's code instead. Code that is not run
is named in one line; a checkpoint that cannot be loaded without its code is an error.
"""

import contextlib
import functools
import importlib
import json
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import snapshot_download
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.tokenization_auto import get_tokenizer_config, tokenizer_class_from_name
from transformers.utils import logging as transformers_logging

from . import MODEL_TYPES

logger = transformers_logging.get_logger(__name__)

PINNED = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)@([^@\s]+)", re.ASCII)
SNAPSHOT = re.compile(r".*/models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})")
# what from_pretrained reads of a repository, in its root; pickled weights only where there are no others
READ = ["*.json", "*.jinja", "*.model", "*.py", "*.safetensors", "*.txt"]
REMEDY = "Read it; --trust-remote-code (in a recipe: trust_remote_code=true) runs it."

POOLER = re.compile(r"(^|\.)pooler\.")
# what training may add to an encoder: also VECO's cross-attention and ERNIE-M's language embeddings
ADDED = re.compile(r"(^|\.)(pooler|crossattention|language_embeddings)\.")
LAYER = re.compile(r"(?<!decoder)\.layers?\.\d+\.")


def split_revision(name: str) -> tuple[str, str | None]:
    """Splits `owner/name@revision` of the Hub; the revision of any other name, and of a folder, is None."""
    match = PINNED.fullmatch(name)
    if match is None or os.path.exists(name):
        return name, None
    return match[1], match[2]


@functools.cache
def download_pinned(name: str) -> str:
    """Downloads `owner/name@revision` of the Hub and returns its folder in the cache; returns any other name unchanged.

    Raises ValueError for a repository or a revision that cannot be downloaded and is not in the cache.
    """
    repository, revision = split_revision(name)
    if revision is None:
        return name
    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=READ, ignore_patterns="*/*")
        if not list(Path(folder).glob("*.safetensors")):
            snapshot_download(repository, revision=revision, allow_patterns="pytorch_model*.bin")
    except Exception as error:  # of the Hub, of its address, of the network
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{name} cannot be downloaded: {reason}") from error
    return folder


class _Repository(NamedTuple):
    """The name of a checkpoint for `from_pretrained`, with the commit where it is known ({} where not)."""

    name: str
    pinned: dict[str, Any]


def _repository_of(path: str) -> _Repository:
    """The repository of a folder in the Hub's cache, so that code of the same repository is of the same commit; any
    other folder, and an id, unchanged."""
    match = SNAPSHOT.fullmatch(Path(path).as_posix())
    if match is None:
        return _Repository(path, {})
    owner, name, commit = match.groups()
    return _Repository(f"{owner}/{name}", {"revision": commit})


def _load_with_its_code(auto_class: Any, path: str) -> Any:
    """What an Auto class loads of a checkpoint that the user trusts."""
    repository = _repository_of(path)
    return auto_class.from_pretrained(repository.name, trust_remote_code=True, **repository.pinned)


@contextlib.contextmanager
def readable(path: str) -> Generator[None]:
    """Makes what libraries raise for a damaged checkpoint, which may be anything, a ValueError of one line that names
    it. System errors are left: they name their file."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if path not in text:
            text = f"{path}: {type(error).__name__}: {text}"
        raise ValueError(text) from error


def _read_settings(path: str) -> dict[str, Any]:
    """config.json, unchanged. Raises ValueError where it names, in any of its parts, a kernel of the Hub, which is code
    as well, or flash attention, for which transformers would load such a kernel where it is not installed."""

    def check(part: dict[str, Any]) -> dict[str, Any]:
        for key, value in part.items():
            if "_implementation" in key and re.search("/|flash", str(value)):
                name = _repository_of(path).name
                raise ValueError(
                    f"{name} has {key} {value!r}, which may be code of the Hub. Remove it from config.json."
                )
        return part

    settings, _ = PreTrainedConfig.get_config_dict(path)
    json.loads(json.dumps(settings), object_hook=check)
    return settings


def load_config(path: str, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Loads the configuration of a folder or Hub id.

    Raises ValueError where its code is needed and `trust_remote_code` is False, and for a damaged file; or OSError.
    """
    with readable(path):
        if trust_remote_code:
            return _load_with_its_code(AutoConfig, path)
        settings = _read_settings(path)
        model_type = str(settings.get("model_type"))
        is_known = model_type in (*MODEL_TYPES, *CONFIG_MAPPING)
        _check_code(path, settings.get("auto_map"), is_known, f"a model of type {model_type!r}")
        if model_type in MODEL_TYPES:
            return installed_class(model_type, "AutoConfig").from_pretrained(path)
        return AutoConfig.from_pretrained(path, trust_remote_code=False)


def load_tokenizer(path: str, trust_remote_code: bool = False) -> Any:
    """Loads the tokenizer of a folder or Hub id. Raises as `load_config`, and ValueError where there is none."""
    with readable(path):
        if trust_remote_code:
            tokenizer = _load_with_its_code(AutoTokenizer, path)
        else:
            tokenizer = _load_tokenizer(path)
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # made up by the library, of a configuration alone
        raise ValueError(f"{path} holds no tokenizer. Save it into the folder, or name its folder as `tokenizer`.")
    return tokenizer


def _load_tokenizer(path: str) -> Any:
    tokenizer_settings = get_tokenizer_config(path)
    settings = {}
    with contextlib.suppress(OSError):  # a tokenizer may lie by itself
        settings = _read_settings(path)
    name = (tokenizer_settings.get("tokenizer_class") or "").removesuffix("Fast")
    auto_map = settings.get("auto_map") or {}
    code = tokenizer_settings.get("auto_map") or auto_map.get("AutoTokenizer")
    classes = (tokenizer_class_from_name(name), tokenizer_class_from_name(f"{name}Fast"))
    _check_code(path, code, name == "ErnieMTokenizer" or any(classes), f"the tokenizer {name}")
    if name == "ErnieMTokenizer":
        from .tokenization_ernie_m import ErnieMTokenizer

        return ErnieMTokenizer.from_pretrained(path)
    if settings.get("model_type") in MODEL_TYPES:  # the library knows no tokenizer of our types
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, config=load_config(path))
    return AutoTokenizer.from_pretrained(path, trust_remote_code=False)


def _check_code(path: str, auto_map: Any, is_known: bool, what: str) -> None:
    """Names the code of a checkpoint with an `auto_map`, or a part of one, where it is not that of the installed
    modeling/.

    Raises ValueError where nothing installed knows the class.
    """
    modules = re.findall(r'"(?:([^"]+)--)?([^".]+)\.[^"]+"', json.dumps(auto_map))  # repository, module
    if not modules:
        return
    name = _repository_of(path).name
    foreign_files = _foreign_files(path)
    other_repositories = {f"{module}.py of {owner}" for owner, module in modules if owner not in ("", name)}
    foreign_code = sorted(other_repositories)
    if foreign_files:
        foreign_code.insert(0, f"{', '.join(foreign_files)} of {name}")
    listed = "; ".join(foreign_code)
    if not is_known:
        raise ValueError(f"{name} has {what}, which needs code of its own: {listed or modules[0][1]}. {REMEDY}")
    if listed:  # once in a process: configuration, tokenizer and weights are often read one after the other
        logger.warning_once(f"{path} brings code that is not run: {listed}. {REMEDY}")


def _foreign_files(path: str) -> list[str]:
    """The names of the Python files of a checkpoint that differ from the installed ones."""
    folder = Path(path)
    if not folder.is_dir():
        with contextlib.suppress(Exception):  # then nobody could run it
            folder = Path(snapshot_download(path, allow_patterns="*.py", ignore_patterns="*/*"))
    installed = {file.name: file.read_bytes() for file in Path(__file__).parent.glob("*.py")}
    return sorted(file.name for file in folder.glob("*.py") if file.read_bytes() != installed.get(file.name))


def check_vocabulary(tokenizer: Any, config: PreTrainedConfig, name: str) -> None:
    """Raises ValueError if a model has fewer rows than the tokenizer has tokens, or counts positions from another
    padding id than the tokenizer's.

    More rows than tokens are unused: mDeBERTa has 898. A model that counts positions from 0 never reads the padding id:
    multilingual-e5-small has that of BERT, and the tokenizer of XLM-R.
    """
    if config.vocab_size < len(tokenizer):
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, the model of {name} has {config.vocab_size} embeddings. Use "
            "the model's own tokenizer."
        )
    from .configuration_encoder import first_position  # with the classes of models, which take seconds to import

    padding_ids = (tokenizer.pad_token_id, config.pad_token_id)
    differ = None not in padding_ids and padding_ids[0] != padding_ids[1]
    if differ and first_position(config) > 0:
        raise ValueError(
            f"The tokenizer has padding id {tokenizer.pad_token_id}, the model of {name} has padding id "
            f"{config.pad_token_id}. Use the model's own tokenizer."
        )


def auto_model_class(auto_class: Any, path: str, trust_remote_code: bool = False) -> Any:
    """Returns the class to load a checkpoint with: for the zoo's types the installed one, for a trusted checkpoint its
    own, and `auto_class` itself where transformers chooses. Raises as `load_config`."""
    if trust_remote_code:
        auto_map = getattr(_load_with_its_code(AutoConfig, path), "auto_map", None) or {}
        code = auto_map.get(auto_class.__name__)
        if not code:
            return auto_class
        repository = _repository_of(path)
        # an Auto class gives a folder the code of another one that it met before, if both have the same name
        return get_class_from_dynamic_module(code, repository.name, **repository.pinned)
    model_type = _read_settings(path).get("model_type")
    if model_type in MODEL_TYPES:
        return installed_class(model_type, auto_class.__name__)
    return auto_class


def installed_class(model_type: str, auto_class: str) -> Any:
    """Returns the installed class that an Auto class, given by its name, selects; ValueError where there is none."""
    configuration = importlib.import_module(f"{__package__}.configuration_{model_type}")
    config_class = getattr(configuration, f"{MODEL_TYPES[model_type]}Config")
    auto_map = config_class().auto_map
    if auto_class not in auto_map:
        raise ValueError(f"A model of type {model_type!r} has no {auto_class}. Use one of {', '.join(auto_map)}.")
    module, _, name = auto_map[auto_class].partition(".")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


def load_auto_model(auto_class: Any, path: str, trust_remote_code: bool = False, **options: Any) -> Any:
    """Loads a model with the class that `auto_class` (AutoModel, ...) selects, and from_pretrained's `options`.

    Returns what from_pretrained returns, and raises as `load_config`. Missing weights are not listed: `fresh_weights`.
    """
    model_class = auto_model_class(auto_class, path, trust_remote_code)
    if model_class is auto_class:
        options["trust_remote_code"] = trust_remote_code
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with readable(path):
            return model_class.from_pretrained(path, **options)
    finally:
        transformers_logging.set_verbosity(verbosity)


def load_whole(
    auto_class: Any,
    path: str,
    name: str,
    trust_remote_code: bool = False,
    reads_vocabulary: bool = True,
    **options: Any,
) -> Any:
    """Loads a model to use as it is, in evaluation mode; the checkpoint must have every weight except a pooler's.

    It computes nothing at padding where it can. `name` is what the user calls the checkpoint; `num_hidden_layers` reads
    the lower layers of a model alone; `reads_vocabulary` is that of `check_finite`. Raises ValueError as
    `load_auto_model`, `fresh_weights` and `check_finite`.
    """
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    model, info = load_auto_model(auto_class, path, trust_remote_code, **options)
    if "num_hidden_layers" in options:
        info["unexpected_keys"] = {key for key in info["unexpected_keys"] if not LAYER.search(key)}
    fresh_weights(model, info, name, is_whole=True)
    from .layer_states import check_finite

    check_finite(model, name, reads_vocabulary)
    return without_padding(model).eval()


def without_padding(model: Any) -> Any:
    """Returns the model, which from now on computes nothing at padding if its code can: its numbers are the same."""
    if hasattr(model, "set_skip_padding"):
        model.set_skip_padding(True)
    return model


def fresh_weights(model: Any, report: dict[str, Any], name: str, is_whole: bool = False) -> list[str]:
    """The names of the weights that start at random: checkpoint `name` lacks them, or has them in another shape.

    `report` is what `from_pretrained` returned in addition to the model, with `output_loading_info=True` and
    `ignore_mismatched_sizes=True`. Of a model to use as it is (`is_whole`), only a pooler may be fresh; of one to train
    next, heads and `ADDED`. Weights of more layers than the configuration counts are named in a line of the log.

    Raises ValueError for any other weight.
    """
    fresh = {*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])}
    unread = sorted(report["unexpected_keys"])
    if is_whole:
        lacking = {key for key in fresh if not POOLER.search(key)}
    else:
        encoder_keys = {key for key in fresh if key.startswith(f"{model.base_model_prefix}.")}
        lacking = {key for key in encoder_keys if not ADDED.search(key)}
    if lacking:
        instead = f" It has {unread[0]}, which is no name of this model." if unread else ""
        raise ValueError(
            f"{name} lacks {len(lacking)} weights of {type(model).__name__} ({min(lacking)}, ...), or has them in "
            f"another shape. Random numbers would replace them.{instead}"
        )
    uncounted = [key for key in unread if LAYER.search(key)]
    if uncounted:
        logger.warning(
            "%s has weights of layers that config.json does not count, not used: %s, ...", name, uncounted[0]
        )
    return sorted(fresh)
