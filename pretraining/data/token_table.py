"""The tokens of a corpus' rows as flat arrays in memory or in mapped files, and quick access to parts of rows.

Legend: `R` rows of the table, `M` parts that are asked for.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class TokenTable:
    """Rows of token ids, which lie one after another in a few flat arrays: `lengths` (R,) int32 are their sizes."""

    def __init__(self, chunks: Sequence[np.ndarray], rows_of_chunks: Sequence[int], lengths: np.ndarray):
        """`chunks`: flat int32 arrays, each the tokens of its `rows_of_chunks` rows, in order and without gaps; they
        are only asked for by number, so that a file can be opened when it is first read."""
        self.chunks, self.lengths = chunks, lengths
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self.first_rows = np.cumsum([0, *rows_of_chunks])[:-1]
        # where a row begins in its chunk
        starts = starts[:-1] - np.repeat(starts[self.first_rows], rows_of_chunks)
        self.starts = starts.astype(np.min_scalar_type(starts.max(initial=0)))

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> "TokenTable":
        """The table of an Arrow column of lists of int32, without nulls; nothing is copied."""
        chunks = [chunk.flatten().to_numpy(zero_copy_only=True) for chunk in column.chunks]
        lengths = pc.list_value_length(column).to_numpy().astype(np.int32, copy=False)
        return cls(chunks, [len(chunk) for chunk in column.chunks], lengths)

    def slices(self, rows_M: np.ndarray, starts_M: np.ndarray, stops_M: np.ndarray) -> list[np.ndarray]:
        """(T,) int32 tokens `start` to below `stop` of each of M rows; views, not to be written to."""
        chunks, begin_M = self.chunks, self.starts[rows_M]
        # the last of those that begin at or before the row: chunks without rows are passed over
        chunk_M = np.searchsorted(self.first_rows, rows_M, side="right") - 1
        bounds = zip(chunk_M.tolist(), (begin_M + starts_M).tolist(), (begin_M + stops_M).tolist(), strict=True)
        return [chunks[chunk][start:stop] for chunk, start, stop in bounds]

    def ids(self, row: int) -> np.ndarray:
        """(T,) int32 tokens of a row; a view, not to be written to."""
        chunk = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        start = int(self.starts[row])
        return self.chunks[chunk][start : start + int(self.lengths[row])]
