# SPDX-License-Identifier: Apache-2.0
"""VECO: variable encoder-decoder pre-training (Luo et al., ACL 2021).

An XLM-R encoder whose layers carry a cross-attention module that can be plugged in (with another sequence) or out
(without: the encoder is then XLM-R's).

Legend: `B` sequences, `T` positions of x, `S` of y, `H` hidden size, `F` = 2H.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from .attention_masks import as_block_mask
from .configuration_encoder import HEADS
from .configuration_veco import VecoConfig
from .encoder import LM_HEAD, TOKEN_FIELDS, EncoderModel, EncoderPreTrainedModel
from .encoder_decoder import ForConditionalGeneration
from .masked_lm import ForMaskedLM, ForPreTraining, NamedLosses, Predictions
from .task_heads import ForQuestionAnswering, ForSequenceClassification, ForTokenClassification


class VecoPreTrainedModel(EncoderPreTrainedModel):
    """Base class of the VECO models."""

    config_class = VecoConfig
    # an encoder loaded from a translation model's folder leaves the decoder where it is
    _keys_to_ignore_on_load_unexpected = [r"^decoder\.", LM_HEAD]


class VecoModel(VecoPreTrainedModel, EncoderModel):
    """VECO's encoder; see `forward`. Source: Luo et al., ACL 2021."""


VecoPreTrainedModel.encoder_class = VecoModel  # of the heads below


class VecoForPreTraining(VecoPreTrainedModel, ForPreTraining):
    r"""Cross-attention masked LM (CA-MLM, ACL paper) or IS-MLM + CS-MLM (ICLR submission), with MLM and TLM.

    Equation (ACL, Eq. 1): L(x, y) = -log P(x|x^) - log P(x|y^,x^) - log P(y|y^) - log P(y|x^,y^), over masked tokens;
    x and y are adjacent segments of a document (`ca_mlm_segments`) or translations (`ca_mlm_pairs`).
    - `inner`, P(x|x^) and P(y|y^): the H stream, self-attention only (Eqs. 2-5, 10, 11): MLM of one side.
    - `cross`, P(x|y^,x^) and P(y|x^,y^): the S stream, in every layer self-attention over S, cross-attention from S to
      the last H of the other side (Eqs. 6-9, 12, 13), feed-forward. That H is detached: it is a constant there.
    `config.cross_stream`: `bidirectional`, S attends to its whole own side (ACL); `causal`, to positions up to its own,
    P(y_t | x^, y^_<=t), a decoder that predicts the token at its own position (ICLR, Eqs. 6 and 7).

    Notation: H_x of the paper is `states_BTH[:B]` here, H_y `states_BTH[B:]`: both sides go through the layers as one
    batch, and each H is computed once. Self-attention, feed-forward, embeddings and LM head serve both streams.

    Relation to its neighbors: TLM lets self-attention mix the two sides, and may ignore one; CA-MLM has a module that
    can read nothing but the other side. With cross-attention unplugged the model is XLM-R.

    Deviations from the papers: ICLR's Eq. 7 has y^_<t; here position t also reads its own input, y^_t, which is <mask>
    for most predicted tokens (the 10% that masking leaves as they are can be copied, as in every MLM). The papers
    alternate batches of segments and of pairs; here an update holds both, and one count of predictions divides both.
    Where they are silent: sides are masked independently; TLM takes the same pairs with masks of its own; a loss of
    weight 0 is not computed (the first phase learns only `cross`, and needs no gradient through H). The equation is
    symmetric: which segment is called x has no effect.

    Sub-batches, see `ForPreTraining.forward`: ca_mlm_segments and ca_mlm_pairs have `x` and `y`, each with `input_ids`,
    `labels` and `attention_mask` (B, T), T of its own. Weights are those of `mlm`, `tlm`,
    `<objective>.inner` and `<objective>.cross`.

    Raises ValueError as `ForPreTraining.forward`, and for sides of different batch size.

    Example:
        >>> collate = CaMlmPairsCollator(tokenizer)
        >>> batch = collate([{"source": "The house is small.", "target": "Das Haus ist klein."}])
        >>> model(**batch).loss.backward()

    Source: Luo et al., ACL 2021, section 2; the ICLR 2021 submission.
    """

    objectives = ForPreTraining.objectives | dict.fromkeys(("ca_mlm_segments", "ca_mlm_pairs"), ("inner", "cross"))

    def predictions(self, name: str, batch: dict[str, Any], weights: Mapping[str, float]) -> NamedLosses:
        """The losses of one objective: `inner` from H, `cross` from S."""
        if not self.objectives.get(name):
            yield from super().predictions(name, batch, weights)
            return
        pairs = len(batch["x"]["input_ids"])
        if len(batch["y"]["input_ids"]) != pairs:
            raise ValueError(
                f"sub-batch {name!r} has {pairs} rows of x and {len(batch['y']['input_ids'])} of y: rows i are a pair."
            )
        inputs, labels_BT, positions_N = stack_sides(batch["x"], batch["y"], self.config.pad_token_id)
        batch_rows_B = torch.arange(pairs, device=labels_BT.device).repeat(2)
        learns_inner = weights.get(f"{name}.inner", 1.0) != 0
        with torch.set_grad_enabled(torch.is_grad_enabled() and learns_inner):
            states_BTH = self.roberta(**inputs).last_hidden_state
        if learns_inner:
            yield f"{name}.inner", Predictions(states_BTH, labels_BT, batch_rows_B, positions_N)
        if weights.get(f"{name}.cross", 1.0) != 0:
            # the other side of row i is row i + pairs
            others = {
                "encoder_hidden_states": states_BTH.detach().roll(pairs, 0),
                "encoder_attention_mask": inputs["attention_mask"].roll(pairs, 0),
            }
            if "text_lengths" in inputs:
                others["encoder_text_lengths"] = batch["y"]["text_lengths"] + batch["x"]["text_lengths"]
            inputs["attention_mask"] = cross_stream_mask(self.config, inputs["attention_mask"])
            cross_BTH = self.roberta(**inputs, **others).last_hidden_state
            yield f"{name}.cross", Predictions(cross_BTH, labels_BT, batch_rows_B, positions_N)


class StackedSides(NamedTuple):
    """Both sides of pairs as 2B rows: inputs of the encoder, labels, and, if they are known, the positions of the
    predictions in the flattened (2B * T) rows."""

    inputs: dict[str, Any]
    labels_BT: torch.Tensor
    positions_N: torch.Tensor | None


def stack_sides(x: Mapping[str, Any], y: Mapping[str, Any], padding_id: int) -> StackedSides:
    """Both sides as 2B rows, x first, padded to the longer."""
    length_x = x["input_ids"].shape[1]
    length_y = y["input_ids"].shape[1]
    length = max(length_x, length_y)

    def stacked(field: str, padding: int) -> torch.Tensor:
        x_BT = nn.functional.pad(x[field], [0, length - length_x], value=padding)
        y_BT = nn.functional.pad(y[field], [0, length - length_y], value=padding)
        return torch.cat([x_BT, y_BT])

    inputs = {"input_ids": stacked("input_ids", padding_id), "attention_mask": stacked("attention_mask", 0)}
    if "text_lengths" in x and "text_lengths" in y:
        inputs["text_lengths"] = x["text_lengths"] + y["text_lengths"]
    positions_N = None
    if "prediction_positions" in x and "prediction_positions" in y:
        positions_x = widened(x["prediction_positions"], length_x, length)
        positions_y = widened(y["prediction_positions"], length_y, length)
        positions_N = torch.cat([positions_x, positions_y + len(x["input_ids"]) * length])
    return StackedSides(inputs, stacked("labels", -100), positions_N)


def widened(positions_N: torch.Tensor, length: int, longer: int) -> torch.Tensor:
    """Positions in flattened rows of a length, after the rows were padded to a longer one."""
    return positions_N + positions_N // length * (longer - length)


def cross_stream_mask(config: VecoConfig, attention_mask: torch.Tensor) -> torch.Tensor:
    """Self-attention mask of the stream that reads another sequence: unchanged, or causal (`config.cross_stream`)."""
    if config.cross_stream == "bidirectional":
        return attention_mask
    return as_block_mask(attention_mask).tril()


class VecoForMaskedLM(VecoPreTrainedModel, ForMaskedLM):
    """VECO that predicts masked tokens; see `forward`. Source: Luo et al., ACL 2021."""


class PlugIn:
    """Before a head among the base classes of a model: it reads [H_x : S_x] of a text x and its translation y, where
    `config.plug_in` is set (section 3.1).

    H_x is the encoder's last layer for x alone, S_x that of the same layers with cross-attention to H_y; and [H_y :
    S_y] of y, with cross-attention to H_x. Plug-out, heads read H_x, as XLM-R's do.

    Where the paper is silent: gradients flow through H_x and H_y (section 2.2 stops them in pre-training), the S stream
    is bidirectional or causal as it was pre-trained (`config.cross_stream`), and one head serves both sides.
    """

    config: Any
    roberta: Any

    def encode(
        self, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None, **kwargs: Any
    ) -> tuple[Any, Sequence[tuple[torch.Tensor, torch.Tensor | None]]]:
        """See `HeadModel.encode`: features (B, T, F) of x and, where y has labels, (B, S, F) of y.

        Args:
            input_ids, attention_mask: x, (B, T).
            kwargs: the `translation_*` fields, None where one was not given; further inputs of the encoder go to x.

        Raises:
            ValueError: plug-out with y; plug-in without y, or in a model without cross-attention.
        """
        if not self.config.plug_in:
            head: Any = super()
            return head.encode(input_ids, attention_mask, **kwargs)
        prefix = "translation_"
        translation_fields = [name for name in kwargs if name.startswith(prefix)]
        translation = {name.removeprefix(prefix): kwargs.pop(name) for name in translation_fields}
        if translation.get("input_ids") is None:
            raise ValueError(
                f"plug-in without y: {type(self).__name__} has plug_in=True, give translation_input_ids and "
                "translation_attention_mask (a Trainer keeps them with remove_unused_columns=False)."
            )
        x: dict[str, Any] = {"input_ids": input_ids}
        for name in TOKEN_FIELDS:
            if name in kwargs:
                x[name] = kwargs.pop(name)
        y = {name: translation.get(name) for name in ("input_ids", "token_type_ids")}
        tokens_x = x["inputs_embeds"] if input_ids is None else input_ids
        mask_x_BT = padding_mask(tokens_x, attention_mask)
        mask_y_BS = padding_mask(translation["input_ids"], translation.get("attention_mask"))
        # each H once; it serves the head and the other side
        outputs = self.roberta(**x, attention_mask=mask_x_BT, return_dict=True, **kwargs)
        alone_x_BTH = outputs.last_hidden_state
        alone_y_BSH = self.roberta(**y, attention_mask=mask_y_BS, return_dict=True).last_hidden_state
        crossed_x_BTH = self._crossed(x, mask_x_BT, alone_y_BSH, mask_y_BS)
        sides = [(torch.cat([alone_x_BTH, crossed_x_BTH], dim=-1), mask_x_BT)]
        gold = [value for name, value in translation.items() if name.endswith(("labels", "_positions"))]
        if any(value is not None for value in gold):
            crossed_y_BSH = self._crossed(y, mask_y_BS, alone_x_BTH, mask_x_BT)
            sides.append((torch.cat([alone_y_BSH, crossed_y_BSH], dim=-1), mask_y_BS))
        return outputs, sides

    def _crossed(
        self,
        inputs: dict[str, torch.Tensor | None],
        mask_BT: torch.Tensor,
        other_BSH: torch.Tensor,
        other_mask_BS: torch.Tensor,
    ) -> torch.Tensor:
        """S (B, T, H) of one side: its states with cross-attention to the other's H."""
        outputs = self.roberta(
            **inputs,
            attention_mask=cross_stream_mask(self.config, mask_BT),
            encoder_hidden_states=other_BSH,
            encoder_attention_mask=other_mask_BS,
            return_dict=True,
        )
        return outputs.last_hidden_state


def padding_mask(tokens: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """The mask (B, T) of one side, all 1 by default."""
    if attention_mask is None:
        return torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
    return attention_mask


class VecoForSequenceClassification(VecoPreTrainedModel, PlugIn, ForSequenceClassification):
    """VECO with a label for a text or a pair; see `forward`. Source: Luo et al., ACL 2021."""


class VecoForTokenClassification(VecoPreTrainedModel, PlugIn, ForTokenClassification):
    """VECO with a label for each token; see `forward`. Source: Luo et al., ACL 2021."""


class VecoForQuestionAnswering(VecoPreTrainedModel, PlugIn, ForQuestionAnswering):
    """VECO that marks an answer in a text; see `forward`. Source: Luo et al., ACL 2021."""


class VecoForConditionalGeneration(VecoPreTrainedModel, ForConditionalGeneration):
    """VECO that translates; see `from_encoder` and `forward`.

    Example:
        >>> model = VecoForConditionalGeneration.from_encoder(folder)
        >>> inputs = tokenizer(["The house is small."], return_tensors="pt")
        >>> translations = tokenizer.batch_decode(model.generate(**inputs, max_new_tokens=5), skip_special_tokens=True)

    Source: Luo et al., ACL 2021, section 3.2.
    """

    starts_from = VecoForMaskedLM


# save_pretrained copies this file and its siblings into the folder: a checkpoint is a Hub repository
for auto_class, suffix in HEADS.items():
    globals()[f"Veco{suffix}"].register_for_auto_class(auto_class)
VecoForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
