"""The output of a run, on a terminal and in a file."""

import io
import logging

from rich.console import Console

from zoo_core import console
from zoo_core.console import RunBar, quiet_libraries


def test_in_a_file_there_are_lines_alone(monkeypatch):
    stream = io.StringIO()
    screen = Console(file=stream, force_terminal=False, width=80, markup=False, highlight=False)
    monkeypatch.setattr(console, "CONSOLE", screen)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    quiet_libraries()
    with RunBar() as bar:
        bar.begin(2)
        for step in (1, 2):
            bar.step(step, "main")
            bar.note(f"loss {step}.5")
            logging.getLogger("zoo_core").warning("a line of the log")
        bar.predicted("main, dev", 3)
        bar.evaluated()
        bar.say("dev loss 1.0")
    lines = stream.getvalue().splitlines()
    assert lines.count("a line of the log") == 2 and lines[-1] == "dev loss 1.0" and len(lines) == 5
