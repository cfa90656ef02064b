# SPDX-License-Identifier: Apache-2.0
"""What the converters share: tables of parameter names, the check that weights fit a model, files, the command line.

A layout is a table: a parameter of ours, without `roberta.`, -> the names that it has there. `#` is the layer's number.
`fit` reads a foreign state dict by such a table.
"""

import argparse
import contextlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

import safetensors.torch
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .convert_paddle import read_pdparams

State = dict[str, torch.Tensor]
Table = dict[str, list[str]]

KINDS = ("weight", "bias")
WORDS, POSITIONS = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
TOKEN_TYPES = "embeddings.token_type_embeddings.weight"
# Kept by the libraries for themselves: versions, the device of sinusoids, BERT's buffer of positions.
BOOKKEEPING = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)|(.+\.)?embeddings\.position_ids")
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3 in XLM-R; <mask> is the last


# tables of names


def pairs(module: str, *names: str, ends: tuple[str, str] = (".weight", ".bias")) -> Table:
    """The part of a table for the weight and the bias of a module that has these names in the layout."""
    return {f"{module}.{kind}": [name + end for name in names] for kind, end in zip(KINDS, ends, strict=True)}


def names_of(key: str, table: Table) -> list[str]:
    """The names of a parameter of ours in a layout; none where the layout has no place for it."""
    layer = re.search(r"(?<=\.layer\.)\d+", key)
    number = layer[0] if layer else ""
    general = key.removeprefix("roberta.").replace(f".layer.{number}.", ".layer.#.")
    return [name.replace("#", number) for name in table.get(general, ())]


# foreign weights


def read_state(path: str | Path) -> tuple[State, dict]:
    """A state dict and the settings in its file: `args` of fairseq's {"model": ..., "args": ...}, else none.

    Read are .safetensors, Paddle's .pdparams, and what torch.save wrote. Pickled objects other
    than tensors and settings are not loaded, since they can run code.

    Raises ValueError for a file that cannot be read, and for one without tensors.
    """
    path, settings = Path(path), {}
    try:
        if path.suffix == ".pdparams":
            content = read_pdparams(path)
        elif path.suffix == ".safetensors":
            content = safetensors.torch.load_file(path)
        else:
            # a plain holder of attributes, in which fairseq keeps its command line
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpicklers raise anything
        objects = re.search(r"(?:GLOBAL|objects of) (\S+)", str(error))
        why = f"it holds objects of {objects[1]}, which could run code" if objects else str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read: {type(error).__name__}, {why}") from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        if isinstance(content.get("args"), argparse.Namespace):
            settings = vars(content["args"])
        content = content["model"]
    if not isinstance(content, dict) or not content or not all(torch.is_tensor(value) for value in content.values()):
        raise ValueError(f"{path} must be a state dict of tensors only.")
    return content, settings


def leave_out(state: State, ignore_keys: Sequence[str], notes: list[str]) -> State:
    """The state without bookkeeping, and without the keys that one of the patterns matches as a whole.

    Raises ValueError for a pattern that matches none.
    """
    state = {key: tensor for key, tensor in state.items() if not BOOKKEEPING.fullmatch(key)}
    for pattern in ignore_keys:
        matched = [key for key in state if re.fullmatch(pattern, key)]
        if not matched:
            raise ValueError(f"--ignore_keys {pattern!r} matches no key: it must match a whole key.")
        state = {key: tensor for key, tensor in state.items() if key not in matched}
        notes.append(f"ignored: {', '.join(matched)}")
    return state


def layer_count(state: State, pattern: str) -> int:
    """One more than the highest layer of the keys that match; gaps show up as missing keys."""
    matches = (re.fullmatch(pattern, key) for key in state)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def sizes(state: State, table: Table) -> dict[str, int]:
    """Configuration fields that follow from shapes; the defaults where a weight is missing, which `fit` reports."""
    rows = {
        "vocab_size": WORDS,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": TOKEN_TYPES,
        "intermediate_size": "encoder.layer.0.intermediate.dense.weight",
    }
    named = {field: state[name] for field, key in rows.items() for name in names_of(key, table)[:1] if name in state}
    found = {field: tensor.shape[0] for field, tensor in named.items()}
    return found | ({"hidden_size": named["vocab_size"].shape[-1]} if "vocab_size" in named else {})


def make_config(config_class: type[PreTrainedConfig], fields: dict) -> PreTrainedConfig:
    """The configuration; where no attention heads are stated, one for 64 dimensions, as in XLM-R.

    Raises ValueError as the class does, and for a hidden size that no such heads divide.
    """
    if fields.get("num_attention_heads") is None:
        hidden_size = fields.get("hidden_size", config_class.hidden_size)
        if hidden_size % 64:
            raise ValueError(f"hidden size {hidden_size} does not fit heads of 64: give --num_attention_heads.")
        fields = fields | {"num_attention_heads": hidden_size // 64}
    return config_class.from_dict(fields)


def fit(state: State, cls: type[PreTrainedModel], config: PreTrainedConfig, table: Table, source: str) -> State:
    """The weights of `cls` under our names, zeros where the layout has none (token types, the LM head's bias).

    Raises ValueError that lists every key that is missing, left over, of another shape, no finite numbers, or another
    name of a parameter that differs from the first.
    """
    dtype = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), torch.float32)
    with torch.device("meta"):
        shapes = {key: tuple(tensor.shape) for key, tensor in cls(config).state_dict().items()}
    weights, used, problems = {}, set(), []
    for key, shape in shapes.items():
        names = names_of(key, table)
        found = [name for name in names if name in state]
        used.update(found)
        weights[key] = first = state[found[0]] if found else torch.zeros(shape, dtype=dtype)
        if names and not found:
            problems.append(f"missing: {names[0]} {shape}")
        for name in found:
            tensor = state[name]
            if tuple(tensor.shape) != shape:
                problems.append(f"of another shape: {name} {tuple(tensor.shape)}, not {shape}")
            elif not tensor.is_floating_point() or not tensor.isfinite().all():
                problems.append(f"no finite numbers: {name} {tensor.dtype}")
            elif first.shape == tensor.shape and not first.equal(tensor):
                problems.append(f"different: {name} is not {found[0]}, with which the model shares it")
    problems += [f"left over: {key}; --ignore_keys leaves it out" for key in state if key not in used]
    if problems:
        lines = "\n  ".join(dict.fromkeys(problems))  # tied parameters have the same names
        raise ValueError(f"{source} does not fit {cls.__name__}:\n  {lines}")
    return weights


def assemble(cls: type[PreTrainedModel], config: PreTrainedConfig, weights: State) -> PreTrainedModel:
    """The model of these weights, all of them, in their own type."""
    with torch.device("meta"):
        model = cls(config)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    return model


# XLM-R's tokenizer


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """An XLM-R tokenizer, from a folder or the Hub.

    Raises ValueError where there is none, or one whose special tokens have other ids than XLM-R's.
    """
    try:
        # a tokenizer needs no code of the folder; without this argument, transformers asks the user to run it
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"the tokenizer {name!r} cannot be loaded: {str(error).splitlines()[0]}") from error
    expected = {token: index for index, token in enumerate(SPECIAL_TOKENS)} | {"<mask>": len(tokenizer) - 1}
    found = {token: tokenizer.get_vocab().get(token) for token in expected}
    if found != expected:
        raise ValueError(f"the tokenizer {name!r} has the special tokens {found}, an XLM-R tokenizer {expected}.")
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the tokenizer without the traces of its load, which would follow it to the Hub."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    kept = {name: value for name, value in settings.items() if name not in ("is_local", "local_files_only")}
    file.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# outputs


def require_new(path: str | Path) -> None:
    """Raises ValueError for an output that exists, except for an empty folder."""
    path = Path(path)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ValueError(f"{path} exists and is not empty: name another output, or remove it.")


@contextlib.contextmanager
def written_aside(path: str | Path) -> Iterator[Path]:
    """A folder next to `path` to write to; it replaces `path` only if no error occurs."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield aside / path.name
        (aside / path.name).replace(path)
    finally:
        shutil.rmtree(aside)


# the command line


def make_parser(name: str, description: str) -> argparse.ArgumentParser:
    """A parser with `--version`. This package knows nothing of zoo_core's."""
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(prog=f"python -m modeling.{name}", description=description, **style)
    found = next((item.version for item in metadata.distributions(name="crosslingual-zoo")), "(not installed)")
    parser.add_argument("--version", action="version", version=f"crosslingual-zoo {found}")
    return parser


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """What a reader of foreign weights may not find in the file."""
    parser.add_argument(
        "--num_attention_heads", type=int, metavar="N", help="default: what the file says, or hidden size / 64"
    )
    parser.add_argument(
        "--ignore_keys",
        action="append",
        default=[],
        metavar="REGEX",
        help="keys of the checkpoint to leave out, matched from end to end; may be given again",
    )


def run(name: str, convert: Callable[[], list[str]]) -> None:
    """Prints the notes of a conversion. Exit code 2 and a message where the user has to act."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        notes = convert()
    except (ValueError, OSError, StrictDataclassError, re.error) as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        sys.exit(2)
    print("\n".join(notes))
