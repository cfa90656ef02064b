"""Batches of a model: masked examples, padded on the right, one sub-batch for each objective.

Legend: `B` rows of a micro-batch, `T` positions of its longest row. Fields are those of DESIGN.md, "Batch fields".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from common.masking import IGNORED, keyed_rng, mask_pieces
from pretraining.recipe import OBJECTIVES
from pretraining.tokenised import Example

Row = dict[str, np.ndarray]  # (T,) arrays of one example: input_ids, special_tokens_mask, segment_ids, ...
MaskedExample = tuple[str, str, list[Row]]  # objective, corpus name, row with labels; two where the sides are apart
SIDES = ("x", "y")


def encode_pieces(sides: Sequence[np.ndarray], tokenizer: PreTrainedTokenizerBase) -> Row:
    """The row of a text `<s> x </s>` or a pair `<s> x </s></s> y </s>`: (T,) ids, special tokens and segments.

    Segment 0 is `<s> x </s>`, segment 1 is `</s> y </s>`: special tokens belong to their side.
    """
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    parts = [np.concatenate([[begin if i == 0 else end], pieces, [end]]) for i, pieces in enumerate(sides)]
    special = np.ones(sum(map(len, parts)), dtype=np.int64)
    start = 0
    for part in parts:
        special[start + 1 : start + len(part) - 1] = 0
        start += len(part)
    return {
        "input_ids": np.concatenate(parts).astype(np.int64),
        "special_tokens_mask": special,
        "segment_ids": np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
    }


def encode_side(pieces: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Row:
    """The row of one side of an example on its own, unmasked: `<s> x </s>`, for encoding sentences apart."""
    return encode_pieces([pieces], tokenizer)


def pad_rows(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Stacks rows of any lengths into (B, T), padded on the right to the longest, with their attention_mask.

    Padding is special, of segment -1, labelled -100, and not attended to.
    """
    padding = {
        "input_ids": tokenizer.pad_token_id,
        "labels": IGNORED,
        "special_tokens_mask": 1,
        "segment_ids": -1,
        "attention_mask": 0,
    }
    lengths = [len(row["input_ids"]) for row in rows]
    batch = {}
    for name in [*rows[0], "attention_mask"]:
        padded = np.full((len(rows), max(lengths)), padding[name], dtype=np.int64)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            padded[index, :length] = 1 if name == "attention_mask" else row[name]
        batch[name] = torch.from_numpy(padded)
    return batch


@dataclass
class Masker:
    """Masks examples; `key` (such as seed and phase) is part of what their random numbers are keyed by."""

    tokenizer: PreTrainedTokenizerBase
    key: tuple[int | str, ...]

    @cached_property
    def vocabulary(self) -> np.ndarray:
        """(K,) ids of ordinary pieces: what may stand at random in a masked position's place."""
        return np.setdiff1d(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids)

    def __call__(self, example: Example, objective: str, probability: float) -> MaskedExample:
        """The row of an example with its labels, or its two rows where the objective reads the sides apart.

        The unknown piece is never predicted either: it tells nothing.
        """
        rng = keyed_rng(*self.key, objective, example.name, example.epoch, example.example_id)
        inputs = [[side] for side in example.sides] if OBJECTIVES[objective].apart else [example.sides]
        rows = [encode_pieces(pieces, self.tokenizer) for pieces in inputs]
        for row in rows:
            unpredictable = (row["special_tokens_mask"] == 1) | (row["input_ids"] == self.tokenizer.unk_token_id)
            row["input_ids"], row["labels"] = mask_pieces(
                row["input_ids"], unpredictable, probability, rng, self.tokenizer.mask_token_id, self.vocabulary
            )
        return objective, example.name, rows


@dataclass
class Collator:
    """Turns masked examples into a batch: {objective: {input_ids, labels, attention_mask, ..., languages}}.

    Tensors are (B, T) int64; `languages` is a list of B corpus names. Where an objective reads the sides apart, its
    sub-batch holds `x` and `y`, each a full set of its own length. There are no position_ids: rows are not packed, and
    the model counts the positions of padded rows itself. A row without predictions is valid.
    """

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, examples: list[MaskedExample]) -> dict[str, dict]:
        batch = {}
        for objective in dict.fromkeys(objective for objective, _, _ in examples):
            own = [(name, rows) for other, name, rows in examples if other == objective]
            sides = [pad_rows(rows, self.tokenizer) for rows in zip(*(rows for _, rows in own), strict=True)]
            batch[objective] = dict(zip(SIDES, sides, strict=True)) if OBJECTIVES[objective].apart else sides[0]
            batch[objective]["languages"] = [name for name, _ in own]
        return batch


def inputs_of(sub_batch: dict) -> list[dict[str, torch.Tensor]]:
    """The sets of (B, T) fields in a sub-batch: itself, or its two sides."""
    return [sub_batch[side] for side in SIDES] if SIDES[0] in sub_batch else [sub_batch]
