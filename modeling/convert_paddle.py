# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that Paddle wrote (`.pdparams`), read without Paddle and without running what is in them.

Such a file is a pickle of names and arrays. Only arrays of numbers are loaded from it, never other objects. Paddle
multiplies states by weights of shape (in, out), torch by (out, in): see `transposed`.
"""

import collections
import pickle
from pathlib import Path

import numpy as np
import torch

TABLE_OF_NAMES = "StructuredToParameterName@@"  # an entry of the pickle: Paddle's own names of the parameters
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
    """Names and tensors of a `.pdparams` file; entries that are no arrays of numbers are unchanged.

    Raises UnpicklingError for objects other than arrays, which could run code. A damaged pickle raises other errors.
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


def transposed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Paddle's (in, out) as torch's (out, in): every matrix but the embeddings, whose rows are tokens or positions."""
    return {
        name: tensor.T.contiguous() if tensor.dim() == 2 and "embedding" not in name else tensor
        for name, tensor in state.items()
    }
