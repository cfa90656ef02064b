"""Examples laid out as rows with the tokenizer's special tokens, padded on the right: `<s> x </s>`, `[CLS] x [SEP]`, or
`<s> x </s></s> y </s>`, `[CLS] x [SEP] y [SEP]`.

Legend: `B` rows of a micro-batch, `T` positions of its longest row, `S` sides of an example (1 or 2).
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from crosslingual_zoo.pretraining.data.examples import SPECIALS_OF_PAIR, SPECIALS_OF_TEXT

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

SIDES = ("x", "y")


class Specials(NamedTuple):
    """Ids before x, between x and y, and at the end of a text or pair."""

    begin: list[int]
    middle: list[int]
    end: list[int]


@lru_cache(maxsize=8)
def specials_of(tokenizer: "PreTrainedTokenizerBase") -> Specials:
    """Returns the special tokens that the tokenizer adds; if it adds none, its tokens at the places of XLM-R's.

    Raises ValueError for a tokenizer without such tokens, and for more of them than a row has room for.
    """
    encoded = tokenizer("a", "b")
    ids, of = encoded["input_ids"], encoded.sequence_ids(0)
    ends = [len(of) - of[::-1].index(side) for side in (0, 1)]
    found = Specials(ids[: of.index(0)], ids[ends[0] : of.index(1)], ids[ends[1] :])
    if not all(found):
        begin = tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id
        end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
        found = Specials([begin], [end, end], [end])
    if None in found.begin + found.end:
        raise ValueError(f"a {type(tokenizer).__name__} has neither bos and eos nor cls and sep tokens.")
    if len(found.begin) + len(found.end) > SPECIALS_OF_TEXT or sum(map(len, found)) > SPECIALS_OF_PAIR:
        raise ValueError(f"a {type(tokenizer).__name__} adds more than {SPECIALS_OF_PAIR} special tokens to a pair.")
    return found


@dataclass(slots=True)
class Rows:
    """Rows of texts or pairs, padded on the right. Special tokens belong to a side: segment 0 is `<s> x </s>`, segment
    1 is `</s> y </s>`; of an odd number of tokens between the sides, x has one more."""

    input_ids: np.ndarray  # (B, T) int32
    of_side: list[np.ndarray]  # (B, T) of each side: true at its tokens
    tokens: np.ndarray  # (B, T) true at the tokens of either side
    segment_ids: np.ndarray  # (B, T) int8, -1 at padding

    def fields(self) -> "dict[str, torch.Tensor]":
        """Returns the (B, T) int64 fields of every sub-batch. Padding is special, and is not attended to."""
        return as_tensors(
            input_ids=self.input_ids,
            special_tokens_mask=~self.tokens,
            segment_ids=self.segment_ids,
            attention_mask=self.segment_ids >= 0,
        )


def as_tensors(**fields: np.ndarray) -> "dict[str, torch.Tensor]":
    """Converts arrays of one shape to int64 tensors. They share one block of memory, which is faster to allocate."""
    import torch  # not for `--help`: recipes are read with this file

    shape = next(iter(fields.values())).shape
    tensors = torch.empty(len(fields), *shape, dtype=torch.int64, device="cpu")
    for array, field in zip(tensors.numpy(), fields.values(), strict=True):
        array[:] = field
    return dict(zip(fields, tensors, strict=True))


def lay_out(sides: list[list[np.ndarray]], tokenizer: "PreTrainedTokenizerBase") -> Rows:
    """Lays out examples as rows; `sides` has, for one or two sides, the tokens of B rows."""
    lengths_SB = np.array([[len(tokens) for tokens in side] for side in sides])
    begin, middle, end = specials_of(tokenizer)
    totals_B = lengths_SB.sum(0) + len(begin) + len(end) + len(middle) * (len(sides) - 1)
    count, width = len(totals_B), int(totals_B.max())
    rows_B, columns_T = np.arange(count), np.arange(width, dtype=np.int32)
    bounds_SB1 = lengths_SB.astype(np.int32)[:, :, None]
    ids = np.full((count, width), tokenizer.pad_token_id, dtype=np.int32)
    ids[:, : len(begin)] = begin
    for place, token in enumerate(end, -len(end)):
        ids[rows_B, totals_B + place] = token
    segments = (columns_T < totals_B[:, None].astype(np.int32)).view(np.int8)
    of_side = [_between(columns_T, len(begin), bounds_SB1[0])]
    tokens, flat = of_side[0], sides[0]
    if len(sides) == 2:
        for place, token in enumerate(middle, len(begin)):
            ids[rows_B, lengths_SB[0] + place] = token
        of_side.append(_between(columns_T - bounds_SB1[0], len(begin) + len(middle), bounds_SB1[1]))
        tokens, flat = tokens | of_side[1], [*chain.from_iterable(zip(*sides, strict=True))]
        segments *= np.int8(1) + (columns_T >= bounds_SB1[0] + len(begin) + (len(middle) + 1) // 2)
    segments -= 1
    ids[tokens] = np.concatenate(flat)
    return Rows(ids, of_side, tokens, segments)


def _between(columns: np.ndarray, first: int, size_B1: np.ndarray) -> np.ndarray:
    """Returns (B, T): first <= column < first + size, in one comparison, as columns below `first` wrap around."""
    return (columns - np.int32(first)).view(np.uint32) < size_B1.view(np.uint32)


def inputs_of(sub_batch: dict) -> "list[dict[str, torch.Tensor]]":
    """Returns the sets of (B, T) fields in a sub-batch: itself, or its two sides."""
    return [sub_batch[side] for side in SIDES] if SIDES[0] in sub_batch else [sub_batch]
