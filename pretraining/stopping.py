"""Reasons to end a run between two steps: a signal, and data that cannot be read."""

import signal
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice

from accelerate.utils import gather_object

from crosslingual_zoo.zoo_core.processes import Stopped, at_once, received


class Stops:
    """Reads the batches of this process, and knows its reasons to stop, on which all processes agree between steps."""

    error: str | None = None  # why this process has no batch
    batches: Iterator[dict] = iter(())
    has_workers = False

    def __enter__(self) -> "Stops":
        return self

    def __exit__(self, *exception: object) -> None:
        self.batches = iter(())  # ends the workers: a traceback would keep the loader, and Python would wait for them

    def read(self, loader: Iterable[dict], has_workers: bool) -> None:
        """Starts the loader of a phase, whose batches `fetch` returns."""
        handler = signal.getsignal(signal.SIGCHLD)
        self.batches = iter(loader)
        self.has_workers = has_workers
        if signal.getsignal(signal.SIGCHLD) is not handler:
            signal.signal(signal.SIGCHLD, handler)  # torch's would raise an error for a killed worker during a step

    def fetch(self, count: int) -> list[dict]:
        """Returns the `count` micro-batches of the next step; none if the phase ends, a signal came or reading failed.

        It raises no error, because the process is in the middle of a step, and others wait for it.
        """
        try:
            # a signal while it waits for workers is only noted: raised inside the loader, it could leave a lock
            with nullcontext() if self.has_workers else at_once():
                return list(islice(self.batches, count))
        except Stopped:
            pass
        except Exception as error:
            if received() is None:  # else a signal may have ended a worker
                message = str(error).strip() or repr(error)
                self.error = message.splitlines()[-1]  # of a worker's traceback
        return []

    def reasons(self) -> list[bool]:
        """Returns whether this process has each reason: SIGTERM, SIGINT, no batch."""
        return [received() == signal.SIGTERM, received() == signal.SIGINT, self.error is not None]

    def agreed(self, reasons: list[float]) -> Stopped | ValueError | None:
        """Returns why all processes have to stop, from the sums of their `reasons`."""
        terminated, interrupted, has_no_batch = reasons
        if has_no_batch:
            errors = gather_object([self.error])
            if len(errors) == 1:
                return ValueError(self.error)
            return ValueError("; ".join(f"process {number}: {error}" for number, error in enumerate(errors) if error))
        if terminated:
            return Stopped(signal.SIGTERM)
        return Stopped(signal.SIGINT) if interrupted else None
