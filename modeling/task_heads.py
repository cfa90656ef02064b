# SPDX-License-Identifier: Apache-2.0
"""Sequence, token and span heads, shared by the four models; parameter names and outputs are XLM-R's.

VECO's read a text and its translation, where they are plugged in (`PlugIn`); all others read a text x alone.

Legend: `B` sequences, `T` positions of x, `S` of its translation y, `F` features (H; plugged in 2H), `L` labels.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPoolingAndCrossAttentions,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from .configuration_encoder import EncoderConfig
from .encoder import EncoderPreTrainedModel, first_states

Side = tuple[Tensor, Tensor | None]  # features of x or of its translation y, and their mask
Labeled = tuple[Tensor, Tensor]  # logits and gold labels


def feature_size(config: EncoderConfig) -> int:
    """Features of a position that a head reads: F."""
    if getattr(config, "plug_in", False):
        return 2 * config.hidden_size
    return config.hidden_size


def num_labels(config: EncoderConfig) -> int:
    """Labels of a head that classifies: L."""
    return cast(int, config.num_labels)  # the library's type has None, its value has not


class HeadModel(EncoderPreTrainedModel):
    """An encoder below a head that `make_head` adds; without pooler, unless the head reads it (`reads_pooler`)."""

    reads_pooler = False

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        self.roberta = self.encoder_class(config, add_pooling_layer=self.reads_pooler)
        self.num_labels = num_labels(config)  # PEFT reads it
        self.make_head(config)
        self.post_init()

    def make_head(self, config: EncoderConfig) -> None:
        """Adds the modules of the head."""
        raise NotImplementedError

    def encode(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[BaseModelOutputWithPoolingAndCrossAttentions, list[Side]]:
        """The encoder's outputs, and features (B, T, F) with their mask: of x, and of a translation that has labels.

        Raises ValueError for a translation, which only VECO reads, plugged in.
        """
        translation = {name: kwargs.pop(name) for name in [*kwargs] if name.startswith("translation_")}
        unread = [name for name, value in translation.items() if value is not None]
        if unread:
            raise ValueError(f"{unread[0]} given to a {type(self).__name__} that is not plug_in and reads only x.")
        outputs = self.roberta(input_ids, attention_mask=attention_mask, return_dict=True, **kwargs)
        return outputs, [(outputs.last_hidden_state, attention_mask)]


def mean_loss(sides: list[list[Labeled]]) -> Tensor:
    """Mean over the sides of a pair, over each side's sets of logits (N, L) and labels (N,), and over the labels.

    Translated answers that were not found are ordinary: sets and sides without a label that counts are left out, and
    the others still teach. Where none counts, the loss is 0, with zero gradients.
    """
    counts = []
    sums = []
    for side in sides:
        counts.append(torch.stack([gold_N.ne(-100).sum() for _, gold_N in side]))
        losses = [nn.functional.cross_entropy(logits_NL, gold_N, reduction="sum") for logits_NL, gold_N in side]
        sums.append(torch.stack(losses))
    labels_of_sets = torch.stack(counts)  # (sides, sets)
    means_of_sets = torch.stack(sums) / labels_of_sets.clamp(min=1)
    sets_of_sides = labels_of_sets.gt(0).sum(1)
    means_of_sides = means_of_sets.sum(1) / sets_of_sides.clamp(min=1)
    return means_of_sides.sum() / sets_of_sides.gt(0).sum().clamp(min=1)


def head_dropout(config: EncoderConfig) -> nn.Dropout:
    """`classifier_dropout`, or the encoder's where that is not set."""
    if config.classifier_dropout is None:
        return nn.Dropout(config.hidden_dropout_prob)
    return nn.Dropout(config.classifier_dropout)


class ClassificationHead(nn.Module):
    """Dropout, dense (F to H), tanh, dropout, linear, on the features of `<s>`: (B, F) -> (B, L).

    Plugged in, only the input is twice as wide; the paper does not give the inner width.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = nn.Linear(feature_size(config), config.hidden_size)
        self.dropout = head_dropout(config)
        self.out_proj = nn.Linear(config.hidden_size, num_labels(config))

    def forward(self, first_BF: Tensor) -> Tensor:
        hidden_BH = torch.tanh(self.dense(self.dropout(first_BF)))
        return self.out_proj(self.dropout(hidden_BH))


class ForLabels(HeadModel):
    """Labels of texts or of their tokens. Subclasses say how features are scored, and what a label is."""

    output_class: type[SequenceClassifierOutput | TokenClassifierOutput]
    classifier: nn.Module

    def logits_of(self, features: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The scores of a side's labels."""
        raise NotImplementedError

    def loss_of(self, labeled: list[Labeled]) -> Tensor:
        """The loss of the sides that have labels."""
        raise NotImplementedError

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput | TokenClassifierOutput:
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
        labels_of_sides = (labels, kwargs.get("translation_labels"))
        kwargs |= {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        outputs, sides = self.encode(input_ids, attention_mask, **kwargs)
        logits_of_sides = [self.logits_of(features, mask) for features, mask in sides]
        labeled = []
        for logits, gold in zip(logits_of_sides, labels_of_sides, strict=False):  # y's are read where they are given
            if gold is not None:
                labeled.append((logits, gold))
        return self.output_class(
            loss=self.loss_of(labeled) if labeled else None,
            logits=logits_of_sides[0],
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ForSequenceClassification(ForLabels):
    """One label, several, or a number for each text or text pair: logits (B, L); see `ForLabels.forward`."""

    output_class = SequenceClassifierOutput

    def make_head(self, config: EncoderConfig) -> None:
        self.classifier = ClassificationHead(config)

    def logits_of(self, features: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Of the features (B, F) of each text's first position, its `<s>`."""
        return self.classifier(first_states(features, attention_mask))

    def loss_of(self, labeled: list[Labeled]) -> Tensor:
        """The library's loss, of (logits (B, L), gold) of each side. `gold` are (B,) class ids, (B, L) zeros and ones
        for several labels, or floats for regression: `config.problem_type` says which, or else their type."""
        losses = []
        for logits, gold in labeled:
            losses.append(self.loss_function(labels=gold, pooled_logits=logits, config=self.config))
        return torch.stack(losses).mean()


class ForPooledSequenceClassification(ForSequenceClassification):
    """One label, several, or a number for each text or pair, from the tanh pooler of the base model.

    ERNIE-M's released head: dropout and one linear map of the pooler's output, so that fine-tuning uses a released
    pooler, and a released head loads name by name. Raises `ValueError` for a configuration without pooler.
    """

    reads_pooler = True

    def make_head(self, config: EncoderConfig) -> None:
        if self.roberta.pooler is None:
            raise ValueError(f"{type(self).__name__} reads the pooler: set config.add_pooling_layer to true.")
        self.dropout = head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, num_labels(config))

    def encode(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[BaseModelOutputWithPoolingAndCrossAttentions, list[Side]]:
        """As `HeadModel.encode`, with the pooler's output (B, H) as what the head reads."""
        outputs, _ = super().encode(input_ids, attention_mask, **kwargs)
        pooled_BH = cast(Tensor, outputs.pooler_output)
        return outputs, [(pooled_BH, None)]

    def logits_of(self, features: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.classifier(self.dropout(features))


class ForTokenClassification(ForLabels):
    """A label for each token: logits (B, T, L); see `ForLabels.forward`."""

    output_class = TokenClassifierOutput

    def make_head(self, config: EncoderConfig) -> None:
        self.dropout = head_dropout(config)
        self.classifier = nn.Linear(feature_size(config), num_labels(config))

    def logits_of(self, features: Tensor, attention_mask: Tensor | None) -> Tensor:
        return self.classifier(self.dropout(features))

    def loss_of(self, labeled: list[Labeled]) -> Tensor:
        """Of (logits (B, T, L), gold (B, T)) of each side: -100 where no label is wanted (later subwords, padding)."""
        sides = []
        for logits_BTL, gold_BT in labeled:
            sides.append([(logits_BTL.flatten(0, 1), gold_BT.flatten())])
        return mean_loss(sides)


class ForQuestionAnswering(HeadModel):
    """Start and end of an answer in a context."""

    def make_head(self, config: EncoderConfig) -> None:
        # always start and end: `num_labels` may be left over from a classifier that the folder was saved from
        self.qa_outputs = nn.Linear(feature_size(config), 2)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
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
        positions_of_sides = (
            (start_positions, end_positions),
            (kwargs.get("translation_start_positions"), kwargs.get("translation_end_positions")),
        )
        kwargs |= {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        outputs, sides = self.encode(input_ids, attention_mask, **kwargs)
        spans = [self.qa_outputs(features).unbind(-1) for features, _ in sides]
        labeled = []
        for (start_logits_BT, end_logits_BT), (starts_B, ends_B) in zip(spans, positions_of_sides, strict=False):
            if starts_B is None or ends_B is None:
                continue
            length = start_logits_BT.shape[1]
            start = (start_logits_BT, position_labels(starts_B, length))
            end = (end_logits_BT, position_labels(ends_B, length))
            labeled.append([start, end])
        return QuestionAnsweringModelOutput(
            loss=mean_loss(labeled) if labeled else None,
            start_logits=spans[0][0],
            end_logits=spans[0][1],
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def position_labels(positions_B: Tensor, length: int) -> Tensor:
    """Positions as labels (B,): -100 for those behind the input, which do not count."""
    positions_B = positions_B.flatten()
    is_behind_B = positions_B >= length
    return positions_B.clamp(min=0).masked_fill(is_behind_B, -100)
