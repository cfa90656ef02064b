"""What the tests of the benchmarks share."""

import importlib
import json
import logging

import pytest
from accelerate.state import AcceleratorState, PartialState


@pytest.fixture
def in_this_process(monkeypatch):
    """Has a benchmark measure in this process: a new one takes seconds to start, and its memory is not looked at."""

    def change(name: str):
        bench = importlib.import_module(f"bench.{name}")
        monkeypatch.setattr(bench, "in_fresh_process", lambda function, *values: function(*values), raising=False)
        return bench

    yield change
    AcceleratorState._reset_state()
    PartialState._reset_state()
    logging.disable(logging.NOTSET)


@pytest.fixture
def figures(in_this_process, tmp_path):
    """`figures("finetuning", "--rounds", "1")`: the figures that the command writes."""

    def written(name: str, *flags: str) -> dict:
        output = tmp_path / "results" / "figures.json"
        in_this_process(name).main([*flags, "--output", str(output)])
        return json.loads(output.read_text(encoding="utf-8"))

    return written
