"""One run at a time in a run folder."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

logger = logging.getLogger(__name__)

LOCK = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems without locks say one of these

_held: set[int] = set()  # descriptors of locks of this process


def _let_go_in_child() -> None:
    # a data-loading worker that outlives a killed run by some seconds must not hold its lock
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Holds `<folder>/.lock`, which says who holds it; the system frees it when the process ends, however it ends.

    A folder that does not exist is made, and taken away again where nothing came into it.

    Raises ValueError where another run holds the lock, naming host, process and start, and for a folder that is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"output_dir {str(folder)!r} is a file: a run needs a folder. Give another output_dir.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    descriptor = _locked(path)
    _held.add(descriptor)
    try:
        owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        os.truncate(descriptor, 0)
        os.write(descriptor, json.dumps(owner).encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: whoever waits for it looks again (`_locked`)
        _held.discard(descriptor)
        os.close(descriptor)
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()


def _locked(path: Path) -> int:
    """A descriptor of the file with its lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            raise ValueError(_in_use(path.parent, owner)) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(descriptor)
                raise
            logger.warning(
                "%s is on a file system without locks: see to it yourself that no second run uses it", path.parent
            )
            return descriptor
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # of a run that has just ended and taken its file away


def holder(owner: bytes) -> str:
    """Who holds a lock, by the content of its file."""
    try:
        facts = json.loads(owner)
        return f"process {facts['pid']} on {facts['host']}, started {facts['started']}"
    except ValueError:  # it is just being written
        return "a process that has just started"


def _in_use(folder: Path, owner: bytes) -> str:
    return (
        f"the run folder {str(folder)!r} is in use by another run ({holder(owner)}): the two would overwrite each "
        "other's checkpoints. Wait until it is through, stop it, or give another output_dir."
    )
