"""Folders that runs write into: a folder belongs to one run at a time, and only files of runs are removed from it."""

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from zoo_core.command_line import launched_rank

LOCK = ".zoo-run.lock"  # a name that no other program has
STEP = r"step-[1-9][0-9]*"  # a checkpoint of pre-training, in <run>/checkpoints


@contextlib.contextmanager
def run_lock(folder: str | Path) -> Iterator[None]:
    """Holds `<folder>/.zoo-run.lock`. The system releases it when the process ends in any way.

    The first of several processes holds it for all. Missing folders are created, and removed again if they stay empty.

    Raises ValueError, in all processes that have joined, if another run holds the lock, if no run wrote the lock file,
    and if the folder is a file.
    """
    folder = Path(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    lock, is_first, refused = FileLock(folder / LOCK), launched_rank() == 0, None
    if is_first:
        try:
            _acquire(lock, folder)
        except (ValueError, OSError) as error:
            refused = error
    if refused := _from_first(refused):
        raise refused
    try:
        yield
    finally:
        if is_first:
            (folder / LOCK).unlink(missing_ok=True)  # while it is held: a run that waits for it looks again
            lock.release()
            for path in made:
                with contextlib.suppress(OSError):  # not empty
                    path.rmdir()


def _acquire(lock: FileLock, folder: Path) -> None:
    if folder.is_file():
        raise ValueError(f"output_dir {str(folder)!r} is a file, but must be a folder. Name another one.")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK
    if file.is_file() and file.stat().st_size:  # ours is empty
        raise ValueError(f"{str(folder)!r} is not empty: it has a {LOCK} that no run wrote. Name another folder.")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ValueError(
            f"the folder {str(folder)!r} is in use by another run, which holds its {LOCK}. Wait until that run ends, "
            "stop it, or name another folder."
        ) from error


def _from_first(refused: Exception | None) -> Exception | None:
    """Returns the error of the first process. If the processes have not joined yet, the launcher ends the others."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return refused
    from torch import distributed  # slow to import

    found = [refused]
    if distributed.is_available() and distributed.is_initialized():
        distributed.broadcast_object_list(found)
    return found[0]


def not_own(folder: Path, own: str) -> list[str]:
    """Lists a folder's entries except the lock and names that match `own`; none if the folder is missing."""
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    return [name for name in names if name != LOCK and not re.fullmatch(own, name)]


def remove_own(folder: Path, own: str, kept: Collection[Path] = ()) -> None:
    """Removes a folder's entries whose names match `own`, except the `kept` paths, then the folder if it is empty.

    Links stay, as no run makes them.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if re.fullmatch(own, path.name) and path not in kept and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty, or missing
        folder.rmdir()
