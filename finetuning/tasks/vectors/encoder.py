"""Sentences as vectors, by layer.

Legend: `B` rows of a batch, `T` positions, `H` hidden size, `N` texts, `S` texts of the source, `D` of the target.
"""

from collections.abc import Iterator
from typing import Any

import torch
from accelerate import PartialState
from rich.progress import track

from crosslingual_zoo.modeling.layer_states import LayerStates
from crosslingual_zoo.modeling.pair_aligner import NO_LIMIT
from crosslingual_zoo.modeling.word_tokens import InputFormat

BYTES_OF_VECTORS = 2 * 2**30  # memory for vectors; if they need more, the layers are computed in several passes


class SentenceEncoder:
    """A vector of a text, made of its states at any layer of an encoder.

    `max_length` counts special tokens, too; longer texts are cut. Default: the positions of the model. `pooling` is
    `mean` of the states of the text's tokens, `mean_with_special_tokens`, or `cls`, the first token's state.
    """

    def __init__(
        self, model: Any, tokenizer: Any, batch_size: int, max_length: int | None = None, pooling: str = "mean"
    ):
        self.states = LayerStates(model)
        self.tokenizer, self.batch_size, self.pooling = tokenizer, batch_size, pooling
        self.format = InputFormat.of(tokenizer)
        # a tokenizer without a limit has 1e30, which is no valid length of a tensor
        self.max_length = max_length or self.states.longest_input or min(tokenizer.model_max_length, NO_LIMIT)
        self.room = self.max_length - self.format.size
        if self.room < 1:
            raise ValueError(f"max_length is {self.max_length}, and {self.format.size} tokens are special. Raise it.")
        if pooling == "cls" and not self.format.before:
            raise ValueError(f"pooling is cls, and {type(tokenizer).__name__} has no token before a text. Use mean.")

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Returns all tokens of each text, without special tokens, also without those that are spelled in a text."""
        special = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        # not verbose: this class itself cuts and counts texts that are too long for the model
        found = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [[token for token in ids if token not in special] for ids in found]

    @torch.inference_mode()
    def vectors(self, texts: list[list[int]], layers: list[int]) -> dict[int, torch.Tensor]:
        """(N, H) vectors on the CPU, in float32, of texts given as tokens, by layer; a mean of no states is zero."""
        lengths_N = torch.tensor([min(len(tokens), self.room) for tokens in texts])
        device, before = self.states.device, len(self.format.before)
        found: dict[int, torch.Tensor] = {}
        # the longest first: a lack of memory shows at once
        batches = lengths_N.argsort(descending=True, stable=True).split(self.batch_size)
        is_shown = PartialState().is_main_process
        for numbers_B in track(batches, description="Reading sentences", transient=True, disable=not is_shown):
            rows = [texts[number][: self.room] for number in numbers_B.tolist()]
            inputs = self.format.inputs(rows, self.tokenizer.pad_token_id or 0, device)
            counts_BT = inputs["attention_mask"].bool()
            if self.pooling == "cls":
                counts_BT = torch.zeros_like(counts_BT)
                counts_BT[:, 0] = True
            elif self.pooling == "mean":
                place_T = torch.arange(counts_BT.shape[1], device=device) - before
                counts_BT = (place_T >= 0) & (place_T < lengths_N[numbers_B, None].to(device))
            counts_BT1 = counts_BT[..., None]
            for layer, states_BTH in self.states(inputs, layers).items():
                sums_BH = states_BTH.float().masked_fill(~counts_BT1, 0.0).sum(1)
                if layer not in found:
                    found[layer] = torch.empty(len(texts), sums_BH.shape[1])
                found[layer][numbers_B] = (sums_BH / counts_BT1.sum(1).clamp(min=1)).cpu()
        for layer, vectors_NH in found.items():
            if not vectors_NH.isfinite().all():
                raise ValueError(f"The states of layer {layer} are not finite. Try precision=fp32.")
        return found


def vectors_by_layer(
    encoder: SentenceEncoder, texts: list[list[str]], layers: list[int]
) -> tuple[dict[str, Any], Iterator[tuple[int, torch.Tensor, torch.Tensor]]]:
    """How many texts of source and target are cut; and (layer, vectors (S, H), vectors (D, H)), a layer at a time."""
    sides = [encoder.tokens(side) for side in texts]
    cut = [sum(len(tokens) > encoder.room for tokens in side) for side in sides]
    size = 4 * sum(map(len, sides)) * encoder.states.model.config.hidden_size
    at_once = max(1, BYTES_OF_VECTORS // size)

    def by_layer() -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        for start in range(0, len(layers), at_once):
            group = layers[start : start + at_once]
            source, target = (encoder.vectors(side, group) for side in sides)
            for layer in group:
                yield layer, source.pop(layer), target.pop(layer)

    return {"max_length": encoder.max_length, "cut": cut}, by_layer()
