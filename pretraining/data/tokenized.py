"""Text as token ids: tokenized once by `datasets`, read from mapped files, and cut to what a model's positions hold.

Legend: `R` rows of a table, `M` parts of rows that are asked for.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from pretraining.data.sources import TextColumn, row_key
from pretraining.recipe import Objective
from zoo_core.tables import get_column, intact_copies

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


def encode_texts(texts: list[str | None], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids of texts, without special tokens. A text that spells one, such as `<mask>`, gets the unknown token."""
    encoded = tokenizer(
        [text or "" for text in texts],
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        verbose=False,  # texts longer than the model are cut later
    )["input_ids"]
    # split_special_tokens leaves them to the unigram model, whose vocabulary holds them as well
    special = set(tokenizer.all_special_ids)
    unknown = tokenizer.unk_token_id
    return [ids if special.isdisjoint(ids) else [unknown if i in special else i for i in ids] for ids in encoded]


class TokenColumn:
    """The token ids of a text column, row by row, in mapped files.

    rows: a data set of `tokenize`; lengths: (R,) int32 numbers of tokens; keys: (R,) int64 hashes of the rows (see
    `row_key`); chunks: the ids of many rows at a time, flat. `fingerprint` names the content: two columns with the same
    one hold the same.
    """

    def __init__(self, rows: Dataset, fingerprint: str):
        self.rows, self.fingerprint = rows, fingerprint
        ids = rows.data.column("ids")
        self.chunks = [chunk.flatten().to_numpy() for chunk in ids.chunks]
        self.lengths = pc.list_value_length(ids).to_numpy().astype(np.int32, copy=False)
        rows_of_chunks = [len(chunk) for chunk in ids.chunks]
        self.first_rows = np.cumsum([0, *rows_of_chunks])[:-1]
        starts = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        # where a row begins in its chunk
        self.starts = (starts[:-1] - np.repeat(starts[self.first_rows], rows_of_chunks)).astype(np.int32)
        self.documents = rows.data.column("document") if "document" in rows.column_names else None

    def __reduce__(self):
        return TokenColumn, (self.rows, self.fingerprint)  # by the files of the rows

    @property
    def keys(self) -> np.ndarray:
        return self.rows.data.column("key").to_numpy()

    def slices(self, rows_M: np.ndarray, starts_M: np.ndarray, stops_M: np.ndarray) -> list[np.ndarray]:
        """(T,) int32 tokens `start` to below `stop` of each of M rows; views of the file, not to be written to."""
        begin_M = self.starts[rows_M]
        # the last of those that begin at or before the row: chunks without rows are passed over
        chunk_M = np.searchsorted(self.first_rows, rows_M, side="right") - 1
        bounds = zip(chunk_M.tolist(), (begin_M + starts_M).tolist(), (begin_M + stops_M).tolist(), strict=True)
        return [self.chunks[chunk][start:stop] for chunk, start, stop in bounds]

    def ids(self, row: int) -> np.ndarray:
        """(T,) int32 token ids of a row; a view of the file."""
        return self.slices(*np.array([[row], [0], [self.lengths[row]]]))[0]

    def new_documents(self) -> np.ndarray:
        """(R,) true where a row does not go on with the document of the row before it."""
        is_new = np.ones(len(self.lengths), dtype=bool)
        if self.documents is not None and len(is_new) > 1:
            same = pc.equal(self.documents[1:], self.documents[:-1])  # null where a row names no document
            is_new[1:] = ~pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return is_new

    def document(self, row: int) -> str:
        """The document of a row: the value of the document column, or the row itself."""
        value = None if self.documents is None else self.documents[row].as_py()
        return str(row) if value is None else value


def tokenized_column(
    column: TextColumn, tokenizer: PreTrainedTokenizerBase, fingerprint: str, name: str
) -> TokenColumn:
    """A text column tokenized here, once: `datasets` keeps the copy in its cache.

    The copy depends on the table's content, the tokenizer and the columns only: corpora share it, and neither the
    maximum length nor what is held out makes a new one.
    """
    parts = (column.rows._fingerprint, fingerprint, column.column, column.identity, column.document)
    key = hashlib.sha256(repr((*parts, column.document_pattern)).encode()).hexdigest()[:32]
    with intact_copies(name):
        return TokenColumn(tokenize(column, tokenizer, new_fingerprint=key, desc=f"Tokenizing {name}"), key)


def tokenize(column: TextColumn, tokenizer: PreTrainedTokenizerBase, first: int = 0, **settings: Any) -> Dataset:
    """The rows of a text column as `ids`, `key` and, where the column names documents, `document`.

    `first` is the number of the first row where the rows are part of a table; `settings` are those of `Dataset.map`.

    Raises ValueError for a document that the column's pattern does not match.
    """
    wanted = [name for name in (column.column, column.identity, column.document) if name is not None]
    names = {name if name in column.rows.column_names else name.partition(".")[0] for name in wanted}
    features = {"ids": List(Value("int32")), "key": Value("int64")}
    if column.document is not None:
        features["document"] = Value("string")
    return (
        column.rows.select_columns(sorted(names))
        .with_format(None)
        .map(
            _tokenize,
            batched=True,
            with_indices=True,
            remove_columns=sorted(names),
            features=Features(features),
            fn_kwargs={"column": replace(column, rows=None), "tokenizer": tokenizer, "first": first},
            **settings,
        )
    )


def _tokenize(
    batch: dict[str, list], numbers: list[int], column: TextColumn, tokenizer: PreTrainedTokenizerBase, first: int
) -> dict[str, list]:
    identities: list[Any] = get_column(batch, column.identity) if column.identity else [None] * len(numbers)
    found = {
        "ids": encode_texts(get_column(batch, column.column), tokenizer),
        "key": [
            row_key(first + number if value is None else value)
            for value, number in zip(identities, numbers, strict=True)
        ],
    }
    if column.document is not None:
        found["document"] = [_document_of(value, column) for value in get_column(batch, column.document)]
    return found


def _document_of(value: Any, column: TextColumn) -> str | None:
    if value is None or column.document_pattern is None:
        return None if value is None else str(value)
    match = re.search(column.document_pattern, str(value))
    if match is None:
        raise ValueError(
            f"document_pattern {column.document_pattern!r} matches nothing in {column.document} {value!r}."
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
