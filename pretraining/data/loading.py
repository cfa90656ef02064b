"""Batches from data-loading workers, and what goes wrong in them, as if it had gone wrong here."""

import atexit
import pickle
import signal
import traceback
import weakref
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from zoo_core.interruption import SIGNALS, SLICE_SECONDS, leave_signals_to_main, stop_if_told


class CarefulLoader(DataLoader):
    """A `DataLoader` over a data set that makes whole batches (`__getitems__`) of what a batch sampler lists.

    A ValueError or OSError of a worker is raised here as itself (a DataLoader's own way is a traceback for a message),
    in the place of its batch: those before it can still be used. Signals are left to the main process; its workers end
    with it, however it ends. After one, whoever waits for a worker is raised `Stopped`.
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
                batches._shutdown_workers()  # as its own `__del__`, for which the traceback of an error is too long


class _FromWorkers(_MultiProcessingDataLoaderIter):
    """Looks for signals, and for workers that are gone, between two tries to get a batch. An exception out of a handler
    of signals may come at any place: what is being forked, locked or handed over stays half done, and a worker that
    hands over prints a traceback."""

    def __init__(self, loader: DataLoader):
        held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # for workers, until they have their own handlers
        of_children = signal.getsignal(signal.SIGCHLD)
        try:
            super().__init__(loader)
        finally:
            if signal.getsignal(signal.SIGCHLD) is not of_children:  # torch's raises, wherever the run stands
                signal.signal(signal.SIGCHLD, of_children)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def _try_get_data(self, timeout: float = SLICE_SECONDS) -> tuple[bool, Any]:
        stop_if_told()
        try:
            return super()._try_get_data(timeout)
        except RuntimeError:  # a worker is gone; told to, where the run has been told as well
            stop_if_told()
            raise


_OPEN: weakref.WeakSet[Generator] = weakref.WeakSet()


@atexit.register
def _close() -> None:
    """Ends the workers of loaders that are still in use, as the traceback of an error outside of them keeps them.

    Python would ask the workers once, by SIGTERM, and wait for ever: the first one is left to the main process.
    """
    for batches in list(_OPEN):
        batches.close()


class _Failure:
    """Stands for a batch that could not be made."""

    def __init__(self, error: Exception):
        """Notes, unlike tracebacks, survive the way between processes."""
        error.add_note("".join(traceback.format_exception(error)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # errors of other libraries may hold connections
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
    """Instead of a collator."""
    return batch
