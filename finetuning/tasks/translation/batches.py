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
        self.rows = rows.select_columns(["source_ids", "target_ids", *(["table"] if tables else [])])
        self.tokenizer, self.seed, self.tables = tokenizer, seed, tables
        self.special_ids = np.asarray(sorted(set(tokenizer.all_special_ids)))
        self.ordinary_ids = np.setdiff1d(np.arange(len(tokenizer)), self.special_ids)  # may replace a masked token

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Key) -> dict[str, np.ndarray]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[Key]) -> list[dict[str, np.ndarray]]:
        """Returns a whole micro-batch with one look-up in the table; torch's loader calls this method."""
        columns = self.rows[[row for row, _, _ in keys]]
        tables = [self.tables[number] for number in columns["table"]] if self.tables else []
        shares = [table.source_mask_probability for table in tables] or [0.0] * len(keys)
        sources, targets = ([np.asarray(ids) for ids in columns[name]] for name in ("source_ids", "target_ids"))
        masked = self._mask(sources, shares, keys) if any(shares) else []
        examples = []
        for number, (source, target, share) in enumerate(zip(sources, targets, shares, strict=True)):
            counts = keys[number][2]
            labels = target if counts else np.full_like(target, IGNORED)
            if share:
                source, predicted = (field[number, : len(source)] for field in masked)
                if tables[number].is_own_target and counts:
                    # <s> x_1 .. x_n </s> and x_1 .. x_n </s>; of a cut text, the part that both sides have
                    width = min(len(source) - 2, len(target) - 1)
                    labels = np.full_like(target, IGNORED)
                    labels[:width] = predicted[1 : width + 1]
            examples.append({"source": source, "target": target, "labels": labels})
        return examples

    def _mask(self, sources: list[np.ndarray], shares: list[float], keys: list[Key]) -> list[np.ndarray]:
        """Returns padded (B, S) sources with masks, and which of their tokens are masked or replaced."""
        lengths = np.array([len(source) for source in sources])
        is_real = np.arange(lengths.max()) < lengths[:, None]
        shown = np.full(is_real.shape, self.tokenizer.pad_token_id)
        shown[is_real] = np.concatenate(sources)
        predicted = np.full_like(shown, IGNORED)
        rows, epochs = (np.array([key[field] for key in keys]) for field in (0, 1))
        mask_rows(
            shown,
            predicted,
            is_real & ~np.isin(shown, self.special_ids),
            np.array(shares),
            row_keys(np.full(len(keys), short_seed(self.seed, "translation"), dtype=np.uint64), epochs, rows),
            self.tokenizer.mask_token_id,
            self.ordinary_ids,
        )
        return [shown, predicted]


def collate(rows: list[dict[str, np.ndarray]], padding_id: int, decoder_start_id: int) -> dict[str, torch.Tensor]:
    """Converts pairs to a padded batch: input_ids, attention_mask (B, S); decoder_input_ids, labels (B, T)."""

    def padded(sequences: list[np.ndarray], filling: int) -> torch.Tensor:
        return pad_sequence([torch.as_tensor(ids) for ids in sequences], batch_first=True, padding_value=filling)

    sources = [row["source"] for row in rows]
    # the closing token of a target is predicted, and not read
    read = [np.concatenate([[decoder_start_id], row["target"][:-1]]) for row in rows]
    return {
        "input_ids": padded(sources, padding_id),
        "attention_mask": padded([np.ones_like(source) for source in sources], 0),
        "decoder_input_ids": padded(read, padding_id),
        "labels": padded([row["labels"] for row in rows], IGNORED),
    }


def cut_by_tokens(sizes: np.ndarray, max_tokens: int) -> list[int]:
    """Bounds [0, ..., N] of consecutive groups of N rows: the number of rows times the longest is at most `max_tokens`.

    A row that is longer by itself makes a group of its own.
    """
    bounds, start, longest = [0], 0, 0
    for number, size in enumerate(sizes.tolist()):
        longest = max(longest, size)
        if longest * (number - start + 1) > max_tokens and number > start:
            bounds.append(number)
            start, longest = number, size
    return [*bounds, len(sizes)]


class UpdatePlan:
    """The steps of an epoch: which pairs make up each, by token count.

    Pairs are sorted by the target's length, then the source's, ties at random; consecutive pairs make a step as long
    as pairs times the longest side is at most `max_tokens` (fairseq's count of a batch). The steps are shuffled. Both
    depend on (seed, epoch) only, not on processes; their number does not depend on the epoch.

    Deviation from the paper: fairseq on 16 GPUs makes a step of 16 batches, each of one length; here a step is of
    one length, on any number of GPUs.
    """

    def __init__(self, source_lengths: np.ndarray, target_lengths: np.ndarray, max_tokens: int, seed: int):
        self.source_lengths, self.target_lengths, self.seed = source_lengths, target_lengths, seed
        sizes = np.maximum(source_lengths, target_lengths)
        self.bounds = cut_by_tokens(sizes[np.lexsort((source_lengths, target_lengths))], max_tokens)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def updates(self, epoch: int) -> list[np.ndarray]:
        """Returns the row numbers of each step, of similar length, in the order of training."""
        rng = keyed_rng(self.seed, "updates", epoch)
        ties = rng.permutation(len(self.source_lengths))
        updates = np.split(np.lexsort((ties, self.source_lengths, self.target_lengths)), self.bounds[1:-1])
        return [updates[number] for number in rng.permutation(len(updates))]


def evaluation_batches(sizes: np.ndarray, max_tokens: int, processes: int, process: int) -> list[list[int]]:
    """Returns row numbers of this process' batches of similar size; the largest first, to fail early without memory."""
    order = np.argsort(-sizes, kind="stable")
    bounds = cut_by_tokens(sizes[order], max_tokens)
    return [part.tolist() for part in np.split(order, bounds[1:-1])][process::processes]
