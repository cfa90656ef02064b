# SPDX-License-Identifier: Apache-2.0
"""The language-model head on the predicted positions only, and the objectives that all four papers share: MLM, TLM.

Legend: `B` sequences, `T` positions, `N` predictions, `H` hidden size, `V` vocabulary.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import MaskedLMOutput, ModelOutput
from transformers.utils.generic import can_return_tuple

from .backbone import architecture_of, make_backbone, renamed
from .configuration_encoder import EncoderConfig
from .encoder import EncoderPreTrainedModel

# Logits held at once: 2^27 floats are 512 MiB, or 536 predictions at XLM-R's vocabulary of 250,002.
LOGITS_AT_ONCE = 2**27


class LinearCrossEntropy(torch.autograd.Function):
    """Sum of weighted cross-entropies of `hidden @ weight.T + bias`, with at most `LOGITS_AT_ONCE` logits at a time.

    The gradient with respect to the logits is known as soon as they are (softmax minus one-hot): nothing is computed
    twice, and it is multiplied out at once. It can be back-propagated once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor,
        labels_N: torch.Tensor,
        row_weights_N: torch.Tensor,
        label_smoothing: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device_type = hidden_NH.device.type
        vocabulary = len(weight_VH)
        dtype = hidden_NH.dtype
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
        needs_gradient = ctx.needs_input_grad[:3]
        hidden_grad_NH = torch.zeros_like(hidden_NH) if needs_gradient[0] else None
        weight_grad_VH = torch.zeros_like(weight_VH) if needs_gradient[1] else None
        bias_grad_V = torch.zeros_like(bias_V) if needs_gradient[2] else None
        losses_N = torch.empty(len(labels_N), dtype=torch.float32, device=hidden_NH.device)
        rows = max(1, LOGITS_AT_ONCE // vocabulary)
        with torch.autocast(device_type, enabled=False):
            states_NH = hidden_NH.to(dtype)
            matrix_VH = weight_VH.to(dtype)
            bias = bias_V.to(dtype)
            for start in range(0, len(labels_N), rows):
                chunk = slice(start, start + rows)
                labels = labels_N[chunk, None]
                weights = row_weights_N[chunk, None]
                # one (rows, V) buffer in float32, worked on in place
                scores = torch.addmm(bias, states_NH[chunk], matrix_VH.T).float()
                scores -= scores.amax(1, keepdim=True)
                target = scores.gather(1, labels)
                if label_smoothing:
                    target = torch.lerp(target, scores.mean(1, keepdim=True), label_smoothing)
                total = scores.exp_().sum(1, keepdim=True)
                losses_N[chunk] = (total.log() - target).squeeze(1)
                if not any(needs_gradient):
                    continue
                # the buffer becomes the gradient: weight x (softmax - target)
                scores *= weights / total
                if label_smoothing:
                    scores -= weights * (label_smoothing / vocabulary)
                scores.scatter_add_(1, labels, weights * (label_smoothing - 1.0))
                if bias_grad_V is not None:
                    bias_grad_V += scores.sum(0)
                scores = scores.to(dtype)
                if hidden_grad_NH is not None:
                    hidden_grad_NH[chunk] = scores @ matrix_VH
                if weight_grad_VH is not None:
                    add_product(weight_grad_VH, scores, states_NH[chunk])
        ctx.gradients = (hidden_grad_NH, weight_grad_VH, bias_grad_V)
        ctx.mark_non_differentiable(losses_N)
        return (losses_N * row_weights_N).sum(), losses_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyrefly: ignore[bad-override]  # the library's has any number of arguments
        ctx: Any, grad_loss: torch.Tensor, _: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the masked-LM loss can be back-propagated once: call forward again.")
        for gradient in ctx.gradients:
            if gradient is not None:
                # in place: a copy of the (V, H) gradient would be the largest tensor of the step
                gradient.mul_(grad_loss)
        gradients = ctx.gradients
        ctx.gradients = None
        return *gradients, None, None, None


def add_product(sum_VH: torch.Tensor, scores_NV: torch.Tensor, states_NH: torch.Tensor) -> None:
    """Adds `scores.T @ states` to the sum, in place."""
    if scores_NV.dtype == sum_VH.dtype:
        sum_VH.addmm_(scores_NV.T, states_NH)
        return
    # by parts: a (V, H) matrix of products would be the largest tensor
    part_size = 2**14
    for part_WH, scores_NW in zip(sum_VH.split(part_size), scores_NV.split(part_size, 1), strict=True):
        part_WH += scores_NW.T @ states_NH


def linear_cross_entropy(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    labels_N: torch.Tensor,
    row_weights_N: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
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
        weight_VH = weight_VH.detach()
        bias_V = bias_V.detach()
    return LinearCrossEntropy.apply(hidden_NH, weight_VH, bias_V, labels_N, row_weights_N, label_smoothing)


class LMHead(nn.Module):
    """XLM-R's masked-LM head: dense, GELU, LayerNorm (`config.lm_head_transform`), then tied embeddings and a bias."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.has_transform = config.lm_head_transform
        self.scale = config.lm_head_scale
        if self.has_transform:
            self.dense = nn.Linear(config.hidden_size, config.hidden_size)
            self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def transform(self, states: torch.Tensor) -> torch.Tensor:
        """What the embeddings are multiplied with: (..., H) -> (..., H)."""
        if not self.has_transform:
            return states * self.scale
        return self.layer_norm(nn.functional.gelu(self.dense(states)))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits (..., V) of states (..., H)."""
        return self.decoder(self.transform(states))

    def loss(
        self,
        states_NH: torch.Tensor,
        labels_N: torch.Tensor,
        row_weights_N: torch.Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weighted sum and losses (N,) of the predictions, as `linear_cross_entropy`."""
        hidden_NH = self.transform(states_NH)
        decoder = self.decoder
        return linear_cross_entropy(hidden_NH, decoder.weight, decoder.bias, labels_N, row_weights_N, label_smoothing)

    def mean_loss(
        self, states_BTH: torch.Tensor, labels_BT: torch.Tensor, label_smoothing: float = 0.0
    ) -> torch.Tensor:
        """Mean loss of the positions whose label is not -100; the head runs on those only. 0 where there is none:
        random masks leave such batches of short texts, and a mean over nothing would be NaN.

        Raises `ValueError` where the labels have another shape.
        """
        labeled = at_predictions(Predictions(states_BTH, labels_BT))
        total, losses_N = self.loss(labeled.states_NH, labeled.labels_N, label_smoothing=label_smoothing)
        return total / max(1, len(losses_N))


class BackboneHead(LMHead):
    """The masked-LM head of another architecture: all modules of its class but the encoder, under their own names."""

    def __init__(self, whole: PreTrainedModel):
        nn.Module.__init__(self)  # without the layers of `LMHead`
        parts = dict(whole.named_children())
        del parts[whole.base_model_prefix]
        self.parts = nn.ModuleDict(parts)
        names = {module: name for name, module in self.parts.named_modules()}
        self.decoder_name = names[cast(nn.Module, whole.get_output_embeddings())]
        self.transform_name = architecture_of(whole.config).transform

    @property
    def decoder(self) -> nn.Linear:  # pyrefly: ignore[bad-override]  # one of `parts`, saved once
        """The output embeddings."""
        return cast(nn.Linear, self.parts.get_submodule(self.decoder_name))

    def transform(self, states: torch.Tensor) -> torch.Tensor:
        """See `LMHead.transform`: the architecture's module, if it has one."""
        if self.transform_name is None:
            return states
        return self.parts.get_submodule(self.transform_name)(states)


class LMHeadModel(EncoderPreTrainedModel):
    """An encoder with a masked-LM head whose decoder is tied to the word embeddings."""

    _tied_weights_keys = {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        if config.backbone_config is None:
            self.roberta = self.encoder_class(config, add_pooling_layer=False)
            self.lm_head = LMHead(config)
        else:
            whole = make_backbone(config, AutoModelForMaskedLM)
            self.roberta = self.encoder_class(config, add_pooling_layer=False, backbone=whole.base_model)
            self.lm_head = BackboneHead(whole)
            tied = whole._tied_weights_keys.items()
            self._tied_weights_keys = {renamed(whole, name): renamed(whole, source) for name, source in tied}
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        if self.config.backbone_config is None:
            self.lm_head.decoder = new_embeddings
        else:
            self.lm_head.parts.set_submodule(self.lm_head.decoder_name, new_embeddings)

    def _init_weights(self, module: nn.Module) -> None:
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
        **kwargs: Any,
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
        states_BTH = outputs.last_hidden_state
        loss = None
        if labels is not None:
            loss = self.lm_head.mean_loss(states_BTH, labels)
        logits = None
        if labels is None or not self.training:
            logits = self.lm_head(states_BTH)
        return MaskedLMOutput(
            loss=loss,
            logits=logits,
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
    # ModelOutput needs the defaults; `forward` always returns all three fields
    loss_sum: torch.Tensor = None  # pyrefly: ignore[bad-assignment]
    token_losses: dict[str, torch.Tensor] = None  # pyrefly: ignore[bad-assignment]
    batch_rows: dict[str, torch.Tensor] = None  # pyrefly: ignore[bad-assignment]


# Fields of a set of inputs that the encoder reads; the rest (corpus_names, segment_ids, ...) serve masks and logs.
ENCODER_FIELDS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "text_lengths")


class Predictions(NamedTuple):
    """What one loss has to predict.

    states_BTH: states; labels_BT: gold tokens, -100 where nothing is predicted; batch_rows_B: the row of the sub-batch
    that each of these B rows belongs to, by default the same one; positions_N: where the labels are not -100 in the
    flattened (B * T) rows, in order, if that is known. By default it is found, which waits for a GPU.
    """

    states_BTH: torch.Tensor
    labels_BT: torch.Tensor
    batch_rows_B: torch.Tensor | None = None
    positions_N: torch.Tensor | None = None


class Labeled(NamedTuple):
    """Predicted positions: their states and labels, and the row of the sub-batch that each belongs to."""

    states_NH: torch.Tensor
    labels_N: torch.Tensor
    rows_N: torch.Tensor


class Losses(NamedTuple):
    """A loss that needs no LM head: the sum of its terms, to call `backward` on; each of them (N,), detached, in nats;
    and (N,) the row of the sub-batch that it belongs to."""

    total: torch.Tensor
    losses_N: torch.Tensor
    rows_N: torch.Tensor


# what `ForPreTraining.predictions` yields: the name of a loss, and what the LM head has to predict, or the loss itself
NamedLosses = Iterator[tuple[str, Predictions | Losses]]


def predictions_of(states_BTH: torch.Tensor, batch: Mapping[str, Any]) -> Predictions:
    """The predictions of a sub-batch by its `labels` and, if it has them, its `prediction_positions`."""
    return Predictions(states_BTH, batch["labels"], positions_N=batch.get("prediction_positions"))


def at_predictions(predictions: Predictions) -> Labeled:
    """States and labels where something is predicted.

    Raises `ValueError` where the labels have another shape than the inputs.
    """
    states_BTH, labels_BT, batch_rows_B, positions_N = predictions
    if labels_BT.shape != states_BTH.shape[:2]:
        raise ValueError(
            f"labels have shape {tuple(labels_BT.shape)}, and the inputs {tuple(states_BTH.shape[:2])}: give both one "
            "shape, with label -100 where nothing is predicted."
        )
    labels_F = labels_BT.flatten()
    if positions_N is None:
        positions_N = labels_F.ne(-100).nonzero().squeeze(1)  # waits for a GPU
    rows_N = positions_N // labels_BT.shape[1]
    if batch_rows_B is not None:
        rows_N = batch_rows_B[rows_N]
    return Labeled(states_BTH.flatten(0, 1)[positions_N], labels_F[positions_N], rows_N)


class ForPreTraining(LMHeadModel):
    r"""Masked language modeling under the mask that a collator makes: MLM on text and TLM on translation pairs, the
    objectives that all four papers share, and any other that differs from them only in its mask.

    Equation: L = sum_o w_o sum_{i in M_o} -log p(x_i | x_{\M_o}), for example o in {mlm, tlm} (Conneau and Lample 2019,
    sections 3.3 and 3.4); TLM is MLM on `<s> x </s></s> y </s>`, where a masked token may be read off either side.

    Relation to its neighbors: the subclasses add losses of other kinds; this class is the papers' baseline XLM.
    """

    # objectives of the paper -> the terms of their loss, `<objective>.<term>`; none: it is one loss
    objectives: dict[str, tuple[str, ...]] = {"mlm": (), "tlm": ()}
    # objectives without a sub-batch -> the one whose rows they learn from
    reads: dict[str, str] = {}

    def forward(
        self,
        *,
        objective_weights: Mapping[str, float] | None = None,
        return_loss: bool = True,
        **batches: dict[str, Any] | None,
    ) -> PreTrainingOutput:
        """The losses of all sub-batches, given by the name of their objective, as the collators of
        `pretraining/objectives/` make them: `model(**collate(examples))`.

        Args:
            batches: `input_ids` and `labels` (B, T), `attention_mask` (B, T) or (B, T, T), optionally `position_ids`.
                The class of a paper reads further fields of its own objectives. The loss of any other name is masked
                language modeling under the sub-batch's mask. The collators also hand over what they know on the CPU,
                so that the model need not wait for a GPU to tell: `text_lengths`, a list of B numbers of tokens, if all
                padding is on the right, and `prediction_positions` (N,), where the flattened labels are not -100.
            objective_weights: w_o, default 1 each; a loss of weight 0 is not computed.
            return_loss: false leaves `loss` out. The Trainer looks for this argument to know that the model has one.

        Raises:
            ValueError: no sub-batch, one that this model has no loss for, or all of weight 0; a weight of no loss.
        """
        weights = objective_weights or {}
        sub_batches = self._sub_batches(batches)
        self._check_weights(weights, sub_batches)
        labeled: dict[str, Labeled] = {}  # by the name of the loss, for one call of the head
        others: dict[str, Losses] = {}
        for name, sub_batch in sub_batches.items():
            if not self._is_learned(name, weights):
                continue
            for loss_name, result in self.predictions(name, sub_batch, weights):
                if isinstance(result, Losses):
                    others[loss_name] = result
                else:
                    labeled[loss_name] = at_predictions(result)
        if not labeled and not others:
            raise ValueError(f"every loss of {', '.join(sub_batches)} has weight 0: leave the objective out.")

        token_losses = {}
        totals = []
        if labeled:
            total, token_losses = self._head_losses(labeled, weights)
            totals.append(total)
        for loss_name, losses in others.items():
            token_losses[loss_name] = losses.losses_N
            totals.append(weights.get(loss_name, 1.0) * losses.total)
        loss_sum = cast(torch.Tensor, sum(totals))
        loss = None
        if return_loss:
            loss = loss_sum / max(1, sum(map(len, token_losses.values())))
        batch_rows = {name: result.rows_N for name, result in (labeled | others).items()}
        return PreTrainingOutput(loss=loss, loss_sum=loss_sum, token_losses=token_losses, batch_rows=batch_rows)

    def _sub_batches(self, batches: Mapping[str, dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
        """The sub-batches that were given, in the order of the class: the last bit of a sum would depend on that of the
        arguments."""
        sub_batches = {}
        for name in dict.fromkeys([*self.objectives, *batches]):
            batch = batches.get(name)
            if batch is not None:
                sub_batches[name] = batch
        is_wrong = [name in self.reads or torch.is_tensor(batch) for name, batch in sub_batches.items()]
        if not sub_batches or any(is_wrong):
            expected = ", ".join(name for name in self.objectives if name not in self.reads)
            raise ValueError(
                f"{type(self).__name__} got {', '.join(sub_batches) or 'nothing'}: give it sub-batches, dicts of "
                f"inputs by the names of their objectives, such as {expected}."
            )
        return sub_batches

    def _check_weights(self, weights: Mapping[str, float], sub_batches: Mapping[str, Any]) -> None:
        """Raises `ValueError` for the weight of a loss that there is not."""
        losses = []
        for name in dict.fromkeys([*self.objectives, *sub_batches]):
            losses += self.losses_of_objective(name)
        unknown = sorted(weights.keys() - set(losses))
        if unknown:
            raise ValueError(
                f"objective_weights has {unknown[0]!r}, but {type(self).__name__} has {', '.join(losses)}."
            )

    def _is_learned(self, name: str, weights: Mapping[str, float]) -> bool:
        """Whether a loss from the sub-batch has a weight."""
        losses = self.losses_of_objective(name)
        for reader, read_name in self.reads.items():
            if read_name == name:
                losses += self.losses_of_objective(reader)
        return any(weights.get(loss, 1.0) for loss in losses)

    def _head_losses(
        self, labeled: Mapping[str, Labeled], weights: Mapping[str, float]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Weighted sum and token losses of all masked-LM losses, by one call of the head, so that its (V, H) gradient
        exists once."""
        row_weights = []
        for loss, predictions in labeled.items():
            count = len(predictions.labels_N)
            device = predictions.labels_N.device
            row_weights.append(torch.full((count,), float(weights.get(loss, 1.0)), device=device))
        states_NH = torch.cat([predictions.states_NH for predictions in labeled.values()])
        labels_N = torch.cat([predictions.labels_N for predictions in labeled.values()])
        total, losses_N = self.lm_head.loss(states_NH, labels_N, torch.cat(row_weights))
        counts = [len(predictions.labels_N) for predictions in labeled.values()]
        return total, dict(zip(labeled, losses_N.split(counts), strict=True))

    @classmethod
    def losses_of_objective(cls, name: str) -> list[str]:
        """The names of an objective's losses in `objective_weights` and `token_losses`: `["mlm"]`, or of one with terms
        `["ca_mlm_pairs.inner", "ca_mlm_pairs.cross"]`."""
        terms = cls.objectives.get(name, ())
        if not terms:
            return [name]
        return [f"{name}.{term}" for term in terms]

    def predictions(self, name: str, batch: dict[str, Any], weights: Mapping[str, float]) -> NamedLosses:
        """Yields the losses of the sub-batch of objective `name`: here one of that name, masked language modeling. The
        class of a paper adds others, and leaves out those of weight 0."""
        if not {"input_ids", "labels"} <= batch.keys() or "generation_mask" in batch:
            raise ValueError(
                f"{type(self).__name__} computes masked language modeling for {name!r}, and its sub-batch has the "
                f"fields {', '.join(batch)}. Give it to the model of its paper."
            )
        outputs = self.roberta(**encoder_inputs(batch))
        yield name, predictions_of(outputs.last_hidden_state, batch)


def encoder_inputs(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the encoder reads of a set of inputs."""
    return {field: fields[field] for field in ENCODER_FIELDS if field in fields}


def unmasked_ids(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """(B, T) the text of a masked sub-batch before it was masked."""
    return torch.where(batch["labels"].ne(-100), batch["labels"], batch["input_ids"])
