"""The meaning of a vocabulary's tokens, for all kinds of tokenizers: a text and whether it starts a word, or bytes.

SentencePiece writes `▁the`, byte-level BPE `Ġthe` and WordPiece `the` for the same meaning, ("the", starts a word).
Inside a word they write `the`, `the` and `##the`. The kind is read from the tokenizer's backend.
"""

import functools
import json
import unicodedata
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

# Scripts written without spaces between words, by the first word of their characters' Unicode names.
UNSPACED = {
    *("CJK", "IDEOGRAPHIC", "HANGZHOU", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO", "YI", "NUSHU"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE", "BALINESE", "TAI", "NEW"),  # NEW TAI LUE
}

# Scripts whose marks over and under a letter are accents or points, which a text may omit. In others, such as
# Devanagari, Thai and Kana, they are vowels and voicing.
ACCENTED = {"LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC"}

BYTES = {character: byte for byte, character in bytes_to_unicode().items()}  # the alphabet of byte-level BPE, GPT-2's


class Subword(NamedTuple):
    """A token of text; the space or the mark that starts a word is not part of it."""

    text: str
    starts_word: bool


class Vocabulary(NamedTuple):
    """A vocabulary by id (V). `subwords` holds a `Subword`, the bytes of a token that is no text by itself (a byte, or
    a part of a character), or None for special and added tokens and for ids without a token."""

    kind: str  # sentencepiece | byte_level | wordpiece
    subwords: list[Subword | bytes | None]
    added: dict[str, int]  # special and added tokens


def read_vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Reads the vocabulary of a SentencePiece, byte-level BPE or WordPiece tokenizer.

    Raises ValueError for other kinds, whose tokens do not show whether they start a word.
    """
    try:
        kind, mark = _kind(json.loads(tokenizer.backend_tokenizer.to_str()))
    except Exception as error:  # also AttributeError without a backend, and a bare one for a backend with Python parts
        raise ValueError(
            f"the {type(tokenizer).__name__} of {getattr(tokenizer, 'name_or_path', '')!r} does not show which tokens "
            "start a word. Use a fast SentencePiece (▁ starts a word), byte-level BPE or WordPiece (##) tokenizer."
        ) from error
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    added |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    subwords: list[Subword | bytes | None] = [None] * (max(tokenizer.get_vocab().values()) + 1)
    for number in set(range(len(subwords))) - set(added.values()):
        token = tokenizer.backend_tokenizer.id_to_token(number)
        if token is not None:
            subwords[number] = _subword(token, kind, mark)
    return Vocabulary(kind, subwords, added)


def _kind(backend: dict[str, Any]) -> tuple[str, str]:
    """Returns (kind, the mark of a word's start or, for WordPiece, of its continuation)."""
    model = backend["model"]
    unmarked = ValueError(f"a {model['type']} model without a mark for the start of words")
    if model["type"] not in ("BPE", "WordPiece", "Unigram") or model.get("end_of_word_suffix"):
        raise unmarked
    prefix = model.get("continuing_subword_prefix")
    if prefix:
        return "wordpiece", prefix
    if model["type"] == "WordPiece":
        raise unmarked
    parts = _parts(backend["pre_tokenizer"]) + _parts(backend["decoder"])
    if model["type"] == "BPE" and any(part["type"] == "ByteLevel" for part in parts):
        return "byte_level", " "
    for part in parts:
        if part["type"] == "Metaspace":
            return "sentencepiece", part["replacement"]
        if part["type"] == "Replace" and part["content"] == " ":
            return "sentencepiece", part["pattern"]["String"]
    raise unmarked


def _parts(component: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the parts of a component of a backend, or the component itself if it is no sequence."""
    if not component:
        return []
    members = component.get("pretokenizers") or component.get("decoders")
    if not members:
        return [component]
    return [part for member in members for part in _parts(member)]


def _subword(token: str, kind: str, mark: str) -> Subword | bytes:
    if kind == "wordpiece":
        if token.startswith(mark) and len(token) > len(mark):
            return Subword(token.removeprefix(mark), starts_word=False)
        return Subword(token, starts_word=True)
    if kind == "sentencepiece":
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        text = token.replace(mark, " ")
    else:
        is_encoded = all(character in BYTES for character in token)
        content = bytes(BYTES[character] for character in token) if is_encoded else token.encode()
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return content
    return Subword(text.removeprefix(" "), text.startswith(" "))


@functools.lru_cache(maxsize=1024)  # each dictionary needs the same subword
def fold_case(text: str) -> str:
    """Returns the text in NFKC and lower case; empty if only marks without a letter are left."""
    if text.isascii():
        return text.lower().strip()
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", text).lower()).strip()
    is_only_marks = all(unicodedata.category(character) == "Mn" for character in text)
    return "" if is_only_marks else text


@functools.lru_cache(maxsize=1024)
def normalize(text: str) -> str:
    """Returns `fold_case` without accents: the non-spacing marks (of NFD) of letters of `ACCENTED` scripts."""
    characters = []
    script = None  # that of the letter which the marks belong to
    for character in unicodedata.normalize("NFD", fold_case(text)):
        is_mark = unicodedata.category(character) == "Mn"
        if not is_mark:
            script = script_of(character)
        if not (is_mark and script in ACCENTED):
            characters.append(character)
    return unicodedata.normalize("NFC", "".join(characters))


@functools.lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str | None:
    """Returns the script of a letter or mark, such as `LATIN`, from its Unicode name; None for other characters."""
    if unicodedata.category(character)[0] not in "LM":
        return None
    name = unicodedata.name(character, "UNNAMED").removeprefix("HALFWIDTH ").removeprefix("FULLWIDTH ")
    word = name.split()[0]
    return None if word in ("COMBINING", "MODIFIER", "VARIATION") else word


def is_spaced(text: str) -> bool:
    """Returns whether a text contains a letter of a script that is written with spaces.

    In other texts, tokenizers do not agree on the start of a word: BERT's cut at punctuation and around every Han
    character, and a SentencePiece model writes `▁` at the beginning of a sentence.
    """
    scripts = {script_of(character) for character in text} - {None}
    return not scripts <= UNSPACED


def may_be_word(subword: Subword) -> bool:
    """Returns whether a subword may be a whole word: it starts a word, or its script has no spaces."""
    if subword.starts_word:
        return True
    has_unspaced = any(script_of(character) in UNSPACED for character in subword.text)
    return has_unspaced and not is_spaced(subword.text)
