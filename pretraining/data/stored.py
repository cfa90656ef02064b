"""Corpora on disk as token ids: their examples, the lengths, and the held-out examples.

Legend: `R` rows, `N` training examples, `M` requested examples.
"""

import numpy as np

from pretraining.data.examples import SPECIALS_OF_PAIR, SPECIALS_OF_TEXT, Example, Texts, cut_pair
from pretraining.data.sources import Source, held_out_below
from pretraining.data.tokenized import TokenColumn
from pretraining.recipe_corpora import languages_of

WINDOWS_OF_A_ROW = 1 << 20  # numbers per row, so that an example's id determines row and window


class Corpus:
    """Text of one language, or translation pairs, as token ids; `read` reads examples from disk.

    name: `en`, `en-de` or `en-de/ntrex`; languages: its one or two; lengths: (N,) tokens of each training example;
    size: the declared size or N; counts: how many rows were dropped, windowed, cut, unmatched or held out; held_out:
    the examples for evaluation.

    A text longer than max_length is split into consecutive windows, which have all its tokens. A longer pair is cut,
    the longer side first, or each side to max_length if they are read `apart`. Empty texts, and pairs with an empty
    side, are dropped.
    """

    def __init__(
        self,
        source: Source,
        columns: list[TokenColumn],
        max_length: int,
        apart: bool,
        held_out_fraction: float,
        max_held_out: int,
    ):
        self.source, self.max_length, self.apart = source, max_length, apart
        # columns of text; then, of linked pairs, the words of the tokens, and the links
        self.columns, self.about = columns[:2], columns[2:]
        self.name, self.languages, self.kind = source.name, languages_of(source.corpus), source.corpus.kind
        self.held_out_fraction, self.max_held_out = held_out_fraction, max_held_out
        self.held_out_below = held_out_below(held_out_fraction)
        self._arrange()

    def with_form(self, max_length: int, apart: bool = False) -> "Corpus":
        """Returns the same text, cut to another length, or with its sides apart, without tokenizing it again."""
        if (max_length, apart) == (self.max_length, self.apart):
            return self
        columns = self.columns + self.about
        return stored_corpus(self.source, columns, max_length, apart, self.held_out_fraction, self.max_held_out)

    def _arrange(self) -> None:
        """Numbers the windows of all rows; the number of a window is its example's id, held out or not."""
        counts = dict(self.source.counts)
        self.rows = self.source.alignment
        if self.rows is None:
            self.rows = np.arange(len(self.columns[0].lengths))[None].repeat(len(self.columns), axis=0)
        lengths = np.stack([column.lengths[rows] for column, rows in zip(self.columns, self.rows, strict=True)])
        keys = np.stack([column.keys[rows] for column, rows in zip(self.columns, self.rows, strict=True)])
        # The sides of a pair may have different identities (one has ids, the other line numbers). A pair is for
        # training if neither side is held out, and for evaluation if both are, so that no side is used for both.
        held_out = (keys < self.held_out_below).any(0)
        evaluated = (keys < self.held_out_below).all(0)
        usable = lengths.min(0) > 0
        counts |= {"rows": lengths.shape[1], "empty": int((~usable).sum()), "held_out": int((usable & held_out).sum())}

        if len(self.columns) == 1:
            self.room = self.max_length - SPECIALS_OF_TEXT
            windows = -(-lengths[0] // self.room)
            counts["windowed"] = int((windows > 1).sum())
        else:
            windows = usable.astype(np.int64)
            if self.apart:
                self.kept = np.minimum(lengths, self.max_length - SPECIALS_OF_TEXT)
            else:
                self.kept = cut_pair(lengths, self.max_length - SPECIALS_OF_PAIR)
            counts["cut"] = int((self.kept != lengths).any(0)[usable].sum())
        # window w of row r is number first[r] + w
        self.first = np.concatenate([[0], np.cumsum(windows, dtype=np.int64)])
        self.one_each = bool((windows == 1).all())
        row_of = np.repeat(np.arange(len(windows)), windows)
        training = np.flatnonzero(~held_out[row_of])
        if len(training) == 0:
            raise ValueError(no_text(self.name))
        self.example_ids = training.astype(np.min_scalar_type(self.first[-1]))
        self.lengths = self._window_lengths(row_of, lengths)[training].astype(np.int32)
        by_hash = sorted(np.flatnonzero(evaluated[row_of]), key=lambda window: (keys[0, row_of[window]], window))
        self.held_out_ids = by_hash[: self.max_held_out]
        self.size = self.source.corpus.size or len(training)
        self.counts = counts | {"examples": len(training)}

    def _window_lengths(self, row_of: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        if len(self.columns) == 2:
            return self.kept.sum(0)[row_of]
        number = np.arange(len(row_of)) - self.first[row_of]
        return np.minimum(lengths[0][row_of] - number * self.room, self.room)

    @property
    def tokens(self) -> int:
        """The number of tokens of all rows, which take 4 bytes each on disk."""
        return sum(len(chunk) for column in self.columns for chunk in column.chunks)

    @property
    def held_out(self) -> list[Example]:
        """The first `evaluation.max_examples` held-out examples, in the order of their hashes."""
        sides = self._sides(np.array(self.held_out_ids, dtype=np.int64))
        rows = zip(self.held_out_ids, zip(*sides, strict=True), strict=True)
        return [Example(list(tokens), self.name, int(window)) for window, tokens in rows]

    def read(self, epochs_M: np.ndarray, indices_M: np.ndarray) -> Texts:
        """Returns training examples by their indices below len(lengths); their masks depend on the epoch."""
        windows_M = self.example_ids[indices_M].astype(np.int64)
        return Texts(self._sides(windows_M), [self.name] * len(windows_M), windows_M, epochs_M)

    def facts(self) -> dict:
        """Returns the facts of the corpus for run.json."""
        return self.source.facts() | {"size": self.size, "held_out": len(self.held_out_ids), "counts": self.counts}

    def _sides(self, windows_M: np.ndarray) -> list[list[np.ndarray]]:
        """Returns the tokens of each side of some windows."""
        rows_M = windows_M if self.one_each else np.searchsorted(self.first, windows_M, side="right") - 1
        if len(self.columns) == 2:
            starts_M = np.zeros_like(rows_M)
            sides = [
                column.slices(rows[rows_M], starts_M, kept[rows_M])
                for column, rows, kept in zip(self.columns, self.rows, self.kept, strict=True)
            ]
            return sides + [column.slices(rows_M, starts_M, column.lengths[rows_M]) for column in self.about]
        (column,) = self.columns
        starts_M = (windows_M - self.first[rows_M]) * self.room
        return [column.slices(rows_M, starts_M, np.minimum(starts_M + self.room, column.lengths[rows_M]))]


class SegmentPairs(Corpus):
    """Monolingual text as pairs of adjacent segments of one document (VECO, section 4 and footnote 9).

    A segment is a row, or one of the equal windows of a row longer than max_length. Two neighbors in a document are an
    example, so most segments are in two examples. Their order has no effect, because the loss (Eq. 1) is symmetric. A
    row without a neighbor gives its two halves. A held-out row does, too, because its neighbors are training text.
    """

    def _arrange(self) -> None:
        (column,) = self.columns
        lengths, room = column.lengths.astype(np.int64), self.max_length - SPECIALS_OF_TEXT
        keys = column.keys
        held_out = keys < self.held_out_below
        rows = np.flatnonzero((lengths > 0) & ~held_out)
        if len(rows) == 0:
            raise ValueError(no_text(self.name))
        # a run: consecutive rows of a document, with only empty rows between them
        barriers = np.cumsum(column.new_documents() | held_out | np.roll(held_out, 1))
        run_R = barriers[rows]
        alone = np.bincount(run_R)[run_R] == 1
        windows = np.maximum(-(-lengths[rows] // room), np.where(alone, 2, 1))
        too_short = lengths[rows] < windows  # a single token has no halves
        halved = alone & ~too_short & (lengths[rows] <= room)
        rows, run_R, windows = rows[~too_short], run_R[~too_short], windows[~too_short]
        self.rows_of = np.repeat(rows, windows)  # by segment
        self.window_of = np.arange(len(self.rows_of)) - np.repeat(np.cumsum(windows) - windows, windows)
        self.windows_of = np.repeat(windows, windows)
        run_of = np.repeat(run_R, windows)
        self.first_segments = np.flatnonzero(run_of[1:] == run_of[:-1])
        if len(self.first_segments) == 0:
            raise ValueError(
                f"Corpus {self.name} has no adjacent segments. Set its `document_column`, or use longer texts."
            )
        starts, stops = self._bounds(self.rows_of, self.window_of, self.windows_of)
        segment_lengths = stops - starts
        self.lengths = (segment_lengths[self.first_segments] + segment_lengths[self.first_segments + 1]).astype(
            np.int32
        )
        evaluated = np.flatnonzero(held_out & (lengths > 1))
        self.held_out_ids = sorted(evaluated, key=lambda row: (keys[row], row))[: self.max_held_out]
        self.size = self.source.corpus.size or len(self.first_segments)
        self.counts = dict(self.source.counts) | {
            "rows": len(lengths),
            "empty": int((lengths == 0).sum()),
            "held_out": int((held_out & (lengths > 0)).sum()),
            "windowed": int((lengths > room).sum()),
            "alone": int(too_short.sum()),
            "halved": int(halved.sum()),
            "examples": len(self.first_segments),
        }

    def _bounds(self, row, window, windows):
        """Returns the first token of a segment, and the one after its last."""
        length = self.columns[0].lengths[row].astype(np.int64)
        return window * length // windows, (window + 1) * length // windows

    @property
    def held_out(self) -> list[Example]:
        """The two halves of the first `evaluation.max_examples` held-out rows, in the order of their hashes."""
        room = self.max_length - SPECIALS_OF_TEXT
        examples = []
        for row in map(int, self.held_out_ids):
            ids = self.columns[0].ids(row)
            half = len(ids) // 2
            sides = [ids[max(0, half - room) : half], ids[half : half + room]]
            examples.append(Example(sides, self.name, row * WINDOWS_OF_A_ROW))
        return examples

    def read(self, epochs_M: np.ndarray, indices_M: np.ndarray) -> Texts:
        """Returns training examples by their indices: each is a segment and the next one."""
        first_M = self.first_segments[indices_M]
        sides = []
        for segments_M in (first_M, first_M + 1):
            of_segments = (of[segments_M] for of in (self.rows_of, self.window_of, self.windows_of))
            starts_M, stops_M = self._bounds(*of_segments)
            sides.append(self.columns[0].slices(self.rows_of[segments_M], starts_M, stops_M))
        ids_M = self.rows_of[first_M] * WINDOWS_OF_A_ROW + self.window_of[first_M]
        return Texts(sides, [self.name] * len(ids_M), ids_M, epochs_M)


def no_text(name: str) -> str:
    """Returns the error of a corpus without training text."""
    return f"Corpus {name} has no text to train on: every row is empty or held out."


def stored_corpus(source: Source, columns: list[TokenColumn], max_length: int, apart: bool, *held_out) -> Corpus:
    """Makes the corpus of a source; with `apart`, one column of text becomes pairs of adjacent segments."""
    corpus = SegmentPairs if apart and len(columns) == 1 else Corpus
    return corpus(source, columns, max_length, apart, *held_out)
