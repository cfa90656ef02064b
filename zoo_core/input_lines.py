"""Lines of text files: UTF-8, plain or gzip, with a limit on the length of a line.

    with open_input("corpus.de.gz") as stream: ...     # bytes, unpacked
    for line in read_lines("corpus.de.gz"): ...        # text without line endings

Lines end at "\\n" ("\\r\\n" counts as one ending). Other line endings of Unicode are part of the text. In a file with
"\\r" and without "\\n", as spreadsheets on a Mac write it, lines end at "\\r".
"""

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LONGEST_LINE = 2**24  # bytes: more than any sentence or document, and small enough for memory
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
OTHER_KINDS = {  # first bytes of files that users give as text: what they are, and what to do
    b"\xff\xfe": "UTF-16. Convert it: iconv -f utf-16 -t utf-8",
    b"\xfe\xff": "UTF-16. Convert it: iconv -f utf-16 -t utf-8",
    b"PK\x03\x04": "an archive or a spreadsheet. Save its table as CSV",
    b"\xd0\xcf\x11\xe0": "a spreadsheet in an old format. Save its table as CSV",
    b"BZh": "compressed with bzip2. Unpack it, or compress it with gzip",
    b"\xfd7zXZ": "compressed with xz. Unpack it, or compress it with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd. Unpack it, or compress it with gzip",
    b"PAR1": "a parquet file. Rename it to end in .parquet, or set format: parquet",
    **{
        b"\x80" + bytes([protocol]): "a pickle, which could run code. Write its rows as CSV or JSON lines"
        for protocol in range(2, 6)
    },
}


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

    Raises ValueError, with the line, for bytes that are not UTF-8 and for a line of more than `LONGEST_LINE` bytes.
    """
    for number, raw in enumerate(_raw_lines(stream, name), start=1):
        yield decode_line(raw, name, number)


def _raw_lines(stream: BinaryIO, name: str | Path) -> Iterator[bytes]:
    number = 0
    while raw := stream.readline(LONGEST_LINE + len(b"\r\n")):
        number += 1
        if number == 1 and b"\n" not in raw and b"\r" in raw:
            yield from _lines_by_return(stream, raw, name)
            return
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        if len(line) > LONGEST_LINE:
            raise _too_long(name, number)
        yield line


def _lines_by_return(stream: BinaryIO, rest: bytes, name: str | Path) -> Iterator[bytes]:
    """Yields lines that end in "\\r"; `rest` is the beginning of the stream."""
    number = 0
    while rest:
        *lines, rest = rest.split(b"\r")
        for line in lines:
            number += 1
            yield line
        if len(rest) > LONGEST_LINE:
            raise _too_long(name, number + 1)
        more = stream.read(LONGEST_LINE)
        if not more:
            break
        rest += more
    if rest:
        yield rest


def _too_long(name: str | Path, number: int) -> ValueError:
    return ValueError(
        f"{name}, line {number}: the line is longer than {LONGEST_LINE // 2**20} MiB. Write one sentence or document "
        "per line."
    )


def decode_line(raw: bytes, name: str | Path, number: int) -> str:
    """Decodes a line, without a byte order mark on line 1. Raises ValueError for bytes that are not UTF-8."""
    if number == 1:
        raw = raw.removeprefix(BOM)
        if kind := next((kind for start, kind in OTHER_KINDS.items() if raw.startswith(start)), None):
            raise ValueError(f"{name} is {kind}.")
    if b"\0" in raw:
        raise ValueError(f"{name}, line {number}: the line has null bytes. Convert the file to UTF-8 text.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, line {number}: byte 0x{raw[error.start]:02x} is not UTF-8. Convert the file, for example with "
            "iconv -f cp1252 -t utf-8."
        ) from None
