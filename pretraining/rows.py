"""Examples laid out as rows with the tokenizer's special tokens, padded on the right: `<s> x </s>`, `[CLS] x [SEP]`, or
`<s> x </s></s> y </s>`, `[CLS] x [SEP] y [SEP]`.

Legend: `B` rows of a micro-batch, `T` positions of its longest row, `S` sides of an example (1 or 2), `N` rows of a
block and `W` positions of its longest row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pretraining.data.examples import SPECIALS_OF_PAIR, SPECIALS_OF_TEXT

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

SIDES = ("x", "y")
POSITIONS_AT_ONCE = 1 << 15  # of a block: what is computed of them on the way stays in a core's cache


class Specials(NamedTuple):
    """Ids that stand before x, between x and y, and at the end, of a text too."""

    begin: list[int]
    middle: list[int]
    end: list[int]


@lru_cache(maxsize=8)
def specials_of(tokenizer: "PreTrainedTokenizerBase") -> Specials:
    """What the tokenizer puts around a text and a pair; where it adds nothing, its own tokens in XLM-R's places.

    Raises ValueError for one that has none, or more than rows have room for.
    """
    encoded = tokenizer("a", "a", return_special_tokens_mask=True)
    groups = [
        (special, [id_ for id_, _ in group])
        for special, group in groupby(
            zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True), itemgetter(1)
        )
    ]
    if [special for special, _ in groups] == [1, 0, 1, 0, 1]:
        found = Specials(*(ids for special, ids in groups if special))
    else:
        begin = tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id
        end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
        if begin is None or end is None:
            raise ValueError(f"{type(tokenizer).__name__} has no tokens that stand before and behind a text.")
        found = Specials([begin], [end, end], [end])
    if len(found.begin) + len(found.end) > SPECIALS_OF_TEXT or sum(map(len, found)) > SPECIALS_OF_PAIR:
        raise ValueError(f"{type(tokenizer).__name__} puts more than {SPECIALS_OF_PAIR} special tokens around a pair.")
    return found


@dataclass(slots=True)
class Block:
    """Rows of texts or pairs, padded on the right. Special tokens belong to their side: segment 0 is `<s> x </s>`,
    segment 1 is `</s> y </s>`; of an odd number between the sides x has one more."""

    input_ids: np.ndarray  # (N, W) int32
    of_side: list[np.ndarray]  # (N, W) of each side: true at its tokens
    tokens: np.ndarray  # (N, W) true at the tokens of either side
    segment_ids: np.ndarray  # (N, W) int8, -1 at padding


def lay_out(sides: list[list[np.ndarray]], lengths_SN: np.ndarray, tokenizer: "PreTrainedTokenizerBase") -> Block:
    """`sides`: for one or two sides, the tokens of N rows."""
    begin, middle, end = specials_of(tokenizer)
    totals_N = row_lengths(lengths_SN, tokenizer)
    count, width = len(totals_N), int(totals_N.max())
    rows_N, columns_W = np.arange(count), np.arange(width, dtype=np.int32)
    bounds_SN1 = lengths_SN.astype(np.int32)[:, :, None]
    ids = np.full((count, width), tokenizer.pad_token_id, dtype=np.int32)
    ids[:, : len(begin)] = begin
    for place, token in enumerate(end, -len(end)):
        ids[rows_N, totals_N + place] = token
    segments = (columns_W < totals_N[:, None].astype(np.int32)).view(np.int8)
    of_side = [_between(columns_W, len(begin), bounds_SN1[0])]
    tokens, flat = of_side[0], sides[0]
    if len(sides) == 2:
        for place, token in enumerate(middle, len(begin)):
            ids[rows_N, lengths_SN[0] + place] = token
        of_side.append(_between(columns_W - bounds_SN1[0], len(begin) + len(middle), bounds_SN1[1]))
        tokens, flat = tokens | of_side[1], [*chain.from_iterable(zip(*sides, strict=True))]
        segments *= np.int8(1) + (columns_W >= bounds_SN1[0] + len(begin) + (len(middle) + 1) // 2)
    segments -= 1
    ids[tokens] = np.concatenate(flat)
    return Block(ids, of_side, tokens, segments)


def _between(columns: np.ndarray, first: int, size_N1: np.ndarray) -> np.ndarray:
    """(N, W) first <= column < first + size, in one comparison: what is below `first` wraps around."""
    return (columns - np.int32(first)).view(np.uint32) < size_N1.view(np.uint32)


def row_lengths(lengths_SB: np.ndarray, tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """(B,) positions of rows with sides of so many tokens."""
    begin, middle, end = map(len, specials_of(tokenizer))
    return lengths_SB.sum(0) + begin + end + middle * (len(lengths_SB) - 1)


def blocks_of(lengths_B: np.ndarray) -> Iterator[slice]:
    """Consecutive rows that have, padded, about `POSITIONS_AT_ONCE` positions."""
    start = 0
    while start < len(lengths_B):
        some = lengths_B[start : start + POSITIONS_AT_ONCE // 2]
        padded = np.maximum.accumulate(some) * np.arange(1, len(some) + 1)
        stop = start + max(1, int(np.searchsorted(padded, POSITIONS_AT_ONCE, side="right")))
        yield slice(start, stop)
        start = stop


class Fields:
    """(B, T) int64 tensors of a sub-batch, filled block by block. They share one token of memory, which is quicker to
    get and to send to another process."""

    def __init__(self, fillings: dict[str, int], rows: int, width: int):
        """`fillings`: names, and what stands at padding."""
        import torch  # not for `--help`: recipes are read with this file

        self.tensors = dict(
            zip(fillings, torch.empty(len(fillings), rows, width, dtype=torch.int64, device="cpu"), strict=True)
        )
        self.arrays = {name: tensor.numpy() for name, tensor in self.tensors.items()}
        self.fillings = fillings

    def set(self, name: str, rows: slice, block_NW: np.ndarray) -> None:
        """A block of a field; what is longer than the block is padding."""
        width = block_NW.shape[1]
        array = self.arrays[name][rows]
        array[:, :width] = block_NW
        if width < array.shape[1]:
            array[:, width:] = self.fillings[name]


def padding_values(tokenizer: "PreTrainedTokenizerBase") -> dict[str, int]:
    """What stands at padding in the fields that every sub-batch has: it is special, and not attended to."""
    return {
        "input_ids": tokenizer.pad_token_id,
        "special_tokens_mask": 1,
        "segment_ids": -1,
        "attention_mask": 0,
    }


def set_layout(fields: Fields, rows: slice, block: Block) -> None:
    fields.set("input_ids", rows, block.input_ids)
    fields.set("special_tokens_mask", rows, ~block.tokens)
    fields.set("segment_ids", rows, block.segment_ids)
    fields.set("attention_mask", rows, block.segment_ids >= 0)


def encode_rows(
    sides: Sequence[Sequence[np.ndarray]], tokenizer: "PreTrainedTokenizerBase"
) -> "dict[str, torch.Tensor]":
    """Unmasked rows of texts, or of examples with two sides, as padded (B, T) fields; see `Block`."""
    of_sides = [list(side) for side in zip(*sides, strict=True)]
    lengths_SB = side_lengths(of_sides)
    totals_B = row_lengths(lengths_SB, tokenizer)
    fields = Fields(padding_values(tokenizer), len(totals_B), int(totals_B.max()))
    for rows in blocks_of(totals_B):
        set_layout(fields, rows, lay_out([side[rows] for side in of_sides], lengths_SB[:, rows], tokenizer))
    return fields.tensors


def pad_rows(ids: Sequence[np.ndarray], pad_id: int) -> "dict[str, torch.Tensor]":
    """Rows of ids, padded on the right to (B, T) `input_ids`, with their `attention_mask`."""
    import torch

    lengths_B = np.array([len(row) for row in ids])
    is_real_BT = np.arange(lengths_B.max()) < lengths_B[:, None]
    input_ids = np.full(is_real_BT.shape, pad_id)
    input_ids[is_real_BT] = np.concatenate(ids)
    return {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(is_real_BT.astype(np.int64))}


def side_lengths(sides: list[list[np.ndarray]]) -> np.ndarray:
    """(S, B) tokens of each side."""
    return np.array([[len(tokens) for tokens in side] for side in sides])


def inputs_of(sub_batch: dict) -> "list[dict[str, torch.Tensor]]":
    """The sets of (B, T) fields in a sub-batch: itself, or its two sides."""
    return [sub_batch[side] for side in SIDES] if SIDES[0] in sub_batch else [sub_batch]
