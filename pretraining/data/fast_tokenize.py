"""Subword ids at many times the speed of `tokenizers`, and the same ids.

A tokenizer of XLM-R's form takes the words between spaces one by one: the ids of a text are those of its words, one
after the other. So words are looked up, and those that have not been seen are segmented by the sentencepiece library,
in a model made of the tokenizer's own vocabulary, scores and normalizer.

Words and not whole texts, because that library adds up scores in single precision: over a document of some thousand
subwords the sums are so large that rounding decides between close segmentations (`red e` or `re de`), and the ids are
others than those of `tokenizers`, which starts anew at each word and in double precision.

What is not known to be equal goes through the tokenizer itself: a text that spells a special token; one with a word
whose ends may join the space beside it to one grapheme, which `tokenizers` normalizes as a unit; a word that the two
libraries normalize otherwise; and everything, where the tokenizer has another form, or a check finds a difference.
"""

import array
import base64
import functools
import json
import logging
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

SPACE = "▁"  # how subwords write the space before a word
SHORT = 24  # characters of a word that is kept; longer ones hardly ever come again
MOST_KEPT = 1 << 18  # words: some 60 MB in a process
_CODES = (*range(0x20000), *range(0xE0000, 0xE0200))  # beyond are ideographs alone
# Letters of which Korean syllables are made, and letters that flags are made of.
_COMBINED = (("\u1100", "\u11ff"), ("\ua960", "\ua97f"), ("\ud7b0", "\ud7ff"), ("\U0001f1e6", "\U0001f1ff"))

# What tokenizers of this form have been seen to disagree on, or might: each is checked before a tokenizer is trusted.
PROBES = (
    *("", " ", "   ", "a", " a  b ", "a b\u00a0c\u3000d\u2003e", "tab\tand\nnewline\r\nhere", "a\n b \r\n"),
    *("\x00\x01\x1f\x7f", "\u200b\u200d\ufeff x", "x\u00ad y\u200e", "\u2028\u2029\u0085 end"),
    *("\ufffd \ue000 \U000e0041", "<mask>", "a<mask>b </s> <s>", "＜mask＞ ＜/s＞", "<pad><unk>", "▁ a▁b ▁▁"),
    *("-" * 99, "- " * 60, "x" * 400, "哈" * 60, "https://example.org/a?b=c&d=%20#" * 4, "123,456.789 3.14"),
    *("ﬁne ① ２３ ㎏ ½ ™ Ⅷ …", "e\u0301 \u0301e a \u0308 a\u0308\u0301\u0323", "Ǆ ǅ İ ı ß ẞ"),
    *(
        "\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea\U0001f1eb \U0001f3fd x",
        "ｶﾞ ﾞ パパ ハ\u309a",
    ),
    *("한국어 \u1112\u1161\u11ab 각", "नमस्ते दुनिया न\u093c", "ภาษาไทย ำ กำ", "العربية\u0640 لا \u0600 1 مُحَمَّد"),
    *("ｶﾞ ﾞ パパ ハ\u309a", "中文，没有空格。他说：「你好！」", "𠮷𡈽 \U00020bb7"),
)


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


class FastTokens:
    """The ids of texts, without special tokens, as `encode_texts` gives them: see the head of this file.

    `why_not` says why the tokenizer is used as it is, and is None where words are looked up.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        form = _form(tokenizer)
        self.why_not = form if isinstance(form, str) else None
        self.model = None if self.why_not else _sentencepiece_model(form)
        self._open()
        self.check(PROBES)

    def encode(self, texts: Sequence[str | None]) -> tuple[np.ndarray, np.ndarray]:
        """(all subwords, one text after the other, (their sum,) int32; (number of texts,) int64 subwords of each)."""
        encoded = [b""] * len(texts)
        slow = range(len(texts)) if self.why_not else self._encode_words(texts, encoded)
        for index, ids in zip(slow, _ask([texts[index] for index in slow], self.tokenizer), strict=True):
            encoded[index] = ids
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)) // np.dtype(np.int32).itemsize
        return np.frombuffer(b"".join(encoded), dtype=np.int32), lengths

    def check(self, texts: Sequence[str | None]) -> bool:
        """Whether `texts` get the tokenizer's ids by way of words. If one does not, words are looked up no more."""
        if self.why_not is None:
            flat, lengths = self.encode(texts)
            stops = np.cumsum(lengths)
            for text, start, stop, wanted in zip(
                texts, stops - lengths, stops, _ask(texts, self.tokenizer), strict=True
            ):
                if flat[start:stop].tobytes() != wanted:
                    self.why_not = f"its ids of {text[:60]!r} are others than those of its words"
                    break
        return self.why_not is None

    def __getstate__(self) -> dict:
        """For another process, which learns words of its own."""
        return {name: getattr(self, name) for name in ("tokenizer", "why_not", "model")}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._open()

    def _open(self) -> None:
        self.words: dict[str, bytes] = {"": b""}
        if self.why_not is not None:
            return
        from sentencepiece import SentencePieceProcessor

        self.processor = SentencePieceProcessor(model_proto=self.model)
        backend = self.tokenizer.backend_tokenizer
        self.normalize = backend.normalizer.normalize_str if backend.normalizer else str
        self.spelled = [token.content for token in backend.get_added_tokens_decoder().values()]
        self.unknown = self.tokenizer.unk_token_id
        self.special = np.array(sorted({*self.tokenizer.all_special_ids} - {self.unknown}), dtype=np.int32)

    def _encode_words(self, texts: Sequence[str | None], encoded: list[bytes]) -> list[int]:
        """Fills in the texts that are made of words; gives back the numbers of the others."""
        if len(self.words) > MOST_KEPT:
            self.words = {"": b""}
        everything = "\n".join(filter(None, texts))
        spelled = [token for token in self.spelled if token in everything]
        get, join = self.words.get, b"".join
        waiting, slow = [], []
        for index, text in enumerate(texts):
            if not text:
                continue
            if any(token in text for token in spelled):
                slow.append(index)
                continue
            words = text.split(" ")
            try:
                encoded[index] = join(map(get, words))
            except TypeError:  # None, a word that is not known: cheaper to meet than to look for
                waiting.append((index, words))
        passing = self._learn(set(chain.from_iterable(words for _, words in waiting)).difference(self.words))
        for index, words in waiting:
            try:
                encoded[index] = join(map(get, words))
            except TypeError:
                slow.append(index)
        for word in passing:
            del self.words[word]
        return slow

    def _learn(self, words: set[str]) -> list[str]:
        """Adds words, but for those that may join a space; gives back those that are not worth keeping."""
        is_special = _special_characters().search
        odd = {word for word in words if is_special(word)}
        extends, precedes = _extending().match, _preceding().match
        fit = [word for word in odd if not extends(word) and not precedes(word[-1])]
        segmented, asked = list(words - odd), []
        for word in fit:
            (segmented if self._is_normalized_alike(word) else asked).append(word)
        ids = self.processor.encode(segmented, out_type=int, num_threads=1)
        flat = np.fromiter(chain.from_iterable(ids), dtype=np.int32)
        spelled = np.isin(flat, self.special)  # in other characters, as ＜mask＞
        if spelled.any():
            flat[spelled] = self.unknown
        content, stop = flat.tobytes(), 0
        for word, size in zip(segmented, map(len, ids), strict=True):
            start, stop = stop, stop + size * flat.itemsize
            self.words[word] = content[start:stop]
        self.words.update(zip(asked, _ask(asked, self.tokenizer), strict=True))
        return [word for word in chain(segmented, asked) if len(word) > SHORT]

    def _is_normalized_alike(self, word: str) -> bool:
        """Whether sentencepiece and `tokenizers` normalize a word alike, and cut it at the same white space."""
        return self.processor.normalize(word) == "".join(SPACE + part for part in self.normalize(word).split())


_KNOWN: dict[PreTrainedTokenizerBase, FastTokens] = {}


def fast_tokens(tokenizer: PreTrainedTokenizerBase) -> FastTokens:
    """The `FastTokens` of a tokenizer, one for all columns; says once where it cannot be faster."""
    if tokenizer not in _KNOWN:
        _KNOWN[tokenizer] = FastTokens(tokenizer)
        if _KNOWN[tokenizer].why_not:
            logger.info("The tokenizer is used as it is, which takes longer: %s", _KNOWN[tokenizer].why_not)
    return _KNOWN[tokenizer]


def _form(tokenizer: PreTrainedTokenizerBase) -> dict | str:
    """What a tokenizer of the library `tokenizers` is made of; or why its words cannot be taken one by one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return "it is not of the library `tokenizers`"
    form = json.loads(backend.to_str())
    model = form["model"]
    if model["type"] != "Unigram" or model.get("byte_fallback") or model.get("unk_id") is None:
        return f"its model is {model['type']}, and not a plain unigram model with an unknown subword"
    cuts = [
        (step["type"], *(step.get(name) for name in ("replacement", "prepend_scheme", "split") if name in step))
        for step in _steps(form["pre_tokenizer"], "pretokenizers")
    ]
    if cuts != [("WhitespaceSplit",), ("Metaspace", SPACE, "always", True)]:
        return f"it cuts words by {', '.join(cut[0] for cut in cuts) or 'nothing'}, and not by white space alone"
    normalizers = [step["type"] for step in _steps(form["normalizer"], "normalizers")]
    if normalizers not in ([], ["Precompiled"]):
        return f"it normalizes by {', '.join(normalizers)}, and not by a table of SentencePiece's alone"
    if other := [token["content"] for token in form["added_tokens"] if not token["special"]]:
        return f"it has tokens beside its subwords, such as {other[0]!r}"
    return form


def _sentencepiece_model(form: dict) -> bytes:
    """A sentencepiece model with the vocabulary, ids, scores and normalizer of a tokenizer."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    unknown = form["model"]["unk_id"]
    model.trainer_spec.unk_id = unknown
    for name in ("bos_id", "eos_id", "pad_id"):
        setattr(model.trainer_spec, name, -1)
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    for number, (subword, score) in enumerate(form["model"]["vocab"]):
        # special tokens too are ordinary subwords of the unigram model, until `encode_texts` replaces them
        kind = kinds.UNKNOWN if number == unknown else kinds.NORMAL
        model.pieces.add(piece=subword, score=score, type=kind)
    model.trainer_spec.unk_piece = form["model"]["vocab"][unknown][0]
    for step in _steps(form["normalizer"], "normalizers"):
        model.normalizer_spec.precompiled_charsmap = base64.b64decode(step["precompiled_charsmap"])
    return model.SerializeToString()


def _steps(step: dict | None, name: str) -> list[dict]:
    """The steps of a normalizer or pre-tokenizer: a sequence's own, or the one that it is."""
    if step is None:
        return []
    return [inner for one in step[name] for inner in _steps(one, name)] if step["type"] == "Sequence" else [step]


def _ask(texts: Sequence[str | None], tokenizer: PreTrainedTokenizerBase) -> list[bytes]:
    return [array.array("i", ids).tobytes() for ids in encode_texts(list(texts), tokenizer)] if len(texts) else []


def _extends(character: str) -> bool:
    """Whether a character may belong to the grapheme of what stands before it, and be it a space (Unicode, UAX 29)."""
    return (
        unicodedata.category(character) in ("Mn", "Mc", "Me", "Cs")
        or character in "\u200c\u200d\u0e33\u0eb3\uff9e\uff9f"  # joiners; vowels and voiced marks that count as letters
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # colors of skin
        or "\U000e0020" <= character <= "\U000e007f"  # tags
    )


def _precedes(character: str) -> bool:
    """Whether a character may draw what stands after it into its grapheme, and be it a space."""
    # signs before numbers; letters of South Asian scripts that stand before others
    return (
        "\u0600" <= character <= "\u0605"
        or character in "\u06dd\u070f\u0890\u0891\u08e2\u0d4e"
        or "\U00011000" <= character <= "\U00011fff"
    )


def _is_special(character: str) -> bool:
    """Whether the two libraries may normalize a character otherwise, for its neighbors, or cut words at it."""
    return (
        _extends(character)
        or _precedes(character)
        or unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Zs")
        or character == SPACE
        or any(first <= character <= last for first, last in _COMBINED)
    )


@functools.cache
def _extending() -> re.Pattern:
    return _class_of(_extends)


@functools.cache
def _preceding() -> re.Pattern:
    return _class_of(_precedes)


@functools.cache
def _special_characters() -> re.Pattern:
    return _class_of(_is_special)


def _class_of(wanted: Callable[[str], bool]) -> re.Pattern:
    """The characters that are wanted, as a regular expression."""
    ranges: list[list[int]] = []
    for code in _CODES:
        if wanted(chr(code)):
            if ranges and code == ranges[-1][1] + 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return re.compile("[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) + "]")
