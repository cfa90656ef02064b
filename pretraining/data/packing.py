"""Short texts put together until they fill `max_length` positions: what a step draws is then a bin of texts.

Every text remains a row of its own, so that nothing is attended across texts and masks are those it has alone; a model
that computes nothing at padding (`model.skip_padding`) spends no time on their unequal lengths.

Legend: `N` texts, `K` bins.
"""

from typing import TYPE_CHECKING

import numpy as np

from pretraining.data.tokenized import SPECIALS_OF_PAIR, SPECIALS_OF_TEXT, Texts
from zoo_core.masking import keyed_rng

if TYPE_CHECKING:
    from pretraining.data.stored import Corpus


def best_fit(lengths: np.ndarray, room: int) -> np.ndarray:
    """(N,) the bin of each text, in the order in which they stand: into the fullest bin that has room for it.

    lengths: (N,) positions of each, 1 <= length <= room. Bins are kept by the room that they have left, of which there
    are few: the time is that of N look-ups, however many bins are open.
    """
    if len(lengths) == 0:
        return np.zeros(0, dtype=np.int64)
    smallest = int(lengths.min())
    # nothing fits beside these
    alone = lengths > room - smallest
    bin_of = np.empty(len(lengths), dtype=np.int64)
    bin_of[alone] = np.arange(alone.sum())
    count = int(alone.sum())
    with_room: list[list[int]] = [[] for _ in range(room + 1)]
    rooms = 0  # bit r: some bin has room for r positions
    found = []
    for length in lengths[~alone].tolist():
        if fitting := rooms >> length:
            left = length + (fitting & -fitting).bit_length() - 1
            bins = with_room[left]
            number = bins.pop()
            if not bins:
                rooms ^= 1 << left
        else:
            number, left, count = count, room, count + 1
        found.append(number)
        left -= length
        if left >= smallest:
            with_room[left].append(number)
            rooms |= 1 << left
    bin_of[~alone] = found
    return bin_of


class PackedCorpus:
    """The training texts of a corpus in bins; for sampling a bin is an example.

    The bins are the same in every epoch and process: texts are put into them in an order keyed by the seed. `lengths`
    (K,) are the positions that their texts take, special tokens included; `size` is that of the corpus, so that draws
    are shared out as without packing: a draw is a bin, and languages with short texts get more texts of it.
    """

    streaming = False

    def __init__(self, corpus: "Corpus", seed: int):
        self.corpus, self.name, self.languages, self.size = corpus, corpus.name, corpus.languages, corpus.size
        specials = SPECIALS_OF_TEXT if len(corpus.columns) == 1 else SPECIALS_OF_PAIR
        order = keyed_rng(seed, "packing", corpus.name).permutation(len(corpus.lengths))
        positions = corpus.lengths[order].astype(np.int64) + specials
        bin_of = best_fit(positions, corpus.max_length)
        # texts by bin, and where each bin begins among them
        self.texts = order[np.argsort(bin_of, kind="stable")]
        self.first = np.concatenate([[0], np.cumsum(np.bincount(bin_of))])
        self.lengths = np.bincount(bin_of, weights=positions).astype(np.int32)

    def read(self, epochs: np.ndarray, bins: np.ndarray) -> Texts:
        """The texts of some bins, one bin behind the other."""
        counts = self.first[bins + 1] - self.first[bins]
        indices = np.concatenate([self.texts[self.first[number] : self.first[number + 1]] for number in bins.tolist()])
        return self.corpus.read(np.repeat(epochs, counts), indices)

    def __str__(self) -> str:
        """How well it went."""
        filled = self.lengths.sum(dtype=np.int64) / (len(self.lengths) * self.corpus.max_length)
        return (
            f"{len(self.texts):,} texts in {len(self.lengths):,} bins of {self.corpus.max_length} positions, "
            f"{filled:.1%} full"
        )
