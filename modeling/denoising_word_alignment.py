# SPDX-License-Identifier: Apache-2.0
"""Denoising word alignment (DWA), XLM-Align's objective: links that a model labels itself, and the loss of pointing at
the linked word (Chi et al., ACL 2021, sections 3.1 and 3.2). Both work on the states of any encoder.

Legend: `B` rows, `T` positions of a row, or of a target; `F` = B * T; `P` pairs, `S` and `T` words (tokens) of their
source and target, `N` queries in all; `H` hidden size.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from .configuration_xlm_align import XlmAlignConfig
from .masked_lm import Losses
from .optimal_transport import align

DRAWS = 2**31  # `draws` of a sub-batch are below it
UNMASKED_SHARE = 0.15  # of the unmasked positions that are queries (Table 7)


class AlignmentLabels(NamedTuple):
    """Links that the model found in the P pairs of a sub-batch, its rows.

    source_PS, target_PT: (P, S) and (P, T) positions of the words of either side in the flattened (B * T)
        sub-batch; source_mask_PS, target_mask_PT: which of them exist. Special tokens and padding are in neither.
    links_PST: (P, S, T) boolean, what is linked; plan_PST: how likely: the transport plan A* (Eq. 4), or the
        similarities where a side has a single word, whose plan has the same mass everywhere.

    Example:
        >>> labels = dwa_labels(states, batch)
        >>> links = labels.links_PST[0].nonzero().tolist()  # [source token, target token] of the first pair, from 0

    Source: XLM-Align (Chi et al., ACL 2021), section 3.1.
    """

    source_PS: torch.Tensor
    target_PT: torch.Tensor
    source_mask_PS: torch.Tensor
    target_mask_PT: torch.Tensor
    links_PST: torch.Tensor
    plan_PST: torch.Tensor


@torch.no_grad()
def dwa_labels(
    states_BTH: torch.Tensor, batch: Mapping[str, torch.Tensor], config: XlmAlignConfig | None = None
) -> AlignmentLabels:
    """Labels the word alignment of pairs by optimal transport between the states of their words.

    Args:
        states_BTH: (B, T, H) states of the text before it was masked, of any encoder.
        batch: the `tlm` sub-batch of `TlmCollator`; its `segment_ids` and `special_tokens_mask` (B, T) are read.
        config: the options of labeling, see `XlmAlignConfig`; by default those of the released code. Its layers are not
            read: the paper labels by the states of layer 10 of 12, without dropout.

    Raises ValueError where a field of `batch` is missing, and for states of another shape.

    Example:
        >>> batch = TlmCollator(tokenizer)(pairs)["tlm"]
        >>> text = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
        >>> with torch.no_grad():  # of an encoder in evaluation mode
        ...     states = encoder.eval()(input_ids=text, attention_mask=batch["attention_mask"]).last_hidden_state
        >>> links = dwa_labels(states, batch).links_PST[0].nonzero().tolist()  # [source token, target token], from 0

    Source: XLM-Align, section 3.1, Eqs. 1 to 9.
    """
    config = config or XlmAlignConfig()
    check_batch(states_BTH, batch, ("segment_ids", "special_tokens_mask"))
    source, target = words_of_sides(batch)
    method, options = labeling_method(config)
    flat_FH = states_BTH.flatten(0, 1).float()
    x_PSH = flat_FH[source.positions_PK]
    y_PTH = flat_FH[target.positions_PK]
    links = align(x_PSH, y_PTH, source.mask_PK, target.mask_PK, method, **options)
    return AlignmentLabels(
        source.positions_PK,
        target.positions_PK,
        source.mask_PK,
        target.mask_PK,
        links.links_BST,
        links.scores_BST,
    )


def labeling_method(config: XlmAlignConfig) -> tuple[str, dict[str, Any]]:
    """The method of `align` that labels, and its options."""
    if config.labeling_rule != "ot_itermax":
        return config.labeling_rule, {}
    options: dict[str, Any] = {
        "sinkhorn_iterations": config.sinkhorn_iterations,
        "regularization": config.entropic_regularization,
        "epsilon": config.similarity_floor,
        "first": config.sinkhorn_first,
    }
    if not config.filtering_iterations:
        return "ot", options | {"symmetrization": "union"}
    options["filter_iterations"] = config.filtering_iterations
    options["discount"] = config.filtering_discount
    options["rule"] = config.filtering_rule
    return "ot_itermax", options


def dwa_losses(
    states_BTH: torch.Tensor,
    labels: AlignmentLabels,
    batch: Mapping[str, torch.Tensor],
    q_linear: nn.Module,
    k_linear: nn.Module,
    config: XlmAlignConfig | None = None,
) -> Losses:
    """The cross-entropies, in nats, of pointing from each masked word at the word that it is linked to, both ways.

    Args:
        states_BTH: (B, T, H) states of the masked text, of any encoder.
        labels: those of the same pairs, see `dwa_labels`.
        batch: the `tlm` sub-batch of `TlmCollator`; its `labels` (B, T) are read as well, and `draws` (B, T) where
            `config.query_positions` is unmasked or all_aligned (`TlmCollator(..., draws=True)`).
        q_linear, k_linear: maps of (..., H) to (..., H), the pointer network: `torch.nn.Linear(H, H)` each.
        config: its `query_positions`, which must not be `none`, and `pointer_start` are read; by default the paper's.

    Raises ValueError where a field of `batch` is missing, and for states of another shape.

    Example:
        >>> masked = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        >>> q_linear, k_linear = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        >>> losses = dwa_losses(masked, dwa_labels(states, batch), batch, q_linear, k_linear)
        >>> loss = losses.total / max(1, len(losses.losses_N))

    Source: XLM-Align, section 3.2, Eqs. 11 to 15.
    """
    config = config or XlmAlignConfig()
    fields = ["labels"]
    if config.query_positions != "masked":
        fields.append("draws")
    check_batch(states_BTH, batch, fields)
    flat_FH = states_BTH.flatten(0, 1)
    if config.pointer_start == "identity":  # of length sqrt(H): scores start as sqrt(H) times the cosines
        flat_FH = nn.functional.normalize(flat_FH, dim=1) * flat_FH.shape[1] ** 0.5
    from_source_PST, from_target_PST = labeled_queries(labels, batch, config)
    pointed = []
    for query_PS, key_PT, key_mask_PT, probability_PST in (
        (labels.source_PS, labels.target_PT, labels.target_mask_PT, from_source_PST),
        (labels.target_PT, labels.source_PS, labels.source_mask_PS, from_target_PST.transpose(1, 2)),
    ):
        scores_PST = q_linear(flat_FH[query_PS]) @ k_linear(flat_FH[key_PT]).transpose(1, 2)
        scores_PST = scores_PST.float() / flat_FH.shape[1] ** 0.5
        scores_PST = scores_PST.masked_fill(~key_mask_PT[:, None], torch.finfo(torch.float32).min)
        highest_PS, label_PS = probability_PST.max(2)
        losses_PS = nn.functional.cross_entropy(scores_PST.transpose(1, 2), label_PS, reduction="none")
        position_PS = torch.where(highest_PS >= 0, query_PS, -1)
        pointed.append((losses_PS.flatten(), position_PS.flatten()))
    losses_F = torch.cat([losses for losses, _ in pointed])
    positions_F = torch.cat([positions for _, positions in pointed])
    query_N = positions_F.ge(0).nonzero()[:, 0]  # waits for a GPU, once
    losses_N = losses_F[query_N]
    return Losses(losses_N.sum(), losses_N.detach(), positions_F[query_N] // states_BTH.shape[1])


def labeled_queries(
    labels: AlignmentLabels, batch: Mapping[str, torch.Tensor], config: XlmAlignConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """The probability of each link whose source, and of each whose target, is a query; -1 elsewhere (P, S, T)."""
    is_masked_F = batch["labels"].ne(-100).flatten()
    source_asks_PST = is_masked_F[labels.source_PS][:, :, None]
    target_asks_PST = is_masked_F[labels.target_PT][:, None]
    if config.query_positions != "masked":
        draws_F = batch["draws"].flatten()
        draws_PS1 = draws_F[labels.source_PS][:, :, None]
        draws_P1T = draws_F[labels.target_PT][:, None]
        if config.query_positions == "all_aligned":
            source_asks_PST = draws_PS1 > draws_P1T
            target_asks_PST = ~source_asks_PST
        else:
            limit = UNMASKED_SHARE * DRAWS
            source_asks_PST = ~source_asks_PST & (draws_PS1 < limit)
            target_asks_PST = ~target_asks_PST & (draws_P1T < limit)
    from_source_PST = labels.plan_PST.masked_fill(~(labels.links_PST & source_asks_PST), -1.0)
    from_target_PST = labels.plan_PST.masked_fill(~(labels.links_PST & target_asks_PST), -1.0)
    return from_source_PST, from_target_PST


class Words(NamedTuple):
    """The words of one side of each pair: (P, K) positions in the flattened (B * T) rows, and which of them exist."""

    positions_PK: torch.Tensor
    mask_PK: torch.Tensor


def words_of_sides(batch: Mapping[str, torch.Tensor]) -> tuple[Words, Words]:
    """The words of source and target."""
    segments_PT = batch["segment_ids"]
    is_ordinary_PT = ~batch["special_tokens_mask"].bool()
    positions_PT = torch.arange(segments_PT.numel(), device=segments_PT.device).view_as(segments_PT)
    is_word_2PT = torch.stack([(segments_PT == 0) & is_ordinary_PT, (segments_PT == 1) & is_ordinary_PT])
    longest = is_word_2PT.sum(2).amax(1).clamp(min=1).tolist()  # waits for a GPU, once for both sides
    order_2PT = (~is_word_2PT).byte().argsort(dim=2, stable=True)  # words first
    sides = []
    for side, words in enumerate(longest):
        order_PK = order_2PT[side, :, :words]
        sides.append(Words(positions_PT.gather(1, order_PK), is_word_2PT[side].gather(1, order_PK)))
    source, target = sides
    return source, target


def check_batch(states_BTH: torch.Tensor, batch: Mapping[str, torch.Tensor], fields: Sequence[str]) -> None:
    """Raises ValueError for a `tlm` sub-batch without one of the fields (B, T) of the states."""
    expected = tuple(states_BTH.shape[:2])
    shapes = {field: tuple(batch[field].shape) for field in fields if field in batch}
    if shapes != dict.fromkeys(fields, expected):
        raise ValueError(
            f"dwa needs {', '.join(fields)} of the shape of the states, {expected}; the batch has {shapes}. Give the "
            "sub-batch 'tlm' of `TlmCollator` (draws: with draws=True)."
        )
