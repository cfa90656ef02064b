"""Texts and translation pairs as token ids, and how they are cut to the length of a row.

Recipes are read with this file, so it imports no library that takes seconds.

Legend: `M` examples, `T` tokens of one side of an example.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crosslingual_zoo.zoo_core.keyed_random import keyed_rng

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIALS_OF_TEXT = 2  # <s> x </s>
SPECIALS_OF_PAIR = 4  # <s> x </s></s> y </s>


@dataclass(slots=True)
class Texts:
    """Texts or translation pairs, as token ids without special tokens: M examples of any corpora, column by column.

    An id is the same in all runs. The random numbers of an example's masks depend on its corpus, id and epoch.
    """

    sides: list[list[np.ndarray]]  # one or two lists of M arrays (T,) int32
    names: list[str]  # of their corpora: `en`, `en-de`, `en-de/ntrex`
    ids: np.ndarray  # (M,) int64
    epochs: np.ndarray  # (M,) int64

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, part: slice) -> "Texts":
        return Texts([side[part] for side in self.sides], self.names[part], self.ids[part], self.epochs[part])


def encode_texts(texts: list[str | None], tokenizer: "PreTrainedTokenizerBase") -> list[list[int]]:
    """Returns the token ids of each text, without special tokens. The name of a special token in a text, such as
    `<mask>`, becomes the unknown token."""
    texts = [text or "" for text in texts]
    if tokenizer.is_fast:  # a call would make masks and offsets, too, which takes a tenth of the time
        from crosslingual_zoo.modeling.word_tokens import reading_text

        backend = tokenizer.backend_tokenizer
        with reading_text(backend):
            encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        ids_by_text = [encoding.ids for encoding in encodings]
    else:
        encoded = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)
        ids_by_text = encoded["input_ids"]
    # a unigram model's vocabulary contains their names, too, as pieces of text
    special = set(tokenizer.all_special_ids)
    for number, ids in enumerate(ids_by_text):
        if not special.isdisjoint(ids):
            ids_by_text[number] = [tokenizer.unk_token_id if token in special else token for token in ids]
    return ids_by_text


def cut_pair(lengths_2M: np.ndarray, room: int) -> np.ndarray:
    """Returns (2, M) lengths of pairs after cutting them to `room` tokens in all, always from the longer side."""
    longer_M = lengths_2M.max(0)
    shorter_M = lengths_2M.min(0)
    # the longer side is cut until both are equal, then they share the room
    shorter_M = np.minimum(shorter_M, room // 2)
    longer_M = np.minimum(longer_M, room - shorter_M)
    source_is_longer_M = lengths_2M[0] >= lengths_2M[1]
    source_M = np.where(source_is_longer_M, longer_M, shorter_M)
    target_M = np.where(source_is_longer_M, shorter_M, longer_M)
    return np.stack([source_M, target_M])


def cut_lengths(lengths_2M: np.ndarray, max_length: int, apart: bool) -> np.ndarray:
    """Returns (2, M) lengths of pairs after cutting them to rows of `max_length` positions: to one for both sides, or
    to one for each if they are read apart."""
    if apart:
        return np.minimum(lengths_2M, max_length - SPECIALS_OF_TEXT)
    return cut_pair(lengths_2M, max_length - SPECIALS_OF_PAIR)


def cut_sides(sides: list[list[np.ndarray]], max_length: int, apart: bool) -> list[list[np.ndarray]]:
    """Cuts the two sides of M examples as `cut_lengths`."""
    lengths_2M = np.array([list(map(len, side)) for side in sides])
    cut = []
    for side, lengths_M in zip(sides, cut_lengths(lengths_2M, max_length, apart).tolist(), strict=True):
        cut.append([ids[:length] for ids, length in zip(side, lengths_M, strict=True)])
    return cut


def random_window(ids: np.ndarray, room: int, *key: int | str) -> np.ndarray:
    """Returns `room` tokens of a text, at an offset that depends only on the key; all tokens of a shorter text."""
    if len(ids) <= room:
        return ids
    start = keyed_rng(*key).integers(len(ids) - room + 1)
    return ids[start : start + room]
