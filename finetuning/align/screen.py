"""Output on stderr for people: the progress bar and the last lines."""

import sys
from dataclasses import astuple, dataclass
from typing import Any


def make_screen(quiet: bool) -> Any:
    """The console of stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True, quiet=quiet)


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def make_progress(screen: Any, to_stdout: bool) -> Any:
    """A bar on stderr: pairs done, pairs a second and what is left."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    return Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        redirect_stdout=False,  # links go there
        disable=screen.quiet or not screen.is_terminal or (to_stdout and sys.stdout.isatty()),  # links scroll by
    )


def report_unspaced(unspaced: int, total: int, screen: Any) -> None:
    """Prints how many of the pairs have a side without blanks, and what to do."""
    if unspaced:
        screen.print(
            f"{unspaced:,} of {count_of(total, 'pair')}: no blanks between the words of a side (Chinese, Japanese, "
            "Thai, ...), and each run of characters counts as one word. --split splits running text."
        )


@dataclass
class Tally:
    """Counts of what was aligned, for the last lines on stderr."""

    pairs: int = 0
    links: int = 0
    without_words: int = 0
    split: int = 0  # pairs
    windows: int = 0  # of those
    has_text: bool = False

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def add(self, alignment: Any) -> None:
        self.pairs += 1
        self.links += len(alignment.links)
        self.without_words += not alignment.windows
        self.has_text |= bool(alignment.source_offsets or alignment.target_offsets)
        if alignment.windows > 1:
            self.split += 1
            self.windows += alignment.windows

    def report(self, screen: Any, path: str | None, lines: int, window: int, seconds: float) -> None:
        """Prints the counts; `lines` of the output, of which this run may have made a part, in `seconds`."""
        if not self.pairs:
            screen.print(f"{path} is complete: {count_of(lines, 'line')}. There was nothing left to do.")
            return
        before = f", after {lines - self.pairs:,} of earlier runs" if lines > self.pairs else ""
        rate = f"{self.pairs / max(seconds, 1e-9):,.0f} pairs/s"
        done = f"{count_of(self.pairs, 'pair')}, {count_of(self.links, 'link')}"
        screen.print(f"{done} in {seconds:,.1f} s ({rate}){before}")
        if self.has_text:
            screen.print("words: split at white space and punctuation")
        if self.without_words:
            screen.print(f"{count_of(self.without_words, 'pair')} without words on a side, and so without links.")
        if self.split:
            longer = f"{count_of(self.split, 'pair')} longer than {window:,} positions"
            screen.print(f"{longer}, split into {self.windows:,} windows that overlap.")
