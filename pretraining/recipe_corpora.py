"""The entries of a recipe that name corpora: `monolingual`, `bitext` and `linked`.

An entry is one corpus, or one for each of its languages or pairs. `Recipe.named_corpora` gives corpora their names.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le
from omegaconf import MISSING

from zoo_core.recipes import Name, option
from zoo_core.tables import SUFFIXES, Table

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
    size_source: str | None = option(None, "source of `size` (paper, table)")


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

    def __post_init__(self) -> None:
        if self.document_pattern is not None and self.document_column is None:
            raise ValueError(f"document_pattern is {self.document_pattern!r}, but document_column is not set.")
        try:
            re.compile(self.document_pattern or "")
        except re.error as error:
            raise ValueError(f"document_pattern is {self.document_pattern!r}: {error}.") from error


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

    def __post_init__(self) -> None:
        if self.streaming:
            raise ValueError("streaming is true, but linked pairs cannot be streamed. Set it to false.")


Corpora = dict[str, Monolingual | Bitext | LinkedPairs]  # the corpora of a recipe, by name


def one_for_each(corpus: Monolingual | Bitext) -> list[Monolingual | Bitext]:
    """Returns the corpora of one entry: itself, or one for each of its languages or pairs.

    Raises ValueError if it has a placeholder such as `{language}` but no names, or names but no placeholder, and for a
    pair that is not two codes.
    """
    codes, is_text = languages_of(corpus), isinstance(corpus, Monolingual)
    field, words = ("languages", ["language"]) if is_text else ("pairs", ["source", "target"])
    names, sizes = getattr(corpus, field), corpus.sizes
    if names and sizes and set(names) != set(sizes):
        raise ValueError(f"{field} are {', '.join(names)}, but sizes has {', '.join(sizes)}. Both must name the same.")
    names, places = names or list(sizes), [f"{{{word}}}" for word in words]
    if names and list(codes) != places:
        raise ValueError(f"A corpus of {'-'.join(codes)} has {field}. Write its languages as {'-'.join(places)}.")
    if not names and (found := re.search(rf"{{({'|'.join(words)}|pair)}}", str(corpus))):
        raise ValueError(f"A corpus of {'-'.join(codes)} has the placeholder {found[0]}. Set {field}.")
    if unknown := [code for code in getattr(corpus, "language_names", ()) if code not in names]:
        raise ValueError(f"language_names has {unknown[0]}, which is not in languages. Remove it.")
    made = []
    for name in names:
        codes = [name] if is_text else name.split("-", 1)
        if not all(codes) or len(codes) < len(places):
            raise ValueError(f"pairs has {name!r}. Write two language codes, such as de-en.")
        one = replace(corpus, **{field: []}, sizes={}, size=sizes.get(name, corpus.size))
        texts = codes
        if is_text:
            one, texts = replace(one, language=name, language_names={}), [corpus.language_names.get(name, name)]
        made.append(_replaced(one, dict(zip(places, texts, strict=True)) | {"{pair}": "-".join(sorted(codes))}))
    return made or [corpus]


def _replaced(item: Any, words: dict[str, str]) -> Any:
    """Returns a copy of a corpus or table with each word of `words` replaced by its value, in all texts."""
    if isinstance(item, str):
        for word, value in words.items():
            item = item.replace(word, value)
    elif is_dataclass(item):
        return replace(item, **{name: _replaced(value, words) for name, value in vars(item).items()})
    return item


def languages_of(corpus: Monolingual | Bitext | LinkedPairs) -> tuple[str, ...]:
    """Returns the language of a monolingual corpus, or both languages of a bitext, source first."""
    if isinstance(corpus, Monolingual):
        return (corpus.language,)
    return (corpus.source_language, corpus.target_language)


def source_name(corpus: Monolingual | Bitext | LinkedPairs) -> str:
    """`ntrex` of the dataset local/ntrex, `news` of the file data/news.tsv."""
    table = corpus.table or corpus.source if isinstance(corpus, Bitext) else corpus
    path = Path(table.path if table else "")
    is_file = path.suffix in SUFFIXES or table is not None and table.format not in ("auto", "hub")
    return path.stem if is_file else path.name


def is_selected(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether any glob pattern selects a corpus.

    A pattern is compared with the language or pair; a pattern with a slash, with the whole name. `en-de` and `en-*`
    select all corpora of en-de, `en-de/ntrex` one of them. `*-*` never selects a monolingual corpus.
    """
    code = name.partition("/")[0]
    return any(fnmatchcase(name if "/" in pattern else code, pattern) for pattern in patterns)
