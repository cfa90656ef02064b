"""The store of token ids: a column of text is tokenized once by `datasets`, and read from memory-mapped files.

Legend: `R` rows of a column, `M` requested parts of rows.
"""

import os
import re
import signal
import sys
from dataclasses import replace
from typing import Any

import multiprocess  # `datasets` starts its processes with it
import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from crosslingual_zoo.pretraining.data.readings import READINGS
from crosslingual_zoo.pretraining.data.sources import TextColumn, row_key
from crosslingual_zoo.zoo_core.processes import forks_end_with_this_process
from crosslingual_zoo.zoo_core.provenance import usable_cores
from crosslingual_zoo.zoo_core.tables import get_column

# fingerprint -> the tokenizer and the id of the main process, whose forks have the tokenizer without a copy
TOKENIZERS: dict[str, tuple[PreTrainedTokenizerBase, int]] = {}
ROWS_OF_PROCESS = 10_000  # fewer rows are not worth another process


class TokenStore:
    """The token ids of a text column, row by row, in memory-mapped files that the processes of a machine share.

    rows: a data set of `tokenize_column`; chunks: the flat ids of many rows each; offsets: of each chunk, where its
    rows begin, and the end of the last one. A process itself holds only a few numbers for each chunk.
    """

    def __init__(self, rows: Dataset):
        self.rows = rows
        self.chunks: list[np.ndarray] = []
        self.offsets: list[np.ndarray] = []
        first_rows = [0]
        for lists in rows.data.column("ids").chunks:
            self.chunks.append(lists.values.to_numpy())
            self.offsets.append(lists.offsets.to_numpy())
            first_rows.append(first_rows[-1] + len(lists))
        self.first_rows = np.array(first_rows[:-1], dtype=np.int64)

    def __reduce__(self) -> tuple:
        return TokenStore, (self.rows,)  # by their files

    @property
    def lengths(self) -> np.ndarray:
        """(R,) int32: the number of tokens of each row."""
        lengths = [np.diff(offsets) for offsets in self.offsets]
        return np.concatenate([np.empty(0, dtype=np.int32), *lengths])

    @property
    def keys(self) -> np.ndarray:
        """(R,) int64: the hash of each row, see `row_key`."""
        keys = [chunk.to_numpy() for chunk in self.rows.data.column("key").chunks]  # Arrow would keep the memory of all
        return np.concatenate([np.empty(0, dtype=np.int64), *keys])

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all rows."""
        return sum(int(offsets[-1] - offsets[0]) for offsets in self.offsets)

    def distinct_tokens(self) -> np.ndarray:
        """Returns (C,): the sorted ids of the tokens that occur."""
        distinct = [np.empty(0, dtype=np.int32)]
        for chunk, offsets in zip(self.chunks, self.offsets, strict=True):
            distinct.append(np.unique(chunk[offsets[0] : offsets[-1]]))
        return np.unique(np.concatenate(distinct))

    def read(self, rows_M: np.ndarray, starts_M: np.ndarray, stops_M: np.ndarray) -> list[np.ndarray]:
        """Returns for each of M rows (T,) int32 tokens `start` to below `stop`; read-only views of the file."""
        # the last chunk that begins at or before the row, which skips chunks without rows
        chunk_M = np.searchsorted(self.first_rows, rows_M, side="right") - 1
        row_of_chunk_M = rows_M - self.first_rows[chunk_M]
        tokens = []
        for chunk, row, start, stop in zip(
            chunk_M.tolist(), row_of_chunk_M.tolist(), starts_M.tolist(), stops_M.tolist(), strict=True
        ):
            begin = int(self.offsets[chunk][row])
            tokens.append(self.chunks[chunk][begin + start : begin + stop])
        return tokens

    def new_documents(self) -> np.ndarray:
        """Returns (R,): true where a row begins a new document; without documents, each row does."""
        is_new = np.ones(len(self.rows), dtype=bool)
        if "document" in self.rows.column_names and len(is_new) > 1:
            documents = self.rows.data.column("document")
            # null where a row names no document
            is_same = pc.equal(documents[1:], documents[:-1])  # pyrefly: ignore[missing-attribute]  # made at import
            is_new[1:] = ~pc.fill_null(is_same, False).to_numpy(zero_copy_only=False)
        return is_new


def tokenize_column(column: TextColumn, tokenizer: PreTrainedTokenizerBase, fingerprint: str, name: str) -> TokenStore:
    """Tokenizes a text column once, with all processors; `datasets` keeps the ids in its cache.

    `fingerprint` is the tokenizer's `reading_fingerprint`, `name` the corpus, for the progress bar. The ids depend only
    on the table's content, the tokenizer and the columns. Corpora share them, and changes of the maximum length or the
    held-out share do not tokenize again.
    A process that is killed leaves the finished parts of a column.

    Raises ValueError for a document that the column's pattern does not match.
    """
    TOKENIZERS[fingerprint] = tokenizer, os.getpid()
    table_columns = set()  # of a column `a.b`, the table has `a`
    for needed_column in (column.column, column.identity, column.document):
        if needed_column is not None:
            is_whole = needed_column in column.rows.column_names
            table_columns.add(needed_column if is_whole else needed_column.partition(".")[0])
    features = {"ids": List(Value("int32")), "key": Value("int64")}
    if column.document is not None:
        features["document"] = Value("string")
    processes = 1
    # pyrefly: ignore[missing-attribute]  # made at import
    if multiprocess.get_all_start_methods()[0] == "fork":  # by default; others have no `TOKENIZERS`
        processes = min(usable_cores(), len(column.rows) // ROWS_OF_PROCESS)
    rows = column.rows.select_columns(sorted(table_columns)).with_format(None)
    with forks_end_with_this_process():
        rows = rows.map(
            _tokenize,
            batched=True,
            with_indices=True,
            remove_columns=sorted(table_columns),
            features=Features(features),
            # pyrefly: ignore[bad-argument-type]  # a process reads neither, and the ids depend on neither
            fn_kwargs={"column": replace(column, rows=None, table=None), "fingerprint": fingerprint},
            num_proc=processes if processes > 1 else None,
            desc=f"Tokenizing {name}",
        )
    return TokenStore(rows)


def _tokenize(batch: dict[str, list], numbers: list[int], column: TextColumn, fingerprint: str) -> dict[str, list]:
    tokenizer, main_process = TOKENIZERS[fingerprint]
    if os.getpid() != main_process:  # the main process reports a signal; this one releases its locks and ends
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: sys.exit(1))
    identities: list[Any] = [None] * len(numbers)
    if column.identity:
        identities = get_column(batch, column.identity)
    keys = []
    for identity, number in zip(identities, numbers, strict=True):
        keys.append(row_key(number if identity is None else identity))
    ids = READINGS[column.reading](get_column(batch, column.column), tokenizer)
    values: dict[str, list] = {"ids": ids, "key": keys}
    if column.document is not None:
        values["document"] = [_document_of(value, column) for value in get_column(batch, column.document)]
    return values


def _document_of(value: Any, column: TextColumn) -> str | None:
    """Returns the part of a value that names the document; None where there is no value."""
    if value is None:
        return None
    match = re.search(column.document_pattern or "(?s).*", str(value))
    if match is None:
        where = f"in {column.document} {value!r}"
        raise ValueError(f"document_pattern {column.document_pattern!r} matches nothing {where}.")
    return match[0]
