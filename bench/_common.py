"""What the benchmarks share: flags, interleaved rounds, ratios, peak memory, the table and the file of results.

A benchmark is `python -m bench.<name>`, with `read_flags(argv)` and `main(argv)`. It compares ways of doing the same
work. Each round runs every way once, so that other work of the machine affects all of them. A ratio is the median of
the ratios of all rounds. The benchmark prints a table and writes bench/results/<name>.json.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from zoo_core.command_line import CommandParser
from zoo_core.provenance import run_facts, write_json

# the least of sizes that several benchmarks have, 1 of any other; of a vocabulary, six are special tokens
LEAST = {"hidden": 64, "vocab": 10, "length": 8}
HEAD_SIZE = 64  # dimensions of an attention head, as in the papers' models


def make_parser(description: str, name: str, sizes: dict[str, tuple[int, str]]) -> CommandParser:
    """A parser with whole-number flags (default, what it is) and `--output`, bench/results/<name>.json."""
    parser = CommandParser(description=description)
    for size, (default, what) in sizes.items():
        parser.add_argument(f"--{size}", type=int, default=default, help=f"{what} (default {default:,})")
    output = Path(f"bench/results/{name}.json")
    where = f"where the measurements are written (default {output})"
    parser.add_argument("--output", type=Path, metavar="FILE", default=output, help=where)
    return parser


def check_sizes(flags: argparse.Namespace, least: dict[str, int] | None = None) -> None:
    """Raises ValueError for a size of which there is no model, no batch, or nothing to measure.

    `least` are lower bounds of this benchmark's own.
    """
    bounds = LEAST | (least or {})
    for name, value in vars(flags).items():
        if type(value) is int and value < bounds.get(name, 1):
            raise ValueError(f"--{name} is {value}: give {bounds.get(name, 1)} or more.")
    hidden = getattr(flags, "hidden", None) or HEAD_SIZE
    if hidden % HEAD_SIZE:
        raise ValueError(f"--hidden is {hidden}: give a multiple of {HEAD_SIZE}, the dimensions of a head.")


def device_name() -> str:
    """`cuda` where there is a GPU, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def wait() -> None:
    """Until a GPU has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def clock() -> float:
    """Seconds: processor time of a single thread, which other processes hardly change; else wall-clock time."""
    alone = not torch.cuda.is_available() and torch.get_num_threads() == 1
    return time.process_time() if alone else time.perf_counter()


def interleaved(
    ways: dict[Any, Callable[[int], Any]],
    rounds: int,
    clock: Callable[[], float] = clock,
    warm_up: bool = True,
    before: Callable[[Any], None] = lambda name: None,
) -> dict[Any, list[float]]:
    """Seconds of each way, one number a round; `ways[name](number)` does its work of that round.

    Every other round runs the ways in the opposite order. The warm-up is round -1, which is not kept. `before(name)`
    puts things in order for a way, outside of its time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1 if warm_up else 0, rounds):
        for name in reversed(ways) if number % 2 else ways:
            before(name)
            wait()
            started = clock()
            ways[name](number)
            wait()
            if number >= 0:
                seconds[name].append(clock() - started)
    return seconds


def median_ratio(others: Sequence[float], own: Sequence[float]) -> float:
    """The median of the rounds' ratios: how many times as long the others took."""
    return statistics.median(a / b for a, b in zip(others, own, strict=True))


def in_fresh_process(function: Callable, *arguments: Any) -> Any:
    """What the function returns in a new process, whose memory nothing before has touched.

    The function is one of a module, and both its arguments and its result can be pickled.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own lines; read when torch is imported
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_bytes(step: Callable[[], Any], device: str) -> int:
    """How far memory rises during `step()` above where it was before: what torch's allocators hand out."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def max_resident_bytes() -> int:
    """The most memory that this process has held, by the system's count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def matrix_peak(size: int, dtype: Any, rounds: int = 5) -> float:
    """FLOP/s of a product of two square matrices: what this device reaches if it does nothing else."""
    a, b = (torch.randn(size, size, device=device_name()).to(dtype) for _ in range(2))
    out = torch.empty(size, size, dtype=dtype, device=a.device)
    seconds = interleaved({"product": lambda number: torch.mm(a, b, out=out)}, rounds)
    return 2 * size**3 / min(seconds["product"])


def number(value: Any) -> str:
    """As a table shows it: three digits that count."""
    if not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def show(title: str, columns: dict[str, str], rows: Iterable[dict], notes: Iterable[str] = ()) -> None:
    """Prints rows as a table: `columns` maps a key of the rows to its heading."""
    rows = list(rows)
    console = Console(highlight=False, soft_wrap=True, width=160)
    table = Table(title=title, title_justify="left")
    for key, heading in columns.items():
        is_text = any(isinstance(row.get(key), str) for row in rows)
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(number(row.get(key)) for key in columns))
    console.print(table)
    for note in notes:
        console.print(note)


def write_results(flags: argparse.Namespace, name: str, argv: Sequence[str] | None, results: dict[str, Any]) -> None:
    """Writes the results with the flags, the threads and load of the machine, and the facts of the run."""
    argv = sys.argv[1:] if argv is None else argv
    settings = {key: value for key, value in vars(flags).items() if key != "output"}
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()}
    machine = {"threads": torch.get_num_threads(), "load_average": [round(load, 2) for load in os.getloadavg()]}
    facts = run_facts(["python", "-m", f"bench.{name}", *argv])
    write_json(flags.output, {**results, "settings": settings, "machine": machine, "facts": facts})
