# SPDX-License-Identifier: Apache-2.0
"""The text side of word alignment: words, tokens, what a tokenizer puts around them, and windows of long pairs."""

import contextlib
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split
from torch.nn.utils.rnn import pad_sequence
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
    found = iter(SPLITTER.encode_batch([side for side in sides if isinstance(side, str)], add_special_tokens=False))
    offsets = [next(found).offsets if isinstance(side, str) else None for side in sides]
    words = [
        list(side) if of is None else [side[begin:end] for begin, end in of]
        for side, of in zip(sides, offsets, strict=True)
    ]
    return words, offsets


class Tokens(NamedTuple):
    """The tokens of N sentences, one after the other.

    ids_F: their ids. words_F: each one's word, from 0 in its sentence. bounds: (N + 1) where sentences begin and end.
    """

    ids_F: torch.Tensor
    words_F: torch.Tensor
    bounds: torch.Tensor


@contextlib.contextmanager
def reading_text(backend: Tokenizer) -> Iterator[None]:
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
    tokenizer: PreTrainedTokenizerBase, sentences: list[list[str]], offsets: list[Offsets | None] | None = None
) -> Tokens:
    """The tokens of sentences given as words, without special tokens; `offsets`: of each, where its text is known.

    Words are cut one by one, as every tokenizer does that is given words. Tokenizers whose tokens hold the space before
    a word, but that add none to a word alone (byte-level BPE; Gemma), get the space with the word. A word may have no
    token (a control character): it is left out, and the others keep their numbers. The name of a special token is text,
    and becomes the unknown token where the vocabulary has no other way to write it.
    """
    with reading_text(tokenizer.backend_tokenizer):
        return _cut(tokenizer, sentences, offsets or [None] * len(sentences))


def _cut(tokenizer: PreTrainedTokenizerBase, sentences: list[list[str]], offsets: list[Offsets | None]) -> Tokens:
    backend = tokenizer.backend_tokenizer

    def ids_of(word: str) -> list[int]:
        return backend.encode([word], is_pretokenized=True, add_special_tokens=False).ids

    text = backend.encode("a b", add_special_tokens=False).ids
    with_space = ids_of("a") + ids_of(" b")
    if text == with_space != ids_of("a") + ids_of("b"):
        sentences = [spell_with_spaces(*sentence) for sentence in zip(sentences, offsets, strict=True)]
    special = set(tokenizer.all_special_ids)
    ids: list[int] = []
    words: list[int] = []
    bounds = [0]
    for encoded in backend.encode_batch(sentences, is_pretokenized=True, add_special_tokens=False):
        for token, word in zip(encoded.ids, encoded.word_ids, strict=True):
            # a unigram model's vocabulary contains the special tokens, too
            text_token = tokenizer.unk_token_id if token in special else token
            if text_token is not None:
                ids.append(text_token)
                words.append(word)
        bounds.append(len(ids))
    return Tokens(torch.tensor(ids, dtype=torch.long), torch.tensor(words, dtype=torch.long), torch.tensor(bounds))


class InputFormat(NamedTuple):
    """The special tokens that a tokenizer puts before and behind a text."""

    before: list[int]
    behind: list[int]

    @classmethod
    def of(cls, tokenizer) -> "InputFormat":
        """Found by encoding a letter. Raises ValueError for a slow tokenizer, as the library does."""
        encoded = tokenizer("a")
        ids, texts = encoded["input_ids"], encoded.sequence_ids(0)
        return cls(ids[: texts.index(0)], ids[len(ids) - texts[::-1].index(0) :])

    @property
    def size(self) -> int:
        """How many positions they take."""
        return len(self.before) + len(self.behind)

    def inputs(self, texts: list[list[int]], padding_id: int, device: torch.device) -> dict[str, torch.Tensor]:
        """The model's inputs (B, T), padded on the right, of B texts, each the ids of its tokens."""
        ids = [torch.tensor(self.before + text + self.behind, dtype=torch.long, device="cpu") for text in texts]
        masks = [torch.ones_like(of) for of in ids]
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=padding_id).to(device),
            "attention_mask": pad_sequence(masks, batch_first=True).to(device),
        }


def cut_into_windows(lengths: list[int], room: int) -> list[tuple[int, ...]]:
    """Windows of a pair of sentences, as `pair_aligner` describes them; one if the pair fits.

    Args:
        lengths: tokens of source and target, 1 or more each.
        room: tokens that fit in addition to the special tokens.

    Returns which tokens each shows: (of the source from, up to, of the target from, up to).
    """
    sizes = [max(1, round(room * length / max(lengths))) for length in lengths]
    short = int(lengths[1] < lengths[0])
    # next to a much longer side, a window in proportion would have too few tokens to choose from
    if sizes[short] < room / 4 and lengths[short] <= room:
        sizes[short] = lengths[short]
    sizes = [min(size, length) for size, length in zip(sizes, lengths, strict=True)]
    hidden = [length - size for length, size in zip(lengths, sizes, strict=True)]
    steps = [max(1, size // 2) for size in sizes]
    last = max(-(-left // step) for left, step in zip(hidden, steps, strict=True))
    starts = [[number * left // max(1, last) for number in range(last + 1)] for left in hidden]
    return [(x, x + sizes[0], y, y + sizes[1]) for x, y in zip(*starts, strict=True)]
