"""One run at a time in a run folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Holds `<folder>/.lock`; the system frees it when the process ends, however it ends.

    A folder that does not exist is made, and taken away again where nothing came into it.

    Raises ValueError where another process holds the lock, and for a folder that is a file.
    """
    if folder.is_file():
        raise ValueError(f"output_dir {str(folder)!r} is a file: a run needs a folder. Give another output_dir.")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise ValueError(
            f"the folder {str(folder)!r} is in use by another run, which holds its {LOCK}: wait until it is through, "
            "stop it, or give another output_dir."
        ) from error
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: whoever waits for it looks again
        lock.release()
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
