"""Rows from any source: a dataset of the Hub, a local folder in the Hub's layout, or a file.

    Table(path="google/xtreme", config="XNLI", split="test")      the Hub, or <hub_root>/google/xtreme
    Table(path="sample_corpus", config="en")                      a folder whose README lists its configs
    Table(path="news.csv"), Table(path="news.en", format="text")  a file

`datasets` reads them all. Errors that it would report without a file, line or column name are checked here first.
"""

import contextlib
import functools
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from omegaconf import MISSING

from zoo_core.json_files import DEEPEST
from zoo_core.recipes import nearest, option, or_installed
from zoo_core.table_files import (
    SUFFIXES,
    file_hash,
    first_line,
    kind_by_name,
    load_as_written,
    load_file,
    mixed_types,
    places_of_rows,
)

if TYPE_CHECKING:  # `datasets` takes seconds to import, and recipes are read for --help too
    from datasets import Dataset, IterableDataset

logger = logging.getLogger(__name__)


class UnknownConfig(ValueError):
    """A dataset does not have the requested configuration; `known` lists those that it has."""

    def __init__(self, message: str, known: list[str]):
        super().__init__(message)
        self.known = known


PAIR_SEPARATOR = "|||"  # between a sentence and its translation on one line, as word aligners write them
SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
MOST_NAMES = 60  # in an error message: google/xtreme has nearly two hundred configurations


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
    return [part.strip() for part in _between_spaces(separator).split(line)]


@functools.cache
def _between_spaces(text: str) -> re.Pattern:
    return re.compile(rf"(?<!\S){re.escape(text)}(?!\S)")


def resolve_hub_path(path: str, hub_root: str | None = None) -> str:
    """Returns `<hub_root>/<path>` where `path` is a Hub id (owner/name) that this folder mirrors, else `path` itself.

    A path of the sample corpus that does not exist becomes that of the installed one.

    Raises ValueError where `hub_root` is given and is not a folder.
    """
    if hub_root is None:
        return or_installed(path)
    if not Path(hub_root).is_dir():
        raise ValueError(
            f"hub_root is {hub_root}, which is not a folder. Name a folder that contains <owner>/<name>, or leave "
            "hub_root empty."
        )
    name, _, revision = path.partition("@")
    mirrored = Path(hub_root) / name
    if not HUB_ID.fullmatch(name) or not mirrored.is_dir():
        return or_installed(path)
    if revision:
        logger.warning("%s is read from %s; its revision %s is not checked", name, mirrored, revision)
    return str(mirrored)


def load_table(table: Table, hub_root: str | None = None) -> "Dataset | IterableDataset":
    """Loads the rows of `table`: a `datasets.Dataset`, or an `IterableDataset` where it is streamed.

    `zoo_core.table_files` lists the columns of each file format. A byte order mark is skipped. Copies on disk depend on
    the content, so a changed file is read again.

    Raises ValueError for a path that does not exist (with the nearest names), an empty or non-UTF-8 file (with the
    line), an unknown configuration or split (with those that exist), rows of another width than the header, and a
    split, configuration, revision or delimiter where there can be none. While a table is streamed, errors of a line
    come when that line is read.
    """
    kind, path = _locate(table, hub_root)
    if table.delimiter is not None and (kind != "csv" or len(table.delimiter) != 1):
        raise ValueError(
            f"{path} is read as {kind}, and delimiter is {table.delimiter!r}. Only csv has a delimiter, which is one "
            'character, as in delimiter: "\\t". Correct it, or leave it out.'
        )
    try:
        with intact_copies(path):
            if kind == "hub":
                dataset = _load_folder_or_hub(table, path, hub_root)
            else:
                _refuse_folder_options(table, path)
                dataset = load_file(path, kind, table.delimiter, table.streaming)
        empty = not table.streaming and len(dataset) == 0
    except (ValueError, StopIteration) as error:  # how datasets reports a split, and a file, without rows
        if isinstance(error, ValueError) and "corresponds to no data" not in str(error):
            raise
        empty = True
    if empty:
        raise ValueError(f"{describe(table)} has no rows. Check the file or the split.")
    return dataset


@contextlib.contextmanager
def intact_copies(what: str) -> Iterator[None]:
    """Raises ValueError, with the folder to remove, where a copy in the cache of `datasets` is cut off."""
    import datasets

    try:
        yield
    except OSError as error:
        if "Expected to be able to read" not in str(error):  # pyarrow's; others are of the system
            raise
        raise ValueError(
            f"{what}: the copy of its rows in {datasets.config.HF_DATASETS_CACHE} is damaged ({first_line(error)}). "
            "Remove that folder. `datasets` will create it again."
        ) from error


def split_names(table: Table, hub_root: str | None = None) -> list[str]:
    """Returns the splits of a table's dataset and configuration; a file has one, `train`. Raises as `load_table`."""
    kind, path = _locate(table, hub_root)
    if kind != "hub":
        return ["train"]
    import datasets

    with _explained(table, path, hub_root):
        return datasets.get_dataset_split_names(path, table.config, revision=table.revision)


def row_places(table: Table, rows: Sequence[int]) -> list[str]:
    """Returns the place of each row: `line 7` of a file, else `row 5 (from 0)`. `rows` count from 0 and increase."""
    path = Path(or_installed(table.path))
    if not path.is_file():
        return [f"row {row} (from 0)" for row in rows]
    kind, name = _locate(table, None)
    return places_of_rows(name, kind, table.delimiter, rows)


def describe(table: Table) -> str:
    """Returns `path, config, split`: the name of a table in error messages and logs."""
    parts = [table.path, table.config and f"config {table.config}", table.split != "train" and f"split {table.split}"]
    return ", ".join(part for part in parts if part)


def table_fingerprint(table: Table, hub_root: str | None, dataset: "Dataset | IterableDataset") -> str:
    """Returns a fingerprint of the rows of `table`, for run.json: a copy has the same, changed content another one.

    For files and local folders it is the sha256 of the content; for a streamed file, of its size and its first and last
    MiB, so that nothing huge is read twice. For the Hub it is the commit that was read, or the fingerprint of
    `datasets` where the Hub does not answer.
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

    Raises ValueError, with the columns of the table `where`, if the column is missing.
    """
    columns = columns_of(dataset)
    if column not in columns:
        hint = close_name(column, columns)
        raise ValueError(f"{where} has no column {column}. Its columns are: {', '.join(columns)}. {hint}".rstrip())
    if "Json(" in repr(columns[column]):  # what `datasets` makes of several types
        if fault := mixed_types((get_column(row, column) for row in dataset), column):
            raise ValueError(f"{where}, {fault}. Write all values as one type.")
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


def _locate(table: Table, hub_root: str | None) -> tuple[str, str]:
    """(`hub` or a file format, resolved path) of a table."""
    path = resolve_hub_path(table.path, hub_root)
    local = Path(path)
    if local.is_dir():
        if table.format not in ("auto", "hub"):
            raise ValueError(
                f"{path} is a folder, but `format` is {table.format}. Leave `format` at auto, or name a file in the "
                "folder."
            )
        return "hub", path
    if not local.exists():
        # data/news.tsv and a missing entry of an existing folder look like an id, but are probably paths
        looks_local = kind_by_name(local) is not None or local.parent.is_dir()
        if HUB_ID.fullmatch(path) and (table.format == "hub" or (table.format == "auto" and not looks_local)):
            return "hub", path
        raise ValueError(_not_found(local))
    if table.format == "hub":
        raise ValueError(f"{path} is a file, but `format` is hub. Leave `format` at auto, or name the file's folder.")
    by_name = kind_by_name(local) if table.delimiter is None else "csv"
    kind = by_name if table.format == "auto" else table.format
    if local.suffix.lower() in SPREADSHEETS and table.format == "auto":
        raise ValueError(f"{path} is a spreadsheet. Save its table as CSV.")
    if kind is None:
        raise ValueError(
            f"{path} ends in {local.suffix or 'no suffix'}, so its format is not known. Known endings are "
            f"{', '.join(SUFFIXES)}. Set `format` to one of {', '.join(dict.fromkeys(SUFFIXES.values()))}."
        )
    return kind, path


def _not_found(path: Path) -> str:
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    wanted = path.relative_to(folder).parts[0]
    names = sorted(item.name for item in folder.iterdir())
    hint = f"In {folder}: {nearest(wanted, names)}" if len(names) <= 20 or close_name(wanted, names) else ""
    return (
        f"{path} does not exist. Relative paths start at {Path.cwd()}. Correct the path, or name a dataset on the Hub "
        f"as owner/name (with `format: hub` if that looks like a local path). {hint}"
    ).strip()


def close_name(name: str, known: Iterable[str]) -> str:
    """Returns `Did you mean ...?` if a known name is similar, else an empty text."""
    hint = nearest(name, known)
    return hint if hint.startswith("Did you mean") else ""


def _refuse_folder_options(table: Table, path: str) -> None:
    given = {
        "config": table.config,
        "revision": table.revision,
        "split": None if table.split == "train" else table.split,
    }
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{path} is a file, but {name} is {value!r}. A file has no {name}s; all of its rows are read. "
                f"Leave `{name}` out, or name a folder in the Hub's layout."
            )


def _load_folder_or_hub(table: Table, path: str, hub_root: str | None) -> "Dataset | IterableDataset":
    import datasets

    is_local = Path(path).is_dir()
    if is_local and table.revision is not None:
        if path == table.path:
            raise ValueError(
                f"{path} is a local folder, but revision is {table.revision!r}. Leave `revision` out, or name the "
                "dataset by its Hub id."
            )
        logger.warning("%s is read from %s; its revision %s is not checked", table.path, path, table.revision)
    revision = None if is_local else table.revision
    with _explained(table, path, hub_root):
        load = functools.partial(datasets.load_dataset, path, table.config, split=table.split, revision=revision)
        cache = _cache_of_folder(Path(path)) if is_local else None
        return load_as_written(functools.partial(load, streaming=table.streaming, cache_dir=cache))


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


def _cache_of_folder(folder: Path) -> str:
    """Where `datasets` keeps its copies of a local folder: a path that depends on the files' names, sizes and times.

    With its own path, `datasets` would use the old copy of a folder after a file in it has changed.
    """
    import datasets

    files = sorted(file for file in folder.rglob("*") if file.is_file())
    listing = [(str(file.relative_to(folder)), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    key = hashlib.sha256(repr((str(folder.resolve()), listing)).encode()).hexdigest()[:16]
    return os.path.join(datasets.config.HF_DATASETS_CACHE, f"folder-{key}")


@contextlib.contextmanager
def _explained(table: Table, path: str, hub_root: str | None) -> Iterator[None]:
    """Turns errors of `datasets` for a folder or an id into ones that say what is wrong, why, and what to do."""
    import datasets

    try:
        yield
    except (FileNotFoundError, ConnectionError) as error:  # datasets' EmptyDatasetError and DatasetNotFoundError too
        reason = "It contains no data files" if Path(path).is_dir() else "It is not a local folder either"
        raise ValueError(
            f"{table.path} cannot be read: {first_line(error)}. {reason}. Check the name, the connection "
            "(HF_HUB_OFFLINE disables downloads), or set hub_root to a folder that mirrors the Hub."
            f"{_mirrored(path, hub_root)}"
        ) from error
    except OSError:  # of the system
        raise
    except Exception as error:  # of any type for a card that `datasets` cannot use, or a script
        message = str(error)
        if configs := re.search(r"[Aa]vailable(?: configs)?(?: in the cache)?: \[(.*)\]", message):
            known = re.findall(r"'([^']+)'", configs[1])
            if table.config is not None:
                raise UnknownConfig(_unknown(table, "config", table.config, known), known) from None
            raise ValueError(
                f"{table.path} has several configurations: {shortened('', known)}. Set `config` to one of them."
            ) from None
        if message.startswith(("Unknown split", "Bad split")):
            known = re.findall(r"'([^']+)'", message.partition("[")[2])
            raise ValueError(_unknown(table, "split", table.split, known)) from None
        is_known = isinstance(error, (datasets.exceptions.DatasetGenerationError, ValueError))
        reason = first_line(error.__cause__ or error) if is_known else " ".join(message.split())
        raise ValueError(
            f"{describe(table)} cannot be read: {reason}. Check its files, the YAML of its README.md, and the split."
        ) from error


def _unknown(table: Table, field: str, value: str, known: list[str]) -> str:
    where = f"{table.path}, config {table.config}," if field == "split" and table.config else table.path
    hint = close_name(value, known) or f"Set `{field}` to one of them."
    if field == "split" and table.streaming and "[" in value:
        hint = "Slices cannot be streamed: name a whole split, or set `streaming` to false."
    return f"{where} has no {field} {value}. It has: {shortened(value, known)}. {hint}"


def shortened(value: str, known: list[str]) -> str:
    """Lists the known names; of very many, only those with the same beginning as `value` (XQuAD.de for XQuAD.xx)."""
    if len(known) <= MOST_NAMES:
        return ", ".join(known)
    family = [name for name in known if "." in value and name.startswith(value.partition(".")[0] + ".")]
    shown = (family or known)[:MOST_NAMES]
    return f"{', '.join(shown)}, and {len(known) - len(shown)} others"


def _mirrored(path: str, hub_root: str | None) -> str:
    """The end of an error message: the datasets in `hub_root` with the most similar names."""
    if hub_root is None:
        return ""
    root = Path(hub_root)
    names = sorted(folder.relative_to(root).as_posix() for folder in root.glob("*/*") if folder.is_dir())
    return f" In hub_root {hub_root}: {nearest(path, names)}"
