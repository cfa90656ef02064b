# SPDX-License-Identifier: Apache-2.0
"""Sequence, token and span heads, shared by the four models; parameter names and outputs are XLM-R's.

VECO's read a text and its translation, where they are plugged in (`PlugIn`); all others read a text x alone.

Legend: `B` sequences, `T` positions of x, `S` of its translation y, `F` features (H; plugged in 2H), `L` labels.
"""

import torch
from torch import nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from .encoder import EncoderPreTrainedModel, first_states


def feature_size(config) -> int:
    """Features of a position that a head reads: F."""
    return config.hidden_size * (2 if getattr(config, "plug_in", False) else 1)


class HeadModel(EncoderPreTrainedModel):
    """An encoder below a head that `make_head` adds; without pooler, unless the head reads it (`reads_pooler`)."""

    reads_pooler = False

    def __init__(self, config):
        super().__init__(config)
        self.roberta = self.encoder_class(config, add_pooling_layer=self.reads_pooler)
        self.num_labels = config.num_labels  # PEFT reads it
        self.make_head(config)
        self.post_init()

    def encode(self, input_ids, attention_mask, **kwargs):
        """The encoder's outputs, and features (B, T, F) with their mask: of x, and of a translation that has labels.

        Raises ValueError for a translation, which only VECO reads, plugged in.
        """
        of_y = {name: kwargs.pop(name) for name in [*kwargs] if name.startswith("translation_")}
        if given := [name for name, value in of_y.items() if value is not None]:
            raise ValueError(f"{given[0]} given to a {type(self).__name__} that is not plug_in and reads only x.")
        outputs = self.roberta(input_ids, attention_mask=attention_mask, return_dict=True, **kwargs)
        return outputs, [(outputs.last_hidden_state, attention_mask)]


def mean_loss(sides: list[list[tuple[torch.Tensor, torch.Tensor]]]) -> torch.Tensor:
    """Mean over the sides of a pair, over each side's sets of logits (N, L) and labels (N,), and over the labels.

    Translated answers that were not found are ordinary: sets and sides without a label that counts are left out, and
    the others still teach. Where none counts, the loss is 0, with zero gradients.
    """
    # (sides, sets)
    counts = torch.stack([torch.stack([gold_N.ne(-100).sum() for _, gold_N in side]) for side in sides])
    losses = [[nn.functional.cross_entropy(*of_set, reduction="sum") for of_set in side] for side in sides]
    sums = torch.stack([torch.stack(of_side) for of_side in losses])
    counted = counts.gt(0).sum(1)  # sets of each side
    means = (sums / counts.clamp(min=1)).sum(1) / counted.clamp(min=1)
    return means.sum() / counted.gt(0).sum().clamp(min=1)


def head_dropout(config) -> nn.Dropout:
    """`classifier_dropout`, or the encoder's where that is not set."""
    rate = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
    return nn.Dropout(rate)


class ClassificationHead(nn.Module):
    """Dropout, dense (F to H), tanh, dropout, linear, on the features of `<s>`: (B, F) -> (B, L).

    Plugged in, only the input is twice as wide; the paper does not give the inner width.
    """

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(feature_size(config), config.hidden_size)
        self.dropout = head_dropout(config)
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, first_BF):
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(first_BF)))))


class ForLabels(HeadModel):
    """Labels of texts or of their tokens. Subclasses say how features are scored, and what a label is."""

    output_class = None

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        labels=None,
        **kwargs,
    ):
        """Logits of x: (B, L) of texts, (B, T, L) of tokens.

        Args:
            labels: x's, see `loss_of`.
            translation_input_ids, translation_attention_mask, translation_token_type_ids, translation_labels: of x's
                translation y, (B, S), for plug-in, and only there. The loss is the mean over the sides with labels.

        Raises:
            ValueError: as `encode`.

        Example:
            >>> inputs = tokenizer(["The house is small.", "Das Haus."], padding=True, return_tensors="pt")
            >>> labels = model(**inputs).logits.argmax(-1)  # (B,) of texts, (B, T) of tokens
        """
        # y's are not in the signature: Trainer would take them for labels without which nothing can be evaluated
        gold = labels, kwargs.get("translation_labels")
        kwargs |= {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        outputs, sides = self.encode(input_ids, attention_mask, **kwargs)
        logits = [self.logits_of(*side) for side in sides]
        labeled = [pair for pair in zip(logits, gold, strict=False) if pair[1] is not None]
        return self.output_class(
            loss=self.loss_of(labeled) if labeled else None,
            logits=logits[0],
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ForSequenceClassification(ForLabels):
    """One label, several, or a number for each text or text pair: logits (B, L); see `ForLabels.forward`."""

    output_class = SequenceClassifierOutput

    def make_head(self, config):
        self.classifier = ClassificationHead(config)

    def logits_of(self, features, attention_mask):
        """Of the features (B, F) of each text's first position, its `<s>`."""
        return self.classifier(first_states(features, attention_mask))

    def loss_of(self, labeled):
        """The library's loss, of (logits (B, L), gold) of each side. `gold` are (B,) class ids, (B, L) zeros and ones
        for several labels, or floats for regression: `config.problem_type` says which, or else their type."""
        losses = [self.loss_function(labels=of, pooled_logits=logits, config=self.config) for logits, of in labeled]
        return torch.stack(losses).mean()


class ForPooledSequenceClassification(ForSequenceClassification):
    """One label, several, or a number for each text or pair, from the tanh pooler of the base model.

    ERNIE-M's released head: dropout and one linear map of the pooler's output, so that fine-tuning uses a released
    pooler, and a released head loads name by name. Raises `ValueError` for a configuration without pooler.
    """

    reads_pooler = True

    def make_head(self, config):
        if self.roberta.pooler is None:
            raise ValueError(f"{type(self).__name__} reads the pooler: set config.add_pooling_layer to true.")
        self.dropout = head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def encode(self, *args, **kwargs):
        """As `HeadModel.encode`, with the pooler's output (B, H) as what the head reads."""
        outputs, _ = super().encode(*args, **kwargs)
        return outputs, [(outputs.pooler_output, None)]

    def logits_of(self, features, attention_mask):
        return self.classifier(self.dropout(features))


class ForTokenClassification(ForLabels):
    """A label for each token: logits (B, T, L); see `ForLabels.forward`."""

    output_class = TokenClassifierOutput

    def make_head(self, config):
        self.dropout = head_dropout(config)
        self.classifier = nn.Linear(feature_size(config), config.num_labels)

    def logits_of(self, features, attention_mask):
        return self.classifier(self.dropout(features))

    def loss_of(self, labeled):
        """Of (logits (B, T, L), gold (B, T)) of each side: -100 where no label is wanted (later subwords, padding)."""
        return mean_loss([[(logits_BTL.flatten(0, 1), gold_BT.flatten())] for logits_BTL, gold_BT in labeled])


class ForQuestionAnswering(HeadModel):
    """Start and end of an answer in a context."""

    def make_head(self, config):
        # always start and end: `num_labels` may be left over from a classifier that the folder was saved from
        self.qa_outputs = nn.Linear(feature_size(config), 2)

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        start_positions=None,
        end_positions=None,
        **kwargs,
    ) -> QuestionAnsweringModelOutput:
        """Start and end logits (B, T) of x.

        Args:
            start_positions, end_positions: (B,), those outside the input are ignored.
            translation_input_ids, translation_attention_mask, translation_token_type_ids (B, S), and
                translation_start_positions, translation_end_positions (B,): of x's translation y; for plug-in, and only
                there. The loss is the mean over the sides that have both positions.

        Raises:
            ValueError: as `encode`.

        Example:
            >>> inputs = tokenizer(["How is the house?"], ["The house is small."], return_tensors="pt")
            >>> outputs = model(**inputs)
            >>> begin, end = outputs.start_logits.argmax(-1), outputs.end_logits.argmax(-1)  # (B,) positions
        """
        of_y = kwargs.get("translation_start_positions"), kwargs.get("translation_end_positions")
        kwargs |= {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        outputs, sides = self.encode(input_ids, attention_mask, **kwargs)
        spans = [self.qa_outputs(features).unbind(-1) for features, _ in sides]
        gold = (start_positions, end_positions), of_y
        labeled = [
            [
                (logits_BT, of.flatten().clamp(min=0).masked_fill(of.flatten() >= logits_BT.shape[1], -100))
                for logits_BT, of in zip(span, positions, strict=True)
            ]
            for span, positions in zip(spans, gold, strict=False)
            if all(of is not None for of in positions)
        ]
        return QuestionAnsweringModelOutput(
            loss=mean_loss(labeled) if labeled else None,
            start_logits=spans[0][0],
            end_logits=spans[0][1],
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
