"""What the benchmarks share: rounds, ratios, memory, commands."""

import pytest
import torch

from bench._common import interleaved, median_ratio, peak_bytes


def test_interleaved_turns_the_rounds_and_drops_the_warm_up():
    seen = []

    def way(name, seconds):
        return lambda number: seen.append((number, name)) or seconds * (number + 2)

    assert interleaved({"a": way("a", 1), "b": way("b", 3)}, 3) == {"a": [2, 3, 4], "b": [6, 9, 12]}
    assert [name for _, name in seen] == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert [number for number, _ in seen] == [-1, -1, 0, 0, 1, 1, 2, 2]
    assert median_ratio([1, 9, 4], [1, 1, 2]) == 2  # of the rounds, not of the medians: 4 / 1


def test_peak_bytes_is_what_was_held_at_once():
    def step():
        first = torch.ones(2**18)
        del first
        return torch.ones(2**19) + torch.ones(2**19)

    assert peak_bytes(step) == pytest.approx(3 * 4 * 2**19, rel=0.01)
