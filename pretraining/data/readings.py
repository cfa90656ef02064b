"""How the values of a column become lists of integers: token ids of a text, its words, and links between words."""

import hashlib
import re
from typing import TYPE_CHECKING, Any

from crosslingual_zoo.pretraining.data.examples import encode_texts
from crosslingual_zoo.zoo_core.provenance import tokenizer_fingerprint

if TYPE_CHECKING:
    from crosslingual_zoo.modeling.word_tokens import Tokens

LINK = re.compile(r"(\d+)([-p])(\d+)")
POSSIBLE = 0
SURE = 1


def tokens_of_words(texts: list[str | None], tokenizer: Any) -> list[list[int]]:
    """Returns the token ids of each text's words."""
    tokens = _cut_into_tokens(texts, tokenizer)
    return _by_text(tokens.ids_F.tolist(), tokens)


def words_of_tokens(texts: list[str | None], tokenizer: Any) -> list[list[int]]:
    """Returns the word, from 0, of each token of each text."""
    tokens = _cut_into_tokens(texts, tokenizer)
    return _by_text(tokens.words_F.tolist(), tokens)


def links_of(texts: list[str | None], tokenizer: Any = None) -> list[list[int]]:
    """Returns the links of each text as a flat list: source word, target word, and `SURE` or `POSSIBLE`.

    Raises ValueError for an item that is not a link.
    """
    links_by_text = []
    for text in texts:
        links: list[int] = []
        for item in (text or "").split():
            match = LINK.fullmatch(item)
            if match is None:
                raise ValueError(f"{item[:40]!r} is not a link between words. Write 0-0, or 0p0 for a possible link.")
            source, kind, target = match.groups()
            links += [int(source), int(target), SURE if kind == "-" else POSSIBLE]
        links_by_text.append(links)
    return links_by_text


def no_links(texts: list[str | None], tokenizer: Any = None) -> list[list[int]]:
    """Returns an empty list of links for each text."""
    return [[] for _ in texts]


READINGS = {
    "text": encode_texts,
    "words": tokens_of_words,
    "word numbers": words_of_tokens,
    "links": links_of,
    "no links": no_links,
}
# Raise it with every change of what these functions, and `row_key` and `_tokenize` of the store, return for the same
# text. `datasets` knows only their names, and would keep the ids that are on disk.
READING_VERSION = 1


def reading_fingerprint(tokenizer: Any) -> str:
    """Returns a hash of all that affects the ids of a text: the tokenizer and `READING_VERSION`. It is in the key of
    the ids on disk, and a resumed run compares it."""
    return hashlib.sha256(f"{READING_VERSION} {tokenizer_fingerprint(tokenizer)}".encode()).hexdigest()


def _cut_into_tokens(texts: list[str | None], tokenizer: Any) -> "Tokens":
    # with transformers, which takes seconds to import
    from crosslingual_zoo.modeling.word_tokens import cut_into_tokens

    words_by_text = []
    for text in texts:
        words_by_text.append(re.findall(r"[^ \t]+", text or ""))
    return cut_into_tokens(tokenizer, words_by_text)


def _by_text(values: list[int], tokens: "Tokens") -> list[list[int]]:
    """Divides the values of all tokens among the texts."""
    bounds = tokens.bounds.tolist()
    return [values[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
