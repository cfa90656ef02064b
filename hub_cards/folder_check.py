"""Checks a model folder before a push: is it complete, and is it free of files that must not be published?

The check first reads the files. It refuses code that differs from modeling/, and does not run it. Then a fresh process
loads a copy from another place and runs the folder's code, as a user of the Hub would.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from crosslingual_zoo.zoo_core.provenance import (
    ADAPTER_CONFIGURATION,
    ADAPTER_WEIGHTS,
    REPOSITORY,
    folder_fingerprint,
    is_adapter,
)

CACHES = {"__pycache__", ".cache", ".git", ".ipynb_checkpoints", ".DS_Store", "Thumbs.db", ".pytest_cache"}
HIDDEN = {".gitattributes", ".eval_results"}  # that belong in a repository
TRAINING = re.compile(r"(checkpoint|step|seed)-\d+|trainer_state\.json", re.IGNORECASE)
TEXT = {".json", ".jsonl", ".yaml", ".yml", ".md", ".txt", ".py", ".csv", ".tsv", ".jinja", ".bib"}
BINARY = {".model", ".onnx", ".onnx_data", ".png", ".jpg", ".jpeg"}
WITHOUT_SUFFIX = {"LICENSE", "NOTICE", *HIDDEN}
DANGEROUS = (b"\x80", b"PK\x03\x04", b"\x1f\x8b", b"\x7fELF")  # first bytes of pickles, archives, libraries
VOCABULARIES = {"vocab.txt", "merges.txt", "vocab.json", "tokenizer.json"}  # tokens look like anything
MACHINE_KEYS = re.compile(r'"(is_local|local_files_only)"\s*:')
SECRETS = re.compile(
    r"(?<![A-Za-z0-9])((hf|api_org)_[A-Za-z0-9]{30,}|gh[opsur]_[A-Za-z0-9]{36,}|github_pat_\w{40,}|AKIA[0-9A-Z]{16})"
    r"(?![A-Za-z0-9])|-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^\s/:@\"]+:[^\s/:@\"]+@"
)
WINDOWS_PATH = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\\\?[\w .-]+\\")
HOME_PATH = re.compile(rb"(/(home|Users|root|tmp|mnt|scratch|private)/|[A-Z]:\\Users\\)[\w./-]{2,}")  # in binary files
OUR_CODE = REPOSITORY / "modeling"
SECTIONS = ("Use", "Limits")  # beginnings of headings that a card has to have
WRITE_CARD = "python -m crosslingual_zoo.hub_cards.card --model DIR"


class Problem(NamedTuple):
    """A reason not to push a folder: the file, what is wrong with it and what to do."""

    file: str
    what: str


def check_folder(folder: str | os.PathLike, load: bool = True) -> list[Problem]:
    """Returns the problems of a model folder; none if it can be pushed.

    load: whether a fresh process also loads the folder, if its files have no problems.

    Raises ValueError if the folder does not exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}. Name the one with config.json and the weights.")
    files = files_of(folder)
    if is_adapter(folder):
        problems = list(_adapter(folder, files))
    else:
        problems = list(_weights(folder))
        if any(problem.file == "config.json" for problem in problems):
            return problems  # the rest reads it
        problems += _code(folder, files)
    for path in files:
        fault = _fault_of_file(folder, path)
        if fault:
            problems.append(Problem(path, fault))
    problems += _card(folder)
    if problems or not load or is_adapter(folder):
        return problems
    return _load(folder)


def _adapter(folder: Path, files: list[str]) -> Iterator[Problem]:
    """An adapter that PEFT can merge, for a model of the Hub, and no other weights or code. It is not loaded: its base
    model may not be here."""
    from crosslingual_zoo.hub_cards.record import hub_id

    settings = _read_json(folder / ADAPTER_CONFIGURATION)
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        yield Problem(ADAPTER_CONFIGURATION, "it is no configuration of a LoRA adapter. Save the adapter again.")
    elif not hub_id(settings.get("base_model_name_or_path") or ""):
        yield Problem(ADAPTER_CONFIGURATION, "base_model_name_or_path is no Hub id. Write that of the base model.")
    if ADAPTER_WEIGHTS not in files:
        yield Problem(ADAPTER_WEIGHTS, "missing. Save the adapter again, as safetensors.")
    for path in files:
        if path.endswith((".safetensors", ".py")) and path != ADAPTER_WEIGHTS:
            yield Problem(path, "an adapter does not use it. Remove it.")


def files_of(folder: Path) -> list[str]:
    """Returns the paths to push, with `/`: all but caches and files of file browsers."""
    paths = []
    for directory, folders, files in os.walk(folder):
        links = [name for name in folders if Path(directory, name).is_symlink()]
        folders[:] = [name for name in folders if name not in CACHES]
        for name in {*files, *links} - CACHES:
            paths.append(Path(directory, name).relative_to(folder).as_posix())
    return sorted(paths)


def _weights(folder: Path) -> Iterator[Problem]:
    """Configuration, tokenizer and weights by transformers' names, with all shards, and no other weights."""
    if not isinstance(_read_json(folder / "config.json"), dict):
        yield Problem("config.json", "missing, or not a JSON object. Name a folder that save_pretrained wrote.")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "sentencepiece.bpe.model")):
        yield Problem("tokenizer.json", "missing, so AutoTokenizer would know no word. Save the tokenizer, too.")
    single = "model.safetensors"
    index = "model.safetensors.index.json"
    expected = {single} if (folder / single).is_file() else set()
    if (folder / index).is_file():
        if expected:
            yield Problem(index, f"the folder also has {single}. Remove the outdated one.")
        try:
            expected |= set(_read_json(folder / index)["weight_map"].values())
        except (KeyError, TypeError, AttributeError):
            yield Problem(index, "it has no weight_map. Save the model again.")
        for shard in expected:
            if not (folder / shard).is_file() or Path(shard).name != shard:
                yield Problem(shard, f"{index} names it, and it is missing. Copy the folder again.")
    elif not expected:
        yield Problem(single, "missing. Save the model with save_pretrained, as safetensors.")
    if (folder / "adapter_config.json").exists():
        what = "transformers would load the adapter's base model. Merge or remove the adapter."
        yield Problem("adapter_config.json", what)
    for path in files_of(folder):
        if path.endswith(".safetensors") and path not in expected:
            yield Problem(path, "the model does not use it. Remove it.")


def _fault_of_file(folder: Path, path: str) -> str | None:
    """What is wrong with the name or content of one file; None if nothing is."""
    from safetensors import SafetensorError, safe_open

    file = folder / path
    parts = PurePosixPath(path).parts
    name = parts[-1]
    suffix = PurePosixPath(path).suffix.lower()
    if file.is_symlink() or not file.is_file():
        return "it is a link, or not a regular file. Copy the file itself (cp -L)."
    if any(map(TRAINING.fullmatch, parts)):
        return "it is a file of the training state. Remove it."
    if any(part.startswith(".") and part not in HIDDEN for part in parts):
        return "it is a hidden file, which may hold secrets. Remove it."
    if suffix == ".safetensors":
        try:
            with safe_open(file, framework="numpy") as weights:
                return _fault_of_text(json.dumps(weights.metadata() or {}))
        except (SafetensorError, OSError) as error:
            return f"it is not a complete safetensors file: {error}. Save or copy it again."
    if suffix in BINARY:
        return _fault_of_bytes(file)
    if suffix not in TEXT and name not in WITHOUT_SUFFIX:
        return "a model repository does not need this type of file, which may be a pickle. Remove it."
    try:
        text = file.read_text(encoding="utf-8")
        if suffix == ".json":
            json.loads(text)
    except (ValueError, RecursionError) as error:
        format = "JSON" if suffix == ".json" else "text"
        return f"it is not {format} in UTF-8: {error}. Save it again."
    if name in VOCABULARIES:
        return _fault_of_bytes(file)
    if suffix == ".json" and (machine_key := MACHINE_KEYS.search(text)):
        return f"its key {machine_key[1]} describes how this machine loaded the file. Remove the key."
    return None if suffix == ".py" else _fault_of_text(text)  # code is compared as a whole


def _fault_of_text(text: str) -> str | None:
    """Secrets, and paths that only this machine has."""
    from crosslingual_zoo.hub_cards.record import ABSOLUTE

    if secret := SECRETS.search(text):
        return f"it has text that looks like a secret, {secret[0][:6]}... Remove and revoke the secret."
    if path := ABSOLUTE.search(text) or WINDOWS_PATH.search(text):
        return f"it has a path of a machine, {path[0]!r}. Remove the path."
    return None


def _fault_of_bytes(file: Path) -> str | None:
    content = file.read_bytes()
    if not content:
        return "it is empty. Remove it."
    if content.startswith(DANGEROUS):
        return "it is a pickle, an archive or a library under another name. Remove it."
    if file.suffix.lower() == ".png" and not content.startswith(b"\x89PNG"):
        return "it is not a PNG picture. Remove it."
    if home_path := HOME_PATH.search(content):
        path = home_path[0][:60].decode(errors="replace")
        return f"it has a path of a machine, {path!r}. Save the file without it."
    return None


def _code(folder: Path, files: list[str]) -> Iterator[Problem]:
    """Code: that of modeling/ alone, all that configurations reach, and a class for every Auto class."""
    for path in files:
        if path.lower().endswith(".py") and not _is_our_code(folder, path):
            yield Problem(path, "it differs from the code of modeling/, or is not of it. Copy it, or remove it.")
    for path in files:
        if path.endswith(".json"):
            yield from _missing_code(folder, path, files)
    config = _read_json(folder / "config.json")
    auto_map = config.get("auto_map")
    if not isinstance(auto_map, dict):
        auto_map = {}
    for name, target in _full_auto_map(config.get("model_type")).items():
        if auto_map.get(name) != target:
            yield Problem("config.json", f"its auto_map lacks {name}: {target}. Save the model again.")
            break
    if "modules.json" in files and not _are_our_modules(_read_json(folder / "modules.json")):
        yield Problem(
            "modules.json",
            "crosslingual_zoo.hub_cards.sentence_transformer does not write such modules. Use that command.",
        )


def _is_our_code(folder: Path, path: str) -> bool:
    ours = OUR_CODE / path
    return ours.is_file() and (folder / path).read_bytes() == ours.read_bytes()


def _missing_code(folder: Path, path: str, files: list[str]) -> Iterator[Problem]:
    """The code that a JSON file of the folder names, and the modules that this code imports."""
    from transformers.dynamic_module_utils import get_relative_import_files

    for target in _code_targets(_read_json(folder / path)):
        module = f"{target.split('.')[0]}.py"
        modules = {module}
        if (OUR_CODE / module).is_file():
            modules.update(Path(file).name for file in get_relative_import_files(str(OUR_CODE / module)))
        missing = modules.difference(files)
        if missing:
            yield Problem(path, f"it names {target}, and {min(missing)} is missing. Save the model again.")


def _full_auto_map(model_type: Any) -> dict[str, str]:
    """The Auto classes of a model type of the zoo; empty for others."""
    from crosslingual_zoo.modeling import MODEL_TYPES
    from crosslingual_zoo.modeling.checkpoints import installed_class

    return installed_class(model_type, "AutoConfig")().auto_map if model_type in MODEL_TYPES else {}


def _are_our_modules(modules: Any) -> bool:
    """Whether a modules.json names modules that sentence_transformer.py writes, and no others."""
    from crosslingual_zoo.hub_cards.sentence_transformer import MODULES

    return isinstance(modules, list) and {module.get("type") for module in modules} <= set(MODULES.values())


def _code_targets(value: Any) -> Iterator[str]:
    """The `module.Class` names with which a configuration refers to code; `impl` is a custom pipeline's."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("auto_map", "impl"):
                yield from re.findall(r'"([^"]*\.[^"]*)"', json.dumps(item))
            else:
                yield from _code_targets(item)
    elif isinstance(value, list):
        for item in value:
            yield from _code_targets(item)


def _card(folder: Path) -> Iterator[Problem]:
    """The card: there, legible to the Hub, of these weights, with a license, uses and limits, and no dead link."""
    import yaml
    from huggingface_hub import ModelCard

    from crosslingual_zoo.hub_cards.card import weights_of

    try:
        card = ModelCard.load(folder / "README.md")
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())[:200].rstrip(".")
        yield Problem("README.md", f"it cannot be read: {why}. Write it with {WRITE_CARD}.")
        return
    weights = weights_of(card.text)
    if weights and weights != _fingerprint(folder):
        yield Problem("README.md", f"it is of other weights, {weights[:19]}. Write it with {WRITE_CARD}.")
    if not card.data.get("license"):
        yield Problem("README.md", f"it names no license. Run {WRITE_CARD} --license ID (such as apache-2.0).")
    for section in SECTIONS:
        if not re.search(rf"^#+ +{section}", card.text, re.MULTILINE):
            yield Problem("README.md", f'it has no section "{section}". Write it with {WRITE_CARD}.')
    for link in re.findall(r"\]\(([^)\s#]+)", card.text):
        if not re.match(r"[a-z]+:", link) and not _is_inside(folder, link):
            fault = f"it links to {link}, which is not in the folder. Remove the link, or add the file."
            yield Problem("README.md", fault)


def _is_inside(folder: Path, link: str) -> bool:
    target = folder / link
    return target.exists() and target.resolve().is_relative_to(folder.resolve())


def _fingerprint(folder: Path) -> str:
    """The weights' fingerprint, as a card names it; empty where there are none."""
    configuration = ADAPTER_CONFIGURATION if is_adapter(folder) else "config.json"
    with contextlib.suppress(ValueError):
        return folder_fingerprint(folder, configuration)
    return ""


def _load(folder: Path) -> list[Problem]:
    """What `fresh_load.py` finds, from a copy in another place, with an empty cache and without network."""
    with tempfile.TemporaryDirectory(prefix="hub_cards_") as elsewhere:
        copy = Path(elsewhere, "a copy", "model")
        home = Path(elsewhere, "home")
        home.mkdir()
        # links: weights may be large, and are only read
        ignored = shutil.ignore_patterns(*CACHES)
        shutil.copytree(folder.resolve(), copy, ignore=ignored, copy_function=os.symlink)
        settings = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
        environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        program = Path(__file__).with_name("fresh_load.py")
        command = [sys.executable, "-P", str(program), str(copy)]
        process = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, errors="replace")
    if process.returncode:
        errors = process.stderr.strip().splitlines() or [f"status {process.returncode}"]
        return [Problem("config.json", f"a fresh process could not load the folder: {errors[-1]}")]
    last_line = process.stdout.splitlines()[-1]
    return [Problem("config.json", fault) for fault in json.loads(last_line)]


def _read_json(file: Path) -> Any:
    """What a JSON file holds; None where it is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):
        return None
