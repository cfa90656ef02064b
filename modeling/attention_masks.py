# SPDX-License-Identifier: Apache-2.0
"""Who may attend to whom, and the texts of a padded batch in rows without padding.

Legend: `B` sequences, `T` positions that attend, `S` positions attended to, `H` hidden size; `P` packed rows, `W` and
`K` their positions that attend and are attended to; `F` tokens of all sequences.
"""

import heapq

import torch
from transformers.masking_utils import create_bidirectional_mask


def prepare_attention_mask(config, states_BTH, attention_mask, encoder_states_BSH=None):
    """Turn a user's mask into what the configured attention implementation wants.

    `attention_mask` is None (everything attends to everything), `(B, S)` with 1 for real tokens and 0 for padding, or
    boolean `(B, T, S)`, True where row t may attend to column s (block masks; they hold the padding too). A row of a
    block mask that may attend to nothing (padding) attends to its own column or, in cross-attention, to everything:
    its states are read by nobody, and a softmax over nothing would be NaN.

    Raises `ValueError` for a mask of another shape or type, and for a block mask under flash attention.
    """
    if attention_mask is None or attention_mask.dim() == 2:
        return create_bidirectional_mask(
            config=config,
            inputs_embeds=states_BTH,
            attention_mask=attention_mask,
            encoder_hidden_states=encoder_states_BSH,
        )
    expected = (*states_BTH.shape[:2], (states_BTH if encoder_states_BSH is None else encoder_states_BSH).shape[1])
    if attention_mask.dtype != torch.bool or tuple(attention_mask.shape) != expected:
        raise ValueError(
            "attention_mask must be (B, S) with 1 for tokens and 0 for padding, or boolean "
            f"{expected}, got shape {tuple(attention_mask.shape)} and type {attention_mask.dtype}."
        )
    if "flash" in config._attn_implementation:
        raise ValueError(
            f"attn_implementation {config._attn_implementation!r} ignores (B, T, S) block masks: load the model with "
            "'sdpa', 'eager' or 'flex_attention'."
        )
    fallback = ~attention_mask.any(-1, keepdim=True)
    if encoder_states_BSH is None:
        fallback = fallback & torch.eye(expected[1], dtype=torch.bool, device=attention_mask.device)
    allow_BTS = attention_mask | fallback
    # Both take a mask as it is. The library would look it up position by position, at thirty times the cost.
    if config._attn_implementation == "sdpa":
        return allow_BTS[:, None]
    if config._attn_implementation == "eager":
        forbidden = torch.finfo(states_BTH.dtype).min
        return torch.zeros_like(allow_BTS, dtype=states_BTH.dtype).masked_fill(~allow_BTS, forbidden)[:, None]
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=states_BTH,
        attention_mask=None,
        encoder_hidden_states=encoder_states_BSH,
        and_mask_function=lambda batch, head, row, column: allow_BTS[batch, row, column],
    )


def is_real(attention_mask):
    """Real positions (B, T) of a mask (B, T), or of a block mask (B, T, T), where they attend or are attended to."""
    return attention_mask.bool() if attention_mask.dim() == 2 else attention_mask.any(1) | attention_mask.any(2)


# Attention to so many positions costs as much as all else in a layer of base size (measured on a CPU, with dropout).
WORK_OF_A_POSITION = 1536


def rows_of_texts(lengths, rows):
    """The row of each text, and the tokens of the longest row: texts, the longest first, go into the emptiest row."""
    row_of, filled = [0] * len(lengths), [(0, row) for row in range(rows)]
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        tokens, row_of[text] = filled[0]
        heapq.heapreplace(filled, (tokens + lengths[text], row_of[text]))
    return row_of, max(filled)[0]


class Packing:
    """The texts of a padded batch, several in a row: the same states, and next to nothing is computed at padding.

    Rows are about as long as the longest text: longer ones would waste less, and cost more in attention. `row_of` gives
    the row of each text, where another packing has chosen it.
    """

    def __init__(self, is_real_BT, row_of=None):
        lengths = is_real_BT.sum(1).tolist()
        if row_of is None:
            least = max(1, sum(lengths) // max(1, *lengths))
            counts = sorted({min(rows, len(lengths)) for rows in (*range(least, least + 4), len(lengths))})
            ways = [(rows, *rows_of_texts(lengths, rows)) for rows in counts]
            row_of = min(ways, key=lambda way: way[0] * way[2] * (way[2] + WORK_OF_A_POSITION))[1]
        filled, begins, starts = [0] * (max(row_of) + 1), [], [0]
        for row, length in zip(row_of, lengths, strict=True):
            begins.append(filled[row])
            starts.append(starts[-1] + length)
            filled[row] += length
        self.row_of, self.shape, self.padded_shape = row_of, (len(filled), max(filled)), tuple(is_real_BT.shape)
        # the places of all tokens in the flattened padded batch, and in the flattened rows
        self.padded_F = is_real_BT.flatten().nonzero().squeeze(1)
        self.text_F, self.column_F = self.padded_F // is_real_BT.shape[1], self.padded_F % is_real_BT.shape[1]
        shifts = [row * max(filled) + begin - start for row, begin, start in zip(row_of, begins, starts, strict=False)]
        shift_B = torch.tensor(shifts, device=is_real_BT.device)
        self.packed_F = torch.arange(starts[-1], device=is_real_BT.device) + shift_B[self.text_F]

    def pack(self, values_BT):
        """(B, T, ...), or (1, T, ...) for all texts -> (P, W, ...), zeros where there is no token."""
        values_BT = values_BT.expand(*self.padded_shape, *values_BT.shape[2:])
        return moved(values_BT, self.padded_F, self.packed_F, self.shape)

    def unpack(self, states_PWH):
        """(P, W, H) -> (B, T, H), zeros at padding."""
        return moved(states_PWH, self.packed_F, self.padded_F, self.padded_shape)

    def mask(self, keys, allow_BTS=None):
        """Block mask (P, W, K): who is of one text and may attend there. `keys`: the packing of what is attended to."""

        def in_rows(packing, values_F, empty):
            flat = values_F.new_full((packing.shape[0] * packing.shape[1],), empty)
            return flat.index_copy(0, packing.packed_F, values_F).view(packing.shape)

        text_PW1, text_P1K = in_rows(self, self.text_F, -1)[:, :, None], in_rows(keys, keys.text_F, -2)[:, None]
        mask_PWK = text_PW1 == text_P1K
        if allow_BTS is None:
            return mask_PWK
        row_PW1, column_P1K = in_rows(self, self.column_F, 0)[:, :, None], in_rows(keys, keys.column_F, 0)[:, None]
        return mask_PWK & allow_BTS[text_PW1.clamp(min=0), row_PW1, column_P1K]


def moved(values, from_F, to_F, shape):
    """Entries `from_F` of the first two dimensions, flattened, at `to_F` of a zero tensor of `shape`."""
    taken_F = values.flatten(0, 1).index_select(0, from_F)
    empty = taken_F.new_zeros(shape[0] * shape[1], *taken_F.shape[1:])
    return empty.index_copy(0, to_F, taken_F).unflatten(0, shape)


def camlm_mask(attention_mask, segment_ids_BT, predicted_BT):
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
    row_BT1, column_B1T = predicted_BT[:, :, None], predicted_BT[:, None, :]
    allow_BTT = torch.where(column_B1T, row_BT1 & is_own_side_BTT, row_BT1 ^ is_own_side_BTT)
    return allow_BTT & as_block_mask(attention_mask)


def btmlm_generation_mask(attention_mask, segment_ids_BT):
    """Block mask of back-translation masked LM's first step (ERNIE-M, section 3.1, Figure 4): boolean (B, T, T).

    The sentence (segment 0) attends to the sentence; a pseudo position (segment 1) to the sentence and to itself.

    Args: as `camlm_mask`.
    """
    itself_TT = torch.eye(segment_ids_BT.shape[1], dtype=torch.bool, device=segment_ids_BT.device)
    return ((segment_ids_BT == 0)[:, None, :] | itself_TT) & as_block_mask(attention_mask)


def as_block_mask(attention_mask):
    """A padding mask (B, T) as a block mask, boolean (B, T, T): padding neither attends nor is attended to."""
    is_token_BT = attention_mask.bool()
    return is_token_BT[:, :, None] & is_token_BT[:, None, :]
