# SPDX-License-Identifier: Apache-2.0
"""Denoising word alignment (DWA), XLM-Align's objective: links that a model labels itself, and the loss of pointing at
the linked word (Chi et al., ACL 2021, sections 3.1 and 3.2).

Both work on the states of any encoder, see `dwa_labels` and `dwa_loss`; `XlmAlignForPreTraining` adds the encoder,
the pointer network and the masked LM.

Legend: `B` rows, `T` positions of a row, or of a target; `F` = B * T; `P` pairs, `S` and `T` words (tokens) of their
source and target, `Q` queries of a pair, `N` queries in all; `H` hidden size.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from .configuration_xlm_align import XlmAlignConfig
from .masked_lm import Losses
from .optimal_transport import align, ot_itermax_links, settle_one_token_sides, sinkhorn
from .symmetrization import argmax_links

DRAWS = 2**31  # `draws` of a sub-batch are below it
UNMASKED_SHARE = 0.15  # of the unmasked positions that are queries (Table 7)
LABELED_BY = ("segment_ids", "special_tokens_mask")  # fields of a sub-batch


class AlignmentLabels(NamedTuple):
    """Links that the model found in the P pairs of a sub-batch (a packed row holds several).

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
        batch: the `tlm` sub-batch of `TlmCollator`; its `segment_ids` and `special_tokens_mask` (B, T) are read, and
            of packed rows `example_ids` (B, T).
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
    check_batch(states_BTH, batch, LABELED_BY)
    flat_FH = states_BTH.flatten(0, 1).float()
    (source_PS, source_mask_PS), (target_PT, target_mask_PT) = (words_of_side(batch, side) for side in (0, 1))
    masks = (source_mask_PS, target_mask_PT)
    if config.labeling_rule == "ot_words":
        links = align(flat_FH[source_PS], flat_FH[target_PT], *masks, "ot_words")
        return AlignmentLabels(source_PS, target_PT, *masks, *links)
    with torch.autocast(flat_FH.device.type, enabled=False):
        dots_PST = torch.bmm(flat_FH[source_PS], flat_FH[target_PT].transpose(1, 2))
        plan_PST = sinkhorn(
            dots_PST,
            *masks,
            iterations=config.sinkhorn_iterations,
            regularization=config.entropic_regularization,
            epsilon=config.similarity_floor,
            first=config.sinkhorn_first,
        )
    plan_PST = settle_one_token_sides(plan_PST, dots_PST, *masks)
    if config.filtering_iterations:
        links_PST = ot_itermax_links(
            plan_PST,
            *masks,
            iterations=config.filtering_iterations,
            discount=config.filtering_discount,
            rule=config.filtering_rule,
        )
    else:
        links_PST = argmax_links(plan_PST, *masks, symmetrization="union")
    return AlignmentLabels(source_PS, target_PT, *masks, links_PST, plan_PST)


def dwa_loss(
    states_BTH: torch.Tensor,
    labels: AlignmentLabels,
    batch: Mapping[str, torch.Tensor],
    q_linear: nn.Module,
    k_linear: nn.Module,
    config: XlmAlignConfig | None = None,
) -> torch.Tensor:
    """Returns the mean cross-entropy of pointing from each masked word at the word that it is linked to, in nats.

    Args:
        states_BTH: (B, T, H) states of the masked text, of any encoder.
        labels: those of the same pairs, see `dwa_labels`.
        batch: the `tlm` sub-batch of `TlmCollator`; its `labels` (B, T) are read as well, and `draws` (B, T) where
            `config.query_positions` is unmasked or all_aligned (`TlmCollator(..., draws=True)`).
        q_linear, k_linear: maps of (..., H) to (..., H), the pointer network: `torch.nn.Linear(H, H)` each.
        config: of its fields, `query_positions` and `pointer_start` are read; by default the paper's.

    Returns a number with gradient, 0 where no masked word has a link.

    Raises ValueError where a field of `batch` is missing, for states of another shape, and for `query_positions` none.

    Example:
        >>> masked = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        >>> q_linear, k_linear = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        >>> loss = dwa_loss(masked, dwa_labels(states, batch), batch, q_linear, k_linear)

    Source: XLM-Align, section 3.2, Eqs. 11 to 15.
    """
    config = config or XlmAlignConfig()
    if config.query_positions == "none":
        raise ValueError("config.query_positions is none, and no word points at its translation: leave dwa_loss out.")
    losses = dwa_losses(states_BTH, labels, batch, q_linear, k_linear, config)
    return losses.total / max(1, len(losses.losses_N))


def dwa_losses(states_BTH, labels, batch, q_linear, k_linear, config: XlmAlignConfig) -> Losses:
    """DWA's cross-entropies (Eqs. 11 to 15), source to target and back; arguments as of `dwa_loss`."""
    check_batch(states_BTH, batch, ("labels", *needed_draws(config)))
    flat_FH = states_BTH.flatten(0, 1)
    if config.pointer_start == "identity":  # of length sqrt(H): scores start as sqrt(H) times the cosines
        flat_FH = nn.functional.normalize(flat_FH, dim=1) * flat_FH.shape[1] ** 0.5
    from_source_PST, from_target_PST = labeled_queries(labels, batch, config)
    losses, rows = [], []
    for own_PS, other_PT, other_mask_PT, probability_PST in (
        (labels.source_PS, labels.target_PT, labels.target_mask_PT, from_source_PST),
        (labels.target_PT, labels.source_PS, labels.source_mask_PS, from_target_PST.transpose(1, 2)),
    ):
        columns_PQ, is_query_PQ = places(probability_PST.ge(0).any(2))
        queries_PQ = own_PS.gather(1, columns_PQ)
        scores_PQT = torch.bmm(q_linear(flat_FH[queries_PQ]), k_linear(flat_FH[other_PT]).transpose(1, 2))
        scores_PQT = scores_PQT.float() / flat_FH.shape[1] ** 0.5
        scores_NT = scores_PQT.masked_fill(~other_mask_PT[:, None], -torch.inf)[is_query_PQ]
        chosen_PQT = probability_PST.gather(1, columns_PQ[..., None].expand(-1, -1, other_PT.shape[1]))
        targets_N = chosen_PQT[is_query_PQ].argmax(1) if scores_NT.numel() else columns_PQ.new_empty(0)
        losses.append(nn.functional.cross_entropy(scores_NT, targets_N, reduction="none"))
        rows.append(queries_PQ[is_query_PQ] // states_BTH.shape[1])
    losses_N = torch.cat(losses)
    return Losses(losses_N.sum(), losses_N.detach(), torch.cat(rows))


def labeled_queries(
    labels: AlignmentLabels, batch: Mapping[str, torch.Tensor], config: XlmAlignConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """The probability of each link whose source, and of each whose target, is a query; -1 elsewhere (P, S, T)."""
    is_masked_F = batch["labels"].ne(-100).flatten()
    is_masked_PS1, is_masked_P1T = is_masked_F[labels.source_PS][..., None], is_masked_F[labels.target_PT][:, None]
    positions = config.query_positions
    if positions == "masked":
        queries = (is_masked_PS1, is_masked_P1T)
    else:
        draws_F = batch["draws"].flatten()
        draws_PS1, draws_P1T = draws_F[labels.source_PS][..., None], draws_F[labels.target_PT][:, None]
        if positions == "all_aligned":
            queries = (draws_PS1 > draws_P1T, draws_PS1 <= draws_P1T)
        else:
            limit = UNMASKED_SHARE * DRAWS
            queries = (~is_masked_PS1 & (draws_PS1 < limit), ~is_masked_P1T & (draws_P1T < limit))
    return tuple(labels.plan_PST.masked_fill(~(labels.links_PST & is_query), -1.0) for is_query in queries)


def needed_draws(config: XlmAlignConfig) -> tuple[str, ...]:
    """The field of random numbers, where the configuration draws which words point at their translation."""
    return ("draws",) if config.query_positions in ("unmasked", "all_aligned") else ()


def words_of_side(batch: Mapping[str, torch.Tensor], side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(P, K) positions of the words of one side of each pair in the flattened (B * T) rows, and which of them exist.

    Without `example_ids` a row is a pair; with them, P counts as many pairs in every row as in the fullest.
    """
    is_word_BT = (batch["segment_ids"] == side) & ~batch["special_tokens_mask"].bool()
    rows, length = is_word_BT.shape
    pairs = 1
    if "example_ids" in batch:
        pairs = int(batch["example_ids"].max()) + 1
        numbers_E = torch.arange(pairs, device=is_word_BT.device)
        is_word_BT = is_word_BT[:, None] & (batch["example_ids"][:, None] == numbers_E[:, None])
    columns_PK, exists_PK = places(is_word_BT.reshape(-1, length))
    starts_P = torch.arange(rows, device=columns_PK.device).repeat_interleave(pairs) * length
    return columns_PK + starts_P[:, None], exists_PK


def places(mask_GT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(G, K) the columns in which each row of the mask is true, in order, and which of them exist; others are 0."""
    counts_G = mask_GT.sum(1)
    most = int(counts_G.max()) if len(counts_G) else 0
    exists_GK = torch.arange(most, device=mask_GT.device) < counts_G[:, None]
    return (~mask_GT).byte().argsort(dim=1, stable=True)[:, :most] * exists_GK, exists_GK


def check_batch(states_BTH: torch.Tensor, batch: Mapping[str, torch.Tensor], fields: Sequence[str]) -> None:
    """Raises ValueError for a `tlm` sub-batch without one of the fields, and for states of other positions."""
    for field in fields:
        if field not in batch:
            raise ValueError(
                f"the batch has no {field} (B, T), which dwa needs. Give the sub-batch 'tlm' of `TlmCollator` (draws: "
                "with draws=True)."
            )
    if states_BTH.shape[:2] != batch[fields[0]].shape:
        raise ValueError(
            f"the states have the shape {tuple(states_BTH.shape)}, and {fields[0]} {tuple(batch[fields[0]].shape)}. "
            "Give a state for each position of the batch."
        )
