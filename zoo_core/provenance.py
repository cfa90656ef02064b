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
FORMULA = tuple("=+-@\t\n＝＋－＠")  # first characters of formulas in spreadsheets, also in full width
NOT_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin")  # files that trainers leave in a model's folder


def run_facts(argv: list[str]) -> dict[str, Any]:
    """Returns facts of this run: command, start (UTC, ISO 8601), commit, versions and hardware.

    Names of users and machines are left out: the home folder in the command is written as `~`.
    """
    return {
        "command": _command(argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": _git_state(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": _versions(),
        "hardware": _hardware(),
    }


def _command(argv: list[str]) -> str:
    argv = [str(item) for item in argv]
    program = Path(argv[0]) if argv else None
    if program is not None and program.is_absolute():
        inside = program.is_relative_to(REPOSITORY)
        argv = [str(program.relative_to(REPOSITORY)) if inside else program.name, *argv[1:]]
    home = str(Path.home())
    if len(home) > 1:  # not "/"
        argv = [item.replace(home, "~") for item in argv]
    return shlex.join(argv)


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
    versions = {}
    for name in (*LIBRARIES, PROJECT):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def version_line() -> str:
    """Returns the versions to name in an issue: of the project, Python, torch and transformers."""
    found = {PROJECT: "(not installed)", "Python": platform.python_version(), **_versions()}
    return ", ".join(f"{name} {found[name]}" for name in (PROJECT, "Python", "torch", "transformers") if name in found)


def _hardware() -> dict[str, Any]:
    """CPU name, cores that this process may use, memory in GiB, GPUs with their memory, processes of the run."""
    import torch

    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = names[0] if names else cpu
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = None
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        memory = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append({"name": properties.name, "memory_gib": round(properties.total_memory / 2**30, 1)})
    processes = int(os.environ.get("WORLD_SIZE", 1))
    return {"cpu": cpu, "cores": cores, "memory_gib": memory, "gpus": gpus, "processes": processes}


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

    Raises ValueError for a file that is cut off, not JSON, nested more deeply than Python reads, or without one of the
    fields that the caller `needs`; `advice` ends the message.
    """
    if missing is not ... and not path.is_file():
        return missing
    try:
        found = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply. {advice}") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged or not JSON: {error}. {advice}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} does not contain a JSON object. {advice}")
    check_fields(found, path, needs, advice)
    return found


def check_fields(found: dict[str, Any], path: Path, needs: Iterable[str], advice: str = "Restore the file.") -> None:
    """Raises ValueError if `found`, the content of a JSON file, lacks one of the fields."""
    if absent := [name for name in needs if name not in found]:
        raise ValueError(f"{path} has no {absent[0]}: it was changed, or is a different file. {advice}")


def write_json(path: str | os.PathLike, obj: Any) -> None:
    """Writes JSON with `written_aside`. Raises ValueError for NaN and infinity, which JSON does not have."""
    text = json.dumps(obj, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with written_aside(path) as stream:
        stream.write(text)


def write_csv(path: str | os.PathLike, table: "DataFrame", **options: Any) -> None:
    """Writes a table for spreadsheets with `written_aside`; `options` are those of pandas' `to_csv`.

    An apostrophe is written before text that a spreadsheet would run as a formula, as OWASP advises: names of models
    and answers are not ours. Numbers are unchanged.
    """
    with written_aside(path) as stream:
        table.map(_as_cell).rename(columns=_as_cell).to_csv(stream, index=False, lineterminator="\n", **options)


def _as_cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    value = value.replace("\r\n", "\n").replace("\r", "\n")  # pandas quotes no "\r", which would begin a row
    if not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


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
