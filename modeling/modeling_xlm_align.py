# SPDX-License-Identifier: Apache-2.0
"""XLM-Align: cross-lingual pre-training by self-labeled word alignment (Chi et al., ACL 2021).

XLM-R's shape; `microsoft/xlm-align-base` is an XLM-R checkpoint and loads without conversion.

Legend: `B` rows, `T` positions, or target words of a pair; `P` pairs, `S` source words, `K` links; `H` hidden size.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import initialization as init

from .configuration_encoder import HEADS
from .configuration_xlm_align import XlmAlignConfig
from .denoising_word_alignment import AlignmentLabels, dwa_labels, dwa_losses
from .encoder import LM_HEAD, EncoderModel, EncoderPreTrainedModel, without_dropout
from .masked_lm import ForMaskedLM, ForPreTraining, Losses, NamedLosses, encoder_inputs, predictions_of, unmasked_ids
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification
from .word_probabilities import context_logits, word_shares

if TYPE_CHECKING:  # this line is for save_pretrained, which copies the files of all imports: the pipeline's, too
    from .pipeline_word_alignment import WordAlignmentPipeline  # noqa: F401

SURE = 0.8  # probability of a link that the model takes for right, of `word_links`


class XlmAlignPreTrainedModel(EncoderPreTrainedModel):
    """Base class of the XLM-Align models."""

    config_class = XlmAlignConfig
    # of a pre-trained folder; the other heads have no use for the pointer network
    _keys_to_ignore_on_load_unexpected = [r"^[qk]_linear\.", LM_HEAD]


class XlmAlignModel(XlmAlignPreTrainedModel, EncoderModel):
    """XLM-Align's encoder; see `forward`. Source: Chi et al., ACL 2021."""


XlmAlignPreTrainedModel.encoder_class = XlmAlignModel  # of the heads below


class PointerLinear(nn.Linear):
    """One of the pointer network's two maps, which may start as the identity."""


class XlmAlignForPreTraining(XlmAlignPreTrainedModel, ForPreTraining):
    r"""Denoising word alignment (DWA) by self-labeled links, with MLM and TLM (section 3).

    Equations, of a translation pair (S, T) and its masked version (S*, T*):
    - labels, without gradient and dropout, from the unmasked pair: K_ij = max(eps, h_i . h_j)^(1/mu) (Eqs. 1, 5),
      A* by Sinkhorn's iterations (Eqs. 4, 6), links A by itermax filtering (Eqs. 7, 8); see `optimal_transport.py`;
    - DWA: sum_{i in P} CE(a_i, A(i)), a_i = softmax(q_i . K / sqrt(d_h)) over the words of the other sentence, q and K
      linear maps of the masked states h* (Eqs. 11 to 13, 15), P the masked positions with a link (Eq. 14), both ways;
    - L = MLM + TLM + DWA; TLM and DWA read one forward of the masked pair (section 4.1).

    Notation: S and T are segments 0 and 1 of a `tlm` row; `states_BTH` are the paper's h*.

    Relation to its neighbors: TLM predicts which word was masked, DWA where its translation is. ERNIE-M's CAMLM reads
    the other side too, but predicts words. Labels are as good as the model: start from a pretrained one (section 6).

    Not in the paper: `word_links` learns from links made by hand, or from the model's own. Its loss is the
    cross-entropy of the aligner's link probabilities (`word_probabilities.py`). It needs no pointer network.

    Deviations from the paper: Sinkhorn's order and the filtering are those of the released code, not of Eqs. 6 and 9 as
    printed (`config.sinkhorn_first`, `config.filtering_rule`). Where the paper is silent: a query with several links is
    labeled with the likeliest one (the released code took the one written last); special tokens are neither queries
    nor keys. For few steps, the configuration also has `labeling_rule` ot_words and `pointer_start` identity.

    Sub-batches, see `ForPreTraining.forward`: tlm also has `segment_ids` and `special_tokens_mask` (B, T); with
    `config.query_positions` unmasked or all_aligned `draws` (B, T), random integers from 0 to below 2^31. Of weight 0,
    `dwa` is not computed. Those of word_links: see `LinksCollator` of `pretraining/objectives/links.py`.

    Raises ValueError as `ForPreTraining.forward`, and where a field of `tlm` that DWA needs is missing.

    Example:
        >>> collate = TlmCollator(tokenizer)
        >>> batch = collate([{"source": "The house is small.", "target": "Das Haus ist klein."}])
        >>> model(**batch).loss.backward()

    The losses are `mlm`, `tlm`, `dwa` and `word_links`. Source: Chi et al., ACL 2021, section 3.
    """

    objectives = ForPreTraining.objectives | {"dwa": (), "word_links": ()}
    reads = {"dwa": "tlm"}

    def __init__(self, config: XlmAlignConfig):
        super().__init__(config)
        # named as in the released code
        self.q_linear = PointerLinear(config.hidden_size, config.hidden_size)
        self.k_linear = PointerLinear(config.hidden_size, config.hidden_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PointerLinear) and self.config.pointer_start == "identity":
            init.eye_(module.weight)

    def predictions(self, name: str, batch: dict[str, Any], weights: Mapping[str, float]) -> NamedLosses:
        """The losses of one sub-batch: `tlm` and `dwa` from one forward."""
        if name == "word_links":
            yield name, self.link_losses(batch)
            return
        learns_links = weights.get("dwa", 1.0) and self.config.query_positions != "none"
        if name != "tlm" or not learns_links:
            if weights.get(name, 1.0):
                yield from super().predictions(name, batch, weights)
            return
        labels = self.self_label(batch)
        is_last = self.config.pointer_layer == self.config.num_hidden_layers  # then the others need not be kept
        outputs = self.roberta(**encoder_inputs(batch), output_hidden_states=not is_last)
        if weights.get(name, 1.0):
            yield name, predictions_of(outputs.last_hidden_state, batch)
        states_BTH = outputs.last_hidden_state
        if not is_last:
            states_BTH = outputs.hidden_states[self.config.pointer_layer]
        yield "dwa", dwa_losses(states_BTH, labels, batch, self.q_linear, self.k_linear, self.config)

    def word_logits(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a `word_links` sub-batch, by the states of `config.labeling_layer`: the logits (P, S, T) that its words
        are translations, and where there are words."""
        states = []
        words = []
        for side in (batch["x"], batch["y"]):
            outputs = self.roberta(**encoder_inputs(side), num_layers=self.config.labeling_layer)
            states.append(outputs.last_hidden_state.float())
            words.append(side["words"])
        is_token = [words_PN >= 0 for words_PN in words]
        x_PSH, y_PTH = states
        x_mask_PS, y_mask_PT = is_token
        shares_PST, cells_PST = word_shares(x_PSH, y_PTH, x_mask_PS, y_mask_PT, words)
        return context_logits(shares_PST, cells_PST), cells_PST

    def link_losses(self, batch: Mapping[str, Any]) -> Losses:
        """Binary cross-entropies of word pairs, summed up for each source word: is the target word its translation?

        Possible links are left out. Examples without links (not `has_links`) are labeled by the model: a pair of words
        is one with a probability of `SURE` or more, none below 1 - `SURE`, and left out in between.
        """
        logits_PST, cells_PST = self.word_logits(batch)
        row_K, source_K, target_K, is_sure_K = batch["links"].unbind(1)
        gold_PST = torch.zeros_like(logits_PST)
        gold_PST[row_K, source_K, target_K] = is_sure_K.to(gold_PST.dtype)
        counts_PST = cells_PST.clone()
        counts_PST[row_K, source_K, target_K] = is_sure_K.bool()

        probability_PST = logits_PST.detach().sigmoid()
        is_link_PST = probability_PST.ge(SURE)
        has_links_P11 = batch["has_links"][:, None, None]
        gold_PST = torch.where(has_links_P11, gold_PST, is_link_PST.to(gold_PST.dtype))
        counts_PST &= has_links_P11 | is_link_PST | probability_PST.lt(1 - SURE)

        losses_PST = nn.functional.binary_cross_entropy_with_logits(logits_PST, gold_PST, reduction="none")
        losses_PS = (losses_PST * counts_PST).sum(2)
        row_N, source_N = cells_PST.any(2).nonzero().unbind(1)  # the source words; waits for a GPU
        return Losses(losses_PS.sum(), losses_PS.detach()[row_N, source_N], row_N)

    @torch.no_grad()
    def self_label(self, batch: Mapping[str, Any]) -> AlignmentLabels:
        """The links of a `tlm` sub-batch (section 3.1), from its text before it was masked.

        Only the layers up to `config.labeling_layer` are run, in evaluation mode for this pass only.

        Raises ValueError where a field is missing.
        """
        inputs = encoder_inputs(batch) | {"input_ids": unmasked_ids(batch)}
        with without_dropout(self):
            outputs = self.roberta(**inputs, num_layers=self.config.labeling_layer)
        return dwa_labels(outputs.last_hidden_state, batch, self.config)


class XlmAlignForMaskedLM(XlmAlignPreTrainedModel, ForMaskedLM):
    """XLM-Align that predicts masked tokens; see `forward`. Source: Chi et al., ACL 2021."""


class XlmAlignForSequenceClassification(XlmAlignPreTrainedModel, ForSequenceClassification):
    """XLM-Align with a label for a text or a pair; see `forward`. Source: Chi et al., ACL 2021."""


class XlmAlignForTokenClassification(XlmAlignPreTrainedModel, ForTokenClassification):
    """XLM-Align with a label for each token; see `forward`. Source: Chi et al., ACL 2021."""


class XlmAlignForQuestionAnswering(XlmAlignPreTrainedModel, ForQuestionAnswering):
    """XLM-Align that marks an answer in a text; see `forward`. Source: Chi et al., ACL 2021."""


# save_pretrained copies this file and its siblings into the folder: a checkpoint is a Hub repository
for auto_class, suffix in HEADS.items():
    globals()[f"XlmAlign{suffix}"].register_for_auto_class(auto_class)
