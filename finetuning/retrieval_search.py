"""Sentences as vectors, by layer, and the exact search for nearest neighbours between two sets of them.

Legend: `B` rows of a batch, `T` positions, `H` hidden size, `N` texts, `S` texts of the source, `D` of the target.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from typing import Any

import torch
from rich.progress import track
from torch.nn import functional as F

from modeling.word_alignment import NO_LIMIT, LayerStates
from modeling.word_pieces import InputFormat

ROWS_AT_ONCE = 1024  # of a block of similarities, and its columns: 4 MiB of float32, which stay in a cache
BYTES_OF_VECTORS = 2 * 2**30  # that are held at once; of more, the layers are read in several passes


class SentenceEncoder:
    """The mean of the states of a text's pieces as its vector, at any layer of an encoder.

    Args:
        model: a model of this zoo, base or with a head, or any encoder of the library.
        tokenizer: its tokenizer, fast or slow.
        batch_size: texts in a forward pass; texts of like length are together, the longest first.
        max_length: positions of a text, special tokens included; what is longer is cut. Default: as the model has.
        special_tokens: whether the states of special tokens count in the mean.

    Raises `ValueError` for what is no encoder, and for a length that leaves no room for a piece.
    """

    def __init__(
        self, model: Any, tokenizer: Any, batch_size: int, max_length: int | None = None, special_tokens: bool = False
    ):
        self.states = LayerStates(model)
        self.tokenizer, self.batch_size, self.special_tokens = tokenizer, batch_size, special_tokens
        self.format = InputFormat.of(tokenizer, texts=1)
        self.gives_types = self.states.has_token_types and self.format.has_types
        # a tokenizer without a limit of its own says 1e30, which is no length of a tensor
        self.max_length = max_length or self.states.positions or min(tokenizer.model_max_length, NO_LIMIT)
        self.room = self.max_length - self.format.size
        if self.room < 1:
            raise ValueError(
                f"max_length is {self.max_length}, and {self.format.size} of it are special tokens. There is no room "
                f"for a piece of text. Set max_length to more than {self.format.size}."
            )

    def pieces(self, texts: list[str]) -> list[list[int]]:
        """The pieces of each text, whole, without special tokens: those that a text itself spells are dropped too."""
        special = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        # `verbose`: texts that are too long for the model are cut and counted here
        found = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [[piece for piece in ids if piece not in special] for ids in found]

    def is_cut(self, pieces: list[int]) -> bool:
        """Whether a text of these pieces is longer than `max_length`."""
        return len(pieces) > self.room

    @torch.inference_mode()
    def vectors(self, texts: list[list[int]], layers: Iterable[int]) -> dict[int, torch.Tensor]:
        """(N, H) vectors on the CPU, in float32, of texts given as their pieces, by layer; zero for one without any.

        Raises `ValueError` for states that are no numbers.
        """
        layers = list(layers)
        lengths_N = torch.tensor([min(len(pieces), self.room) for pieces in texts])
        begins_N = torch.tensor(list(accumulate(map(len, texts), initial=0))[:-1])
        ids_F = torch.tensor(list(chain.from_iterable(texts)), dtype=torch.long)
        table = self.format.table(ids_F, self.tokenizer.pad_token_id or 0).to(self.states.device)
        before = len(self.format.special[0])
        found: dict[int, torch.Tensor] = {}
        # the longest first: what does not fit into memory fails at once
        batches = lengths_N.argsort(descending=True, stable=True).split(self.batch_size)
        for numbers_B in track(batches, description="Reading sentences", transient=True):
            lengths_B1, begins_B1 = (of_N[numbers_B, None].to(table.device) for of_N in (lengths_N, begins_N))
            longest = int(lengths_N[numbers_B].max())
            inputs = self.format.inputs(table, begins_B1, lengths_B1, longest, self.gives_types)
            counts_BT = inputs["attention_mask"].bool()
            if not self.special_tokens:
                place_T = torch.arange(counts_BT.shape[1], device=table.device) - before
                counts_BT = (place_T >= 0) & (place_T < lengths_B1)
            counts_BT1 = counts_BT[..., None]
            for layer, states_BTH in self.states(inputs, layers).items():
                sums_BH = states_BTH.float().masked_fill(~counts_BT1, 0.0).sum(1)
                if layer not in found:
                    found[layer] = torch.empty(len(texts), sums_BH.shape[1])
                found[layer][numbers_B] = (sums_BH / counts_BT1.sum(1).clamp(min=1)).cpu()
        for layer, vectors_NH in found.items():
            if not vectors_NH.isfinite().all():
                raise ValueError(
                    f"The states of layer {layer} are not finite. Nothing can be compared by them. Try "
                    "precision=fp32; if that does not help, the model's weights are damaged."
                )
        return found


def vectors_by_layer(
    encoder: SentenceEncoder, sides: tuple[list[list[int]], list[list[int]]], layers: list[int]
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """(layer, source vectors (S, H), target vectors (D, H)), one layer after the other.

    As many layers come from one pass over the texts as BYTES_OF_VECTORS hold.
    """
    size = 4 * sum(map(len, sides)) * encoder.states.model.config.hidden_size
    at_once = max(1, BYTES_OF_VECTORS // size)
    for start in range(0, len(layers), at_once):
        group = layers[start : start + at_once]
        source, target = (encoder.vectors(side, group) for side in sides)
        for layer in group:
            yield layer, source.pop(layer), target.pop(layer)


def nearest(
    source_SH: torch.Tensor, target_DH: torch.Tensor, device: torch.device | str = "cpu", size: int = ROWS_AT_ONCE
) -> tuple[torch.Tensor, torch.Tensor]:
    """(S,) the nearest target of each source, and (D,) the nearest source of each target, by cosine.

    Exact, and of equally near ones the first, as `nearest_neighbors` finds them.
    """
    (_, forward_S1), (_, backward_D1) = nearest_neighbors(source_SH, target_DH, 1, device, size)
    return forward_S1[:, 0], backward_D1[:, 0]


def nearest_neighbors(
    source_SH: torch.Tensor,
    target_DH: torch.Tensor,
    count: int,
    device: torch.device | str = "cpu",
    size: int = ROWS_AT_ONCE,
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """The `count` nearest targets of each source, and the nearest sources of each target, by cosine, the nearest first.

    Of either side their cosines (S, K) and numbers (S, K), and (D, L) of both; K is `count`, or D where there are no
    more targets, and L likewise.

    The search is exact. One product of a block of `size` sources and as many targets serves both directions: what is
    kept of it is the best so far of each row and column, so that memory does not grow with S x D. Of equally near ones
    the first are taken, in their order, as a stable sort of the whole product would have them.
    """
    found = [
        (
            torch.full((len(side), min(count, len(other))), -math.inf, device=device),
            torch.zeros((len(side), min(count, len(other))), dtype=torch.long, device=device),
        )
        for side, other in ((source_SH, target_DH), (target_DH, source_SH))
    ]

    def keep(side: int, begin: int, cosines_QK: torch.Tensor, offset: int) -> None:
        """Takes what is nearer among K candidates, from number `offset` on, to the Q of a side from `begin` on."""
        best_QN, where_QN = (of[begin : begin + size] for of in found[side])
        # most blocks bring nothing nearer, and to sort takes as long as the product; of equal ones the first stay,
        # whose block came before
        is_nearer_Q = cosines_QK.amax(1) > best_QN[:, -1]
        values_RN, places_RN = _first_highest(cosines_QK[is_nearer_Q].contiguous(), best_QN.shape[1])
        values = torch.cat((best_QN[is_nearer_Q], values_RN), 1)
        places = torch.cat((where_QN[is_nearer_Q], places_RN + offset), 1)
        values, order = values.sort(dim=1, descending=True, stable=True)
        kept = order[:, : best_QN.shape[1]]
        best_QN[is_nearer_Q] = values[:, : kept.shape[1]]
        where_QN[is_nearer_Q] = places.gather(1, kept)

    for s in range(0, len(source_SH), size):
        source_QH = F.normalize(source_SH[s : s + size].to(device), dim=-1)
        for d in range(0, len(target_DH), size):
            target_KH = F.normalize(target_DH[d : d + size].to(device), dim=-1)
            cosines_QK = source_QH @ target_KH.T
            keep(0, s, cosines_QK, d)
            keep(1, d, cosines_QK.T, s)
    (near_SK, forward_SK), (near_DL, backward_DL) = ((values.cpu(), places.cpu()) for values, places in found)
    return (near_SK, forward_SK), (near_DL, backward_DL)


def _first_highest(values_RK: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` highest of each row, or all of fewer, and their places; of equal ones the first, in their order."""
    count = min(count, values_RK.shape[1])
    # one more than is wanted: it tells whether the last one has an equal
    highest, places = values_RK.topk(min(count + 1, values_RK.shape[1]), dim=1)
    tied_R = (highest[:, 1:] == highest[:, :-1]).any(1)
    if tied_R.any():  # topk says nothing of the order of equal ones
        places[tied_R] = values_RK[tied_R].sort(dim=1, descending=True, stable=True).indices[:, : places.shape[1]]
    return highest[:, :count], places[:, :count]
