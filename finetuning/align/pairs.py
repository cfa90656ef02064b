"""Sentence pairs for the word aligner, read one by one: `source ||| target`, two files, or JSONL.

    pairs = PairReader(["corpus.de", "corpus.en"])
    total = pairs.check()                          # the whole input once, before hours are spent on its first half
    for source, target in pairs: ...               # strings, or lists of words where the JSONL has lists

Lines end at "\\n" only: what else Unicode calls an end of line may stand inside a sentence. Memory does not grow with
the input. A digest of the lines read so far tells whether a later run is given the same ones.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from zoo_core.recipes import nearest
from zoo_core.tables import PAIR_SEPARATOR, decode_line, split_pair

Side = str | list[str]

STDIN = "-"
DIGEST_EVERY = 1024  # lines


class PairReader:
    """The sentence pairs of one or two files, or of standard input.

    files: none or "-" (standard input), one file of pairs, or a file of source and one of target sentences. format:
    "text", "jsonl", or "auto": JSONL where the name of the one file ends in .jsonl or .json. keys: of source and target
    in a JSONL line, whose values are strings or lists of words.

    An empty line is a pair of empty sentences, so that lines keep their numbers.

    `digests`: {lines read: digest of them}, for every 1,024th line, for the last and for that of `expected`; the owner
    removes what it used. `expected`: one such entry of an earlier run; lines with another digest are an error.
    """

    def __init__(self, files: list[str], format: str = "auto", keys: tuple[str, str] = ("source", "target")):
        if len(files) > 2 or (len(files) == 2 and STDIN in files):
            raise ValueError(f"The input is {' '.join(files)}. Give none, one or two files.")
        self.files = [] if files == [STDIN] else list(files)
        for name in self.files:
            _require_file(name)
        if format == "auto":
            format = "jsonl" if len(files) == 1 and Path(files[0]).suffix in (".jsonl", ".json") else "text"
        if format == "jsonl" and len(self.files) == 2:
            raise ValueError(
                f"The input is two files, {' and '.join(files)}, and the format jsonl. Give one file, or leave the "
                "format to `text`."
            )
        self.format = format
        self.keys = keys
        self.digests: dict[int, str] = {}
        self.expected: tuple[int, str] | None = None
        self.name = " and ".join(self.files) or "standard input"

    def check(self) -> int | None:
        """Reads all files once and returns the number of pairs; None for a pipe, which can be read only once."""
        if not self.files or not all(Path(name).is_file() for name in self.files):
            return None
        reader = PairReader(self.files, self.format, self.keys)
        reader.expected = self.expected
        number = 0
        for _ in reader:
            number += 1
            reader.digests.clear()
        return number

    def __iter__(self) -> Iterator[tuple[Side, Side]]:
        streams: list[BinaryIO] = [open(name, "rb") for name in self.files] or [sys.stdin.buffer]
        digest = hashlib.sha256()
        number = 0
        try:
            for number, raws in enumerate(self._raw_lines(streams), start=1):
                pair = self._parse(raws, number)
                for raw in raws:
                    digest.update(raw.removesuffix(b"\n") + b"\n")
                if number % DIGEST_EVERY == 0 or (self.expected and number == self.expected[0]):
                    self._note(number, digest.hexdigest())  # before the line is handed on, and so before its links
                yield pair
        finally:
            for stream in streams if self.files else []:
                stream.close()
        if not number:
            raise ValueError(
                f"{self.name} is empty: there are no sentence pairs to align. Check the command or file they come from."
            )
        self._note(number, digest.hexdigest(), is_last=True)

    def _note(self, number: int, digest: str, is_last: bool = False) -> None:
        self.digests[number] = digest
        if not self.expected:
            return
        lines, expected = self.expected
        if (number == lines and digest != expected) or (is_last and number < lines):
            differs = f"it has only {number:,} lines" if number < lines else f"its first {lines:,} lines differ"
            raise ValueError(
                f"{self.name} is not the input of the run to go on with: {differs}. Give the input of that run, or "
                "another --output."
            )

    def _raw_lines(self, streams: list[BinaryIO]) -> Iterator[tuple[bytes, ...]]:
        if len(streams) == 1:
            yield from ((raw,) for raw in streams[0])
            return
        for number, raws in enumerate(zip_longest(*streams)):
            if None in raws:
                longer = raws.index(None) ^ 1
                raise self._unequal(longer, number, 1 + sum(1 for _ in streams[longer]))
            yield raws

    def _unequal(self, longer: int, lines: int, surplus: int) -> ValueError:
        return ValueError(
            f"{self.files[longer]} has {lines + surplus:,} lines, {self.files[1 - longer]} {lines:,}: the former is "
            f"longer by {surplus:,}. Line n of one file is the translation of line n of the other: one of them lacks "
            "a line or has one too many. Find the place, for instance with `paste`, and give files of equal length."
        )

    def _parse(self, raws: tuple[bytes, ...], number: int) -> tuple[Side, Side]:
        names = self.files or [self.name]
        lines = [decode_line(raw, name, number) for raw, name in zip(raws, names, strict=True)]
        if len(lines) == 2:
            return lines[0], lines[1]
        if not lines[0].strip():
            return "", ""
        if self.format == "jsonl":
            return self._parse_json(lines[0], number)
        sides = split_pair(lines[0])
        if len(sides) != 2:
            found = f"{len(sides) - 1} times `|||`"
            if len(sides) == 1:
                found = "`|||` without spaces around it" if PAIR_SEPARATOR in lines[0] else "no `|||`"
            raise ValueError(
                f"{self.name}, line {number}: {found} in {_shorten(lines[0])}. Correct that line; for JSONL say "
                "--format jsonl, for two files name both."
            )
        return sides[0], sides[1]

    def _parse_json(self, line: str, number: int) -> tuple[Side, Side]:
        where = f"{self.name}, line {number}"
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair can be escaped, but is no text
        except ValueError as error:
            raise ValueError(
                f"{where}: no JSON: {error}. It reads {_shorten(line)}. Correct that line; for `source ||| target` say "
                "--format text."
            ) from None
        if not isinstance(row, dict):
            raise ValueError(
                f'{where}: JSON, but no object: {_shorten(line)}. Write {{"{self.keys[0]}": ..., "{self.keys[1]}": '
                "...}."
            )
        for key in self.keys:
            if key not in row:
                raise ValueError(
                    f"{where}: no key {key!r}. The two sentences are found by their keys, {' and '.join(self.keys)}. "
                    f"{nearest(key, row)}"
                )
            value = row[key]
            if not isinstance(value, str) and not (
                isinstance(value, list) and all(isinstance(word, str) and word.strip() for word in value)
            ):
                raise ValueError(
                    f"{where}: {key!r} is {_shorten(json.dumps(value, ensure_ascii=False))}, neither text nor a list "
                    "of words."
                )
        return row[self.keys[0]], row[self.keys[1]]


def split_at_spaces(pair: tuple[Side, Side]) -> tuple[list[str], list[str]]:
    """The pair as words, which are what stands between white space in Chinese and Japanese too."""
    source, target = (side.split() if isinstance(side, str) else side for side in pair)
    return source, target


def _require_file(name: str) -> None:
    path = Path(name)
    if path.is_file() or path.is_fifo() or path.is_char_device():
        return
    if path.is_dir():
        raise ValueError(f"{name} is a folder. Name a file in it.")
    names = sorted(item.name for item in path.parent.iterdir()) if path.parent.is_dir() else []
    raise ValueError(
        f"Input file not found: {name}. Relative paths start at {Path.cwd()}. Check the path. "
        f"{nearest(path.name, names) if names else ''}".rstrip()
    )


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
