"""What the benchmarks share: rounds, ratios, memory, commands, the file of results."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

import bench
from bench._common import (
    compare_commands,
    interleaved,
    make_parser,
    median_ratio,
    peak_bytes,
    run_command,
    write_results,
)


def test_rounds_are_interleaved_and_turned_and_the_warm_up_is_not_kept():
    seen, now = [], [0.0]

    def way(name, seconds):
        def once(number):
            seen.append((number, name))
            now[0] += seconds * (number + 2)

        return once

    def before(name):  # is not timed
        now[0] += 100

    found = interleaved({"a": way("a", 1), "b": way("b", 3)}, 3, lambda: now[0], before=before)
    assert found == {"a": [2, 3, 4], "b": [6, 9, 12]}
    assert [name for _, name in seen] == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert [number for number, _ in seen] == [-1, -1, 0, 0, 1, 1, 2, 2]
    assert median_ratio([1, 9, 4], [1, 1, 2]) == 2  # of the rounds, not of the medians: 4 / 1


def test_peak_memory_is_what_was_held_at_once():
    def step():
        first = torch.ones(2**18)
        del first
        return torch.ones(2**19) + torch.ones(2**19)

    assert peak_bytes(step, "cpu") == pytest.approx(3 * 4 * 2**19, rel=0.01)


def test_results_say_on_what_they_were_measured(tmp_path):
    flags = make_parser("A test.", "some", {"rounds": (5, "rounds")}).parse_args(["--rounds", "3"])
    flags.output = tmp_path / "new" / "some.json"
    write_results(flags, "some", ["--rounds", "3"], {"ratio": 2.0})
    found = json.loads(flags.output.read_text(encoding="utf-8"))
    assert found["ratio"] == 2 and found["settings"] == {"rounds": 3}
    assert found["facts"]["command"] == "python -m bench.some --rounds 3" and "torch" in found["facts"]["versions"]
    assert found["machine"]["threads"] == torch.get_num_threads() and len(found["machine"]["load_average"]) == 3


def test_sizes_are_above_zero():
    parser = make_parser("A test.", "some", {"rounds": (5, "rounds")})
    with pytest.raises(SystemExit):
        parser.parse_args(["--rounds", "0"])


def test_compare_commands_takes_the_rounds_ratios():
    def command(way, number):
        return [sys.executable, "-c", f"sum(range({10 ** (6 + (way == 'slow'))}))"]

    rows = compare_commands(["fast", "slow"], command, 2, "slow")
    assert [row["way"] for row in rows] == ["fast", "slow"] and rows[1]["ratio"] == 1
    assert all(row["seconds"] > 0 and row["memory"] > 1 for row in rows)
    with pytest.raises(ValueError, match="exit"):
        run_command([sys.executable, "-c", "exit(3)"])


def test_the_defaults_can_be_measured():
    modules = {path.stem for path in Path(bench.__file__).parent.glob("[!_]*.py")}
    for name in sorted(modules - {"reproduce"}):  # they need data
        module = importlib.import_module(f"bench.{name}")
        module.read_flags([])
