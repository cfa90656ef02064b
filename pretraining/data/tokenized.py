"""Text as token ids: tokenized once into Arrow, read lazily, and cut to what a model's positions hold."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from pretraining.data.fast_tokenize import FastTokens, fast_tokens
from pretraining.data.sources import TextColumn, row_key
from pretraining.data.token_table import TokenTable
from pretraining.recipe import Objective
from zoo_core.tables import get_column

FORMAT = 1  # of the copies on disk: another number makes old ones unused
COLUMNS = ("ids", "key", "document")  # of the copies; the last one where the recipe names a document column
TEXTS_CHECKED = 256  # of a column, before it is tokenized word by word

SPECIALS_OF_TEXT = 2  # <s> x </s>
SPECIALS_OF_PAIR = 4  # <s> x </s></s> y </s>


@dataclass(slots=True)
class Example:
    """A text or a translation pair, as token ids without special tokens.

    `example_id` is stable over runs: with the corpus' name and the epoch it keys the random numbers of the masks.
    `document` names the document of a text: that of its row where the recipe says so, else its row.
    """

    sides: list[np.ndarray]  # one or two of (T,) int32
    name: str  # of the corpus: `en`, `en-de`, `en-de/ntrex`
    example_id: int
    epoch: int = 0
    document: str | None = None


@dataclass(slots=True)
class Texts:
    """Examples side by side, as a batch is made of them: B of them, of any corpora."""

    sides: list[list[np.ndarray]]  # one or two lists of B arrays (T,) int32
    names: list[str]  # of their corpora
    ids: np.ndarray  # (B,) int64
    epochs: np.ndarray  # (B,) int64

    @classmethod
    def of(cls, examples: Sequence[Example]) -> "Texts":
        """Of examples that have the same number of sides."""
        return cls(
            [list(side) for side in zip(*(example.sides for example in examples), strict=True)],
            [example.name for example in examples],
            *(np.array([getattr(e, field) for e in examples], dtype=np.int64) for field in ("example_id", "epoch")),
        )

    @classmethod
    def joined(cls, parts: Sequence["Texts"], order: np.ndarray) -> "Texts":
        """All texts of the parts, one part behind the other, then in the given order."""
        places = order.tolist()

        def in_order(items: list[list]) -> list:
            items = list(chain.from_iterable(items))
            return [items[place] for place in places]

        return cls(
            [in_order(side) for side in zip(*(part.sides for part in parts), strict=True)],
            in_order([part.names for part in parts]),
            np.concatenate([part.ids for part in parts])[order],
            np.concatenate([part.epochs for part in parts])[order],
        )


def text_length(name: str, objective: Objective) -> int:
    """Positions of the text of an example, special tokens included: max_length less the room of a side to be written.

    A text of n tokens gets round(pseudo_share x n) pseudo tokens, one at least, and two special tokens more.
    """
    if name != "btmlm":
        return objective.max_length
    return int((objective.max_length - SPECIALS_OF_PAIR) / (1 + objective.pseudo_share)) + SPECIALS_OF_TEXT


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Changes with whatever changes the ids of a text; the same for a copy of the tokenizer in another folder."""
    if getattr(tokenizer, "backend_tokenizer", None) is not None:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content.pop("truncation", None)  # set by calls, not part of the tokenizer
        content.pop("padding", None)
    else:
        content = [type(tokenizer).__name__, tokenizer.get_vocab(), tokenizer.init_kwargs]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


class TokenColumn:
    """The token ids of a text column, row by row, in mapped files.

    `keys` (N,) int64 are the rows' stable hashes (see `row_key`). `fingerprint` names the content: two columns with the
    same one hold the same. A subclass fills in the four; `documents` are None where rows name none.
    """

    table: TokenTable
    keys: np.ndarray
    fingerprint: str
    documents: pa.ChunkedArray | None

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int32 numbers of tokens."""
        return self.table.lengths

    def ids(self, row: int) -> np.ndarray:
        """(T,) int32 token ids of a row; a view of the file, not to be written to."""
        return self.table.ids(row)

    def slices(self, rows_M: np.ndarray, starts_M: np.ndarray, stops_M: np.ndarray) -> list[np.ndarray]:
        """(T,) int32 tokens `start` to below `stop` of each of M rows; views of the file, not to be written to."""
        return self.table.slices(rows_M, starts_M, stops_M)

    def tokens(self) -> Iterator[np.ndarray]:
        """All token ids, int32, many rows at a time."""
        return (self.table.chunks[number] for number in range(len(self.table.first_rows)))

    def new_documents(self) -> np.ndarray:
        """(N,) true where a row does not go on with the document of the row before it."""
        is_new = np.ones(len(self.lengths), dtype=bool)
        if self.documents is not None and len(is_new) > 1:
            same = pc.equal(self.documents[1:], self.documents[:-1])  # null where a row names no document
            is_new[1:] = ~pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return is_new

    def document(self, row: int) -> str:
        """The document of a row: the value of the document column, or the row itself."""
        value = None if self.documents is None else self.documents[row].as_py()
        return str(row) if value is None else value


class TokenizedColumn(TokenColumn):
    """A text column that is tokenized here, once, and kept by `datasets` on disk.

    The copy depends on the table's content, the tokenizer and the columns only: corpora share it, and neither the
    maximum length nor what is held out makes a new one.
    """

    def __init__(self, column: TextColumn, tokenizer: PreTrainedTokenizerBase, fingerprint: str, name: str):
        parts = (FORMAT, column.rows._fingerprint, fingerprint, column.column, column.identity, column.document)
        if column.document_pattern is not None:
            parts += (column.document_pattern,)
        self.fingerprint = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
        features = {"ids": List(Value("int32")), "key": Value("int64")}
        if column.document is not None:
            features["document"] = Value("string")
        self._read(
            column.rows.map(
                _tokenize,
                batched=True,
                with_indices=True,
                remove_columns=column.rows.column_names,
                features=Features(features),
                fn_kwargs={"column": column, "encoder": fast_tokens(tokenizer)},
                new_fingerprint=self.fingerprint,
                desc=f"Tokenizing {name}",
            )
        )

    def _read(self, rows: Dataset) -> None:
        self.rows, columns = rows, rows.data
        self.table = TokenTable.of(columns.column("ids"))
        self.keys = columns.column("key").to_numpy()
        self.documents = columns.column("document") if "document" in columns.column_names else None

    def __getstate__(self) -> dict:
        return {"rows": self.rows, "fingerprint": self.fingerprint}  # by their path, where they are on disk

    def __setstate__(self, state: dict) -> None:
        self.fingerprint = state["fingerprint"]
        self._read(state["rows"])


def _tokenize(batch: dict[str, list], numbers: list[int], column: TextColumn, encoder: FastTokens) -> pa.Table:
    if numbers[0] == 0:
        encoder.check(sample_texts(column))
    return pa.table(dict(zip(COLUMNS, tokenize(batch, numbers, column, encoder), strict=False)))


def sample_texts(column: TextColumn) -> list[str | None]:
    """Some texts of a column that is kept on disk, from its start to its end."""
    step = max(1, -(-len(column.rows) // TEXTS_CHECKED))
    return get_column(column.rows[::step], column.column)[:TEXTS_CHECKED]


def tokenize(
    batch: dict[str, list], numbers: Sequence[int], column: TextColumn, encoder: FastTokens, large: bool = False
) -> list[pa.Array]:
    """Rows of a text column, numbered, as the arrays `COLUMNS`: their tokens, hashes and, where named, documents.

    With `large` tokens are counted in 64 bits, for more than 2 billion of them in one array.

    Raises ValueError for a document that the column's pattern does not match.
    """
    identities: list[Any] = get_column(batch, column.identity) if column.identity else [None] * len(numbers)
    flat, lengths = encoder.encode(get_column(batch, column.column))
    keys = [row_key(number if value is None else value) for value, number in zip(identities, numbers, strict=True)]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64 if large else np.int32)
    lists = pa.LargeListArray if large else pa.ListArray
    out = [lists.from_arrays(pa.array(offsets), pa.array(flat)), pa.array(keys, pa.int64())]
    if column.document is not None:
        documents = [None if value is None else str(value) for value in get_column(batch, column.document)]
        if column.document_pattern is not None:
            documents = [_document_of(value, column.document_pattern, column.document) for value in documents]
        out.append(pa.array(documents, pa.string()))
    return out


def _document_of(value: str | None, pattern: str, column: str) -> str | None:
    if value is None:
        return None
    match = re.search(pattern, value)
    if match is None:
        raise ValueError(
            f"document_pattern {pattern!r} matches nothing in {value!r}, a value of {column}: its document would have "
            "no name. Give a pattern that fits every row."
        )
    return match[0]


def cut_pair(lengths: np.ndarray, room: int) -> np.ndarray:
    """(2, M) lengths of pairs after cutting them to `room` tokens in all, one token at a time from the longer side."""
    longer, shorter = lengths.max(0), lengths.min(0)
    # the longer side gives way until both are equal, then they share the room
    kept_shorter = np.minimum(shorter, room // 2)
    kept_longer = np.minimum(longer, room - kept_shorter)
    source_is_longer = lengths[0] >= lengths[1]
    return np.stack(
        [np.where(source_is_longer, kept_longer, kept_shorter), np.where(source_is_longer, kept_shorter, kept_longer)]
    )
