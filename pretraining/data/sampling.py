"""Chooses the examples of a step: languages by p_i = N_i^alpha / sum_j N_j^alpha, their corpora by size, rows in
shuffled epochs.

The global batch of a step is a pure function of (seed, phase, kind of text, step). Processes and micro-batches only
divide it: 1x8, 2x4 accumulated and 2 processes x 4 are the same step, and a resumed run continues exactly.

Legend: `M` examples of some steps, `B` examples of a step or micro-batch, `C` corpora. A `choice` is the corpus of an
example, as an index into the corpora that the objective reads.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from crosslingual_zoo.pretraining.data.corpora import Corpus
from crosslingual_zoo.pretraining.data.languages import corpus_probabilities
from crosslingual_zoo.zoo_core.keyed_random import keyed_rng, keyed_seed

PAST_STEPS_AT_ONCE = 4096  # of a resumed run, which are counted at once
EXAMPLES_AT_ONCE = 8192  # which are drawn at once, because a call for each corpus takes longer than its numbers


class Drawn(NamedTuple):
    """Examples of a batch: training example `row` of a corpus, in its `epoch`."""

    corpora_B: np.ndarray  # indices into the corpora of the phase
    epochs_B: np.ndarray
    rows_B: np.ndarray

    def select(self, examples: slice | np.ndarray) -> "Drawn":
        """Returns some of the examples."""
        return Drawn(self.corpora_B[examples], self.epochs_B[examples], self.rows_B[examples])


class BatchSampler:
    """The batches of one objective in one phase: which corpora a step draws from, and which of their examples."""

    def __init__(self, key: tuple[int, int], collator: Any, corpora: dict[int, Corpus], alpha: float):
        """`key`: (seed, index of the phase); `corpora`: what the objective reads, by index in the phase."""
        # by the kind of text, not the objective: TLM and CA-MLM read the same pairs (VECO, section 4)
        self.key = (*key, collator.text)
        self.batch_size = collator.batch_size
        self.corpora = list(corpora.values())
        self.indices_C = np.array(list(corpora))
        # (C - 1,) between the corpora's parts of [0, 1)
        self.bounds = corpus_probabilities(self.corpora, alpha).cumsum()[:-1]
        # choice -> the epoch that is read, and its `_order`
        self.orders: dict[int, tuple[int, np.ndarray]] = {}

    def choices(self, step: int, count: int = 1) -> np.ndarray:
        """Returns (count * batch_size,): the corpus of each example of `count` steps, as an index into `corpora`."""
        # PCG64 advances one step per number, so the numbers of a step do not need those before it
        bits = np.random.PCG64(keyed_seed(*self.key, "languages")).advance(step * self.batch_size)
        numbers_M = np.random.Generator(bits).random(count * self.batch_size)
        return np.searchsorted(self.bounds, numbers_M, side="right")

    def counts_before(self, step: int) -> np.ndarray:
        """Returns (C,): how many examples of each corpus the steps before `step` have drawn."""
        counts_C = np.zeros(len(self.corpora), dtype=np.int64)
        for start in range(0, step, PAST_STEPS_AT_ONCE):
            past_M = self.choices(start, min(PAST_STEPS_AT_ONCE, step - start))
            counts_C += np.bincount(past_M, minlength=len(counts_C))
        return counts_C

    def batches(self, steps: range) -> Iterator[Drawn]:
        """Yields the examples of each step, the shortest first; of equal length, in the order of their drawing."""
        counts_C = self.counts_before(steps.start)
        steps_at_once = max(1, EXAMPLES_AT_ONCE // self.batch_size)
        for start in range(steps.start, steps.stop, steps_at_once):
            count = min(steps_at_once, steps.stop - start)
            choice_M = self.choices(start, count)
            drawn, lengths_M = self._draw(choice_M, counts_C)
            counts_C += np.bincount(choice_M, minlength=len(counts_C))
            by_length = lengths_M.reshape(count, self.batch_size).argsort(axis=1, kind="stable")
            for number, by_length_B in enumerate(by_length):
                yield drawn.select(number * self.batch_size + by_length_B)

    def _draw(self, choice_M: np.ndarray, counts_C: np.ndarray) -> tuple[Drawn, np.ndarray]:
        """Returns the next examples of the chosen corpora, of which `counts_C` are drawn already, and their lengths."""
        epoch_M = np.empty(len(choice_M), dtype=np.int64)
        row_M = np.empty(len(choice_M), dtype=np.int64)
        length_M = np.empty(len(choice_M), dtype=np.int64)
        for choice in np.unique(choice_M).tolist():
            is_chosen = choice_M == choice
            corpus = self.corpora[choice]
            positions = counts_C[choice] + np.arange(np.count_nonzero(is_chosen))
            epochs = positions // len(corpus.training)
            rows = np.concatenate([self._rows(choice, epoch, positions) for epoch in np.unique(epochs).tolist()])
            epoch_M[is_chosen] = epochs
            row_M[is_chosen] = rows
            length_M[is_chosen] = corpus.training[rows].lengths
        return Drawn(self.indices_C[choice_M], epoch_M, row_M), length_M

    def _rows(self, choice: int, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Returns the rows of a corpus at those of the consecutive `positions` that are in an epoch. Positions count
        the corpus' examples over all epochs."""
        if self.orders.get(choice, (None, None))[0] != epoch:
            self.orders[choice] = (epoch, self._order(self.corpora[choice], epoch))
        order = self.orders[choice][1]
        # in the epoch: negative if the positions begin in the epoch before
        first = int(positions[0]) - epoch * len(order)
        return order[max(first, 0) : first + len(positions)]

    def _order(self, corpus: Corpus, epoch: int) -> np.ndarray:
        """Returns the order of a corpus' examples in an epoch, in as few bytes as their numbers need."""
        num_examples = len(corpus.training)
        order = np.arange(num_examples, dtype=np.min_scalar_type(num_examples))
        keyed_rng(*self.key, "order", corpus.name, epoch).shuffle(order)
        return order


def micro_batches(
    samplers: dict[str, BatchSampler], steps: range, num_processes: int, process_index: int, accumulation: int
) -> Iterator[dict[str, Drawn]]:
    """Yields the micro-batches of one process, `accumulation` for each step: the examples of each objective.

    A batch, sorted by length, is cut into contiguous micro-batches, so that the examples of one have similar lengths
    and little padding. The processes get the examples of each micro-batch in turn.
    """
    for batches in zip(*(sampler.batches(steps) for sampler in samplers.values()), strict=True):
        for number in range(accumulation):
            micro_batch = {}
            for name, batch in zip(samplers, batches, strict=True):
                batch_size = samplers[name].batch_size
                start = batch_size * number // accumulation
                stop = batch_size * (number + 1) // accumulation
                micro_batch[name] = batch.select(slice(start + process_index, stop, num_processes))
            yield micro_batch
