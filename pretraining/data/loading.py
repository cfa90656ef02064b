"""Batches from data-loading workers; errors in a worker are raised in the main process."""

import atexit
import pickle
import signal
import traceback
import weakref
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from zoo_core.processes import SIGNALS, leave_signals_to_main, stop_if_told

SLICE_SECONDS = 0.1


class CarefulLoader(DataLoader):
    """A `DataLoader` over a data set that makes whole batches (`__getitems__`) from the lists of a batch sampler.

    A ValueError or OSError of a worker is raised here unchanged (torch's DataLoader raises one with a traceback as its
    message), in place of its batch; the batches before it can still be used. Only the main process handles signals; its
    workers always end with it. After a signal, waiting for a worker raises `Stopped`.
    """

    def __init__(self, dataset: Dataset, **settings: Any):
        super().__init__(_Batches(dataset), collate_fn=_as_it_is, worker_init_fn=leave_signals_to_main, **settings)

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        _OPEN.add(batches)
        return batches

    def _get_iterator(self) -> Iterator[Any]:
        return _FromWorkers(self) if self.num_workers else super()._get_iterator()

    def _batches(self) -> Generator[Any, None, None]:
        batches = super().__iter__()
        try:
            for batch in batches:
                if isinstance(batch, _Failure):
                    raise batch.error
                yield batch
        finally:
            if self.num_workers:
                batches._shutdown_workers()  # its own `__del__` would run too late: an error's traceback keeps it alive


class _FromWorkers(_MultiProcessingDataLoaderIter):
    """Looks for signals, and for workers that have ended, between two tries to get a batch.

    An exception from a signal handler could come at any place: a fork, a lock or a transfer would stay half done, and a
    worker in a transfer would print a traceback.
    """

    def __init__(self, loader: DataLoader):
        held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # for workers, until they have their own handlers
        of_children = signal.getsignal(signal.SIGCHLD)
        try:
            super().__init__(loader)
        finally:
            if signal.getsignal(signal.SIGCHLD) is not of_children:  # torch's handler raises at any place
                signal.signal(signal.SIGCHLD, of_children)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def _try_get_data(self, timeout: float = SLICE_SECONDS) -> tuple[bool, Any]:
        stop_if_told()
        try:
            return super()._try_get_data(timeout)
        except RuntimeError:  # a worker has ended, perhaps because of a signal that the run has received, too
            stop_if_told()
            raise


_OPEN: weakref.WeakSet[Generator] = weakref.WeakSet()


@atexit.register
def _close() -> None:
    """Ends the workers of loaders that are still in use; an error's traceback may keep a loader alive.

    Python would send the workers one SIGTERM, which they ignore, and wait forever.
    """
    for batches in list(_OPEN):
        batches.close()


class _Failure:
    """The error of a batch that could not be made, in its place."""

    def __init__(self, error: Exception):
        """Adds the traceback as a note: notes, unlike tracebacks, are passed between processes."""
        error.add_note("".join(traceback.format_exception(error)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # errors of other libraries may contain connections
            error = OSError(str(error)) if isinstance(error, OSError) else ValueError(str(error))
        self.error = error


class _Batches(Dataset):
    def __init__(self, dataset: Dataset):
        self.dataset = dataset

    def __getitems__(self, places: Sequence) -> Any:
        try:
            return self.dataset.__getitems__(places)
        except (ValueError, OSError) as error:
            return _Failure(error)


def _as_it_is(batch: Any) -> Any:
    """In place of a collator."""
    return batch
