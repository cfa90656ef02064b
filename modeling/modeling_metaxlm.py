# SPDX-License-Identifier: Apache-2.0
"""MetaXLM: cross-lingual language model meta-pretraining (Chi et al., 2021).

XLM-R's shape; what the paper adds happens before and between training phases, in pretraining/. Its baseline XLM+KD
learns from a teacher of one language too, which is no part of the model.

Legend: `B` rows, `T` positions; `N` positions that the teacher answered, `C` tokens that both have; `H` hidden size.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .configuration_encoder import HEADS
from .configuration_metaxlm import MetaXlmConfig
from .encoder import EncoderModel, EncoderPreTrainedModel
from .masked_lm import ForMaskedLM, ForPreTraining, Losses, NamedLosses, encoder_inputs, predictions_of
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification


class MetaXlmPreTrainedModel(EncoderPreTrainedModel):
    """Base class of the MetaXLM models."""

    config_class = MetaXlmConfig


class MetaXlmModel(MetaXlmPreTrainedModel, EncoderModel):
    """MetaXLM's encoder; see `forward`. Source: Chi et al., 2021."""


MetaXlmPreTrainedModel.encoder_class = MetaXlmModel  # of the heads below


class MetaXlmForPreTraining(MetaXlmPreTrainedModel, ForPreTraining):
    r"""MLM and TLM, and for the baseline XLM+KD knowledge distillation (section 5.3, Table 3).

    Equation (Hinton et al. 2015, section 2): KD = T^2 sum_{i in K} sum_{v in C} p_i(v) (log p_i(v) - log q_i(v)),
    p_i = softmax(z_i / T) of the teacher's logits z_i at the masked word i, q_i likewise of the model's, both over the
    tokens C that the two vocabularies have in common. T^2 keeps the gradients' size as T changes.

    Notation: K are `positions_N`, C `tokens_C`, log p `log_probabilities_NC`. `kd` reads the rows of `mlm`, in the same
    forward; `pretraining/start/teacher.py` adds the teacher's answers to them as `mlm["teacher"]`, a dict of
    - positions_N (N,): positions of the words in the flattened (B * T) rows;
    - tokens_C (C,): ids of the common tokens;
    - log_probabilities_NC (N, C), float32: the teacher's, at the temperature;
    - temperature: T.
    Without it an `mlm` sub-batch has no `kd`, unless `objective_weights` gives it a weight: then it is a KeyError.

    Relation to its neighbors: MLM learns which token was masked, KD which others a teacher would have put there.

    Deviations from the paper, which does not say how models of different vocabularies are compared: the common tokens,
    and the words that are one token in both (`pretraining/start/teacher.py`).

    Raises ValueError as `forward`, and KeyError for `kd` without a teacher's answers.

    Example:
        >>> collate = MlmCollator(tokenizer)
        >>> model(**collate([{"text": "The house is small."}])).loss.backward()

    The losses are `mlm`, `tlm` and `kd`. Source: Chi et al., 2021; Hinton et al., 2015.
    """

    objectives = ForPreTraining.objectives | {"kd": ()}
    reads = {"kd": "mlm"}

    def predictions(self, name: str, batch: dict[str, Any], weights: Mapping[str, float]) -> NamedLosses:
        """The losses of one sub-batch: `mlm` and `kd` from one forward."""
        if name != "mlm" or not weights.get("kd", float("teacher" in batch)):
            if weights.get(name, 1.0):
                yield from super().predictions(name, batch, weights)
            return
        states_BTH = self.roberta(**encoder_inputs(batch)).last_hidden_state
        if weights.get(name, 1.0):
            yield name, predictions_of(states_BTH, batch)
        yield "kd", self.distillation_losses(states_BTH, **batch["teacher"])

    def distillation_losses(
        self,
        states_BTH: torch.Tensor,
        positions_N: torch.Tensor,
        tokens_C: torch.Tensor,
        log_probabilities_NC: torch.Tensor,
        temperature: float,
    ) -> Losses:
        """KL divergences from the teacher's distributions, in nats, times the squared temperature."""
        states_NH = self.lm_head.transform(states_BTH.flatten(0, 1)[positions_N])
        decoder = self.lm_head.decoder
        bias_C = None if decoder.bias is None else decoder.bias[tokens_C]
        logits_NC = nn.functional.linear(states_NH, decoder.weight[tokens_C], bias_C).float()
        log_q_NC = (logits_NC / temperature).log_softmax(-1)
        losses_N = nn.functional.kl_div(log_q_NC, log_probabilities_NC, reduction="none", log_target=True).sum(-1)
        losses_N = losses_N * temperature**2
        return Losses(losses_N.sum(), losses_N.detach(), positions_N // states_BTH.shape[1])


class MetaXlmForMaskedLM(MetaXlmPreTrainedModel, ForMaskedLM):
    """MetaXLM that predicts masked tokens; see `forward`. Source: Chi et al., 2021."""


class MetaXlmForSequenceClassification(MetaXlmPreTrainedModel, ForSequenceClassification):
    """MetaXLM with a label for a text or a pair; see `forward`. Source: Chi et al., 2021."""


class MetaXlmForTokenClassification(MetaXlmPreTrainedModel, ForTokenClassification):
    """MetaXLM with a label for each token; see `forward`. Source: Chi et al., 2021."""


class MetaXlmForQuestionAnswering(MetaXlmPreTrainedModel, ForQuestionAnswering):
    """MetaXLM that marks an answer in a text; see `forward`. Source: Chi et al., 2021."""


# save_pretrained copies this file and its siblings into the folder: a checkpoint is a Hub repository
for auto_class, suffix in HEADS.items():
    globals()[f"MetaXlm{suffix}"].register_for_auto_class(auto_class)
