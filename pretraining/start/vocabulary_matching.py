"""Vocabulary matching (MetaXLM, section 3.2): which rows of a model of one language a new vocabulary takes over.

python -m pretraining.start.vocabulary_matching --config RECIPE
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from pretraining.recipe import MetaPretrained, ModelStart, Recipe
from pretraining.recipe_checks import check_meta_pretrained, check_recipe
from pretraining.start.dictionaries import Translations, read_dictionary
from pretraining.start.token_texts import (
    ROLES,
    Subword,
    Subwords,
    cut_into_old_subwords,
    fold_case,
    may_be_word,
    never_cut,
    normalize,
    read_tokens,
    spaces_tell,
    special_ids,
)
from zoo_core.recipes import option, parse_command_line, user_errors
from zoo_core.tables import require_empty

DESCRIPTION = """Match a vocabulary to that of a model of one language, and report what can be carried over (MetaXLM).

  python -m pretraining.start.vocabulary_matching --config RECIPE [model.meta_pretrained.rows=subwords]
  python -m pretraining.start.vocabulary_matching model.meta_pretrained.path=roberta-base tokenizer=xlm-roberta-base

The recipe's corpora, where it has any, are tokenized to tell which share of each language's text is covered."""

FLAGS = {
    "--output": {
        "metavar": "DIR",
        "help": "folder to write: the model as it starts, with the tokenizer (model/), and vocabulary_matching.json "
        "and .txt; default: the report is printed and nothing is written",
    },
}

ROUTES = ("special", "dictionary", "exact", "normalized", "subwords", "random")
OLD, NEW = "of the checkpoint", "of the new vocabulary"  # which tokenizer an error message means


@dataclass(frozen=True)
class Matching:
    """Where each row of a new vocabulary (V ids) comes from."""

    sources: list[tuple[int, ...]]  # (V) ids of the old vocabulary whose rows are averaged; (): a random row
    routes: list[str]  # (V) of ROUTES
    languages: list[str | None]  # (V) of the dictionary that filled the row
    translations: list[tuple[str, ...]]  # (V) those of a dictionary that the rows of `sources` stand for
    overruled: list[int]  # new ids that a dictionary filled, and that stand in the old vocabulary as they are
    missing_roles: list[str]  # special tokens of the new vocabulary that the old one has no counterpart of
    dictionaries: list[Translations]  # as they were read, with what was skipped


class _Match(NamedTuple):
    """What fills one row; the fields of `Matching`."""

    source: tuple[int, ...]
    route: str
    language: str | None = None
    translations: tuple[str, ...] = ()


def match_vocabularies(
    old: PreTrainedTokenizerBase,
    new: PreTrainedTokenizerBase,
    start: MetaPretrained,
    hub_root: str | None = None,
    names: tuple[str, str] = (OLD, NEW),
) -> Matching:
    """Finds for every subword of `new` the subwords of `old` whose embeddings it starts from; the same at every call.

    Special tokens go by their role (<s> and [CLS]; </s> and [SEP]; padding, unknown, mask). Then, as `start.rows` and
    `start.dictionary` say, in this order (the paper's: the dictionary first):

    - dictionary: a subword that may be a whole word is looked up as it is, lower-cased, normalized, in each dictionary
      in
      turn, and its translation in the old vocabulary as the start of a word, by the two routes below;
    - exact: the same text, and the same of whether it starts a word. Where the text has no letter of a script with
      spaces (punctuation, digits, Han), a subword that differs in the latter does if there is no other, or if no text
      is cut into the other (BERT's `##,`, whose row was never trained). Equal bytes;
    - normalized: the same after NFKC and lower case, and if there is none, without accents, too; of several old
      subwords
      the one that is written in that form, else the lowest id;
    - subwords: the subwords into which `old` cuts the text, to be averaged (a baseline that is not in the paper).

    An old vocabulary that holds a text twice gives the lowest id; a vocabulary matched to itself without dictionaries
    gives `sources[i] == (i,)`.

    `names` says in error messages whose tokenizers these are.

    Deviations from the paper: it does not say what "normalized" is, how a subword's start of a word is compared, nor
    what is done with special tokens; these are this project's. Accents are the marks of Latin, Greek and Cyrillic
    letters and the points of Hebrew and Arabic; those of other scripts (vowels of Devanagari or Thai, voicing of Kana)
    stay. A word is preferred in another case to another word: `Schön` takes the row of `schön`, not that of `schon`.

    Raises ValueError for a tokenizer whose kind cannot be read (`read_tokens`) and for dictionaries
    (`read_dictionary`).
    """
    is_matched = start.rows in ("matched", "matched_or_subwords")
    dictionaries = [read_dictionary(dictionary, hub_root) for dictionary in start.dictionaries] if is_matched else []
    old_tokens, new_subwords = read_tokens(old, names[0]), read_tokens(new, names[1])
    size = len(new_subwords.said)
    sources: list[tuple[int, ...]] = [()] * size
    routes = ["random"] * size
    languages: list[str | None] = [None] * size
    translations: list[tuple[str, ...]] = [()] * size
    overruled: list[int] = []
    missing: list[str] = []
    if start.rows != "random":
        found, missing = _match_specials(old, new, old_tokens, new_subwords)
        for number, source in found.items():
            sources[number], routes[number] = (source,), "special"
    if is_matched:
        # between two WordPiece vocabularies `##,` is `##,`, whether or not a text can hold it
        unseen = set() if new_subwords.kind == old_tokens.kind else never_cut(old, old_tokens)
        by_text = _TextIndex(old_tokens, unseen)
        ways = [by_text.match, functools.partial(_by_dictionary, by_text, dictionaries, start.translations)]
        if start.dictionary == "first":
            ways.reverse()
        for number, said in enumerate(new_subwords.said):
            match = said is not None and next(filter(None, (way(said) for way in ways)), None)
            if match:
                sources[number], routes[number], languages[number], translations[number] = match
                if match.route == "dictionary" and (text := by_text.match(said)):
                    if text.route == "exact" and text.source != match.source:
                        overruled.append(number)
    if start.rows in ("subwords", "matched_or_subwords"):
        left = [i for i, said in enumerate(new_subwords.said) if not sources[i] and isinstance(said, Subword)]
        texts = [new_subwords.said[i] for i in left]
        for number, cut in zip(left, cut_into_old_subwords(old, names[0], texts, old_tokens.kind), strict=True):
            if cut:
                sources[number], routes[number] = tuple(cut), "subwords"
    return Matching(sources, routes, languages, translations, overruled, missing, dictionaries)


class _TextIndex:
    """The subwords of the old vocabulary by what they say, but for those that no text is cut into."""

    def __init__(self, old: Subwords, unseen: set[int]):
        self.exact: dict[Subword | bytes, int] = {}
        for number, said in enumerate(old.said):
            if said is not None and number not in unseen:
                self.exact.setdefault(said, number)
        # the forms that a text is compared in, the nearer to the text first
        self.normalized = [(form, self._index(form)) for form in (fold_case, normalize)]

    def _index(self, form: Callable[[str], str]) -> dict[Subword, int]:
        """The subwords by a form of their text: first the one that is written in it, then the lowest id."""
        index: dict[Subword, int] = {}
        for said, number in self.exact.items():
            if isinstance(said, Subword) and (text := form(said.text)):
                index.setdefault(Subword(text, said.starts_word), number)
        return {subword: self.exact.get(subword, number) for subword, number in index.items()}

    def match(self, said: Subword | bytes) -> _Match | None:
        """By the routes exact and normalized."""
        if isinstance(said, bytes):
            found = self.exact.get(said)
            if found is None and len(said) == 1 and said.isascii():
                found = _either_start(self.exact, Subword(said.decode(), False))
            return None if found is None else _Match((found,), "exact")
        found = _either_start(self.exact, said)
        if found is None and len(said.text) == 1 and said.text.isascii() and not said.starts_word:
            found = self.exact.get(said.text.encode())
        if found is not None:
            return _Match((found,), "exact")
        for form, index in self.normalized:
            text = form(said.text)
            found = _either_start(index, Subword(text, said.starts_word)) if text else None
            if found is not None:
                return _Match((found,), "normalized")
        return None


def _either_start(index: dict[Subword | bytes, int], subword: Subword) -> int | None:
    """The old token of this text: that which agrees on whether it starts a word, else, if that says nothing, either."""
    found = index.get(subword)
    if found is None and subword.text and not spaces_tell(subword.text):
        found = index.get(Subword(subword.text, not subword.starts_word))
    return found


def _by_dictionary(
    index: _TextIndex, dictionaries: list[Translations], which: str, said: Subword | bytes
) -> _Match | None:
    """By the route dictionary: `which` is the first translation that has a row, or `average` for all."""
    if isinstance(said, bytes) or not may_be_word(said):
        return None
    rows: dict[int, str] = {}  # different translations may come out as one subword
    language = None
    for dictionary in dictionaries:
        for translations in dictionary.look_up(said.text):
            found = {}
            for translation in translations:
                if match := index.match(Subword(translation, True)):
                    found.setdefault(match.source[0], translation)
                    if which == "first":
                        break
            if found:
                rows |= {number: text for number, text in found.items() if number not in rows}
                language = language or dictionary.language
                break  # a spelling that is nearer to the subword says enough
        if rows and which == "first":
            break
    if not rows:
        return None
    return _Match(tuple(rows), "dictionary", language, tuple(rows.values()))


def _match_specials(
    old: PreTrainedTokenizerBase, new: PreTrainedTokenizerBase, old_tokens: Subwords, new_subwords: Subwords
) -> tuple[dict[int, int], list[str]]:
    """({id of a special token: the old one of its role}, the special tokens for which the old vocabulary has none).

    Added tokens that have no role are matched to an added token of the same spelling, never to a subword.
    """
    of_old, of_new = special_ids(old), special_ids(new)
    found: dict[int, int] = {}
    missing = []
    for role in ROLES:
        for name in role:
            if name not in of_new or of_new[name] in found:
                continue
            # <s> is XLM-R's bos and cls; a tokenizer with one of them uses it for both
            same = [of_old[other] for other in (name, *role) if other in of_old]
            if same:
                found[of_new[name]] = same[0]
    for number in of_new.values():
        if number not in found and new_subwords.tokens[number] not in missing:
            missing.append(new_subwords.tokens[number])
    for token, number in new_subwords.added.items():
        if number not in found and token not in missing and token in old_tokens.added:
            found[number] = old_tokens.added[token]
    return found, missing


@dataclass
class MatchingRecipe(Recipe):
    """A pre-training recipe, of which the command needs model.meta_pretrained and tokenizer alone."""

    output_dir: str = option("", "run folder of the training; this command does not write to it")
    model: ModelStart = field(default_factory=lambda: ModelStart(type="metaxlm"))


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    recipe, flags = parse_command_line(MatchingRecipe, DESCRIPTION, FLAGS, argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with user_errors():
        if recipe.phases:
            check_recipe(recipe)
        start = recipe.model.meta_pretrained
        if start is None:
            raise ValueError(
                "model.meta_pretrained is empty: there is no model of one language whose rows could be carried over. "
                "Set model.meta_pretrained.path to a folder or a Hub id."
            )
        check_meta_pretrained(recipe)
        if flags.output:
            require_empty(flags.output)
        # these read the functions above, and take torch with them
        from pretraining.checkpoints import save_model_folder
        from pretraining.start.initialization import build_config, build_model, load_tokenizer
        from pretraining.start.matching_report import recipe_token_counts, report, to_text, write_report
        from pretraining.start.meta_pretrained import carries_rows, load_source, source_vocabulary

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        tokenizer = load_tokenizer(recipe)
        config = build_config(recipe, tokenizer)
        if not carries_rows(start):
            print(f"initialize is {start.initialize}: no row is carried over. With both or embeddings it would be:\n")
        _, old = source_vocabulary(start, recipe.hub_root)
        matching = match_vocabularies(old, tokenizer, start, recipe.hub_root)
        found = report(matching, old, tokenizer, recipe_token_counts(recipe, tokenizer))
        print(to_text(found), end="")
        if flags.output:
            folder = Path(flags.output)
            model = build_model(recipe, config, (load_source(start, recipe.hub_root), matching))
            save_model_folder(model, tokenizer, folder / "model")
            if carries_rows(start):
                write_report(found, folder)
            print(f"\nwritten: {folder}")


if __name__ == "__main__":
    main()
