"""Lines of text files: UTF-8, plain or gzip.

    with open_input("corpus.de.gz") as stream: ...     # bytes, unpacked
    for line in read_lines("corpus.de.gz"): ...        # text without line endings

Lines end at "\\n" ("\\r\\n" counts as one ending). Other line endings of Unicode are part of the text. In a file with
"\\r" and without "\\n", as spreadsheets on a Mac write it, lines end at "\\r".
"""

import contextlib
import gzip
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"


@contextlib.contextmanager
def open_input(file: str | Path | BinaryIO) -> Iterator[BinaryIO]:
    """Opens a file, or a stream such as standard input, for reading bytes; unpacks it if it begins as gzip does.

    Raises ValueError for a damaged gzip file. At the end, a file is closed and a given stream is not.
    """
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open(file, "rb")) if isinstance(file, str | Path) else file
        if stream.peek(len(GZIP))[: len(GZIP)] != GZIP:
            yield stream
            return
        try:
            yield stack.enter_context(gzip.GzipFile(fileobj=stream, mode="rb"))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            name = file if isinstance(file, str | Path) else "standard input"
            raise ValueError(f"{name} cannot be read as gzip: {error}.") from None


def read_lines(path: str | Path) -> Iterator[str]:
    """Yields the lines of a file without their endings. Raises ValueError as `lines_of`."""
    with open_input(path) as stream:
        yield from lines_of(stream, path)


def lines_of(stream: BinaryIO, name: str | Path) -> Iterator[str]:
    """Yields the lines of a stream without their endings and without a byte order mark.

    Raises ValueError, with the line, for bytes that are not UTF-8 and for null bytes.
    """
    first = next(stream, b"").removeprefix(BOM)
    begin = [first] if b"\n" in first else first.removesuffix(b"\r").split(b"\r") if first else []
    for number, raw in enumerate(itertools.chain(begin, stream), start=1):
        try:
            line = raw.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}, line {number}: byte 0x{raw[error.start]:02x} is not UTF-8. Convert the file, for example "
                "with iconv -f cp1252 -t utf-8."
            ) from None
        if "\0" in line:
            raise ValueError(f"{name}, line {number}: the line has null bytes. Convert the file to UTF-8 text.")
        yield line
