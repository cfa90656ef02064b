"""Rows of one file, by what it holds: `datasets` reads parquet and JSON, and keeps the rows of all others on disk.

    text      a row a line, column `text`
    tsv       a header line, tabs between columns, quotes are text
    csv       a header line, `delimiter` between columns, quoted where a field holds it or a line ending
    conll     a token and its labels a line, by tabs or spaces, an empty line after a sentence: columns `tokens`,
              `column_2`, ..., `tags` (the last) of lists
    conllu    Universal Dependencies: columns `tokens`, `lemmas`, `upos`, `xpos`, ... of lists

All values of these are text. Lines end at "\\n" only ("\\r\\n" counts as one ending), because sentences may hold
U+2028, U+0085 or "\\r".
"""

import csv
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo_core.input_lines import BOM, LONGEST_LINE, decode_line, read_lines

if TYPE_CHECKING:  # `datasets` takes seconds to import, and recipes are read for --help too
    from datasets import Dataset, IterableDataset

SUFFIXES = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".conll": "conll",
    ".conllu": "conllu",
    ".txt": "text",
}
DELIMITERS = ",;\t|"  # those that a header is searched for where it is one column
CONLLU = ("tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")  # as the Hub's treebanks
JSON_TYPES = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
MIB = 2**20


def load_file(path: str, kind: str, delimiter: str, streaming: bool) -> "Dataset | IterableDataset":
    """The rows of a file of a kind of `SUFFIXES`. Raises ValueError for what cannot be read, with the line."""
    import datasets

    file = Path(path)
    with file.open("rb") as stream:
        if stream.read(len(BOM) + 1) in (b"", BOM):
            raise ValueError(f"{path} is empty. Check where it was written.")
    identity = file_hash(file, partial=streaming).rpartition(":")[2]
    if kind in ("parquet", "json"):
        if kind == "json" and not streaming:
            _check_utf8(file)
        # the configuration's name is part of the key of the copy on disk: with the content in it, a file that was
        # rewritten within the clock's resolution is still read anew
        load = functools.partial(
            datasets.load_dataset,
            kind,
            name=identity[:32],
            data_files={"train": path},
            split="train",
            streaming=streaming,
        )
    else:
        text = datasets.Value("string")
        if kind.startswith("conll"):
            read, columns, value = _read_sentences, _conll_columns(path, kind), datasets.List(text)
        else:
            read, columns, value = _read_rows, _header(path, kind, delimiter), text
        # tuples: `datasets` takes lists here for shards
        arguments = {"path": path, "kind": kind, "delimiter": delimiter, "columns": tuple(columns)}
        settings = {"features": datasets.Features(dict.fromkeys(columns, value)), "gen_kwargs": arguments}
        if streaming:
            return datasets.IterableDataset.from_generator(read, **settings)
        # from_generator keeps its copies by the fingerprint alone, so it must name content and form
        form = f"csv{ord(delimiter)}" if kind == "csv" else kind
        load = functools.partial(
            datasets.Dataset.from_generator, read, **settings, fingerprint=f"{form}-{identity[:32]}"
        )
    try:
        return load()
    except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
        cause = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else error
        if kind not in ("parquet", "json") and isinstance(cause, ValueError):
            raise cause from None
        reason = kind == "json" and _mixed_in_lines(file) or first_line(cause or error)
        raise ValueError(
            f"{path} cannot be read as {kind}: {reason}. Repair the file, or declare its `format`."
        ) from error


def _records(path: str, kind: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line of a text, TSV or CSV file, its header included, with the number of the line."""
    lines = read_lines(path)
    if kind != "csv":
        for number, line in enumerate(lines, start=1):
            yield number, [line] if kind == "text" else line.split("\t")
        return
    csv.field_size_limit(LONGEST_LINE)
    first = 1  # line of the row: a quoted field may hold several
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if fields:
                yield first, fields
            first = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {first}: {error}. Correct the quotes: one inside of a quoted field is written twice."
        ) from None


def _header(path: str, kind: str, delimiter: str) -> list[str]:
    if kind == "text":
        return ["text"]
    _, columns = next(_records(path, kind, delimiter), (1, []))
    if len(set(columns)) < len(columns) or not all(columns) or not columns:
        raise ValueError(
            f"{path}, line 1: the header is {columns}. Add a header line, or declare `format: text` if the file has no "
            "columns."
        )
    if len(columns) == 1 and (others := [mark for mark in DELIMITERS if mark in columns[0]]):
        raise ValueError(
            f"{path}, line 1: the header is one column, {columns[0]!r}. Say what stands between columns, as in "
            f"delimiter: {json.dumps(others[0])}."
        )
    return columns


def _read_rows(path: str, kind: str, delimiter: str, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Rows of a text, TSV or CSV file with these columns."""
    records = _records(path, kind, delimiter)
    if kind != "text":
        next(records)
    for number, fields in records:
        if len(fields) != len(columns):
            raise ValueError(
                f"{path}, line {number}: {len(fields)} columns, and the header has {len(columns)} "
                f"({', '.join(columns)}). Correct that line."
            )
        yield dict(zip(columns, fields, strict=True))


def _token_lines(path: str, kind: str) -> Iterator[tuple[int, str, list[str]]]:
    """Number, text and fields of each line of a CoNLL file; no fields where a sentence ends.

    Left out are the ids of CoNLL-U, its comments, and its lines of several words or none (ids 3-4 and 3.1).
    """
    separator = "\t" if kind == "conllu" else None
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            yield number, line, []
            continue
        if separator is None and ("\t" in line or not line.startswith("#")):
            separator = "\t" if "\t" in line else " +"
        # not `split()`: a token may hold a no-break space
        fields = [field.strip(" ") for field in re.split(separator or " +", line.strip(" "))]
        if kind == "conll":
            yield number, line, fields
        elif not line.startswith("#") and not re.fullmatch(r"\d+[-.]\d+", fields[0]):
            yield number, line, fields[1:]


def _conll_columns(path: str, kind: str) -> list[str]:
    if kind == "conllu":
        return list(CONLLU)
    lines = _token_lines(path, kind)
    width = next((len(fields) for _, line, fields in lines if fields and not line.startswith("#")), 1)
    return ["tokens", *(f"column_{number}" for number in range(2, width)), *["tags"] * (width > 1)]


def _read_sentences(path: str, kind: str, delimiter: str, columns: tuple[str, ...]) -> Iterator[dict[str, list[str]]]:
    """Rows of a CoNLL file, one a sentence."""
    tokens: list[list[str]] = []
    for number, line, fields in _token_lines(path, kind):
        if not fields:
            if tokens:
                yield dict(zip(columns, map(list, zip(*tokens, strict=True)), strict=True))
            tokens = []
        elif not tokens and re.match(r"# [\w.-]+ = ", line):
            continue  # a comment, which may have as many fields as the file has columns
        elif len(fields) == len(columns) and all(fields):
            tokens.append(fields)
        elif not line.startswith("# " if tokens else "#"):  # else a comment
            raise ValueError(
                f"{path}, line {number}: {line[:60]!r} has not the {len(columns)} columns of the file "
                f"({', '.join(columns)}). Correct that line."
            )
    if tokens:
        yield dict(zip(columns, map(list, zip(*tokens, strict=True)), strict=True))


def mixed_types(values: Iterable[Any], column: str = "") -> str | None:
    """The first row whose JSON value in `column` has another type than those before, in words; None where all are of
    one. So for items of lists and fields of objects; without a column, `values` are whole rows.
    """
    seen: dict[str, str] = {}
    for row, value in enumerate(values):
        parts = [(column, value)]
        while parts:
            name, part = parts.pop(0)
            if part is None:
                continue
            kind = JSON_TYPES[type(part)]
            if seen.setdefault(name, kind) != kind:
                return f"row {row} (from 0): {kind} in column {name.replace('[]', '')}, and {seen[name]} before"
            if isinstance(part, dict):
                parts += [(f"{name}.{key}".lstrip("."), inner) for key, inner in part.items()]
            elif isinstance(part, list):
                parts += [(f"{name}[]", inner) for inner in part]
    return None


def _check_utf8(file: Path) -> None:
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            decode_line(raw, file, number)


def _mixed_in_lines(file: Path) -> str | None:
    """What `mixed_types` says of a file of JSON lines; None for other JSON."""
    with file.open(encoding="utf-8-sig") as stream:
        try:
            return mixed_types(json.loads(line) for line in stream if line.strip())
        except ValueError:
            return None


def file_hash(file: Path, partial: bool = False) -> str:
    status = file.stat()
    return _hash_of(str(file.resolve()), status.st_size, status.st_mtime_ns, partial)


@functools.lru_cache(maxsize=1024)
def _hash_of(path: str, size: int, mtime_ns: int, partial: bool) -> str:
    with open(path, "rb") as stream:
        if not partial:
            return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256(str(size).encode() + stream.read(MIB))
        stream.seek(max(size - MIB, 0))
        digest.update(stream.read(MIB))
    return "sha256-of-ends:" + digest.hexdigest()


def first_line(error: BaseException) -> str:
    """The first line of what an error says, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
