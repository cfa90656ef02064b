# SPDX-License-Identifier: Apache-2.0
"""The language-model head on the predicted positions only, and the objectives that all four papers share: MLM, TLM.

Legend: `B` sequences, `T` positions, `N` predictions, `H` hidden size, `V` vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import MaskedLMOutput, ModelOutput
from transformers.utils.generic import can_return_tuple

from .backbone import architecture_of, make_backbone, renamed
from .encoder import EncoderPreTrainedModel

# Logits held at once: 2^27 floats are 512 MiB, or 536 predictions at XLM-R's vocabulary of 250,002.
LOGITS_AT_ONCE = 2**27


class LinearCrossEntropy(torch.autograd.Function):
    """Sum of weighted cross-entropies of `hidden @ weight.T + bias`, with at most `LOGITS_AT_ONCE` logits at a time.

    The gradient with respect to the logits is known as soon as they are (softmax minus one-hot): nothing is computed
    twice, and it is multiplied out at once. It can be back-propagated once.
    """

    @staticmethod
    def forward(ctx, hidden_NH, weight_VH, bias_V, labels_N, row_weights_N, label_smoothing):
        device_type, size = hidden_NH.device.type, len(weight_VH)
        dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else hidden_NH.dtype
        leaves, needs = (hidden_NH, weight_VH, bias_V), ctx.needs_input_grad[:3]
        ctx.gradients = [torch.zeros_like(of) if needed else None for of, needed in zip(leaves, needs, strict=True)]
        of_hidden_NH, of_weight_VH, of_bias_V = ctx.gradients
        losses_N = torch.empty(len(labels_N), dtype=torch.float32, device=hidden_NH.device)
        rows = max(1, LOGITS_AT_ONCE // size)
        with torch.autocast(device_type, enabled=False):
            states_NH, matrix_VH, bias = (leaf.to(dtype) for leaf in leaves)
            for start in range(0, len(labels_N), rows):
                chunk = slice(start, start + rows)
                labels, weights = labels_N[chunk, None], row_weights_N[chunk, None]
                # one (rows, V) buffer in float32, worked on in place
                scores = torch.addmm(bias, states_NH[chunk], matrix_VH.T).float()
                scores -= scores.amax(1, keepdim=True)
                target = scores.gather(1, labels)
                if label_smoothing:
                    target = torch.lerp(target, scores.mean(1, keepdim=True), label_smoothing)
                total = scores.exp_().sum(1, keepdim=True)
                losses_N[chunk] = (total.log() - target).squeeze(1)
                if not any(needs):
                    continue
                scores *= weights / total
                if label_smoothing:
                    scores -= weights * (label_smoothing / size)
                scores.scatter_add_(1, labels, weights * (label_smoothing - 1.0))
                if of_bias_V is not None:
                    of_bias_V += scores.sum(0)
                scores = scores.to(dtype)
                if of_hidden_NH is not None:
                    of_hidden_NH[chunk] = scores @ matrix_VH
                if of_weight_VH is not None and dtype == of_weight_VH.dtype:
                    of_weight_VH.addmm_(scores.T, states_NH[chunk])
                elif of_weight_VH is not None:  # by parts: a (V, H) matrix of products would be the largest tensor
                    for part_WH, scores_NW in zip(of_weight_VH.split(2**14), scores.split(2**14, 1), strict=True):
                        part_WH += scores_NW.T @ states_NH[chunk]
        ctx.mark_non_differentiable(losses_N)
        return (losses_N * row_weights_N).sum(), losses_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_loss, _):
        if ctx.gradients is None:
            raise RuntimeError("the masked-LM loss can be back-propagated once: call forward again.")
        # in place: a copy of the (V, H) gradient would be the largest tensor of the step
        gradients = [None if of is None else of.mul_(grad_loss) for of in ctx.gradients]
        ctx.gradients = None
        return *gradients, None, None, None


def linear_cross_entropy(hidden_NH, weight_VH, bias_V, labels_N, row_weights_N=None, label_smoothing=0.0):
    """Cross-entropies of a linear classifier over a large vocabulary, in nats.

    Returns the sum weighted by `row_weights_N` (default 1), to call `backward` on, and the unweighted losses (N,),
    detached. `N` may be 0: the sum is then 0 with zero gradients.

    `label_smoothing` e is that of `nn.CrossEntropyLoss` (Szegedy et al. 2016, section 7): the target is 1 - e + e/V at
    the label and e/V elsewhere. The losses returned are the smoothed ones.
    """
    if row_weights_N is None:
        row_weights_N = torch.ones(len(labels_N), device=hidden_NH.device)
    if bias_V is None:
        bias_V = weight_VH.new_zeros(len(weight_VH))
    if not torch.is_grad_enabled():  # inside the function, parameters would still seem to need theirs
        weight_VH, bias_V = weight_VH.detach(), bias_V.detach()
    return LinearCrossEntropy.apply(hidden_NH, weight_VH, bias_V, labels_N, row_weights_N, label_smoothing)


class LMHead(nn.Module):
    """XLM-R's masked-LM head: dense, GELU, LayerNorm (`config.lm_head_transform`), then tied embeddings and a bias."""

    def __init__(self, config):
        super().__init__()
        self.has_transform, self.scale = config.lm_head_transform, config.lm_head_scale
        if self.has_transform:
            self.dense = nn.Linear(config.hidden_size, config.hidden_size)
            self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def transform(self, states):
        """What the embeddings are multiplied with: (..., H) -> (..., H)."""
        return self.layer_norm(nn.functional.gelu(self.dense(states))) if self.has_transform else states * self.scale

    def forward(self, states):
        """Logits (..., V) of states (..., H)."""
        return self.decoder(self.transform(states))

    def loss(self, states_NH, labels_N, row_weights_N=None, label_smoothing=0.0):
        """Weighted sum and losses (N,) of the predictions, as `linear_cross_entropy`."""
        options = (labels_N, row_weights_N, label_smoothing)
        return linear_cross_entropy(self.transform(states_NH), self.decoder.weight, self.decoder.bias, *options)

    def mean_loss(self, states_BTH, labels_BT, label_smoothing=0.0):
        """Mean loss of the positions whose label is not -100; the head runs on those only. 0 where there is none:
        random masks leave such batches of short texts, and a mean over nothing would be NaN.

        Raises `ValueError` where the labels have another shape.
        """
        _, states_NH, labels_N = at_predictions(states_BTH, labels_BT)
        return self.loss(states_NH, labels_N, label_smoothing=label_smoothing)[0] / max(1, len(labels_N))


def at_predictions(states_BTH, labels_BT):
    """Places (N,) of the labels other than -100 in the flattened (B * T) rows, states (N, H) and labels (N,) there.

    Raises `ValueError` where the labels have another shape.
    """
    if labels_BT.shape != states_BTH.shape[:2]:
        raise ValueError(
            f"labels have shape {tuple(labels_BT.shape)}, and the inputs {tuple(states_BTH.shape[:2])}: give both one "
            "shape, with label -100 where nothing is predicted."
        )
    places_N = labels_BT.flatten().ne(-100).nonzero().squeeze(1)  # waits for a GPU
    return places_N, states_BTH.flatten(0, 1)[places_N], labels_BT.flatten()[places_N]


class BackboneHead(LMHead):
    """The masked-LM head of another architecture: all modules of its class but the encoder, under their own names."""

    def __init__(self, whole: PreTrainedModel):
        nn.Module.__init__(self)
        base = whole.base_model_prefix
        self.parts = nn.ModuleDict({name: module for name, module in whole.named_children() if name != base})
        names = {module: name for name, module in self.parts.named_modules()}
        self.decoder_name = names[whole.get_output_embeddings()]
        self.transform_name = architecture_of(whole.config).transform

    @property
    def decoder(self) -> nn.Linear:
        """The output embeddings."""
        return self.parts.get_submodule(self.decoder_name)

    def transform(self, states):
        """See `LMHead.transform`."""
        return states if self.transform_name is None else self.parts.get_submodule(self.transform_name)(states)


class LMHeadModel(EncoderPreTrainedModel):
    """An encoder with a masked-LM head whose decoder is tied to the word embeddings."""

    _tied_weights_keys = {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }

    def __init__(self, config):
        super().__init__(config)
        if config.backbone_config is None:
            self.roberta = self.encoder_class(config, add_pooling_layer=False)
            self.lm_head = LMHead(config)
        else:
            whole = make_backbone(config, AutoModelForMaskedLM)
            self.roberta = self.encoder_class(config, add_pooling_layer=False, backbone=whole.base_model)
            self.lm_head = BackboneHead(whole)
            self._tied_weights_keys = {
                renamed(whole, name): renamed(whole, source) for name, source in whole._tied_weights_keys.items()
            }
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings):
        if self.config.backbone_config is None:
            self.lm_head.decoder = new_embeddings
        else:
            self.lm_head.parts.set_submodule(self.lm_head.decoder_name, new_embeddings)

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, LMHead) and self.config.backbone_config is None:
            init.zeros_(module.bias)


class ForMaskedLM(LMHeadModel):
    """Masked language modeling with the interface of `XLMRobertaForMaskedLM`."""

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs,
    ) -> MaskedLMOutput:
        """Logits (B, T, V), and the mean cross-entropy of the predicted positions.

        Args:
            labels: (B, T) gold tokens where a prediction is wanted, -100 elsewhere. The loss runs the head on the
                predicted positions only. In training there are no logits then: at |V| = 250,002, those of 8 sentences
                of 128 tokens take a gigabyte that training has no use for.

        Raises:
            ValueError: labels of another shape than the inputs.

        Example:
            >>> inputs = tokenizer(["The <mask> is small."], return_tensors="pt")
            >>> tokens = model(**inputs).logits.argmax(-1)  # (B, T)
        """
        fields = {"token_type_ids": token_type_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        outputs = self.roberta(input_ids, attention_mask=attention_mask, **fields, return_dict=True, **kwargs)
        loss = None if labels is None else self.lm_head.mean_loss(outputs.last_hidden_state, labels)
        return MaskedLMOutput(
            loss=loss,
            logits=self.lm_head(outputs.last_hidden_state) if labels is None or not self.training else None,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


@dataclass
class PreTrainingOutput(ModelOutput):
    """What a pre-training forward returns, for all objectives of a micro-batch at once.

    Attributes:
        loss: weighted sum of cross-entropies over the number of predictions in this call, in nats; 0 where there is
            none. Call `backward` on it, as on any model's loss.
        loss_sum: the sum itself, for loops that divide by the predictions of a whole step, which no call knows.
        token_losses: loss (an objective, or `<objective>.<term>`) -> (N,) cross-entropies in nats, detached.
        batch_rows: loss -> (N,) the row of its sub-batch that each of them belongs to.
    """

    loss: torch.Tensor | None = None
    loss_sum: torch.Tensor | None = None
    token_losses: dict[str, torch.Tensor] | None = None
    batch_rows: dict[str, torch.Tensor] | None = None


# Fields of a set of inputs that the encoder reads; the rest (languages, segment_ids, ...) serve masks and logs.
ENCODER_FIELDS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


class Predictions(NamedTuple):
    """What one loss has to predict: states (B, T, H) and labels (B, T), -100 where nothing; `examples` (B,) the row of
    the sub-batch that each row belongs to, where that is not itself."""

    states_BTH: torch.Tensor
    labels_BT: torch.Tensor
    examples_B: torch.Tensor | None = None


class Losses(NamedTuple):
    """What a loss with a head of its own comes to: the sum of its cross-entropies, to call `backward` on; each of them
    (N,), detached, in nats; and (N,) the row of the sub-batch that it belongs to."""

    total: torch.Tensor
    losses_N: torch.Tensor
    rows_N: torch.Tensor


Found = Iterator[tuple[str, Predictions | Losses]]


class ForPreTraining(LMHeadModel):
    r"""Masked language modeling under the mask that a collator makes: MLM on text and TLM on translation pairs, the
    objectives that all four papers share, and any other that differs from them only in its mask.

    Equation: L = sum_o w_o sum_{i in M_o} -log p(x_i | x_{\M_o}), for example o in {mlm, tlm} (Conneau and Lample 2019,
    sections 3.3 and 3.4); TLM is MLM on `<s> x </s></s> y </s>`, where a masked token may be read off either side.

    Relation to its neighbors: the subclasses add losses of other kinds; this class is the papers' baseline XLM.
    """

    # objectives of the paper -> the terms of their loss, `<objective>.<term>`; none: it is one loss
    objectives = {"mlm": (), "tlm": ()}
    # objectives without a sub-batch -> the one whose rows they learn from
    reads: dict[str, str] = {}

    def forward(
        self, *, objective_weights: dict[str, float] | None = None, return_loss: bool = True, **batches: dict | None
    ) -> PreTrainingOutput:
        """The losses of all sub-batches, given by the name of their objective, as the collators of
        `pretraining/objectives/` make them: `model(**collate(examples))`.

        Args:
            batches: `input_ids` and `labels` (B, T), `attention_mask` (B, T) or (B, T, T), optionally `position_ids`.
                The class of a paper reads further fields of its own objectives. The loss of any other name is masked
                language modeling under the sub-batch's mask.
            objective_weights: w_o, default 1 each; a loss of weight 0 is not computed.
            return_loss: false leaves `loss` out. The Trainer looks for this argument to know that the model has one.

        Raises:
            ValueError: no sub-batch, one that this model has no loss for, or all of weight 0; a weight of no loss.
        """
        weights = objective_weights or {}
        # in the order of the class: the last bit of a sum would depend on that of the arguments
        batches = {name: batches[name] for name in self.objectives | batches if batches.get(name) is not None}
        if not batches or any(name in self.reads or torch.is_tensor(of) for name, of in batches.items()):
            own = ", ".join(name for name in self.objectives if name not in self.reads)
            raise ValueError(
                f"{type(self).__name__} got {', '.join(batches) or 'nothing'}: give it sub-batches, dicts of inputs by "
                f"the names of their objectives, such as {own}."
            )
        known = [loss for name in self.objectives | batches for loss in self.losses_of_objective(name)]
        if unknown := sorted(weights.keys() - set(known)):
            raise ValueError(f"objective_weights has {unknown[0]!r}, but {type(self).__name__} has {', '.join(known)}.")
        masked, others, batch_rows = {}, {}, {}
        for name, batch in batches.items():
            objectives = (name, *(reader for reader, read in self.reads.items() if read == name))
            if not any(weights.get(loss, 1.0) for of in objectives for loss in self.losses_of_objective(of)):
                continue
            for loss, found in self.predictions(name, batch, weights):
                if isinstance(found, Losses):
                    others[loss], batch_rows[loss] = found, found.rows_N
                    continue
                places_N, states_NH, labels_N = at_predictions(found.states_BTH, found.labels_BT)
                rows_N = places_N // found.labels_BT.shape[1]
                batch_rows[loss] = rows_N if found.examples_B is None else found.examples_B[rows_N]
                weights_N = torch.full((len(rows_N),), float(weights.get(loss, 1.0)), device=rows_N.device)
                masked[loss] = states_NH, labels_N, weights_N
        if not masked and not others:
            raise ValueError(f"every loss of {', '.join(batches)} has weight 0: leave the objective out.")
        token_losses, totals = {}, []
        if masked:  # one call of the head, so that its (V, H) gradient exists once
            total, losses_N = self.lm_head.loss(*map(torch.cat, zip(*masked.values(), strict=True)))
            counts = [len(labels_N) for _, labels_N, _ in masked.values()]
            token_losses = dict(zip(masked, losses_N.split(counts), strict=True))
            totals.append(total)
        for name, found in others.items():
            token_losses[name] = found.losses_N
            totals.append(weights.get(name, 1.0) * found.total)
        loss_sum = sum(totals)
        loss = loss_sum / max(1, sum(map(len, token_losses.values()))) if return_loss else None
        return PreTrainingOutput(loss=loss, loss_sum=loss_sum, token_losses=token_losses, batch_rows=batch_rows)

    @classmethod
    def losses_of_objective(cls, name: str) -> list[str]:
        """`["mlm"]`, `["ca_mlm_pairs.inner", "ca_mlm_pairs.cross"]`: what weights and token_losses are named by."""
        return [f"{name}.{term}" for term in cls.objectives.get(name, ())] or [name]

    def predictions(self, name: str, batch: dict, weights: dict[str, float]) -> Found:
        """The losses of one sub-batch and what they predict: here its objective's, from the encoder's states."""
        if not {"input_ids", "labels"} <= batch.keys() or "generation_mask" in batch:
            raise ValueError(
                f"{type(self).__name__} computes masked language modeling for {name!r}, and its sub-batch has the "
                f"fields {', '.join(batch)}. Give it to the model of its paper."
            )
        yield name, Predictions(self.roberta(**encoder_inputs(batch)).last_hidden_state, batch["labels"])


def encoder_inputs(fields: dict) -> dict[str, torch.Tensor]:
    """What the encoder reads of a set of inputs."""
    return {field: fields[field] for field in ENCODER_FIELDS if field in fields}


def unmasked_ids(batch: dict) -> torch.Tensor:
    """(B, T) the text of a masked sub-batch before it was masked."""
    return torch.where(batch["labels"].ne(-100), batch["labels"], batch["input_ids"])
