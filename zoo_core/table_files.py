"""Rows of one file, by format: `datasets` reads parquet and JSON, and keeps the rows of all other formats on disk.

    text      one row per line, column `text`
    tsv       a header line, tabs between columns, quotes are part of the text
    csv       a header line, `delimiter` between columns; fields with a delimiter or a line ending are quoted; Excel's
              first line `sep=;` may name the delimiter
    conll     one token per line with its labels, separated by tabs or spaces, and an empty line after each sentence:
              columns of lists, `tokens`, `column_2`, ..., `tags` (the last)
    conllu    Universal Dependencies: columns of lists, `tokens`, `lemmas`, `upos`, `xpos`, ...

All values of these formats are text. Files may be compressed with gzip. `zoo_core.input_lines` defines where lines end;
rows of CSV end at "\\r" too. A column without a name gets the name `Unnamed: 0`, as in pandas, with its number from 0.
"""

import csv
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo_core.faults import are_listed, report_faults
from zoo_core.input_lines import BOM, LONGEST_LINE, open_input, read_lines
from zoo_core.json_files import LARGEST_ARRAY, check_json, is_array

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
DELIMITERS = ",;\t|"  # looked for in a header of one column
EXCEL_DELIMITER = re.compile('"?sep=(.)"?\r?', re.IGNORECASE)
CONLLU = ("tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")  # as the Hub's treebanks
JSON_TYPES = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
MIB = 2**20


def load_file(path: str, kind: str, delimiter: str | None, streaming: bool) -> "Dataset | IterableDataset":
    """Loads the rows of a file; `kind` is one of `SUFFIXES`. Raises ValueError, with the line, if it cannot be read."""
    import datasets

    file = Path(path)
    with open_input(file) as stream:
        if stream.read(len(BOM) + 1) in (b"", BOM):
            raise ValueError(f"{path} is empty. Check the program that wrote it.")
    identity = file_hash(file, partial=streaming).rpartition(":")[2]
    if kind in ("parquet", "json"):
        if kind == "json":
            check_json(file, streaming)
        try:
            # the key of the copy on disk includes the configuration's name: with the content in it, a file that was
            # rewritten within the clock's resolution is still read again
            arguments = {"name": identity[:32], "data_files": {"train": path}, "split": "train", "streaming": streaming}
            return load_as_written(functools.partial(datasets.load_dataset, kind, **arguments))
        except (datasets.exceptions.DatasetGenerationError, ValueError) as error:
            reason = kind == "json" and _mixed_in_lines(file) or first_line(error.__cause__ or error)
            raise ValueError(
                f"{path} cannot be read as {kind}: {reason}. Fix the file, or set its `format`."
            ) from error
    columns = tuple(_columns(path, kind, delimiter))  # `datasets` would treat a list as shards
    arguments = {"path": path, "kind": kind, "delimiter": delimiter, "columns": columns}
    text = datasets.Value("string")
    features = datasets.Features(dict.fromkeys(columns, datasets.List(text) if kind.startswith("conll") else text))
    if streaming:
        return datasets.IterableDataset.from_generator(_read_rows, features=features, gen_kwargs=arguments)
    # from_generator finds its copies by the fingerprint only, so it must depend on content and format
    form = f"csv{ord(delimiter) if delimiter else ''}" if kind == "csv" else kind
    fingerprint = f"{form}-{identity[:32]}"
    try:
        return datasets.Dataset.from_generator(
            _read_rows, features=features, gen_kwargs=arguments, fingerprint=fingerprint
        )
    except datasets.exceptions.DatasetGenerationError as error:
        cause = error.__cause__ or error
        if are_listed() and isinstance(cause, ValueError):
            rows = _good_rows(**arguments)
            return datasets.Dataset.from_dict({name: [row[name] for row in rows] for name in columns}, features)
        raise cause from None


def load_as_written(load: Callable[..., "Dataset | IterableDataset"]) -> "Dataset | IterableDataset":
    """Calls `load`, again where `datasets` reads JSON otherwise than it is written.

    It infers the types of columns from the first 10 MB, and dates from texts. SQuAD's own file becomes its questions.
    """
    import datasets

    try:
        dataset = load()
    except datasets.exceptions.DatasetGenerationError as error:
        try:
            dataset = load(chunksize=LARGEST_ARRAY)
        except ValueError:  # an option of JSON alone
            raise error from None
    if not isinstance(dataset, datasets.Dataset) or dataset.builder_name != "json":
        return dataset
    if "timestamp" in str(dataset.features):
        texts = _without_times(dataset.features, datasets.Value("string"))
        dataset = load(features=_without_times(dataset.features, datasets.Json()))
        dataset = dataset.map(lambda rows: {name: rows[name] for name in rows}, batched=True, features=texts)
    if "'qas'" in str(dataset.features.get("data")):
        dataset = dataset.map(_questions, batched=True, remove_columns=dataset.column_names)
    return dataset


def _without_times(feature: Any, other: Any) -> Any:
    """The feature with `other` in the place of timestamps."""
    import datasets

    if isinstance(feature, dict):
        return type(feature)({name: _without_times(own, other) for name, own in feature.items()})
    if isinstance(feature, datasets.List):
        return datasets.List(_without_times(feature.feature, other))
    return other if "timestamp" in str(getattr(feature, "dtype", "")) else feature


def _questions(batch: dict[str, list]) -> dict[str, list]:
    """The questions of SQuAD's articles: of one object, or of an object a row."""
    articles = itertools.chain.from_iterable(data if isinstance(data, list) else [data] for data in batch["data"])
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    asked = [(paragraph["context"], question) for paragraph in paragraphs for question in paragraph["qas"]]
    fields = {name: [question[name] for _, question in asked] for name in ("id", "question", "answers")}
    return {"context": [context for context, _ in asked], **fields}


def places_of_rows(path: str, kind: str, delimiter: str | None, rows: Sequence[int]) -> list[str]:
    """Returns the place of each row of a file, such as `line 7`. `rows` count from 0 and increase."""
    if not rows:
        return []
    if kind == "json":
        with open_input(path) as stream:
            is_line = next(read_lines(path)).rstrip().endswith("}")  # else one object of many lines
            kind = kind if is_line and not is_array(stream) else "array"
    if kind in ("parquet", "array"):
        return [f"row {row} (from 0)" for row in rows]
    if kind == "json":
        lines = (number for number, line in enumerate(read_lines(path), start=1) if line.strip())
    else:
        columns = tuple(_columns(path, kind, delimiter))
        lines = (number for number, _ in _numbered_rows(path, kind, delimiter, columns, faults=[]))
    wanted = set(rows)
    # stop at the last row: the rest of the file may be unreadable
    first_to_last = itertools.islice(lines, rows[-1] + 1)
    found = [f"line {line}" for row, line in enumerate(first_to_last) if row in wanted]
    return found if len(found) == len(rows) else [f"row {row} (from 0)" for row in rows]  # an object of several rows


def _read_rows(path: str, kind: str, delimiter: str | None, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for _, row in _numbered_rows(path, kind, delimiter, columns):
        yield row


def _good_rows(**arguments: Any) -> list[dict[str, Any]]:
    """Returns the rows that can be read; reports the faults of the others."""
    faults: list[str] = []
    rows = []
    try:
        for _, row in _numbered_rows(**arguments, faults=faults):
            rows.append(row)
    except ValueError as error:  # the rest of the file cannot be read
        faults.append(str(error))
    report_faults(faults, "")
    return rows


def _numbered_rows(
    path: str, kind: str, delimiter: str | None, columns: tuple[str, ...], faults: list[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields each row with its first line. Raises ValueError for a line that is not a row, or adds it to `faults`."""
    read = _read_sentences if kind.startswith("conll") else _read_records
    for line, row in read(path, kind, delimiter, columns):
        if isinstance(row, dict):
            yield line, row
        elif faults is None:
            raise ValueError(f"{path}, line {line}: {row}. Correct that line.")
        else:
            faults.append(f"{path}, line {line}: {row}")


def _columns(path: str, kind: str, delimiter: str | None) -> list[str]:
    return _conll_columns(path, kind) if kind.startswith("conll") else _header(path, kind, delimiter)


def _records(path: str, kind: str, delimiter: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the fields of each line of a text, TSV or CSV file, including the header.

    A first line `sep=;`, as Excel reads it, is left out; it sets the delimiter where none is given.
    """
    lines = read_lines(path)
    before = 0  # lines before the header
    if kind != "text":
        first = next(lines, "")
        if named := EXCEL_DELIMITER.fullmatch(first):
            before, delimiter = 1, delimiter or named[1]
        else:
            lines = itertools.chain([first], lines)
    if kind != "csv":
        for number, line in enumerate(lines, start=before + 1):
            yield number, [line] if kind == "text" else line.split("\t")
        return
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader(_ends_of_rows(lines), delimiter=delimiter or ",", strict=True)
    line = before + 1
    try:
        for fields in reader:
            if fields:
                yield line, fields
            line = before + reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {line}: {error}. Correct the quotes: inside a quoted field, write a quote twice."
        ) from None


def _ends_of_rows(lines: Iterable[str]) -> Iterator[str]:
    """Yields lines of CSV with their endings; a row may also end in "\r", which is text within quotes."""
    for line in lines:
        if "\r" in line:
            yield from re.findall("[^\r]*\r|[^\r]+", f"{line}\n")
        else:
            yield f"{line}\n"


def _header(path: str, kind: str, delimiter: str | None) -> list[str]:
    if kind == "text":
        return ["text"]
    line, columns = next(_records(path, kind, delimiter), (1, []))
    where = f"{path}, line {line}"
    if not any(columns):
        raise ValueError(
            f"{where}: the header is {columns}. Add a header line, or set format: text if the file has no columns."
        )
    # named as in pandas and `datasets`; `DataFrame.to_csv` writes its index without a name
    made_up = [f"Unnamed: {number}" for number in range(len(columns))]
    made_up = [f"{name}.1" if name in columns else name for name in made_up]
    columns = [name or other for name, other in zip(columns, made_up, strict=True)]
    if repeated := [name for name in columns if columns.count(name) > 1]:
        raise ValueError(f"{where}: more than one column is named {repeated[0]!r}. Rename the others.")
    if kind == "tsv" and any(name[:1] == name[-1:] == '"' for name in columns):
        raise ValueError(f'{where}: the header has quotes: {columns}. To read quoted fields, set delimiter: "\\t".')
    if len(columns) == 1 and (others := [mark for mark in DELIMITERS if mark in columns[0]]):
        raise ValueError(
            f"{where}: the header is one column, {columns[0]!r}. Set the character between columns, as in "
            f"delimiter: {json.dumps(others[0])}."
        )
    return columns


def _read_records(
    path: str, kind: str, delimiter: str | None, columns: tuple[str, ...]
) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yields the first line of each row of a text, TSV or CSV file, and the row, or what is wrong with it."""
    for line, fields in itertools.islice(_records(path, kind, delimiter), int(kind != "text"), None):
        if len(fields) == len(columns):
            yield line, dict(zip(columns, fields, strict=True))
        else:
            quoted = ' (delimiter: "\\t" reads quoted fields)' if kind == "tsv" and '"' in "".join(fields) else ""
            yield line, f"{len(fields)} columns, but the header has {len(columns)} ({', '.join(columns)}){quoted}"


def _token_lines(path: str, kind: str) -> Iterator[tuple[int, str, list[str] | None]]:
    """Yields number, text and fields of each line of a CoNLL file; fields are None where a sentence ends.

    Of CoNLL-U, ids, comments, and lines of several words or of none (ids 3-4 and 3.1) are left out.
    """
    marks = ("#", "-DOCSTART-")
    first = next((line for line in read_lines(path) if line.strip() and not line.startswith(marks)), "")
    separator = "\t" if kind == "conllu" or "\t" in first else " +"
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            yield number, line, None
            continue
        # not `split()`: a token may hold a no-break space
        fields = [field.strip(" ") for field in re.split(separator, line.strip(" "))]
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


def _labels(path: str) -> set[str]:
    """The labels of all lines, except those that begin with "#" before a sentence: comments, or the token "#"."""
    labels, in_sentence = set(), False
    for _, line, fields in _token_lines(path, "conll"):
        in_sentence = fields is not None and (in_sentence or not line.startswith("#"))
        if in_sentence:
            labels.add(fields[-1])
    return labels


def _read_sentences(
    path: str, kind: str, delimiter: str | None, columns: tuple[str, ...]
) -> Iterator[tuple[int, dict[str, list[str]] | str]]:
    """Yields first line and row of each sentence of a CoNLL file, or number and fault of a wrong line."""
    first, tokens = 0, []
    labels = _labels(path) if kind == "conll" and len(columns) > 1 else set()
    for number, line, fields in itertools.chain(_token_lines(path, kind), [(0, "", None)]):
        if fields is None:
            if tokens:
                yield first, dict(zip(columns, map(list, zip(*tokens, strict=True)), strict=True))
            tokens = []
        elif not tokens and line.startswith("#") and (fields[-1] not in labels or re.match(r"# [\w.-]+ = ", line)):
            continue  # a comment, which may have as many fields as the file has columns
        elif len(fields) == len(columns) and all(fields):
            first = first if tokens else number
            tokens.append(fields)
        elif not line.startswith("# " if tokens else "#"):  # else a comment
            yield (
                number,
                f"{line[:60]!r} does not have the {len(columns)} columns of the file ({', '.join(columns)})",
            )


def mixed_types(values: Iterable[Any], column: str = "") -> str | None:
    """Describes the first row whose JSON value in `column` has another type than the rows before; None without one.

    Items of lists and fields of objects are compared too. Without a column, `values` are whole rows.
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
                shown = name.replace("[]", "")
                return f"row {row} (from 0) has {kind} in column {shown}, but {seen[name]} in rows before it"
            if isinstance(part, dict):
                parts += [(f"{name}.{key}".lstrip("."), inner) for key, inner in part.items()]
            elif isinstance(part, list):
                parts += [(f"{name}[]", inner) for inner in part]
    return None


def kind_by_name(path: Path) -> str | None:
    """Returns the format for a file's ending (before `.gz`), from `SUFFIXES`; None for another ending."""
    return SUFFIXES.get(Path(path.name.lower().removesuffix(".gz")).suffix)


def _mixed_in_lines(file: Path) -> str | None:
    """Returns `mixed_types` of a file of JSON lines; None for other JSON."""
    try:
        return mixed_types(json.loads(line) for line in read_lines(file) if line.strip())
    except (ValueError, RecursionError):
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
    """Returns the first line of an error's message, without its period."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
