"""What the benchmarks share: rounds, ratios, memory, errors, the file of results."""

import importlib
import json
import os
from pathlib import Path

import pytest
import torch

import bench
from bench._common import (
    check_sizes,
    in_fresh_process,
    interleaved,
    make_parser,
    matrix_peak,
    median_ratio,
    number,
    peak_bytes,
    show,
    write_results,
)


def test_rounds_are_interleaved_and_turned_and_the_warm_up_is_not_kept():
    seen, now = [], [0.0]

    def way(name, seconds):
        def once(number):
            seen.append((number, name))
            now[0] += seconds * (number + 2)

        return once

    prepared = []
    found = interleaved({"a": way("a", 1), "b": way("b", 3)}, 3, lambda: now[0], before=prepared.append)
    assert found == {"a": [2, 3, 4], "b": [6, 9, 12]}
    assert [name for _, name in seen] == prepared == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert [number for number, _ in seen] == [-1, -1, 0, 0, 1, 1, 2, 2]
    assert median_ratio(found["b"], found["a"]) == 3
    assert median_ratio([1, 9, 4], [1, 1, 2]) == 2  # of the rounds, not of the medians: 4 / 1


def test_what_is_done_before_a_way_is_not_timed():
    now = [0.0]

    def take(seconds):
        now[0] += seconds

    found = interleaved({"a": lambda _: take(1)}, 2, lambda: now[0], before=lambda name: take(100))
    assert found == {"a": [1, 1]}


def test_peak_memory_is_what_was_held_at_once():
    def step():
        first = torch.ones(2**18)
        del first
        return torch.ones(2**19) + torch.ones(2**19)

    assert peak_bytes(step, "cpu") == pytest.approx(3 * 4 * 2**19, rel=0.01)


def test_a_fresh_process_is_another_one():
    assert in_fresh_process(os.getpid) != os.getpid()


def test_the_peak_of_a_product_is_a_rate():
    assert matrix_peak(64, torch.float32, rounds=2) > 1e6


def test_results_say_on_what_they_were_measured(tmp_path, capsys):
    flags = make_parser("A test.", "some", {"rounds": (5, "rounds")}).parse_args(["--rounds", "3"])
    assert str(flags.output) == "bench/results/some.json"
    flags.output = tmp_path / "new" / "some.json"
    write_results(flags, "some", ["--rounds", "3"], {"ratio": 2.0})
    found = json.loads(flags.output.read_text(encoding="utf-8"))
    assert found["ratio"] == 2 and found["settings"] == {"rounds": 3}
    assert found["facts"]["command"] == "python -m bench.some --rounds 3" and "torch" in found["facts"]["versions"]
    assert found["machine"]["threads"] == torch.get_num_threads() and len(found["machine"]["load_average"]) == 3
    show("a title", {"name": "", "ratio": "faster by"}, [{"name": "ours", "ratio": 1234.5}, {"name": "x"}], ["a note"])
    printed = capsys.readouterr().out
    assert "1,234" in printed and "faster by" in printed and "a note" in printed
    assert [number(value) for value in (None, "x", 3, 0.12345, 1.234, 5e7)] == [
        "", "x", "3", "0.123", "1.23", "50,000,000",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("rounds", 0, "--rounds is 0. Nothing would be measured. Give 1 or more"),
        ("hidden", 32, "--hidden is 32. A head has 64 dimensions. Give 64 or more"),
        ("hidden", 100, "--hidden is 100, no multiple of 64.*Give 64 or 128"),
        ("layers", -1, "--layers is -1. There would be no encoder"),
        ("vocab", 6, "--vocab is 6"),
        ("pairs", 0, "--pairs is 0"),
        ("length", 2, "--length is 2"),
        ("packed", 8, "--packed is 8. Nothing would be measured. Give 16"),
    ],
)
def test_sizes_that_cannot_be_measured_are_refused(flag, value, message):
    sizes = dict(layers=1, hidden=64, vocab=100, pairs=2, length=8, rounds=1, packed=16)
    flags = make_parser("A test.", "some", {name: (size, name) for name, size in sizes.items()}).parse_args([])
    check_sizes(flags, {"packed": 16})
    setattr(flags, flag, value)
    with pytest.raises(ValueError, match=message):
        check_sizes(flags, {"packed": 16})


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(bench.__file__).parent.glob("[!_]*.py")))
def test_the_defaults_can_be_measured(name):
    module = importlib.import_module(f"bench.{name}")
    module.check_flags(module.read_flags([]))
