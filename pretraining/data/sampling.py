"""Chooses the examples of a step: languages by p_i = N_i^alpha / sum_j N_j^alpha, their corpora by size, rows in
shuffled epochs.

The global batch of a step is a pure function of (seed, phase, objective, step). Processes and micro-batches only divide
it: 1x8, 2x4 accumulated and 2 processes x 4 are the same step, and a resumed run continues exactly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch.utils.data import Sampler

from pretraining.data.languages import sampling_probabilities
from pretraining.data.stored import Corpus
from pretraining.objectives import Collator
from pretraining.recipe import Phase
from zoo_core.keyed_random import keyed_rng, keyed_seed

UPDATES_AT_ONCE = 4096  # past steps of a resumed run that are counted at once
DRAWN_AHEAD = 64  # steps whose corpora are drawn at once


class Draw(NamedTuple):
    """One example of a step: training example `row` of a corpus, in its `epoch`."""

    objective: str
    corpus: int  # index into the corpora of the phase
    epoch: int
    row: int


def corpus_probabilities(corpora: Sequence[Corpus], alpha: float) -> np.ndarray:
    """Returns (C,) the probability of each corpus: p_i of its language or pair, divided among their corpora by size.

    The formula is over languages and pairs (both directions are one pair); N_i is the size of all corpora of i. So the
    rows of a language are drawn equally often, also if its text is split into several corpora.
    """
    sizes: dict[frozenset[str], int] = {}
    for corpus in corpora:
        languages = frozenset(corpus.languages)
        sizes[languages] = sizes.get(languages, 0) + corpus.size
    shares = dict(zip(sizes, sampling_probabilities(list(sizes.values()), alpha), strict=True))
    of_corpora = ((corpus.size, frozenset(corpus.languages)) for corpus in corpora)
    return np.array([shares[languages] * (size / sizes[languages]) for size, languages in of_corpora])


class ObjectivePlan:
    """The draws of one objective in one phase: which corpora a step draws from, and which of their examples."""

    def __init__(self, seed: int, phase_index: int, objective: Collator, corpora: dict[int, Corpus], alpha: float):
        """`corpora`: those that the objective reads, by their index among the corpora of the phase."""
        # by the kind of text, not the objective: TLM and CA-MLM read the same pairs (VECO, section 4)
        self.key = (seed, phase_index, objective.text)
        self.name, self.batch_size, self.corpora = objective.name, objective.batch_size, corpora
        self.indices = list(corpora)
        probabilities = corpus_probabilities(list(corpora.values()), alpha)
        self.bounds = probabilities.cumsum()[:-1]
        self.orders: dict[int, tuple[int, int, np.ndarray]] = {}  # corpus -> its current epoch, see `_order`
        self.ahead: tuple[int, np.ndarray] = (-1, np.empty(0))  # number of a block of steps, its choices

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
        number, place = divmod(update, DRAWN_AHEAD)
        if self.ahead[0] != number:
            choices = self.choices(number * DRAWN_AHEAD, DRAWN_AHEAD)
            self.ahead = (number, choices.reshape(DRAWN_AHEAD, self.batch_size))
        draws, name, positions = [], self.name, counts.tolist()
        for choice in self.ahead[1][place].tolist():
            index, position = self.indices[choice], positions[choice]
            positions[choice] = position + 1
            known = self.orders.get(index)
            if known is None or not 0 <= position - known[1] < len(known[2]):
                self.orders[index] = known = self._order(index, position)
            epoch, start, order = known
            draws.append(Draw(name, index, epoch, int(order[position - start])))
        counts[:] = positions
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
