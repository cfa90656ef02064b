"""Vocabulary matching (MetaXLM, section 3.2): finds for a new vocabulary rows of a model of one language."""

import itertools
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from crosslingual_zoo.pretraining.recipe import Dictionary
from crosslingual_zoo.pretraining.start.token_texts import (
    Subword,
    Vocabulary,
    fold_case,
    is_spaced,
    may_be_word,
    normalize,
    read_vocabulary,
)
from crosslingual_zoo.zoo_core.recipes import or_installed
from crosslingual_zoo.zoo_core.tables import read_lines

ROLES = (("cls", "bos"), ("sep", "eos"), ("pad",), ("unk",), ("mask",))  # of special tokens; names of one role together


@dataclass
class Translations:
    """A bilingual dictionary: {word: its translations in the order of the file}, as written and in lower case."""

    language: str
    path: str
    pairs: int = 0
    skipped: int = 0  # lines
    as_written: dict[str, list[str]] = field(default_factory=dict)
    lower_cased: dict[str, list[str]] = field(default_factory=dict)

    def look_up(self, word: str) -> Iterator[str]:
        """Yields the translations of a word as written, then in lower case, then normalized.

        The dictionary's own words keep their accents: English `the` is not the French `thé`.
        """
        yield from self.as_written.get(word, ())
        for form in (fold_case(word), normalize(word)):
            yield from self.lower_cased.get(form, ())


class Match(NamedTuple):
    """Where a row of the new vocabulary comes from, as in `Matching`."""

    source: int | None
    route: str


@dataclass(frozen=True)
class Matching:
    """Where each row of a new vocabulary (W ids) comes from; `match_vocabularies` makes it.

    Example:
        >>> matching = match_vocabularies(old_tokenizer, new_tokenizer)

    `embeddings` raises IndexError for a matrix of fewer rows than the old vocabulary has.

    Source: MetaXLM (Chi et al., 2021), section 3.2.
    """

    sources: list[int | None]  # (W) id of the old vocabulary whose row is copied; None: a random row
    routes: list[str]  # (W) special, dictionary, exact, normalized or random
    dictionaries: list[Translations]  # as they were read

    def embeddings(self, old_VH: torch.Tensor, std: float = 0.02) -> torch.Tensor:
        """Returns the (W, H) embeddings of the new vocabulary: the rows of the matched tokens of `old_VH` (V, H), and
        where no token is matched a row of random numbers of torch's generator, of mean 0 and standard deviation `std`.
        """
        new_WH = torch.randn(len(self.sources), old_VH.shape[1], dtype=old_VH.dtype, device=old_VH.device) * std
        self.copy_rows(new_WH, old_VH)
        return new_WH

    @torch.no_grad()
    def copy_rows(self, new: torch.Tensor, old: torch.Tensor) -> None:
        """Sets each row of `new` (W, ...) that has a source to that row of `old` (V, ...)."""
        matched = [(row, source) for row, source in enumerate(self.sources) if source is not None]
        rows = [row for row, _ in matched]
        sources = [source for _, source in matched]
        new[rows] = old[sources]


def match_vocabularies(
    old: PreTrainedTokenizerBase,
    new: PreTrainedTokenizerBase,
    dictionaries: Sequence[Dictionary] = (),
    hub_root: str | None = None,
) -> Matching:
    """Finds for every token of `new` the token of `old` from whose embedding it starts. The result is deterministic.

        >>> matching = match_vocabularies(old_tokenizer, new_tokenizer)
        >>> new_WH = matching.embeddings(old_model.get_input_embeddings().weight)  # (W, H) of (V, H)
        >>> tuple(new_WH.shape) == (len(new_tokenizer), old_model.config.hidden_size)
        True

    Args:
        dictionaries: files in MUSE's format, such as `Dictionary("de", "de-en.txt")`, in the order of look-up.
        hub_root: folder that is searched first for dictionaries.

    Special tokens are matched by role (<s> and [CLS]; </s> and [SEP]; padding, unknown, mask). Other tokens take the
    first of these routes, the paper's order, that finds a row:

    - dictionary: a subword that may be a whole word is looked up in each dictionary, as written, in lower case, and
      normalized. Its translation is then matched to the old vocabulary, as the start of a word, by the next two routes.
    - exact: the old subword has the same text, and both start a word or neither does. If the text has no letter of a
      script with spaces (punctuation, digits, Han), the start may differ, if there is no other subword or if the other
      never occurs (BERT's `##,`, whose row was never trained). Equal bytes match, too.
    - normalized: the texts are equal in NFKC and lower case or, if there is none, also without accents. Of several old
      subwords the one that is written in that form is used, else the lowest id.

    Deviations from the paper: it does not define "normalized", how starts of words are compared, and what happens to
    special tokens; these choices are ours. Accents are the marks of `ACCENTED` scripts. The same word in another case
    comes before another word: `Schön` gets the row of `schön`, not that of `schon`.

    Raises ValueError for a tokenizer of an unknown kind (`read_vocabulary`) and an unreadable dictionary.

    Source: MetaXLM (Chi et al., 2021), section 3.2.
    """
    translations = [read_dictionary(dictionary, hub_root) for dictionary in dictionaries]
    old_vocabulary = read_vocabulary(old)
    new_vocabulary = read_vocabulary(new)
    unreachable: set[int] = set()
    # between two WordPiece vocabularies `##,` matches `##,`, even if it never occurs
    if new_vocabulary.kind != old_vocabulary.kind:
        unreachable = unreachable_ids(old, old_vocabulary)
    index = _Index(old_vocabulary, unreachable)
    specials = _match_specials(old, new, old_vocabulary, new_vocabulary)
    matches = []
    for number, subword in enumerate(new_vocabulary.subwords):
        match = None
        if number in specials:
            match = Match(specials[number], "special")
        elif subword is not None:
            match = index.match_translation(translations, subword) or index.match(subword)
        matches.append(match or Match(None, "random"))
    return Matching([match.source for match in matches], [match.route for match in matches], translations)


class _Index:
    """The tokens of the old vocabulary by their meaning, without those that never occur in a text."""

    def __init__(self, old: Vocabulary, unreachable: set[int]):
        self.exact: dict[Subword | bytes, int] = {}
        for number, subword in enumerate(old.subwords):
            if subword is not None and number not in unreachable:
                self.exact.setdefault(subword, number)
        # forms in which texts are compared, the one closest to the text first, and the subwords by this form: the one
        # that is written in it, else the lowest id
        self.by_form: list[tuple[Callable[[str], str], dict[Subword, int]]] = []
        for form in (fold_case, normalize):
            index: dict[Subword, int] = {}
            for subword, number in self.exact.items():
                if isinstance(subword, bytes):
                    continue
                text = form(subword.text)
                if text:
                    index.setdefault(Subword(text, subword.starts_word), number)
            written_so = {subword: self.exact[subword] for subword in index if subword in self.exact}
            self.by_form.append((form, index | written_so))

    def match(self, subword: Subword | bytes) -> Match | None:
        """Matches a subword by the routes exact and normalized."""
        for equal in _equals(subword):
            if equal in self.exact:
                return Match(self.exact[equal], "exact")
        if isinstance(subword, bytes):
            return None
        for form, index in self.by_form:
            for equal in _equals(Subword(form(subword.text), subword.starts_word)):
                if equal in index:
                    return Match(index[equal], "normalized")
        return None

    def match_translation(self, dictionaries: list[Translations], subword: Subword | bytes) -> Match | None:
        """Matches a subword by the route dictionary: to the first translation that has a row."""
        if isinstance(subword, bytes) or not dictionaries or not may_be_word(subword):
            return None
        for dictionary in dictionaries:
            for translation in dictionary.look_up(subword.text):
                match = self.match(Subword(translation, True))
                if match:
                    return Match(match.source, "dictionary")
        return None


def _equals(subword: Subword | bytes) -> list[Subword | bytes]:
    """Returns the tokens with the same meaning, the subword itself first: one that differs in the start of a word where
    that does not matter, and the byte of a character or the character of a byte."""
    equals = [subword]
    if isinstance(subword, bytes):
        if len(subword) != 1 or not subword.isascii():
            return equals
        subword = Subword(subword.decode(), False)
        equals.append(subword)
    if not is_spaced(subword.text):
        equals.append(Subword(subword.text, not subword.starts_word))
    if len(subword.text) == 1 and subword.text.isascii() and not subword.starts_word:
        equals.append(subword.text.encode())
    return equals


def unreachable_ids(tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> set[int]:
    """Returns ids of WordPiece's continuing subwords that never occur, because the tokenizer always cuts before them.

    To BERT each punctuation mark and each Han character is a word: `##,` is in its vocabulary, but in no text.
    """
    if vocabulary.kind != "wordpiece":
        return set()
    subwords = set(vocabulary.subwords)
    unreachable = set()
    for number, subword in enumerate(vocabulary.subwords):
        if not isinstance(subword, Subword) or subword.starts_word or is_spaced(subword.text):
            continue
        if Subword(subword.text, True) in subwords:
            words = tokenizer(f"a{subword.text}", add_special_tokens=False).word_ids()
            if len(set(words)) > 1:
                unreachable.add(number)
    return unreachable


def _match_specials(
    old: PreTrainedTokenizerBase,
    new: PreTrainedTokenizerBase,
    old_vocabulary: Vocabulary,
    new_vocabulary: Vocabulary,
) -> dict[int, int]:
    """Returns {id of a special token: id of the old one with the same role}, if there is one.

    Added tokens that have no role are matched to an added token of the same name, never to a subword.
    """
    old_ids = _ids_by_role(old)
    new_ids = _ids_by_role(new)
    sources = {}
    for token, number in new_vocabulary.added.items():
        if token in old_vocabulary.added and number not in new_ids.values():
            sources[number] = old_vocabulary.added[token]
    for role in ROLES:
        for name in role:
            # <s> is XLM-R's bos and cls; a tokenizer with one of them uses it for both
            candidates = [old_ids[other] for other in (name, *role) if other in old_ids]
            if name in new_ids and candidates:
                sources.setdefault(new_ids[name], candidates[0])
    return sources


def _ids_by_role(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The ids of the special tokens that a tokenizer has, by their names in `ROLES`."""
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in itertools.chain(*ROLES)}
    return {name: number for name, number in ids.items() if number is not None}


def read_dictionary(dictionary: Dictionary, hub_root: str | None = None) -> Translations:
    """Reads a dictionary in MUSE's format, a word and one translation a line, from `hub_root` if it contains the file.

    One tab separates the sides of a line; without a tab, white space does. Empty columns at the end do not count. Lines
    without two single words are skipped and counted, and so are repeated pairs: they should not stop a run.

    Raises ValueError for a file that is missing or not UTF-8, if neither `first` nor the file's name tells which side
    is the language's, and for a file without any pair.
    """
    path = Path(hub_root or "", dictionary.path)
    if not path.is_file():
        path = Path(or_installed(dictionary.path))
    if not path.is_file():
        raise ValueError(f"the dictionary {dictionary.path} does not exist: no file {path}.")
    has_word_first = dictionary.first == "word"
    if dictionary.first is None:
        has_word_first = _has_word_first(dictionary, path)
    lines = list(read_lines(path))
    pairs = {}  # a set in the order of the file
    for line in lines:
        pair = _pair_of_words(unicodedata.normalize("NFKC", line).rstrip())
        if pair:
            pairs[pair if has_word_first else pair[::-1]] = None
    if not pairs:
        raise ValueError(f"the dictionary {dictionary.path} contains no pair of words in its {len(lines):,} lines.")
    translations = Translations(dictionary.language, dictionary.path, len(pairs), len(lines) - len(pairs))
    for word, translation in pairs:
        _add(translations.as_written, word, translation)
        _add(translations.lower_cased, fold_case(word), translation)
    return translations


def _has_word_first(dictionary: Dictionary, path: Path) -> bool:
    """Whether a line begins with the word of the dictionary's language, as the name of the file tells."""
    language = dictionary.language.lower()
    name = path.name.lower().partition(".")[0]
    is_first = name.startswith(f"{language}-")
    if is_first == name.endswith(f"-{language}"):
        raise ValueError(f"the name of {dictionary.path} does not tell which side is {language}. Set `first`.")
    return is_first


def _pair_of_words(line: str) -> tuple[str, str] | None:
    """The two words of a line; None for a line of another form."""
    columns = line.split("\t") if "\t" in line else line.split()
    words = [column.split() for column in columns]
    if [len(parts) for parts in words] != [1, 1]:
        return None
    return words[0][0], words[1][0]


def _add(translations: dict[str, list[str]], word: str, translation: str) -> None:
    listed = translations.setdefault(word, [])
    if translation not in listed:
        listed.append(translation)
