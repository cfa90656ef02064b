# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that Paddle wrote, read without Paddle and without running what is in them."""

import collections
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

# what pickles of numpy's arrays are made with, under the names of all of numpy's versions
ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
ARRAYS = {
    "_reconstruct": np.zeros(1).__reduce__()[0],
    "_frombuffer": np.zeros(1).__reduce_ex__(5)[0],
    "scalar": np.float32(0).__reduce__()[0],
}
PLAIN = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("builtins", "tuple"): tuple,  # (name, array), as newer versions of Paddle write a parameter
    ("__builtin__", "tuple"): tuple,
}
# Paddle's VarType.Type, by number
PADDLE_TYPES = (np.bool_, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64)


class ArrayUnpickler(pickle.Unpickler):
    """Loads arrays, numbers, texts and their containers; any other object is refused before it is made."""

    def find_class(self, module: str, name: str):
        if (module, name) in PLAIN:
            return PLAIN[module, name]
        if module in ARRAY_MODULES and name in ARRAYS:
            return ARRAYS[name]
        if (module, name) == ("_codecs", "encode"):  # how pickles of protocol 2 hold bytes
            return lambda text, encoding: text.encode("latin1")
        raise pickle.UnpicklingError(f"objects of {module}.{name}")


def read_pdparams(path: Path) -> Any:
    """Names and tensors of a `.pdparams` file, a pickle; entries that are no arrays of numbers are unchanged."""
    with open(path, "rb") as file:
        content = ArrayUnpickler(file).load()
    if not isinstance(content, dict):
        return content
    content.pop("StructuredToParameterName@@", None)  # Paddle's own names
    values = {key: value[1] if isinstance(value, tuple) else value for key, value in content.items()}
    is_array = {key: isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for key, value in values.items()}
    return {
        key: torch.from_numpy(np.ascontiguousarray(value)) if is_array[key] else value for key, value in values.items()
    }


def read_variable(path: Path) -> torch.Tensor | None:
    """The tensor of a variable of Paddle's static graph; None for a file of another format.

    The format: a 32-bit version, a 64-bit number of levels, again a version, all 0; the length of a protobuf message
    with type (field 1) and sizes (field 2); the message; the numbers. Raises ValueError for a damaged one.
    """
    with open(path, "rb") as file:
        if file.read(16) != bytes(16):
            return None
        message, content = file.read(int.from_bytes(file.read(4), "little")), file.read()
    numbers, value, shift = [], 0, 0
    for byte in message:  # seven bits a byte, the lowest first; the last has no eighth bit
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(value)
            value = shift = 0
    fields = list(zip(numbers[::2], numbers[1::2], strict=False))
    kind, shape = dict(fields).get(0x08, -1), [size for tag, size in fields if tag == 0x10]
    if not 0 <= kind < len(PADDLE_TYPES) or math.prod(shape) * np.dtype(PADDLE_TYPES[kind]).itemsize != len(content):
        raise ValueError(f"{path.name}, a variable of type {kind} and shape {shape}, is damaged")
    return torch.from_numpy(np.frombuffer(bytearray(content), PADDLE_TYPES[kind]).reshape(shape))


def transposed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Paddle's (in, out) as torch's (out, in): every matrix but the embeddings, whose rows are tokens or positions."""
    return {key: of.T.contiguous() if of.dim() == 2 and "embedding" not in key else of for key, of in state.items()}
