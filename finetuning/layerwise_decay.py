"""Layer-wise learning-rate decay, for the Trainer of every kind of task."""

import re
from typing import Any

import torch
from transformers import Trainer

# `encoder.layer.3.` of XLM-R's family, `encoder.layers.3.` of others
LAYER = re.compile(r"(?:^|\.)layers?\.(\d+)\.")
# without their LayerNorm, which learns at the full rate
EMBEDDINGS = re.compile(r"(?:embeddings|(?:^|\.)embed_tokens)\.(?!(?:layer_?)?norm\.)", re.IGNORECASE)
# of a translation model: decoder layer j was made from an encoder layer
DECODER_LAYER = re.compile(r"(?:^|\.)decoder\.layers?\.(\d+)\.")


class LayerwiseDecay(Trainer):
    """Trainer with parameter groups split by layer, each with its share of the learning rate.

    The scheduler scales all groups alike, so that the ratios hold from warm-up to the end.
    """

    layerwise_decay: float = 1.0

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """The Trainer's optimizer with a group for each share of the rate and each weight decay."""
        model = self.model if model is None else model
        optimizer = super().create_optimizer(model)
        if self.layerwise_decay == 1.0:
            return optimizer
        scales = layer_scales(model, self.layerwise_decay)
        groups: dict[tuple, dict[str, Any]] = {}
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                scale = scales[id(parameter)]
                split = groups.setdefault((number, scale), {**group, "lr": group["lr"] * scale, "params": []})
                split["params"].append(parameter)
        optimizer.param_groups.clear()
        for group in groups.values():
            optimizer.add_param_group(group)
        return optimizer


def layer_scales(model: torch.nn.Module, decay: float) -> dict[int, float]:
    """Share of the learning rate of each parameter, by its `id`.

    d^(n-i) in encoder layer i of n (from 0), cross-attention included, and in a decoder layer that was made from it;
    d^(n+1) in the embeddings of words, positions and languages; 1 in pooler, heads and the LayerNorm of the embeddings.
    ERNIE-M (Ouyang et al. 2021, Tables 11 and 12) prints d alone; the rule is that of its authors' code, which decays
    parameters with "embedding" in their names (PaddlePaddle/ERNIE, ernie-m/model/optimization.py). Tied parameters have
    one share, that of the first name: an LM head that of the embeddings.

    Raises ValueError for a model without numbered layers: all of it would be trained at the full rate.
    """
    wrapped: Any = getattr(model, "module", model)  # by DDP
    config = wrapped.config
    depth = config.num_hidden_layers
    scales = {}
    for name, parameter in model.named_parameters():
        in_decoder = DECODER_LAYER.search(name)
        in_encoder = LAYER.search(name)
        if in_decoder:
            layer = config.decoder_layer_indices[int(in_decoder[1])]
        elif in_encoder:
            layer = int(in_encoder[1])
        elif EMBEDDINGS.search(name):
            layer = -1
        else:
            layer = depth
        scales[id(parameter)] = decay ** (depth - layer)
    if len(set(scales.values())) < 3:
        raise ValueError(
            f"training.layerwise_decay is {decay}, and {type(model).__name__} has unknown names of "
            "layers. Use training.layerwise_decay=1."
        )
    return scales
