"""The exact search for nearest neighbors between two sets of vectors, by cosine, in both directions from one product.

Most pairs are told apart by a product of low precision, with a bound of its error; the few that are not are computed in
float64. What is found is therefore what float64 finds, rounded to float32, whatever the product.

With unit vectors x and y, and the means n of all x and m of all y,

    x . y = (x - n) . (y - m) + (x . m - n . m) + (n . y - n . m) + n . m

The last term is the same for all pairs and is left out; the two before it are put behind the vectors as further
components, each as the sum of two numbers. So the product gives what rankings need, and its rounding errors go with the
spread of the vectors: cosines of sentences lie close together, and a bound that goes with their size would be useless.

Legend: `H` hidden size, `S` source vectors, `D` target vectors, `N` vectors of one side, `Q` of a block, `G` segments
of the other side's block with `P` vectors each, `K` neighbors, `C` candidates, `F` pairs in a flat list.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional as F

Products = Literal["fp32", "bf16"]

ROWS_AT_ONCE = 1024  # of a block of similarities, and its columns: 4 MiB of float32, which stay in a cache
SEGMENT = 128  # of these, a row's highest is looked at first
CANDIDATES = 28  # beside the neighbors; a vector that has more is searched with more precision
PAIRS_AT_ONCE = 2**8  # computed in float64: they stay in a cache
POOLED = 2**22  # candidates that wait to be sorted in
WORTH_BF16 = 2**24  # pairs

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Sums of H products in float32, in whatever order, are off by H units in the last place; accelerators round less well.
SUM = 4 * 2.0**-24
# The share by which a product is off that is rounded to 8 bits; float32's own rounding is one of the sum's.
OUTPUT = {"fp32": 0.0, "bf16": 2.0**-8 * 1.01}


def nearest(
    source_SH: torch.Tensor, target_DH: torch.Tensor, device: torch.device | str = "cpu", size: int = ROWS_AT_ONCE
) -> tuple[torch.Tensor, torch.Tensor]:
    """(S,) the nearest target of each source, and (D,) the nearest source of each target, by cosine.

    Exact, and of equally near ones the first, as `nearest_neighbors` finds them.
    """
    (_, forward_S1), (_, backward_D1) = nearest_neighbors(source_SH, target_DH, 1, device, size)
    return forward_S1[:, 0], backward_D1[:, 0]


@torch.no_grad()
def nearest_neighbors(
    source_SH: torch.Tensor,
    target_DH: torch.Tensor,
    count: int,
    device: torch.device | str = "cpu",
    size: int = ROWS_AT_ONCE,
    products: Products | None = None,
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """The `count` nearest targets of each source, and the nearest sources of each target, by cosine, the nearest first.

    Of either side their cosines (S, K) and numbers (S, K), and (D, L) of both; K is `count`, or D where there are no
    more targets, and L likewise. Of equally near ones the first are taken.

    The search is exact: cosines are those of float64, rounded to float32. One product of a block of `size` sources and
    as many targets serves both directions, and memory does not grow with S x D. `products` says in which precision
    candidates are looked for; nothing but time depends on it. Default: bf16 where the processor multiplies it.
    """
    sides = [side.to(device) for side in (source_SH, target_DH)]
    if products is None:
        is_worth_it = math.prod(map(len, sides)) > WORTH_BF16
        products = "bf16" if is_worth_it and _multiplies_bf16(torch.device(device)) else "fp32"
    found = [_found(side, other, count) for side, other in (sides, sides[::-1])]
    if all(map(len, sides)):
        numbers = [torch.arange(len(side), device=device) for side in sides]
        _search(*sides, count, size, products, found, numbers)
    (near_SK, forward_SK), (near_DL, backward_DL) = ((values.cpu(), places.cpu()) for values, places in found)
    return (near_SK, forward_SK), (near_DL, backward_DL)


def _found(side_NH: torch.Tensor, other: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (len(side_NH), min(count, len(other)))
    values_NK = torch.full(shape, -math.inf, device=side_NH.device)
    return values_NK, torch.zeros_like(values_NK, dtype=torch.long)


def _multiplies_bf16(device: torch.device) -> bool:
    # on a GPU the bound was not measured against what its libraries do
    return device.type == "cpu" and torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported()


def _search(
    source_SH: torch.Tensor,
    target_DH: torch.Tensor,
    count: int,
    size: int,
    products: Products,
    found: list[tuple[torch.Tensor, torch.Tensor]],
    numbers: list[torch.Tensor | None],
) -> None:
    """Fills `found` of both sides, or of the sources alone where `numbers` of the targets is None.

    `numbers`: which rows of `found` the vectors of a side are.
    """
    prepared = _prepare(source_SH, target_DH, products, size)
    sources, targets = prepared
    rows, columns = (
        None if wanted is None else _Candidates(own, other, count, products)
        for own, other, wanted in zip(prepared, prepared[::-1], numbers, strict=True)
    )
    for number, source in enumerate(sources.blocks):
        begin = number * size
        for other_number, target in enumerate(targets.blocks):
            product = F.linear(source, target)
            product = product.to_dense() if product.is_mkldnn else product
            offset = other_number * size
            rows.take(begin, *_segments(product, 1), offset)
            if columns is not None:
                columns.take(offset, *_segments(product, 0), begin)
            if _is_power_of_two(other_number + 1):
                rows.sort_in(begin, begin + size)
        rows.sort_in(begin, begin + size)
        if columns is not None and _is_power_of_two(number + 1):
            columns.sort_in()
    for side, candidates, own, other in ((0, rows, source_SH, target_DH), (1, columns, target_DH, source_SH)):
        if candidates is None:
            continue
        candidates.sort_in()
        (values_NK, places_NK), into = found[side], numbers[side]
        is_open_N = candidates.floor_N.isposinf()
        values_NK[into], places_NK[into] = _rescored(candidates, own, other, values_NK.shape[1])
        if not is_open_N.any():
            continue
        if products == "bf16":
            own_found = [(values_NK, places_NK), None]
            _search(own[is_open_N], other, count, size, "fp32", own_found, [into[is_open_N], None])
        else:
            values_NK[into[is_open_N]], places_NK[into[is_open_N]] = _in_float64(
                own[is_open_N], other, values_NK.shape[1], size
            )


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _segments(product: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A block of products as (Q, G, P), by segments of `dim`, and the highest (Q, G) of each; Q is the other dimension.

    A block that does not divide is a single segment.
    """
    length = product.shape[dim]
    shape = (-1, SEGMENT if length % SEGMENT == 0 else length)
    highest = product.unflatten(dim, shape).amax(dim + 1)  # of the view that is returned it would take 30 times as long
    return product.movedim(dim, 1).unflatten(1, shape), highest.movedim(dim, 1)


@dataclass
class _Prepared:
    """Vectors of a side as they are multiplied, and what is known of their errors, (N,) in float64."""

    blocks: list[torch.Tensor]  # (Q, H + 4) each
    norm_N: torch.Tensor  # of the first H components
    error_N: torch.Tensor  # of these, the distance to the true ones
    rest_N: torch.Tensor  # the size of what stands behind them
    rest_error_N: torch.Tensor


def _unit(vectors_NH: torch.Tensor) -> torch.Tensor:
    return F.normalize(vectors_NH.double(), dim=-1)


def _prepare(
    source_SH: torch.Tensor, target_DH: torch.Tensor, products: Products, size: int
) -> tuple[_Prepared, _Prepared]:
    """Both sides, centered; see the head of this file."""
    sides = (source_SH, target_DH)
    means = [sum(_unit(block).sum(0) for block in side.split(size)) / len(side) for side in sides]
    dtype, both = DTYPES[products], means[0] @ means[1]
    prepared = []
    for number, side in enumerate(sides):
        found = _Prepared([], *([] for _ in range(4)))
        for block in side.split(size):
            unit_QH = _unit(block)
            centered_QH, rest_Q = unit_QH - means[number], unit_QH @ means[1 - number] - both
            own_QH, high_Q = centered_QH.to(dtype), rest_Q.to(dtype)
            low_Q = (rest_Q - high_Q).to(dtype)
            ones_Q = torch.ones_like(high_Q)
            behind = [(high_Q, low_Q), (ones_Q, ones_Q)]
            multiplied = torch.cat((own_QH, *(part[:, None] for pair in behind[:: 1 - 2 * number] for part in pair)), 1)
            # oneDNN's product of float32: on AMD's processors twice as fast as that of MKL, on Intel's as fast
            is_one_dnn = dtype == torch.float32 and block.device.type == "cpu" and torch.backends.mkldnn.is_available()
            found.blocks.append(multiplied.to_mkldnn() if is_one_dnn else multiplied)
            found.norm_N.append(own_QH.double().norm(dim=1))
            found.error_N.append((centered_QH - own_QH).norm(dim=1))
            found.rest_N.append(rest_Q.abs())
            found.rest_error_N.append((rest_Q - high_Q - low_Q.double()).abs())
        facts = (torch.cat(found_N) for found_N in (found.norm_N, found.error_N, found.rest_N, found.rest_error_N))
        prepared.append(_Prepared(found.blocks, *facts))
    return tuple(prepared)


class _Candidates:
    """Of each vector of a side, those of the other side that may be among its nearest, as far as has been looked.

    A product p is off by at most b. With a the k-th highest product so far, one of the k nearest has a product of at
    least a - 2 b: that is the floor, and what is below it is forgotten. Where more are left than there is room for,
    the floor is raised to infinity, and the vector is left to a search with more precision.
    """

    def __init__(self, own: _Prepared, other: _Prepared, count: int, products: Products):
        norm, error, rest, rest_error = (
            facts.max() for facts in (other.norm_N, other.error_N, other.rest_N, other.rest_error_N)
        )
        bound_N = own.error_N * norm + (own.norm_N + own.error_N) * error + own.rest_error_N + rest_error
        length = own.blocks[0].shape[1]
        bound_N += length * SUM * (own.norm_N * norm + own.rest_N + rest)
        self.count, self.output = min(count, len(other.norm_N)), OUTPUT[products]
        # float32's rounding of the floors themselves
        self.margin_N = (2 * bound_N * (1 + 1e-6) + 1e-7).float()
        shape = (len(bound_N), count + CANDIDATES)
        self.values_NC = torch.full(shape, -math.inf, device=bound_N.device)
        self.places_NC = torch.full(shape, -1, device=bound_N.device)
        self.floor_N = torch.full_like(self.margin_N, -math.inf)
        self.pool: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.pooled = 0

    def take(self, begin: int, products_QGP: torch.Tensor, highest_QG: torch.Tensor, offset: int) -> None:
        """What may be near, among the products of the Q vectors from number `begin` on with others from `offset` on."""
        size, per_segment = len(products_QGP), products_QGP.shape[2]
        own = slice(begin, begin + size)
        if bool(self.floor_N[begin].isneginf()) and products_QGP[0].numel() >= self.count:
            kth_Q = products_QGP.flatten(1).float().topk(self.count, dim=1).values[:, -1]
            self.floor_N[own] = torch.maximum(self.floor_N[own], self._floor(kth_Q, self.margin_N[own]))
        floor_Q = self.floor_N[own]
        row_R, segment_R = (highest_QG >= floor_Q[:, None]).nonzero(as_tuple=True)
        near_RP = products_QGP[row_R, segment_R]
        where_F, place_F = (near_RP >= floor_Q[row_R, None]).nonzero(as_tuple=True)
        places_F = segment_R[where_F] * per_segment + place_F + offset
        self.pool.append((row_R[where_F] + begin, near_RP[where_F, place_F].float(), places_F))
        self.pooled += len(places_F)
        if self.pooled > POOLED:
            self.sort_in()

    def _floor(self, kth_N: torch.Tensor, margin_N: torch.Tensor) -> torch.Tensor:
        """Below which no product of one of the nearest is, by the k-th highest product."""
        lowest_N = kth_N - self.output * kth_N.abs() - margin_N
        lowest_N = lowest_N - self.output * lowest_N.abs()
        return lowest_N.where(kth_N.isfinite(), -math.inf)  # where there are no k yet

    def sort_in(self, begin: int = 0, end: int | None = None) -> None:
        """Sorts in what was taken, all of which is of the vectors from `begin` to `end`."""
        if not self.pool:
            return
        own = slice(begin, end)
        old = self.listed(own).nonzero(as_tuple=True)
        old_parts = (old[0] + begin, self.values_NC[own][old], self.places_NC[own][old])
        parts = (torch.cat(part) for part in zip(old_parts, *self.pool, strict=True))
        self.pool, self.pooled = [], 0
        values_NC, places_NC = self.values_NC[own], self.places_NC[own]
        _highest(*parts, begin, values_NC, places_NC)
        floor_N = self.floor_N[own]
        raised_N = torch.maximum(floor_N, self._floor(values_NC[:, self.count - 1], self.margin_N[own]))
        is_full_N = self.listed(own)[:, -1] & (values_NC[:, -1] >= raised_N)
        self.floor_N[own] = torch.where(is_full_N, math.inf, raised_N)

    def listed(self, own: slice = slice(None)) -> torch.Tensor:
        """(N, C) which places are taken by what is not below the floor."""
        values_NC = self.values_NC[own]
        return (values_NC >= self.floor_N[own, None]) & ~values_NC.isneginf()


def _highest(rows_F, values_F, places_F, begin: int, values_NC: torch.Tensor, places_NC: torch.Tensor) -> None:
    """Fills the (N, C) tensors of the rows from `begin` on with the C highest of each, of equal ones the first."""
    values_F, order_F = values_F.sort(descending=True, stable=True)
    rows_F, by_row_F = (rows_F[order_F] - begin).sort(stable=True)
    order_F = order_F[by_row_F]
    starts_N = torch.searchsorted(rows_F, torch.arange(len(values_NC), device=rows_F.device))
    rank_F = torch.arange(len(rows_F), device=rows_F.device) - starts_N[rows_F]
    is_kept_F = rank_F < values_NC.shape[1]
    values_NC.fill_(-math.inf)
    where = rows_F[is_kept_F], rank_F[is_kept_F]
    values_NC[where] = values_F[by_row_F[is_kept_F]]
    places_NC[where] = places_F[order_F[is_kept_F]]


def _rescored(
    candidates: _Candidates, own_NH: torch.Tensor, other_MH: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, K) cosines and numbers of the nearest, from the candidates; of no use where the floor is infinite."""
    beyond = len(other_MH)
    places_NC = candidates.places_NC.where(candidates.listed(), beyond).sort(1).values
    rows_F, column_F = (places_NC < beyond).nonzero(as_tuple=True)
    places_F = places_NC[rows_F, column_F]
    products_F = torch.cat(
        [
            (own_NH[rows_E].double() * other_MH[places_E].double()).sum(1)
            for rows_E, places_E in zip(rows_F.split(PAIRS_AT_ONCE), places_F.split(PAIRS_AT_ONCE), strict=True)
        ]
    )
    norm_N, norm_M = (torch.linalg.vector_norm(side, dim=1, dtype=torch.float64) for side in (own_NH, other_MH))
    values_F = (products_F / (norm_N[rows_F] * norm_M[places_F]).clamp(min=1e-24)).float()
    values_NK = torch.full((len(own_NH), count), -math.inf, device=own_NH.device)
    places_NK = torch.zeros_like(values_NK, dtype=torch.long)
    _highest(rows_F, values_F, places_F, 0, values_NK, places_NK)
    return values_NK, places_NK


def _in_float64(
    own_NH: torch.Tensor, other_MH: torch.Tensor, count: int, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, K) cosines and numbers of the nearest, of vectors that have too many that are almost equally near."""
    found = []
    for own_QH in map(_unit, own_NH.split(size)):
        values_QK = own_QH.new_empty(len(own_QH), 0).float()
        places_QK = values_QK.long()
        for number, other_KH in enumerate(other_MH.split(size)):
            cosines = (own_QH @ _unit(other_KH).T).float()
            places = torch.arange(cosines.shape[1], device=own_NH.device).expand_as(cosines) + number * size
            # of equal ones the first stay: their block came before
            values, order = torch.cat((values_QK, cosines), 1).sort(dim=1, descending=True, stable=True)
            values_QK, places_QK = values[:, :count], torch.cat((places_QK, places), 1).gather(1, order[:, :count])
        found.append((values_QK, places_QK))
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
