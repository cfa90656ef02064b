# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that Paddle wrote, read without Paddle and without running what is in them.

- `.pdparams`: a pickle of names and arrays. Only arrays of numbers are loaded from it, never other objects.
- A folder of static-graph variables: one file a variable, named as the variable, each a dense tensor in Paddle's own
  format (an unsigned 32-bit version, 0; a 64-bit number of levels of detail, each with its size in bytes; again a
  version; the length of a protobuf message with type and sizes; the message; the numbers).
- `.npz`: arrays by name.

Paddle multiplies states by weights of shape (in, out), torch by (out, in): see `transposed`.
"""

import collections
import pickle
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import torch

TABLE_OF_NAMES = "StructuredToParameterName@@"  # Paddle's own names of the parameters, beside them in the pickle
CUT_PARAMETERS = "UnpackBigParamInfor@@"  # arrays too large for the pickle protocol: key -> their shape and parts
# numbers of Paddle's VarType.Type
TYPES = dict(enumerate((np.bool_, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64)))
TYPES |= {20: np.uint8, 21: np.int8, 22: np.uint16}  # the last is bfloat16, by its bits
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


def read_pdparams(path: str | Path) -> dict:
    """Names and tensors of a `.pdparams` file; entries that are no arrays of numbers as they are.

    Raises UnpicklingError for objects other than arrays, which could run code, and whatever a damaged pickle raises.
    """
    with open(path, "rb") as file:
        # what Python 2 wrote has arrays in latin1
        content = ArrayUnpickler(file, encoding="latin1").load()
    if not isinstance(content, dict):
        return content
    content = dict(content)
    content.pop(TABLE_OF_NAMES, None)
    for key, parts in content.pop(CUT_PARAMETERS, {}).items():
        content[key] = np.concatenate([content.pop(part) for part in parts["slices"]]).reshape(parts["OriginShape"])
    # newer versions write (name, array)
    return tensors_of({key: value[1] if isinstance(value, tuple) else value for key, value in content.items()})


def read_npz(path: str | Path) -> dict:
    """Names and tensors of a `.npz` file."""
    with np.load(path, allow_pickle=False) as file:
        return tensors_of(dict(file))


def read_variables(folder: str | Path) -> dict:
    """Names and tensors of a folder of static-graph variables; other files (settings, vocabulary) are left out."""
    arrays = {path.name: read_variable(path) for path in sorted(Path(folder).iterdir()) if path.is_file()}
    return tensors_of({name: array for name, array in arrays.items() if array is not None})


def read_variable(path: Path) -> np.ndarray | None:
    """The array of one variable, or None for a file of another format.

    Raises ValueError for one that begins as a variable and is cut short.
    """
    with open(path, "rb") as file:
        head = file.read(12)
        if len(head) < 12:
            return None
        version, levels = struct.unpack("<IQ", head)
        if version != 0 or levels > 8:  # sentences and paragraphs: parameters have none
            return None
        content = file.read()
    try:
        position = 0
        for _ in range(levels):
            position += 8 + struct.unpack_from("<Q", content, position)[0]
        version, length = struct.unpack_from("<Ii", content, position)
        position += 8
        if version != 0 or not 0 < length <= 256:
            return None
        number_of_type, shape = read_description(content[position : position + length])
        position += length
        dtype = np.dtype(TYPES[number_of_type])
    except (struct.error, KeyError, IndexError):
        return None
    size = prod(shape) * dtype.itemsize
    if len(content) - position != size:
        raise ValueError(f"{path.name} should hold {size} bytes and has {len(content) - position}")
    array = np.frombuffer(content, dtype, offset=position).reshape(shape)
    return array.copy()  # torch does not take what cannot be written to


def read_description(message: bytes) -> tuple[int, list[int]]:
    """Type and sizes in a protobuf message TensorDesc: field 1 the type, field 2 the sizes, one by one or packed."""
    numbers = iter(message)
    number_of_type, shape = -1, []
    for tag in numbers:
        if tag == 0x08:
            number_of_type = read_varint(numbers)
        elif tag == 0x10:
            shape.append(read_varint(numbers))
        elif tag == 0x12:
            packed = iter(bytes(next(numbers) for _ in range(read_varint(numbers))))
            for first in packed:
                shape.append(read_varint(packed, first))
        else:
            raise KeyError(tag)
    return number_of_type, shape


def read_varint(numbers: Iterator[int], byte: int | None = None) -> int:
    """A number in protobuf's groups of seven bits, the lowest first. Raises IndexError where it does not end."""
    value = shift = 0
    while True:
        byte = next(numbers, None) if byte is None else byte
        if byte is None or shift > 63:
            raise IndexError("a number that does not end")
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value
        shift, byte = shift + 7, None


def tensors_of(arrays: dict) -> dict:
    """The arrays of numbers as tensors; unsigned 16-bit ones are bfloat16, which numpy does not have."""
    state = dict(arrays)
    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and array.dtype == np.uint16:
            state[name] = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        elif isinstance(array, np.ndarray) and array.dtype.kind in "fiub":
            state[name] = torch.from_numpy(np.ascontiguousarray(array))
    return state


def transposed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Paddle's (in, out) as torch's (out, in): every matrix but the embeddings, whose rows are tokens or positions."""
    return {
        name: tensor.T.contiguous() if tensor.dim() == 2 and "embedding" not in name else tensor
        for name, tensor in state.items()
    }
