"""Folders that runs write into: one run at a time works in one, and only a run's own files are removed from it."""

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
    """Holds `<folder>/.zoo-run.lock`; the system frees it when the process ends, however it ends.

    Of several processes of a run the first one holds it for all. Folders that do not exist are made, and removed again
    where nothing came into them.

    Raises ValueError, in all processes that have joined, where another run holds the lock, for such a file that no run
    wrote, and for a folder that is a file.
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
            (folder / LOCK).unlink(missing_ok=True)  # while it is held: whoever waits for it looks again
            lock.release()
            for path in made:
                with contextlib.suppress(OSError):  # not empty
                    path.rmdir()


def _acquire(lock: FileLock, folder: Path) -> None:
    if folder.is_file():
        raise ValueError(f"output_dir {str(folder)!r} is a file: a run needs a folder. Name another one.")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK
    if file.is_file() and file.stat().st_size:  # ours is empty
        raise ValueError(f"{str(folder)!r} is not empty: its {LOCK} is another program's. Name another folder.")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ValueError(
            f"the folder {str(folder)!r} is in use by another run, which holds its {LOCK}: wait until that run ends, "
            "stop it, or name another folder."
        ) from error


def _from_first(refused: Exception | None) -> Exception | None:
    """What refused the first process. Where the processes have not joined yet, the launcher ends the others."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return refused
    from torch import distributed  # slow to import

    found = [refused]
    if distributed.is_available() and distributed.is_initialized():
        distributed.broadcast_object_list(found)
    return found[0]


def not_own(folder: Path, own: str) -> list[str]:
    """What a folder holds besides the lock and names of the form `own`, a regular expression; none if it is missing."""
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    return [name for name in names if name != LOCK and not re.fullmatch(own, name)]


def remove_own(folder: Path, own: str, kept: Collection[Path] = ()) -> None:
    """Removes what a folder holds under names of the form `own`, a regular expression, but for the `kept` paths; and
    then the folder, if it is empty. Links stay: no run makes them."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if re.fullmatch(own, path.name) and path not in kept and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty, or not there
        folder.rmdir()
