# SPDX-License-Identifier: Apache-2.0
"""ERNIE-M: enhanced multilingual representation by aligning cross-lingual semantics (Ouyang et al., EMNLP 2021).

XLM-R's shape with a tanh pooler on the base model, and a language embedding on <mask> where pre-training asks for it.

Legend: `B` sequences, `T` positions, `K` pseudo positions, `H` hidden size, `V` vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from .attention_masks import on_device
from .configuration_encoder import HEADS
from .configuration_ernie_m import ErnieMConfig
from .encoder import EncoderModel, EncoderPreTrainedModel, position_ids_of, without_dropout
from .masked_lm import (
    LOGITS_AT_ONCE,
    ForMaskedLM,
    ForPreTraining,
    NamedLosses,
    encoder_inputs,
    predictions_of,
    unmasked_ids,
)
from .task_heads import ForPooledSequenceClassification, ForQuestionAnswering, ForTokenClassification


class ErnieMPreTrainedModel(EncoderPreTrainedModel):
    """Base class of the ERNIE-M models."""

    config_class = ErnieMConfig

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LanguageEmbedding):
            # from zero: a checkpoint without one gives the same states as before
            init.zeros_(module.weight)


class LanguageEmbedding(nn.Embedding):
    """(languages, H), added at each <mask>: which language to predict there (paper, section 3.1, BTMLM)."""


class ErnieMModel(ErnieMPreTrainedModel, EncoderModel):
    """ERNIE-M's encoder; see `forward`. Source: Ouyang et al., EMNLP 2021.

    Deviation from the released code, which has no language embedding although the paper's BTMLM "use[s] the language
    embedding and position embedding to indicate the language and position": with `config.languages` <mask> carries one.
    No other token does, so that released checkpoints and every input of a fine-tuned model are as without.
    """

    def __init__(self, config: ErnieMConfig, add_pooling_layer: bool = True, backbone: PreTrainedModel | None = None):
        super().__init__(config, add_pooling_layer, backbone)
        if config.languages:
            if config.mask_token_id is None:
                raise ValueError("languages are set and mask_token_id is not: set it to the tokenizer's.")
            self.language_embeddings = LanguageEmbedding(len(config.languages), config.hidden_size)
            self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        language_ids: torch.Tensor | None = None,
        **inputs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Encode; see `EncoderModel.forward`.

        Args:
            attention_mask: by default padding is left out, as in the released code.
            language_ids: (B, T) rows of the language embedding, read at <mask>; -1 (default): it carries no language.

        Raises:
            ValueError: as `EncoderModel.forward`; for `language_ids` of a model without languages, or without
                `input_ids`, which say where <mask> is.

        Example:
            >>> inputs = tokenizer(["The house is small.", "Das Haus."], padding=True, return_tensors="pt")
            >>> states_BTH = model(**inputs).last_hidden_state  # (B, T, H)
        """
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        if language_ids is not None:
            if not self.config.languages or input_ids is None:
                raise ValueError("language_ids need a model with config.languages, and input_ids.")
            if inputs.get("position_ids") is None:
                inputs["position_ids"] = position_ids_of(input_ids, self.config)
            carries_BT = input_ids.eq(self.config.mask_token_id) & language_ids.ge(0)
            languages_BTH = self.language_embeddings(language_ids.clamp(min=0)) * carries_BT[..., None]
            inputs["inputs_embeds"] = self.get_input_embeddings()(input_ids) + languages_BTH
            input_ids = None
        return super().forward(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **inputs)


ErnieMPreTrainedModel.encoder_class = ErnieMModel  # of the heads below


class ErnieMForPreTraining(ErnieMPreTrainedModel, ForPreTraining):
    r"""Cross-attention masked LM (CAMLM) and back-translation masked LM (BTMLM), with MLM and TLM (section 3).

    Equations, over the masked tokens M of a pair (x, y), or of a text x with pseudo tokens P:
    - CAMLM: L = -sum_{m in M_x} log p(x_m | M_x, y \ M_y) - sum_{m in M_y} log p(y_m | M_y, x \ M_x): a side is
      predicted from the other one, and of its own side only from its masks: MLM under `camlm_mask`.
    - BTMLM: first, without gradient, P = argmax p(y_j | x, M_j) for k positions behind the text in a language of their
      own (`btmlm_generation_mask`); then L = -sum_{m in M} log p(x_m | x \ M, P), everything attending to everything.

    Notation: x and y are segments 0 and 1 of a row `<s> x </s></s> y </s>`; special tokens belong to their side. M are
    the positions with a label, and P the <mask> of segment 1 of a BTMLM row.

    Relation to its neighbors: TLM may predict x_m from the rest of x and ignore y; CAMLM cannot. BTMLM's second step
    is TLM on a pair whose other side the model has written itself. XLM-Align writes alignments, ERNIE-M words.

    Deviations from the paper, which is silent here: the first step sees the unmasked text, and runs without
    dropout; special tokens that the configuration names are never generated; the pseudo side's own `</s>` are read
    in the second step only; an unmasked position attends to the unmasked of its own side only, or a side's words would
    come back to its masks by way of the other side's states; <mask> carries a language in BTMLM's first step, and in
    CAMLM and half of TLM's rows, which teach it: in all else it is the <mask> that `ErnieMForMaskedLM` sees in use.

    Sub-batches, see `ForPreTraining.forward`: `attention_mask` is (B, T), and (B, T, T) of camlm (`camlm_mask`). Of a
    model with languages tlm, camlm and btmlm have `language_ids` (B, T). btmlm also has `generation_mask` (B, T, T)
    (`btmlm_generation_mask`) and `segment_ids` (B, T), segment 1 being pseudo positions, <mask> without a label, and
    may have `pseudo_positions` (K,), where these are in the flattened (B * T) rows: finding them waits for a GPU.

    Raises ValueError as `ForPreTraining.forward` and `ErnieMModel.forward`; for camlm without a block mask, and for
    btmlm of a model without languages. A missing field is a KeyError.

    Example:
        >>> collate = CamlmCollator(tokenizer)
        >>> batch = collate([{"source": "The house is small.", "target": "Das Haus ist klein."}])
        >>> model(**batch).loss.backward()

    Source: Ouyang et al., EMNLP 2021, section 3.
    """

    objectives = ForPreTraining.objectives | {"camlm": (), "btmlm": ()}

    def predictions(self, name: str, batch: dict[str, Any], weights: Mapping[str, float]) -> NamedLosses:
        """The losses of one objective: each is one, from the encoder's states."""
        inputs = inputs_with_languages(batch)
        if name == "camlm" and ("attention_mask" not in batch or batch["attention_mask"].dim() != 3):
            raise ValueError("sub-batch 'camlm' needs a (B, T, T) attention_mask, as `camlm_mask` makes it.")
        if name == "btmlm":
            inputs.pop("language_ids", None)  # of the first step
            # before they are filled: the same in both steps
            inputs.setdefault("position_ids", position_ids_of(batch["input_ids"], self.config))
            inputs["input_ids"] = self.back_translate(batch)
        yield name, predictions_of(self.roberta(**inputs).last_hidden_state, batch)

    @torch.no_grad()
    def generation_states(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """BTMLM's first step: states (B, T, H), of which those of the pseudo positions are what they predict from.

        `batch` is `btmlm` of `forward`; its text is read unmasked, without dropout. ValueError without languages.
        """
        if not self.config.languages or "language_ids" not in batch:
            raise ValueError("btmlm needs config.languages and language_ids: a pseudo position needs its language.")
        inputs = inputs_with_languages(batch)
        inputs.setdefault("position_ids", position_ids_of(batch["input_ids"], self.config))
        inputs["input_ids"] = unmasked_ids(batch)
        inputs["attention_mask"] = batch["generation_mask"]
        with without_dropout(self):
            return self.roberta(**inputs).last_hidden_state

    @torch.no_grad()
    def back_translate(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """`input_ids` (B, T) of BTMLM's second step, with pseudo tokens by the first, `generation_states`.

        Each pseudo position reads the unmasked text, its own language and position, and no other pseudo position.
        """
        states_FH = self.generation_states(batch).flatten(0, 1)
        filled_BT = batch["input_ids"]
        positions_K = batch.get("pseudo_positions")
        if positions_K is None:
            is_pseudo_BT = (batch["segment_ids"] == 1) & filled_BT.eq(self.config.mask_token_id)
            positions_K = is_pseudo_BT.flatten().nonzero().squeeze(1)  # waits for a GPU
        filled_F = filled_BT.flatten().index_copy(0, positions_K, self._likeliest(states_FH[positions_K]))
        return filled_F.view_as(filled_BT)

    def _likeliest(self, states_KH: torch.Tensor) -> torch.Tensor:
        """(K,) tokens, never a special token that the configuration knows."""
        special = on_device(np.array(self._special_ids(), dtype=np.int64), states_KH.device)
        tokens = []
        for chunk_KH in states_KH.split(max(1, LOGITS_AT_ONCE // self.config.vocab_size)):
            logits_KV = self.lm_head(chunk_KH).float()
            logits_KV.index_fill_(1, special, -torch.inf)
            tokens.append(logits_KV.argmax(-1))
        return torch.cat(tokens)

    def _special_ids(self) -> list[int]:
        """Ids of the special tokens that the configuration knows."""
        config = self.config
        ids = [config.pad_token_id, config.bos_token_id, config.mask_token_id]
        if isinstance(config.eos_token_id, list):
            ids += config.eos_token_id
        else:
            ids.append(config.eos_token_id)
        ids += config.special_token_ids or ()
        return [token_id for token_id in ids if token_id is not None]


def inputs_with_languages(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What ERNIE-M's encoder reads of a sub-batch."""
    inputs = encoder_inputs(batch)
    if "language_ids" in batch:
        inputs["language_ids"] = batch["language_ids"]
    return inputs


class ErnieMForMaskedLM(ErnieMPreTrainedModel, ForMaskedLM):
    """ERNIE-M that predicts masked tokens; see `forward`. Source: Ouyang et al., EMNLP 2021."""


class ErnieMForSequenceClassification(ErnieMPreTrainedModel, ForPooledSequenceClassification):
    """ERNIE-M with a label for a text or a pair, from the pooler; see `forward`. Source: Ouyang et al., EMNLP 2021."""


class ErnieMForTokenClassification(ErnieMPreTrainedModel, ForTokenClassification):
    """ERNIE-M with a label for each token; see `forward`. Source: Ouyang et al., EMNLP 2021."""


class ErnieMForQuestionAnswering(ErnieMPreTrainedModel, ForQuestionAnswering):
    """ERNIE-M that marks an answer in a text; see `forward`. Source: Ouyang et al., EMNLP 2021."""


# save_pretrained copies this file and its siblings into the folder: a checkpoint is a Hub repository
for auto_class, suffix in HEADS.items():
    globals()[f"ErnieM{suffix}"].register_for_auto_class(auto_class)
