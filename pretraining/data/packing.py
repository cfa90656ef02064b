"""Short texts put together until they fill `max_length` positions: what a step draws is then a bin of texts.

Every text remains a row of its own, so that nothing is attended across texts and masks are those it has alone; a model
that computes nothing at padding (`model.skip_padding`) spends no time on their unequal lengths.

Legend: `N` texts, `K` bins.
"""

import numpy as np


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
