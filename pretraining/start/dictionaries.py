"""Bilingual dictionaries in MUSE's format: a word and a translation a line, a line for each translation.

What is no such line is skipped and counted by reason: dictionaries are made by hand and by machine, and a few bad lines
should not stop a run, nor pass unseen.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pretraining.recipe import Dictionary
from pretraining.start.token_texts import fold_case, normalize
from zoo_core.input_lines import read_lines
from zoo_core.recipe_files import or_installed


@dataclass
class Translations:
    """A dictionary, read: {word: its translations in the order of the file}, the words as written, and lower-cased."""

    language: str
    path: str
    lines: int = 0
    pairs: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # lines, by reason
    as_written: dict[str, list[str]] = field(default_factory=dict)
    lower_cased: dict[str, list[str]] = field(default_factory=dict)

    def look_up(self, word: str) -> Iterator[list[str]]:
        """The translations of a word as it is, then lower-cased, then normalized: lists that are not empty.

        The dictionary's own words keep their accents: English `the` is not the French `thé`.
        """
        asked = ((word, self.as_written), (fold_case(word), self.lower_cased), (normalize(word), self.lower_cased))
        for form, translations in asked:
            if found := translations.get(form):
                yield found


def read_dictionary(dictionary: Dictionary, hub_root: str | None = None) -> Translations:
    """Reads a dictionary of the recipe, from `hub_root` where the file is there.

    The sides of a line stand apart by one tab, and may then hold spaces, or by white space; empty columns behind them
    do not count. Skipped and counted: blank lines, an empty side, one word alone, more than two columns, several words
    on a side (no single token stands for them), a pair that came before.

    Raises ValueError for a file that is missing or not UTF-8, a name that does not say which side is the language's
    while `first` does not either, a limit below 1, and a file without any pair.
    """
    below_root = [Path(hub_root) / dictionary.path] if hub_root is not None else []
    places = [*below_root, Path(or_installed(dictionary.path))]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ValueError(
            f"the dictionary {dictionary.path} is no file: neither {' nor '.join(map(str, places))} is there."
        )
    word_first = _word_is_first(dictionary)
    if dictionary.limit is not None and dictionary.limit < 1:
        raise ValueError(
            f"limit is {dictionary.limit} for the dictionary {dictionary.path}. Give 1 or more lines to read."
        )
    read = Translations(dictionary.language, dictionary.path)
    pairs: dict[tuple[str, str], None] = {}  # in the order of the file
    for line in islice(read_lines(path), dictionary.limit):
        read.lines += 1
        sides, reason = _split(unicodedata.normalize("NFKC", line))
        pair = sides if word_first else sides[::-1]
        if reason is None and pair in pairs:
            reason = "repeated pair"
        if reason is None:
            pairs[pair] = None
        else:
            read.skipped[reason] += 1
    if not pairs:
        why = ", ".join(f"{count:,} {reason}" for reason, count in read.skipped.items()) or "it is empty"
        raise ValueError(f"the dictionary {dictionary.path} holds no pair of words ({why}).")
    read.pairs = len(pairs)
    for word, translation in pairs:
        for form, translations in ((word, read.as_written), (fold_case(word), read.lower_cased)):
            known = translations.setdefault(form, [])
            if translation not in known:
                known.append(translation)
    return read


def _split(line: str) -> tuple[tuple[str, str], str | None]:
    """The sides of a line, or the reason why it is skipped."""
    if not line.strip():
        return ("", ""), "blank line"
    columns = [column.strip() for column in line.split("\t")] if "\t" in line else line.split()
    while len(columns) > 2 and not columns[-1]:  # of a spreadsheet
        columns.pop()
    if len(columns) != 2:
        return ("", ""), "one word alone" if len(columns) == 1 else "more than two columns"
    if not all(columns):
        return ("", ""), "empty side"
    if any(len(column.split()) > 1 for column in columns):
        return ("", ""), "several words on a side"
    return tuple(columns), None


def _word_is_first(dictionary: Dictionary) -> bool:
    """Whether the word of `language` stands first in a line, its translation second."""
    if dictionary.first is not None:
        return dictionary.first == "word"
    language, pair = dictionary.language.lower(), Path(dictionary.path).name.lower().partition(".")[0]
    is_first, is_second = pair.startswith(f"{language}-"), pair.endswith(f"-{language}")
    if is_first == is_second:
        name = f"the name of the dictionary {dictionary.path} does not say on which side {language} stands"
        raise ValueError(f"{name}. Set `first` to word or to translation.")
    return is_first
