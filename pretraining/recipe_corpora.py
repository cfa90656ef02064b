"""The corpora of a recipe: the fields of each kind, entries of several corpora, and the names of corpora."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Le
from omegaconf import MISSING

from crosslingual_zoo.zoo_core.recipes import Name, option
from crosslingual_zoo.zoo_core.tables import SUFFIXES, Table

Size = Annotated[int, Ge(1), Le(2**63 - 1)]


@dataclass
class Sized:
    """What all corpora have."""

    name: Name | None = option(
        None,
        "second part of the corpus' name (`en/news`), after its language or pair; default: none, or the file or "
        "dataset of the text where several corpora have the same language or pair",
    )
    max_rows: Size | None = option(None, "rows to read, from the beginning; default: all; required with `streaming`")
    size: Size | None = option(
        None, "its part of N_i, in the same unit for all corpora; default: the number of its examples"
    )


@dataclass
class Monolingual(Sized, Table):
    """Text of one language."""

    kind: ClassVar[str] = "monolingual"

    language: Name = option(
        MISSING, "language code of the text, in logs and curves; `{language}`: one corpus for each of `languages`"
    )
    languages: list[str] = option(
        [], "languages of several corpora, whose codes replace `{language}`; default: the languages of `sizes`"
    )
    sizes: dict[str, Size] = option({}, "`size` of each language, where the entry has several")
    language_names: dict[str, str] = option(
        {}, "text that replaces `{language}` in path and config, for languages where it differs from the code"
    )
    text_column: str = option("text", "column that holds the text; a dotted path reaches into a struct")
    document_column: str | None = option(
        None, "column that names the document of a row; only rows of one document count as adjacent"
    )
    document_pattern: str | None = option(
        None,
        "regular expression; its match in `document_column` names the document. Example: `^\\d{5}` groups verses with "
        "ids such as 01049027 into chapters",
    )

    @property
    def codes(self) -> tuple[str, ...]:
        """Its language."""
        return (self.language,)

    def __post_init__(self) -> None:
        if self.document_pattern is None:
            return
        if self.document_column is None:
            raise ValueError(f"document_pattern is {self.document_pattern!r}, but document_column is not set.")
        try:
            re.compile(self.document_pattern)
        except re.error as error:
            raise ValueError(f"document_pattern is {self.document_pattern!r}: {error}.") from error

    def each(self) -> list[Self]:
        """Returns the corpora of an entry: itself, or one for each of its languages.

        Raises ValueError for languages without `{language}`, and for `{language}` without languages.
        """
        languages = _several(self, "languages", self.languages)
        unknown = [language for language in self.language_names if language not in languages]
        if unknown:
            raise ValueError(f"language_names has {unknown[0]!r}, but languages are {languages}. Add it to them.")
        if not languages:
            return [self]
        corpora = []
        for language in languages:
            size = self.sizes.get(language, self.size)
            corpus = replace(self, language=language, languages=[], language_names={}, sizes={}, size=size)
            corpora.append(_filled(corpus, {"{language}": self.language_names.get(language, language)}))
        return corpora

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Its `codes` where the entry has several languages."""
        return ("{language}",)


@dataclass
class Bitext(Sized):
    """Translation pairs, from one table or two.

    One `table` holds both sides, in two columns or in one. Two tables are joined on an id, or line by line.
    """

    kind: ClassVar[str] = "bitext"

    source_language: Name = option(
        MISSING, "language code of the first side; `{source}`: the first language of each of `pairs`"
    )
    target_language: Name = option(
        MISSING, "language code of the second side; `{target}`: the second language of each of `pairs`"
    )
    pairs: list[str] = option(
        [],
        "pairs of several corpora, such as de-en, whose codes replace `{source}` and `{target}`, and both in "
        "alphabetical order `{pair}`; default: the pairs of `sizes`",
    )
    sizes: dict[str, Size] = option({}, "`size` of each pair, where the entry has several")
    table: Table | None = option(None, "one table that holds both sides")
    separator: str | None = option(
        None,
        "text between the two sides where one column of `table` holds both (`source_column`, default `text`), such as "
        "'|||' in the files of word aligners",
    )
    source_column: str | None = option(None, "column of the first side; default: its language code, or `text`")
    target_column: str | None = option(None, "column of the second side; default: its language code, or `text`")
    source: Table | None = option(None, "table of the first side, where each side has its own table")
    target: Table | None = option(None, "table of the second side")
    join_on: str | None = option(
        None, "column on which `source` and `target` are joined; without it they are joined line by line"
    )

    @property
    def codes(self) -> tuple[str, ...]:
        """Its two languages, source first."""
        return (self.source_language, self.target_language)

    def each(self) -> list[Self]:
        """Returns the corpora of an entry: itself, or one for each of its pairs.

        Raises ValueError for pairs without `{source}` and `{target}`, for these without pairs, and for a pair that is
        not two codes.
        """
        pairs = _several(self, "pairs", self.pairs)
        if not pairs:
            return [self]
        corpora = []
        for pair in pairs:
            source, hyphen, target = pair.partition("-")
            if not source or not target:
                raise ValueError(f"pairs has {pair!r}. Write two language codes, such as de-en.")
            sorted_pair = "-".join(sorted((source, target)))
            corpus = replace(self, pairs=[], sizes={}, size=self.sizes.get(pair, self.size))
            corpora.append(_filled(corpus, {"{source}": source, "{target}": target, "{pair}": sorted_pair}))
        return corpora

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Its `codes` where the entry has several pairs."""
        return ("{source}", "{target}")


@dataclass
class LinkedPairs(Sized, Table):
    """Translation pairs with links between their words: a table with a column for each side and one for the links."""

    kind: ClassVar[str] = "linked"

    source_language: Name = option(MISSING, "language code of the first side")
    target_language: Name = option(MISSING, "language code of the second side")
    source_column: str = option("source", "column of the first side: words separated by spaces or tabs")
    target_column: str = option("target", "column of the second side")
    links_column: str | None = option(
        "links",
        "column of the links, such as `0-0 1-2 2p1`: numbers of a source word and a target word, from 0; the model "
        "does not learn possible links (`p`), and labels rows without links itself. null: no row has links",
    )

    @property
    def codes(self) -> tuple[str, ...]:
        """Its two languages, source first."""
        return (self.source_language, self.target_language)


@dataclass
class SideOfPairs(Sized):
    """One side of translation pairs, read as text of its language. `Recipe.named_corpora` makes it."""

    kind: ClassVar[str] = Monolingual.kind

    pairs: Bitext = field(default_factory=Bitext)
    side: int = 0

    @property
    def codes(self) -> tuple[str, ...]:
        """The language of the side."""
        return (self.pairs.codes[self.side],)


Corpora = dict[str, Monolingual | Bitext | LinkedPairs | SideOfPairs]  # the corpora of a recipe, by name


def _several(corpus: Monolingual | Bitext, field_name: str, listed: list[str]) -> list[str]:
    """Returns the languages or pairs of an entry; none if it is one corpus. `field_name`: `languages` or `pairs`."""
    sizes = list(corpus.sizes)
    if listed and sizes and set(listed) != set(sizes):
        listed_text = ", ".join(listed)
        raise ValueError(f"{field_name} are {listed_text}, but sizes has {', '.join(sizes)}. Both must name the same.")
    names = listed or sizes
    has_placeholders = corpus.codes == corpus.placeholders
    if has_placeholders != bool(names):
        entry = f"A corpus of {'-'.join(corpus.codes)} has {field_name} {names}"
        raise ValueError(f"{entry}. {'-'.join(corpus.placeholders)} goes with {field_name}, one corpus for each.")
    return names


def _filled(item: Any, words: dict[str, str]) -> Any:
    """Returns a copy of a corpus or table with each word of `words` replaced by its value, in all texts."""
    if isinstance(item, str):
        for word, value in words.items():
            item = item.replace(word, value)
    elif is_dataclass(item):
        fields = {name: _filled(value, words) for name, value in vars(item).items()}
        return replace(item, **fields)
    return item


def name_corpora(corpora: Sequence[Monolingual | Bitext | LinkedPairs]) -> Corpora:
    """Returns corpora by name, as `Recipe.named_corpora` explains. Raises ValueError for two with the same name."""
    count = Counter(frozenset(corpus.codes) for corpus in corpora)
    named: Corpora = {}
    for corpus in corpora:
        name = "-".join(corpus.codes)
        if corpus.name is not None or count[frozenset(corpus.codes)] > 1:
            name += f"/{corpus.name or _table_name(corpus)}"
        if name in named:
            raise ValueError(f"Two corpora of `{corpus.kind}` are called {name!r}. Give one another `name`.")
        named[name] = corpus
    return named


def _table_name(corpus: Monolingual | Bitext | LinkedPairs) -> str:
    """Returns the last part of the path of a corpus' first table, without the ending of a file."""
    if isinstance(corpus, Bitext):
        table = corpus.table or corpus.source or Table("")
    else:
        table = corpus
    path = Path(table.path)
    is_file = path.suffix in SUFFIXES or table.format not in ("auto", "hub")
    return path.stem if is_file else path.name


def sides_of_pairs(corpora: Corpora) -> Corpora:
    """Returns both sides of the translation pairs among some corpora as corpora of text, by their names."""
    sides = []
    for name, corpus in corpora.items():
        if isinstance(corpus, Bitext):
            fields = {"name": name, "max_rows": corpus.max_rows, "size": corpus.size, "pairs": corpus}
            sides += [SideOfPairs(**fields, side=0), SideOfPairs(**fields, side=1)]
    count = Counter(side.codes for side in sides)
    named: Corpora = {}
    for side in sides:
        (language,) = side.codes
        is_alone = count[side.codes] == 1
        named[language if is_alone else f"{language}/{side.name}"] = side
    return named


def is_selected(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether any glob pattern selects a corpus.

    A pattern is compared with the language or pair; a pattern with a slash, with the whole name. `en-de` and `en-*`
    select all corpora of en-de, `en-de/ntrex` one of them. `*-*` never selects a monolingual corpus.
    """
    code = name.partition("/")[0]
    return any(fnmatchcase(name if "/" in pattern else code, pattern) for pattern in patterns)
