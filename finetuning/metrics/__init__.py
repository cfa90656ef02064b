"""The metrics that no library has, as `evaluate` modules, loaded by path so that they work without the Hub."""

import functools
from pathlib import Path
from typing import Any


@functools.cache
def load_metric(name: str) -> Any:
    """Loads a metric of this folder."""
    import evaluate

    from crosslingual_zoo.zoo_core.processes import main_first

    with main_first():
        return evaluate.load(str(Path(__file__).parent / name / f"{name}.py"), keep_in_memory=True)
