"""Checks of a table's JSON file before `datasets` and pyarrow read it.

The time of pyarrow's reader grows with the square of the nesting depth. Very deep nesting ends the program, and pyarrow
writes no copy of more than 64 levels. `datasets` keeps a whole array in memory, and unpacks gzip without a size limit.
"""

import re
from array import array
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from zoo_core.input_lines import BOM, LONGEST_LINE, decode_line, lines_of, open_input

DEEPEST = 32  # nested lists and objects; tables of tasks have up to six
LARGEST_ARRAY = 2**31  # bytes of a file that is one array: `datasets` takes several times as much memory
BLANKS = b" \t\r\n"
ESCAPED = re.compile(rb"\\.", re.DOTALL)
STEPS = bytes(1 if byte in b"[{" else 255 for byte in range(256))  # of the depth, as signed bytes
NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def check_json(file: Path, is_streamed: bool = False) -> None:
    """Checks encoding, nesting and size of a file of JSON lines, or of one JSON array, plain or gzip.

    Only the beginning of a streamed file is checked.

    Raises ValueError, with the line number.
    """
    with open_input(file) as stream:
        chunks, read = (_array if is_array(stream) else _lines)(stream, file), 0
        depth, in_string, rest, is_between = 0, 0, b"", True
        for place, chunk in chunks:
            if is_streamed and read > LONGEST_LINE:
                return
            read += len(chunk)
            line = chunk.strip(BLANKS)
            # Nearly every line is a row. If its last } is in a string or ends an inner object, then in valid JSON the
            # next line cannot begin with {. So at most one line is skipped without being counted.
            is_row = line.startswith(b"{") and line.endswith(b"}")
            if not line or is_between and is_row and line.count(b"{") + line.count(b"[") <= DEEPEST:
                continue
            chunk = ESCAPED.sub(b"", rest + chunk)
            rest = b"\\" if chunk.endswith(b"\\") else b""  # the escaped character is in the next chunk
            parts = chunk.translate(None, NOT_STRUCTURE).split(b'"')
            depths = list(accumulate(array("b", b"".join(parts[in_string::2]).translate(STEPS)), initial=depth))
            in_string ^= (len(parts) - 1) % 2
            if max(depths) > DEEPEST:
                raise ValueError(f"{place}: lists or objects are nested more than {DEEPEST} deep. Flatten them.")
            depth = depths[-1]
            is_between = not (depth or in_string or rest) and line.endswith(b"}")


def is_array(stream: BinaryIO) -> bool:
    """Returns whether a stream of `open_input` begins with a JSON array; the stream's position does not change."""
    return stream.peek(LONGEST_LINE).removeprefix(BOM).lstrip(BLANKS).startswith(b"[")


def _lines(stream: BinaryIO, file: Path) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(lines_of(stream, file), start=1):
        yield f"{file}, line {number}", line.encode()


def _array(stream: BinaryIO, file: Path) -> Iterator[tuple[str, bytes]]:
    """Yields parts of an array: its lines, decoded as a check, or pieces of a long line."""
    number = read = 0
    while chunk := stream.readline(LONGEST_LINE):
        number, read = number + 1, read + len(chunk)
        if read > LARGEST_ARRAY:
            raise ValueError(
                f"{file} is an array of more than {LARGEST_ARRAY // 2**30} GiB. Write one object per line instead."
            )
        if chunk.endswith(b"\n"):
            decode_line(chunk, file, number)
        yield f"{file}, line {number}", chunk
