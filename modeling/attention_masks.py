# SPDX-License-Identifier: Apache-2.0
"""Who may attend to whom.

Legend: `B` sequences, `T` positions that attend, `S` positions attended to, `H` hidden size.
"""

import torch
from transformers.masking_utils import create_bidirectional_mask


def prepare_attention_mask(config, states_BTH, attention_mask, encoder_states_BSH=None):
    """Turn a user's mask into what the configured attention implementation wants.

    `attention_mask` is None (everything attends to everything), `(B, S)` with 1 for real tokens and 0 for padding, or
    boolean `(B, T, S)`, True where row t may attend to column s (block masks; they hold the padding too). A row of a
    block mask that may attend to nothing (padding) attends to its own column or, in cross-attention, to everything:
    its states are read by nobody, and a softmax over nothing would be NaN.

    Raises `ValueError` for a mask of another shape or type, and for a block mask under flash attention, which has no
    way to honor one.
    """
    if attention_mask is None or attention_mask.dim() == 2:
        return create_bidirectional_mask(
            config=config,
            inputs_embeds=states_BTH,
            attention_mask=attention_mask,
            encoder_hidden_states=encoder_states_BSH,
        )
    allow_BTS = checked_block_mask(config, states_BTH, attention_mask, encoder_states_BSH)
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


def checked_block_mask(config, states_BTH, attention_mask, encoder_states_BSH=None):
    """A block mask (B, T, S) whose rows all attend to something; see `prepare_attention_mask`, which says what else.

    Raises `ValueError` for one of another shape or type, and under flash attention.
    """
    keys = states_BTH if encoder_states_BSH is None else encoder_states_BSH
    expected = (states_BTH.shape[0], states_BTH.shape[1], keys.shape[1])
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
    attends_to_nothing_BT1 = ~attention_mask.any(-1, keepdim=True)
    if encoder_states_BSH is None:
        own_column_TS = torch.eye(expected[1], dtype=torch.bool, device=attention_mask.device)
        return attention_mask | (attends_to_nothing_BT1 & own_column_TS)
    return attention_mask | attends_to_nothing_BT1


def cross_stream_mask(config, attention_mask):
    """Self-attention mask of the stream that reads another sequence: as given, or causal (`config.cross_stream`).

    `attention_mask` is (B, T), or a block mask (B, T, T).
    """
    if config.cross_stream == "bidirectional":
        return attention_mask
    return causal_mask(attention_mask) if attention_mask.dim() == 2 else attention_mask.tril()


def causal_mask(attention_mask_BT):
    """Block mask of a causal stream: boolean (B, T, T), True where token t may attend to a token s <= t.

    `attention_mask_BT` is 1 (or True) for real tokens and 0 for padding.
    """
    positions = torch.ones(2 * attention_mask_BT.shape[1:], dtype=torch.bool, device=attention_mask_BT.device)
    return positions.tril() & as_block_mask(attention_mask_BT)


def camlm_mask(attention_mask, segment_ids_BT, predicted_BT):
    """Block mask of cross-attention masked LM (ERNIE-M, section 3.1, Figure 2): boolean (B, T, T).

    A predicted position attends to the predicted positions of its own side, itself included, and to the others of the
    other side: p(x_m | M_x, y without M_y). Any other position attends to the others of its own side only, so that
    neither side's words come back by way of the other's states, in any number of layers.

    Args:
        attention_mask: (B, T), or a block mask (B, T, T), such as that of packed rows, which this one restricts.
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
    """A padding mask (B, T) as a block mask, boolean (B, T, T): padding neither attends nor is attended to. A mask
    that is (B, T, T) already stays as it is."""
    if attention_mask.dim() == 3:
        return attention_mask
    is_token_BT = attention_mask.bool()
    return is_token_BT[:, :, None] & is_token_BT[:, None, :]
