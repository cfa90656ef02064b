"""The search of retrieval and mining against faiss: `python -m bench.search`.

The `--neighbors` nearest by cosine of 100,000 source and 50,000 target vectors, in both directions, as mining by the
ratio margin needs them. Ours makes one product for both; candidates come from a product of fp32 or of bf16, and what is
found is the same. The peer is faiss-cpu's flat index of inner products on normalized vectors, searched once in each
direction, as LASER's mining does; without faiss-cpu its row is left out. Both use the same number of threads, one after
the other of `--threads`. Vectors are made up: clusters around a common direction, with cosines as sentence vectors have
them; each target translates a source. Neighbors have to be the same, but where cosines differ by less than 1e-6.

Writes bench/results/search.json. Legend: `S` sources, `D` targets, `H` hidden size, `K` neighbors.
"""

import argparse
import importlib.util
import statistics
from typing import Any

from bench._common import check_sizes, interleaved, make_parser, median_ratio, show, write_results
from zoo_core.recipes import user_errors

NAME = "search"
FAISS, FP32, BF16 = "faiss, IndexFlatIP, two searches", "ours, fp32 products", "ours, bf16 products"
AIMS = {FP32: 1.5, BF16: 2.0}
ALIKE = 1e-6  # cosines that float32 may put into either order
CLUSTERS = 200


def make_vectors(flags: argparse.Namespace) -> tuple[Any, Any]:
    """(S, H) sources and (D, H) targets; random pairs have cosines of about 0.58, translations of 0.88."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    cluster_S = torch.randint(CLUSTERS, (flags.sources,), generator=generator)
    source_SH = drawn(flags.hidden) + 0.6 * drawn(CLUSTERS, flags.hidden)[cluster_S]
    source_SH += 0.6 * drawn(flags.sources, flags.hidden)
    translated_D = torch.randint(flags.sources, (flags.targets,), generator=generator)
    return source_SH, source_SH[translated_D] + 0.35 * drawn(flags.targets, flags.hidden)


def by_faiss(source_SH: Any, target_DH: Any, neighbors: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """As `nearest_neighbors`."""
    import faiss
    import torch
    from torch.nn import functional as F

    sides = [F.normalize(side, dim=1).numpy() for side in (source_SH, target_DH)]
    found = []
    for own, other in (sides, sides[::-1]):
        index = faiss.IndexFlatIP(own.shape[1])
        index.add(other)
        found.append(tuple(map(torch.from_numpy, index.search(own, neighbors))))
    return tuple(found)


def set_threads(threads: int) -> None:
    """Of torch, and of faiss where it is installed."""
    import torch

    torch.set_num_threads(threads)
    if has_faiss():
        import faiss

        faiss.omp_set_num_threads(threads)


def has_faiss() -> bool:
    """Whether the peer is installed."""
    return importlib.util.find_spec("faiss") is not None


def differing(found: Any, other: Any) -> int:
    """How many neighbors differ, all of them as near: asserts that what is compared finds the same."""
    count = 0
    for (near, places), (other_near, other_places) in zip(found, other, strict=True):
        assert (near - other_near).abs().max() < ALIKE, "another neighbor is nearer"
        count += int((places != other_places).sum())
    return count


def measure(flags: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """Seconds and ratios of every way with so many threads."""
    from finetuning.tasks.features.neighbors import nearest_neighbors

    set_threads(threads)
    source_SH, target_DH = make_vectors(flags)
    found: dict[str, Any] = {}

    def way(name: str, search: Any) -> Any:
        def run(number: int) -> None:
            found[name] = search()

        return run

    ways = {
        FP32: way(FP32, lambda: nearest_neighbors(source_SH, target_DH, flags.neighbors, products="fp32")),
        BF16: way(BF16, lambda: nearest_neighbors(source_SH, target_DH, flags.neighbors, products="bf16")),
    }
    if has_faiss():
        ways = {FAISS: way(FAISS, lambda: by_faiss(source_SH, target_DH, flags.neighbors)), **ways}
    seconds = interleaved(ways, flags.rounds, warm_up=flags.warm_up)
    differing(found[FP32], found[BF16])
    products = flags.sources * flags.targets * flags.hidden * 2
    return [
        {
            "threads": threads,
            "way": name,
            "seconds": statistics.median(values),
            "products_per_second": products / statistics.median(values) / 1e9,
            "ratio": median_ratio(seconds[FAISS], values) if FAISS in seconds else None,
            "aim": AIMS.get(name) if FAISS in seconds else None,
            "differing": differing(found[name], found[FAISS]) if FAISS in found else None,
        }
        for name, values in seconds.items()
    ]


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Sizes, threads, and where the measurements are written."""
    sizes = {
        "sources": (100_000, "source vectors"),
        "targets": (50_000, "target vectors"),
        "hidden": (768, "their size, a multiple of 64"),
        "neighbors": (4, "that are looked for"),
        "rounds": (5, "interleaved rounds"),
    }
    parser = make_parser(__doc__, NAME, sizes)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="one after the other (default 1 2)")
    parser.add_argument("--no_warm_up", dest="warm_up", action="store_false", help="keep the first round as well")
    return parser.parse_args(argv)


def check_flags(flags: argparse.Namespace) -> None:
    """Raises ValueError for sizes of which there is nothing to measure."""
    check_sizes(flags)
    if min(flags.threads) < 1:
        raise ValueError(f"--threads has {min(flags.threads)}. Nothing would be computed. Give 1 or more.")
    if flags.neighbors > min(flags.sources, flags.targets):
        raise ValueError(
            f"--neighbors is {flags.neighbors}, of {flags.sources} sources and {flags.targets} targets. There are no "
            "more neighbors than vectors. Give fewer."
        )


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    flags = read_flags(argv)
    with user_errors():
        check_flags(flags)
        rows = [row for threads in flags.threads for row in measure(flags, threads)]
        title = f"{flags.neighbors} neighbors of {flags.sources:,} x {flags.targets:,} vectors of {flags.hidden}, both "
        title += f"directions, medians of {flags.rounds} rounds"
        columns = {"threads": "threads", "way": "way", "seconds": "seconds", "products_per_second": "GFLOP/s of pairs"}
        columns |= {"ratio": "times faiss", "aim": "aim", "differing": "equally near, in another order"}
        notes = [] if has_faiss() else ["faiss-cpu is not installed: there is no peer. pip install faiss-cpu"]
        show(title, columns, rows, notes)
        write_results(flags, NAME, argv, {"ways": rows})


if __name__ == "__main__":
    main()
