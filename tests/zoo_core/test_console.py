"""The output of a run, on a terminal and in a file."""

import io
import logging

import pytest
from rich.console import Console

from zoo_core import console
from zoo_core.console import RunBar, quiet_libraries


@pytest.fixture
def shown(monkeypatch):
    """`shown(is_terminal)`: the text on a screen of 80 columns, or in a file, after two steps with a log line."""

    def run(is_terminal):
        stream = io.StringIO()
        screen = Console(file=stream, force_terminal=is_terminal, width=80, markup=False, highlight=False)
        monkeypatch.setattr(console, "CONSOLE", screen)
        root = logging.getLogger()
        monkeypatch.setattr(root, "handlers", [])
        quiet_libraries()
        with RunBar() as bar:
            bar.begin(2)
            for step in (1, 2):
                bar.step(step, "main")
                bar.note(f"loss {step}.5")
                logging.getLogger("zoo_core").warning("a line of the log")
            for _ in range(3):
                bar.predicted("main, dev", 3)
            bar.evaluated()
            bar.say("dev loss 1.0")
        return stream.getvalue()

    return run


def test_in_a_file_there_are_lines_alone(shown):
    lines = shown(False).splitlines()
    assert [line for line in lines if "log" in line] == ["a line of the log"] * 2
    assert lines[0].startswith("main  step 1/2  loss 1.5") and lines[-1] == "dev loss 1.0" and len(lines) == 5
