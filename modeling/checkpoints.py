# SPDX-License-Identifier: Apache-2.0
"""Loads checkpoints that a user names, and runs no code of theirs unless the user trusts it.

The classes installed here load the four model types and ERNIE-M's tokenizer, even if the checkpoint brings code;
transformers loads every other type. `trust_remote_code=True` runs the checkpoint's code instead. Code that is
not run is named in one line; a checkpoint that cannot be loaded without its code is an error.
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
from transformers.dynamic_module_utils import get_class_from_dynamic_module, get_relative_imports
from transformers.models.auto.tokenization_auto import get_tokenizer_config, tokenizer_class_from_name
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from .configuration_encoder import CUSTOM_PIPELINES, check_numbers, full_auto_map
from .fresh_weights import fresh_weights
from .layer_states import check_finite

logger = logging.getLogger(__name__)

MODEL_TYPES = ("ernie_m", "metaxlm", "veco", "xlm_align")
# what a layer gives does not depend on those above it, and nothing follows the last one
SHORTENED = (*MODEL_TYPES, "bert", "camembert", "roberta", "xlm-roberta")
PINNED = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)@([^@\s]+)", re.ASCII)
# what from_pretrained reads of a repository, in its root; pickled weights only where there are no others
READ = ["*.json", "*.jinja", "*.model", "*.py", "*.safetensors", "*.txt"]
# JSON objects among them, which a message names where the library's error does not
SETTINGS = ("config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json")
SETTINGS += ("generation_config.json", "model.safetensors.index.json")
VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")  # of tokenizers
# what libraries raise for damaged files; safetensors' and pickle's are no ValueErrors
OF_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, RecursionError)
OF_DAMAGE += (SafetensorError, pickle.UnpicklingError, StrictDataclassError)
REMEDY = "Read it; --trust-remote-code (in a recipe: trust_remote_code=true) runs it."
SNAPSHOT = re.compile(r".*/models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})")


def config_class(model_type: str) -> type[PreTrainedConfig]:
    """Returns the installed configuration class of one of `MODEL_TYPES`."""
    module = importlib.import_module(f"{__package__}.configuration_{model_type}")
    own = (value for value in vars(module).values() if getattr(value, "model_type", None) == model_type)
    return next(value for value in own if isinstance(value, type) and value.class_prefix)


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
    except (HfHubHTTPError, HFValidationError, HTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{name} cannot be downloaded: {reason} Check name, revision and connection.") from error
    return str(folder)


def _of_hub(path: str) -> tuple[str, dict[str, str]]:
    """(repository, {"revision": commit}) of a folder in the Hub's cache, so that code of the same repository is of the
    same commit; (path, {}) of any other folder and of an id."""
    found = SNAPSHOT.fullmatch(Path(path).as_posix())
    return (f"{found[1]}/{found[2]}", {"revision": found[3]}) if found else (path, {})


@contextlib.contextmanager
def readable(path: str, *further: type[Exception]) -> Iterator[None]:
    """What libraries raise for damaged files of a folder or Hub id, as a ValueError of one line that begins with the
    path, and names the file where that is known. Errors of types other than `OF_DAMAGE` and `further` are left."""
    try:
        yield
    except OSError:  # some are ValueErrors too
        raise
    except Exception as error:
        other_shapes = isinstance(error, RuntimeError) and "ignore_mismatched_sizes" in str(error)
        # the tokenizers library raises Exception itself
        if not (isinstance(error, (*OF_DAMAGE, *further)) or type(error) is Exception or other_shapes):
            raise
        text = " ".join(str(error).split())
        if isinstance(error, StrictDataclassError):  # Validation error for field 'hidden_size': TypeError: ...
            reason = f"{text.partition('TypeError: ')[2] or text}. Correct config.json."
        elif other_shapes:
            reason = "its weights have other shapes than config.json says. Copy both from the same model."
        elif isinstance(error, pickle.UnpicklingError):
            reason = "the weights are a pickle of more than tensors, which may run code. Save them as safetensors."
        elif damaged := _damaged_settings(path):
            reason = f"{damaged}. Copy the file again."
        elif isinstance(error, ValueError):
            reason = text
        else:  # what follows the first sentence speaks of code
            words = ": ".join(filter(None, (type(error).__name__, text.split(". ")[0].rstrip("."))))
            reason = f"its files are damaged, or hold something else ({words}). Copy them again."
        raise ValueError(reason if path in reason else f"{path}: {reason}") from error


def _damaged_settings(path: str) -> str | None:
    """Which of a folder's `SETTINGS` is no JSON object, and why; None where all are, and for a Hub id."""
    for file in (Path(path) / name for name in SETTINGS):
        try:
            if file.is_file() and not isinstance(json.loads(file.read_bytes()), dict):
                return f"{file.name} is not a JSON object"
        except RecursionError:
            return f"{file.name} is nested too deeply"
        except ValueError as error:
            return f"{file.name} is not JSON ({error})"
    return None


def check_weights(path: str) -> None:
    """Raises ValueError where weights of a folder are cut off, hold something else, or are a pickle that may run code;
    reads no tensor of safetensors."""
    folder = Path(path)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    for file in files:
        with readable(str(file), RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of pickles that it refuses
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt"):
                    continue
            torch.load(file, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(file))


def _read_settings(path: str) -> dict[str, Any]:
    """config.json, unchanged. Raises ValueError where it names a kernel of the Hub, which is code as well, or flash
    attention that is not installed: transformers would load such a kernel in its place."""
    found, _ = PreTrainedConfig.get_config_dict(path)
    for name, value in _implementations(found):
        if "/" in value:
            raise ValueError(f"{_of_hub(path)[0]} has {name} {value!r}, which is code of the Hub. {REMEDY}")
        flash = re.search(r"flash_attention_(\d)", value)
        if flash and not getattr(transformers_utils, f"is_flash_attn_{flash[1]}_available", bool)():
            raise ValueError(f"{path} has {name} {value!r}, which is not installed. Install it, or remove the key.")
    return found


def _implementations(part: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """(key, value) of the implementations of attention and experts that a configuration names, of its parts as well."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield from _implementations(value, key if "_implementation" in key else name)
    elif name and isinstance(part, str):
        yield name, part


def load_config(path: str, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Loads the configuration of a folder or Hub id.

    Raises ValueError where its code would be needed and `trust_remote_code` is False, for files that are damaged, and
    for numbers that no model has (`check_numbers`), such as a padding id that is no token; and OSError of transformers.
    """
    with readable(path):
        config = _load_config(path, trust_remote_code)
        check_numbers(config)
        check_numbers(config, {"pad_token_id": (0, (getattr(config, "vocab_size", None) or 2**31) - 1)})
        if config.model_type in SHORTENED and config.model_type != "bert" and config.pad_token_id is None:
            raise ValueError("pad_token_id is null, and positions count from it. Correct config.json.")
    return config


def _load_config(path: str, trust_remote_code: bool) -> PreTrainedConfig:
    if trust_remote_code:
        place, pinned = _of_hub(path)
        return AutoConfig.from_pretrained(place, trust_remote_code=True, **pinned)
    found = _read_settings(path)
    entries = found.get("auto_map")
    if (model_type := str(found.get("model_type"))) in MODEL_TYPES:
        _name_other_code(path, entries)
        return _as_installed(config_class(model_type).from_pretrained(path))
    if files := _code_files(path, entries):
        if model_type not in CONFIG_MAPPING:
            raise _needs_code(path, f"a model of type {model_type!r}", files)
        _notice(f"{path} brings code that is not run: {', '.join(files)}. {REMEDY}")
    return AutoConfig.from_pretrained(path, trust_remote_code=False)


def load_tokenizer(path: str, trust_remote_code: bool = False) -> Any:
    """Loads the tokenizer of a folder or Hub id. Raises as `load_config`, and ValueError where there is none."""
    folder, none = Path(path), f"{path} holds no tokenizer. Save it into the folder, or name its folder as `tokenizer`."
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in VOCABULARIES):
        raise ValueError(none)
    with readable(path):
        tokenizer = _load_tokenizer(path, trust_remote_code)
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # made up by the library, of a configuration alone
        raise ValueError(none)
    if not isinstance(tokenizer.model_max_length, int | float):
        raise ValueError(
            f"{path}: tokenizer_config.json has model_max_length {tokenizer.model_max_length!r}. Write a number."
        )
    return tokenizer


def _load_tokenizer(path: str, trust_remote_code: bool) -> Any:
    if trust_remote_code:
        place, pinned = _of_hub(path)
        return AutoTokenizer.from_pretrained(place, trust_remote_code=True, **pinned)
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
    if files := _code_files(path, entries):
        if not any(tokenizer_class_from_name(name + end) for end in ("", "Fast")):
            raise _needs_code(path, f"the tokenizer {name}".strip(), files)
        _notice(f"{path} brings code that is not run: {', '.join(files)}. {REMEDY}")
    # the library knows no tokenizer of our types
    of_ours = {"config": _load_config(path, False)} if found.get("model_type") in MODEL_TYPES else {}
    return AutoTokenizer.from_pretrained(path, trust_remote_code=False, **of_ours)


def load_auto_model(auto_class: Any, path: str, trust_remote_code: bool = False, **options: Any) -> Any:
    """Loads the model of a folder or Hub id with the class that `auto_class` (AutoModel, ...) selects, and
    from_pretrained's `options`. Returns what from_pretrained returns, and raises as `load_config`."""
    cls = auto_model_class(auto_class, path, trust_remote_code)
    with readable(path, AssertionError), _installed(path):
        if cls is auto_class:
            place, pinned = _of_hub(path) if trust_remote_code else (path, {})
            return auto_class.from_pretrained(place, trust_remote_code=trust_remote_code, **pinned, **options)
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

    It computes nothing at padding where it can. `name` is what the user calls the checkpoint. Of a model of
    `SHORTENED`, `layers` is how many to read; the weights of those above are not touched. Raises ValueError as
    `load_auto_model`, `fresh_weights` and `check_finite`.
    """
    report = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    options |= {} if layers is None else {"num_hidden_layers": layers}
    with without_load_report():
        model, info = load_auto_model(auto_class, path, trust_remote_code, **report, **options)
    if layers is not None:
        above = re.compile(r"layer\.(\d+)\.")
        info["unexpected_keys"] = {
            key for key in info["unexpected_keys"] if not ((found := above.search(key)) and int(found[1]) >= layers)
        }
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


@contextlib.contextmanager
def _installed(path: str) -> Iterator[None]:
    """Raises ValueError instead of ImportError where what loads a checkpoint, as a quantizer, is not installed."""
    try:
        yield
    except ImportError as error:
        is_quantized = "quantization_config" in PreTrainedConfig.get_config_dict(path)[0]
        what = "is quantized (quantization_config in config.json)" if is_quantized else "cannot be loaded"
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} {what}: {reason}. Or name another checkpoint.") from error


def auto_model_class(auto_class: Any, path: str, trust_remote_code: bool = False) -> Any:
    """Returns the class to load a checkpoint with: for the four model types the installed one, for a trusted checkpoint
    its own, and `auto_class` itself where transformers chooses. Raises as `load_config`."""
    if trust_remote_code:
        place, pinned = _of_hub(path)
        config = AutoConfig.from_pretrained(place, trust_remote_code=True, **pinned)
        code = (getattr(config, "auto_map", None) or {}).get(auto_class.__name__)
        # an Auto class gives a folder the code of another one that it met before, if both have the same name
        return get_class_from_dynamic_module(code, place, **pinned) if code else auto_class
    model_type = _read_settings(path).get("model_type")
    return installed_class(model_type, auto_class.__name__) if model_type in MODEL_TYPES else auto_class


def installed_class(model_type: str, auto_class: str) -> Any:
    """Returns the installed class that an Auto class, given by its name, selects.

    Raises ValueError where the model type has none.
    """
    entries = _auto_map(config_class(model_type))
    if auto_class not in entries:
        raise ValueError(f"A model of type {model_type!r} has no {auto_class}. Use one of {', '.join(entries)}.")
    module, _, name = entries[auto_class].partition(".")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


def _auto_map(cls: type[PreTrainedConfig]) -> dict[str, str]:
    return full_auto_map(cls.model_type, cls.class_prefix, cls.further_heads)


def _as_installed(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration, naming the installed code, which a later save writes into the same folder."""
    config.auto_map = _auto_map(type(config))
    config.custom_pipelines = copy.deepcopy(CUSTOM_PIPELINES)
    return config


@functools.cache
def _notice(line: str) -> None:
    """Logs a line, once in a process: configuration, tokenizer and weights are often read one after the other."""
    logger.warning(line)


def _needs_code(path: str, what: str, files: list[str]) -> ValueError:
    return ValueError(f"{_of_hub(path)[0]} has {what}, which needs code of its own: {', '.join(files)}. {REMEDY}")


def _entries(entries: Any) -> Iterator[tuple[str, str]]:
    """(repository or empty, module) of an `auto_map`: `module.Class`, `owner/name--module.Class`, or lists of them."""
    if isinstance(entries, dict):
        entries = list(entries.values())
    for entry in entries if isinstance(entries, list) else [entries]:
        if isinstance(entry, list):
            yield from _entries(entry)
        elif isinstance(entry, str):
            repository, _, name = entry.rpartition("--")
            yield repository, name.partition(".")[0]


def _code_files(path: str, entries: Any) -> list[str]:
    """The files of code that an `auto_map` names, each with the repository that it is of."""
    place = _of_hub(path)[0]
    found = {f"{module}.py of {repository or place}": None for repository, module in _entries(entries)}
    return list(found)


@functools.cache
def _installed_code(name: str) -> str | None:
    file = Path(__file__).with_name(name)
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _name_other_code(path: str, entries: Any) -> None:
    """Logs one line where a checkpoint of ours brings other code than the installed one, which is used."""
    waiting, seen, others = [*_entries(entries)], set(), []
    while waiting:
        repository, module = waiting.pop(0)
        name = f"{module}.py"
        if (repository, name) in seen:
            continue
        seen.add((repository, name))
        if repository and repository != _of_hub(path)[0]:
            others.append(f"{name} of {repository}")
            continue
        file = cached_file(
            path,
            name,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if file is None:  # offline, or not there: then nobody could run it
            continue
        if Path(file).read_text(encoding="utf-8", errors="replace") != _installed_code(name):
            others.append(name)
        else:
            waiting += [("", imported) for imported in get_relative_imports(file)]
    if others := sorted(others):
        what = "brings code that differs from the installed modeling/ and is not run"
        _notice(f"{path} {what}: {', '.join(others)}. {REMEDY}")
