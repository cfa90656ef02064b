"""Sequence, token and span heads, shared by the four models; parameter names and outputs are XLM-R's.

Legend: `B` sequences, `T` positions, `H` hidden size, `L` labels.
"""

import torch
from torch import nn
from transformers.modeling_outputs import (
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from .encoder import EncoderPreTrainedModel


class HeadModel(EncoderPreTrainedModel):
    """An encoder without pooler below a head that `make_head` adds."""

    encoder_class = None  # the base model of the architecture, set by its file

    def __init__(self, config):
        super().__init__(config)
        self.roberta = self.encoder_class(config, add_pooling_layer=False)
        self.make_head(config)
        self.post_init()


def head_dropout(config) -> nn.Dropout:
    """`classifier_dropout`, or the encoder's where that is not set."""
    rate = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
    return nn.Dropout(rate)


class ClassificationHead(nn.Module):
    """Dropout, dense, tanh, dropout, linear, on the state of `<s>`: (B, T, H) -> (B, L)."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = head_dropout(config)
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, states_BTH):
        first_BH = self.dropout(states_BTH[:, 0])
        return self.out_proj(self.dropout(torch.tanh(self.dense(first_BH))))


class ForSequenceClassification(HeadModel):
    """One label, several, or a number for each text or text pair."""

    def make_head(self, config):
        self.num_labels = config.num_labels
        self.classifier = ClassificationHead(config)

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs) -> SequenceClassifierOutput:
        """Logits (B, L).

        Args:
            labels: (B,) class ids, (B, L) zeros and ones for several labels, or floats for regression;
                `config.problem_type` says which, and is guessed from their type where it does not.
        """
        outputs = self.roberta(input_ids, attention_mask=attention_mask, return_dict=True, **kwargs)
        logits_BL = self.classifier(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            # the library's loss for sequence classification, which also guesses the problem type
            loss = self.loss_function(labels=labels, pooled_logits=logits_BL, config=self.config)
        return SequenceClassifierOutput(
            loss=loss, logits=logits_BL, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class ForTokenClassification(HeadModel):
    """A label for each piece."""

    def make_head(self, config):
        self.num_labels = config.num_labels
        self.dropout = head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs) -> TokenClassifierOutput:
        """Logits (B, T, L); `labels` (B, T), -100 where none is wanted (specials, later subwords, padding)."""
        outputs = self.roberta(input_ids, attention_mask=attention_mask, return_dict=True, **kwargs)
        logits_BTL = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits_BTL.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(
            loss=loss, logits=logits_BTL, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class ForQuestionAnswering(HeadModel):
    """Start and end of an answer in a context."""

    def make_head(self, config):
        # always start and end: `num_labels` may be left over from a classifier that the folder was saved from
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    @can_return_tuple
    def forward(
        self, input_ids=None, attention_mask=None, start_positions=None, end_positions=None, **kwargs
    ) -> QuestionAnsweringModelOutput:
        """Start and end logits (B, T); positions (B,), those outside the input are ignored."""
        outputs = self.roberta(input_ids, attention_mask=attention_mask, return_dict=True, **kwargs)
        start_BT, end_BT = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            outside = start_BT.shape[1]
            losses = [
                nn.functional.cross_entropy(logits, gold.view(-1).clamp(0, outside), ignore_index=outside)
                for logits, gold in ((start_BT, start_positions), (end_BT, end_positions))
            ]
            loss = sum(losses) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_BT,
            end_logits=end_BT,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
