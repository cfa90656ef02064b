"""What the benchmarks share: interleaved rounds, ratios, peak memory, the table and the file of results.

A benchmark is `python -m bench.<name>`. It compares ways of doing the same work. Each round runs every way once, so
that other work of the machine affects all of them. A ratio is the median of the ratios of all rounds. The benchmark
prints a table and writes bench/results/<name>.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas
import torch
from torch.profiler import ProfilerActivity, profile

from crosslingual_zoo.zoo_core.command_line import CommandParser
from crosslingual_zoo.zoo_core.provenance import run_facts, write_json

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_parser(description: str, name: str) -> CommandParser:
    """A parser with `--output`, bench/results/<name>.json."""
    parser = CommandParser(description=description)
    output = Path(f"bench/results/{name}.json")
    where = f"where the measurements are written (default {output})"
    parser.add_argument("--output", type=Path, metavar="FILE", default=output, help=where)
    return parser


def seconds_of(work: Callable[[], Any]) -> float:
    """Processor time of a single thread, which other processes hardly change; else wall-clock time."""
    clock = time.process_time if DEVICE == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    wait()
    started = clock()
    work()
    wait()
    return clock() - started


def interleaved(ways: dict[str, Callable[[int], Any]], rounds: int, first: int = -1) -> dict[str, list]:
    """What each way returns, one value a round; `ways[name](number)` does its work of that round.

    Every other round runs the ways in the opposite order. The warm-up is round -1, which is not kept.
    """
    values: dict[str, list] = {name: [] for name in ways}
    for number in range(first, rounds):
        for name in reversed(ways) if number % 2 else ways:
            value = ways[name](number)
            if number >= 0:
                values[name].append(value)
    return values


def median_ratio(peer: Sequence[float], ours: Sequence[float]) -> float:
    """The median of the rounds' ratios: how many times as long the peer took."""
    return statistics.median(a / b for a, b in zip(peer, ours, strict=True))


def peak_bytes(step: Callable[[], Any]) -> int:
    """How far memory rises during `step()` above where it was before: what torch's allocators hand out."""
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    allocations = [event for event in events if event.name() == "[memory]"]
    allocations.sort(key=lambda event: event.start_ns())
    now = 0
    peak = 0
    for event in allocations:
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def matrix_peak(size: int, dtype: torch.dtype) -> float:
    """FLOP/s of a product of two square matrices: what this device reaches if it does nothing else."""
    a = torch.randn(size, size, device=DEVICE).to(dtype)
    b = torch.randn(size, size, device=DEVICE).to(dtype)
    seconds = min(seconds_of(lambda: a @ b) for _ in range(6))
    return 2 * size**3 / seconds


def run_command(command: list[str]) -> dict[str, float]:
    """Runs a command on one thread; its processor seconds and MiB. Raises ValueError if it fails."""
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    surroundings |= {"TRANSFORMERS_VERBOSITY": "error", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    usage = [sys.executable, "-m", "bench._usage", *command]
    finished = subprocess.run(usage, env=surroundings, stdout=subprocess.PIPE)
    if finished.returncode:
        raise ValueError(f"{' '.join(command)} failed.")
    return json.loads(finished.stdout)


def compare_commands(
    ways: Sequence[str], command_of: Callable[[str, int], list[str]], rounds: int, base: str
) -> list[dict[str, Any]]:
    """A row for each way: median seconds, their range and MiB, and how many times as fast as the way `base` it is.

    `command_of(way, number)` is the command of a round.
    """
    runs = {way: lambda number, way=way: run_command(command_of(way, number)) for way in ways}
    measured = interleaved(runs, rounds, first=0)
    seconds = {}
    for way, usages in measured.items():
        seconds[way] = [usage["seconds"] for usage in usages]
    rows = []
    for way, usages in measured.items():
        row: dict[str, Any] = {"way": way}
        row["seconds"] = statistics.median(seconds[way])
        row["least"] = min(seconds[way])
        row["most"] = max(seconds[way])
        row[f"times as fast as {base}"] = median_ratio(seconds[base], seconds[way]) if base in seconds else None
        row["MiB"] = statistics.median(usage["memory"] for usage in usages)
        rows.append(row)
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Prints rows as a table, whose headings are their keys."""
    table = pandas.DataFrame(rows).dropna(axis="columns", how="all")
    print(title, table.to_string(index=False, na_rep="", float_format="{:.4g}".format), sep="\n")


def write_results(flags: argparse.Namespace, results: dict[str, Any]) -> None:
    """Writes the results with the flags, the threads and load of the machine, and the facts of the run."""
    settings = {key: value for key, value in vars(flags).items() if key != "output"}
    machine = {"threads": torch.get_num_threads(), "load_average": [round(load, 2) for load in os.getloadavg()]}
    facts = run_facts(sys.orig_argv)
    write_json(flags.output, {**results, "settings": settings, "machine": machine, "facts": facts})
