"""Vocabulary matching (MetaXLM, section 3.2): finds for a new vocabulary rows of a model of one language."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from pretraining.recipe import Dictionary, MetaPretrained
from pretraining.start.dictionaries import Translations, read_dictionary
from pretraining.start.token_texts import (
    ROLES,
    Subword,
    Vocabulary,
    fold_case,
    is_spaced,
    may_be_word,
    normalize,
    read_vocabulary,
    segment_subwords,
    special_ids,
    unreachable_ids,
)
from zoo_core.recipes import validate

ROUTES = ("special", "dictionary", "exact", "normalized", "subwords", "random")
NAMES = ("of the checkpoint", "of the new vocabulary")  # which tokenizer an error message means


@dataclass(frozen=True)
class Matching:
    """Where each row of a new vocabulary (W ids) comes from; `match_vocabularies` makes it.

    Example:
        >>> matching = match_vocabularies(old_tokenizer, new_tokenizer)
        >>> new_WH = matching.embeddings(old_model.get_input_embeddings().weight)  # (W, H) of (V, H)
        >>> share = sum(map(bool, matching.sources)) / len(matching.sources)  # of the rows that are carried over

    `embeddings` raises ValueError for a matrix of fewer rows than the old vocabulary has.

    Source: MetaXLM (Chi et al., 2021), section 3.2.
    """

    sources: list[tuple[int, ...]]  # (W) ids of the old vocabulary whose rows are averaged; (): a random row
    routes: list[str]  # (W) of ROUTES
    dictionaries: list[Translations]  # as they were read, with what was skipped

    def embeddings(self, old_VH: torch.Tensor, std: float = 0.02) -> torch.Tensor:
        """Returns the (W, H) embeddings of the new vocabulary: the rows of the matched tokens of `old_VH` (V, H), and
        where no token is matched a row of random numbers of torch's generator, of mean 0 and standard deviation `std`.

        Raises ValueError for a matrix of fewer rows than the old vocabulary has.
        """
        highest = max((number for source in self.sources for number in source), default=-1)
        if highest >= len(old_VH):
            raise ValueError(f"the matrix has {len(old_VH)} rows, and the old vocabulary a token {highest}.")
        new_WH = torch.randn(len(self.sources), old_VH.shape[1], dtype=old_VH.dtype, device=old_VH.device) * std
        mean_rows(new_WH, old_VH, self.sources)
        return new_WH


@torch.no_grad()
def mean_rows(new_WH: torch.Tensor, old_VH: torch.Tensor, sources: list[tuple[int, ...]]) -> None:
    """Sets each row of `new_WH` that has sources to the mean of these rows of `old_VH`; other rows do not change."""
    by_count: dict[int, list[int]] = {}
    for row, found in enumerate(sources):
        by_count.setdefault(len(found), []).append(row)
    for count, rows in by_count.items():
        if count:  # with one source an exact copy
            indices = torch.tensor([sources[row] for row in rows])
            new_WH[rows] = old_VH[indices].mean(1) if count > 1 else old_VH[indices[:, 0]]


class _Match(NamedTuple):
    """The ids that fill one row, and the route that found them."""

    source: tuple[int, ...]
    route: str


def match_vocabularies(
    old: PreTrainedTokenizerBase,
    new: PreTrainedTokenizerBase,
    rows: str = "matched",
    dictionaries: Sequence[Dictionary] = (),
    dictionary: str = "first",
    hub_root: str | None = None,
    names: tuple[str, str] = NAMES,
) -> Matching:
    """Finds for every token of `new` the tokens of `old` from whose embeddings it starts. The result is deterministic.

        >>> matching = match_vocabularies(old_tokenizer, new_tokenizer)
        >>> new_WH = matching.embeddings(old_model.get_input_embeddings().weight)  # (W, H) of (V, H)
        >>> tuple(new_WH.shape) == (len(new_tokenizer), old_model.config.hidden_size)
        True

    Args:
        old, new: tokenizers of the library; the model of `old` has the embeddings.
        rows, dictionaries, dictionary: the fields of a recipe's `model.meta_pretrained`, with the same
            defaults; `Dictionary("de", "de-en.txt")` is a file in MUSE's format.
        hub_root: folder that is searched first for dictionaries.
        names: the names of the two tokenizers in error messages.

    Special tokens are matched by role (<s> and [CLS]; </s> and [SEP]; padding, unknown, mask). Other tokens are matched
    by these routes, as far as `rows` and `dictionary` allow, in the paper's order (the dictionary first):

    - dictionary: a subword that may be a whole word is looked up in each dictionary, as written, in lower case, and
      normalized. Its translation is then matched to the old vocabulary, as the start of a word, by the next two routes.
    - exact: the old subword has the same text, and both start a word or neither does. If the text has no letter of a
      script with spaces (punctuation, digits, Han), the start may differ, if there is no other subword or if the other
      never occurs (BERT's `##,`, whose row was never trained). Equal bytes match, too.
    - normalized: the texts are equal in NFKC and lower case or, if there is none, also without accents. Of several old
      subwords the one that is written in that form is used, else the lowest id.
    - subwords: the mean of the subwords into which `old` cuts the text (a baseline that is not in the paper).

    If the old vocabulary has a text twice, the lowest id is used. A vocabulary matched to itself without dictionaries
    gives `sources[i] == (i,)`.

    Deviations from the paper: it does not define "normalized", how starts of words are compared, and what happens to
    special tokens; these choices are ours. Accents are the marks of Latin, Greek and Cyrillic letters and the points of
    Hebrew and Arabic; marks of other scripts (vowels of Devanagari or Thai, voicing of Kana) are kept. The same word in
    another case comes before another word: `Schön` gets the row of `schön`, not that of `schon`.

    Raises ValueError for an unknown value of an argument, a tokenizer of an unknown kind (`read_vocabulary`), and
    dictionaries that cannot be read (`read_dictionary`).

    Source: MetaXLM (Chi et al., 2021), section 3.2.
    """
    fields = {"rows": rows, "dictionary": dictionary}
    fields["dictionaries"] = [asdict(one) for one in dictionaries]
    validate(MetaPretrained, fields)
    is_matched = rows in ("matched", "matched_or_subwords")
    read = [read_dictionary(one, hub_root) for one in dictionaries] if is_matched else []
    olds, news = read_vocabulary(old, names[0]), read_vocabulary(new, names[1])
    matches = [_Match((), "random")] * len(news.subwords)
    if rows != "random":
        for number, source in _match_specials(old, new, olds, news).items():
            matches[number] = _Match((source,), "special")
    if is_matched:
        # between two WordPiece vocabularies `##,` matches `##,`, even if it never occurs
        index = _TextIndex(olds, set() if news.kind == olds.kind else unreachable_ids(old, olds))
        ways = [index.match, functools.partial(_by_dictionary, index, read)]
        if dictionary == "first":
            ways.reverse()
        for number, subword in enumerate(news.subwords):
            match = subword is not None and next(filter(None, (way(subword) for way in ways)), None)
            if match:
                matches[number] = match
    if rows in ("subwords", "matched_or_subwords"):
        left = [i for i, subword in enumerate(news.subwords) if not matches[i].source and isinstance(subword, Subword)]
        segmented = segment_subwords(old, names[0], [news.subwords[i] for i in left], olds.kind)
        for number, source in zip(left, segmented, strict=True):
            if source:
                matches[number] = _Match(tuple(source), "subwords")
    return Matching(*map(list, zip(*matches, strict=True)), read)


class _TextIndex:
    """The tokens of the old vocabulary by their meaning, without those that never occur in a text."""

    def __init__(self, old: Vocabulary, unreachable: set[int]):
        self.exact: dict[Subword | bytes, int] = {}
        for number, subword in enumerate(old.subwords):
            if subword is not None and number not in unreachable:
                self.exact.setdefault(subword, number)
        # forms in which texts are compared, the one closest to the text first
        self.normalized = [(form, self._index(form)) for form in (fold_case, normalize)]

    def _index(self, form: Callable[[str], str]) -> dict[Subword, int]:
        """Indexes subwords by a form of their text: the one that is written in that form, else the lowest id."""
        index: dict[Subword, int] = {}
        for subword, number in self.exact.items():
            if isinstance(subword, Subword) and (text := form(subword.text)):
                index.setdefault(Subword(text, subword.starts_word), number)
        return {subword: self.exact.get(subword, number) for subword, number in index.items()}

    def match(self, subword: Subword | bytes) -> _Match | None:
        """Matches a subword by the routes exact and normalized."""
        if isinstance(subword, bytes):
            found = self.exact.get(subword)
            if found is None and len(subword) == 1 and subword.isascii():
                found = _either_start(self.exact, Subword(subword.decode(), False))
            return None if found is None else _Match((found,), "exact")
        found = _either_start(self.exact, subword)
        if found is None and len(subword.text) == 1 and subword.text.isascii() and not subword.starts_word:
            found = self.exact.get(subword.text.encode())
        if found is not None:
            return _Match((found,), "exact")
        for form, index in self.normalized:
            text = form(subword.text)
            found = _either_start(index, Subword(text, subword.starts_word)) if text else None
            if found is not None:
                return _Match((found,), "normalized")
        return None


def _either_start(index: dict[Subword | bytes, int], subword: Subword) -> int | None:
    """Returns the old token of a text: one that agrees on the start of a word, or any if that does not matter."""
    found = index.get(subword)
    if found is None and subword.text and not is_spaced(subword.text):
        found = index.get(Subword(subword.text, not subword.starts_word))
    return found


def _by_dictionary(index: _TextIndex, dictionaries: list[Translations], subword: Subword | bytes) -> _Match | None:
    """Matches a subword by the route dictionary: to the first translation that has a row."""
    if isinstance(subword, bytes) or not may_be_word(subword):
        return None
    for dictionary in dictionaries:
        for translations in dictionary.look_up(subword.text):
            for match in (index.match(Subword(translation, True)) for translation in translations):
                if match:
                    return _Match((match.source[0],), "dictionary")
    return None


def _match_specials(
    old: PreTrainedTokenizerBase, new: PreTrainedTokenizerBase, olds: Vocabulary, news: Vocabulary
) -> dict[int, int]:
    """Returns {id of a special token: id of the old one with the same role}, if there is one.

    Added tokens that have no role are matched to an added token of the same name, never to a subword.
    """
    of_old, of_new = special_ids(old), special_ids(new)
    found: dict[int, int] = {}
    for role in ROLES:
        for name in role:
            # <s> is XLM-R's bos and cls; a tokenizer with one of them uses it for both
            same = [of_old[other] for other in (name, *role) if other in of_old]
            if name in of_new and same:
                found.setdefault(of_new[name], same[0])
    for token, number in news.added.items():
        if number not in of_new.values() and token in olds.added:
            found[number] = olds.added[token]
    return found
