"""Texts and translation pairs as token ids, and how they are cut to the length of a row.

Recipes are read with this file, so it imports no library that takes seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from crosslingual_zoo.zoo_core.keyed_random import keyed_rng

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIALS_OF_TEXT = 2  # <s> x </s>
SPECIALS_OF_PAIR = 4  # <s> x </s></s> y </s>


@dataclass(slots=True)
class Example:
    """A text or a translation pair, as token ids without special tokens.

    `example_id` is the same in all runs; the random numbers of the masks depend on it, the corpus' name and the epoch.
    """

    sides: list[np.ndarray]  # one or two of (T,) int32
    name: str  # of the corpus: `en`, `en-de`, `en-de/ntrex`
    example_id: int
    epoch: int = 0


@dataclass(slots=True)
class Texts:
    """The examples of a batch, by side: B examples of any corpora."""

    sides: list[list[np.ndarray]]  # one or two lists of B arrays (T,) int32
    names: list[str]  # of their corpora
    ids: np.ndarray  # (B,) int64
    epochs: np.ndarray  # (B,) int64

    @classmethod
    def of(cls, examples: Sequence[Example]) -> "Texts":
        """Collects examples that have the same number of sides."""
        return cls(
            [list(side) for side in zip(*(example.sides for example in examples), strict=True)],
            [example.name for example in examples],
            *(np.array([getattr(e, field) for e in examples], dtype=np.int64) for field in ("example_id", "epoch")),
        )

    @classmethod
    def joined(cls, parts: Sequence["Texts"], order: np.ndarray) -> "Texts":
        """Concatenates the texts of the parts, then puts them in the given order."""
        names, *sides = (
            [*chain.from_iterable(lists)] for lists in zip(*([part.names, *part.sides] for part in parts), strict=True)
        )
        ids, epochs = (np.concatenate([getattr(part, name) for part in parts])[order] for name in ("ids", "epochs"))
        places = order.tolist()
        return cls([[side[place] for place in places] for side in sides], [names[at] for at in places], ids, epochs)


def encode_texts(texts: list[str | None], tokenizer: "PreTrainedTokenizerBase") -> list[list[int]]:
    """Returns token ids without special tokens. The name of one in a text, such as `<mask>`, becomes unknown."""
    texts = [text or "" for text in texts]
    if tokenizer.is_fast:  # a call would make masks and offsets, too, which takes a tenth of the time
        from crosslingual_zoo.modeling.word_tokens import reading_text

        backend = tokenizer.backend_tokenizer
        with reading_text(backend):
            encoded = [row.ids for row in backend.encode_batch_fast(texts, add_special_tokens=False)]
    else:
        encoded = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
    # split_special_tokens leaves them to the unigram model, whose vocabulary contains them, too
    special = set(tokenizer.all_special_ids)
    unknown = tokenizer.unk_token_id
    return [ids if special.isdisjoint(ids) else [unknown if i in special else i for i in ids] for ids in encoded]


def cut_pair(lengths: np.ndarray, room: int) -> np.ndarray:
    """Returns (2, M) lengths of pairs after cutting them to `room` tokens in all, always from the longer side."""
    longer, shorter = lengths.max(0), lengths.min(0)
    # the longer side is cut until both are equal, then they share the room
    kept_shorter = np.minimum(shorter, room // 2)
    kept_longer = np.minimum(longer, room - kept_shorter)
    source_is_longer = lengths[0] >= lengths[1]
    return np.stack(
        [np.where(source_is_longer, kept_longer, kept_shorter), np.where(source_is_longer, kept_shorter, kept_longer)]
    )


def cut_sides(sides: list[list[np.ndarray]], max_length: int, apart: bool) -> list[list[np.ndarray]]:
    """Cuts the two sides of M examples to rows of `max_length` positions: to one for both sides, or to one for each if
    they are read apart."""
    lengths = np.array([list(map(len, side)) for side in sides])
    if apart:
        kept_lengths = np.minimum(lengths, max_length - SPECIALS_OF_TEXT)
    else:
        kept_lengths = cut_pair(lengths, max_length - SPECIALS_OF_PAIR)
    cut = []
    for side, lengths_of_side in zip(sides, kept_lengths.tolist(), strict=True):
        cut.append([ids[:length] for ids, length in zip(side, lengths_of_side, strict=True)])
    return cut


def random_window(ids: np.ndarray, room: int, *key: int | str) -> np.ndarray:
    """Returns `room` tokens of a text, at an offset that depends only on the key; all tokens of a shorter text."""
    if len(ids) <= room:
        return ids
    start = keyed_rng(*key).integers(len(ids) - room + 1)
    return ids[start : start + room]
