"""Text as token ids: tokenized once by `datasets`, and read from memory-mapped files.

Legend: `R` rows of a table, `M` requested parts of rows.
"""

import hashlib
import json
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

from crosslingual_zoo.modeling.word_tokens import reading_text
from crosslingual_zoo.pretraining.data.examples import encode_texts
from crosslingual_zoo.pretraining.data.sources import TextColumn, row_key
from crosslingual_zoo.pretraining.objectives.links import links_of, no_links, tokens_of_words, words_of_tokens
from crosslingual_zoo.zoo_core.processes import forks_end_with_this_process
from crosslingual_zoo.zoo_core.provenance import usable_cores
from crosslingual_zoo.zoo_core.tables import get_column

# functions that turn the values of a column into lists of integers
READINGS = {
    "text": encode_texts,
    "words": tokens_of_words,
    "word numbers": words_of_tokens,
    "links": links_of,
    "no links": no_links,
}
# Raise it with every change of what these functions, `row_key` or `_tokenize` return for the same text. `datasets`
# knows only their names, and would keep the ids that are on disk.
READING_VERSION = 1
# by fingerprint, with the main process: its forks have them without a copy
TOKENIZERS: dict[str, tuple[PreTrainedTokenizerBase, int]] = {}
ROWS_OF_PROCESS = 10_000  # fewer rows are not worth another process


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a hash of all that affects the ids of a text: the tokenizer, without the name of its folder, and
    `READING_VERSION`. It is in the key of the ids on disk, and a resumed run compares it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        with reading_text(backend):  # truncation and padding are set by calls, and not part of the tokenizer
            content = backend.to_str()
    else:
        settings = [type(tokenizer).__name__, tokenizer.get_vocab(), tokenizer.init_kwargs]
        content = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(f"{READING_VERSION} {content}".encode()).hexdigest()


class TokenColumn:
    """The token ids of a text column, row by row, in memory-mapped files.

    rows: a data set of `tokenized_column`; lengths: (R,) int32 numbers of tokens; keys: (R,) int64 hashes of the rows
    (see `row_key`); chunks: flat ids of many rows each.
    """

    def __init__(self, rows: Dataset):
        self.rows = rows
        ids = rows.data.column("ids")
        self.chunks = [chunk.flatten().to_numpy() for chunk in ids.chunks]
        self.lengths = pc.list_value_length(ids).to_numpy().astype(np.int32, copy=False)
        rows_of_chunks = [len(chunk) for chunk in ids.chunks]
        self.first_rows = np.cumsum([0, *rows_of_chunks])[:-1]
        starts = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        # the start of each row in its chunk
        self.starts = (starts[:-1] - np.repeat(starts[self.first_rows], rows_of_chunks)).astype(np.int32)

    def __reduce__(self):
        return TokenColumn, (self.rows,)  # by their files

    @property
    def keys(self) -> np.ndarray:
        return self.rows.data.column("key").to_numpy()

    def slices(self, rows_M: np.ndarray, starts_M: np.ndarray, stops_M: np.ndarray) -> list[np.ndarray]:
        """Returns for each of M rows (T,) int32 tokens `start` to below `stop`; read-only views of the file."""
        begin_M = self.starts[rows_M]
        # the last chunk that begins at or before the row, which skips chunks without rows
        chunk_M = np.searchsorted(self.first_rows, rows_M, side="right") - 1
        bounds = zip(chunk_M.tolist(), (begin_M + starts_M).tolist(), (begin_M + stops_M).tolist(), strict=True)
        return [self.chunks[chunk][start:stop] for chunk, start, stop in bounds]

    def new_documents(self) -> np.ndarray:
        """Returns (R,): true where a row begins a new document; without documents, each row does."""
        is_new = np.ones(len(self.lengths), dtype=bool)
        if "document" in self.rows.column_names and len(is_new) > 1:
            documents = self.rows.data.column("document")
            same = pc.equal(documents[1:], documents[:-1])  # null where a row names no document
            is_new[1:] = ~pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return is_new


def tokenized_column(
    column: TextColumn, tokenizer: PreTrainedTokenizerBase, fingerprint: str, name: str
) -> TokenColumn:
    """Tokenizes a text column once, with all processors; `datasets` keeps the ids in its cache.

    `fingerprint` is the tokenizer's. The ids depend only on the table's content, the tokenizer and the columns. Corpora
    share them, and changes of the maximum length or the held-out share do not tokenize again. A process that is killed
    leaves the finished parts of a column.

    Raises ValueError for a document that the column's pattern does not match.
    """
    TOKENIZERS[fingerprint] = tokenizer, os.getpid()
    wanted = [name for name in (column.column, column.identity, column.document) if name is not None]
    names = sorted({name if name in column.rows.column_names else name.partition(".")[0] for name in wanted})
    features = {"ids": List(Value("int32")), "key": Value("int64")}
    if column.document is not None:
        features["document"] = Value("string")
    processes = 1
    if multiprocess.get_all_start_methods()[0] == "fork":  # by default; others have no `TOKENIZERS`
        processes = min(usable_cores(), len(column.rows) // ROWS_OF_PROCESS)
    rows = column.rows.select_columns(names).with_format(None)
    with forks_end_with_this_process():
        rows = rows.map(
            _tokenize,
            batched=True,
            with_indices=True,
            remove_columns=names,
            features=Features(features),
            fn_kwargs={"column": replace(column, rows=None, table=None), "fingerprint": fingerprint},
            num_proc=processes if processes > 1 else None,
            desc=f"Tokenizing {name}",
        )
    return TokenColumn(rows)


def _tokenize(batch: dict[str, list], numbers: list[int], column: TextColumn, fingerprint: str) -> dict[str, list]:
    tokenizer, main_process = TOKENIZERS[fingerprint]
    if os.getpid() != main_process:  # the main process reports a signal; this one releases its locks and ends
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: sys.exit(1))
    identities: list[Any] = get_column(batch, column.identity) if column.identity else [None] * len(numbers)
    found = {
        "ids": READINGS[column.reading](get_column(batch, column.column), tokenizer),
        "key": [row_key(number if value is None else value) for value, number in zip(identities, numbers, strict=True)],
    }
    if column.document is not None:
        found["document"] = documents = []
        for value in get_column(batch, column.document):
            match = value is None or re.search(column.document_pattern or "(?s).*", str(value))
            if not match:
                where = f"in {column.document} {value!r}"
                raise ValueError(f"document_pattern {column.document_pattern!r} matches nothing {where}.")
            documents.append(None if value is None else match[0])
    return found
