"""The output of a run: a progress bar on a terminal, lines in a file; and fewer messages of libraries."""

import logging
import sys
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from crosslingual_zoo.zoo_core.processes import launched_rank

# One for the bar and the log, so that log lines appear above the bar.
CONSOLE = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
LEVELS = {"httpx": logging.WARNING, "httpx2": logging.WARNING, "accelerate": logging.WARNING}
LEVELS["datasets"] = logging.CRITICAL  # it logs what it raises


def say_loading(what: str) -> None:
    """Prints what a command loads, at once: the libraries take seconds to import."""
    if launched_rank() == 0:
        CONSOLE.print(f"loading libraries, then {what}")


class _ConsoleHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        CONSOLE.print(self.format(record))


def quiet_libraries() -> None:
    """Logs our messages in plain lines, of libraries and of all processes except the first only warnings. Progress bars
    are only for a terminal."""
    import datasets  # takes a second
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    is_first = launched_rank() == 0
    level = logging.INFO if is_first else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", handlers=[_ConsoleHandler()])
    for name, level in LEVELS.items():
        logging.getLogger(name).setLevel(level)
    transformers_logging.set_verbosity_error()
    downloads_are_shown = not are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()  # of reading and writing weights; this turns off downloads' bars too
    if downloads_are_shown:
        enable_progress_bars()
    if not (is_first and CONSOLE.is_terminal):
        datasets.disable_progress_bars()


class RunBar(Progress):
    """Steps of a run: a bar with a note and the time left on a terminal; elsewhere, a line for the first step and for
    each note."""

    def __init__(self, is_shown: bool = True):
        """`is_shown`: whether this process shows anything."""
        super().__init__(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            "left",
            TimeRemainingColumn(),
            "{task.fields[note]}",
            console=CONSOLE if is_shown else Console(quiet=True),
            disable=not (is_shown and CONSOLE.is_terminal),
            redirect_stdout=sys.stdout.isatty(),
            speed_estimate_period=600,  # steps may take minutes
        )
        self.steps: Any = None  # the bar's task
        self.has_begun = False

    def begin(self, total: int, done: int = 0) -> None:
        """Shows the bar: `done` of `total` steps are done."""
        self.steps = self.add_task("starting", total=total, completed=done, note="")

    def step(self, done: int, name: str) -> None:
        """Updates the bar: `done` steps are done, the last one in `name`."""
        self.update(self.steps, completed=done, description=name)
        if self.disable and not self.has_begun:
            self.say(f"{name}  step {done}/{self.tasks[0].total}")
        self.has_begun = True

    def note(self, note: str) -> None:
        """Shows the figures of the steps up to now."""
        self.update(self.steps, note=note)
        if self.disable:
            task = self.tasks[0]
            left = "-:--:--"
            if task.time_remaining is not None:
                left = str(timedelta(seconds=round(task.time_remaining)))
            self.say(f"{task.description}  step {task.completed}/{task.total}  {note}  left {left}")

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text)
