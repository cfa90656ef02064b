# SPDX-License-Identifier: Apache-2.0
"""Loads checkpoints that a user names, and runs no code of theirs unless the user trusts it.

The classes installed here load the model types of the zoo and ERNIE-M's tokenizer, even if the checkpoint brings code;
transformers loads every other type. `trust_remote_code=True` runs the checkpoint's code instead. Code that is not run
is named in one line; a checkpoint that cannot be loaded without its code is an error.
"""

import contextlib
import copy
import functools
import importlib
import json
import logging
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig
from transformers import utils as transformers_utils
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.tokenization_auto import get_tokenizer_config, tokenizer_class_from_name
from transformers.utils import logging as transformers_logging

from .configuration_encoder import check_numbers, full_auto_map
from .fresh_weights import fresh_weights
from .layer_states import FROM_PADDING, check_finite
from .model_types import MODEL_TYPES

logger = logging.getLogger(__name__)

# vocabularies are padded to a multiple of at most this many rows, for speed
LARGEST_VOCABULARY_PADDING = 128

PINNED = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)@([^@\s]+)", re.ASCII)
SNAPSHOT = re.compile(r".*/models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})")
# what from_pretrained reads of a repository, in its root; pickled weights only where there are no others
READ = ["*.json", "*.jinja", "*.model", "*.py", "*.safetensors", "*.txt"]
UNREACHABLE = (HfHubHTTPError, HFValidationError, HTTPError, OSError)
# what libraries raise for damaged files; safetensors' and pickle's are no ValueErrors
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, RecursionError, ImportError)
DAMAGE += (SafetensorError, pickle.UnpicklingError, StrictDataclassError)
REMEDY = "Read it; --trust-remote-code (in a recipe: trust_remote_code=true) runs it."


def split_revision(name: str) -> tuple[str, str | None]:
    """Splits `owner/name@revision` of the Hub; the revision of any other name, and of a folder, is None."""
    found = None if os.path.exists(name) else PINNED.fullmatch(name)
    return (found[1], found[2]) if found else (name, None)


@functools.cache
def download_pinned(name: str) -> str:
    """Downloads `owner/name@revision` of the Hub and returns its folder in the cache; returns any other name unchanged.

    Raises ValueError for a repository or a revision that cannot be downloaded and is not in the cache.
    """
    repository, revision = split_revision(name)
    if revision is None:
        return name
    download = functools.partial(snapshot_download, repository, revision=revision, ignore_patterns=["*/*"])
    try:
        folder = Path(download(allow_patterns=READ))
        if not list(folder.glob("*.safetensors")):
            download(allow_patterns=["pytorch_model*.bin"])
    except UNREACHABLE as error:
        raise ValueError(f"{name} cannot be downloaded: {str(error).strip().splitlines()[0]}") from error
    return str(folder)


def _of_hub(path: str) -> tuple[str, dict[str, Any]]:
    """(repository, {"revision": commit}) of a folder in the Hub's cache, so that code of the same repository is of the
    same commit; (path, {}) of any other folder and of an id."""
    found = SNAPSHOT.fullmatch(Path(path).as_posix())
    return (f"{found[1]}/{found[2]}", {"revision": found[3]}) if found else (path, {})


def _by_its_code(auto_class: Any, path: str, **options: Any) -> Any:
    """What an Auto class loads of a checkpoint that the user trusts."""
    place, pinned = _of_hub(path)
    return auto_class.from_pretrained(place, trust_remote_code=True, **pinned, **options)


@contextlib.contextmanager
def readable(path: str, *further: type[Exception]) -> Iterator[None]:
    """Makes what libraries raise for damaged files of a folder or Hub id a ValueError of one line, which names the path
    or the file. Errors of types other than `DAMAGE` and `further` are left."""
    try:
        yield
    except OSError:  # some are ValueErrors too
        raise
    except Exception as error:
        is_shape = "ignore_mismatched_sizes" in str(error)
        # the tokenizers library raises Exception itself
        if not (isinstance(error, (*DAMAGE, *further)) or type(error) is Exception or is_shape):
            raise
        text = "its weights have other shapes than config.json says." if is_shape else " ".join(str(error).split())
        damaged = next((file for file in sorted(Path(path).glob("*.json")) if not _is_object(file)), path)
        raise ValueError(text if str(damaged) in text else f"{damaged}: {type(error).__name__}: {text}") from error


def _is_object(file: Path) -> bool:
    """Whether a file holds a JSON object."""
    with contextlib.suppress(ValueError, RecursionError):
        return isinstance(json.loads(file.read_bytes()), dict)
    return False


def check_weights(path: str) -> None:
    """Raises ValueError where weights of a folder are cut off, hold something else, or are a pickle that may run code;
    reads no tensor of safetensors."""
    folder = Path(path)
    for file in sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin")):
        with readable(str(file), RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of pickles that it refuses
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt"):
                    continue
            torch.load(file, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(file))


def _read_settings(path: str) -> dict[str, Any]:
    """config.json, unchanged. Raises ValueError where it names, in any of its parts, a kernel of the Hub, which is code
    as well, or flash attention that is not installed: transformers would load such a kernel in its place."""
    found, _ = PreTrainedConfig.get_config_dict(path)

    def check(part: Any, name: str = "") -> None:
        for key, value in part.items() if isinstance(part, dict) else ():
            check(value, key if "_implementation" in key else name)
        if not name or not isinstance(part, str):
            return
        flash = re.search(r"flash_attention_(\d)", part)
        if "/" in part:
            raise ValueError(f"{_of_hub(path)[0]} has {name} {part!r}, which is code of the Hub. {REMEDY}")
        if flash and not getattr(transformers_utils, f"is_flash_attn_{flash[1]}_available", bool)():
            raise ValueError(f"{path} has {name} {part!r}, which is not installed. Install it, or remove the key.")

    check(found)
    return found


def load_config(path: str, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Loads the configuration of a folder or Hub id.

    Raises ValueError where its code would be needed and `trust_remote_code` is False, for files that are damaged, and
    for numbers that no model has (`check_numbers`), such as a padding id that is no token; and OSError of transformers.
    """
    with readable(path):
        if trust_remote_code:
            config = _by_its_code(AutoConfig, path)
        else:
            found = _read_settings(path)
            model_type, entries = str(found.get("model_type")), found.get("auto_map")
            if model_type in MODEL_TYPES:
                _name_other_code(path, entries)
                config = _as_installed(installed_class(model_type, "AutoConfig").from_pretrained(path))
            else:
                _check_code(path, entries, model_type in CONFIG_MAPPING, f"a model of type {model_type!r}")
                config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        check_numbers(config)
        check_numbers(config, {"pad_token_id": (0, (getattr(config, "vocab_size", None) or 2**31) - 1)})
        if config.model_type in (*MODEL_TYPES, *FROM_PADDING) and config.pad_token_id is None:
            raise ValueError("pad_token_id is null, and positions count from it. Correct config.json.")
    return config


def load_tokenizer(path: str, trust_remote_code: bool = False) -> Any:
    """Loads the tokenizer of a folder or Hub id. Raises as `load_config`, and ValueError where there is none."""
    with readable(path):
        tokenizer = _by_its_code(AutoTokenizer, path) if trust_remote_code else _load_tokenizer(path)
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # made up by the library, of a configuration alone
            raise ValueError(f"{path} holds no tokenizer. Save it into the folder, or name its folder as `tokenizer`.")
        if not isinstance(tokenizer.model_max_length, int | float):
            raise ValueError(f"model_max_length {tokenizer.model_max_length!r} of tokenizer_config.json is no number.")
    return tokenizer


def _load_tokenizer(path: str) -> Any:
    settings = get_tokenizer_config(path)
    name = (settings.get("tokenizer_class") or "").removesuffix("Fast")
    if name == "ErnieMTokenizer":
        from .tokenization_ernie_m import ErnieMTokenizer

        _name_other_code(path, settings.get("auto_map"))
        return ErnieMTokenizer.from_pretrained(path)
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError):  # a tokenizer may lie by itself
        found = _read_settings(path)
    entries = found.get("auto_map") or {}
    entries = settings.get("auto_map") or (entries.get("AutoTokenizer") if isinstance(entries, dict) else None)
    is_known = any(tokenizer_class_from_name(name + end) for end in ("", "Fast"))
    _check_code(path, entries, is_known, f"the tokenizer {name}".strip())
    # the library knows no tokenizer of our types
    of_ours = {"config": load_config(path)} if found.get("model_type") in MODEL_TYPES else {}
    return AutoTokenizer.from_pretrained(path, trust_remote_code=False, **of_ours)


def check_vocabulary(tokenizer: Any, config: Any, tokenizer_name: str, model_name: str, remedy: str) -> None:
    """Raises ValueError if a model has fewer rows than the tokenizer has tokens, far more, or another padding id.

    `remedy` ends the message: a sentence that tells the user what to do.
    """
    tokens, rows, ours, padding = len(tokenizer), config.vocab_size, tokenizer.pad_token_id, config.pad_token_id
    names = f"in the tokenizer of {tokenizer_name} and {{}} in the model of {model_name}. {remedy}"
    if not tokens <= rows < tokens + LARGEST_VOCABULARY_PADDING:
        raise ValueError(f"There are {tokens} tokens {names.format(f'{rows} embeddings')}")
    if None not in (ours, padding) and ours != padding:
        raise ValueError(f"The padding id is {ours} {names.format(padding)}")


def load_auto_model(auto_class: Any, path: str, trust_remote_code: bool = False, **options: Any) -> Any:
    """Loads the model of a folder or Hub id with the class that `auto_class` (AutoModel, ...) selects, and
    from_pretrained's `options`. Returns what from_pretrained returns, and raises as `load_config`."""
    cls = auto_model_class(auto_class, path, trust_remote_code)
    with readable(path, AssertionError):
        if cls is auto_class and trust_remote_code:
            return _by_its_code(auto_class, path, **options)
        if cls is auto_class:
            return auto_class.from_pretrained(path, trust_remote_code=False, **options)
        loaded = cls.from_pretrained(path, **options)
    if not trust_remote_code:
        _as_installed((loaded[0] if isinstance(loaded, tuple) else loaded).config)
    return loaded


def load_whole(
    auto_class: Any,
    path: str,
    name: str | None = None,
    trust_remote_code: bool = False,
    layers: int | None = None,
    **options: Any,
) -> Any:
    """Loads a model to use untrained, in evaluation mode; the checkpoint must have every weight except a pooler's.

    It computes nothing at padding where it can. `name` is what the user calls the checkpoint. Of a model of `LOADABLE`,
    `layers` is how many to read: a layer does not depend on those above it. Raises ValueError as `load_auto_model`,
    `fresh_weights` and `check_finite`.
    """
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    options |= {} if layers is None else {"num_hidden_layers": layers}
    with without_load_report():
        model, info = load_auto_model(auto_class, path, trust_remote_code, **options)
    if layers is not None:
        numbers = {key: re.search(r"layer\.(\d+)\.", key) for key in info["unexpected_keys"]}
        info["unexpected_keys"] = {key for key, found in numbers.items() if not (found and int(found[1]) >= layers)}
    fresh_weights(model, info, name or path, is_whole=True)
    check_finite(model, name or path)
    return without_padding(model).eval()


def without_padding(model: Any) -> Any:
    """Returns the model, which from now on computes nothing at padding where its code knows how, as that of this zoo.

    Its numbers are the same at every token of text. A folder's own code may be older, and other libraries' models pad.
    """
    if hasattr(model, "set_skip_padding"):
        model.set_skip_padding(True)
    return model


@contextlib.contextmanager
def without_load_report() -> Iterator[None]:
    """Keeps transformers from listing what was read and what was not: who loads a model here says it in a line."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def auto_model_class(auto_class: Any, path: str, trust_remote_code: bool = False) -> Any:
    """Returns the class to load a checkpoint with: for the zoo's types the installed one, for a trusted checkpoint its
    own, and `auto_class` itself where transformers chooses. Raises as `load_config`."""
    if trust_remote_code:
        code = (getattr(_by_its_code(AutoConfig, path), "auto_map", None) or {}).get(auto_class.__name__)
        place, pinned = _of_hub(path)
        # an Auto class gives a folder the code of another one that it met before, if both have the same name
        return get_class_from_dynamic_module(code, place, **pinned) if code else auto_class
    model_type = _read_settings(path).get("model_type")
    return installed_class(model_type, auto_class.__name__) if model_type in MODEL_TYPES else auto_class


def installed_class(model_type: str, auto_class: str) -> Any:
    """Returns the installed class that an Auto class, given by its name, selects.

    Raises ValueError where the model type has none.
    """
    module = importlib.import_module(f"{__package__}.configuration_{model_type}")
    entries = full_auto_map(getattr(module, f"{MODEL_TYPES[model_type]}Config"))
    if auto_class not in entries:
        raise ValueError(f"A model of type {model_type!r} has no {auto_class}. Use one of {', '.join(entries)}.")
    module, _, name = entries[auto_class].partition(".")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


def _as_installed(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration, naming the installed code, which a later save writes into the same folder."""
    config.auto_map = full_auto_map(type(config))
    vars(config).pop("custom_pipelines", None)
    if config.pipelines:
        config.custom_pipelines = copy.deepcopy(config.pipelines)
    return config


@functools.cache
def _notice(line: str) -> None:
    """Logs a line, once in a process: configuration, tokenizer and weights are often read one after the other."""
    logger.warning(line)


def _entries(entries: Any) -> Iterator[tuple[str, str]]:
    """(repository or empty, file) of an `auto_map`: `module.Class`, `owner/name--module.Class`, or lists of them."""
    if isinstance(entries, dict | list):
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from _entries(entry)
    elif isinstance(entries, str):
        repository, _, name = entries.rpartition("--")
        yield repository, f"{name.partition('.')[0]}.py"


def _check_code(path: str, entries: Any, is_known: bool, what: str) -> None:
    """Names the code of a checkpoint that is not run. Raises ValueError where transformers does not know the class."""
    place = _of_hub(path)[0]
    files = ", ".join(dict.fromkeys(f"{file} of {repository or place}" for repository, file in _entries(entries)))
    if files and not is_known:
        raise ValueError(f"{place} has {what}, which needs code of its own: {files}. {REMEDY}")
    if files:
        _notice(f"{path} brings code that is not run: {files}. {REMEDY}")


def _name_other_code(path: str, entries: Any) -> None:
    """Logs one line where a checkpoint of ours brings other code than the installed one, which is used."""
    place, folder = _of_hub(path)[0], Path(path)
    others = {f"{file} of {repository}" for repository, file in _entries(entries) if repository not in ("", place)}
    if not folder.is_dir():
        with contextlib.suppress(*UNREACHABLE):  # then nobody could run it
            folder = Path(snapshot_download(path, allow_patterns="*.py", ignore_patterns="*/*"))
    for file in folder.glob("*.py"):
        installed = Path(__file__).with_name(file.name)
        if not installed.is_file() or file.read_bytes() != installed.read_bytes():
            others.add(file.name)
    if others:
        what = "brings code that differs from the installed modeling/ and is not run"
        _notice(f"{path} {what}: {', '.join(sorted(others))}. {REMEDY}")
