"""The search for translations in two pools against a plain product of the vectors: `python -m bench.mining`.

Ours is `mine`, which finds the nearest neighbors by cosine in both directions, exactly, and returns ratio margins. The
peer is what one would write by hand: unit vectors, one product with `torch.topk`, in one direction. If faiss is
installed, its exact index (IndexFlatIP) is a second peer. Vectors are random, and half of them have a translation. In
the second part they lie in a narrow cone, as those of many encoders do (mean cosine 0.997). Times are processor seconds
of one thread.
"""

import importlib.util
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from bench._common import interleaved, make_parser, median_ratio, seconds_of, show, write_results
from crosslingual_zoo.finetuning.tasks.vectors.search import mine

OURS, PEER, FAISS = "mine", "torch product, topk", "faiss IndexFlatIP"
HIDDEN = 768
NEIGHBORS = 4  # as `mine` has it
NOISE = 0.8  # of a translation's vector, next to 1 of its source
CONES = {"random": 0.0, "in a cone": 0.997}  # the mean cosine of two vectors


def make_pools(size: int, mean_cosine: float) -> list[torch.Tensor]:
    """Two pools of (size, H) vectors whose cosine is `mean_cosine` on average."""
    generator = torch.Generator().manual_seed(0)
    source_SH = torch.randn(size, HIDDEN, generator=generator)
    order_S = torch.randperm(size, generator=generator)
    target_SH = source_SH[order_S] + NOISE * torch.randn(size, HIDDEN, generator=generator)
    unrelated_S = order_S >= size // 2
    target_SH[unrelated_S] = torch.randn(int(unrelated_S.sum()), HIDDEN, generator=generator)
    direction_H = F.normalize(torch.randn(HIDDEN, generator=generator), dim=0)
    # a vector's squared length is about H, so the shift c has c^2 / (c^2 + H) = the mean cosine
    shift = (HIDDEN * mean_cosine / (1 - mean_cosine)) ** 0.5
    return [source_SH + shift * direction_H, target_SH + shift * direction_H]


def product(source_SH: torch.Tensor, target_SH: torch.Tensor) -> torch.Tensor:
    """The nearest targets of each source, by one product in float32."""
    cosines_SS = F.normalize(source_SH, dim=1) @ F.normalize(target_SH, dim=1).T
    return cosines_SS.topk(NEIGHBORS, dim=1).indices


def search_faiss(source_SH: torch.Tensor, target_SH: torch.Tensor) -> Any:
    """The nearest targets of each source, by faiss."""
    import faiss

    index = faiss.IndexFlatIP(HIDDEN)
    index.add(F.normalize(target_SH, dim=1).numpy())
    return index.search(F.normalize(source_SH, dim=1).numpy(), NEIGHBORS)[1]


def compare(size: int, mean_cosine: float, rounds: int) -> list[dict[str, Any]]:
    """A row for each way: its median seconds, their range, and how many times as fast as the product it is."""
    pools = make_pools(size, mean_cosine)
    ways: dict[str, Callable[..., Any]] = {OURS: mine, PEER: product}
    if importlib.util.find_spec("faiss"):
        ways[FAISS] = search_faiss
    runs = {name: lambda _, search=search: seconds_of(lambda: search(*pools)) for name, search in ways.items()}
    seconds = interleaved(runs, rounds)
    rows = []
    for name in ways:
        row = {"way": name, "seconds": statistics.median(seconds[name])}
        row |= {"least": min(seconds[name]), "most": max(seconds[name])}
        row["times as fast as the product"] = median_ratio(seconds[PEER], seconds[name])
        rows.append(row)
    return rows


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = make_parser(__doc__, "mining")
    parser.add_argument("--vectors", type=int, default=10_000, help="vectors of each pool (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default %(default)s)")
    flags = parser.parse_args(argv)
    torch.set_num_threads(1)
    parts = {}
    for name, mean_cosine in CONES.items():
        parts[name] = compare(flags.vectors, mean_cosine, flags.rounds)
        show(f"{flags.vectors:,} vectors of {HIDDEN} dimensions in each pool, {name}", parts[name])
    write_results(flags, {"parts": parts})


if __name__ == "__main__":
    main()
