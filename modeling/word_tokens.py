# SPDX-License-Identifier: Apache-2.0
"""The text side of word alignment: words, tokens, what a tokenizer puts around them, and windows of long pairs."""

import contextlib
import math
import re
from collections.abc import Generator
from itertools import chain, pairwise
from typing import NamedTuple

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split
from torch import Tensor
from transformers import PreTrainedTokenizerBase

Words = str | list[str] | tuple[str, ...]
Offsets = list[tuple[int, int]]

# `encode_batch` of a model that knows no word gives the offsets of all. Oniguruma's \X is a segment of text, and with
# y{w} one between two word boundaries of Unicode.
SPLITTER = Tokenizer(WordLevel({"": 0}, unk_token=""))
SPLITTER.pre_tokenizer = Sequence(
    [Split(Regex(r"[\s\p{Cc}\p{Bidi_Control}\u200b\u2060\ufeff]+"), "removed"), Split(Regex(r"(?y{w})\X"), "isolated")]
)
# Scripts that are written without spaces: Han, kana, and their punctuation.
CJK = re.compile("[\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]")


def split_words(sides: list[Words]) -> tuple[list[list[str]], list[Offsets | None]]:
    """The words of each text, and where they are in it; lists of words stay unchanged, and have no offsets.

    Words are separated by white space, control and invisible characters, and by Unicode's default word boundaries
    (UAX #29), by `tokenizers`. Punctuation marks are words of their own, except inside of a word or a number
    (`don't`, `l'homme`, `U.S`, `3.5`, `1,000`, `example.com`), and runs of katakana are words. The other scripts that
    are written without spaces (Han, hiragana, Thai, Lao, Khmer, Burmese) are split into characters, each with its
    combining marks. To align words there, segment the text first and give lists.

    Offsets are (begin, end) in characters (code points) from 0: `text[begin:end]` is the word.
    """
    texts = [side for side in sides if isinstance(side, str)]
    encodings = iter(SPLITTER.encode_batch(texts, add_special_tokens=False))
    words: list[list[str]] = []
    offsets: list[Offsets | None] = []
    for side in sides:
        if isinstance(side, str):
            spans = next(encodings).offsets
            words.append([side[begin:end] for begin, end in spans])
            offsets.append(spans)
        else:
            words.append(list(side))
            offsets.append(None)
    return words, offsets


class Tokens(NamedTuple):
    """The tokens of N sentences, one after the other.

    ids_F: their ids. words_F: each one's word, from 0 in its sentence. bounds: (N + 1) where sentences begin and end.
    """

    ids_F: Tensor
    words_F: Tensor
    bounds: Tensor


@contextlib.contextmanager
def reading_text(backend: Tokenizer) -> Generator[None]:
    """Makes a tokenizer read whole texts, in which the name of a special token is text, and restores its settings.

    A call of the library's tokenizer leaves truncation, padding and the reading of special tokens as it needed them.
    """
    truncation = backend.truncation
    padding = backend.padding
    reads_names_as_text = backend.encode_special_tokens
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    try:
        yield
    finally:
        backend.encode_special_tokens = reads_names_as_text
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)


def spell_with_spaces(words: list[str], offsets: Offsets | None) -> list[str]:
    """The words with the spaces that a text has before them: none at its beginning, nor next to Chinese and Japanese.

    If the text is known, the `offsets` say where spaces are. Words of white space get none.
    """
    if offsets is not None:
        is_apart = [end < begin for (_, end), (begin, _) in pairwise(offsets)]
    else:
        is_apart = [not CJK.search(before[-1:] + word[:1]) for before, word in pairwise(words)]
    spelled = [word if word.strip() else "" for word in words]
    for index, has_space in enumerate(is_apart, start=1):
        if has_space and spelled[index]:
            spelled[index] = f" {words[index]}"
    return spelled


def cut_into_tokens(
    tokenizer: PreTrainedTokenizerBase,
    sentences: list[list[str]],
    offsets: list[Offsets | None] | None = None,
    ids_by_word: dict[str, list[int]] | None = None,
) -> Tokens:
    """The tokens of sentences given as words, without special tokens; `offsets`: of each, where its text is known.

    `ids_by_word`: the tokens of each word of earlier calls with the same tokenizer, to which those of new ones are
    added. Most words of a text have occurred before, and cutting is most of what an aligner does outside of its model.

    Words are cut one by one, as every tokenizer does that is given words. Tokenizers whose tokens hold the space before
    a word, but that add none to a word alone (byte-level BPE; Gemma), get the space with the word. A word may have no
    token (a control character): it is left out, and the others keep their numbers. The name of a special token is text,
    and becomes the unknown token where the vocabulary has no other way to write it.
    """
    if offsets is None:
        offsets = [None] * len(sentences)
    if ids_by_word is None:
        ids_by_word = {}
    with reading_text(tokenizer.backend_tokenizer):
        return _cut(tokenizer, sentences, offsets, ids_by_word)


def _cut(
    tokenizer: PreTrainedTokenizerBase,
    sentences: list[list[str]],
    offsets: list[Offsets | None],
    ids_by_word: dict[str, list[int]],
) -> Tokens:
    backend = tokenizer.backend_tokenizer

    def ids_of(word: str) -> list[int]:
        return backend.encode([word], is_pretokenized=True, add_special_tokens=False).ids

    text = backend.encode("a b", add_special_tokens=False).ids
    with_space = ids_of("a") + ids_of(" b")
    if text == with_space != ids_of("a") + ids_of("b"):
        sentences = [spell_with_spaces(words, spans) for words, spans in zip(sentences, offsets, strict=True)]
    special = set(tokenizer.all_special_ids)
    new_words = [word for word in dict.fromkeys(chain.from_iterable(sentences)) if word not in ids_by_word]
    ids_by_word |= {word: [] for word in new_words}
    encoded = backend.encode(new_words, is_pretokenized=True, add_special_tokens=False)
    for token, number in zip(encoded.ids, encoded.word_ids, strict=True):
        # a unigram model's vocabulary contains the special tokens, too
        text_token = tokenizer.unk_token_id if token in special else token
        if text_token is not None:
            ids_by_word[new_words[number]].append(text_token)
    ids: list[int] = []
    words: list[int] = []
    bounds = [0]
    for sentence in sentences:
        for number, word in enumerate(sentence):
            ids_of_word = ids_by_word[word]
            ids += ids_of_word
            words += [number] * len(ids_of_word)
        bounds.append(len(ids))
    return Tokens(torch.tensor(ids, dtype=torch.long), torch.tensor(words, dtype=torch.long), torch.tensor(bounds))


class InputFormat(NamedTuple):
    """The special tokens that a tokenizer puts before and behind a text."""

    before: list[int]
    behind: list[int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "InputFormat":
        """Encodes a letter to learn them. Raises ValueError for a slow tokenizer, as the library does."""
        encoded = tokenizer("a")
        ids = encoded["input_ids"]
        texts = encoded.sequence_ids(0)  # None for a special token
        text_start = texts.index(0)
        text_end = len(texts) - texts[::-1].index(0)
        return cls(ids[:text_start], ids[text_end:])

    @property
    def size(self) -> int:
        """How many positions they take."""
        return len(self.before) + len(self.behind)

    def inputs(self, texts: list[list[int]], padding_id: int, device: torch.device) -> dict[str, Tensor]:
        """The model's inputs (B, T), padded on the right, of B texts, each the ids of its tokens."""
        rows = [self.before + text + self.behind for text in texts]
        lengths = [len(row) for row in rows]
        longest = max(lengths)
        padded_rows = [row + [padding_id] * (longest - len(row)) for row in rows]
        length_B1 = torch.tensor(lengths, device=device)[:, None]
        is_real_BT = torch.arange(longest, device=device) < length_B1
        return {
            "input_ids": torch.tensor(padded_rows, device=device),
            "attention_mask": is_real_BT.long(),
        }


class Window(NamedTuple):
    """Which tokens of source and target a window shows, from and up to."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int


def cut_into_windows(source_length: int, target_length: int, room: int) -> list[Window]:
    """Windows of a pair of sentences, as `pair_aligner` describes them; one if the pair fits.

    Args:
        source_length, target_length: tokens, 1 or more.
        room: tokens that fit in addition to the special tokens.
    """
    longest = max(source_length, target_length)
    source_size = max(1, round(room * source_length / longest))
    target_size = max(1, round(room * target_length / longest))
    # next to a much longer side, a window in proportion would have too few tokens to choose from
    if target_length < source_length:
        target_size = _shown_whole(target_size, target_length, room)
    else:
        source_size = _shown_whole(source_size, source_length, room)
    source_size = min(source_size, source_length)
    target_size = min(target_size, target_length)
    steps = max(_steps(source_size, source_length), _steps(target_size, target_length))
    windows = []
    for number in range(steps + 1):
        source_start = number * (source_length - source_size) // max(1, steps)
        target_start = number * (target_length - target_size) // max(1, steps)
        windows.append(Window(source_start, source_start + source_size, target_start, target_start + target_size))
    return windows


def _shown_whole(size: int, length: int, room: int) -> int:
    """The length of the shorter side, where its window would be less than a quarter of the other's; else its size."""
    return length if size < room / 4 and length <= room else size


def _steps(size: int, length: int) -> int:
    """How often a window of this size moves, by half of it, to show the whole side."""
    return math.ceil((length - size) / max(1, size // 2))
