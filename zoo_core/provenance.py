"""The facts of a run in run.json and results.json (command, versions, hardware), and a way to write files safely."""

import contextlib
import hashlib
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import yaml

if TYPE_CHECKING:
    from pandas import DataFrame

REPOSITORY = Path(__file__).resolve().parents[1]
LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "evaluate", "huggingface_hub", "omegaconf")
PROJECT = "crosslingual-zoo"  # as pyproject.toml names it
WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")  # files that trainers leave in a model's folder


def run_facts(argv: list[str]) -> dict[str, Any]:
    """Returns facts of this run: command, start (UTC, ISO 8601), commit, versions and hardware.

    Names of users and machines are left out: the home folder in the command is written as `~`.
    """
    import torch

    home, argv = str(Path.home()), [str(item) for item in argv]
    if argv and (program := Path(argv[0])).is_absolute():
        argv[0] = str(program.relative_to(REPOSITORY)) if program.is_relative_to(REPOSITORY) else program.name
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "command": shlex.join(item.replace(home, "~") if len(home) > 1 else item for item in argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": _git_state(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": _versions(),
        "hardware": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
            "gpus": [{"name": gpu.name, "memory_gib": round(gpu.total_memory / 2**30, 1)} for gpu in gpus],
            "processes": int(os.environ.get("WORLD_SIZE", 1)),
        },
    }


def _git_state() -> dict[str, Any] | None:
    """Commit of the repository that contains this code, and whether its files differ from it; None without one.

    Results of benchmarks do not count as differences.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != REPOSITORY:
            return None  # installed somewhere inside another project
        changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)bench/results")
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changes)}
    except (OSError, subprocess.SubprocessError):
        return None


def _versions() -> dict[str, str]:
    found = {}
    for name in (*LIBRARIES, PROJECT):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def version_line() -> str:
    """Returns the versions to name in an issue: of the project, Python, torch and transformers."""
    found = {PROJECT: "(not installed)", "Python": platform.python_version(), **_versions()}
    return ", ".join(f"{name} {found[name]}" for name in (PROJECT, "Python", "torch", "transformers") if name in found)


def model_files(folder: Path) -> list[Path]:
    """Returns the weights and config.json of a model folder. Raises ValueError if it contains no model."""
    weights = {file for pattern in WEIGHT_PATTERNS for file in folder.glob(pattern) if file.name not in NOT_WEIGHTS}
    config = folder / "config.json"
    if not weights or not config.is_file():
        lacking = "config.json" if weights else "weights (*.safetensors or *.bin)"
        raise ValueError(
            f"{folder} is not a model folder: it has no {lacking}. Name a folder that save_pretrained wrote."
        )
    return sorted(weights | {config})


def folder_fingerprint(model_dir: str | os.PathLike) -> str:
    """Returns `sha256:...` over a model folder's files; a copy has the same. Raises as `model_files`."""
    digest = hashlib.sha256()
    for file in model_files(Path(model_dir)):
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{file.name} {content}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def model_fingerprint(path: str) -> str:
    """Returns the `folder_fingerprint` of a folder; `hub:owner/name@<commit>` of a model in the Hub's cache.

    Raises ValueError as `model_files`, and for an id that is not in the cache.
    """
    if Path(path).is_dir():
        return folder_fingerprint(path)
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(path, "config.json")
    if not isinstance(config, str):
        raise ValueError(f"{path} is neither a folder nor in the Hub's cache: its commit is not known.")
    return f"hub:{path}@{Path(config).parent.name}"


@contextlib.contextmanager
def written_aside(path: str | os.PathLike) -> Iterator[TextIO]:
    """Opens a UTF-8 file for writing; readers see either the old file or the whole new one.

    A temporary file is written, synchronized and renamed; after an error it is removed. A missing folder is created.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("w", encoding="utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def read_json(
    path: Path, missing: Any = ..., needs: Iterable[str] = (), advice: str = "Restore the file."
) -> dict[str, Any]:
    """Reads the object in a JSON file; returns `missing`, if that is given, for a file that does not exist.

    Raises ValueError for a file that is damaged, not a JSON object, or without one of the fields that the caller
    `needs`; `advice` ends the message.
    """
    if missing is not ... and not path.is_file():
        return missing
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or not JSON: {error}. {advice}") from None
    absent = next((name for name in needs if name not in found), None) if isinstance(found, dict) else "JSON object"
    if absent:
        raise ValueError(f"{path} has no {absent}: it was changed, or is a different file. {advice}")
    return found


def write_json(path: str | os.PathLike, obj: Any) -> None:
    """Writes JSON with `written_aside`. Raises ValueError for NaN and infinity, which JSON does not have."""
    text = json.dumps(obj, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with written_aside(path) as stream:
        stream.write(text)


def write_csv(path: str | os.PathLike, table: "DataFrame", **options: Any) -> None:
    """Writes a table with `written_aside`; `options` are those of pandas' `to_csv`."""
    with written_aside(path) as stream:
        table.to_csv(stream, index=False, lineterminator="\n", **options)


def write_rows(
    path: str | os.PathLike, rows: Iterable[dict[str, Any]], about: Callable[[], dict[str, Any]] | None = None
) -> None:
    """Writes rows as JSON lines, and the result of `about`, if given, to a file of the same name with the suffix .yaml.

    `about` is called after the last row. It is not JSON or TSV, which `datasets` would read as more rows. Both files
    are written with `written_aside`: if the rows exist, so does the other file.
    """
    path = Path(path)
    with written_aside(path) as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
        if about:
            with written_aside(path.with_suffix(".yaml")) as about_stream:
                yaml.safe_dump(about(), about_stream, sort_keys=False, allow_unicode=True, width=120)


def forget_machine(model_dir: str | os.PathLike) -> None:
    """Removes traces of this machine from a saved model folder, so that it can be published.

    A tokenizer that was loaded without network keeps `is_local`, `local_files_only` and its path; the Trainer leaves
    its arguments as a pickle.
    """
    folder = Path(model_dir)
    (folder / "training_args.bin").unlink(missing_ok=True)
    settings_file = folder / "tokenizer_config.json"
    if settings := read_json(settings_file, None):
        for key in ("is_local", "local_files_only", "name_or_path"):
            settings.pop(key, None)
        write_json(settings_file, settings)
