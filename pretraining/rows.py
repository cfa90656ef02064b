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
    ids = encoded["input_ids"]
    sides = encoded.sequence_ids(0)  # None at special tokens
    x_end = len(sides) - sides[::-1].index(0)
    y_end = len(sides) - sides[::-1].index(1)
    specials = Specials(ids[: sides.index(0)], ids[x_end : sides.index(1)], ids[y_end:])
    if not all(specials):
        begin = tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id
        end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
        specials = Specials([begin], [end, end], [end])
    if None in specials.begin + specials.end:
        raise ValueError(f"a {type(tokenizer).__name__} has neither bos and eos nor cls and sep tokens.")
    count_of_text = len(specials.begin) + len(specials.end)
    if count_of_text > SPECIALS_OF_TEXT or count_of_text + len(specials.middle) > SPECIALS_OF_PAIR:
        raise ValueError(f"a {type(tokenizer).__name__} adds more than {SPECIALS_OF_PAIR} special tokens to a pair.")
    return specials


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
    begin, middle, end = specials_of(tokenizer)
    lengths_SB = np.array([[len(tokens) for tokens in side] for side in sides], dtype=np.int32)
    widths_B = lengths_SB.sum(0, dtype=np.int32) + np.int32(len(begin) + len(end) + len(middle) * (len(sides) - 1))
    rows_B = np.arange(len(widths_B))
    columns_T = np.arange(widths_B.max(), dtype=np.int32)
    ids_BT = np.full((len(widths_B), len(columns_T)), tokenizer.pad_token_id, dtype=np.int32)
    ids_BT[:, : len(begin)] = begin
    for offset, token in enumerate(end, -len(end)):
        ids_BT[rows_B, widths_B + offset] = token
    segments_BT = (columns_T < widths_B[:, None]).view(np.int8)
    x_lengths_B1 = lengths_SB[0, :, None]
    is_x_BT = _between(columns_T, len(begin), x_lengths_B1)
    if len(sides) == 1:
        segments_BT -= 1
        ids_BT[is_x_BT] = np.concatenate(sides[0])
        return Rows(ids_BT, [is_x_BT], is_x_BT, segments_BT)

    for offset, token in enumerate(middle, len(begin)):
        ids_BT[rows_B, lengths_SB[0] + offset] = token
    is_y_BT = _between(columns_T - x_lengths_B1, len(begin) + len(middle), lengths_SB[1, :, None])
    is_token_BT = is_x_BT | is_y_BT
    # 1 and 2 at the two sides, 0 at padding
    segments_BT *= np.int8(1) + (columns_T >= x_lengths_B1 + len(begin) + (len(middle) + 1) // 2)
    segments_BT -= 1
    ids_BT[is_token_BT] = np.concatenate([*chain.from_iterable(zip(*sides, strict=True))])
    return Rows(ids_BT, [is_x_BT, is_y_BT], is_token_BT, segments_BT)


def _between(columns: np.ndarray, first: int, size_B1: np.ndarray) -> np.ndarray:
    """Returns (B, T): first <= column < first + size, in one comparison, as columns below `first` wrap around."""
    return (columns - np.int32(first)).view(np.uint32) < size_B1.view(np.uint32)


def inputs_of(sub_batch: dict) -> "list[dict[str, torch.Tensor]]":
    """Returns the sets of (B, T) fields in a sub-batch: itself, or its two sides."""
    return [sub_batch[side] for side in SIDES] if SIDES[0] in sub_batch else [sub_batch]
