"""A mode that finds where code makes a tensor without naming its device.

`torch.arange(3)` makes a tensor on the CPU. Together with tensors on a GPU it is an error, or the GPU waits for a copy.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(str(ROOT / package) + "/" for package in ("modeling", "pretraining", "zoo_core"))
FOLLOWS_ITS_DATA = (torch.as_tensor, torch.asarray)  # of a tensor, not of a list


class WithoutDevice(TorchFunctionMode):
    """Collects the places, as file:line, of all calls in files of `folders` that make a tensor and name no device."""

    def __init__(self, folders: tuple[str, ...] = PACKAGES):
        super().__init__()
        self.folders, self.places = folders, set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.Tensor.backward, torch.autograd.backward):
            with mock.patch.object(torch.autograd, "_engine_run_backward", self.run_backward):
                return func(*args, **kwargs)
        if func in _device_constructors() and kwargs.get("device") is None:
            caller = sys._getframe(1)
            follows = func in FOLLOWS_ITS_DATA and isinstance(args[0], torch.Tensor)
            if caller.f_code.co_filename.startswith(self.folders) and not follows:
                self.places.add(f"{Path(caller.f_code.co_filename).relative_to(ROOT)}:{caller.f_lineno}")
        return func(*args, **kwargs)

    def run_backward(self, *args, **kwargs):
        """torch runs a function that the mode has seen without the mode, and so a backward of ours."""
        with self:
            return _engine_run_backward(*args, **kwargs)


@contextlib.contextmanager
def devices_are_named() -> Iterator[None]:
    """Fails where code of this repository, run inside, makes a tensor without a device."""
    with WithoutDevice() as mode:
        yield
    assert not mode.places, f"name the device: {', '.join(sorted(mode.places))}"
