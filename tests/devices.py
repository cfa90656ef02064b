"""A mode that finds where code makes a tensor without naming its device.

`torch.arange(3)` makes a tensor on the CPU. Together with tensors on a GPU it is an error, or the GPU waits for a copy.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(str(ROOT / package) + "/" for package in ("modeling", "pretraining", "zoo_core"))
FOLLOWS_ITS_DATA = {torch.as_tensor, torch.asarray}  # of a tensor, not of a list
CONSTRUCTORS = FOLLOWS_ITS_DATA | {torch.tensor, torch.scalar_tensor, torch.empty, torch.zeros, torch.ones, torch.full}
CONSTRUCTORS |= {torch.arange, torch.linspace, torch.eye, torch.tril_indices, torch.triu_indices}
CONSTRUCTORS |= {torch.rand, torch.randn, torch.randint, torch.randperm}


class WithoutDevice(TorchFunctionMode):
    """Collects the places, as file:line, of all calls in files of `folders` that make a tensor and name no device."""

    def __init__(self, folders: tuple[str, ...] = PACKAGES):
        super().__init__()
        self.folders, self.places = folders, set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in CONSTRUCTORS and kwargs.get("device") is None:
            caller = sys._getframe(1)
            follows = func in FOLLOWS_ITS_DATA and isinstance(args[0], torch.Tensor)
            if caller.f_code.co_filename.startswith(self.folders) and not follows:
                self.places.add(f"{Path(caller.f_code.co_filename).relative_to(ROOT)}:{caller.f_lineno}")
        return func(*args, **kwargs)


@contextlib.contextmanager
def devices_are_named() -> Iterator[None]:
    """Fails where code of this repository, run inside, makes a tensor without a device."""
    with WithoutDevice() as mode:
        yield
    assert not mode.places, f"name the device: {', '.join(sorted(mode.places))}"
