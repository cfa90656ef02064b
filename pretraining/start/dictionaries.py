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
    places = [Path(hub_root) / dictionary.path] if hub_root is not None else []
    places.append(Path(or_installed(dictionary.path)))
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ValueError(f"the dictionary {dictionary.path} does not exist: no file {' or '.join(map(str, places))}.")
    word_first = _word_is_first(dictionary)
    lines = [_split(unicodedata.normalize("NFKC", line)) for line in read_lines(path)]
    pairs = dict.fromkeys((line if word_first else line[::-1]) for line in lines if line)
    if not pairs:
        raise ValueError(f"the dictionary {dictionary.path} contains no pair of words in its {len(lines):,} lines.")
    read = Translations(dictionary.language, dictionary.path, len(pairs), len(lines) - len(pairs))
    for word, translation in pairs:
        for form, translations in ((word, read.as_written), (fold_case(word), read.lower_cased)):
            known = translations.setdefault(form, [])
            if translation not in known:
                known.append(translation)
    return read


def _split(line: str) -> tuple[str, str] | None:
    """Returns the sides of a line, or None if they are not two single words."""
    columns = line.rstrip().split("\t") if "\t" in line else line.split()
    is_pair = len(columns) == 2 and all(len(column.split()) == 1 for column in columns)
    return (columns[0].strip(), columns[1].strip()) if is_pair else None


def _word_is_first(dictionary: Dictionary) -> bool:
    """Returns whether the word of `language` is first in a line, and its translation second."""
    if dictionary.first is not None:
        return dictionary.first == "word"
    language, pair = dictionary.language.lower(), Path(dictionary.path).name.lower().partition(".")[0]
    is_first = pair.startswith(f"{language}-")
    if is_first == pair.endswith(f"-{language}"):
        raise ValueError(f"the name of {dictionary.path} does not tell which side is {language}. Set `first`.")
    return is_first
