"""Makes padded batches of encoded pairs: steps of a fixed token count, and sources that are masked anew in every epoch.

Legend: `B` pairs, `S` source positions, `T` target positions.
"""

from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence

from crosslingual_zoo.finetuning.steps import Key
from crosslingual_zoo.finetuning.tasks.translation.recipe import TrainingPairs
from crosslingual_zoo.zoo_core.keyed_random import keyed_rng, row_keys, short_seed
from crosslingual_zoo.zoo_core.masking import IGNORED, mask_rows


class Examples(torch.utils.data.Dataset):
    """Pairs by (row, epoch, whether it counts). The masks depend only on these and on the seed.

    A pair is `source` (S,), `target` (T,) without the start symbol and `labels` (T,), -100 where nothing is predicted.
    """

    def __init__(self, rows: Dataset, tokenizer: Any, seed: int = 0, tables: list[TrainingPairs] | None = None):
        """`tables`: by the rows' column `table`, how their sources are masked; None: nothing is masked."""
        columns = ["source_ids", "target_ids"]
        self.tables = tables or []
        self.masks = any(table.source_mask_probability for table in self.tables)
        if self.masks:
            columns.append("table")
        self.rows = rows.select_columns(columns)
        self.tokenizer = tokenizer
        self.seed = seed
        self.special_ids = np.unique(tokenizer.all_special_ids)
        self.ordinary_ids = np.setdiff1d(np.arange(len(tokenizer)), self.special_ids)  # may replace a masked token

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Key) -> dict[str, np.ndarray]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[Key]) -> list[dict[str, np.ndarray]]:
        """Returns a whole micro-batch with one look-up in the table; torch's loader calls this method."""
        rows, epochs, counts = zip(*keys, strict=True)
        columns = self.rows[list(rows)]
        examples = []
        for source, target in zip(columns["source_ids"], columns["target_ids"], strict=True):
            target = np.asarray(target)
            examples.append({"source": np.asarray(source), "target": target, "labels": target})
        if self.masks:
            tables = [self.tables[number] for number in columns["table"]]
            seeds_B = np.full(len(keys), short_seed(self.seed, "translation"), dtype=np.uint64)
            self._mask(examples, tables, row_keys(seeds_B, np.array(epochs), np.array(rows)))
        for example, is_counted in zip(examples, counts, strict=True):
            if not is_counted:
                example["labels"] = np.full_like(example["target"], IGNORED)
        return examples

    def _mask(self, examples: list[dict[str, np.ndarray]], tables: list[TrainingPairs], keys_B: np.ndarray) -> None:
        """Masks the sources by the shares of their tables. Of a source to restore, masked tokens are the labels."""
        shares_B = np.array([table.source_mask_probability for table in tables])
        lengths_B = np.array([len(example["source"]) for example in examples])
        is_real_BS = np.arange(lengths_B.max()) < lengths_B[:, None]
        sources_BS = np.full(is_real_BS.shape, self.tokenizer.pad_token_id)
        sources_BS[is_real_BS] = np.concatenate([example["source"] for example in examples])
        predicted_BS = np.full_like(sources_BS, IGNORED)
        may_mask_BS = is_real_BS & ~np.isin(sources_BS, self.special_ids)
        mask_id = self.tokenizer.mask_token_id
        mask_rows(sources_BS, predicted_BS, may_mask_BS, shares_B, keys_B, mask_id, self.ordinary_ids)
        for example, table, length, source_S, predicted_S in zip(
            examples, tables, lengths_B, sources_BS, predicted_BS, strict=True
        ):
            example["source"] = source_S[:length]
            if table.is_own_target:
                # <s> x_1 .. x_n </s> and x_1 .. x_n </s>; of a cut text, the part that both sides have
                width = min(length - 2, len(example["target"]) - 1)
                example["labels"] = np.full_like(example["target"], IGNORED)
                example["labels"][:width] = predicted_S[1 : width + 1]


def collate(rows: list[dict[str, np.ndarray]], padding_id: int, decoder_start_id: int) -> dict[str, torch.Tensor]:
    """Converts pairs to a padded batch: input_ids, attention_mask (B, S); decoder_input_ids, labels (B, T)."""

    sources = [row["source"] for row in rows]
    # the closing token of a target is predicted, and not read
    inputs = [np.concatenate([[decoder_start_id], row["target"][:-1]]) for row in rows]
    return {
        "input_ids": _padded(sources, padding_id),
        "attention_mask": _padded([np.ones_like(source) for source in sources], 0),
        "decoder_input_ids": _padded(inputs, padding_id),
        "labels": _padded([row["labels"] for row in rows], IGNORED),
    }


def _padded(sequences: list[np.ndarray], filling: int) -> torch.Tensor:
    return pad_sequence([torch.as_tensor(ids) for ids in sequences], batch_first=True, padding_value=filling)


def cut_by_tokens(sizes: np.ndarray, max_tokens: int) -> list[int]:
    """Bounds [0, ..., N] of consecutive groups of N rows: the number of rows times the longest is at most `max_tokens`.

    A row that is longer by itself makes a group of its own.
    """
    bounds = [0]
    longest = 0
    for number, size in enumerate(sizes.tolist()):
        count = number - bounds[-1]
        longest = max(longest, size)
        if count and longest * (count + 1) > max_tokens:
            bounds.append(number)
            longest = size
    return [*bounds, len(sizes)]


class StepPlan:
    """The steps of an epoch: which pairs make up each, by token count.

    Pairs are sorted by the target's length, then the source's, ties at random; consecutive pairs make a step as long
    as pairs times the longest side is at most `max_tokens` (fairseq's count of a batch). The steps are shuffled. Both
    depend on (seed, epoch) only, not on processes; their number does not depend on the epoch.

    Deviation from the paper: fairseq on 16 GPUs makes a step of 16 batches, each of one length; here a step is of
    one length, on any number of GPUs.
    """

    def __init__(self, source_lengths: np.ndarray, target_lengths: np.ndarray, max_tokens: int, seed: int):
        self.source_lengths = source_lengths
        self.target_lengths = target_lengths
        self.seed = seed
        sizes = np.maximum(source_lengths, target_lengths)
        self.bounds = cut_by_tokens(sizes[np.lexsort((source_lengths, target_lengths))], max_tokens)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def steps(self, epoch: int) -> list[np.ndarray]:
        """Returns the row numbers of each step, of similar length, in the order of training."""
        rng = keyed_rng(self.seed, "updates", epoch)  # the name decides the numbers
        ties = rng.permutation(len(self.source_lengths))
        rows = np.lexsort((ties, self.source_lengths, self.target_lengths))
        steps = np.split(rows, self.bounds[1:-1])
        return [steps[number] for number in rng.permutation(len(steps))]


def evaluation_batches(sizes: np.ndarray, max_tokens: int, processes: int, process: int) -> list[list[int]]:
    """Returns row numbers of this process' batches of similar size; the largest first, to fail early without memory."""
    order = np.argsort(-sizes, kind="stable")
    bounds = cut_by_tokens(sizes[order], max_tokens)
    groups = np.split(order, bounds[1:-1])
    return [rows.tolist() for rows in groups[process::processes]]
