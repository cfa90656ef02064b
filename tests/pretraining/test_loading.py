"""What comes back from data-loading workers."""

import pytest
import torch
from torch.utils.data import get_worker_info

from pretraining.data.loading import CarefulLoader, _Parcel


class Batches:
    """Makes a batch of many kinds of things; of number 3 there is none."""

    def __getitems__(self, places):
        (number,) = places
        if number == 3:
            raise OSError(5, "gone")
        return {
            "tlm": {
                "ids": torch.arange(6).view(2, 3) + number,
                "part": torch.arange(40, dtype=torch.float32).view(5, 8)[:, 1:4].T,
                "flags": torch.tensor([True, False, True]),
                "small": torch.tensor([1, -2, 3], dtype=torch.int8),
                "share": torch.tensor(0.5, dtype=torch.bfloat16),
                "none": torch.empty(0, 4, dtype=torch.int16),
            },
            "languages": ["en", "de"],
            "temperature": 1.5,
            "worker": get_worker_info() is not None,
        }


def batches(workers):
    return iter(CarefulLoader(Batches(), batch_sampler=[[number] for number in range(5)], num_workers=workers))


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def test_a_batch_of_a_worker_is_whole_and_its_tensors_share_their_memory():
    own, handed = batches(0), batches(2)
    for number in range(3):
        here, there = next(own), next(handed)
        assert here.pop("worker") is False and there.pop("worker") is True
        assert same(here, there) and here["tlm"]["ids"][0, 0] == number
        tokens = {tensor.untyped_storage().data_ptr() for tensor in there["tlm"].values() if tensor.numel()}
        assert len(tokens) == 1
        there["tlm"]["ids"].zero_()  # nobody else's
        assert there["tlm"]["flags"].tolist() == [True, False, True] and there["tlm"]["part"][0, 0] == 1
    for iterator in (own, handed):
        with pytest.raises(OSError, match="gone"):
            next(iterator)


def test_a_batch_without_tensors():
    assert _Parcel({"languages": ["en"]}).open() == {"languages": ["en"]}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="memory is pinned for a GPU")
def test_pinned_once():
    loader = CarefulLoader(Batches(), batch_sampler=[[0]], num_workers=1, pin_memory=True)
    (batch,) = loader
    tensors = [tensor for tensor in batch["tlm"].values() if tensor.numel()]
    assert all(tensor.is_pinned() for tensor in tensors)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
