"""What the tests of the benchmarks share."""

import importlib
import logging

import pytest
from accelerate.state import AcceleratorState, PartialState


@pytest.fixture
def in_this_process(monkeypatch):
    """Has a benchmark measure in this process: a new one takes seconds to start, and its memory is not looked at."""

    def change(name: str):
        bench = importlib.import_module(f"bench.{name}")
        monkeypatch.setattr(bench, "in_fresh_process", lambda function, *arguments: function(*arguments))
        return bench

    yield change
    AcceleratorState._reset_state()
    PartialState._reset_state()
    logging.disable(logging.NOTSET)
