"""Text as piece ids: tokenised once into Arrow, read lazily, and cut to what a model's positions hold."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from common.tables import get_column
from pretraining.recipe import OBJECTIVES, Objective
from pretraining.sources import TextColumn, row_key

FORMAT = 1  # of the copies on disk: another number makes old ones unused


SPECIALS_OF_TEXT = 2  # <s> x </s>
SPECIALS_OF_PAIR = 4  # <s> x </s></s> y </s>


@dataclass(slots=True)
class Example:
    """A text or a translation pair, as piece ids without special tokens.

    `example_id` is stable over runs: with the corpus' name and the epoch it keys the random numbers of the masks.
    `document` names the document of a text: that of its row where the recipe says so, else its row.
    """

    sides: list[np.ndarray]  # one or two of (T,) int32
    name: str  # of the corpus: `en`, `en-de`
    example_id: int
    epoch: int = 0
    document: str | None = None


def text_length(name: str, objective: Objective) -> int:
    """Positions of the text of an example, special tokens included: max_length less the room of a side to be written.

    A text of n pieces gets round(pseudo_share x n) pseudo tokens, one at least, and two special tokens more.
    """
    if not OBJECTIVES[name].generates:
        return objective.max_length
    return int((objective.max_length - SPECIALS_OF_PAIR) / (1 + objective.pseudo_share)) + SPECIALS_OF_TEXT


def encode_texts(texts: list[str | None], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Piece ids of texts, without special tokens. A text that spells one, such as `<mask>`, gets the unknown piece."""
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


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Changes with whatever changes the ids of a text; the same for a copy of the tokenizer in another folder."""
    if getattr(tokenizer, "backend_tokenizer", None) is not None:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content.pop("truncation", None)  # set by calls, not part of the tokenizer
        content.pop("padding", None)
    else:
        content = [type(tokenizer).__name__, tokenizer.get_vocab(), tokenizer.init_kwargs]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


class TokenisedColumn:
    """The piece ids of a text column, row by row, memory-mapped.

    `lengths` (N,) int32 are the numbers of pieces and `keys` (N,) int64 the rows' stable hashes (see `row_key`).
    The copy on disk depends on the table's content, the tokenizer and the columns only: corpora share it, and neither
    the maximum length nor what is held out makes a new one.
    """

    def __init__(self, column: TextColumn, tokenizer: PreTrainedTokenizerBase, fingerprint: str, name: str):
        parts = (FORMAT, column.rows._fingerprint, fingerprint, column.column, column.identity, column.document)
        if column.document_pattern is not None:
            parts += (column.document_pattern,)
        features = {"ids": List(Value("int32")), "key": Value("int64")}
        if column.document is not None:
            features["document"] = Value("string")
        self.rows: Dataset = column.rows.map(
            _tokenise,
            batched=True,
            with_indices=True,
            remove_columns=column.rows.column_names,
            features=Features(features),
            fn_kwargs={"column": column, "tokenizer": tokenizer},
            new_fingerprint=hashlib.sha256(repr(parts).encode()).hexdigest()[:32],
            desc=f"Tokenising {name}",
        )
        self.has_documents = column.document is not None
        self.lengths = pc.list_value_length(self.rows.data.column("ids")).to_numpy()
        self.keys = self.rows.data.column("key").to_numpy()

    def ids(self, row: int) -> np.ndarray:
        """(T,) int32 piece ids of a row; a view of the file, not to be written to."""
        return self.rows.data.column("ids")[row].values.to_numpy()

    def new_documents(self) -> np.ndarray:
        """(N,) true where a row does not go on with the document of the row before it."""
        is_new = np.ones(len(self.lengths), dtype=bool)
        if self.has_documents and len(is_new) > 1:
            documents = self.rows.data.column("document")
            same = pc.equal(documents[1:], documents[:-1])  # null where a row names no document
            is_new[1:] = ~pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return is_new

    def document(self, row: int) -> str:
        """The document of a row: the value of the document column, or the row itself."""
        value = self.rows.data.column("document")[row].as_py() if self.has_documents else None
        return str(row) if value is None else value


def _tokenise(
    batch: dict[str, list], numbers: list[int], column: TextColumn, tokenizer: PreTrainedTokenizerBase
) -> dict[str, list]:
    identities: list[Any] = get_column(batch, column.identity) if column.identity else [None] * len(numbers)
    out = {
        "ids": encode_texts(get_column(batch, column.column), tokenizer),
        "key": [row_key(number if value is None else value) for value, number in zip(identities, numbers, strict=True)],
    }
    if column.document is not None:
        documents = [None if value is None else str(value) for value in get_column(batch, column.document)]
        if column.document_pattern is not None:
            documents = [_document_of(value, column.document_pattern, column.document) for value in documents]
        out["document"] = documents
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
    """(2, M) lengths of pairs after cutting them to `room` pieces in all, one piece at a time from the longer side."""
    longer, shorter = lengths.max(0), lengths.min(0)
    # the longer side gives way until both are equal, then they share the room
    kept_shorter = np.minimum(shorter, room // 2)
    kept_longer = np.minimum(longer, room - kept_shorter)
    source_is_longer = lengths[0] >= lengths[1]
    return np.stack(
        [np.where(source_is_longer, kept_longer, kept_shorter), np.where(source_is_longer, kept_shorter, kept_longer)]
    )
