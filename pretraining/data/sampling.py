"""Chooses the examples of a step: languages by p_i = N_i^alpha / sum_j N_j^alpha, their corpora by size, rows in
shuffled epochs.

The global batch of a step is a pure function of (seed, phase, kind of text, step). Processes and micro-batches only
divide it: 1x8, 2x4 accumulated and 2 processes x 4 are the same step, and a resumed run continues exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch.utils.data import Sampler

from crosslingual_zoo.pretraining.data.corpora import Corpus
from crosslingual_zoo.pretraining.data.languages import corpus_probabilities
from crosslingual_zoo.pretraining.objectives import Collator
from crosslingual_zoo.pretraining.recipe_phases import Phase
from crosslingual_zoo.zoo_core.keyed_random import keyed_rng, keyed_seed

UPDATES_AT_ONCE = 4096  # past steps of a resumed run that are counted at once


class Draw(NamedTuple):
    """One example of a step: training example `row` of a corpus, in its `epoch`."""

    objective: str
    corpus: int  # index into the corpora of the phase
    epoch: int
    row: int


class ObjectivePlan:
    """The draws of one objective in one phase: which corpora a step draws from, and which of their examples."""

    def __init__(self, seed: int, phase_index: int, objective: Collator, corpora: dict[int, Corpus], alpha: float):
        """`corpora`: those that the objective reads, by their index among the corpora of the phase."""
        # by the kind of text, not the objective: TLM and CA-MLM read the same pairs (VECO, section 4)
        self.key = (seed, phase_index, objective.text)
        self.name, self.batch_size, self.corpora = objective.name, objective.batch_size, corpora
        self.indices = list(corpora)
        self.bounds = corpus_probabilities(list(corpora.values()), alpha).cumsum()[:-1]
        self.orders: dict[int, tuple[int, int, np.ndarray]] = {}  # corpus -> its current epoch, see `_order`

    def choices(self, update: int, count: int = 1) -> np.ndarray:
        """Returns (count * batch_size,): the corpus of each draw of `count` steps, as an index into `indices`."""
        # PCG64 advances one step per number, so the numbers of a step do not need those before it
        bits = np.random.PCG64(keyed_seed(*self.key, "languages")).advance(update * self.batch_size)
        return np.searchsorted(self.bounds, np.random.Generator(bits).random(count * self.batch_size), side="right")

    def counts_before(self, update: int) -> np.ndarray:
        """Returns how many examples of each corpus the steps before `update` have drawn."""
        counts = np.zeros(len(self.indices), dtype=np.int64)
        for start in range(0, update, UPDATES_AT_ONCE):
            past = self.choices(start, min(UPDATES_AT_ONCE, update - start))
            counts += np.bincount(past, minlength=len(counts))
        return counts

    def draws(self, update: int, counts: np.ndarray) -> list[Draw]:
        """Returns the draws of a step, in order, and adds them to `counts`, those of the steps before."""
        draws = []
        for choice in self.choices(update).tolist():
            index, position = self.indices[choice], int(counts[choice])
            counts[choice] += 1
            epoch, start, order = self.orders.get(index, (0, 0, ()))
            if not 0 <= position - start < len(order):
                self.orders[index] = epoch, start, order = self._order(index, position)
            draws.append(Draw(self.name, index, epoch, int(order[position - start])))
        return draws

    def _order(self, index: int, position: int) -> tuple[int, int, np.ndarray]:
        """Returns the epoch of a position in a corpus, the position of the epoch's start, and the order of its rows."""
        corpus = self.corpora[index]
        epoch = position // len(corpus.lengths)
        numbers = np.arange(len(corpus.lengths), dtype=np.min_scalar_type(len(corpus.lengths)))
        order = keyed_rng(*self.key, "order", corpus.name, epoch).permutation(numbers)
        return epoch, epoch * len(numbers), order

    def length(self, draw: Draw) -> int:
        """Returns the number of tokens of an example."""
        return int(self.corpora[draw.corpus].lengths[draw.row])


@dataclass
class UpdateSampler(Sampler[list[Draw]]):
    """Batches of draws for one process: for each step from `start_update`, one list per micro-batch.

    The global batch of each objective is sorted by length, so that the examples of a micro-batch have similar lengths
    and little padding. It is cut into `accumulation` contiguous micro-batches, and the processes
    get the examples of each micro-batch in turn. One list has the draws of all objectives, in the order of the phase.
    """

    plans: list[ObjectivePlan]
    phase: Phase
    start_update: int
    num_processes: int
    process_index: int
    accumulation: int

    def __len__(self) -> int:
        return (self.phase.steps - self.start_update) * self.accumulation

    def __iter__(self) -> Iterator[list[Draw]]:
        counts = [plan.counts_before(self.start_update) for plan in self.plans]
        for update in range(self.start_update, self.phase.steps):
            shares = [self._share(plan, plan.draws(update, c)) for plan, c in zip(self.plans, counts, strict=True)]
            for micro_batches in zip(*shares, strict=True):
                yield [draw for micro_batch in micro_batches for draw in micro_batch]

    def _share(self, plan: ObjectivePlan, draws: list[Draw]) -> list[list[Draw]]:
        """Returns this process's part of each micro-batch of a step."""
        draws = sorted(draws, key=plan.length)  # stable: ties stay in the order of the draws
        ends = [len(draws) * part // self.accumulation for part in range(self.accumulation + 1)]
        return [
            draws[start:end][self.process_index :: self.num_processes]
            for start, end in zip(ends[:-1], ends[1:], strict=True)
        ]
