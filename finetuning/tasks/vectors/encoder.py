"""Sentences as vectors, by layer.

Legend: `B` rows of a batch, `T` positions, `H` hidden size, `N` texts, `S` texts of the source, `D` of the target.
"""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from rich.progress import track

from crosslingual_zoo.modeling.layer_states import LayerStates
from crosslingual_zoo.modeling.pair_aligner import NO_LIMIT
from crosslingual_zoo.modeling.word_tokens import InputFormat
from crosslingual_zoo.zoo_core.processes import from_all

BYTES_OF_VECTORS = 2 * 2**30  # memory for vectors; if they need more, the layers are computed in several passes
TEXTS_AT_ONCE = 4096  # of each, a tokenizer returns kilobytes

ByLayer = dict[int, torch.Tensor]


class Tokens(NamedTuple):
    """The tokens of N texts, one text after another: 4 bytes a token."""

    ids: np.ndarray
    """int32."""

    lengths: np.ndarray
    """(N,) int32, tokens of each text."""


class SentenceEncoder:
    """Makes vectors of texts from their states at any layer of an encoder.

    `tokens(texts)` gives the `Tokens` of N texts, and `vectors(tokens, layers)` by layer, from 0, the embeddings, their
    vectors (N, H), in float32. `mean_with_special_tokens` is how XTREME's scripts compare sentences (Hu et al., ICML
    2020), and the default leaves special tokens out.

    Args:
        model: encoder of transformers, in evaluation mode. It is used on its device, in its precision.
        tokenizer: the encoder's.
        batch_size: texts per forward pass.
        max_length: tokens of a text, with special tokens; longer texts are cut. Default: the positions of the model.
        pooling: `mean` of the states of the text's tokens; `mean_with_special_tokens`; `cls`, the first token's state.

    Raises:
        ValueError: `max_length` leaves no room for a token; `pooling` is `cls`, and the tokenizer puts no token before
            a text. From `vectors`: states are not finite.

    Example:
        >>> sentences = SentenceEncoder(encoder, tokenizer, batch_size=8)
        >>> tokens = sentences.tokens(["Das Haus ist klein.", "The house is small."])
        >>> tuple(sentences.vectors(tokens, layers=[1])[1].shape) == (2, encoder.config.hidden_size)
        True
    """

    def __init__(
        self, model: Any, tokenizer: Any, batch_size: int, max_length: int | None = None, pooling: str = "mean"
    ):
        self.states = LayerStates(model)
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.pooling = pooling
        self.format = InputFormat.of(tokenizer)
        # a tokenizer without a limit has 1e30, which is no valid length of a tensor
        self.max_length = max_length or self.states.longest_input or min(tokenizer.model_max_length, NO_LIMIT)
        self.room = self.max_length - self.format.size
        if self.room < 1:
            raise ValueError(f"max_length is {self.max_length}, and {self.format.size} tokens are special. Raise it.")
        if pooling == "cls" and not self.format.before:
            raise ValueError(f"pooling is cls, and {type(tokenizer).__name__} has no token before a text. Use mean.")

    def tokens(self, texts: list[str]) -> Tokens:
        """Returns all tokens of each text, without special tokens, also without those that are spelled in a text."""
        special = list(set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id})
        ids = [np.empty(0, dtype=np.int32)]
        lengths = [np.empty(0, dtype=np.int32)]
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            # not verbose: this class itself cuts and counts texts that are too long for the model
            encoded = self.tokenizer(texts[start : start + TEXTS_AT_ONCE], add_special_tokens=False, verbose=False)
            rows = encoded["input_ids"]
            tokens = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32)
            rows_of_tokens = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
            is_text = ~np.isin(tokens, special)
            ids.append(tokens[is_text])
            lengths.append(np.bincount(rows_of_tokens[is_text], minlength=len(rows)).astype(np.int32))
        return Tokens(np.concatenate(ids), np.concatenate(lengths))

    def vectors(self, tokens: Tokens, layers: list[int]) -> ByLayer:
        """Returns by layer, from 0, the embeddings, vectors (N, H) on the CPU, in float32; a mean of no states is zero.

        Raises ValueError if states are not finite.
        """
        return self._vectors_of(self._longest_first(tokens), tokens, layers)

    def _longest_first(self, tokens: Tokens) -> torch.Tensor:
        """Returns the numbers (N,) of the texts by falling length, so that a lack of memory shows at once."""
        lengths_N = torch.from_numpy(tokens.lengths).clamp(max=self.room)
        return lengths_N.argsort(descending=True, stable=True)

    @torch.no_grad()
    def _vectors_of(self, numbers_N: torch.Tensor, tokens: Tokens, layers: list[int]) -> ByLayer:
        """As `vectors`, but reads only the texts of these numbers, in this order; the vectors of others are zero."""
        lengths_N = torch.from_numpy(tokens.lengths).clamp(max=self.room)
        begins_N = torch.from_numpy(np.cumsum(tokens.lengths, dtype=np.int64) - tokens.lengths)
        device = self.states.device
        vectors: ByLayer = {}
        is_shown = PartialState().is_main_process
        batches = numbers_N.split(self.batch_size)
        for numbers_B in track(batches, description="Reading sentences", transient=True, disable=not is_shown):
            lengths_B = lengths_N[numbers_B]
            spans = zip(begins_N[numbers_B].tolist(), lengths_B.tolist(), strict=True)
            rows = [tokens.ids[begin : begin + length].tolist() for begin, length in spans]
            inputs = self.format.inputs(rows, self.tokenizer.pad_token_id or 0, device)
            counts_BT1 = self._counted(inputs["attention_mask"], lengths_B.to(device))[..., None]
            for layer, states_BTH in self.states(inputs, layers).items():
                sums_BH = states_BTH.float().masked_fill(~counts_BT1, 0.0).sum(1)
                if layer not in vectors:
                    vectors[layer] = torch.zeros(len(lengths_N), sums_BH.shape[1])
                vectors[layer][numbers_B] = (sums_BH / counts_BT1.sum(1).clamp(min=1)).cpu()
        for layer, vectors_NH in vectors.items():
            if not vectors_NH.isfinite().all():
                raise ValueError(f"The states of layer {layer} are not finite. Try precision=fp32.")
        return vectors

    def _counted(self, attention_mask_BT: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        """(B, T) whether the state of a token counts."""
        positions_T = torch.arange(attention_mask_BT.shape[1], device=attention_mask_BT.device)
        if self.pooling == "cls":
            return (positions_T == 0).expand_as(attention_mask_BT)
        if self.pooling == "mean_with_special_tokens":
            return attention_mask_BT.bool()
        in_text_T = positions_T - len(self.format.before)
        return (in_text_T >= 0) & (in_text_T < lengths_B[:, None])


def vectors_by_layer(
    encoder: SentenceEncoder, texts: list[list[str]], layers: list[int]
) -> tuple[dict[str, Any], Iterator[tuple[int, torch.Tensor, torch.Tensor]]]:
    """How many texts of source and target are cut; and (layer, vectors (S, H), vectors (D, H)), a layer at a time.

    All processes call this with the same texts, divide them, and get all vectors.
    """
    sides = [encoder.tokens(side) for side in texts]
    cut = [int((tokens.lengths > encoder.room).sum()) for tokens in sides]
    size = 4 * sum(map(len, texts)) * encoder.states.model.config.hidden_size
    at_once = max(1, BYTES_OF_VECTORS // size)

    def by_layer() -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        for start in range(0, len(layers), at_once):
            group = layers[start : start + at_once]
            source, target = (_vectors_of_all(encoder, tokens, group) for tokens in sides)
            for layer in group:
                yield layer, source.pop(layer), target.pop(layer)

    return {"max_length": encoder.max_length, "cut": cut}, by_layer()


def _vectors_of_all(encoder: SentenceEncoder, tokens: Tokens, layers: list[int]) -> ByLayer:
    """The vectors of all texts, whose batches the processes divide: a batch is the same in any number of processes."""
    state = PartialState()
    if state.num_processes == 1:
        return encoder.vectors(tokens, layers)
    order_N = encoder._longest_first(tokens)
    processes_N = torch.arange(len(order_N)) // encoder.batch_size % state.num_processes
    numbers = [order_N[processes_N == process] for process in range(state.num_processes)]
    own_numbers = numbers[state.process_index]
    vectors: ByLayer = {}

    def read() -> None:
        if len(own_numbers):
            vectors.update(encoder._vectors_of(own_numbers, tokens, layers))

    def share(layer: int) -> torch.Tensor | None:
        return vectors[layer][own_numbers] if layer in vectors else None

    from_all(read)
    for layer in layers:
        shares = from_all(partial(share, layer))
        if layer not in vectors:
            vectors[layer] = torch.empty(len(order_N), shares[0].shape[1])
        for numbers_of_process, share_of_process in zip(numbers, shares, strict=True):
            if share_of_process is not None:
                vectors[layer][numbers_of_process] = share_of_process
    return vectors
