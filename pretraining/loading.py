"""Batches from data-loading workers, and what goes wrong in them, as if it had gone wrong here."""

import atexit
import pickle
import traceback
import weakref
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset

from pretraining.interruption import leave_signals_to_main


class CarefulLoader(DataLoader):
    """A `DataLoader` over a data set that makes whole batches (`__getitems__`) of what a batch sampler lists.

    A ValueError or OSError of a worker is raised here as itself (a DataLoader's own way is a traceback for a message),
    in the place of its batch: those before it can still be used. Signals are left to the main process; its workers end
    with it, however it ends.
    """

    def __init__(self, dataset: Dataset, **settings: Any):
        super().__init__(_Batches(dataset), collate_fn=_as_it_is, worker_init_fn=leave_signals_to_main, **settings)

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        _OPEN.add(batches)
        return batches

    def _batches(self) -> Generator[Any, None, None]:
        for batch in super().__iter__():
            if isinstance(batch, _Failure):
                raise batch.error
            yield batch


_OPEN: weakref.WeakSet[Generator] = weakref.WeakSet()


@atexit.register
def _close() -> None:
    """Ends the workers of loaders that are still in use: where an error was not expected, its traceback holds them.

    Python would ask them once, by SIGTERM, and wait for ever: the first one is left to the main process.
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
