"""Vocabulary matching (MetaXLM, section 3.2): finds for a new vocabulary rows of a model of one language."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
        found = [row for row, source in enumerate(self.sources) if source is not None]
        new[found] = old[[self.sources[row] for row in found]]


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
    read = [read_dictionary(one, hub_root) for one in dictionaries]
    olds, news = read_vocabulary(old), read_vocabulary(new)
    # between two WordPiece vocabularies `##,` matches `##,`, even if it never occurs
    index = _Index(olds, set() if news.kind == olds.kind else unreachable_ids(old, olds))
    specials = _match_specials(old, new, olds, news)
    sources, routes = [], []
    for number, subword in enumerate(news.subwords):
        source, route = None, "random"
        if number in specials:
            source, route = specials[number], "special"
        elif subword is not None:
            source, route = index.match_translation(read, subword) or index.match(subword) or (source, route)
        sources.append(source)
        routes.append(route)
    return Matching(sources, routes, read)


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
                if isinstance(subword, Subword) and (text := form(subword.text)):
                    index.setdefault(Subword(text, subword.starts_word), number)
            self.by_form.append((form, {one: self.exact.get(one, number) for one, number in index.items()}))

    def match(self, subword: Subword | bytes) -> tuple[int, str] | None:
        """Matches a subword by the routes exact and normalized."""
        for found in map(self.exact.get, _equals(subword)):
            if found is not None:
                return found, "exact"
        for form, index in self.by_form if isinstance(subword, Subword) else ():
            for found in map(index.get, _equals(Subword(form(subword.text), subword.starts_word))):
                if found is not None:
                    return found, "normalized"
        return None

    def match_translation(self, dictionaries: list[Translations], subword: Subword | bytes) -> tuple[int, str] | None:
        """Matches a subword by the route dictionary: to the first translation that has a row."""
        if isinstance(subword, Subword) and dictionaries and may_be_word(subword):
            for one in dictionaries:
                for translation in one.look_up(subword.text):
                    if match := self.match(Subword(translation, True)):
                        return match[0], "dictionary"
        return None


def _equals(subword: Subword | bytes) -> list[Subword | bytes]:
    """Returns the tokens with the same meaning, the subword itself first: one that differs in the start of a word where
    that does not matter, and the byte of a character or the character of a byte."""
    found = [subword]
    if isinstance(subword, bytes) and len(subword) == 1 and subword.isascii():
        found.append(subword := Subword(subword.decode(), False))
    if isinstance(subword, Subword) and not is_spaced(subword.text):
        found.append(Subword(subword.text, not subword.starts_word))
    if isinstance(subword, Subword) and len(subword.text) == 1 and subword.text.isascii() and not subword.starts_word:
        found.append(subword.text.encode())
    return found


def unreachable_ids(tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> set[int]:
    """Returns ids of WordPiece's continuing subwords that never occur, because the tokenizer always cuts before them.

    To BERT each punctuation mark and each Han character is a word: `##,` is in its vocabulary, but in no text.
    """
    known = set(vocabulary.subwords)
    return {
        number
        for number, subword in enumerate(vocabulary.subwords if vocabulary.kind == "wordpiece" else ())
        if subword is not None and not subword.starts_word and Subword(subword.text, True) in known
        if not is_spaced(subword.text)
        if len({*tokenizer(f"a{subword.text}", add_special_tokens=False).word_ids()}) > 1
    }


def _match_specials(
    old: PreTrainedTokenizerBase, new: PreTrainedTokenizerBase, olds: Vocabulary, news: Vocabulary
) -> dict[int, int]:
    """Returns {id of a special token: id of the old one with the same role}, if there is one.

    Added tokens that have no role are matched to an added token of the same name, never to a subword.
    """
    of_old, of_new = ({name: getattr(of, f"{name}_token_id") for role in ROLES for name in role} for of in (old, new))
    named = {number: olds.added[token] for token, number in news.added.items() if token in olds.added}
    found = {number: source for number, source in named.items() if number not in of_new.values()}
    for role in ROLES:
        for name in role:
            # <s> is XLM-R's bos and cls; a tokenizer with one of them uses it for both
            same = [of_old[other] for other in (name, *role) if of_old[other] is not None]
            if of_new[name] is not None and same:
                found.setdefault(of_new[name], same[0])
    return found


def read_dictionary(dictionary: Dictionary, hub_root: str | None = None) -> Translations:
    """Reads a dictionary in MUSE's format, a word and one translation a line, from `hub_root` if it contains the file.

    One tab separates the sides of a line; without a tab, white space does. Empty columns at the end do not count. Lines
    without two single words are skipped and counted, and so are repeated pairs: they should not stop a run.

    Raises ValueError for a file that is missing or not UTF-8, if neither `first` nor the file's name tells which side
    is the language's, and for a file without any pair.
    """
    path = Path(hub_root or "", dictionary.path)
    path = path if path.is_file() else Path(or_installed(dictionary.path))
    if not path.is_file():
        raise ValueError(f"the dictionary {dictionary.path} does not exist: no file {path}.")
    language, name = dictionary.language.lower(), path.name.lower().partition(".")[0]
    sides = {"word": name.startswith(f"{language}-"), "translation": name.endswith(f"-{language}")}
    first = dictionary.first or next((side for side, is_first in sides.items() if is_first), None)
    if first is None or not dictionary.first and all(sides.values()):
        raise ValueError(f"the name of {dictionary.path} does not tell which side is {language}. Set `first`.")
    lines = list(read_lines(path))
    pairs = {}  # a set in the order of the file
    for line in (unicodedata.normalize("NFKC", line).rstrip() for line in lines):
        columns = [column.split() for column in line.split("\t")] if "\t" in line else [[word] for word in line.split()]
        if [len(words) for words in columns] == [1, 1]:
            (pair,) = zip(*(columns if first == "word" else columns[::-1]), strict=True)
            pairs[pair] = None
    if not pairs:
        raise ValueError(f"the dictionary {dictionary.path} contains no pair of words in its {len(lines):,} lines.")
    read = Translations(dictionary.language, dictionary.path, len(pairs), len(lines) - len(pairs))
    for word, translation in pairs:
        for form, translations in ((word, read.as_written), (fold_case(word), read.lower_cased)):
            known = translations.setdefault(form, [])
            if translation not in known:
                known.append(translation)
    return read
