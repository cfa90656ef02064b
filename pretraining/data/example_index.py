"""Where the examples of a corpus are: windows of texts, translation pairs, or adjacent segments, as parts of rows.

Legend: `R` rows, `M` pairs of rows, `N` examples, `S` sides of an example, `W` windows of rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from crosslingual_zoo.pretraining.data.examples import SPECIALS_OF_TEXT, cut_lengths
from crosslingual_zoo.pretraining.data.store import TokenStore

WINDOWS_OF_A_ROW = 1 << 20  # numbers per row, so that the id of a pair of segments determines row and window
ROWS_OF_BLOCK = 1 << 20  # rows that are read at once, whose intermediate arrays stay small


@dataclass
class ExampleIndex:
    """Examples as parts of rows: each side is the tokens from `starts` to below `stops` of a row.

    The arrays have as few bytes as their numbers need: a corpus may have hundreds of millions of examples.
    """

    ids: np.ndarray  # (N,) the same in all runs, held out or not
    rows: np.ndarray  # (S, N)
    starts: np.ndarray  # (S, N)
    stops: np.ndarray  # (S, N)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, examples: np.ndarray) -> "ExampleIndex":
        return ExampleIndex(*(numbers[..., examples] for numbers in vars(self).values()))

    @property
    def lengths(self) -> np.ndarray:
        """(N,): the number of tokens of each example, of its one or two texts."""
        return (self.stops[:2] - self.starts[:2]).sum(0)

    def small(self) -> "ExampleIndex":
        """Returns it in as few bytes as the numbers need."""
        return ExampleIndex(*(_small(numbers) for numbers in vars(self).values()))


def joined(blocks: list[ExampleIndex]) -> ExampleIndex:
    """Concatenates the examples of some blocks."""
    columns = zip(*(vars(block).values() for block in blocks), strict=True)
    return ExampleIndex(*(np.concatenate(column, axis=-1) for column in columns))


def _small(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.min_scalar_type(numbers.max(initial=0)))


class Block(NamedTuple):
    """The examples of some consecutive rows: for training, held out, and how many rows were dropped or cut."""

    training: ExampleIndex
    held_out: ExampleIndex
    counts: dict[str, int]


def windows(store: TokenStore, max_length: int, held_out_R: np.ndarray) -> Iterator[Block]:
    """Yields texts as consecutive windows for rows of `max_length` positions. They have all tokens of a text.

    `held_out_R` tells which rows are held out. An example's id is the number of the window in the corpus.
    """
    room = max_length - SPECIALS_OF_TEXT
    lengths_R = store.lengths
    first_id = 0
    for block in _blocks(len(lengths_R)):
        num_windows_R = -(-lengths_R[block] // room)
        rows_W, numbers_W = _numbered(np.arange(block.start, block.stop), num_windows_R)
        starts_W = numbers_W * room
        stops_W = np.minimum(starts_W + room, lengths_R[rows_W])
        ids_W = first_id + np.arange(len(rows_W))
        examples = ExampleIndex(ids_W, rows_W[None], starts_W[None], stops_W[None])
        counts = _counts(lengths_R[block], held_out_R[block])
        counts["windowed"] = int((num_windows_R > 1).sum())
        is_held_out_W = held_out_R[rows_W]
        yield Block(examples[~is_held_out_W], examples[is_held_out_W], counts)
        first_id += len(rows_W)


def pairs(
    stores: list[TokenStore], alignment_2M: np.ndarray | None, max_length: int, apart: bool, held_out: list[np.ndarray]
) -> Iterator[Block]:
    """Yields pairs with two sides that are not empty, and what further stores have in the rows of the first side.

    A long pair is cut as by `cut_lengths`. `alignment_2M` are the rows of the two sides that belong together; None:
    those with the same number. `held_out` tells for both sides which rows are held out. An example's id is its number
    among the pairs that are not empty.

    The sides of a pair may have different identities (one has ids, the other line numbers). A pair is for training if
    neither side is held out, and for evaluation if both are, so that no side is used for both.
    """
    lengths = [store.lengths for store in stores]
    num_pairs = len(lengths[0]) if alignment_2M is None else alignment_2M.shape[1]
    first_id = 0
    for block in _blocks(num_pairs):
        if alignment_2M is None:
            source_rows_M = target_rows_M = np.arange(block.start, block.stop)
        else:
            source_rows_M, target_rows_M = alignment_2M[:, block]
        lengths_2M = np.stack([lengths[0][source_rows_M], lengths[1][target_rows_M]])
        held_out_2M = np.stack([held_out[0][source_rows_M], held_out[1][target_rows_M]])
        shorter_M = lengths_2M.min(0)
        counts = _counts(shorter_M, np.any(held_out_2M, 0))
        cut_2M = cut_lengths(lengths_2M, max_length, apart)
        is_cut_M = (cut_2M != lengths_2M).any(0)
        has_text_M = shorter_M > 0
        counts["cut"] = int((is_cut_M & has_text_M).sum())

        rows = [source_rows_M[has_text_M], target_rows_M[has_text_M]]
        stops = [*cut_2M[:, has_text_M]]
        for lengths_R in lengths[2:]:
            rows.append(rows[0])
            stops.append(lengths_R[rows[0]])
        ids_N = first_id + np.arange(len(rows[0]))
        examples = ExampleIndex(ids_N, np.stack(rows), np.zeros((len(rows), len(ids_N)), np.uint8), np.stack(stops))
        held_out_2N = held_out_2M[:, has_text_M]
        yield Block(examples[~np.any(held_out_2N, 0)], examples[np.all(held_out_2N, 0)], counts)
        first_id += len(ids_N)


def segments(store: TokenStore, max_length: int, held_out_R: np.ndarray) -> Iterator[Block]:
    """Yields pairs of adjacent segments of one document (VECO, section 4 and footnote 9).

    A segment is a row, or one of the equal windows of a row longer than `max_length` positions. Two neighbors in a
    document are an example, so most segments are in two examples. Their order has no effect, because the loss (Eq. 1)
    is symmetric. A row without a neighbor gives its two halves. A held-out row does, too, because its neighbors are
    training text.
    """
    room = max_length - SPECIALS_OF_TEXT
    lengths_R = store.lengths.astype(np.int64)
    # a run: consecutive rows of a document, with only empty rows between them
    begins_run_R = store.new_documents() | held_out_R
    for block in _blocks(len(lengths_R), begins_run_R):
        lengths = lengths_R[block]
        is_held_out = held_out_R[block]
        counts = _counts(lengths, is_held_out)
        training = _neighbors(lengths, is_held_out, begins_run_R[block], room, block.start, counts)
        evaluated = _halves(lengths, is_held_out, room, block.start)
        yield Block(training, evaluated, counts)


def _neighbors(
    lengths_R: np.ndarray,
    held_out_R: np.ndarray,
    begins_run_R: np.ndarray,
    room: int,
    first_row: int,
    counts: dict[str, int],
) -> ExampleIndex:
    """Returns the neighboring segments of a block, and adds to its `counts`."""
    rows = np.flatnonzero((lengths_R > 0) & ~held_out_R)
    lengths = lengths_R[rows]
    runs = np.cumsum(begins_run_R)[rows]
    is_alone = np.bincount(runs)[runs] == 1
    num_windows = np.maximum(-(-lengths // room), np.where(is_alone, 2, 1))
    is_too_short = lengths < num_windows  # a single token has no halves
    counts["windowed"] = int((lengths_R > room).sum())
    counts["alone"] = int(is_too_short.sum())
    counts["halved"] = int((is_alone & ~is_too_short & (lengths <= room)).sum())

    # of each window: the place of its row in `rows`, and its number in the row
    places_W, numbers_W = _numbered(np.flatnonzero(~is_too_short), num_windows[~is_too_short])
    has_next = runs[places_W[1:]] == runs[places_W[:-1]]
    first_N = np.flatnonzero(has_next)
    neighbors_2N = np.stack([first_N, first_N + 1])  # indices of windows
    places_2N = places_W[neighbors_2N]
    numbers_2N = numbers_W[neighbors_2N]
    lengths_2N = lengths[places_2N]
    num_windows_2N = num_windows[places_2N]
    starts_2N = numbers_2N * lengths_2N // num_windows_2N
    stops_2N = (numbers_2N + 1) * lengths_2N // num_windows_2N
    rows_2N = first_row + rows[places_2N]
    ids_N = rows_2N[0] * WINDOWS_OF_A_ROW + numbers_2N[0]
    return ExampleIndex(ids_N, rows_2N, starts_2N, stops_2N)


def _halves(lengths_R: np.ndarray, held_out_R: np.ndarray, room: int, first_row: int) -> ExampleIndex:
    """Returns the two halves of each held-out row of a block, at most `room` tokens on both sides of its middle."""
    rows_N = np.flatnonzero(held_out_R & (lengths_R > 1))
    lengths_N = lengths_R[rows_N]
    middle_N = lengths_N // 2
    starts = [np.maximum(middle_N - room, 0), middle_N]
    stops = [middle_N, np.minimum(middle_N + room, lengths_N)]
    rows_N = first_row + rows_N
    return ExampleIndex(rows_N * WINDOWS_OF_A_ROW, np.stack([rows_N, rows_N]), np.stack(starts), np.stack(stops))


def _counts(lengths_R: np.ndarray, held_out_R: np.ndarray) -> dict[str, int]:
    """Counts rows, those without text, and those of text that are held out."""
    has_text_R = lengths_R > 0
    return {
        "rows": len(lengths_R),
        "empty": int((~has_text_R).sum()),
        "held_out": int((has_text_R & held_out_R).sum()),
    }


def _blocks(num_rows: int, may_begin_R: np.ndarray | None = None) -> Iterator[slice]:
    """Yields consecutive rows, at least one block. `may_begin_R` tells at which rows a block may begin; None: at all.

    A block has `ROWS_OF_BLOCK` rows, and all those after them at which no other block may begin.
    """
    start = 0
    while start < num_rows or start == 0:
        stop = min(start + ROWS_OF_BLOCK, num_rows)
        if may_begin_R is not None and stop < num_rows:
            may_begin = may_begin_R[stop:]
            stop = stop + int(may_begin.argmax()) if may_begin.any() else num_rows
        yield slice(start, stop)
        start = max(stop, 1)  # ends the loop also if there are no rows


def _numbered(items: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Repeats each item; returns also the number of each repetition among those of its item."""
    firsts = np.cumsum(counts) - counts
    return np.repeat(items, counts), np.arange(counts.sum()) - np.repeat(firsts, counts)
