# SPDX-License-Identifier: Apache-2.0
"""Sequence, token and span heads, shared by the four models; parameter names and outputs are XLM-R's.

Plug-in fine-tuning (VECO, ACL 2021, section 3.1; `config.plug_in`): the heads read [H_x : S_x] of a text x. H_x is the
encoder's last layer for x alone, S_x that of the same layers with cross-attention to H_y, where y translates x; and
[H_y : S_y] of y, with cross-attention to H_x. Plug-out, and in every other model, they read H_x, as XLM-R's do.

Legend: `B` sequences, `T` positions of x, `S` of y, `H` hidden size, `F` features that a head reads (H; plugged in 2H),
`L` labels.
"""

import torch
from torch import nn
from transformers.modeling_outputs import (
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from .attention_masks import cross_stream_mask
from .encoder import EncoderPreTrainedModel, first_states

# what both streams of x get in addition to its tokens and their mask
INPUT_FIELDS = ("inputs_embeds", "position_ids", "token_type_ids")


def is_plug_in(config) -> bool:
    """Whether heads read [H:S]; only VECO's configuration has the field."""
    return bool(getattr(config, "plug_in", False))


def feature_size(config) -> int:
    """Features of a position that a head reads: F."""
    return config.hidden_size * (2 if is_plug_in(config) else 1)


class HeadModel(EncoderPreTrainedModel):
    """An encoder below a head that `make_head` adds; without pooler, unless the head reads it (`reads_pooler`).

    Plug-in, where the paper is silent: gradients flow through H_x and H_y (their stop-gradient belongs to pre-training,
    section 2.2), the S stream is bidirectional or causal as it was pre-trained (`config.cross_stream`), and a single
    head serves both sides.

    Raises `ValueError` for `config.plug_in` without cross-attention.
    """

    reads_pooler = False

    def __init__(self, config):
        super().__init__(config)
        if is_plug_in(config) and not config.cross_attention:
            raise ValueError(f"{type(self).__name__} with plug_in=True needs cross-attention: load a VECO encoder.")
        self.roberta = self.encoder_class(config, add_pooling_layer=self.reads_pooler)
        self.make_head(config)
        self.post_init()

    def encode(self, input_ids, attention_mask, **kwargs):
        """What the head reads: features (B, T, F) of x and, where y has labels, (B, S, F) of y.

        Args:
            input_ids, attention_mask: x, (B, T).
            kwargs: the `translation_*` fields, None where one was not given; further inputs of the encoder go to x.

        Returns:
            The encoder's outputs for only x, features of x, features of y or None.

        Raises:
            ValueError: plug-out with y; plug-in without y, with sides of different batch size, with an empty side, or
                with a mask that is not (B, T).
        """
        translation = {name: kwargs.pop(name) for name in list(kwargs) if name.startswith("translation_")}
        given = [name for name, value in translation.items() if value is not None]
        if not is_plug_in(self.config):
            if given:
                raise ValueError(
                    f"{', '.join(given)} given to a {type(self).__name__} with plug_in=False, which reads only x."
                )
            outputs = self.roberta(input_ids, attention_mask=attention_mask, return_dict=True, **kwargs)
            return outputs, outputs.last_hidden_state, None
        if translation["translation_input_ids"] is None:
            raise ValueError(
                f"plug-in without y: {type(self).__name__} has plug_in=True, give translation_input_ids and "
                "translation_attention_mask."
            )

        x = {"input_ids": input_ids, **{name: kwargs.pop(name) for name in INPUT_FIELDS if name in kwargs}}
        y = {name: translation[f"translation_{name}"] for name in ("input_ids", "token_type_ids")}
        mask_x_BT = padding_mask("x", input_ids if input_ids is not None else x.get("inputs_embeds"), attention_mask)
        mask_y_BS = padding_mask("y", y["input_ids"], translation["translation_attention_mask"])
        if mask_x_BT.shape[0] != mask_y_BS.shape[0]:  # a `len` would be a fixed number in an export
            raise ValueError(
                f"x has {len(mask_x_BT)} rows and its translation y has {len(mask_y_BS)}: row i of the two is a pair."
            )
        # each H once; it serves the head and the other side
        outputs = self.roberta(**x, attention_mask=mask_x_BT, return_dict=True, **kwargs)
        alone_x_BTH = outputs.last_hidden_state
        alone_y_BSH = self.roberta(**y, attention_mask=mask_y_BS, return_dict=True).last_hidden_state
        features_x = torch.cat([alone_x_BTH, self.cross(x, mask_x_BT, alone_y_BSH, mask_y_BS)], dim=-1)
        if not any(name.endswith(("_labels", "_positions")) for name in given):  # y has no label
            return outputs, features_x, None
        return outputs, features_x, torch.cat([alone_y_BSH, self.cross(y, mask_y_BS, alone_x_BTH, mask_x_BT)], dim=-1)

    def cross(self, side: dict, mask_BT, other_BSH, other_mask_BS):
        """The S stream (B, T, H) of one side, with cross-attention to the H of the other."""
        return self.roberta(
            **side,
            attention_mask=cross_stream_mask(self.config, mask_BT),
            encoder_hidden_states=other_BSH,
            encoder_attention_mask=other_mask_BS,
            return_dict=True,
        ).last_hidden_state


def padding_mask(side: str, tokens: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """The mask (B, T) of one side, all 1 by default. Raises ValueError for another shape and for an empty text."""
    if attention_mask is None:
        attention_mask = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
    if attention_mask.shape != tokens.shape[:2]:
        raise ValueError(
            f"the attention mask of {side} has shape {tuple(attention_mask.shape)}, and its text "
            f"{tuple(tokens.shape[:2])}: give a mask (B, T), 1 for tokens and 0 for padding."
        )
    is_empty_B = ~attention_mask.bool().any(-1)
    # a compiled or exported graph cannot check this
    if not torch.compiler.is_compiling() and is_empty_B.any():
        raise ValueError(f"row {int(is_empty_B.nonzero()[0])} of {side} is empty (its attention mask is all 0).")
    return attention_mask


def label_loss(logits_NL: torch.Tensor, gold_N: torch.Tensor, ignored: int = -100) -> torch.Tensor | None:
    """Mean cross-entropy over the labels that count, or None if none counts, because a mean over nothing is NaN. A
    compiled graph cannot check this, and returns NaN."""
    if not torch.compiler.is_compiling() and not gold_N.ne(ignored).any():
        return None
    return nn.functional.cross_entropy(logits_NL, gold_N, ignore_index=ignored)


def mean_of(losses: list[torch.Tensor | None]) -> torch.Tensor | None:
    """Mean over the losses that are there; None where none is.

    Translated answers that were not found are ordinary: such a side is left out, and the other one still teaches.
    """
    counted = [loss for loss in losses if loss is not None]
    return torch.stack(counted).mean() if counted else None


def loss_of_sides(losses: list[torch.Tensor | None], logits: torch.Tensor) -> torch.Tensor | None:
    """Mean over the sides that have labels; None without labels, 0 where no label of the batch counts."""
    if not losses:
        return None
    loss = mean_of(losses)
    return 0.0 * logits.sum() if loss is None else loss


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

    def logits_of(self, features):
        """Logits of features: (B, F) -> (B, L), or (B, T, F) -> (B, T, L)."""
        return self.classifier(features)

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        labels=None,
        translation_input_ids=None,
        translation_attention_mask=None,
        translation_token_type_ids=None,
        **kwargs,
    ):
        """Logits of x: (B, L) of texts, (B, T, L) of tokens.

        Args:
            labels: x's, see `loss_of`.
            translation_input_ids, translation_attention_mask, translation_token_type_ids: (B, S), x's translation y;
                for plug-in, and only there.
            translation_labels: y's labels, as x's. The loss is the mean over the sides that have labels.

        Raises:
            ValueError: as `HeadModel.encode`.

        Example:
            >>> inputs = tokenizer(["The house is small.", "Das Haus."], padding=True, return_tensors="pt")
            >>> labels = model(**inputs).logits.argmax(-1)  # (B,) of texts, (B, T) of tokens
        """
        # Not in the signature: Trainer would take it for a label without which nothing can be evaluated.
        translation_labels = kwargs.pop("translation_labels", None)
        outputs, features_x, features_y = self.encode(
            input_ids,
            attention_mask,
            translation_input_ids=translation_input_ids,
            translation_attention_mask=translation_attention_mask,
            translation_token_type_ids=translation_token_type_ids,
            translation_labels=translation_labels,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        logits = self.logits_of(features_x)
        losses = [] if labels is None else [self.loss_of(logits, labels)]
        if features_y is not None:
            losses.append(self.loss_of(self.logits_of(features_y), translation_labels))
        return self.output_class(
            loss=loss_of_sides(losses, logits),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ForSequenceClassification(ForLabels):
    """One label, several, or a number for each text or text pair: logits (B, L); see `ForLabels.forward`."""

    output_class = SequenceClassifierOutput

    def make_head(self, config):
        self.num_labels = config.num_labels
        self.classifier = ClassificationHead(config)

    def encode(self, input_ids, attention_mask, **kwargs):
        """As `HeadModel.encode`, with the features (B, F) of each text's first position, its `<s>`."""
        outputs, features_x, features_y = super().encode(input_ids, attention_mask, **kwargs)
        if features_y is not None:
            features_y = first_states(features_y, kwargs["translation_attention_mask"])
        return outputs, first_states(features_x, attention_mask), features_y

    def loss_of(self, logits_BL, gold):
        """The library's loss. `gold` are (B,) class ids, (B, L) zeros and ones for several labels, or floats for
        regression; `config.problem_type` says which, and is guessed from their type where it does not."""
        return self.loss_function(labels=gold, pooled_logits=logits_BL, config=self.config)


class ForPooledSequenceClassification(ForSequenceClassification):
    """One label, several, or a number for each text or pair, from the tanh pooler of the base model.

    ERNIE-M's released head: dropout and one linear map of the pooler's output, so that fine-tuning uses a released
    pooler, and a released head loads name by name. Raises `ValueError` for a configuration without pooler.
    """

    reads_pooler = True

    def make_head(self, config):
        if self.roberta.pooler is None:
            raise ValueError(
                f"{type(self).__name__} reads the pooler: set add_pooling_layer to true in the configuration."
            )
        self.num_labels = config.num_labels
        self.dropout = head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def encode(self, *args, **kwargs):
        """As `HeadModel.encode`, with the pooler's output (B, H) as what the head reads."""
        outputs, _, features_y = super().encode(*args, **kwargs)
        return outputs, self.dropout(outputs.pooler_output), features_y


class ForTokenClassification(ForLabels):
    """A label for each token: logits (B, T, L); see `ForLabels.forward`."""

    output_class = TokenClassifierOutput

    def make_head(self, config):
        self.num_labels = config.num_labels
        self.dropout = head_dropout(config)
        self.classifier = nn.Linear(feature_size(config), config.num_labels)

    def logits_of(self, features):
        return self.classifier(self.dropout(features))

    def loss_of(self, logits_BTL, gold_BT):
        """`gold_BT` is -100 where no label is wanted (specials, later subwords, padding); without one the loss is 0."""
        return label_loss(logits_BTL.flatten(0, 1), gold_BT.flatten())


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
        translation_input_ids=None,
        translation_attention_mask=None,
        translation_token_type_ids=None,
        translation_start_positions=None,
        translation_end_positions=None,
        **kwargs,
    ) -> QuestionAnsweringModelOutput:
        """Start and end logits (B, T) of x.

        Args:
            start_positions, end_positions: (B,), those outside the input are ignored.
            translation_input_ids, translation_attention_mask, translation_token_type_ids: (B, S), x's translation y;
                for plug-in, and only there.
            translation_start_positions, translation_end_positions: (B,), the answer in y. The loss is the mean over the
                sides that have both positions.

        Raises:
            ValueError: as `HeadModel.encode`.

        Example:
            >>> inputs = tokenizer(["How is the house?"], ["The house is small."], return_tensors="pt")
            >>> outputs = model(**inputs)
            >>> begin, end = outputs.start_logits.argmax(-1), outputs.end_logits.argmax(-1)  # (B,) positions
        """
        outputs, features_x, features_y = self.encode(
            input_ids,
            attention_mask,
            translation_input_ids=translation_input_ids,
            translation_attention_mask=translation_attention_mask,
            translation_token_type_ids=translation_token_type_ids,
            translation_start_positions=translation_start_positions,
            translation_end_positions=translation_end_positions,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )

        def loss(spans, gold):
            outside = spans[0].shape[1]
            return mean_of(
                [
                    label_loss(logits_BT, gold_B.view(-1).clamp(0, outside), ignored=outside)
                    for logits_BT, gold_B in zip(spans, gold, strict=True)
                ]
            )

        start_BT, end_BT = self.qa_outputs(features_x).unbind(-1)
        losses = []
        if start_positions is not None and end_positions is not None:
            losses.append(loss((start_BT, end_BT), (start_positions, end_positions)))
        if translation_start_positions is not None and translation_end_positions is not None:
            spans_y = self.qa_outputs(features_y).unbind(-1)
            losses.append(loss(spans_y, (translation_start_positions, translation_end_positions)))
        return QuestionAnsweringModelOutput(
            loss=loss_of_sides(losses, start_BT),
            start_logits=start_BT,
            end_logits=end_BT,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
