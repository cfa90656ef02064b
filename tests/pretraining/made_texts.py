"""Examples of a test, one by one, as the columns of a batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from crosslingual_zoo.pretraining.data.examples import Texts


class Example(NamedTuple):
    """A text or a translation pair, as token ids."""

    sides: list[np.ndarray]
    name: str
    number: int
    epoch: int = 0


def texts_of(examples: Sequence[Example]) -> Texts:
    """Collects examples that have the same number of sides."""
    sides_of_examples = [example.sides for example in examples]
    sides = [list(side) for side in zip(*sides_of_examples, strict=True)]
    ids = np.array([example.number for example in examples], dtype=np.int64)
    epochs = np.array([example.epoch for example in examples], dtype=np.int64)
    return Texts(sides, [example.name for example in examples], ids, epochs)
