# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that Paddle wrote, read without Paddle and without running what is in them.

- `.pdparams`: a pickle of names and arrays. Only arrays of numbers are loaded from it, never other objects.
- A folder of static-graph variables: one file a variable, named as the variable, each a dense tensor in Paddle's own
  format (a 32-bit version, 0; a 64-bit number of levels of detail, 0 for parameters; again a version; the length of a
  protobuf message with type and sizes; the message; the numbers).

Paddle multiplies states by weights of shape (in, out), torch by (out, in): see `transposed`.
"""

import collections
import pickle
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import torch

TABLE_OF_NAMES = "StructuredToParameterName@@"  # Paddle's own names of the parameters, beside them in the pickle
# numbers of Paddle's VarType.Type
TYPES = (np.bool_, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64)
# what arrays are made with again, under the names of all of numpy's versions
ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
ARRAY_MAKERS = {
    "_reconstruct": np.zeros(1).__reduce__()[0],
    "_frombuffer": np.zeros(1).__reduce_ex__(5)[0],
    "scalar": np.float32(0).__reduce__()[0],
}
PLAIN = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("builtins", "tuple"): tuple,  # (name, array), as newer versions write a parameter
    ("__builtin__", "tuple"): tuple,
}


class ArrayUnpickler(pickle.Unpickler):
    """Loads arrays, numbers, texts and their containers; any other object is refused before it is made."""

    def find_class(self, module: str, name: str):
        if (module, name) in PLAIN:
            return PLAIN[module, name]
        if module in ARRAY_MODULES and name in ARRAY_MAKERS:
            return ARRAY_MAKERS[name]
        if (module, name) == ("_codecs", "encode"):
            return latin_bytes
        raise pickle.UnpicklingError(f"objects of {module}.{name}")


def latin_bytes(text: str, encoding: str) -> bytes:
    """How pickles of protocol 2 hold bytes; no other encoding is theirs."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"text in the encoding {encoding!r}")
    return text.encode("latin1")


def read_pdparams(path: Path) -> dict:
    """Names and tensors of a `.pdparams` file; entries that are no arrays of numbers as they are.

    Raises UnpicklingError for objects other than arrays, which could run code, and whatever a damaged pickle raises.
    """
    with open(path, "rb") as file:
        content = ArrayUnpickler(file).load()
    if not isinstance(content, dict):
        return content
    values = {key: value[1] if isinstance(value, tuple) else value for key, value in content.items()}
    return {key: tensor_of(value) for key, value in values.items() if key != TABLE_OF_NAMES}


def tensor_of(value):
    """An array of numbers as a tensor, anything else as it is."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(value))
    return value


def read_variables(folder: Path) -> dict[str, torch.Tensor]:
    """Names and tensors of a folder of static-graph variables; other files (settings, vocabulary) are left out."""
    found = {path.name: read_variable(path) for path in sorted(folder.iterdir()) if path.is_file()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def read_variable(path: Path) -> torch.Tensor | None:
    """The tensor of one variable, or None for a file of another format.

    Raises ValueError for one that begins as a variable and is damaged.
    """
    with open(path, "rb") as file:
        if file.read(16) != bytes(16):  # version, levels of detail, version
            return None
        message = file.read(int.from_bytes(file.read(4), "little"))
        content = file.read()
    # TensorDesc: field 1 is the type, field 2, once for each dimension, the size; tags and values take turns
    numbers = list(varints(message))
    fields = list(zip(numbers[::2], numbers[1::2], strict=False))
    number_of_type = next((value for tag, value in fields if tag == 0x08), len(TYPES))
    shape = [value for tag, value in fields if tag == 0x10]
    if number_of_type >= len(TYPES) or prod(shape) * np.dtype(TYPES[number_of_type]).itemsize != len(content):
        raise ValueError(f"{path.name}, a variable of type {number_of_type} and shape {shape}, is damaged")
    return torch.from_numpy(np.frombuffer(bytearray(content), TYPES[number_of_type]).reshape(shape))


def varints(message: bytes) -> Iterator[int]:
    """The numbers of a protobuf message: groups of seven bits, the lowest first, the last without the eighth bit."""
    value = shift = 0
    for byte in message:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield value
            value = shift = 0


def transposed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Paddle's (in, out) as torch's (out, in): every matrix but the embeddings, whose rows are tokens or positions."""
    return {
        name: tensor.T.contiguous() if tensor.dim() == 2 and "embedding" not in name else tensor
        for name, tensor in state.items()
    }
