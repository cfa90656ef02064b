"""Sentence pairs for the word aligner, read one by one: lines, two files, tables, JSONL, TMX or XLIFF.

    pairs = PairReader(["corpus.de", "corpus.en"])
    total = pairs.check()                          # reads the whole input once, before hours of work
    for source, target in pairs: ...               # lists of words; strings where the input is text without words

A line holds words, as for fast_align, eflomal, simalign and awesome-align. Spaces and tabs separate them; no
other character separates them. JSON strings, TMX and XLIFF hold text, which the aligner splits.

Files may be gzip files, and lines end as in `zoo_core.tables.lines_of`. Memory does not grow with the input.
"""

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, BinaryIO

from crosslingual_zoo.finetuning.align.xml_pairs import ROOTS, XmlPairs, root_of
from crosslingual_zoo.zoo_core.tables import lines_of, open_input

Side = str | list[str]
Row = tuple[str, ...]  # the raw text of a pair: its line of each file, or its two texts

STDIN = "-"
PAIR_SEPARATOR = "|||"  # between a sentence and its translation on one line, as word aligners write them
FORMATS = ("text", "csv", "jsonl", *ROOTS)
ENDINGS = {
    "csv": (".csv",),
    "jsonl": (".jsonl", ".json"),
    "tmx": (".tmx",),
    "xliff": (".xliff", ".xlf", ".sdlxliff", ".mqxliff", ".mxliff"),  # ..., Trados, memoQ, Phrase
}
FILE_ENDINGS = (".txt", ".tsv", ".conll", ".conllu", ".xml", *chain.from_iterable(ENDINGS.values()))

BLANKS = " \t\n"  # lines have no newlines; JSON strings, cells of CSV and XML have
WORD = re.compile(f"[^{BLANKS}]+")
SEPARATOR = re.compile(rf"(?<![^{BLANKS}]){re.escape(PAIR_SEPARATOR)}(?![^{BLANKS}])")
# letters of the scripts without blanks between words: Thai, Lao, Burmese, Khmer; kana and Han
UNSPACED = re.compile(
    "[\u0e01-\u0e2e\u0e81-\u0eae\u1000-\u102a\u1780-\u17a2\u3005-\u3007\u3041-\u30fa\u30fc-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
UNSPACED_LETTERS = 4  # of a word, on average over a sentence: segmented Chinese has 3.5 or less in 450 sentences
# . , ; : ! ? and the like, also Armenian, Arabic, Devanagari, Ethiopic and Chinese ones
MARKS = (
    ".,;:!?\u2026\u0589\u060c\u061b\u061f\u06d4\u0964\u0965\u1362-\u1368\u3001\u3002"
    "\uff01\uff0c\uff0e\uff1a\uff1b\uff1f"
)
# the end of a word like `house,` or `U.S.`; it begins with a mark, so that a search is fast
GLUED = re.compile(f"[{MARKS}](?<=[^{BLANKS}{MARKS}].)[{MARKS}]*(?![^{BLANKS}])")


class PairReader:
    """The sentence pairs of one or two files, or of standard input.

    files: none or "-" (standard input), one file of pairs, or a file of source and one of target sentences. format: one
    of `FORMATS`, or "auto": from the file's ending (`ENDINGS`), from the first element of other XML, or else text. A
    line of text is a pair by `|||` between blanks, or else by a tab. columns: of source and target: names in CSV and
    JSONL (default: "source" and "target"), numbers from 1 in text with tabs. languages: see `XmlPairs`. split: whether
    sentences come as strings, for the aligner to split, or as the words between blanks; default: lines and CSV as
    words, other text as strings. Lists of words stay unchanged. sentences: a pair to use instead of files.

    An empty line is a pair of empty sentences, so that lines keep their numbers. `splits_lines`: whether lines or cells
    of CSV, whose words are between blanks, are split further. `running_text`: see `count_running_text`, for the current
    pass.

    Raises ValueError for files and options that do not fit; reading raises it for a line that is no pair, with its
    number, and if there is none.
    """

    def __init__(
        self,
        files: list[str],
        format: str = "auto",
        columns: Sequence[str] | None = None,
        languages: tuple[str, str] | None = None,
        split: bool | None = None,
        sentences: tuple[str, str] | None = None,
    ):
        self.files = _checked([] if sentences else list(files))
        if format == "auto":
            format = _format_of(self.files[0]) if self.files else "text"
        self.format = format
        self.sentences = sentences
        self.columns = columns
        self.requested_languages = languages
        self.languages = languages
        self.running_text: Counter[str] = Counter()
        has_words = format in ("text", "csv") and not sentences
        self.splits_text = not has_words if split is None else split
        self.splits_lines = self.splits_text and has_words
        self.name = " and ".join(self.files) or "standard input"
        if sentences:
            self.name = "two sentences"
        is_two = bool(sentences) or len(self.files) == 2
        unfit = {
            f"format {format}": format != "text" and is_two,
            "--columns": columns and (format in ROOTS or is_two),
            "--languages": languages and format not in ROOTS,
        }
        for option, is_unfit in unfit.items():
            if is_unfit:
                raise ValueError(f"{option} does not fit the input, {self.name}, which is read as {format}.")
        if columns and format == "text" and not all(re.fullmatch("[1-9][0-9]{0,5}", name) for name in columns):
            raise ValueError(
                f"--columns is {' '.join(columns)}: the columns of {self.name} have numbers, from 1. Names need "
                "--format csv or --format jsonl."
            )

    def check(self, process: int = 0, processes: int = 1) -> int | None:
        """Reads all files once and returns the number of pairs; None for a pipe, which can be read only once.

        Of several processes, each checks only its share of the pairs.
        """
        is_pipe = not self.files or not all(Path(name).is_file() for name in self.files)
        if is_pipe and not self.sentences:
            return None
        self.running_text.clear()
        for number, row in enumerate(self.rows()):
            if number % processes == process:
                self.parse(row, number)
        return number + 1

    def __iter__(self) -> Iterator[tuple[Side, Side]]:
        self.running_text.clear()
        return (self.parse(row, number) for number, row in enumerate(self.rows()))

    def rows(self) -> Iterator[Row]:
        """What is read for each pair."""
        if self.sentences:
            yield self.sentences
            return
        row = None
        with ExitStack() as stack:
            streams = [stack.enter_context(open_input(file)) for file in self.files or [sys.stdin.buffer]]
            for row in self._read(streams):
                yield row
        if row is None:
            raise ValueError(f"{self.name} is empty: there are no sentence pairs to align.")

    def _read(self, streams: list[BinaryIO]) -> Iterable[Row]:
        if self.format in ROOTS:
            return self._read_xml(streams[0])
        sides = list(map(lines_of, streams, self.files or [self.name]))
        if self.format == "csv":
            return self._read_csv(sides[0])
        if len(sides) == 2:
            return self._read_two(sides)
        return ((line,) for line in sides[0])

    def _read_xml(self, stream: BinaryIO) -> Iterator[Row]:
        pairs = XmlPairs(stream, self.name, self.format, self.requested_languages)
        for pair in pairs:
            self.languages = pairs.languages
            yield pair

    def _read_csv(self, lines: Iterator[str]) -> Iterator[Row]:
        rows = csv.DictReader((f"{line}\n" for line in lines), strict=True)
        source, target = self.columns or ("source", "target")
        try:
            for row in rows:
                for name in (source, target):
                    if row.get(name) is None:
                        names = ", ".join(rows.fieldnames or ())
                        raise ValueError(
                            f"{self.name}, line {rows.line_num}: no value of column {name!r}; the columns are {names}. "
                            "--columns names the two of a pair."
                        )
                yield row[source], row[target]
        except csv.Error as error:
            raise ValueError(f"{self.name}, line {rows.line_num + 1}: no CSV: {error}.") from None

    def _read_two(self, sides: list[Iterator[str]]) -> Iterator[Row]:
        for number, lines in enumerate(zip_longest(*sides)):
            if None in lines:
                shorter = lines.index(None)
                longer = 1 - shorter
                count = number + 1 + sum(1 for _ in sides[longer])
                raise ValueError(
                    f"{self.files[longer]} has {count:,} lines, {self.files[shorter]} {number:,}. Line n of one "
                    "file translates line n of the other."
                )
            yield lines

    def parse(self, row: Row, number: int) -> tuple[Side, Side]:
        """The pair of a row; `number` counts rows from 0. Raises ValueError for a line that holds none."""
        if len(row) == 2:
            pair: tuple[Side, Side] = row[0], row[1]
        elif not row[0].strip():
            pair = "", ""
        else:
            pair = self._parse(row[0], f"{self.name}, line {number + 1}")
        if self.splits_text:
            return pair
        words = split_at_blanks(pair)
        count_running_text(pair, words, self.running_text)
        return words

    def _parse(self, line: str, where: str) -> tuple[Side, Side]:
        if self.format == "jsonl":
            return self._parse_json(line, where)
        sides = line.split("\t")
        if self.columns:
            numbers = [int(column) for column in self.columns]
            if max(numbers) > len(sides):
                raise ValueError(
                    f"{where}: --columns is {' '.join(self.columns)}, and the line has {len(sides)} columns between "
                    f"tabs: {_shorten(line)}."
                )
            sides = [sides[number - 1] for number in numbers]
        elif SEPARATOR.search(line):
            sides = SEPARATOR.split(line)
        if len(sides) != 2:
            raise ValueError(
                f"{where}: no pair by one `{PAIR_SEPARATOR}` between spaces, or by one tab: {_shorten(line)}. Give two "
                "files if each holds one language. A table needs --columns, another format --format."
            )
        return sides[0].strip(BLANKS), sides[1].strip(BLANKS)

    def _parse_json(self, line: str, where: str) -> tuple[Side, Side]:
        try:
            row = json.loads(line)
            # half of a surrogate pair can be escaped, but is no text; NaN and infinity are read, but no JSON
            json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: no JSON: {error}. It reads {_shorten(line)}.") from None
        source, target = self.columns or ("source", "target")
        for key in (source, target):
            if not isinstance(row, dict) or not _is_side(row.get(key)):
                raise ValueError(
                    f"{where}: no text or list of words with the key {key!r}: {_shorten(line)}. --columns names the "
                    "two keys of a pair."
                )
        return row[source], row[target]


def _is_side(value: Any) -> bool:
    """Whether a value of JSON is text, or a list of words, none of which is blank."""
    if isinstance(value, list):
        return all(isinstance(word, str) and word.strip(BLANKS) for word in value)
    return isinstance(value, str)


def split_at_blanks(pair: tuple[Side, Side]) -> tuple[list[str], list[str]]:
    """Returns the pair as words, split at spaces and tabs. Lists of words stay unchanged."""
    source, target = pair
    return _words_of(source), _words_of(target)


def _words_of(side: Side) -> list[str]:
    return WORD.findall(side) if isinstance(side, str) else side


def is_split_further(text: Side, number_of_words: int) -> bool:
    """Whether a text was split into another number of words than are between its blanks."""
    return isinstance(text, str) and len(WORD.findall(text)) != number_of_words


def count_running_text(pair: tuple[Side, Side], words: tuple[list[str], list[str]], counts: Counter[str]) -> None:
    """Counts what shows that a pair, whose words between blanks are given, is running text.

    `unspaced`: pairs with a side in a script without blanks (`is_unspaced`). `words`: those of other sides, and
    `glued`: how many of these end in a punctuation mark. Lists of words do not count.
    """
    has_unspaced = False
    for side, words_of_side in zip(pair, words, strict=True):
        if not isinstance(side, str):
            continue
        if is_unspaced(side):
            has_unspaced = True
            continue
        counts["words"] += len(words_of_side)
        counts["glued"] += len(GLUED.findall(side))
    counts["unspaced"] += has_unspaced


def is_unspaced(text: str) -> bool:
    """Whether a sentence in Chinese, Japanese, Thai, Lao, Khmer or Burmese looks as if no blanks separate its words."""
    if not UNSPACED.search(text):
        return False
    words = filter(UNSPACED.search, WORD.findall(text))
    letters = [len(UNSPACED.findall(word)) for word in words]
    return sum(letters) >= UNSPACED_LETTERS * len(letters)


def _checked(files: list[str]) -> list[str]:
    """The files, none for standard input. Raises ValueError for more than two, and for one that does not exist."""
    if len(files) > 2 or (len(files) == 2 and STDIN in files):
        raise ValueError(f"The input is {' '.join(files)}. Give none, one or two files.")
    if files == [STDIN]:
        return []
    for file in files:
        if not Path(file).exists() or Path(file).is_dir():
            hint = " Sentences can be given on standard input: `a b ||| c d`." if " " in file else ""
            raise ValueError(f"Input file not found: {file}.{hint}")
    return files


def _format_of(file: str) -> str:
    name = file.lower().removesuffix(".gz")
    for format, endings in ENDINGS.items():
        if name.endswith(endings):
            return format
    if not Path(file).is_file():  # a pipe can be read only once
        return "text"
    with open_input(file) as stream:
        root = root_of(stream)
    if name.endswith(".xml") and root not in ROOTS:
        raise ValueError(f"{file} is neither TMX nor XLIFF. Lines of text need --format text.")
    return root if root in ROOTS else "text"


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
