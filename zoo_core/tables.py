"""Rows from any source: a dataset of the Hub, a local folder in the Hub's layout, or a file.

    Table(path="google/xtreme", config="XNLI", split="test")      the Hub, or <hub_root>/google/xtreme
    Table(path="sample_corpus", config="en")                      a folder whose README lists its configs
    Table(path="news.csv"), Table(path="news.en", format="text")  a file, also compressed with gzip

`datasets` reads them; its cache follows the content of files and folders. All values of these formats are text:

    text    one row per line, column `text`
    csv     as pandas reads it, with a header line; tsv: tabs between columns, quotes are part of the text
"""

import contextlib
import csv
import functools
import gzip
import hashlib
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from omegaconf import MISSING

from crosslingual_zoo.zoo_core.recipes import option, or_installed

Rows = Any  # a Dataset, or an IterableDataset if it is streamed; `datasets` takes seconds to import
FORMATS = ("parquet", "json", "csv", "tsv", "text")
SUFFIXES = {f".{name}": name for name in FORMATS[:-1]} | {".jsonl": "json", ".txt": "text"}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
DEEPEST = 16  # nested structs whose fields have dotted names
MIB = 2**20  # bytes
WHOLE_FILE = 2**31  # bytes of a file that is read at once
UNUSUAL = re.compile(r"[^\w /.,+=@-]")  # in paths; `datasets` gives a meaning to * ? [ ] :: and \\
LARGEST_INTEGER = 2**63 - 1  # whole number of Arrow
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
NO_CONFIG_OR_SPLIT = "BuilderConfig .* not found|Unknown split"  # in errors of `datasets`


class MissingTable(ValueError):
    """A table whose path, configuration or split does not exist, or a Hub that cannot be reached."""


@dataclass
class Table:
    """Rows from the Hub, a local folder in the Hub's layout, or a file."""

    path: str = option(MISSING, "Hub id (owner/name), local folder in the Hub's layout, or a file")
    config: str | None = option(None, "configuration of the dataset, where it has several")
    split: str = option("train", "split of the dataset; slices such as train[:1000] are allowed unless streamed")
    format: Literal["auto", "hub", "parquet", "json", "csv", "tsv", "text"] = option(
        "auto", f"format of `path`; auto: a folder, a Hub id, or a file by its ending ({' '.join(SUFFIXES)})"
    )
    delimiter: str | None = option(
        None, "csv only: the character between columns; a file with a delimiter is read as csv; default: a comma"
    )
    streaming: bool = option(False, "read only the first rows of a large dataset, without downloading the rest")
    revision: str | None = option(None, "branch, tag or commit of a dataset on the Hub")


def describe(table: Table) -> str:
    """Returns `path, config, split`: the name of a table in error messages and logs."""
    name = table.path
    if table.config:
        name += f", config {table.config}"
    if table.split != "train":
        name += f", split {table.split}"
    return name


def resolve_hub_path(path: str, hub_root: str | None = None) -> str:
    """Returns `<hub_root>/<path>` for a Hub id (owner/name) that this folder mirrors, else `path`, as `or_installed`.
    Raises ValueError where `hub_root` is given and is not a folder."""
    if hub_root and not Path(hub_root).is_dir():
        raise ValueError(f"hub_root is {hub_root}, which is not a folder. Name a folder of <owner>/<name>.")
    name = path.partition("@")[0]
    mirrored = Path(hub_root or "", name)
    is_mirrored = hub_root and HUB_ID.fullmatch(name) and mirrored.is_dir()
    return str(mirrored) if is_mirrored else or_installed(path)


def looks_like_missing_folder(path: str) -> bool:
    """Returns whether a name that may be a Hub id is probably the path of a local folder that does not exist."""
    folder = Path(path)
    deep = len(folder.parts) > 2 or path.startswith((".", "/", "~", "runs/"))
    return not folder.exists() and (deep or (folder.parent != Path(".") and folder.parent.is_dir()))


def _locate(table: Table, hub_root: str | None) -> tuple[str, str]:
    """(`hub` or a file format, resolved path) of a table."""
    path = resolve_hub_path(table.path, hub_root)
    ending = Path(path.lower().removesuffix(".gz")).suffix
    unfit = []  # options that such a path cannot have
    if Path(path).is_file():
        kind = _file_format(table, path, ending)
        unfit += [name for name in ("config", "revision") if getattr(table, name)]
        if table.split != "train":
            unfit.append("split")
    else:
        kind = "hub"
        if not Path(path).is_dir():
            _check_hub_id(table, path, ending)
        if table.format in FORMATS:
            unfit.append("format")
    if table.delimiter and (kind != "csv" or len(table.delimiter) > 1):
        unfit.append("delimiter")
    if unfit:
        option_text = f"{unfit[0]} {getattr(table, unfit[0])!r}"
        raise ValueError(f"{path} is read as {kind}, which has no {option_text}. Leave it out.")
    return kind, path


def _file_format(table: Table, path: str, ending: str) -> str:
    """Returns `format`, or the format of an ending."""
    kind = table.format
    if kind == "auto":
        kind = "csv" if table.delimiter else SUFFIXES.get(ending)
    if kind not in FORMATS:
        raise ValueError(f"{path} is a file of unknown format. Set `format` to one of {', '.join(FORMATS)}.")
    return kind


def _check_hub_id(table: Table, path: str, ending: str) -> None:
    """Raises ValueError for what is rather the path of a local file or folder that does not exist."""
    looks_local = table.format == "auto" and (ending in SUFFIXES or looks_like_missing_folder(path))
    if table.format in FORMATS or looks_local or not HUB_ID.fullmatch(path):
        raise MissingTable(f"{path} does not exist. For an id of the Hub, set `format: hub`.")


def load_table(table: Table, hub_root: str | None = None) -> Rows:
    """Loads the rows of `table`. Raises MissingTable for a path, configuration or split that does not exist, and
    ValueError for a file that cannot be read, options that the path cannot have, and no rows; for a line of a stream,
    when it is read."""
    kind, path = _locate(table, hub_root)
    import datasets

    with _explained(table, path, hub_root):
        rows = _load_folder(path, table) if kind == "hub" else _load_file(path, kind, table)
        if isinstance(rows, datasets.Dataset) and not len(rows):
            raise ValueError("it has no rows")
    return rows


@contextlib.contextmanager
def _explained(table: Table, path: str, hub_root: str | None) -> Generator[None]:
    """Turns errors of `datasets` and pandas into one line that names the table."""
    try:
        yield
    except Exception as error:  # of any type for a card that `datasets` cannot use, or a script
        cause = error.__cause__ or error
        is_missing = isinstance(error, FileNotFoundError | ConnectionError)  # DatasetNotFoundError, too
        if isinstance(cause, UnicodeDecodeError):
            hint = "Convert it to UTF-8, as with iconv -f cp1252 -t utf-8."
        elif is_missing:
            hint = f"Is it in {hub_root}?" if hub_root else "Is the Hub reachable?"
        elif getattr(error, "errno", None):  # of the system
            raise
        elif Path(path).is_file():
            hint = "Check the file."
        else:
            hint = "Check path, config and split, and the copy in the cache of `datasets`."
        reason = " ".join(str(cause).split()).rstrip(".")
        if re.search("corresponds to no data|No columns to parse", reason):
            reason = "it has no rows"
        error_type = MissingTable if is_missing or re.match(NO_CONFIG_OR_SPLIT, reason) else ValueError
        raise error_type(f"{describe(table)} cannot be read: {reason}. {hint}") from error


def _load_folder(path: str, table: Table) -> Rows:
    """Loads a dataset of the Hub or of a local folder."""
    import datasets

    options: dict[str, Any] = {"name": table.config, "split": table.split, "streaming": table.streaming}
    if Path(path).is_dir():
        options["cache_dir"] = str(_cache_of(Path(path)))
    else:
        options["revision"] = table.revision
    return _as_written(functools.partial(datasets.load_dataset, plain_path(path), **options))


def _cache_of(folder: Path) -> Path:
    """The cache of a folder's rows, by names, sizes and times of its files: by default, `datasets` reads old copies."""
    import datasets.config

    state: list[Any] = [str(folder.resolve())]
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            status = file.stat()
            state.append((str(file), status.st_size, status.st_mtime_ns))
    return Path(datasets.config.HF_DATASETS_CACHE, f"folder-{_short_hash(repr(state))}")


def plain_path(path: str) -> str:
    """The path, or links to the same content in the cache of `datasets`, which would read an `UNUSUAL` path as a
    pattern, or as the address of something else."""
    import datasets.config

    absolute = Path(os.path.abspath(path))
    if not (absolute.exists() and UNUSUAL.search(f"{absolute}{absolute.resolve()}")):
        return path
    if absolute.is_dir():  # a real folder with links to files: `datasets` resolves a link to a folder
        plain = _cache_of(Path(path)) / "links"
        files = [file for file in absolute.rglob("*") if file.is_file()]
    else:
        plain = Path(datasets.config.HF_DATASETS_CACHE, "links", _short_hash(str(absolute)))
        files = [absolute]
    for file in files:
        link = plain / file.relative_to(absolute)
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(file)
    return str(plain)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _load_file(path: str, kind: str, table: Table) -> Rows:
    import datasets

    identity = file_hash(Path(path), table.streaming).rpartition(":")[2][:32]  # a changed file is read again
    if kind == "text":
        options = {"gen_kwargs": {"path": path}, "features": datasets.Features(text=datasets.Value("string"))}
        if table.streaming:
            return datasets.IterableDataset.from_generator(_text_rows, **options)
        return datasets.Dataset.from_generator(_text_rows, **options, fingerprint=f"text-{identity}")
    options = {"json": {"encoding": "utf-8-sig"}}.get(kind, {})  # with "utf-8", bytes are not checked
    if kind in ("csv", "tsv"):
        options = _csv_options(path, kind, table.delimiter)
        kind = "csv"
    options |= {"name": identity, "data_files": {"train": plain_path(path)}}
    return _as_written(
        functools.partial(datasets.load_dataset, kind, split="train", streaming=table.streaming, **options)
    )


def _text_rows(path: str) -> Iterator[dict[str, str]]:
    yield from ({"text": line} for line in read_lines(path))


def _csv_options(path: str, kind: str, delimiter: str | None) -> dict[str, Any]:
    """Arguments of pandas with which all values are text as written, with the columns of the header as features."""
    import datasets
    import pandas

    options: dict[str, Any] = {"sep": delimiter or ",", "keep_default_na": False, "encoding": "utf-8-sig"}
    if kind == "tsv":
        options |= {"sep": "\t", "quoting": csv.QUOTE_NONE, "skip_blank_lines": False}
    with open_input(path) as stream:
        header = stream.readline()
    if header.endswith(b"\n") and b"\r" not in header:
        options["lineterminator"] = "\n"  # "\r" is part of a text
    with open_input(path) as stream:
        head = pandas.read_csv(stream, nrows=1, dtype=object, **options)
    if not isinstance(head.index, pandas.RangeIndex):
        raise ValueError(f"row 0 (from 0) has more columns than the header, {', '.join(head.columns)}")
    return options | {"features": datasets.Features(dict.fromkeys(head.columns, datasets.Value("string")))}


def _as_written(load: Callable[..., Rows]) -> Rows:
    """Calls `load`, again where `datasets` reads JSON otherwise than it is written: it infers the types of columns from
    the first 10 MB, and dates from texts."""
    import datasets.exceptions

    try:
        rows = load()
    except datasets.exceptions.DatasetGenerationError as error:
        try:
            rows = load(chunksize=WHOLE_FILE)
        except ValueError:  # an option of JSON alone
            raise error from None
    is_json = isinstance(rows, datasets.Dataset) and rows.builder_name == "json"
    if not is_json or "timestamp" not in str(rows.features):
        return rows
    as_json = _without_timestamps(rows.features, {"_type": "Json"})
    as_text = _without_timestamps(rows.features, {"_type": "Value", "dtype": "string"})
    return load(features=as_json).map(dict, batched=True, features=as_text)


def _without_timestamps(features: Any, replacement: dict[str, str]) -> Any:
    """The features with another one, as `Features.to_dict` writes it, in the place of timestamps."""
    text = re.sub(r'{"dtype": "timestamp[^}]*}', json.dumps(replacement), json.dumps(features.to_dict()))
    return type(features).from_dict(json.loads(text))


@contextlib.contextmanager
def open_input(file: str | Path | BinaryIO) -> Generator[BinaryIO]:
    """Opens a file, or takes a stream such as standard input, which stays open, and unpacks bytes that begin as gzip.
    Raises ValueError for a damaged gzip file."""
    with contextlib.ExitStack() as stack:
        stream: Any = file
        if isinstance(file, str | Path):
            stream = stack.enter_context(open(file, "rb"))
        if stream.peek(len(GZIP))[: len(GZIP)] == GZIP:
            stream = stack.enter_context(gzip.GzipFile(fileobj=stream, mode="rb"))
        try:
            yield stream
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            name = file if isinstance(file, str | Path) else "standard input"
            raise ValueError(f"{name} cannot be read as gzip: {error}.") from None


def read_lines(path: str | Path) -> Iterator[str]:
    """Yields the lines of a file without their endings. Raises ValueError as `lines_of`."""
    with open_input(path) as stream:
        yield from lines_of(stream, path)


def lines_of(stream: BinaryIO, name: str | Path) -> Iterator[str]:
    """Yields the lines of a stream without a byte order mark and their endings: line feeds with or without a carriage
    return, or, in a file without line feeds, as spreadsheets on a Mac write it, carriage returns. Raises ValueError,
    with the line, for bytes that are not UTF-8 and for null bytes."""
    first = next(stream, b"").removeprefix(BOM)
    beginning = [first] if first else []
    if first and b"\n" not in first:
        beginning = first.removesuffix(b"\r").split(b"\r")
    for number, raw in enumerate(itertools.chain(beginning, stream), start=1):
        try:
            line = raw.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{raw[error.start]:02x} is not UTF-8. Convert the file, as with iconv -f cp1252 -t utf-8."
            raise ValueError(f"{name}, line {number}: {wrong}") from None
        if "\0" in line:
            raise ValueError(f"{name}, line {number}: the line has null bytes. Convert the file to UTF-8 text.")
        yield line


def table_fingerprint(table: Table, hub_root: str | None, dataset: Rows) -> str:
    """Returns a fingerprint of the rows of `table`: a copy has the same, changed content another one. It is of the
    content of files, of the Hub's commit, or that of `datasets` where the Hub does not answer."""
    kind, path = _locate(table, hub_root)
    if kind != "hub":
        return file_hash(Path(path), table.streaming)
    import datasets

    try:
        builder = datasets.load_dataset_builder(plain_path(path), table.config, revision=table.revision)
        data_files: Any = builder.config.data_files
        files = sorted(str(file) for split in data_files.values() for file in split)
    except (OSError, ValueError):
        return f"datasets:{dataset._fingerprint}" if hasattr(dataset, "_fingerprint") else f"hub:{table.revision}"
    digest = hashlib.sha256(table.split.encode())
    for file in files:
        identity = file  # hf://datasets/owner/name@commit/..., which determines the content
        if Path(file).is_file():
            identity = Path(file).name + file_hash(Path(file), table.streaming)
        digest.update(identity.encode())
    return f"sha256:{digest.hexdigest()}"


def file_hash(file: Path, partial: bool = False) -> str:
    """Returns the sha256 of a file's content; `partial`: of its size, its first and its last MiB."""
    status = file.stat()
    return _hash_of(str(file.resolve()), status.st_size, status.st_mtime_ns, partial)


@functools.lru_cache(maxsize=1024)
def _hash_of(path: str, size: int, mtime_ns: int, partial: bool) -> str:
    with open(path, "rb") as stream:
        if not partial:
            return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
        begin = stream.read(MIB)
        stream.seek(max(size - MIB, 0))
        end = stream.read(MIB)
    return f"sha256-of-ends:{hashlib.sha256(str(size).encode() + begin + end).hexdigest()}"


def require_column(dataset: Rows, column: str, where: str = "the table") -> Any:
    """Returns the type (`datasets` feature) of a column; a dotted path such as `translation.en` names a struct's field.

    Raises ValueError if the table `where` has no such column, for values of several types, and for numbers that Arrow
    cannot hold exactly."""
    columns = columns_of(dataset)
    if column not in columns:
        hint = ""
        wrapper = _wrapper_of(dataset, columns)
        if wrapper:
            hint = f" The key {wrapper} wraps a list of objects. If these are the rows, write the list alone."
        raise ValueError(f"{where} has no column {column}. Its columns are: {', '.join(columns)}.{hint}")
    feature = columns[column]
    if "Json(" in repr(feature):  # what `datasets` makes of several types
        rows_by_type = _rows_by_type(dataset, column)
        raise ValueError(
            f"{where} has values of several types in column {column}: {rows_by_type} (from 0). Write one type."
        )
    if _has_rounded_numbers(dataset, column, feature):
        raise ValueError(
            f"{where} has numbers from 2^63 on in column {column}, whose last digits are lost. Write them as text, in "
            "quotes."
        )
    return feature


def _wrapper_of(dataset: Rows, columns: dict[str, Any]) -> str | None:
    """Returns the key of a JSON object around its rows, `{"data": [{...}, ...]}`; None for other tables."""
    import datasets

    if not isinstance(dataset, datasets.Dataset) or len(dataset) != 1:
        return None
    for name, feature in columns.items():
        if isinstance(feature, datasets.List) and isinstance(feature.feature, dict):
            return name
    return None


def _rows_by_type(dataset: Rows, column: str) -> dict[str, str]:
    """Returns {type: first row} of the values of a column, and of those in its lists."""
    rows_by_type: dict[str, str] = {}
    for row, values in enumerate(dataset):
        value = get_column(values, column)
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                rows_by_type.setdefault(type(item).__name__, f"row {row}")
    return rows_by_type


def _has_rounded_numbers(dataset: Rows, column: str, feature: Any) -> bool:
    """Returns whether a column has numbers beyond 64 bits: whole numbers in JSON become floats, and may be equal."""
    import datasets
    from pyarrow import compute

    if not isinstance(dataset, datasets.Dataset) or getattr(feature, "dtype", None) != "float64":
        return False
    values = dataset.flatten(max_depth=DEEPEST).data.column(column)
    ends = compute.min_max(values).as_py()  # pyrefly: ignore[missing-attribute]  # made at import
    return any(end is not None and abs(end) > LARGEST_INTEGER for end in ends.values())


def get_column(rows: dict[str, Any], column: str) -> Any:
    """Returns the value of a column in a row, or its values in a batch; dotted paths name fields of structs."""
    if column in rows:
        return rows[column]
    struct_name, _, field_name = column.partition(".")
    struct = rows[struct_name]
    if isinstance(struct, list):
        return [item and get_column(item, field_name) for item in struct]
    return get_column(struct, field_name) if struct else struct


def columns_of(dataset: Rows) -> dict[str, Any]:
    """Returns {dotted name: feature} of the columns, structs before their fields."""
    import datasets

    # a stream may not declare its columns
    features = dataset.features or datasets.Dataset.from_list(list(dataset.take(1))).features
    columns: dict[str, Any] = {}
    for depth in range(1, DEEPEST):
        num_columns = len(columns)
        columns |= features.flatten(max_depth=depth)
        if len(columns) == num_columns:  # there are no structs left
            break
    return columns
