# SPDX-License-Identifier: Apache-2.0
"""Who may attend to whom, and the texts of a padded batch in rows without padding.

Legend: `B` sequences, `T` positions that attend, `S` positions attended to, `H` hidden size; `P` packed rows, `W` and
`K` their positions that attend and are attended to; `F` tokens of all sequences.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask


def prepare_attention_mask(
    config: PreTrainedConfig,
    states_BTH: torch.Tensor,
    attention_mask: torch.Tensor | None,
    encoder_states_BSH: torch.Tensor | None = None,
    has_padding: bool = False,
) -> Any:
    """Turn a user's mask into what the configured attention implementation wants.

    `attention_mask` is None (everything attends to everything), `(B, S)` with 1 for real tokens and 0 for padding, or
    boolean `(B, T, S)`, True where row t may attend to column s (block masks; they hold the padding too). A row of a
    block mask that may attend to nothing (padding) attends to its own column or, in cross-attention, to everything:
    its states are read by nobody, and a softmax over nothing would be NaN.

    `has_padding` says of a `(B, S)` mask that it is known to have a 0. Otherwise the library looks for one, and waits
    for a GPU.

    Raises `ValueError` for a mask of another shape or type, and for a block mask under flash attention.
    """
    attention = str(config._attn_implementation)
    keys_BSH = states_BTH if encoder_states_BSH is None else encoder_states_BSH
    block_shape = (*states_BTH.shape[:2], keys_BSH.shape[1])
    if attention_mask is None or attention_mask.dim() == 2:
        if attention_mask is not None and has_padding and attention in ("sdpa", "eager"):
            return in_form_of(attention, attention_mask.bool()[:, None].expand(block_shape), states_BTH.dtype)
        return create_bidirectional_mask(
            config=config,
            inputs_embeds=states_BTH,
            attention_mask=attention_mask,
            encoder_hidden_states=encoder_states_BSH,
        )
    if attention_mask.dtype != torch.bool or tuple(attention_mask.shape) != block_shape:
        raise ValueError(
            "attention_mask must be (B, S) with 1 for tokens and 0 for padding, or boolean "
            f"{block_shape}, got shape {tuple(attention_mask.shape)} and type {attention_mask.dtype}."
        )
    if "flash" in attention:
        raise ValueError(
            f"attn_implementation {attention!r} ignores (B, T, S) block masks: load the model with 'sdpa', 'eager' or "
            "'flex_attention'."
        )
    fallback_BTS = ~attention_mask.any(-1, keepdim=True)
    if encoder_states_BSH is None:
        fallback_BTS = fallback_BTS & torch.eye(block_shape[1], dtype=torch.bool, device=attention_mask.device)
    allow_BTS = attention_mask | fallback_BTS
    if attention in ("sdpa", "eager"):
        return in_form_of(attention, allow_BTS, states_BTH.dtype)
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=states_BTH,
        attention_mask=None,
        encoder_hidden_states=encoder_states_BSH,
        and_mask_function=lambda batch, head, row, column: allow_BTS[batch, row, column],
    )


def in_form_of(attention: str, allow_BTS: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask (B, 1, T, S) of sdpa or eager attention. The library would look it up position by position, at thirty
    times the cost."""
    if attention == "sdpa":
        return allow_BTS[:, None]
    forbidden = torch.finfo(dtype).min
    return torch.zeros_like(allow_BTS, dtype=dtype).masked_fill(~allow_BTS, forbidden)[:, None]


def is_real(attention_mask: torch.Tensor) -> torch.Tensor:
    """Real positions (B, T) of a mask (B, T), or of a block mask (B, T, T), where they attend or are attended to."""
    if attention_mask.dim() == 2:
        return attention_mask.bool()
    return attention_mask.any(1) | attention_mask.any(2)


def on_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array of the CPU as a tensor of the device, without waiting for it: a GPU reads it from pinned memory."""
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


# Attention to so many positions costs as much as all else in a layer of base size (measured on a CPU, with dropout).
WORK_OF_A_POSITION = 1536


class Rows(NamedTuple):
    """A way to distribute texts among rows.

    row_of_text: the row of each text; width: tokens of the longest row; cost: that of a layer, up to a factor.
    """

    row_of_text: list[int]
    width: int
    cost: int


def distributed(lengths: list[int], count: int) -> Rows:
    """The texts in `count` rows: each, the longest first, goes into the emptiest row."""
    row_of_text = [0] * len(lengths)
    rows = [(0, row) for row in range(count)]  # a heap of (tokens, row)
    longest_first = sorted(range(len(lengths)), key=lambda text: -lengths[text])
    for text in longest_first:
        tokens, row = rows[0]
        row_of_text[text] = row
        heapq.heapreplace(rows, (tokens + lengths[text], row))
    width = max(tokens for tokens, _ in rows)
    return Rows(row_of_text, width, count * width * (width + WORK_OF_A_POSITION))


def cheapest_rows(lengths: list[int]) -> list[int]:
    """The row of each text. Rows are about as long as the longest text: longer ones would waste less, and cost more in
    attention."""
    longest = max(1, *lengths)
    fewest = max(1, sum(lengths) // longest)
    counts = {min(count, len(lengths)) for count in range(fewest, fewest + 4)}
    counts.add(len(lengths))
    ways = [distributed(lengths, count) for count in sorted(counts)]
    return min(ways, key=lambda rows: rows.cost).row_of_text


class Packing:
    """The texts of a padded batch, several in a row: the same states, and next to nothing is computed at padding.

    Args:
        is_real_BT: which positions are tokens, on the CPU.
        device: of the values that are packed.
        row_of_text: the row of each text, where another packing has chosen it.
    """

    def __init__(self, is_real_BT: np.ndarray, device: torch.device, row_of_text: list[int] | None = None):
        lengths = is_real_BT.sum(1).tolist()
        if row_of_text is None:
            row_of_text = cheapest_rows(lengths)
        tokens_of_row = [0] * (max(row_of_text) + 1)
        column_of_text = []  # where it begins in its row
        for row, length in zip(row_of_text, lengths, strict=True):
            column_of_text.append(tokens_of_row[row])
            tokens_of_row[row] += length
        width = max(tokens_of_row)
        self.row_of_text = row_of_text
        self.shape = (len(tokens_of_row), width)
        self.padded_shape = is_real_BT.shape
        padded_F = np.flatnonzero(is_real_BT)
        text_F, column_F = np.divmod(padded_F, is_real_BT.shape[1])
        begin_B = np.array(row_of_text) * width + column_of_text
        token_of_text_F = np.arange(len(padded_F)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        packed_F = begin_B[text_F] + token_of_text_F
        indices = on_device(np.stack([padded_F, packed_F, text_F, column_F]), device)
        # the positions of all tokens in the flattened padded batch, and in the flattened rows
        self.padded_F, self.packed_F, self.text_F, self.column_F = indices.unbind()

    def pack(self, values_BT: torch.Tensor) -> torch.Tensor:
        """(B, T, ...), or (1, T, ...) for all texts -> (P, W, ...), zeros where there is no token."""
        values_BT = values_BT.expand(*self.padded_shape, *values_BT.shape[2:])
        return moved(values_BT, self.padded_F, self.packed_F, self.shape)

    def unpack(self, states_PWH: torch.Tensor) -> torch.Tensor:
        """(P, W, H) -> (B, T, H), zeros at padding."""
        return moved(states_PWH, self.packed_F, self.padded_F, self.padded_shape)

    def in_rows(self, values_F: torch.Tensor, empty: int) -> torch.Tensor:
        """A value of each token at its place in the rows (P, W), `empty` where there is no token."""
        rows, width = self.shape
        flat = values_F.new_full((rows * width,), empty)
        return flat.index_copy(0, self.packed_F, values_F).view(self.shape)

    def mask(self, keys: "Packing", allow_BTS: torch.Tensor | None = None) -> torch.Tensor:
        """Block mask (P, W, K): who is of one text and may attend there. `keys`: the packing of what is attended to."""
        text_PW1 = self.in_rows(self.text_F, -1)[:, :, None]
        text_P1K = keys.in_rows(keys.text_F, -2)[:, None]
        mask_PWK = text_PW1 == text_P1K
        if allow_BTS is None:
            return mask_PWK
        row_PW1 = self.in_rows(self.column_F, 0)[:, :, None]
        column_P1K = keys.in_rows(keys.column_F, 0)[:, None]
        return mask_PWK & allow_BTS[text_PW1.clamp(min=0), row_PW1, column_P1K]


def moved(values: torch.Tensor, from_F: torch.Tensor, to_F: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Entries `from_F` of the first two dimensions, flattened, at `to_F` of a zero tensor of `shape`."""
    taken_F = values.flatten(0, 1).index_select(0, from_F)
    empty = taken_F.new_zeros(shape[0] * shape[1], *taken_F.shape[1:])
    return empty.index_copy(0, to_F, taken_F).unflatten(0, shape)


def camlm_mask(attention_mask: torch.Tensor, segment_ids_BT: torch.Tensor, predicted_BT: torch.Tensor) -> torch.Tensor:
    """Block mask of cross-attention masked LM (ERNIE-M, section 3.1, Figure 2): boolean (B, T, T).

    A predicted position attends to the predicted positions of its own side, itself included, and to the others of the
    other side: p(x_m | M_x, y without M_y). Any other position attends to the others of its own side only, so that
    neither side's words come back by way of the other's states, in any number of layers.

    Args:
        attention_mask: (B, T), 1 for tokens and 0 for padding.
        segment_ids_BT: 0 for x and 1 for y, special tokens with their side; attention_mask marks the padding.
        predicted_BT: boolean, True where a token is predicted.
    """
    is_own_side_BTT = segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :]
    row_BT1 = predicted_BT[:, :, None]
    column_B1T = predicted_BT[:, None, :]
    allow_BTT = torch.where(column_B1T, row_BT1 & is_own_side_BTT, row_BT1 ^ is_own_side_BTT)
    return allow_BTT & as_block_mask(attention_mask)


def btmlm_generation_mask(attention_mask: torch.Tensor, segment_ids_BT: torch.Tensor) -> torch.Tensor:
    """Block mask of back-translation masked LM's first step (ERNIE-M, section 3.1, Figure 4): boolean (B, T, T).

    The sentence (segment 0) attends to the sentence; a pseudo position (segment 1) to the sentence and to itself.

    Args: as `camlm_mask`.
    """
    itself_TT = torch.eye(segment_ids_BT.shape[1], dtype=torch.bool, device=segment_ids_BT.device)
    return ((segment_ids_BT == 0)[:, None, :] | itself_TT) & as_block_mask(attention_mask)


def as_block_mask(attention_mask: torch.Tensor) -> torch.Tensor:
    """A padding mask (B, T) as a block mask, boolean (B, T, T): padding neither attends nor is attended to."""
    is_token_BT = attention_mask.bool()
    return is_token_BT[:, :, None] & is_token_BT[:, None, :]
