"""Where the word aligner's lines go: standard output, or a file that a stopped run can be gone on with.

Beside FILE stands FILE.word-align.json: the settings and the model that decide about the links, and a digest of the
input lines that had been aligned. A run that goes on keeps the whole lines of FILE, cuts off what a kill left of the
last one, and is refused where settings, model or those input lines are others: the file would be of two makes.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from finetuning.align.pairs import PairReader
from zoo_core.provenance import write_json
from zoo_core.recipes import recipe_differences

SAVE_EVERY_SECONDS = 5.0
BLOCK_BYTES = 1 << 20
STATE_ENDING = ".word-align.json"


def require_writable(path: str | Path, option: str) -> None:
    """Raises ValueError where no file can be written at `path`, the value of `option`. Touches nothing there."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(
            f"{path.parent} is not a folder: {path} cannot be written there. Make the folder, or name another {option}."
        )
    if path.is_dir():
        raise ValueError(f"{path} is a folder. {option} is written as a file. Name a file in it.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(
            f"{path} cannot be written: there is no permission, or the disk is read only. Change the permissions, or "
            f"name another {option}."
        )


class StandardOutput:
    """Lines to standard output, handed on in blocks."""

    def __init__(self) -> None:
        self.stream: BinaryIO = sys.stdout.buffer
        self.lines = 0

    def write(self, line: str) -> None:
        self.stream.write(line.encode() + b"\n")
        self.lines += 1

    def close(self, complete: bool) -> None:
        """Hands on what is left; `complete` or not, standard output cannot be gone on with."""
        self.stream.flush()


class OutputFile:
    """Lines to a file, with its state beside it.

        output = OutputFile("links.txt", resume=True)
        output.go_on(settings, reader, multiple)    # with the same settings, after the same input
        output.skip(pairs)                          # what stands in the file already
        output.write(...)                           # a line for each pair that is left

    `lines`: how many stand in the file. `is_complete`: it was written to its end, and only a longer input has something
    to add.
    """

    def __init__(self, path: str | Path, resume: bool = False):
        self.path = Path(path)
        self.state_path = Path(f"{path}{STATE_ENDING}")
        self.lines = 0
        self._state: dict[str, Any] | None = None
        self._stream: BinaryIO | None = None
        for target in (self.path, self.state_path):
            require_writable(target, "--output")
        if self.path.exists() and self.path.stat().st_size:
            if not resume:
                raise ValueError(
                    f"{self.path} exists and is not empty. Add --resume to go on with a run that was stopped, or name "
                    "another --output."
                )
            self._state = self._read_state()

    @property
    def is_complete(self) -> bool:
        return self._state is not None and self._state["is_complete"]

    def _read_state(self) -> dict[str, Any]:
        try:
            state = json.loads(self.state_path.read_text(encoding="utf-8"))
            return {key: state[key] for key in ("settings", "lines", "digest", "is_complete")}
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self.path} cannot be gone on with: {self.state_path.name} beside it is missing or damaged. Name "
                "another --output, or remove both files to start anew."
            ) from None

    def go_on(self, settings: dict[str, Any], reader: PairReader, multiple: int = 1) -> None:
        """Compares with the run to go on with, if there is one, and cuts the file back to whole lines.

        settings: what decides about the lines, nested dicts of JSON values. reader: the input; it is told which lines
        to expect. multiple: so many pairs are encoded together; the file is cut back to a multiple of it, so that they
        are so again, and their links are those of an uninterrupted run to the last bit. They are encoded with others
        where the stopped run wrote a page, whose pairs are a chunk of their own, or was given a whole file that is
        longer now; then the last digits of probabilities may differ. A complete file stays as it is.
        """
        self._settings, self._reader = settings, reader
        self._digest = (0, "")
        if self._state is None:
            return
        differences = recipe_differences(self._state["settings"], settings)
        if differences:
            raise ValueError(
                f"{self.path} was made with other settings: {'; '.join(differences)}. Give the same settings, or "
                "another --output."
            )
        if self._state["lines"]:
            self._digest = reader.expected = (self._state["lines"], self._state["digest"])
        with self.path.open("rb") as stream:
            self.lines = sum(block.count(b"\n") for block in iter(lambda: stream.read(BLOCK_BYTES), b""))
        if not self.is_complete:
            self.lines -= self.lines % multiple
            with self.path.open("r+b") as stream:
                for _ in range(self.lines):
                    stream.readline()
                stream.truncate(stream.tell())

    def skip(self, pairs: Iterator[Any]) -> None:
        """Reads the pairs whose links stand in the file. Raises ValueError where the input has fewer."""
        for number in range(self.lines):
            if next(pairs, None) is None:
                raise ValueError(
                    f"{self.path} has {self.lines:,} lines, the input {number:,}. Give that one, or another --output."
                )
            self._note_digest(number + 1)

    def write(self, line: str) -> None:
        if self._stream is None:
            self._stream = self.path.open("ab")
            self._save_state(is_complete=False)
        self._stream.write(line.encode() + b"\n")
        self.lines += 1
        self._note_digest(self.lines)
        if self._digest[0] == self.lines:
            is_first = not self._saved_lines  # until then nothing tells whether the input is the same
            if is_first or time.monotonic() - self._saved_at >= SAVE_EVERY_SECONDS:
                self._stream.flush()  # the state is not to be ahead of the file
                self._save_state(is_complete=False)

    def close(self, complete: bool) -> None:
        """complete: the input has come to its end, and so has the file. Otherwise it is left to be gone on with."""
        if self._stream is None:
            return
        self._stream.close()
        if complete:
            self._note_digest(self.lines)  # the last one may have come after the last line
            self._save_state(is_complete=True)

    def _note_digest(self, lines: int) -> None:
        if lines in self._reader.digests:
            self._digest = lines, self._reader.digests.pop(lines)

    def _save_state(self, is_complete: bool) -> None:
        lines, digest = self._digest
        state = {"settings": self._settings, "lines": lines, "digest": digest, "is_complete": is_complete}
        write_json(self.state_path, state)
        self._saved_at, self._saved_lines = time.monotonic(), lines
