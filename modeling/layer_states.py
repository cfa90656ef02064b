# SPDX-License-Identifier: Apache-2.0
"""The states of chosen layers of any encoder.

Legend: `B` rows, `T` positions, `H` hidden size.
"""

import inspect
from collections.abc import Collection
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .configuration_encoder import longest_input


def default_layer(num_layers: int) -> int:
    """The layer to compare where nothing is known of a model: three fifths of the way up, 7 of 12 and 14 of 24."""
    return round(0.6 * num_layers)


def check_finite(model: nn.Module, name: str, reads_vocabulary: bool = True) -> None:
    """Raises `ValueError` for a weight with NaN or infinity: attention over few tokens may hide it in finite states.

    reads_vocabulary: whether the embeddings of tokens count. They are most of a small encoder's memory, which is read
    when a weight is looked at. A damaged one always shows in the states of its token, which the aligner checks.
    """
    unread = None
    if not reads_vocabulary:
        unread = cast(PreTrainedModel, model).get_input_embeddings().weight
    for key, weight_X in model.named_parameters():
        is_quantized = weight_X.element_size() == 1
        if weight_X is unread or is_quantized or not weight_X.numel():
            continue
        if not is_finite(weight_X):
            raise ValueError(f"The weights of {name} are not finite ({key}). Use another checkpoint.")


def is_finite(values_X: Tensor) -> bool:
    """Whether no value is NaN or infinity; there must be one. Twenty times as fast as `isfinite` of each."""
    lowest, highest = values_X.aminmax()  # of NaN, both are NaN
    return bool(lowest.isfinite() and highest.isfinite())


class LayerStates:
    """The states of chosen layers of an encoder, from one forward pass.

    Models of this zoo without a backbone stop at the highest; others run all that is loaded (`load_whole` reads less).

    Raises `ValueError` for a model that gives no hidden states, and for one with a decoder, as far as its
    configuration, its attention (`is_causal`) or its inputs say that it has one.
    """

    def __init__(self, model: nn.Module):
        self.model = cast(PreTrainedModel, getattr(model, "base_model", model))
        config = getattr(self.model, "config", None)
        num_layers = getattr(config, "num_hidden_layers", None)
        if config is None or num_layers is None:
            raise ValueError(f"{type(model).__name__} has no config.num_hidden_layers: give an encoder, such as XLM-R.")
        self.num_layers: int = num_layers
        self.longest_input = longest_input(config)
        arguments = inspect.signature(self.model.forward).parameters
        is_causal = any(getattr(module, "is_causal", False) for module in self.model.modules())
        if is_causal or getattr(config, "is_decoder", False) or "decoder_input_ids" in arguments:
            raise ValueError(f"{type(model).__name__} has a decoder, whose states see no later token: give an encoder.")
        self.stops_itself = "num_layers" in arguments

    @property
    def device(self) -> torch.device:
        """Where the inputs go."""
        return next(self.model.parameters()).device

    def __call__(self, inputs: dict[str, Tensor], layers: Collection[int]) -> dict[int, Tensor]:
        """States (B, T, H) of each of `layers`; 0 is the embeddings."""
        highest = max(layers)
        options = {"num_layers": highest} if self.stops_itself else {}
        has_last_state = self.stops_itself or highest == self.num_layers
        needs_all = not has_last_state or set(layers) != {highest}
        outputs = self.model(**inputs, **options, output_hidden_states=needs_all, return_dict=True)
        states = dict(enumerate(getattr(outputs, "hidden_states", None) or ()))
        if has_last_state:
            states[highest] = getattr(outputs, "last_hidden_state", None)
        if any(states.get(layer) is None for layer in layers):
            raise ValueError(
                f"{type(self.model).__name__} returned no hidden states of layers {sorted(layers)}: its forward must "
                "take output_hidden_states=True."
            )
        return {layer: states[layer] for layer in layers}
