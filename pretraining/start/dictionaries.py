"""Bilingual dictionaries in MUSE's format: each line has a word and one translation.

Other lines are skipped and counted by reason: a few bad lines in a dictionary should not stop a run, but the user
should see them.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pretraining.recipe import Dictionary
from pretraining.start.token_texts import fold_case, normalize
from zoo_core.input_lines import read_lines
from zoo_core.recipes import or_installed


@dataclass
class Translations:
    """The content of a dictionary: {word: its translations in the order of the file}, as written and in lower case."""

    language: str
    path: str
    lines: int = 0
    pairs: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # lines, by reason
    as_written: dict[str, list[str]] = field(default_factory=dict)
    lower_cased: dict[str, list[str]] = field(default_factory=dict)

    def look_up(self, word: str) -> Iterator[list[str]]:
        """Yields the translations of a word as written, then in lower case, then normalized: lists that are not empty.

        The dictionary's own words keep their accents: English `the` is not the French `thé`.
        """
        asked = ((word, self.as_written), (fold_case(word), self.lower_cased), (normalize(word), self.lower_cased))
        for form, translations in asked:
            if found := translations.get(form):
                yield found


def read_dictionary(dictionary: Dictionary, hub_root: str | None = None) -> Translations:
    """Reads a dictionary of the recipe, from `hub_root` if it contains the file.

    One tab separates the sides of a line, which may then contain spaces; without a tab, white space does. Empty columns
    at the end do not count. Skipped and counted are blank lines, lines with an empty side, one word, more than two
    columns or several words on a side (which are no single token), and repeated pairs.

    Raises ValueError for a file that is missing or not UTF-8, if neither `first` nor the file's name tells which side
    is the language's, and for a file without any pair.
    """
    below_root = [Path(hub_root) / dictionary.path] if hub_root is not None else []
    places = [*below_root, Path(or_installed(dictionary.path))]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ValueError(
            f"the dictionary {dictionary.path} does not exist: there is no file {' or '.join(map(str, places))}."
        )
    word_first = _word_is_first(dictionary)
    read = Translations(dictionary.language, dictionary.path)
    pairs: dict[tuple[str, str], None] = {}  # in the order of the file
    for line in read_lines(path):
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
        raise ValueError(f"the dictionary {dictionary.path} contains no pair of words ({why}). Check its format.")
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
    """Returns whether the word of `language` is first in a line, and its translation second."""
    if dictionary.first is not None:
        return dictionary.first == "word"
    language, pair = dictionary.language.lower(), Path(dictionary.path).name.lower().partition(".")[0]
    is_first, is_second = pair.startswith(f"{language}-"), pair.endswith(f"-{language}")
    if is_first == is_second:
        name = f"the name of the dictionary {dictionary.path} does not tell which side is {language}"
        raise ValueError(f"{name}. Set `first` to word or to translation.")
    return is_first
