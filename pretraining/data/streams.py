"""Corpora that are read while training: forward only, shuffled in a buffer, the same in every process.

Every process and every data-loading worker reads the whole stream and tokenizes only the examples it is asked for, so
that neither their number nor a resumed run changes which text is seen.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
from datasets import IterableDataset
from huggingface_hub.errors import HTTPError
from transformers import PreTrainedTokenizerBase

from pretraining.data.examples import SPECIALS_OF_TEXT, Example, cut_sides, encode_texts, random_window
from pretraining.data.sources import Source, held_out_below, plain_rows, row_identity, row_key
from zoo_core.masking import keyed_seed
from zoo_core.tables import get_column

ROWS_PASSED_OVER = 1000  # in a row: a stream of single words has no segments
NUMBER = "_row_number"  # column added to rows that have no id


class StreamedCorpus:
    """A streamed corpus. `size` is the declared one; `counts` are those of the rows read for `held_out`.

    One example a row: of a text longer than `max_length` one window, at an offset keyed by (seed, epoch, row); the
    sides of a pair are cut, longest first, or each to `max_length` where they are read `apart`. A text read apart gives
    two adjacent segments: its window, twice as long, in two halves; the rows of a shuffled stream have no neighbors.
    Empty texts and held-out rows are passed over, and so are texts of one token where there should be two segments.
    """

    streaming = True

    def __init__(
        self,
        source: Source,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        apart: bool,
        held_out_fraction: float,
        max_held_out: int,
        shuffle_buffer: int,
        seed: int,
    ):
        self.source, self.tokenizer, self.max_length, self.apart = source, tokenizer, max_length, apart
        self.name, self.languages, self.kind = source.name, source.languages, source.kind
        self.size = source.declared_size
        self.held_out_below, self.max_held_out = held_out_below(held_out_fraction), max_held_out
        self.shuffle_buffer, self.seed = shuffle_buffer, seed
        self.counts: dict[str, int] = {}
        self.held_out_rows = self._read_held_out() if self.held_out_below else []

    def with_form(self, max_length: int, apart: bool = False) -> "StreamedCorpus":
        """The same stream, its texts cut to another length, or with its sides apart."""
        if (max_length, apart) == (self.max_length, self.apart):
            return self
        other = object.__new__(StreamedCorpus)
        other.__dict__.update(self.__dict__, max_length=max_length, apart=apart, held_out_rows=self.held_out_rows)
        return other

    def facts(self) -> dict:
        """What the corpus is made of, for run.json."""
        return self.source.facts() | {"size": self.size, "held_out": len(self.held_out), "counts": self.counts}

    def cursor(self, *key: int | str) -> "StreamCursor":
        """A reader of its own; `key` (such as phase and objective) chooses the order of its rows."""
        return StreamCursor(self, key)

    def rows(self, order: tuple[int | str, ...] | None) -> Iterator[tuple[list[int], list[str]]]:
        """(keys of the sides, texts) of one epoch's rows that are not empty, shuffled by `order` or as they stand."""
        try:
            yield from self._rows(order)
        except (OSError, HTTPError) as error:  # after the tries of `datasets`
            raise OSError(f"the source of corpus {self.name} cannot be read: {error!r}.") from error

    def _rows(self, order: tuple[int | str, ...] | None) -> Iterator[tuple[list[int], list[str]]]:
        sides = self.source.sides
        rows: IterableDataset = sides[0].rows
        if sides[0].identity is None:
            # numbers are the rows' identity: they must not depend on the order of the shards, which skip() fixes
            rows = rows.skip(0).map(lambda row, number: {**row, NUMBER: number}, with_indices=True)
        if order is not None:
            rows = rows.shuffle(seed=keyed_seed(*order) % 2**63, buffer_size=self.shuffle_buffer)
        for row in plain_rows(rows):
            texts = [get_column(row, side.column) for side in sides]
            if all(text and not text.isspace() for text in texts):
                yield [row_key(row_identity(row, row.get(NUMBER), side.identity)) for side in sides], texts

    @property
    def held_out(self) -> list[Example]:
        """The first `evaluation.max_examples` held-out rows of the stream, in its own order."""
        examples = [self.example(key, texts, 0) for key, texts in self.held_out_rows]
        return [example for example in examples if example is not None]

    def example(self, key: int, texts: list[str], epoch: int) -> Example | None:
        """Tokenizes and cuts one row; `key` is its stable hash, which serves as the example's id.

        None where a text of one token cannot give two segments.
        """
        sides = [np.array(ids, dtype=np.int32) for ids in encode_texts(texts, self.tokenizer)]
        if not all(map(len, sides)):
            return None
        if len(sides) == 2:
            return Example(cut_sides(sides, self.max_length, self.apart), self.name, key, epoch)
        room = self.max_length - SPECIALS_OF_TEXT
        ids = random_window(sides[0], 2 * room if self.apart else room, self.seed, "window", self.name, epoch, key)
        if not self.apart:
            return Example([ids], self.name, key, epoch, str(key))
        half = len(ids) // 2
        return Example([ids[:half], ids[half:]], self.name, key, epoch, str(key)) if half else None

    def _read_held_out(self) -> list[tuple[int, list[str]]]:
        """(key, texts) of the first held-out rows, in the stream's own order: a stream has no end to wait for."""
        held_out = []
        for number, (keys, texts) in enumerate(self.rows(None), start=1):
            if max(keys) < self.held_out_below:  # as in Corpus: evaluated where all sides are held out
                if all(encode_texts(texts, self.tokenizer)):
                    held_out.append((keys[0], texts))
            if len(held_out) == self.max_held_out:
                break
            self.counts["read_for_held_out"] = number
        return held_out


class StreamCursor:
    """The training examples of a stream by their position, counted over epochs; going back starts the stream anew."""

    def __init__(self, corpus: StreamedCorpus, key: tuple[int | str, ...]):
        self.corpus, self.key = corpus, key
        self._restart()

    def fetch(self, position: int) -> Example:
        """Example number `position` (0-based). Rows on the way are read, but not tokenized.

        A row that gives no example is passed over for the one after it, which is read again in its own place: no
        position depends on what another one found.

        Raises ValueError where an epoch holds no example at all.
        """
        if position < self.position:
            self._restart()
        while self.position < position:
            self._next_row()
            self.position += 1
        passed_over: list[tuple[int, list[str], int]] = []
        example = None
        while example is None:
            passed_over.append(row := self._next_row())
            example = self.corpus.example(*row)
            if len(passed_over) > ROWS_PASSED_OVER:
                raise ValueError(no_segments(self.corpus.name) if self.corpus.apart else no_text(self.corpus.name))
        self.position += 1
        self.ahead.extendleft(reversed(passed_over[1:]))
        return example

    def _restart(self) -> None:
        self.position, self.epoch, self.rows, self.found_any = 0, -1, iter(()), True
        self.ahead: deque[tuple[int, list[str], int]] = deque()

    def _next_row(self) -> tuple[int, list[str], int]:
        if self.ahead:
            return self.ahead.popleft()
        while True:
            for keys, texts in self.rows:
                if min(keys) >= self.corpus.held_out_below:
                    self.found_any = True
                    return keys[0], texts, self.epoch
            if not self.found_any:
                raise ValueError(no_text(self.corpus.name))
            self.epoch, self.found_any = self.epoch + 1, False
            self.rows = self.corpus.rows((self.corpus.seed, *self.key, self.corpus.name, self.epoch))


def no_segments(name: str) -> str:
    """The error of a corpus whose texts are too short to give two adjacent segments."""
    return (
        f"Corpus {name} has no adjacent segments to train on: its texts have one token each and no neighbor in their "
        "document; name its `document_column`, or give longer texts."
    )


def no_text(name: str) -> str:
    """The error of a corpus in which nothing is left to train on."""
    return f"Corpus {name} has no text to train on: every row is empty or held out."
