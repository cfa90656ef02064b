"""Checks a model folder before a push: is it complete, and is it free of files that must not be published?

    python -m hub_cards.folder_check --model runs/xlm_align-smoke/model

The check first reads the files. It refuses code that differs from modeling/, and does not run it. Then a fresh process
loads a copy from another place and runs the folder's code, as a user of the Hub would.
"""

import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from huggingface_hub import ModelCard
from safetensors import SafetensorError, safe_open

from hub_cards.record import ABSOLUTE, FOLDER, MACHINE_KEYS, check_record
from zoo_core.command_line import CommandParser, user_errors
from zoo_core.provenance import REPOSITORY

CACHES = {"__pycache__", ".cache", ".git", ".ipynb_checkpoints", ".DS_Store", "Thumbs.db", ".pytest_cache"}
HIDDEN = {".gitattributes", ".eval_results"}  # that belong in a repository
TRAINING_STATES = re.compile(
    r"(optimi[sz]er|scheduler|scaler|rng_state|random_states|training_args|trainer_state|events\.out\.)", re.IGNORECASE
)
STEP_FOLDERS = re.compile(r"(checkpoint|step|seed)-\d+", re.IGNORECASE)
PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".dill"}
TEXT = {".json", ".jsonl", ".yaml", ".yml", ".md", ".txt", ".py", ".csv", ".tsv", ".jinja", ".bib"}
BINARY = {".model", ".onnx", ".onnx_data", ".png", ".jpg", ".jpeg"}
WITHOUT_SUFFIX = {"LICENSE", "NOTICE", *HIDDEN}
DANGEROUS = (b"\x80", b"PK\x03\x04", b"\x1f\x8b", b"\x7fELF")  # first bytes of pickles, archives, libraries
VOCABULARIES = {"vocab.txt", "merges.txt", "vocab.json", "tokenizer.json"}  # tokens look like anything
SECRETS = re.compile(
    r"(?<![A-Za-z0-9])((hf|api_org)_[A-Za-z0-9]{30,}|gh[opsur]_[A-Za-z0-9]{36,}|github_pat_\w{40,}|AKIA[0-9A-Z]{16})"
    r"(?![A-Za-z0-9])|-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^\s/:@\"]+:[^\s/:@\"]+@"
)
WINDOWS_PATH = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\\\?[\w .-]+\\")
HOME_PATH = re.compile(rb"(/(home|Users|root|tmp|mnt|scratch|private)/|[A-Z]:\\Users\\)[\w./-]{2,}")  # in binary files
# What hub_cards.sentence_transformer writes; other modules of that library may name code of their own.
MODULES = {
    "sentence_transformers.base.modules.transformer.Transformer",
    "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
}
SECTIONS = ("Use", "Limits")  # beginnings of headings that a card has to have
WRITE_CARD = "python -m hub_cards.card --model DIR"


@dataclass(frozen=True)
class Problem:
    """A reason not to push a folder: the file, what is wrong with it and what to do."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def check_folder(folder: str | os.PathLike, load: bool = True) -> list[Problem]:
    """Returns the problems of a model folder; none if it can be pushed.

    load: whether a fresh process also loads the folder, if its files have no problems.

    Raises ValueError if the folder does not exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}. Name the one with config.json and the weights.")
    problems = list(_weights(folder))
    if any(problem.file == "config.json" for problem in problems):
        return problems
    files = files_of(folder)[0]
    for path in files:
        if what := _fault_of_file(folder, path):
            problems.append(Problem(path, what))
    problems += _code(folder, files)
    problems += _card(folder)
    if not any(problem.file.endswith(".safetensors") for problem in problems):
        problems += [Problem(f"{FOLDER}/", message) for message in check_record(folder)]
    if load and not problems:
        problems += _load(folder)
    return problems


def files_of(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the paths to push, with `/`, and the paths to leave out: caches and files of file browsers."""
    kept, left_out = [], []
    for directory, names, files in os.walk(folder):
        links = [name for name in names if Path(directory, name).is_symlink()]
        for name in [*files, *links, *CACHES.intersection(names)]:
            path = Path(directory, name).relative_to(folder).as_posix()
            (left_out if name in CACHES else kept).append(path)
        names[:] = [name for name in names if name not in CACHES]
    return sorted(kept), sorted(left_out)


def _weights(folder: Path) -> Iterator[Problem]:
    """Configuration and weights by transformers' names, with all shards, and no other weights."""
    if not isinstance(_read_json(folder / "config.json"), dict):
        yield Problem("config.json", "missing, or not a JSON object. Name a folder that save_pretrained wrote.")
    single, index = "model.safetensors", "model.safetensors.index.json"
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
        yield Problem(
            "adapter_config.json", "transformers would load the adapter's base model. Merge or remove the adapter."
        )
    for path in files_of(folder)[0]:
        if path.endswith(".safetensors") and path not in expected:
            yield Problem(path, "the model does not use it. Remove it.")


def _fault_of_file(folder: Path, path: str) -> str | None:
    """What is wrong with the name or content of one file; None if nothing is."""
    file, parts = folder / path, PurePosixPath(path).parts
    name, suffix = parts[-1], PurePosixPath(path).suffix.lower()
    if file.is_symlink() or not file.is_file():
        return "it is a link, or not a regular file. Copy the file itself (cp -L)."
    if TRAINING_STATES.match(name) or any(map(STEP_FOLDERS.fullmatch, parts[:-1])):
        return "it is a file of the training state. Remove it."
    if suffix in PICKLES:
        return "it is a pickle, which can run any code when it is loaded. Remove it, or save weights as safetensors."
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
        return "a model repository does not need this type of file. Remove it."
    try:
        text = file.read_text(encoding="utf-8")
        if suffix == ".json":
            keys = re.findall(r'"(\w+)"\s*:', text) if name not in VOCABULARIES and json.loads(text) else []
            if found := set(MACHINE_KEYS).intersection(keys):
                return f"its key {min(found)} describes how this machine loaded the file. Remove the key."
    except (ValueError, RecursionError) as error:
        return f"it is not {'JSON' if suffix == '.json' else 'text'} in UTF-8: {error}. Save it again."
    if suffix == ".py":
        return None  # compared as a whole
    if name in VOCABULARIES:
        return _fault_of_bytes(file)
    return _fault_of_text(text)


def _fault_of_text(text: str) -> str | None:
    """Secrets, and paths that only this machine has."""
    if secret := SECRETS.search(text):
        return f"it has text that looks like a secret, {secret[0][:6]}... Remove and revoke the secret."
    if found := ABSOLUTE.search(text) or WINDOWS_PATH.search(text):
        return f"it has a path of a machine, {found[0]!r}. Remove the path."
    return None


def _fault_of_bytes(file: Path) -> str | None:
    if not file.stat().st_size:
        return "it is empty. Remove it."
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content[:4].startswith(DANGEROUS):
            return "it is a pickle, an archive or a library under another name. Remove it."
        if file.suffix.lower() == ".png" and content[:4] != b"\x89PNG":
            return "it is not a PNG picture. Remove it."
        if found := HOME_PATH.search(content):
            return f"it has a path of a machine, {found[0][:60].decode(errors='replace')!r}. Save the file without it."
    return None


def _code(folder: Path, files: list[str]) -> Iterator[Problem]:
    """Code: only this package's, only what the configuration reaches, and unchanged."""
    wanted: set[str] = set()
    for path in files:
        if not path.endswith(".json") or path == "tokenizer.json":
            continue
        for target in _code_targets(_read_json(folder / path)):
            module = f"{target.split('.')[0]}.py"
            if module in files:
                wanted |= _imported(module)
            else:
                yield Problem(path, f"it names {target}, and the folder lacks its code. Save the model again.")
    if "modules.json" in files:
        modules = _read_json(folder / "modules.json")
        types = {module.get("type") for module in modules} if isinstance(modules, list) else {None}
        if types - MODULES:
            yield Problem(
                "modules.json", "it has modules that hub_cards.sentence_transformer does not write. Use that command."
            )
    changed = []
    for path in files:
        if path.lower().endswith(".py") and path not in wanted:
            yield Problem(path, "neither config.json nor the model's code uses it. Remove it.")
        elif path in wanted and (REPOSITORY / "modeling" / path).read_bytes() != (folder / path).read_bytes():
            changed.append(path)
    if changed:
        yield Problem(", ".join(changed), "differs from the code in modeling/. Copy it from modeling/.")
    if lacking := sorted(wanted.difference(files)):
        yield Problem(", ".join(lacking), "missing, and the folder's code imports it. Copy it from modeling/.")


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


def _imported(file: str) -> set[str]:
    """The files of modeling/ that this one imports, itself included; none where it is not of the package."""
    from transformers.dynamic_module_utils import get_relative_import_files

    if not (REPOSITORY / "modeling" / file).is_file():
        return set()
    return {file, *(Path(path).name for path in get_relative_import_files(str(REPOSITORY / "modeling" / file)))}


def _card(folder: Path) -> Iterator[Problem]:
    """The card: there, legible to the Hub, with a license, uses and limits, and no link that leads nowhere."""
    try:
        card = ModelCard.load(folder / "README.md")
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        yield Problem(
            "README.md", f"it cannot be read: {' '.join(str(error).split())[:200]}. Write it with {WRITE_CARD}."
        )
        return
    if not card.data.get("license"):
        yield Problem("README.md", f"it names no license. Run {WRITE_CARD} --license ID (such as apache-2.0).")
    for section in SECTIONS:
        if not re.search(rf"^#+ +{section}", card.text, re.MULTILINE):
            yield Problem("README.md", f'it has no section "{section}". Write it with {WRITE_CARD}.')
    for link in re.findall(r"\]\(([^)\s#]+)", card.text):
        inside = (folder / link).resolve().is_relative_to(folder.resolve())
        if not re.match(r"[a-z]+:", link) and not (inside and (folder / link).exists()):
            yield Problem(
                "README.md", f"it links to {link}, which is not in the folder. Remove the link, or add the file."
            )


def _load(folder: Path) -> list[Problem]:
    """What `fresh_load.py` finds, from a copy in another place, with an empty cache and without network."""
    with tempfile.TemporaryDirectory(prefix="hub_cards_") as elsewhere:
        copy, home = Path(elsewhere, "a copy", "model"), Path(elsewhere, "home")
        home.mkdir()
        for path in files_of(folder)[0]:
            target = copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.endswith(".safetensors"):
                target.symlink_to((folder / path).resolve())  # may be large, and is only read
            else:
                shutil.copy(folder / path, target)
        settings = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
        environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-P", str(Path(__file__).with_name("fresh_load.py")), str(copy)]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return [Problem("config.json", f"a fresh process could not load the folder: {last}")]
    return [Problem("config.json", what) for what in json.loads(done.stdout.splitlines()[-1])]


def _read_json(file: Path) -> Any:
    """What a JSON file holds; None where it is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):
        return None


def refusal(folder: Path, problems: list[Problem]) -> str:
    """Returns one message with all problems of a folder."""
    return "\n- ".join([f"{folder} cannot be pushed:", *map(str, problems)])


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(prog="python -m hub_cards.folder_check", description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="model folder, with its card")
    folder = Path(parser.parse_args(argv).model)
    with user_errors():
        if problems := check_folder(folder):
            raise ValueError(refusal(folder, problems))
    kept, left_out = files_of(folder)
    print(f"{folder} is complete, and a fresh process loads it: {len(kept)} files to push.")
    if left_out:
        print(f"Left out: {', '.join(left_out)}")


if __name__ == "__main__":
    sys.exit(main())
