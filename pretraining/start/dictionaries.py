"""Bilingual dictionaries in MUSE's format: each line has a word and one translation."""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pretraining.recipe import Dictionary
from pretraining.start.token_texts import fold_case, normalize
from zoo_core.recipes import or_installed
from zoo_core.tables import read_lines


@dataclass
class Translations:
    """The content of a dictionary: {word: its translations in the order of the file}, as written and in lower case."""

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


def read_dictionary(dictionary: Dictionary, hub_root: str | None = None) -> Translations:
    """Reads a dictionary of the recipe, from `hub_root` if it contains the file.

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
