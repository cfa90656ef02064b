"""A corpus of a recipe: its token ids on disk, the index of its examples, and its held-out examples.

Legend: `M` requested examples.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from crosslingual_zoo.pretraining.data.example_index import Block, ExampleIndex, joined, pairs, segments, windows
from crosslingual_zoo.pretraining.data.examples import Texts
from crosslingual_zoo.pretraining.data.sources import Source, held_out_below
from crosslingual_zoo.pretraining.data.store import TokenStore


@dataclass(eq=False)
class Corpus:
    """Text of one language, or translation pairs, as token ids; `read` reads examples from disk.

    columns: the token ids of each side, and of linked pairs three more; max_length: positions of a row, to which texts
    are cut; apart: whether the sides are separate inputs; held_out_fraction: the share of rows that is held out, of
    which the first `max_held_out` are evaluated, in the order of their hashes; scale: how many times more text there is
    than was read.

    name: `en`, `en-de` or `en-de/ntrex`; languages: its one or two; kind: what objectives call its `text`; training,
    evaluated: the examples of both uses, as parts of rows; counts: how many rows were dropped, windowed, cut, unmatched
    or held out.

    Raises ValueError for a corpus without text to train on.
    """

    source: Source
    columns: list[TokenStore]
    max_length: int
    apart: bool
    held_out_fraction: float
    max_held_out: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        self.name = self.source.name
        self.languages = self.source.corpus.codes
        self.kind = self.source.corpus.kind
        self.other_forms: dict[tuple[int, bool], Corpus] = {}
        counts = dict(self.source.counts)
        training = []
        evaluated = []
        for block in self._blocks():
            training.append(block.training.small())
            evaluated.append(block.held_out.small())
            for name, count in block.counts.items():
                counts[name] = counts.get(name, 0) + count
        self.training = joined(training)
        if len(self.training) == 0:
            hint = "every row is empty or held out"
            if self.apart and len(self.columns) == 1:
                hint = "no adjacent segments: set its `document_column`"
            raise ValueError(f"Corpus {self.name} has no text to train on: {hint}.")
        held_out = joined(evaluated)
        by_key = np.lexsort((held_out.ids, self.columns[0].keys[held_out.rows[0]]))
        self.evaluated = held_out[by_key[: self.max_held_out]]
        self.counts = counts | {"examples": len(self.training)}

    def _blocks(self) -> Iterable[Block]:
        """Returns the examples of all rows, part by part."""
        below = held_out_below(self.held_out_fraction)
        is_held_out = [column.keys < below for column in self.columns[:2]]
        if len(self.columns) > 1:
            return pairs(self.columns, self.source.alignment, self.max_length, self.apart, is_held_out)
        divide = segments if self.apart else windows
        return divide(self.columns[0], self.max_length, is_held_out[0])

    def with_form(self, max_length: int, apart: bool = False) -> "Corpus":
        """Returns the same text, cut to another length, or with its sides apart, without tokenizing it again."""
        form = (max_length, apart)
        if form == (self.max_length, self.apart):
            return self
        if form not in self.other_forms:  # for the next evaluation, too
            self.other_forms[form] = replace(self, max_length=max_length, apart=apart)
        return self.other_forms[form]

    def scaled(self, scale: float) -> "Corpus":
        """Returns the same text as a part of `scale` times as much."""
        return replace(self, scale=scale)

    @property
    def size(self) -> int:
        """Its part of N_i of language sampling: the declared size, or its number of examples."""
        return self.source.corpus.size or int(len(self.training) * self.scale)

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all rows, which take 4 bytes each on disk."""
        return sum(column.num_tokens for column in self.columns[:2])

    @property
    def held_out(self) -> Texts:
        """The examples for evaluation."""
        return self._texts(self.evaluated, np.zeros(len(self.evaluated), dtype=np.int64))

    @property
    def held_out_by_length(self) -> Texts:
        """The examples for evaluation, the shortest first."""
        lengths = (self.evaluated.stops - self.evaluated.starts).sum(0)  # of linked pairs, with words and links
        by_length = self.evaluated[lengths.argsort(kind="stable")]
        return self._texts(by_length, np.zeros(len(by_length), dtype=np.int64))

    def read(self, epochs_M: np.ndarray, indices_M: np.ndarray) -> Texts:
        """Returns training examples by their indices below len(training); their masks depend on the epoch."""
        return self._texts(self.training[indices_M], epochs_M)

    def facts(self) -> dict:
        """Returns the facts of the corpus for run.json."""
        return self.source.facts() | {"size": self.size, "held_out": len(self.evaluated), "counts": self.counts}

    def _texts(self, examples: ExampleIndex, epochs_M: np.ndarray) -> Texts:
        sides = []
        columns = cycle(self.columns)  # both sides of a pair of segments are of one column
        for column, rows, starts, stops in zip(columns, examples.rows, examples.starts, examples.stops, strict=False):
            sides.append(column.read(rows, starts, stops))
        return Texts(sides, [self.name] * len(examples), examples.ids.astype(np.int64), epochs_M)


def tokens_of_text(corpora: list[Corpus]) -> np.ndarray:
    """Returns (C,): the sorted ids of the tokens that occur in the corpora."""
    distinct = []
    for corpus in corpora:
        distinct += [column.distinct_tokens() for column in corpus.columns[:2]]
    return np.unique(np.concatenate(distinct))


def unigram_entropy(texts: Texts) -> float:
    """Returns the entropy of the tokens in `texts`, in nats: the loss of a model that knows only frequencies."""
    tokens = np.concatenate([np.concatenate(side) for side in texts.sides])
    counts = np.unique(tokens, return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
