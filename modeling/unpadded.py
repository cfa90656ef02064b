# SPDX-License-Identifier: Apache-2.0
"""A padded batch without its padding: the layers compute at real positions only, and attention within like lengths.

Linear maps, LayerNorms and dropout do not care which sequence a position belongs to: they get all real positions of a
batch as one long row. Attention does: sequences are sorted by length and attend in groups of like lengths, padded to
the longest of their group only (sdpa, eager). Flash attention gets the beginnings of sequences, flex a mask function.
The numbers are those of the padded batch, at every real position that has something to attend to.

Legend: `B` sequences, `T` positions, `S` positions of the other sequence, `F` real positions of all sequences, `G`
those of the other sequences, `b` sequences of a group, `L` positions of its longest, `K` of the longest attended to,
`H` hidden size, `A` heads, `D` = H/A.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from transformers.masking_utils import create_bidirectional_mask

# A group holds sequences of at least so large a share of its longest. Attention is a twentieth of a layer's work at
# these lengths, so that a quarter of it wasted costs less than more, smaller products would.
SHORTEST_OF_GROUP = 0.75


class ScatterRows(torch.autograd.Function):
    """Rows of (N, H) put where `places_N` says in (`size`, H) zeros. No place is named twice."""

    @staticmethod
    def forward(ctx, rows_NH, places_N, size):
        ctx.save_for_backward(places_N)
        return rows_NH.new_zeros(size, rows_NH.shape[1]).index_copy_(0, places_N, rows_NH)

    @staticmethod
    def backward(ctx, grad):
        return GatherRows.apply(grad, ctx.saved_tensors[0]), None, None


class GatherRows(torch.autograd.Function):
    """The rows of (M, H) that `places_N` names: the reverse of `ScatterRows`.

    Indexing does the same; its gradient adds up, row by row, as if a place could be named twice.
    """

    @staticmethod
    def forward(ctx, rows_MH, places_N):
        ctx.save_for_backward(places_N)
        ctx.size = len(rows_MH)
        return rows_MH.index_select(0, places_N)

    @staticmethod
    def backward(ctx, grad):
        return ScatterRows.apply(grad, ctx.saved_tensors[0], ctx.size), None


class RealPositions:
    """Where the real positions of a batch (B, T) are, sequence by sequence in the order `order`.

    lengths: real positions of each sequence; starts: where each begins among the F; places_F: where each position
    is in the flattened (B * T).
    """

    def __init__(self, is_real_BT: torch.Tensor, order: list[int] | None = None):
        """`order`: sequences as another batch has them; by default the longest come first."""
        self.shape = is_real_BT.shape
        lengths = is_real_BT.sum(1).tolist()
        self.order = sorted(range(len(lengths)), key=lambda row: -lengths[row]) if order is None else order
        self.lengths = [lengths[row] for row in self.order]
        self.starts = [0, *accumulate(self.lengths)]
        order_B = torch.tensor(self.order, device=is_real_BT.device)
        self.sequence_F, self.column_F = is_real_BT[order_B].nonzero(as_tuple=True)
        self.places_F = order_B[self.sequence_F] * self.shape[1] + self.column_F

    def __len__(self) -> int:
        return self.starts[-1]

    def flat(self, states_BTH: torch.Tensor) -> torch.Tensor:
        """(B, T, H) -> (F, H)."""
        return GatherRows.apply(states_BTH.reshape(-1, states_BTH.shape[-1]), self.places_F)

    def padded(self, states_FH: torch.Tensor) -> torch.Tensor:
        """(F, H) -> (B, T, H), zero at padding."""
        size = self.shape[0] * self.shape[1]
        return ScatterRows.apply(states_FH, self.places_F, size).view(*self.shape, states_FH.shape[1])


@dataclass
class PaddedGroup:
    """One side of a group: positions `start` to `stop` of the F, as (b, L); `places` into (b * L), None where full."""

    start: int
    stop: int
    shape: tuple[int, int]
    places: torch.Tensor | None
    columns_bL: torch.Tensor | None  # column of each position in the batch, 0 where there is none
    is_real_bL: torch.Tensor | None

    @classmethod
    def of(cls, real: RealPositions, first: int, last: int) -> "PaddedGroup":
        """Sequences `first` to below `last`."""
        start, stop = real.starts[first], real.starts[last]
        shape = (last - first, max(1, *real.lengths[first:last]))
        column_N = real.column_F[start:stop]
        if stop - start == shape[0] * shape[1]:
            return cls(start, stop, shape, None, column_N.view(shape), None)
        sequence_N = real.sequence_F[start:stop]
        begins_B = torch.tensor(real.starts[first:last], device=column_N.device)
        rank_N = torch.arange(start, stop, device=column_N.device) - begins_B[sequence_N - first]
        places_N = (sequence_N - first) * shape[1] + rank_N
        columns_bL = column_N.new_zeros(shape[0] * shape[1]).index_copy_(0, places_N, column_N).view(shape)
        is_real_bL = torch.zeros(shape[0] * shape[1], dtype=torch.bool, device=column_N.device)
        is_real_bL[places_N] = True
        return cls(start, stop, shape, places_N, columns_bL, is_real_bL.view(shape))

    def rows(self, states_FH: torch.Tensor) -> torch.Tensor:
        """(F, H) -> (b, L, H) of this group."""
        part_NH = states_FH[self.start : self.stop]
        if self.places is not None:
            part_NH = ScatterRows.apply(part_NH, self.places, self.shape[0] * self.shape[1])
        return part_NH.view(*self.shape, -1)

    def flat(self, states_bLH: torch.Tensor) -> torch.Tensor:
        """(b, L, H) -> (N, H), the real positions of this group."""
        states_NH = states_bLH.reshape(-1, states_bLH.shape[-1])
        return states_NH if self.places is None else GatherRows.apply(states_NH, self.places)


class UnpaddedAttention:
    """Who attends to whom among flat positions; takes an attention mask's place in the layers.

    `queries` are the real positions of the batch, `keys` those of the batch attended to (the same in self-attention),
    in one order of sequences. `allow_BTS`, boolean, further restricts it: True where a row may attend to a column.
    """

    def __init__(self, config, queries: RealPositions, keys: RealPositions, allow_BTS: torch.Tensor | None = None):
        self.implementation = config._attn_implementation
        if "flash" in self.implementation:
            self.call = self._varlen(queries, keys)
        elif self.implementation == "flex_attention":
            self.call = self._one_row(config, queries, keys, allow_BTS)
        else:
            groups = [
                (PaddedGroup.of(queries, *bounds), PaddedGroup.of(keys, *bounds), bounds)
                for bounds in groups_of(queries.lengths)
            ]
            self.groups = [
                (own, other, self._mask(queries, own, other, bounds, allow_BTS)) for own, other, bounds in groups
            ]
            self.call = self._in_groups

    def __call__(self, attend, heads, query_FH, key_GH, value_GH):
        """Context (F, H). `attend(query, key, value, mask, **kwargs)` reads (., A, ., D) and returns (., ., A, D);
        `heads` makes the former of (., ., H)."""
        return self.call(attend, heads, query_FH, key_GH, value_GH)

    def _in_groups(self, attend, heads, query_FH, key_GH, value_GH):
        contexts = []
        for own, other, mask in self.groups:
            query_bLH, key_bKH, value_bKH = own.rows(query_FH), other.rows(key_GH), other.rows(value_GH)
            if self.implementation == "eager" and mask is not None:
                mask = torch.zeros_like(mask, dtype=query_FH.dtype).masked_fill(~mask, torch.finfo(query_FH.dtype).min)
            context_bLAD = self._attend(attend, heads(query_bLH), heads(key_bKH), heads(value_bKH), mask)
            contexts.append(own.flat(context_bLAD.reshape(query_bLH.shape)))
        return torch.cat(contexts)

    @staticmethod
    def _attend(attend, query, key, value, mask):
        """In float32 where a CPU would have to learn in bfloat16: at the lengths of sentences the gradient of sdpa is
        two to five times as fast, casts included (one core with AVX-512, torch 2.13), and more exact."""
        if query.dtype != torch.bfloat16 or query.device.type != "cpu" or not query.requires_grad:
            return attend(query, key, value, mask)
        with torch.autocast("cpu", enabled=False):
            return attend(query.float(), key.float(), value.float(), mask).to(torch.bfloat16)

    @staticmethod
    def _mask(queries: RealPositions, own: PaddedGroup, other: PaddedGroup, bounds, allow_BTS) -> torch.Tensor | None:
        """(b, 1, L, K) or (b, 1, 1, K), True where a row may attend to a column; None where everything may.

        A row that may attend to nothing reads everything: such rows are read by nobody (see
        `prepare_attention_mask`), and a softmax over nothing would be NaN.
        """
        if allow_BTS is None:
            if other.is_real_bL is None:
                return None
            mask_b1K = other.is_real_bL[:, None]
            return (mask_b1K | ~mask_b1K.any(-1, keepdim=True))[:, None]
        rows_b = torch.tensor(queries.order[bounds[0] : bounds[1]], device=allow_BTS.device)
        mask_bLK = allow_BTS[rows_b[:, None, None], own.columns_bL[:, :, None], other.columns_bL[:, None, :]]
        if other.is_real_bL is not None:
            mask_bLK = mask_bLK & other.is_real_bL[:, None]
        return (mask_bLK | ~mask_bLK.any(-1, keepdim=True))[:, None]

    @staticmethod
    def _varlen(queries: RealPositions, keys: RealPositions):
        device = queries.places_F.device
        begins = {
            "cu_seq_lens_q": torch.tensor(queries.starts, dtype=torch.int32, device=device),
            "cu_seq_lens_k": torch.tensor(keys.starts, dtype=torch.int32, device=device),
            "max_length_q": max(queries.lengths),
            "max_length_k": max(keys.lengths),
        }

        def call(attend, heads, query_FH, key_GH, value_GH):
            context = attend(heads(query_FH[None]), heads(key_GH[None]), heads(value_GH[None]), None, **begins)
            return context.reshape(query_FH.shape)

        return call

    @staticmethod
    def _one_row(config, queries: RealPositions, keys: RealPositions, allow_BTS):
        order_B = torch.tensor(queries.order, device=queries.places_F.device)
        sequence_F, sequence_G = queries.sequence_F, keys.sequence_F

        def may_attend(batch, head, row, column):
            same = sequence_F[row] == sequence_G[column]
            if allow_BTS is None:
                return same
            return same & allow_BTS[order_B[sequence_F[row]], queries.column_F[row], keys.column_F[column]]

        mask = None

        def call(attend, heads, query_FH, key_GH, value_GH):
            nonlocal mask
            if mask is None:  # once for all layers; it wants tensors for their sizes, type and device
                mask = create_bidirectional_mask(
                    config=config,
                    inputs_embeds=query_FH[None],
                    attention_mask=None,
                    encoder_hidden_states=key_GH[None],
                    and_mask_function=may_attend,
                )
            context = attend(heads(query_FH[None]), heads(key_GH[None]), heads(value_GH[None]), mask)
            return context.reshape(query_FH.shape)

        return call


def groups_of(lengths: list[int]) -> list[tuple[int, int]]:
    """(first, last) of the groups of sequences, the longest of which come first."""
    bounds = [0]
    for number, length in enumerate(lengths):
        if length < SHORTEST_OF_GROUP * lengths[bounds[-1]]:
            bounds.append(number)
    return list(zip(bounds, [*bounds[1:], len(lengths)], strict=True))


def is_real(attention_mask: torch.Tensor) -> torch.Tensor:
    """(B, T) positions that are no padding, of a mask (B, T) or of a block mask (B, T, T): those that attend to a
    position, or are attended to."""
    if attention_mask.dim() == 2:
        return attention_mask.bool()
    return attention_mask.any(1) | attention_mask.any(2)
