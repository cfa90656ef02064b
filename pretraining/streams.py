"""Corpora that are read while training: forward only, shuffled in a buffer, the same in every process.

Every process and every data-loading worker reads the whole stream and tokenises only the examples it is asked for, so
that neither their number nor a resumed run changes which text is seen.
"""

from collections.abc import Iterator

import numpy as np
from datasets import IterableDataset
from transformers import PreTrainedTokenizerBase

from common.tables import get_column
from pretraining.masking import keyed_rng, keyed_seed
from pretraining.sources import Source, held_out_below, plain_rows, row_identity, row_key
from pretraining.tokenised import SPECIALS_OF_PAIR, SPECIALS_OF_TEXT, Example, cut_pair, encode_texts

NUMBER = "_row_number"  # column added to rows that have no id


class StreamedCorpus:
    """A streamed corpus. `size` is the declared one; `counts` are those of the rows read for `held_out`.

    One example a row: of a text longer than `max_length` one window, at an offset keyed by (seed, epoch, row); the
    sides of a pair are cut, longest first. Empty texts and held-out rows are passed over.
    """

    streaming = True

    def __init__(
        self,
        source: Source,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        held_out_fraction: float,
        max_held_out: int,
        shuffle_buffer: int,
        seed: int,
    ):
        self.source, self.tokenizer, self.max_length = source, tokenizer, max_length
        self.name, self.languages, self.size = source.name, source.languages, source.declared_size
        self.held_out_below, self.max_held_out = held_out_below(held_out_fraction), max_held_out
        self.shuffle_buffer, self.seed = shuffle_buffer, seed
        self.counts: dict[str, int] = {}
        self.held_out = self._read_held_out() if self.held_out_below else []

    def with_max_length(self, max_length: int) -> "StreamedCorpus":
        """The same stream, its texts cut to another length."""
        other = object.__new__(StreamedCorpus)
        other.__dict__.update(self.__dict__, max_length=max_length)
        return other

    def facts(self) -> dict:
        """What the corpus is made of, for run.json."""
        return self.source.facts() | {"size": self.size, "held_out": len(self.held_out), "counts": self.counts}

    def cursor(self, *key: int | str) -> "StreamCursor":
        """A reader of its own; `key` (such as phase and objective) chooses the order of its rows."""
        return StreamCursor(self, key)

    def rows(self, order: tuple[int | str, ...] | None) -> Iterator[tuple[list[int], list[str]]]:
        """(keys of the sides, texts) of one epoch's rows that are not empty, shuffled by `order` or as they stand."""
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

    def example(self, key: int, texts: list[str], epoch: int) -> Example:
        """Tokenises and cuts one row; `key` is its stable hash, which serves as the example's id."""
        sides = [np.array(ids, dtype=np.int32) for ids in encode_texts(texts, self.tokenizer)]
        if len(sides) == 2:
            kept = cut_pair(np.array([[len(ids)] for ids in sides]), self.max_length - SPECIALS_OF_PAIR)
            sides = [ids[:length] for ids, length in zip(sides, kept[:, 0], strict=True)]
        else:
            room, length = self.max_length - SPECIALS_OF_TEXT, len(sides[0])
            if length > room:
                start = keyed_rng(self.seed, "window", self.name, epoch, key).integers(length - room + 1)
                sides = [sides[0][start : start + room]]
        return Example(sides, self.name, key, epoch, None if len(sides) == 2 else str(key))

    def _read_held_out(self) -> list[Example]:
        """The first held-out rows of the stream, in its own order: a stream has no end to wait for."""
        held_out = []
        for number, (keys, texts) in enumerate(self.rows(None), start=1):
            if max(keys) < self.held_out_below:  # as in Corpus: evaluated where all sides are held out
                example = self.example(keys[0], texts, 0)
                if all(map(len, example.sides)):
                    held_out.append(example)
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
        """Example number `position` (0-based). Rows on the way are read, but not tokenised.

        Raises ValueError where an epoch holds no example at all.
        """
        if position < self.position:
            self._restart()
        while True:
            key, texts = self._next_row()
            self.position += 1
            if self.position > position:
                return self.corpus.example(key, texts, self.epoch)

    def _restart(self) -> None:
        self.position, self.epoch, self.rows, self.found_any = 0, -1, iter(()), True

    def _next_row(self) -> tuple[int, list[str]]:
        while True:
            for keys, texts in self.rows:
                if min(keys) >= self.corpus.held_out_below:
                    self.found_any = True
                    return keys[0], texts
            if not self.found_any:
                raise ValueError(no_text(self.corpus.name))
            self.epoch, self.found_any = self.epoch + 1, False
            self.rows = self.corpus.rows((self.corpus.seed, *self.key, self.corpus.name, self.epoch))


def no_text(name: str) -> str:
    """The error of a corpus in which nothing is left to train on."""
    return (
        f"Corpus {name} has no text to train on: every row is empty or held out. A language without text cannot be "
        "sampled. Take it out of the recipe, check its text column, or lower evaluation.held_out_fraction."
    )
