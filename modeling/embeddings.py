# SPDX-License-Identifier: Apache-2.0
"""Word, position and token-type embeddings under XLM-R's names; the table's gradient may be added in place.

Legend: `B` sequences, `T` positions, `H` hidden size, `V` vocabulary.
"""

import torch
from torch import nn


def count_positions(is_token_BT: torch.Tensor, first: int) -> torch.Tensor:
    """Positions (B, T): tokens count from `first`, `config.first_position`; padding on either side is at the row
    before it, XLM-R's padding row, or at row 0 where there is none."""
    is_token_BT = is_token_BT.long()
    return (is_token_BT.cumsum(1) * is_token_BT + first - 1).clamp(min=0)


def position_ids_of(input_ids_BT: torch.Tensor, config) -> torch.Tensor:
    """The positions (B, T) that a model of `config` gives these tokens by default."""
    return count_positions(input_ids_BT.ne(config.pad_token_id), config.first_position)


def gradient_to_add_to(weight: torch.Tensor) -> torch.Tensor | None:
    """The existing gradient of a weight that may be added to in place in a backward pass, or None.

    A training loop marks the vocabulary's matrix with `weight.adds_in_place = True`. A second matrix of the size of
    XLM-R's has 768 MB, and would be made, filled with zeros, added and dropped at every step, from both ends of a tied
    model. With the mark, `torch.autograd.grad` of this weight and hooks on it do not work.
    """
    return weight.grad if getattr(weight, "adds_in_place", False) else None


class EmbeddingLookup(torch.autograd.Function):
    """Rows of a table, `nn.functional.embedding`, whose gradient is added in place to the existing one."""

    @staticmethod
    def forward(ctx, weight_VH, ids_BT, padding_id):
        ctx.save_for_backward(ids_BT)
        ctx.weight_VH, ctx.padding_id = weight_VH, padding_id
        return nn.functional.embedding(ids_BT, weight_VH)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_BTH):
        (ids_BT,), weight_VH = ctx.saved_tensors, ctx.weight_VH
        into_VH = torch.zeros_like(weight_VH) if weight_VH.grad is None else weight_VH.grad
        grad_BTH = grad_BTH.masked_fill(ids_BT.eq(ctx.padding_id)[..., None], 0.0).to(into_VH.dtype)
        into_VH.index_add_(0, ids_BT.flatten(), grad_BTH.reshape(-1, grad_BTH.shape[-1]))
        return into_VH if weight_VH.grad is None else None, None, None


class WordEmbeddings(nn.Embedding):
    """The table of the vocabulary; see `gradient_to_add_to`."""

    def forward(self, input_ids_BT):
        if not (getattr(self.weight, "adds_in_place", False) and self.weight.requires_grad and torch.is_grad_enabled()):
            return super().forward(input_ids_BT)
        return EmbeddingLookup.apply(self.weight, input_ids_BT, -1 if self.padding_idx is None else self.padding_idx)


class Embeddings(nn.Module):
    """Word, position and (constant) token-type embeddings, summed and normalized."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.word_embeddings = WordEmbeddings(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(
            config.max_position_embeddings,
            config.hidden_size,
            padding_idx=None if config.positions_from_zero else config.pad_token_id,
        )
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids_BT, position_ids_BT, token_type_ids_BT, inputs_embeds_BTH):
        first, limit = self.config.first_position, self.config.longest_input
        if position_ids_BT is None:
            if input_ids_BT is not None:
                position_ids_BT = position_ids_of(input_ids_BT, self.config)
            else:
                length = inputs_embeds_BTH.shape[1]
                position_ids_BT = torch.arange(first, first + length, device=inputs_embeds_BTH.device)[None]
        if position_ids_BT.shape[1] > limit:
            # Only then can a position be out of range; looking costs a synchronization on a GPU.
            longest = int(position_ids_BT.max()) - first + 1
            if longest > limit:
                raise ValueError(
                    f"an input of {longest} tokens is longer than the model's {limit} positions: cut it "
                    "(truncation=True)."
                )
        if inputs_embeds_BTH is None:
            inputs_embeds_BTH = self.word_embeddings(input_ids_BT)
        if token_type_ids_BT is None:
            token_type = self.token_type_embeddings.weight[0]
        else:
            token_type = self.token_type_embeddings(token_type_ids_BT)
        summed_BTH = inputs_embeds_BTH + token_type + self.position_embeddings(position_ids_BT)
        return self.dropout(self.LayerNorm(summed_BTH))
