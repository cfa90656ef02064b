"""The output of a run: a progress bar on a terminal, lines in a file; and fewer messages of libraries."""

import logging
import sys
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from zoo_core.processes import launched_rank

# One for the bar and the log, so that log lines appear above the bar.
CONSOLE = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


class _ConsoleHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        CONSOLE.print(self.format(record))


def quiet_libraries() -> None:
    """Logs our messages in plain lines, warnings of libraries, and on a terminal the progress bars of long work.

    Of several launched processes, all except the first log only warnings.
    """
    import datasets  # takes a second
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    is_first = launched_rank() == 0
    logging.basicConfig(
        level=logging.INFO if is_first else logging.WARNING, format="%(message)s", handlers=[_ConsoleHandler()]
    )
    for noisy in ("httpx", "httpx2", "accelerate"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # it logs what it raises
    transformers_logging.set_verbosity_error()
    downloads_are_shown = not are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()  # of reading and writing weights; this turns off downloads' bars too
    if downloads_are_shown:
        enable_progress_bars()
    if not (is_first and CONSOLE.is_terminal):
        datasets.disable_progress_bars()


class RunBar(Progress):
    """Steps of a run: a bar with a note and the time left on a terminal, a line for each note anywhere else."""

    def __init__(self, is_shown: bool = True):
        """`is_shown`: whether this process shows anything."""
        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "left")
        columns += (TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        console = CONSOLE if is_shown else Console(quiet=True)
        settings = {"disable": not (is_shown and CONSOLE.is_terminal), "redirect_stdout": sys.stdout.isatty()}
        super().__init__(*columns, console=console, **settings)
        self.steps = self.batches = None

    def begin(self, total: int, done: int = 0) -> None:
        """Shows the bar: `done` of `total` steps are done."""
        self.steps = self.add_task("starting", total=total, completed=done, note="")

    def step(self, done: int, name: str) -> None:
        """Updates the bar: `done` steps are done, the last one in `name`."""
        self.update(self.steps, completed=done, description=name)

    def note(self, note: str) -> None:
        """Shows the figures of the steps up to now."""
        self.update(self.steps, note=note)
        if self.disable:
            task = next(task for task in self.tasks if task.id == self.steps)
            left = timedelta(seconds=round(task.time_remaining or 0))
            self.say(f"{task.description}  step {task.completed}/{task.total}  {note}  left {left}")

    def predicted(self, name: str, total: int | None) -> None:
        """Adds one to the finished batches of an evaluation between two steps: `name`, with `total` batches."""
        if self.batches is None:
            self.batches = self.add_task(name, total=total, note="")
        self.advance(self.batches)

    def evaluated(self) -> None:
        """Removes the bar of a finished evaluation."""
        if self.batches is not None:
            self.remove_task(self.batches)
        self.batches = None

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text)
