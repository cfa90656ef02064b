"""Paddle's files, read without Paddle: what it writes is read, and nothing else is."""

import collections
import os
import pickle

import numpy as np
import pytest
import torch

from modeling.convert_common import read_state
from modeling.convert_paddle import TABLE_OF_NAMES

WEIGHTS = {"linear.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "linear.bias": np.ones(3, np.float16)}


def same(path, arrays):
    state, _ = read_state(path)
    assert state.keys() == arrays.keys()
    return all(torch.equal(state[name], torch.from_numpy(array)) for name, array in arrays.items())


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_state_dicts(protocol, pickled, tmp_path):
    path = tmp_path / "a.pdparams"
    pickled(WEIGHTS | {TABLE_OF_NAMES: {"linear.weight": "linear_0.w_0"}}, path, protocol)
    assert same(path, WEIGHTS)
    # newer versions write (name, array)
    pickled(collections.OrderedDict((name, (f"{name}_0", array)) for name, array in WEIGHTS.items()), path, protocol)
    assert same(path, WEIGHTS)


class Harmful:
    """A pickle of this calls os.mkdir when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_objects_are_refused_before_they_are_made(protocol, pickled, tmp_path):
    pickled({"w": WEIGHTS["linear.bias"], "x": Harmful(str(tmp_path / "made"))}, tmp_path / "a.pdparams", protocol)
    with pytest.raises(ValueError, match="(posix|nt|os).mkdir"):
        read_state(tmp_path / "a.pdparams")
    assert not (tmp_path / "made").exists()
    # not even by a longer name of what is allowed
    (tmp_path / "b.pdparams").write_bytes(b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.")
    with pytest.raises(ValueError, match="numpy.ndarray.tofile"):
        read_state(tmp_path / "b.pdparams")


def test_files_that_are_no_checkpoints(pickled, tmp_path):
    path = tmp_path / "a.pdparams"
    with pytest.raises(ValueError, match="a.pdparams"):
        read_state(path)
    for content in (b"", b"hello", pickle.dumps(WEIGHTS)[:-20]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="a.pdparams"):
            read_state(path)
    for content in ([1, 2], {}, {"w": WEIGHTS["linear.bias"], "step": 3}, {"w": np.array(["a"])}):
        pickled(content, path)
        with pytest.raises(ValueError, match="a.pdparams"):
            read_state(path)
