"""The meaning of a vocabulary's tokens, for all kinds of tokenizers: a text and whether it starts a word, or bytes.

SentencePiece writes `▁the`, byte-level BPE `Ġthe` and WordPiece `the` for the same meaning, ("the", starts a word).
Inside a word they write `the`, `the` and `##the`. The kind is read from the tokenizer's backend.
"""

import functools
import json
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

ROLES = (("cls", "bos"), ("sep", "eos"), ("pad",), ("unk",), ("mask",))  # of special tokens; names of one role together
# Scripts written without spaces between words, by the first word of their characters' Unicode names.
UNSPACED = {
    *("CJK", "IDEOGRAPHIC", "HANGZHOU", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO", "YI", "NUSHU"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "BALINESE", "TAI", "NEW"),  # NEW TAI LUE
}

# Scripts whose marks over and under a letter are accents or points, which a text may omit. In others, such as
# Devanagari, Thai and Kana, they are vowels and voicing.
ACCENTED = {"LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC"}


class Subword(NamedTuple):
    """A token of text; the space or the mark that starts a word is not part of it."""

    text: str
    starts_word: bool


class Vocabulary(NamedTuple):
    """A vocabulary by id (V). `subwords` holds a `Subword`, the bytes of a token that is no text by itself (a byte, or
    a part of a character), or None for special and added tokens and for ids without a token."""

    kind: str  # sentencepiece | byte_level | wordpiece
    subwords: list[Subword | bytes | None]
    tokens: list[str]  # as the tokenizer writes them; empty where an id has none
    added: dict[str, int]  # special and added tokens


def read_vocabulary(tokenizer: PreTrainedTokenizerBase, name: str) -> Vocabulary:
    """Reads the vocabulary of a SentencePiece, byte-level BPE or WordPiece tokenizer; `name` is for error messages.

    Raises ValueError for other kinds, whose tokens do not show whether they start a word.
    """
    backend = backend_of(tokenizer, name)
    kind, mark = _kind(backend, name)
    vocabulary = backend["model"]["vocab"]
    # a unigram model is a list, which may hold a token twice
    numbered = vocabulary.items() if isinstance(vocabulary, dict) else ((e[0], i) for i, e in enumerate(vocabulary))
    numbered = list(numbered)
    added = {token["content"]: token["id"] for token in backend["added_tokens"]}
    added |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    size = max([len(tokenizer) - 1, *(number for _, number in numbered), *added.values()]) + 1
    subwords: list[Subword | bytes | None] = [None] * size
    tokens = [""] * size
    for token, number in numbered:
        subwords[number], tokens[number] = _subword(token, kind, mark), token
    for token, number in added.items():
        subwords[number], tokens[number] = None, token
    return Vocabulary(kind, subwords, tokens, added)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Returns {`cls`, `bos`, `sep`, `eos`, `pad`, `unk`, `mask`: id} of the special tokens that the tokenizer has."""
    names = [name for role in ROLES for name in role]
    tokens = {name: tokenizer.special_tokens_map.get(f"{name}_token") for name in names}
    return {name: tokenizer.convert_tokens_to_ids(str(token)) for name, token in tokens.items() if token is not None}


def segment_subwords(
    tokenizer: PreTrainedTokenizerBase, name: str, subwords: list[Subword], kind: str
) -> list[list[int]]:
    """Returns the ids into which a tokenizer cuts the texts of another's subwords, without special tokens.

    A subword inside a word is cut as such: no mark of a word's start is put before it, and WordPiece uses only its
    continuing subwords. Unknown tokens are left out, so a list may be empty.
    """
    backend = backend_of(tokenizer, name) | {"added_tokens": [], "post_processor": None}
    backend |= {"truncation": None, "padding": None}
    unknown = special_ids(tokenizer).get("unk")
    ids: list[list[int]] = [[] for _ in subwords]
    for starts_word in (True, False):
        places = [place for place, subword in enumerate(subwords) if subword.starts_word == starts_word]
        clone, before = _without_own_spaces(backend, kind, starts_word)
        texts = [before + subwords[place].text for place in places]
        for place, encoding in zip(places, clone.encode_batch_fast(texts, add_special_tokens=False), strict=True):
            ids[place] = [number for number in encoding.ids if number != unknown]
    return ids


def unreachable_ids(tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> set[int]:
    """Returns ids of WordPiece's continuing subwords that never occur, because the tokenizer always cuts before them.

    To BERT each punctuation mark and each Han character is a word: `##,` is in its vocabulary, but in no text.
    """
    if vocabulary.kind != "wordpiece":
        return set()
    backend = tokenizer.backend_tokenizer
    known = set(vocabulary.subwords)

    def is_cut_off(text: str) -> bool:
        written = f"a{text}"
        if backend.normalizer is not None:
            written = backend.normalizer.normalize_str(written)
        return backend.pre_tokenizer is not None and len(backend.pre_tokenizer.pre_tokenize_str(written)) > 1

    return {
        number
        for number, subword in enumerate(vocabulary.subwords)
        if isinstance(subword, Subword) and not subword.starts_word and Subword(subword.text, True) in known
        if not is_spaced(subword.text) and is_cut_off(subword.text)
    }


@functools.lru_cache(maxsize=1024)  # each dictionary needs the same subword
def fold_case(text: str) -> str:
    """Returns the text in NFKC and lower case; empty if only marks without a letter are left."""
    if text.isascii():
        return text.lower().strip()
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", text).lower()).strip()
    return "" if all(unicodedata.category(c) == "Mn" for c in text) else text


@functools.lru_cache(maxsize=1024)
def normalize(text: str) -> str:
    """Returns `fold_case` without accents: the non-spacing marks (of NFD) of letters of `ACCENTED` scripts."""
    folded = fold_case(text)
    if folded.isascii():
        return folded
    kept, script = [], None  # that of the letter which the marks belong to
    for character in unicodedata.normalize("NFD", folded):
        if unicodedata.category(character) != "Mn":
            script = script_of(character)
        elif script in ACCENTED:
            continue
        kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))


@functools.lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str | None:
    """Returns the script of a letter or mark, such as `LATIN`, from its Unicode name; None for other characters."""
    if unicodedata.category(character)[0] not in "LM":
        return None
    word = unicodedata.name(character, "UNNAMED").removeprefix("HALFWIDTH ").removeprefix("FULLWIDTH ").split()[0]
    return None if word in ("COMBINING", "MODIFIER", "VARIATION") else word


def is_spaced(text: str) -> bool:
    """Returns whether a text contains a letter of a script that is written with spaces.

    In other texts, tokenizers do not agree on the start of a word: BERT's cut at punctuation and around every Han
    character, and a SentencePiece model writes `▁` at the beginning of a sentence.
    """
    return any(script is not None and script not in UNSPACED for script in map(script_of, text))


def may_be_word(subword: Subword) -> bool:
    """Returns whether a subword may be a whole word: it starts a word, or its script has no spaces."""
    return subword.starts_word or (not is_spaced(subword.text) and any(script_of(c) in UNSPACED for c in subword.text))


def backend_of(tokenizer: PreTrainedTokenizerBase, name: str) -> dict[str, Any]:
    """Returns the content of a tokenizer's `tokenizer.json`. Raises ValueError if it has none."""
    try:
        return json.loads(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # AttributeError without a backend; a bare Exception for one with parts in Python
        raise ValueError(
            f"the tokenizer {name} ({type(tokenizer).__name__}) has no readable backend of the tokenizers library. Use "
            "a fast tokenizer: SentencePiece, byte-level BPE or WordPiece."
        ) from error


def _kind(backend: dict[str, Any], name: str) -> tuple[str, str]:
    """Returns (kind, the mark of a word's start or, for WordPiece, of its continuation)."""
    model = backend["model"]
    parts = [*_parts(backend["pre_tokenizer"]), *_parts(backend["decoder"])]
    if model.get("end_of_word_suffix"):
        found = f"marks the ends of words ({model['end_of_word_suffix']})"
    elif model["type"] in ("BPE", "WordPiece") and model.get("continuing_subword_prefix"):
        return "wordpiece", model["continuing_subword_prefix"]
    elif model["type"] == "BPE" and any(part["type"] == "ByteLevel" for part in parts):
        return "byte_level", " "
    elif model["type"] in ("BPE", "Unigram") and (mark := _space_mark(parts)):
        return "sentencepiece", mark
    else:
        found = f"is a {model['type']} model without a mark for the start of words"
    raise ValueError(
        f"the tokenizer {name} {found}. Use SentencePiece (▁ starts a word), byte-level BPE (a space starts it) or "
        "WordPiece (## continues it)."
    )


def _parts(component: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yields a component of a backend, or the parts of a sequence."""
    if component is None:
        return
    inner = next((component[key] for key in ("pretokenizers", "decoders", "normalizers") if key in component), None)
    if inner is None:
        yield component
    for part in inner or ():
        yield from _parts(part)


def _space_mark(parts: list[dict[str, Any]]) -> str | None:
    """Returns the mark for a space in subwords: Metaspace's, or the one that the decoder turns into a space."""
    for part in parts:
        if part["type"] == "Metaspace":
            return part["replacement"]
        if part["type"] == "Replace" and part["content"] == " ":
            return part["pattern"].get("String")
    return None


def _subword(token: str, kind: str, mark: str) -> Subword | bytes:
    if kind == "wordpiece":
        goes_on = token.startswith(mark) and len(token) > len(mark)
        return Subword(token.removeprefix(mark), False) if goes_on else Subword(token, True)
    if kind == "sentencepiece":
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        text = token.replace(mark, " ")
    else:
        table = _bytes_of_characters()
        content = bytes(table[c] for c in token) if all(c in table for c in token) else token.encode()
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return content
    return Subword(text.removeprefix(" "), text.startswith(" "))


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """The alphabet of byte-level BPE, GPT-2's."""
    return {character: byte for byte, character in bytes_to_unicode().items()}


def _without_own_spaces(backend: dict[str, Any], kind: str, starts_word: bool) -> tuple[Tokenizer, str]:
    """Returns a copy of a tokenizer that cuts a text as the start or the rest of a word, and the text to put before."""
    backend = json.loads(json.dumps(backend))
    before = " " if starts_word else ""
    if kind == "wordpiece":
        if not starts_word:
            model, mark = backend["model"], backend["model"]["continuing_subword_prefix"]
            vocabulary, unknown = model["vocab"], model["unk_token"]
            going_on = {token: i for token, i in vocabulary.items() if token.startswith(mark) and token != mark}
            begun = {token.removeprefix(mark): i for token, i in going_on.items()}
            model["vocab"] = begun | going_on | ({unknown: vocabulary[unknown]} if unknown in vocabulary else {})
        return Tokenizer.from_str(json.dumps(backend)), ""
    for part in _parts(backend["pre_tokenizer"]):
        if part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
        elif part["type"] == "Metaspace":
            part["prepend_scheme"], before = ("always" if starts_word else "never"), ""
    normalizer = backend["normalizer"]
    if normalizer is not None:
        kept = [part for part in _parts(normalizer) if part["type"] != "Prepend"]
        backend["normalizer"] = {"type": "Sequence", "normalizers": kept}
    return Tokenizer.from_str(json.dumps(backend)), before
