"""The steps of an epoch, and how each is divided among processes and accumulated micro-batches."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_pt_utils import get_length_grouped_indices

from crosslingual_zoo.zoo_core.keyed_random import short_seed
from crosslingual_zoo.zoo_core.processes import leave_signals_to_main

Key = tuple[int, int, bool]  # row, epoch, whether its labels count


class LengthGroups:
    """Steps of `batch_size` rows of similar length; the last one of an epoch may have fewer.

    The order is that of transformers' `LengthGroupedSampler`. Here its random numbers depend only on (seed, epoch): the
    Trainer draws them from the generator that dropout uses, and groups by the batch size of one process.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int):
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def steps(self, epoch: int) -> list[np.ndarray]:
        """Returns the row numbers of each step, in the order of training, the same in every process."""
        # "updates" decides the numbers
        generator = torch.Generator().manual_seed(short_seed(self.seed, "updates", epoch))
        rows = np.asarray(get_length_grouped_indices(self.lengths, self.batch_size, generator=generator))
        return np.split(rows, range(self.batch_size, len(rows), self.batch_size))


class Plan(Protocol):
    """The steps of a training, the same in every process."""

    def __len__(self) -> int:
        """Returns the number of steps in every epoch."""
        ...

    def steps(self, epoch: int) -> list[np.ndarray]:
        """Returns the row numbers of each step, in the order of training."""
        ...


class MicroBatches(TrainerCallback):
    """Batch sampler of one process: keys of rows, one list a micro-batch.

    `plan.steps(epoch)` lists the rows of each step, `len(plan)` in every epoch. Every process gets `accumulation`
    micro-batches of each step. Where a step has fewer rows than micro-batches, one of its rows fills each gap and is
    not counted. As a callback of the Trainer it sets its epoch, also when a run resumes in the middle of one.
    """

    def __init__(self, plan: Plan, accumulation: int, processes: int, process: int):
        self.plan = plan
        self.accumulation = accumulation
        self.processes = processes
        self.process = process
        self.epoch = 0

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.epoch = state.global_step // len(self.plan)

    def __len__(self) -> int:
        return len(self.plan) * self.accumulation

    def __iter__(self) -> Iterator[list[Key]]:
        for rows in self.plan.steps(self.epoch):
            parts = np.array_split(rows, self.accumulation * self.processes)
            for part in parts[self.process :: self.processes]:
                keys = [(int(row), self.epoch, True) for row in part]
                yield keys or [(int(rows[0]), self.epoch, False)]


class TrainsByPlan(Trainer):
    """Trainer whose steps are those of a plan, the same on any number of processes."""

    def train_by(self, plan: Plan, rows: Dataset, collate: Callable[[list[Any]], dict[str, torch.Tensor]]) -> None:
        """`rows` are looked up by `Key`, and made a batch by `collate`."""
        state = self.accelerator
        accumulation = self.args.gradient_accumulation_steps
        self.batches = MicroBatches(plan, accumulation, state.num_processes, state.process_index)
        self.training_rows = rows
        self.collate = collate
        self.add_callback(self.batches)

    def get_train_dataloader(self) -> DataLoader:
        """Returns the micro-batches of this process, already divided: `accelerate` must not divide them again."""
        return self.loader(self.training_rows, self.batches)

    def loader(self, rows: Dataset, batches: Any) -> DataLoader:
        """Batches of rows that a batch sampler lists."""
        return DataLoader(
            rows,
            batch_sampler=batches,
            collate_fn=self.collate,
            num_workers=self.args.dataloader_num_workers,
            worker_init_fn=leave_signals_to_main,
            pin_memory=self.args.dataloader_pin_memory,
        )
