"""The steps of an epoch: rows of similar length, the same however a step is divided, also in a resumed epoch."""

import itertools

import numpy as np
import pytest
import torch
from accelerate import skip_first_batches
from datasets import Dataset

from finetuning.steps import LengthGroups, MicroBatches
from finetuning.trainer import CountedRows
from zoo_core.masking import IGNORED

ROWS, SIZE = 50, 12  # 5 steps an epoch, the last one of 2 rows
LENGTHS = np.random.default_rng(0).integers(5, 60, ROWS).tolist()


def steps_of(accumulation, processes, epoch):
    """Keys of each step over all processes."""
    plan = LengthGroups(LENGTHS, SIZE, seed=1)
    loaders = [MicroBatches(plan, accumulation, processes, process) for process in range(processes)]
    for loader in loaders:
        loader.set_epoch(epoch)
    by_process = [list(loader) for loader in loaders]
    own = [slice(first, first + accumulation) for first in range(0, len(plan) * accumulation, accumulation)]
    return [[key for found in by_process for keys in found[part] for key in keys] for part in own]


def counted(steps):
    return [sorted(row for row, _, counts in keys if counts) for keys in steps]


@pytest.mark.parametrize(("accumulation", "processes"), [(2, 1), (1, 2), (1, 3), (2, 3), (1, 12)])
def test_micro_batches_of_a_step(accumulation, processes):
    for epoch in (0, 1):
        whole = counted(steps_of(1, 1, epoch))
        assert counted(steps_of(accumulation, processes, epoch)) == whole
        assert sorted(itertools.chain(*whole)) == list(range(ROWS))
        assert [len(rows) for rows in whole] == [SIZE] * 4 + [2]


def test_length_groups_depend_on_seed_and_epoch():
    plan, other = LengthGroups(LENGTHS, SIZE, seed=1), LengthGroups(LENGTHS, SIZE, seed=2)
    first = np.concatenate(plan.updates(0))
    torch.rand(3)  # as dropout draws from the same generator
    assert (first == np.concatenate(plan.updates(0))).all()
    assert (first != np.concatenate(plan.updates(1))).any() and (first != np.concatenate(other.updates(0))).any()
    lengths = LENGTHS * 20
    spread = np.mean([np.std(np.take(lengths, rows)) for rows in LengthGroups(lengths, SIZE, seed=1).updates(0)])
    assert spread < np.std(lengths) / 2


def test_micro_batches_of_a_resumed_epoch():
    batches = MicroBatches(LengthGroups(LENGTHS, SIZE, seed=1), 2, 1, 0)
    batches.set_epoch(3)
    loader = torch.utils.data.DataLoader(range(ROWS), batch_sampler=batches)
    assert list(skip_first_batches(loader, 4).batch_sampler) == list(batches)[4:]


def test_counted_rows_without_labels():
    rows = [{"input_ids": [1, 2], "labels": [3, 4], "translation_labels": 5, "translation_start_positions": 6}] * 2
    full, filler = CountedRows(Dataset.from_list(rows)).__getitems__([(0, 0, True), (1, 0, False)])
    assert full == rows[0]
    ignored = dict.fromkeys(("translation_labels", "translation_start_positions"), IGNORED)
    assert filler == {"input_ids": [1, 2], "labels": [IGNORED] * 2, **ignored}
