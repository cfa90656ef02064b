"""What comes back from data-loading workers."""

import pytest
import torch
from torch.utils.data import get_worker_info

from pretraining.data.loading import CarefulLoader


class Batches:
    """Of number 3 there is no batch."""

    def __getitems__(self, places):
        (number,) = places
        if number == 3:
            raise OSError(5, "gone")
        return {"tlm": {"ids": torch.arange(6).view(2, 3) + number}, "worker": get_worker_info() is not None}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_workers_and_their_errors(workers):
    loader = CarefulLoader(Batches(), batch_sampler=[[number] for number in range(5)], num_workers=workers)
    batches = iter(loader)
    for number in range(3):
        batch = next(batches)
        assert batch["worker"] == bool(workers) and torch.equal(
            batch["tlm"]["ids"], torch.arange(6).view(2, 3) + number
        )
    with pytest.raises(OSError, match="gone"):
        next(batches)
