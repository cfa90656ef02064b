"""Folders that runs write into: a folder belongs to one run at a time, and only files of runs are removed from it."""

import contextlib
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Collection, Generator
from pathlib import Path

from filelock import FileLock, Timeout

from crosslingual_zoo.zoo_core.processes import from_all, launched_rank

LOCK = ".zoo-run.lock"  # a name that no other program has
FAILURE = "failure.txt"  # the traceback of a run that failed among others
DAMAGED = "damaged (missing, empty or cut off)"
STEP = r"step-[1-9][0-9]*"  # a checkpoint of pre-training, in <run>/checkpoints


@contextlib.contextmanager
def run_lock(folder: str | Path) -> Generator[None]:
    """Holds `<folder>/.zoo-run.lock`, which the system releases when the process ends; the first one holds it for all.
    Missing folders are created, and removed again if they stay empty. Raises ValueError, in all processes, if another
    run holds the lock, and if the folder is a file."""
    with contextlib.ExitStack() as stack:

        def lock() -> None:
            if launched_rank() == 0:
                stack.enter_context(_locked(Path(folder)))

        from_all(lock)
        yield


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    if folder.is_file():
        raise ValueError(f"output_dir {str(folder)!r} is a file, but must be a folder. Name another one.")
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(f"the folder {str(folder)!r} is in use by another run. Stop that, or name another.") from error
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: a run that waits for it looks again
        lock.release()
        for path in missing:
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()


def not_own(folder: Path, pattern: str) -> list[str]:
    """Lists a folder's entries except the lock and names that match `pattern`; none if the folder is missing."""
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    return [name for name in names if name != LOCK and not re.fullmatch(pattern, name)]


def remove_own(folder: Path, pattern: str, needed: Collection[Path] = ()) -> None:
    """Removes entries whose names match `pattern`, then the folder if it is empty. `needed` paths and links stay."""
    entries = list(folder.iterdir()) if folder.is_dir() else []
    for path in entries:
        if path in needed or path.is_symlink() or not re.fullmatch(pattern, path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty, or missing
        folder.rmdir()


def newest_whole(checkpoints: list[Path], needs: Collection[str]) -> Path | None:
    """Returns the newest of some checkpoints (oldest first) that is whole; a line names what it passes over.

    None if there are no checkpoints. Raises ValueError if none of them is whole. `needs` are names of files.
    """
    damaged = None
    for checkpoint in reversed(checkpoints):
        file = damaged_file(checkpoint, needs)
        if file is None:
            if damaged and launched_rank() == 0:
                print(f"{damaged} is {DAMAGED}: the run resumes from {checkpoint}.", file=sys.stderr)
            return checkpoint
        damaged = damaged or file
    if damaged:
        folder = checkpoints[-1].parent
        advice = f"Restore it, or remove {folder} to train from the start."
        raise ValueError(f"{damaged} is {DAMAGED}, and no other checkpoint is whole. {advice}")
    return None


def damaged_file(checkpoint: Path, needs: Collection[str]) -> Path | None:
    """Returns a file of a checkpoint that a power failure or a copy has left empty or cut off, or that is missing.

    `needs` are names of files that must be there. None if all files are whole.
    """
    for name in needs:
        if not (checkpoint / name).is_file():
            return checkpoint / name
    for file in sorted(checkpoint.rglob("*")):
        if file.is_file() and not is_whole(file):
            return file
    return None


def is_whole(file: Path) -> bool:
    """Whether a file has its end: that of JSON, of what torch.save writes (a zip archive, whose directory is at its
    end), and of safetensors (the header has the size); other files, but Python's, must have content."""
    from safetensors import SafetensorError, safe_open

    if file.suffix in (".pt", ".pth", ".bin", ".pkl"):
        return zipfile.is_zipfile(file)
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, "np"):
                return True
        if file.suffix == ".json":
            json.loads(file.read_bytes())
    except (SafetensorError, ValueError):
        return False
    return file.stat().st_size > 0 or file.suffix == ".py"
