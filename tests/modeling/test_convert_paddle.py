"""Paddle's files, read without Paddle: what it writes is read, and nothing else is."""

import collections
import os
import pickle
import struct

import numpy as np
import pytest
import torch

from modeling.convert_paddle import CUT_PARAMETERS, TABLE_OF_NAMES, read_npz, read_pdparams, read_variables

WEIGHTS = {"linear.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "linear.bias": np.ones(3, np.float16)}


def equal(state, arrays):
    assert state.keys() == arrays.keys()
    return all(torch.equal(state[name], torch.from_numpy(array)) for name, array in arrays.items())


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_state_dicts(protocol, pickled, tmp_path):
    pickled(WEIGHTS | {TABLE_OF_NAMES: {"linear.weight": "linear_0.w_0"}}, tmp_path / "a.pdparams", protocol)
    assert equal(read_pdparams(tmp_path / "a.pdparams"), WEIGHTS)
    # newer versions write (name, array)
    pairs = collections.OrderedDict((name, (f"{name}_0", array)) for name, array in WEIGHTS.items())
    pickled(pairs, tmp_path / "b.pdparams", protocol)
    assert equal(read_pdparams(tmp_path / "b.pdparams"), WEIGHTS)
    # arrays over the protocol's limit are cut
    array = WEIGHTS["linear.weight"]
    cut = {"w@@.0": array.ravel()[:4], "w@@.1": array.ravel()[4:]}
    cut[CUT_PARAMETERS] = {"w": {"OriginShape": (2, 3), "slices": ["w@@.0", "w@@.1"]}}
    pickled(cut, tmp_path / "c.pdparams", protocol)
    assert equal(read_pdparams(tmp_path / "c.pdparams"), {"w": array})


def test_bfloat16_by_its_bits(pickled, tmp_path):
    values = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    pickled({"w": values.view(torch.int16).numpy().view(np.uint16)}, tmp_path / "a.pdparams")
    assert torch.equal(read_pdparams(tmp_path / "a.pdparams")["w"], values)


class Harmful:
    """A pickle of this calls os.mkdir when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_objects_are_refused_before_they_are_made(protocol, pickled, tmp_path):
    pickled({"w": WEIGHTS["linear.bias"], "x": Harmful(str(tmp_path / "made"))}, tmp_path / "a.pdparams", protocol)
    with pytest.raises(ValueError, match="holds objects of (posix|nt|os).mkdir beside its arrays"):
        read_pdparams(tmp_path / "a.pdparams")
    assert not (tmp_path / "made").exists()
    # not even by a longer name of what is allowed
    dotted = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    (tmp_path / "b.pdparams").write_bytes(dotted)
    with pytest.raises(ValueError, match="holds objects of numpy.ndarray.tofile"):
        read_pdparams(tmp_path / "b.pdparams")


def test_files_that_are_no_checkpoints(pickled, tmp_path):
    path = tmp_path / "a.pdparams"
    with pytest.raises(ValueError, match="cannot be read: FileNotFoundError"):
        read_pdparams(path)
    for content in (b"", b"hello", pickle.dumps(WEIGHTS)[:-20]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read"):
            read_pdparams(path)
    for content, message in (
        ([1, 2], "holds a list"),
        ({}, "holds no arrays"),
        ({"w": WEIGHTS["linear.bias"], "step": 3}, r"no arrays of numbers \(step\)"),
        ({"w": np.array(["a"])}, r"no arrays of numbers \(w\)"),
    ):
        pickled(content, path)
        with pytest.raises(ValueError, match=message):
            read_pdparams(path)
    (tmp_path / "a.npz").write_text("hello")
    with pytest.raises(ValueError, match="a.npz cannot be read"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", w=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="b.npz cannot be read"):
        read_npz(tmp_path / "b.npz")


@pytest.mark.parametrize("packed", [False, True])
def test_variables(packed, variable, tmp_path):
    arrays = {
        "a.w_0": np.arange(600, dtype=np.float32).reshape(300, 2),  # 300 takes two bytes
        "b.b_0": np.ones(3, np.float16),
        "c": np.arange(4, dtype=np.int64),
        "d": np.float64([[1]]),
    }
    for name, array in arrays.items():
        variable(tmp_path / name, array, packed)
    (tmp_path / "vocab.txt").write_text("no variable\n" * 9)
    (tmp_path / "short").write_bytes(b"ab")
    (tmp_path / "folder").mkdir()
    assert equal(read_variables(tmp_path), arrays)


def test_variables_that_are_none(variable, tmp_path):
    with pytest.raises(ValueError, match="holds no file in Paddle's format of variables"):
        read_variables(tmp_path)
    variable(tmp_path / "a", np.ones(3, np.float32))
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content[:-2])
    with pytest.raises(ValueError, match="describes an array of .*12 bytes, and has 10: it is damaged"):
        read_variables(tmp_path)
    # the right beginning, then anything
    for rest in (b"\xff" * 40, struct.pack("<Ii", 0, 3) + b"\x08\x63\x10", struct.pack("<Ii", 7, 3) + b"abc"):
        (tmp_path / "a").write_bytes(struct.pack("<IQ", 0, 0) + rest)
        with pytest.raises(ValueError, match="holds no file in Paddle's format"):
            read_variables(tmp_path)
