"""Rows from any source: a dataset of the Hub, a local folder in the Hub's layout, or a file.

    Table(path="google/xtreme", config="XNLI", split="test")      the Hub, or <hub_root>/google/xtreme
    Table(path="sample_corpus", config="en")                      a folder whose README lists its configs
    Table(path="news.csv"), Table(path="news.en", format="text")  a file

`datasets` reads them; its cache follows the content of files and folders. All values of these formats are text:

    text      one row per line, column `text`
    csv       as pandas reads it: a header line, `delimiter` between columns, quoted fields
    tsv       a header line, tabs between columns, quotes are part of the text
    conll     one token per line with its labels, separated by tabs or spaces, and an empty line after each sentence:
              columns of lists, `tokens`, `column_2`, ..., `tags` (the last)
    conllu    Universal Dependencies: columns of lists, `tokens`, `lemmas`, `upos`, `xpos`, ...

Files may be compressed with gzip.
"""

import contextlib
import csv
import functools
import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from omegaconf import MISSING

from zoo_core.input_lines import open_input, read_lines
from zoo_core.recipes import nearest, option, or_installed

if TYPE_CHECKING:  # `datasets` takes seconds to import, and recipes are read for --help too
    from datasets import Dataset, IterableDataset

logger = logging.getLogger(__name__)

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
CONLLU = ("tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")  # as the Hub's treebanks
PAIR_SEPARATOR = "|||"  # between a sentence and its translation on one line, as word aligners write them
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
DEEPEST = 16  # nested structs whose fields have dotted names
MIB = 2**20
WHOLE_FILE = 2**31  # bytes


@dataclass
class Table:
    """Rows from the Hub, a local folder in the Hub's layout, or a file."""

    path: str = option(MISSING, "Hub id (owner/name), local folder in the Hub's layout, or a file")
    config: str | None = option(None, "configuration of the dataset, where it has several")
    split: str = option("train", "split of the dataset; slices such as train[:1000] are allowed unless streamed")
    format: Literal["auto", "hub", "parquet", "json", "csv", "tsv", "conll", "conllu", "text"] = option(
        "auto", f"format of `path`; auto: a folder, a Hub id, or a file by its ending ({' '.join(SUFFIXES)})"
    )
    delimiter: str | None = option(
        None, "csv only: the character between columns; a file with a delimiter is read as csv; default: a comma"
    )
    streaming: bool = option(False, "read only the first rows of a large dataset, without downloading the rest")
    revision: str | None = option(None, "branch, tag or commit of a dataset on the Hub")


def split_pair(line: str, separator: str = PAIR_SEPARATOR) -> list[str]:
    """Splits a line at `separator`, which has white space or an end of the line on both sides; a pair has two parts.

    A blank line is a pair of empty sentences.
    """
    if not line.strip():
        return ["", ""]
    return [part.strip() for part in re.split(rf"(?<!\S){re.escape(separator)}(?!\S)", line)]


def resolve_hub_path(path: str, hub_root: str | None = None) -> str:
    """Returns `<hub_root>/<path>` where `path` is a Hub id (owner/name) that this folder mirrors, else `path` itself.

    A path of the sample corpus that does not exist becomes that of the installed one. Raises ValueError where
    `hub_root` is given and is not a folder.
    """
    if hub_root is None:
        return or_installed(path)
    if not Path(hub_root).is_dir():
        raise ValueError(f"hub_root is {hub_root}, which is not a folder. Name a folder of <owner>/<name>.")
    name, _, revision = path.partition("@")
    mirrored = Path(hub_root) / name
    if not HUB_ID.fullmatch(name) or not mirrored.is_dir():
        return or_installed(path)
    if revision:
        logger.warning("%s is read from %s; its revision %s is not checked", name, mirrored, revision)
    return str(mirrored)


def load_table(table: Table, hub_root: str | None = None) -> "Dataset | IterableDataset":
    """Loads the rows of `table`: a `datasets.Dataset`, or an `IterableDataset` where it is streamed.

    Raises ValueError for a path that does not exist, an unknown configuration or split, a file that cannot be read, a
    table without rows, and options that the path cannot have. While a table is streamed, errors of a line come when
    that line is read.
    """
    kind, path = _locate(table, hub_root)
    import datasets

    with intact_copies(path), _explained(table, path, hub_root):
        if kind == "hub":
            is_local = Path(path).is_dir()
            where = {"cache_dir": _cache_of_folder(Path(path))} if is_local else {"revision": table.revision}
            options = {"name": table.config, "split": table.split, "streaming": table.streaming}
            rows = _as_written(functools.partial(datasets.load_dataset, path, **where, **options))
        else:
            rows = _load_file(path, kind, table)
        if isinstance(rows, datasets.Dataset) and not len(rows):
            raise ValueError("it has no rows")
    return rows


def _locate(table: Table, hub_root: str | None) -> tuple[str, str]:
    """(`hub` or a file format, resolved path) of a table."""
    path = resolve_hub_path(table.path, hub_root)
    by_name = SUFFIXES.get(Path(path.lower().removesuffix(".gz")).suffix)
    if Path(path).is_file():
        kind = ("csv" if table.delimiter else by_name) if table.format == "auto" else table.format
        if kind in (None, "hub"):
            raise ValueError(
                f"{path} is a file, and its ending or `format` does not name its format. Set `format` to one of "
                f"{', '.join(dict.fromkeys(SUFFIXES.values()))}."
            )
        given = {"config": table.config, "revision": table.revision, "split": table.split.removeprefix("train")}
    else:
        kind, given = "hub", {"format": table.format if table.format not in ("auto", "hub") else None}
        if not Path(path).is_dir():
            looks_local = table.format == "auto" and (by_name or looks_like_missing_folder(path))
            if looks_local or given["format"] or not HUB_ID.fullmatch(path):
                folder = next(parent for parent in Path(path).parents if parent.is_dir())
                hint = nearest(Path(path).relative_to(folder).parts[0], sorted(item.name for item in folder.iterdir()))
                raise ValueError(f"{path} does not exist. In {folder}: {hint} For an id of the Hub, set `format: hub`.")
        elif table.revision:
            logger.warning("%s is read from %s; its revision %s is not checked", table.path, path, table.revision)
    given["delimiter"] = table.delimiter if kind != "csv" else (table.delimiter or "")[1:]
    if wrong := next((name for name, value in given.items() if value), None):
        raise ValueError(f"{path} is read as {kind}, which has no {wrong} {getattr(table, wrong)!r}. Leave it out.")
    return kind, path


def _load_file(path: str, kind: str, table: Table) -> "Dataset | IterableDataset":
    import datasets

    text = datasets.Value("string")
    if kind.startswith("conll"):
        columns = _read_conll(path, kind)
        rows = datasets.Dataset.from_dict(columns, datasets.Features(dict.fromkeys(columns, datasets.List(text))))
        return rows.to_iterable_dataset() if table.streaming and len(rows) else rows
    identity = file_hash(Path(path), table.streaming).rpartition(":")[2][:32]  # a changed file is read again
    if kind == "text":
        options = {"gen_kwargs": {"path": path}, "features": datasets.Features(text=text)}
        if table.streaming:
            return datasets.IterableDataset.from_generator(_text_rows, **options)
        return datasets.Dataset.from_generator(_text_rows, **options, fingerprint=f"text-{identity}")
    is_csv = kind in ("csv", "tsv")
    options = _csv_options(path, kind, table.delimiter) if is_csv else {}
    if kind == "json":
        options = {"encoding": "utf-8-sig"}  # with "utf-8", bytes are not checked
    options |= {"name": identity, "data_files": {"train": path}, "split": "train", "streaming": table.streaming}
    return _as_written(functools.partial(datasets.load_dataset, "csv" if is_csv else kind, **options))


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


def _read_conll(path: str, kind: str) -> dict[str, list[list[str]]]:
    """Returns the columns of a CoNLL file, each with a list per sentence.

    Lines with "#" before a sentence are comments, unless their last field is a label of the file. Of CoNLL-U, ids,
    comments, and lines of several words or of none (ids 3-4 and 3.1) are left out.
    """
    ends = itertools.groupby(read_lines(path), lambda line: not line.strip() or line.startswith("-DOCSTART-"))
    blocks = [[line.strip(" ") for line in lines] for is_end, lines in ends if not is_end]
    tokens = [line for lines in blocks for line in itertools.dropwhile(lambda line: line.startswith("#"), lines)]
    first = next((line for line in tokens if not line.startswith("#")), "")
    separator = re.compile("\t" if kind == "conllu" or "\t" in first else " +")  # not `\s`: a token may hold U+00A0

    def split(line: str) -> list[str]:
        return [field.strip(" ") for field in separator.split(line)]

    others = [f"column_{number}" for number in range(2, len(split(first)))]
    columns = CONLLU if kind == "conllu" else ("tokens", *others, "tags")[: len(split(first))]
    labels = {split(line)[-1] for line in tokens} if len(columns) > 1 else set()
    sentences = []
    for number, lines in enumerate(blocks):
        words: list[list[str]] = []
        for line in lines:
            fields = split(line)
            if kind == "conllu":
                if line.startswith("#") or re.fullmatch(r"\d+[-.]\d+", fields[0]):
                    continue
                fields = fields[1:]
            elif line.startswith("#") and not words and (fields[-1] not in labels or re.match(r"# [\w.-]+ = ", line)):
                continue
            if len(fields) == len(columns) and all(fields):
                words.append(fields)
            elif not line.startswith("# " if words else "#"):  # else a comment
                raise ValueError(
                    f"{line[:60]!r} (block {number + 1}) does not have the {len(columns)} columns {', '.join(columns)}"
                )
        if words:
            sentences.append(list(map(list, zip(*words, strict=True))))
    return {name: [sentence[place] for sentence in sentences] for place, name in enumerate(columns)}


def _as_written(load: Callable[..., "Dataset | IterableDataset"]) -> "Dataset | IterableDataset":
    """Calls `load`, again where `datasets` reads JSON otherwise than it is written.

    It infers the types of columns from the first 10 MB, and dates from texts. SQuAD's own file becomes its questions.
    """
    import datasets

    try:
        rows = load()
    except datasets.exceptions.DatasetGenerationError as error:
        try:
            rows = load(chunksize=WHOLE_FILE)
        except ValueError:  # an option of JSON alone
            raise error from None
    if not isinstance(rows, datasets.Dataset) or rows.builder_name != "json":
        return rows
    if "timestamp" in str(rows.features):
        texts = _retyped(rows.features, '{"dtype": "string", "_type": "Value"}')
        rows = load(features=_retyped(rows.features, '{"_type": "Json"}'))
        rows = rows.map(lambda batch: {name: batch[name] for name in batch}, batched=True, features=texts)
    if "'qas'" in str(rows.features.get("data")):
        rows = rows.map(_questions, batched=True, remove_columns=rows.column_names)
    return rows


def _retyped(features: Any, kind: str) -> Any:
    """The features with another type, as `Features.to_dict` writes it, in the place of timestamps."""
    return type(features).from_dict(
        json.loads(re.sub(r'{"dtype": "timestamp[^}]*}', kind, json.dumps(features.to_dict())))
    )


def _questions(batch: dict[str, list]) -> dict[str, list]:
    """The questions of SQuAD's articles: of one object, or of an object a row."""
    articles = itertools.chain.from_iterable(data if isinstance(data, list) else [data] for data in batch["data"])
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    asked = [(paragraph["context"], question) for paragraph in paragraphs for question in paragraph["qas"]]
    fields = {name: [question[name] for _, question in asked] for name in ("id", "question", "answers")}
    return {"context": [context for context, _ in asked], **fields}


@contextlib.contextmanager
def intact_copies(what: str) -> Iterator[None]:
    """Raises ValueError, with the folder to remove, where a copy in the cache of `datasets` is cut off."""
    import datasets

    try:
        yield
    except OSError as error:
        if "Expected to be able to read" not in str(error):  # pyarrow's; others are of the system
            raise
        cache = datasets.config.HF_DATASETS_CACHE
        raise ValueError(f"{what}: the copy of its rows in {cache} is damaged: {error}. Remove it.") from error


@contextlib.contextmanager
def _explained(table: Table, path: str, hub_root: str | None) -> Iterator[None]:
    """Turns errors of `datasets` and pandas into one line that names the table."""
    try:
        yield
    except (FileNotFoundError, ConnectionError) as error:  # datasets' EmptyDatasetError and DatasetNotFoundError too
        mirrored = [f"{folder.parent.name}/{folder.name}" for folder in Path(hub_root).glob("*/*")] if hub_root else []
        hint = f"In hub_root {hub_root}: {nearest(path, sorted(mirrored))}" if hub_root else "Is the Hub reachable?"
        raise ValueError(f"{table.path} cannot be read: {error}. {hint}") from error
    except OSError:  # of the system
        raise
    except Exception as error:  # of any type for a card that `datasets` cannot use, or a script
        reason = " ".join(str(error.__cause__ or error).split())
        reason = "it has no rows" if "corresponds to no data" in reason else reason.rstrip(".")
        raise ValueError(f"{describe(table)} cannot be read: {reason}. Check path, config, split and file.") from error


def split_names(table: Table, hub_root: str | None = None) -> list[str]:
    """Returns the splits of a table's dataset and configuration; a file has one, `train`. Raises as `load_table`."""
    kind, path = _locate(table, hub_root)
    if kind != "hub":
        return ["train"]
    import datasets

    with _explained(table, path, hub_root):
        return datasets.get_dataset_split_names(path, table.config, revision=table.revision)


def describe(table: Table) -> str:
    """Returns `path, config, split`: the name of a table in error messages and logs."""
    parts = [table.path, table.config and f"config {table.config}", table.split != "train" and f"split {table.split}"]
    return ", ".join(part for part in parts if part)


def table_fingerprint(table: Table, hub_root: str | None, dataset: "Dataset | IterableDataset") -> str:
    """Returns a fingerprint of the rows of `table`, for run.json: a copy has the same, changed content another one.

    For files and local folders it is the sha256 of the content (`file_hash`), for the Hub the commit that was read, or
    the fingerprint of `datasets` where the Hub does not answer.
    """
    kind, path = _locate(table, hub_root)
    if kind != "hub":
        return file_hash(Path(path), table.streaming)
    import datasets

    try:
        builder = datasets.load_dataset_builder(path, table.config, revision=table.revision)
        files = sorted(str(file) for split in builder.config.data_files.values() for file in split)
    except (OSError, ValueError):
        return f"datasets:{dataset._fingerprint}" if hasattr(dataset, "_fingerprint") else f"hub:{table.revision}"
    digest = hashlib.sha256(table.split.encode())
    for file in files:
        # files of the Hub are hf://datasets/owner/name@commit/...: the name determines the content
        is_local = Path(file).is_file()
        digest.update((Path(file).name + file_hash(Path(file), table.streaming) if is_local else file).encode())
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
        begin, _, end = stream.read(MIB), stream.seek(max(size - MIB, 0)), stream.read(MIB)
    return f"sha256-of-ends:{hashlib.sha256(str(size).encode() + begin + end).hexdigest()}"


def _cache_of_folder(folder: Path) -> str:
    """Where `datasets` keeps copies of a local folder, by names, sizes and times: by default, it reads old copies."""
    import datasets

    stats = ((str(file), file.stat()) for file in sorted(folder.rglob("*")) if file.is_file())
    key = repr([str(folder.resolve()), *((name, one.st_size, one.st_mtime_ns) for name, one in stats)])
    return f"{datasets.config.HF_DATASETS_CACHE}/folder-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def has_text(column: Any) -> np.ndarray:
    """Returns whether each text of a list or an arrow array has a visible character: not only white space, zero-width
    and control characters. Null has none.
    """
    import pyarrow
    import pyarrow.compute

    texts = pyarrow.array(column, pyarrow.string()) if isinstance(column, list) else column
    found = pyarrow.compute.match_substring_regex(texts, r"[^\pZ\p{Cc}\p{Cf}]")
    return found.fill_null(False).to_numpy(zero_copy_only=False)


def require_column(dataset: "Dataset | IterableDataset", column: str, where: str = "the table") -> Any:
    """Returns the type (`datasets` feature) of a column; a dotted path such as `translation.en` names a struct's field.

    Raises ValueError, with the columns of the table `where`, if the column is missing, and for values of several types.
    """
    columns = columns_of(dataset)
    if column not in columns:
        raise ValueError(f"{where} has no column {column}. Its columns are: {', '.join(columns)}.")
    if "Json(" in repr(columns[column]):  # what `datasets` makes of several types
        values = ((row, get_column(one, column)) for row, one in enumerate(dataset))
        items = ((row, item) for row, value in values for item in (value if isinstance(value, list) else [value]))
        seen = {type(item).__name__: f"row {row}" for row, item in reversed([*items]) if item is not None}
        raise ValueError(f"{where} has values of several types in column {column}: {seen} (from 0). Write one type.")
    return columns[column]


def get_column(rows: dict[str, Any], column: str) -> Any:
    """Returns the value of a column in a row, or its values in a batch; dotted paths name fields of structs."""
    if column in rows:
        return rows[column]
    first, _, rest = column.partition(".")
    if not rest or first not in rows:
        raise KeyError(column)
    inner = rows[first]
    if isinstance(inner, list):
        return [None if item is None else get_column(item, rest) for item in inner]
    return None if inner is None else get_column(inner, rest)


def columns_of(dataset: "Dataset | IterableDataset") -> dict[str, Any]:
    """Returns {dotted name: feature} of the columns, structs before their fields."""
    features = dataset.features
    if features is None:  # a stream whose source does not declare its columns
        import datasets

        features = datasets.Dataset.from_list(list(dataset.take(1))).features
    by_depth = [features.flatten(max_depth=depth) for depth in range(1, DEEPEST)]
    return {name: feature for columns in by_depth for name, feature in columns.items()}


def looks_like_missing_folder(path: str) -> bool:
    """Returns whether a name that may be a Hub id is probably the path of a local folder that does not exist."""
    folder = Path(path)
    deep = len(folder.parts) > 2 or path.startswith((".", "/", "~"))
    return not folder.exists() and (deep or (folder.parent != Path(".") and folder.parent.is_dir()))


def require_empty(folder: str | os.PathLike) -> None:
    """Raises ValueError for an output folder that is not empty: old and new files would be mixed."""
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()) or folder.is_file():
        raise ValueError(f"{folder} already exists and is not empty. Name another folder, or remove it first.")
