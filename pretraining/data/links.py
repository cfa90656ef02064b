"""Pairs with links as integers: the tokens of their words, the word of each token, and the links.

Words are separated by spaces or tabs, as in the files of word aligners. Each word is cut into tokens by itself, as the
aligner does it.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from modeling.word_tokens import Tokens

LINK = re.compile(r"(\d+)([-p])(\d+)")
POSSIBLE, SURE = 0, 1


def tokens_of_words(texts: list[str | None], tokenizer: "PreTrainedTokenizerBase") -> list[list[int]]:
    """Returns the token ids of each text's words."""
    tokens = _cut(texts, tokenizer)
    return _by_text(tokens.ids_F.tolist(), tokens)


def words_of_tokens(texts: list[str | None], tokenizer: "PreTrainedTokenizerBase") -> list[list[int]]:
    """Returns the word, from 0, of each token of each text."""
    tokens = _cut(texts, tokenizer)
    return _by_text(tokens.words_F.tolist(), tokens)


def links_of(texts: list[str | None], tokenizer: "PreTrainedTokenizerBase | None" = None) -> list[list[int]]:
    """Returns the links of each text as a flat list: source word, target word, and `SURE` or `POSSIBLE`.

    Raises ValueError for an item that is not a link.
    """
    found = []
    for text in texts:
        links: list[int] = []
        for item in (text or "").split():
            match = LINK.fullmatch(item)
            if match is None:
                raise ValueError(f"{item[:40]!r} is not a link between words. Write 0-0, or 0p0 for a possible link.")
            links += (int(match[1]), int(match[3]), SURE if match[2] == "-" else POSSIBLE)
        found.append(links)
    return found


def no_links(texts: list[str | None], tokenizer: "PreTrainedTokenizerBase | None" = None) -> list[list[int]]:
    """Returns an empty list of links for each text."""
    return [[] for _ in texts]


def _cut(texts: list[str | None], tokenizer: "PreTrainedTokenizerBase") -> "Tokens":
    from modeling.word_tokens import cut_into_tokens

    return cut_into_tokens(tokenizer, [re.findall(r"[^ \t]+", text or "") for text in texts])


def _by_text(values: list[int], tokens: "Tokens") -> list[list[int]]:
    bounds = tokens.bounds.tolist()
    return [values[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
