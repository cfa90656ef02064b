"""What vocabulary matching carried over: rows by route, script and dictionary, and how much of each language's text.

Legend: `V` subwords of the new vocabulary.
"""

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from pretraining.data.prepared import prepared_corpora
from pretraining.data.sources import open_sources
from pretraining.data.stored import Corpus
from pretraining.data.streams import StreamedCorpus
from pretraining.data.tokenized import TokenColumn, TokenizedColumn, tokenizer_fingerprint
from pretraining.recipe import Recipe
from pretraining.start.token_texts import Subword, Subwords, read_tokens, script_of
from pretraining.start.vocabulary_matching import NEW, OLD, ROUTES, Matching
from zoo_core.provenance import write_json

EXAMPLES = 12  # of each route
RANDOM_SHOWN = 20  # of each language
WIDTH = 120  # characters of a line of text
# by the first words of Unicode names, where they are not the script's own name
SCRIPTS = {"CJK": "Han", "IDEOGRAPHIC": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana", "KATAKANA-HIRAGANA": "Kana"}


def report(
    matching: Matching,
    old: PreTrainedTokenizerBase,
    new: PreTrainedTokenizerBase,
    text_counts: dict[str, np.ndarray | None] | None = None,
) -> dict[str, Any]:
    """The facts of a matching, for JSON.

    text_counts: (V) how often each subword occurs in the text of a language, by language (`token_counts`); None where
    it is streamed. With them, `coverage` says for each language which share of the subwords that its text uses, and of
    the running text, has a row of the old vocabulary; and `left_random` names the most frequent subwords without one,
    else subwords from all of the vocabulary. `not_counted` names the languages that are streamed.
    """
    counted = {language: counts for language, counts in (text_counts or {}).items() if counts is not None}
    old_tokens, new_subwords = read_tokens(old, OLD), read_tokens(new, NEW)
    routes = np.array([ROUTES.index(route) for route in matching.routes])
    numbers = {route: np.flatnonzero(routes == index) for index, route in enumerate(ROUTES)}
    scripts = [_script(new_subwords, number) for number in range(len(routes))]
    by_script: dict[str, Counter[str]] = {script: Counter() for script, _ in Counter(scripts).most_common()}
    for script, route in zip(scripts, matching.routes, strict=True):
        by_script[script][route] += 1
    return {
        "old_tokens": len(old_tokens.said),
        "rows": _shares(routes),
        "by_script": {script: _of_routes(counts) for script, counts in by_script.items()},
        "by_dictionary_language": dict(Counter(filter(None, matching.languages)).most_common()),
        "dictionaries": [
            {
                "language": dictionary.language,
                "path": dictionary.path,
                "lines": dictionary.lines,
                "pairs": dictionary.pairs,
                "skipped": dict(dictionary.skipped.most_common()),
            }
            for dictionary in matching.dictionaries
        ],
        "overruled": {
            "rows": len(matching.overruled),
            "examples": [
                _example(matching, number, old_tokens, new_subwords) for number in _spread(matching.overruled, EXAMPLES)
            ],
        },
        "specials_without_counterpart": matching.missing_roles,
        "coverage": {
            language: {"subwords": _shares(routes, (counts > 0).astype(np.int64)), "text": _shares(routes, counts)}
            for language, counts in counted.items()
        },
        "not_counted": [language for language in text_counts or {} if language not in counted],
        "examples": {
            route: [_example(matching, number, old_tokens, new_subwords) for number in _spread(found, EXAMPLES)]
            for route, found in numbers.items()
            if route != "random" and len(found)
        },
        "left_random": _left_random(numbers["random"], new_subwords, counted),
    }


def token_counts(corpora: Iterable[Corpus | StreamedCorpus], size: int) -> dict[str, np.ndarray | None]:
    """{language: (V) int64 how often each subword occurs in its text}, of corpora that are kept on disk; None for a
    language whose text is streamed, all of it."""
    corpora = list(corpora)
    columns = (
        side
        for corpus in corpora
        if not corpus.streaming
        for side in zip(corpus.languages, corpus.columns, strict=True)
    )
    streamed = (language for corpus in corpora if corpus.streaming for language in corpus.languages)
    return dict.fromkeys(streamed) | _count(columns, size)


def recipe_token_counts(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> dict[str, np.ndarray | None]:
    """As `token_counts`, of a recipe's corpora, which need not say how they are trained on; streams are not opened."""
    fingerprint = tokenizer_fingerprint(tokenizer)
    if recipe.prepared is not None:
        sides = (
            side
            for source, columns in prepared_corpora(recipe, fingerprint)
            for side in zip(source.languages, columns, strict=True)
        )
        return _count(sides, len(tokenizer))
    streamed, pairs = [corpus.language for corpus in recipe.monolingual if corpus.streaming], []
    for corpus in recipe.bitext:
        tables = [table for table in (corpus.table, corpus.source, corpus.target) if table is not None]
        if tables and all(table.streaming for table in tables):
            streamed += [corpus.source_language, corpus.target_language]
        else:
            pairs.append(corpus)
    texts = [corpus for corpus in recipe.monolingual if not corpus.streaming]
    columns = (
        (language, TokenizedColumn(side, tokenizer, fingerprint, source.name))
        for source in open_sources(replace(recipe, monolingual=texts, bitext=pairs))
        for language, side in zip(source.languages, source.sides, strict=True)
    )
    return dict.fromkeys(streamed) | _count(columns, len(tokenizer))


def to_text(found: dict[str, Any]) -> str:
    """A report as tables and lines of text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=WIDTH, highlight=False, markup=False, emoji=False)
    rows = found["rows"]
    used = [route for route in ROUTES if route in rows["by_route"]]
    console.print(
        f"{rows['all']:,} rows of the new vocabulary, {found['old_tokens']:,} of the checkpoint's. "
        f"{rows['filled']:,} are filled ({rows['share']:.1%}), {rows['all'] - rows['filled']:,} start random."
    )
    _print_routes(console, "Rows by script", "script", {**found["by_script"], "all": rows}, used)
    for what, title in (
        ("text", "Share of the running text"),
        ("subwords", "Share of the subwords that the text uses"),
    ):
        coverage = {language: by_count[what] for language, by_count in found["coverage"].items()}
        if coverage:
            _print_routes(console, f"{title} whose row is filled", "language", coverage, used)
    if streamed := found["not_counted"]:
        console.print(f"\nNot counted, as they are streamed: the texts of {', '.join(streamed)}")
    if found["dictionaries"]:
        _print_dictionaries(console, found)
    if overruled := found["overruled"]["rows"]:
        console.print(
            f"\n{overruled:,} of the rows by dictionary are of subwords that the checkpoint has as they are "
            "(model.meta_pretrained.dictionary=fallback takes those instead); new token <- old token (language of the "
            "dictionary):"
        )
        console.print("  " + ", ".join(map(_example_text, found["overruled"]["examples"])))
    if missing := found["specials_without_counterpart"]:
        console.print(f"\nSpecial tokens that the checkpoint has no counterpart of: {', '.join(missing)}")
    for route, examples in found["examples"].items():
        console.print(f"\n{route}: " + ", ".join(map(_example_text, examples)))
    for language, subwords in found["left_random"].items():
        of = f", most frequent in {language}" if subwords[0]["count"] is not None else ""
        shown = (
            entry["subword"] + (f" {entry['count']:,}" if entry["count"] is not None else "") for entry in subwords
        )
        console.print(f"\nrandom{of}: " + ", ".join(shown))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def write_report(found: dict[str, Any], folder: Path) -> None:
    """Writes a report as vocabulary_matching.json and vocabulary_matching.txt."""
    write_json(folder / "vocabulary_matching.json", found)
    (folder / "vocabulary_matching.txt").write_text(to_text(found), encoding="utf-8")


def _shares(routes: np.ndarray, counts: np.ndarray | None = None) -> dict[str, Any]:
    """How many rows, or occurrences by `counts` (V), each route has: `_of_routes`."""
    sums = np.bincount(routes, weights=counts, minlength=len(ROUTES)).round().astype(np.int64)
    return _of_routes({route: int(number) for route, number in zip(ROUTES, sums, strict=True)})


def _of_routes(by_route: dict[str, int]) -> dict[str, Any]:
    """All, how many of them are filled and which share, and the numbers of the routes that occur."""
    total = sum(by_route.values())
    filled = total - by_route.get("random", 0)
    routes = {route: by_route[route] for route in ROUTES if by_route.get(route)}
    return {"all": total, "filled": filled, "share": filled / total if total else 0.0, "by_route": routes}


def _script(subwords: Subwords, number: int) -> str:
    """The script of most letters of a subword; what it is made of where it has none."""
    said = subwords.said[number]
    if said is None:
        return "special and added"
    if isinstance(said, bytes):
        return "bytes"
    letters = Counter(filter(None, map(script_of, said.text)))
    if letters:
        script = letters.most_common(1)[0][0]
        return SCRIPTS.get(script, script.capitalize())
    return "digits" if any(character.isnumeric() for character in said.text) else "punctuation and symbols"


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """At most `count` of the numbers, from all of them: a vocabulary has its frequent subwords first."""
    if len(numbers) <= count:
        return [int(number) for number in numbers]
    return [int(numbers[index * len(numbers) // count]) for index in range(count)]


def _example(matching: Matching, number: int, old: Subwords, new: Subwords) -> dict[str, Any]:
    example: dict[str, Any] = {
        "subword": _shown(new, number),
        "from": [_shown(old, i) for i in matching.sources[number]],
    }
    if matching.routes[number] == "dictionary":
        example |= {"language": matching.languages[number], "translations": list(matching.translations[number])}
    return example


def _example_text(example: dict[str, Any]) -> str:
    language = f" ({example['language']})" if "language" in example else ""
    return f"{example['subword']} <- {' + '.join(example['from'])}{language}"


def _shown(subwords: Subwords, number: int) -> str:
    """A token as its tokenizer writes it; byte-level BPE, whose alphabet hides other letters, as its text after `Ġ`."""
    said = subwords.said[number]
    if subwords.kind == "byte_level" and isinstance(said, Subword):
        return ("Ġ" if said.starts_word else "") + said.text
    return subwords.tokens[number]


def _left_random(
    numbers: np.ndarray, new: Subwords, text_counts: dict[str, np.ndarray]
) -> dict[str, list[dict[str, Any]]]:
    """{language: its most frequent subwords without a row}, or {"all": some subwords without one}."""
    if not text_counts:
        shown = [{"subword": _shown(new, number), "count": None} for number in _spread(numbers, RANDOM_SHOWN)]
        return {"all": shown} if shown else {}
    left = {}
    for language, counts in text_counts.items():
        order = numbers[np.argsort(-counts[numbers], kind="stable")][:RANDOM_SHOWN]
        entries = [{"subword": _shown(new, number), "count": int(counts[number])} for number in order if counts[number]]
        if entries:
            left[language] = entries
    return left


def _count(columns: Iterable[tuple[str, TokenColumn]], size: int) -> dict[str, np.ndarray]:
    counts: dict[str, np.ndarray] = {}
    seen = set()
    for language, column in columns:
        # pairs are mostly made of the monolingual tables
        if column.fingerprint in seen:
            continue
        seen.add(column.fingerprint)
        of_language = counts.setdefault(language, np.zeros(size, dtype=np.int64))
        for subwords in column.tokens():
            of_language += np.bincount(subwords, minlength=size)
    return counts


def _print_routes(console, title: str, of: str, groups: dict[str, dict[str, Any]], used: list[str]) -> None:
    _print_table(
        console,
        title,
        [of, "all", "filled", *used],
        (
            [name, f"{group['all']:,}", f"{group['share']:.1%}"]
            + [f"{group['by_route'].get(route, 0) / max(group['all'], 1):.1%}" for route in used]
            for name, group in groups.items()
        ),
    )


def _print_dictionaries(console, found: dict[str, Any]) -> None:
    _print_table(
        console,
        "Dictionaries",
        ["language", "lines", "pairs", "skipped", "file"],
        (
            [
                dictionary["language"],
                f"{dictionary['lines']:,}",
                f"{dictionary['pairs']:,}",
                ", ".join(f"{count:,} {reason}" for reason, count in dictionary["skipped"].items()) or "0",
                dictionary["path"],
            ]
            for dictionary in found["dictionaries"]
        ),
        texts=("language", "file", "skipped"),
    )
    filled = ", ".join(f"{language} {count:,}" for language, count in found["by_dictionary_language"].items())
    console.print(f"Rows filled by dictionary: {filled or 'none'}")


def _print_table(
    console, title: str, columns: list[str], rows: Iterator[list[str]], texts: tuple[str, ...] | None = None
) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for index, column in enumerate(columns):
        is_text = column in texts if texts else index == 0
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
