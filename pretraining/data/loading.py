"""Batches from data-loading workers, and what goes wrong in them, as if it had gone wrong here."""

import atexit
import io
import pickle
import signal
import traceback
import weakref
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from pretraining.interruption import SIGNALS, SLICE_SECONDS, leave_signals_to_main, stop_if_told


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
                yield batch.open() if isinstance(batch, _Parcel) else batch
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


class _Parcel:
    """A batch on its way from a worker, with all its tensors in one piece of memory: to hand over a token takes the
    main process a millisecond or more, however small it is."""

    ALIGNED = 16  # bytes: no dtype needs more

    def __init__(self, batch: Any):
        """`batch` is anything that can be pickled; tensors are found wherever they are in it."""
        stream = io.BytesIO()
        packing = _Packing(stream, protocol=pickle.HIGHEST_PROTOCOL)
        packing.dump(batch)
        self.content, self.places, size = stream.getvalue(), [], 0
        for tensor in packing.tensors:
            self.places.append((size, tensor.dtype, tensor.shape))
            size += -(-tensor.nbytes // self.ALIGNED) * self.ALIGNED
        self.memory = torch.empty(size, dtype=torch.uint8).share_memory_()
        for own, tensor in zip(self._tensors(), packing.tensors, strict=True):
            own.copy_(tensor)

    def _tensors(self) -> list[torch.Tensor]:
        return [
            self.memory[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for start, dtype, shape in self.places
        ]

    def pin_memory(self) -> "_Parcel":
        """Called by DataLoader, as of whatever it does not know."""
        self.memory = self.memory.pin_memory()
        return self

    def open(self) -> Any:
        """The batch."""
        return _Unpacking(self.content, self._tensors()).load()


class _Packing(pickle.Pickler):
    """Takes tensors out."""

    def __init__(self, stream: io.BytesIO, **settings: Any):
        super().__init__(stream, **settings)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class _Unpacking(pickle.Unpickler):
    """Puts them back."""

    def __init__(self, content: bytes, tensors: list[torch.Tensor]):
        super().__init__(io.BytesIO(content))
        self.persistent_load = tensors.__getitem__


class _Batches(Dataset):
    def __init__(self, dataset: Dataset):
        self.dataset = dataset

    def __getitems__(self, places: Sequence) -> Any:
        try:
            batch = self.dataset.__getitems__(places)
        except (ValueError, OSError) as error:
            return _Failure(error)
        return _Parcel(batch) if get_worker_info() else batch


def _as_it_is(batch: Any) -> Any:
    """Instead of a collator."""
    return batch
