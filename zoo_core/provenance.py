"""The facts of a run in run.json and results.json (command, versions, hardware), and a way to write files safely."""

import contextlib
import glob
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Generator, Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

ADAPTER_CONFIGURATION = "adapter_config.json"  # PEFT's names
ADAPTER_WEIGHTS = "adapter_model.safetensors"
REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = "crosslingual-zoo"  # as pyproject.toml names it
LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "evaluate", "huggingface_hub", "omegaconf", PROJECT)
WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")  # files that trainers leave in a model's folder


def run_facts(argv: list[str]) -> dict[str, Any]:
    """Returns facts of this run, without names of users and machines: the home folder in the command becomes `~`."""
    import torch

    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append({"name": properties.name, "memory_gib": round(properties.total_memory / 2**30, 1)})
    return {
        "command": _command(argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": _git_state(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": _versions(),
        "hardware": {
            "cpu": _cpu_name(),
            "cores": usable_cores(),
            "memory_gib": memory_gib(),
            "gpus": gpus,
            "processes": int(os.environ.get("WORLD_SIZE", 1)),
        },
    }


def _command(argv: list[str]) -> str:
    """The command line without names of users and machines."""
    words = list(argv)
    program = Path(words[0] if words else "")
    if program.is_relative_to(REPOSITORY):
        words[0] = str(program.relative_to(REPOSITORY))
    elif program.is_absolute():
        words[0] = program.name
    home = str(Path.home())
    if len(home) > 1:
        words = [word.replace(home, "~") for word in words]
    return shlex.join(words)


def _cpu_name() -> str:
    with contextlib.suppress(OSError):  # Linux alone has the file
        name = re.search(r"(?m)^model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        if name:
            return name[1]
    return platform.machine()


def usable_cores() -> int:
    """Returns the number of processors that this process may use; those of the machine where a system knows no more."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone has it
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resident_bytes(usage: Any) -> int:
    """Returns the peak memory of a process from its `resource.getrusage`. Linux counts in KiB, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 2**10
    return usage.ru_maxrss * unit


def memory_gib() -> float | None:
    """Returns the memory of the machine; None where the system does not tell it."""
    try:
        num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    return round(num_bytes / 2**30, 1)


def _git_state() -> dict[str, Any] | None:
    """Commit of the repository that contains this code, and whether its files, except for results of benchmarks, differ
    from it; None without one."""

    def git(*arguments: str) -> list[str]:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()

    try:
        root, commit = git("rev-parse", "--show-toplevel", "HEAD")
        changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)bench/results")
    except (OSError, subprocess.SubprocessError):
        return None
    if Path(root) != REPOSITORY:  # it is installed somewhere inside another project
        return None
    return {"commit": commit, "dirty": bool(changes)}


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def version_line() -> str:
    """Returns the versions to name in an issue: of the project, Python, torch and transformers."""
    versions = {PROJECT: "(not installed)", "Python": platform.python_version(), **_versions()}
    names = [name for name in (PROJECT, "Python", "torch", "transformers") if name in versions]
    return ", ".join(f"{name} {versions[name]}" for name in names)


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT, and no whole model."""
    return (folder / ADAPTER_CONFIGURATION).is_file() and not (folder / "config.json").is_file()


def model_files(folder: Path, configuration: str = "config.json") -> list[Path]:
    """Returns the weights and config.json of a model folder. Raises ValueError if it contains no model."""
    files = [file for pattern in WEIGHT_PATTERNS for file in folder.glob(pattern)]
    weights = {file for file in files if file.name not in NOT_WEIGHTS}
    config = folder / configuration
    if not weights or not config.is_file():
        lacking = configuration if weights else "weights (*.safetensors or *.bin)"
        raise ValueError(f"{folder} is no model folder: it has no {lacking}. Name one that save_pretrained wrote.")
    return sorted(weights | {config})


def folder_fingerprint(model_dir: str | os.PathLike, configuration: str = "config.json") -> str:
    """Returns `sha256:...` over a model folder's files; a copy has the same. Raises as `model_files`.

    configuration: `adapter_config.json` for the folder of an adapter.
    """
    digest = hashlib.sha256()
    for file in model_files(Path(model_dir), configuration):
        with file.open("rb") as stream:
            digest.update(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def model_fingerprint(path: str) -> str:
    """Returns the `folder_fingerprint` of a folder, or `hub:owner/name@<commit>` of a model in the Hub's cache. Raises
    ValueError as `model_files`, and for an id that is not in the cache."""
    if Path(path).is_dir():
        return folder_fingerprint(path)
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(path, "config.json")
    if not isinstance(config, str):
        raise ValueError(f"{path} is neither a folder nor in the Hub's cache: its commit is not known.")
    return f"hub:{path}@{Path(config).parent.name}"


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Returns `sha256:...` over all that decides the ids of a text; a copy in another folder has the same."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        options = {
            name: value for name, value in tokenizer.init_kwargs.items() if not name.endswith(("_path", "_file"))
        }
        settings = [type(tokenizer).__name__, tokenizer.get_vocab(), options]
    else:
        settings = json.loads(backend.to_str())
        settings |= {"truncation": None, "padding": None}  # set by calls, and not part of the tokenizer
    content = json.dumps(settings, sort_keys=True, default=str)
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


@contextlib.contextmanager
def written_aside(path: str | os.PathLike) -> Generator[TextIO]:
    """Opens a UTF-8 file to write, in a folder that may be missing; readers see the old file or the whole new one.

    Removes what killed processes of this machine left of the same file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        process = leftover.suffixes[-2].removeprefix(".")
        if process.isdecimal() and not _is_running(int(process)):
            leftover.unlink(missing_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("w", encoding="utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def read_json(
    path: Path, missing: Any = ..., needs: Iterable[str] = (), advice: str = "Restore the file."
) -> dict[str, Any]:
    """Reads the object in a JSON file; returns `missing`, if that is given, for a file that does not exist. Raises
    ValueError, which ends with `advice`, for a damaged file, and an object without a field that it `needs`."""
    if missing is not ... and not path.is_file():
        return missing
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or not JSON: {error}. {advice}") from None
    absent = ["JSON object"]
    if isinstance(content, dict):
        absent = [name for name in needs if name not in content]
    if absent:
        raise ValueError(f"{path} has no {absent[0]}: it was changed, or is a different file. {advice}")
    return content


def write_json(path: str | os.PathLike, obj: Any) -> None:
    """Writes JSON with `written_aside`. Raises ValueError for NaN and infinity, which JSON does not have."""
    text = json.dumps(obj, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with written_aside(path) as stream:
        stream.write(text)


def write_csv(path: str | os.PathLike, table: Any, **options: Any) -> None:
    """Writes a DataFrame with `written_aside`; `options` are those of pandas' `to_csv`."""
    with written_aside(path) as stream:
        table.to_csv(stream, index=False, lineterminator="\n", **options)


def write_rows(path: str | os.PathLike, rows: Iterable[dict[str, Any]]) -> None:
    """Writes rows as JSON lines, with `written_aside`."""
    with written_aside(path) as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


def forget_machine(model_dir: str | os.PathLike) -> None:
    """Removes from a saved model folder the Trainer's pickle, and what the tokenizer keeps of this machine."""
    folder = Path(model_dir)
    (folder / "training_args.bin").unlink(missing_ok=True)
    settings = read_json(folder / "tokenizer_config.json", {})
    for trace in ("is_local", "local_files_only", "name_or_path"):
        settings.pop(trace, None)
    if settings:
        write_json(folder / "tokenizer_config.json", settings)
