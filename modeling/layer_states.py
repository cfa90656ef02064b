# SPDX-License-Identifier: Apache-2.0
"""The states of chosen layers of any encoder.

Legend: `B` rows, `T` positions, `H` hidden size.
"""

import inspect
from collections.abc import Iterable

import torch

from .configuration_encoder import longest_input


def default_layer(num_layers: int) -> int:
    """The layer to compare where nothing is known of a model: three fifths of the way up, 7 of 12 and 14 of 24."""
    return round(0.6 * num_layers)


def check_finite(model, name: str) -> None:
    """Raises `ValueError` for a weight with NaN or infinity: attention over few tokens may hide it in finite states."""
    for key, weight_X in model.named_parameters():
        # NaN is both bounds; weights of one byte are quantized
        if weight_X.numel() and weight_X.element_size() > 1 and not all(of.isfinite() for of in weight_X.aminmax()):
            raise ValueError(f"The weights of {name} are not finite ({key}). Use another checkpoint.")


class LayerStates:
    """The states of chosen layers of an encoder, from one forward pass.

    Models of this zoo without a backbone stop at the highest; others run all that is loaded (`load_whole` reads less).

    Raises `ValueError` for a model that gives no hidden states, and for one with a decoder, as far as its
    configuration, its attention (`is_causal`) or its inputs say that it has one.
    """

    def __init__(self, model):
        self.model = getattr(model, "base_model", model)
        config = getattr(self.model, "config", None)
        self.num_layers, self.longest_input = getattr(config, "num_hidden_layers", None), longest_input(config)
        if self.num_layers is None:
            raise ValueError(f"{type(model).__name__} has no config.num_hidden_layers: give an encoder, such as XLM-R.")
        takes = inspect.signature(self.model.forward).parameters
        is_causal = any(getattr(module, "is_causal", False) for module in self.model.modules())
        if is_causal or getattr(config, "is_decoder", False) or "decoder_input_ids" in takes:
            raise ValueError(f"{type(model).__name__} has a decoder, whose states see no later token: give an encoder.")
        self.stops_itself = "num_layers" in takes

    @property
    def device(self) -> torch.device:
        """Where the inputs go."""
        return next(self.model.parameters()).device

    def __call__(self, inputs: dict[str, torch.Tensor], layers: Iterable[int]) -> dict[int, torch.Tensor]:
        """States (B, T, H) of each of `layers`; 0 is the embeddings."""
        highest = max(layers)
        stops = self.stops_itself or highest == self.num_layers
        options = {"num_layers": highest} if self.stops_itself else {}
        wants_all = not stops or set(layers) != {highest}
        outputs = self.model(**inputs, **options, output_hidden_states=wants_all, return_dict=True)
        states = dict(enumerate(getattr(outputs, "hidden_states", None) or ()))
        if stops:
            states[highest] = getattr(outputs, "last_hidden_state", None)
        if any(states.get(layer) is None for layer in layers):
            raise ValueError(
                f"{type(self.model).__name__} returned no hidden states of layers {sorted(layers)}: its forward must "
                "take output_hidden_states=True."
            )
        return {layer: states[layer] for layer in layers}
