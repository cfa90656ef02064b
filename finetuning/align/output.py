"""Where the word aligner's links go: standard output, or a file that a stopped run can resume.

FILE.word-align.json, next to FILE, has the settings and the model that determine the links, how many pairs and bytes of
a stopped run are kept, and a digest of the pairs. A run cannot be resumed with other settings, another model or other
pairs: the file would mix two kinds of links.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from finetuning.align.formats import Format
from finetuning.align.pairs import Row
from zoo_core.provenance import write_json
from zoo_core.recipes import recipe_differences

SAVE_EVERY_SECONDS = 5.0
STATE_ENDING = ".word-align.json"


def require_writable(path: str | Path, option: str) -> None:
    """Raises ValueError if no file can be written at `path`, the value of `option`. Changes nothing there."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a folder: make it, or name another {option}.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder. {option} is written as a file in one.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{path} cannot be written: there is no permission. Name another {option}.")


class StandardOutput:
    """Writes links in a format to standard output, in blocks."""

    path = None

    def __init__(self, format: Format):
        self.format, self.lines = format, 0

    def write(self, rows: list[Row], text: str) -> None:
        header = "" if self.lines else self.format.header()
        sys.stdout.buffer.write((header + text).encode())
        self.lines += len(rows)

    def close(self, complete: bool) -> None:
        """Writes the rest."""
        sys.stdout.buffer.flush()


class NoOutput:
    """The output of all processes except the main one: counts what the main process writes."""

    path = None

    def __init__(self) -> None:
        self.lines = 0

    def write(self, rows: list[Row], text: str) -> None:
        self.lines += len(rows)

    def close(self, complete: bool) -> None:
        """Does nothing."""


class OutputFile:
    """Writes a format's text to a file, with its state next to it; `lines` counts the pairs in it.

    output = OutputFile("links.txt", format, resume=True)
    output.pass_over(rows, settings)    # takes the rows whose links are in the file
    output.write(block, text)           # each block of the others
    """

    def __init__(self, path: str | Path, format: Format, resume: bool = False):
        self.format = format
        self.path, self.state_path = Path(path), Path(f"{path}{STATE_ENDING}")
        self.lines = 0
        self._state: dict[str, Any] = {}
        self._stream: Any = None
        for target in (self.path, self.state_path):
            require_writable(target, "--output")
        if not self.path.exists() or not self.path.stat().st_size:
            return
        if not resume:
            raise ValueError(f"{self.path} exists and is not empty. Add --resume to resume, or name another --output.")
        try:
            state = json.loads(self.state_path.read_text(encoding="utf-8"))
            self._state = {key: state[key] for key in ("settings", "lines", "bytes", "digest", "is_complete")}
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self.path} cannot be resumed: {self.state_path.name} next to it is missing or damaged."
            ) from None

    @property
    def layer(self) -> int | None:
        """The layer of the links in the file; None for a new file."""
        return self._state.get("settings", {}).get("layer")

    def pass_over(self, rows: Iterator[Row], settings: dict[str, Any]) -> None:
        """Takes the rows whose links are in the file; the first block after them cuts the file back to those.

        Whole blocks of a stopped file are kept, so that the other pairs are encoded together as in an uninterrupted
        run, and their links are the same to the last bit. If the input file has grown since, the last digits of
        probabilities may differ. Raises ValueError for other settings, and if the rows of the file differ.
        """
        self._settings, self._digest = settings, hashlib.sha256()
        if differences := recipe_differences(self._state.get("settings", settings), settings):
            raise ValueError(f"{self.path} was made with other settings: {'; '.join(differences)}. Give the same.")
        wanted = self._state.get("lines", 0)
        for row in islice(rows, wanted):
            self._digest.update(_as_bytes(row))
            self.lines += 1
        if wanted and (self.lines < wanted or self._digest.hexdigest() != self._state["digest"]):
            differs = (
                f"its first {wanted:,} lines differ" if self.lines == wanted else f"it has only {self.lines:,} lines"
            )
            raise ValueError(f"The input is not that of the run that wrote {self.path}: {differs.format(self.lines)}.")
        size = self._state.get("bytes", 0)
        if wanted and self.path.stat().st_size < size:
            raise ValueError(f"{self.path} has lost lines: {size:,} bytes were written. Name another --output.")
        self._kept, self._saved_at = (self.lines, size, self._digest.hexdigest()), time.monotonic()

    def _start(self) -> None:
        """Opens the file after the kept part."""
        self._stream = self.path.open("r+b" if self.path.exists() else "wb")
        self._stream.seek(self._kept[1])
        self._stream.truncate()
        if not self.lines:
            self._stream.write(self.format.header().encode())
        self._save(is_complete=False)

    def write(self, rows: list[Row], text: str) -> None:
        """Adds a block: its rows, and the text of their links."""
        if self._stream is None:
            self._start()
        self._stream.write(text.encode())
        for row in rows:
            self._digest.update(_as_bytes(row))
        self.lines += len(rows)
        self._kept = self.lines, self._stream.tell(), self._digest.hexdigest()
        if time.monotonic() - self._saved_at >= SAVE_EVERY_SECONDS:
            self._stream.flush()  # the state must not be ahead of the file
            self._save(is_complete=False)

    def close(self, complete: bool) -> None:
        """complete: the whole input was written. Otherwise the file can be resumed."""
        if complete and not self._state.get("is_complete") and self._stream is None:
            self._start()
        if self._stream is None:
            return
        self._stream.close()
        self._save(is_complete=complete)

    def _save(self, is_complete: bool) -> None:
        state = dict(zip(("lines", "bytes", "digest"), self._kept, strict=True))
        state |= {"settings": self._settings, "is_complete": is_complete}
        write_json(self.state_path, state)
        self._saved_at = time.monotonic()


def _as_bytes(row: Row) -> bytes:
    return json.dumps(row).encode() + b"\n"
