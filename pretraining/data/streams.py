"""Corpora that are read during training: forward only, shuffled in a buffer, the same in every process.

Every process and every data-loading worker reads the whole stream and tokenizes only its own examples. So the text of a
run does not depend on their number, and is the same after resuming.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
from datasets import IterableDataset
from huggingface_hub.errors import HTTPError
from transformers import PreTrainedTokenizerBase

from pretraining.data.examples import SPECIALS_OF_TEXT, Example, cut_sides, encode_texts, random_window
from pretraining.data.sources import Source, held_out_below, plain_rows, row_identity, row_key
from zoo_core.keyed_random import keyed_seed
from zoo_core.tables import get_column

ROWS_PASSED_OVER = 1000  # consecutive rows without an example: a stream of single words has no segments
NUMBER = "_row_number"  # column that is added to rows without an id


class StreamedCorpus:
    """A streamed corpus. `size` is the declared one; `counts` are those of the rows read for `held_out`.

    Each row gives one example. Of a text longer than `max_length` one window is used, at an offset that depends on
    (seed, epoch, row). The sides of a pair are cut, the longer one first, or each to `max_length` if they are read
    `apart`. A text that is read apart gives two adjacent segments, the halves of a window of twice the length, because
    rows of a shuffled stream have no neighbors. Empty texts and held-out rows are skipped, and, for two segments, texts
    of one token.
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
        """Returns the same stream with its texts cut to another length, or with its sides apart."""
        if (max_length, apart) == (self.max_length, self.apart):
            return self
        other = object.__new__(StreamedCorpus)
        other.__dict__.update(self.__dict__, max_length=max_length, apart=apart, held_out_rows=self.held_out_rows)
        return other

    def facts(self) -> dict:
        """Returns the facts of the corpus for run.json."""
        return self.source.facts() | {"size": self.size, "held_out": len(self.held_out), "counts": self.counts}

    def cursor(self, *key: int | str) -> "StreamCursor":
        """Returns a separate reader; the order of its rows depends on `key` (such as phase and objective)."""
        return StreamCursor(self, key)

    def rows(self, order: tuple[int | str, ...] | None) -> Iterator[tuple[list[int], list[str]]]:
        """Yields (keys of the sides, texts) of one epoch's rows that are not empty, shuffled if `order` is given."""
        try:
            yield from self._rows(order)
        except (OSError, HTTPError) as error:  # after the retries of `datasets`
            raise OSError(f"the source of corpus {self.name} cannot be read: {error!r}.") from error

    def _rows(self, order: tuple[int | str, ...] | None) -> Iterator[tuple[list[int], list[str]]]:
        sides = self.source.sides
        rows: IterableDataset = sides[0].rows
        if sides[0].identity is None:
            # numbers identify the rows, so they must not depend on the order of the shards; skip() keeps that order
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
        """Tokenizes and cuts one row; `key` is its stable hash, and the example's id.

        Returns None if the text of a row is empty, or has one token where two segments are needed.
        """
        sides = [np.array(ids, dtype=np.int32) for ids in encode_texts(texts, self.tokenizer)]
        if not all(map(len, sides)):
            return None
        if len(sides) == 2:
            return Example(cut_sides(sides, self.max_length, self.apart), self.name, key, epoch)
        room = self.max_length - SPECIALS_OF_TEXT
        ids = random_window(sides[0], 2 * room if self.apart else room, self.seed, "window", self.name, epoch, key)
        if not self.apart:
            return Example([ids], self.name, key, epoch)
        half = len(ids) // 2
        return Example([ids[:half], ids[half:]], self.name, key, epoch) if half else None

    def _read_held_out(self) -> list[tuple[int, list[str]]]:
        """Returns (key, texts) of the first held-out rows, in the stream's own order, without reading to its end."""
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
    """The training examples of a stream by position, counted over epochs; for an earlier position it starts again."""

    def __init__(self, corpus: StreamedCorpus, key: tuple[int | str, ...]):
        self.corpus, self.key = corpus, key
        self._restart()

    def fetch(self, position: int) -> Example:
        """Returns example number `position`, from 0. Rows before it are read, but not tokenized.

        If a row gives no example, the row after it is used, and is used again at its own position. So no position
        depends on the result of another one.

        Raises ValueError if an epoch has no example.
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
    """Returns the error of a corpus whose texts are too short for two adjacent segments."""
    return (
        f"Corpus {name} has no adjacent segments to train on: its texts have one token each and no neighbor in their "
        "document. Set its `document_column`, or use longer texts."
    )


def no_text(name: str) -> str:
    """Returns the error of a corpus without training text."""
    return f"Corpus {name} has no text to train on: every row is empty or held out."
