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

from .convert_weights import State

TABLE_OF_NAMES = "StructuredToParameterName@@"  # Paddle's own names of the parameters, beside them in the pickle
CUT_PARAMETERS = "UnpackBigParamInfor@@"  # arrays too large for the pickle protocol: key -> their shape and parts
# numbers of Paddle's VarType.Type
TYPES = {
    0: np.bool_,
    1: np.int16,
    2: np.int32,
    3: np.int64,
    4: np.float16,
    5: np.float32,
    6: np.float64,
    20: np.uint8,
    21: np.int8,
    22: np.uint16,  # bfloat16, by its bits
}
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


def read_pdparams(path: str | Path) -> State:
    """Names and tensors of a `.pdparams` file.

    Raises ValueError for what is no pickle, for one with other objects than arrays (they are not loaded: pickled
    objects can run code), and for entries that are no arrays of numbers.
    """
    try:
        with open(path, "rb") as file:
            # what Python 2 wrote has arrays in latin1
            content = ArrayUnpickler(file, encoding="latin1").load()
    except pickle.UnpicklingError as error:
        if "objects of" in str(error):
            raise ValueError(
                f"{path} holds {error} beside its arrays: loading objects could run any code, and only arrays, numbers "
                "and texts are loaded. Where you trust the file, load it once with Paddle and save the state dict."
            ) from error
        raise unreadable(path, error) from error
    except Exception as error:  # a damaged pickle raises anything
        raise unreadable(path, error) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} holds a {type(content).__name__}: a converter needs names and their arrays. Give the file of a "
            "state dict, as model.save_pretrained or paddle.save(model.state_dict(), ...) writes it."
        )
    content = dict(content)
    content.pop(TABLE_OF_NAMES, None)
    for key, cut in content.pop(CUT_PARAMETERS, {}).items():
        content[key] = np.concatenate([content.pop(part) for part in cut["slices"]]).reshape(cut["OriginShape"])
    # the second of (name, array)
    arrays = {
        key: value[1] if isinstance(value, tuple) and len(value) == 2 else value for key, value in content.items()
    }
    return tensors_of(arrays, path)


def read_npz(path: str | Path) -> State:
    """Names and tensors of a `.npz` file. Raises ValueError for what is none, or holds objects."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zip, header and pickle errors are of many kinds
        raise unreadable(path, error) from error
    return tensors_of(arrays, path)


def read_variables(folder: str | Path) -> State:
    """Names and tensors of a folder of static-graph variables; what is no such file (settings, vocabulary) is left out.

    Raises ValueError for a folder without any.
    """
    arrays = {}
    for path in sorted(Path(folder).iterdir()):
        if path.is_file() and (array := read_variable(path)) is not None:
            arrays[path.name] = array
    if not arrays:
        raise ValueError(
            f"{folder} holds no file in Paddle's format of variables: there is nothing to convert. Give the folder "
            "that has one file for each variable (word_embedding, ...); a single file of all (__params__, .pdiparams) "
            "has no names, and has to be saved anew as .npz or .pdparams."
        )
    return tensors_of(arrays, folder)


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
        raise ValueError(
            f"{path} describes an array of {shape}, {size} bytes, and has {len(content) - position}: it is damaged or "
            "cut short. Copy it again."
        )
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


def tensors_of(arrays: dict[str, np.ndarray], source: str | Path) -> State:
    """The arrays as tensors; unsigned 16-bit matrices are bfloat16, which numpy does not have.

    Raises ValueError for entries that are no arrays of numbers.
    """
    state, others = {}, []
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            others.append(str(name))
        elif array.dtype == np.uint16:
            state[name] = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            state[name] = torch.from_numpy(np.ascontiguousarray(array))
    if others or not state:
        what = f"entries that are no arrays of numbers ({', '.join(others[:3])})" if others else "no arrays"
        raise ValueError(
            f"{source} holds {what}: a converter needs names and their arrays. Give the file of the weights alone, not "
            "that of an optimizer."
        )
    return state


def transposed(state: State) -> State:
    """Paddle's (in, out) as torch's (out, in): every matrix but the embeddings, whose rows are tokens or positions."""
    return {
        name: tensor.T.contiguous() if tensor.dim() == 2 and "embedding" not in name else tensor
        for name, tensor in state.items()
    }


def unreadable(path: str | Path, error: Exception) -> ValueError:
    """The error for a file that could not be read."""
    reason = f"{type(error).__name__} {error}".splitlines()[0]
    return ValueError(
        f"{path} cannot be read: {reason}. It is missing, damaged or no checkpoint. Give a file that Paddle or numpy "
        "wrote."
    )
