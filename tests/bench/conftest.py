"""What the tests of the benchmarks share."""

import importlib
import json
import logging

import pytest
from accelerate.state import AcceleratorState, PartialState


@pytest.fixture
def figures(monkeypatch, tmp_path):
    """`figures("finetuning", "--rounds", "1")`: the figures that the command writes, measured in this process."""

    def written(name: str, *flags: str) -> dict:
        bench, output = importlib.import_module(f"bench.{name}"), tmp_path / "results" / "figures.json"
        monkeypatch.setattr(bench, "in_fresh_process", lambda function, *values: function(*values), raising=False)
        bench.main([*flags, "--output", str(output)])
        return json.loads(output.read_text(encoding="utf-8"))

    yield written
    AcceleratorState._reset_state()
    PartialState._reset_state()
    logging.disable(logging.NOTSET)
