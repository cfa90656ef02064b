"""Lines of the text files that users have: UTF-8, plain or gzip, with a bound on what one line may hold.

    with open_input("corpus.de.gz") as stream: ...     # bytes, unpacked
    for line in read_lines("corpus.de.gz"): ...        # text without line endings

Lines end at "\\n" ("\\r\\n" counts as one ending): a sentence may hold what else Unicode calls an end of line. A file
without any "\\n" that has "\\r" ends its lines there, as spreadsheets on a Mac write them.
"""

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LONGEST_LINE = 2**24  # bytes: more than any sentence or document, and little enough to hold
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
OTHER_KINDS = {  # first bytes of files that are taken for text: what they are, and what to do
    b"\xff\xfe": "UTF-16. Convert it: iconv -f utf-16 -t utf-8",
    b"\xfe\xff": "UTF-16. Convert it: iconv -f utf-16 -t utf-8",
    b"PK\x03\x04": "an archive or a spreadsheet. Save its table as CSV",
    b"\xd0\xcf\x11\xe0": "a spreadsheet of an old kind. Save its table as CSV",
    b"BZh": "compressed by bzip2. Unpack it, or compress it by gzip",
    b"\xfd7zXZ": "compressed by xz. Unpack it, or compress it by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd. Unpack it, or compress it by gzip",
    b"PAR1": "a parquet file. Give it the ending .parquet, or declare format: parquet",
    **{
        b"\x80" + bytes([protocol]): "a pickle, which could run code. Write its rows as CSV or JSON lines"
        for protocol in range(2, 6)
    },
}


@contextlib.contextmanager
def open_input(file: str | Path | BinaryIO) -> Iterator[BinaryIO]:
    """The bytes of a file, or of a stream such as standard input, unpacked where its first bytes are those of gzip.

    Raises ValueError where a gzip file is damaged. Closes what it opens.
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
    """The lines of a file without their endings. Raises ValueError as `lines_of`."""
    with open_input(path) as stream:
        yield from lines_of(stream, path)


def lines_of(stream: BinaryIO, name: str | Path) -> Iterator[str]:
    """The lines of a stream without their endings, and without the byte order mark of the first.

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
    """Lines that end in "\\r", the first of them in `rest`."""
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
        f"{name}, line {number}: the line has more than {LONGEST_LINE // 2**20} MiB. Write a sentence or a document on "
        "each line."
    )


def decode_line(raw: bytes, name: str | Path, number: int) -> str:
    """The text of a line, without the byte order mark of the first. Raises ValueError for bytes that are not UTF-8."""
    if number == 1:
        raw = raw.removeprefix(BOM)
        if kind := next((kind for start, kind in OTHER_KINDS.items() if raw.startswith(start)), None):
            raise ValueError(f"{name} is {kind}.")
    if b"\0" in raw:
        raise ValueError(f"{name}, line {number}: the line has null bytes. Convert the file to text in UTF-8.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, line {number}: byte 0x{raw[error.start]:02x} is not UTF-8. Convert the file, for example with "
            "iconv -f cp1252 -t utf-8."
        ) from None
