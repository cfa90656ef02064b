"""What vocabulary matching carried over: rows by route, script and dictionary, and how much of each language's text.

Legend: `V` tokens of the new vocabulary.
"""

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from pretraining.start.token_texts import Vocabulary, read_vocabulary, script_of
from pretraining.start.vocabulary_matching import NAMES, ROUTES, Matching
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

    text_counts: (V) how often each token occurs in the text of a language, by language; None
    where it is streamed (`not_counted`). With them, `coverage` says for each language which share of the tokens that
    its text uses, and of the running text, has a row of the old vocabulary; and `left_random` names the most frequent
    tokens without one, else tokens from all of the vocabulary.
    """
    counted = {language: counts for language, counts in (text_counts or {}).items() if counts is not None}
    olds, news = (read_vocabulary(tokenizer, name) for tokenizer, name in zip((old, new), NAMES, strict=True))
    routes = np.array(matching.routes)
    scripts = pd.Series([_script(news, number) for number in range(len(routes))])

    def examples(numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [_example(matching, number, olds, news) for number in _spread(numbers, EXAMPLES)]

    return {
        "old_tokens": len(olds.subwords),
        "rows": _shares(routes),
        "by_script": {script: _shares(routes[scripts == script]) for script in scripts.value_counts().index},
        "by_dictionary_language": dict(Counter(filter(None, matching.languages)).most_common()),
        "dictionaries": [
            {name: getattr(dictionary, name) for name in ("language", "path", "lines", "pairs")}
            | {"skipped": dict(dictionary.skipped.most_common())}
            for dictionary in matching.dictionaries
        ],
        "overruled": {"rows": len(matching.overruled), "examples": examples(matching.overruled)},
        "specials_without_counterpart": matching.missing_roles,
        "coverage": {
            language: {"tokens": _shares(routes, counts > 0), "text": _shares(routes, counts)}
            for language, counts in counted.items()
        },
        "not_counted": [language for language in text_counts or {} if language not in counted],
        "examples": {
            route: found
            for route in ROUTES
            if route != "random" and (found := examples(np.flatnonzero(routes == route)))
        },
        "left_random": _left_random(np.flatnonzero(routes == "random"), news, counted),
    }


def to_text(found: dict[str, Any]) -> str:
    """A report as tables and lines of text."""
    rows = found["rows"]
    parts = [
        f"{rows['all']:,} rows of the new vocabulary, {found['old_tokens']:,} of the checkpoint's. "
        f"{rows['filled']:,} are filled ({rows['share']:.1%}), {rows['all'] - rows['filled']:,} start random.",
        _table("Rows by script", {**found["by_script"], "all": rows}),
    ]
    for what, title in (("text", "running text"), ("tokens", "tokens that the text uses")):
        if coverage := {language: by_count[what] for language, by_count in found["coverage"].items()}:
            parts.append(_table(f"Share of the {title} whose row is filled, by language", coverage))
    if streamed := found["not_counted"]:
        parts.append(f"Not counted, as they are streamed: the texts of {', '.join(streamed)}")
    for dictionary in found["dictionaries"]:
        skipped = ", ".join(f"{count:,} {reason}" for reason, count in dictionary["skipped"].items()) or "none"
        parts.append(
            f"Dictionary {dictionary['path']} ({dictionary['language']}): {dictionary['lines']:,} lines, "
            f"{dictionary['pairs']:,} pairs, skipped: {skipped}"
        )
    if found["dictionaries"]:
        filled = ", ".join(f"{language} {count:,}" for language, count in found["by_dictionary_language"].items())
        parts.append(f"Rows filled by dictionary: {filled or 'none'}")
    if overruled := found["overruled"]["rows"]:
        parts.append(
            f"{overruled:,} of the rows by dictionary are of tokens that the checkpoint has as they are "
            "(model.meta_pretrained.dictionary=fallback takes those instead); new token <- old token (language of the "
            f"dictionary): {_example_list(found['overruled']['examples'])}"
        )
    if missing := found["specials_without_counterpart"]:
        parts.append(f"Special tokens that the checkpoint has no counterpart of: {', '.join(missing)}")
    parts += [f"{route}: {_example_list(examples)}" for route, examples in found["examples"].items()]
    for language, left in found["left_random"].items():
        if left[0]["count"] is None:
            parts.append("random: " + ", ".join(entry["token"] for entry in left))
        else:
            tokens = ", ".join(f"{entry['token']} {entry['count']:,}" for entry in left)
            parts.append(f"random, most frequent in {language}: {tokens}")
    wrap = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False).fill
    return "\n\n".join(part if "\n" in part else wrap(part) for part in parts) + "\n"


def write_report(found: dict[str, Any], folder: Path) -> None:
    """Writes a report as vocabulary_matching.json and vocabulary_matching.txt."""
    write_json(folder / "vocabulary_matching.json", found)
    (folder / "vocabulary_matching.txt").write_text(to_text(found), encoding="utf-8")


def _shares(routes: np.ndarray, counts: np.ndarray | None = None) -> dict[str, Any]:
    """Of rows, or of occurrences by `counts` (V): all, how many are filled and which share, and how many by route."""
    sums = {
        route: int((routes == route).sum() if counts is None else counts[routes == route].sum()) for route in ROUTES
    }
    total = sum(sums.values())
    filled = total - sums["random"]
    by_route = {route: count for route, count in sums.items() if count}
    return {"all": total, "filled": filled, "share": filled / total if total else 0.0, "by_route": by_route}


def _script(vocabulary: Vocabulary, number: int) -> str:
    """The script of most letters of a token; what it is made of where it has none."""
    subword = vocabulary.subwords[number]
    if subword is None:
        return "special and added"
    if isinstance(subword, bytes):
        return "bytes"
    letters = Counter(filter(None, map(script_of, subword.text)))
    if letters:
        script = letters.most_common(1)[0][0]
        return SCRIPTS.get(script, script.capitalize())
    return "digits" if any(character.isnumeric() for character in subword.text) else "punctuation and symbols"


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """At most `count` of the numbers, from all of them: a vocabulary has its frequent tokens first."""
    count = min(count, len(numbers))
    return [int(numbers[index * len(numbers) // count]) for index in range(count)]


def _example(matching: Matching, number: int, olds: Vocabulary, news: Vocabulary) -> dict[str, Any]:
    example = {"token": news.shown(number), "from": [olds.shown(i) for i in matching.sources[number]]}
    if matching.routes[number] == "dictionary":
        example |= {"language": matching.languages[number], "translations": list(matching.translations[number])}
    return example


def _example_list(examples: list[dict[str, Any]]) -> str:
    languages = [f" ({example['language']})" if "language" in example else "" for example in examples]
    shown = zip(examples, languages, strict=True)
    return ", ".join(f"{example['token']} <- {' + '.join(example['from'])}{language}" for example, language in shown)


def _left_random(numbers: np.ndarray, news: Vocabulary, counts: dict[str, np.ndarray]) -> dict[str, list[dict]]:
    """{language: its most frequent tokens without a row}, or {"all": some tokens without one}."""
    if not counts:
        left = {"all": [{"token": news.shown(number), "count": None} for number in _spread(numbers, RANDOM_SHOWN)]}
    else:
        left = {
            language: [
                {"token": news.shown(number), "count": int(of_language[number])}
                for number in numbers[np.argsort(-of_language[numbers], kind="stable")][:RANDOM_SHOWN]
                if of_language[number]
            ]
            for language, of_language in counts.items()
        }
    return {language: entries for language, entries in left.items() if entries}


def _table(title: str, groups: dict[str, dict[str, Any]]) -> str:
    """Shares by route, a line a group."""
    used = [route for route in ROUTES if any(route in group["by_route"] for group in groups.values())]
    rows = {
        name: [f"{group['all']:,}", f"{group['share']:.1%}"]
        + [f"{group['by_route'].get(route, 0) / max(group['all'], 1):.1%}" for route in used]
        for name, group in groups.items()
    }
    return f"{title}\n" + pd.DataFrame.from_dict(rows, orient="index", columns=["all", "filled", *used]).to_string()
