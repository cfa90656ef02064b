"""The result of vocabulary matching: rows by route and script, and how much of each language's text they cover.

Legend: `V` tokens of the new vocabulary.
"""

import textwrap
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from pretraining.start.token_texts import Vocabulary, read_vocabulary, script_of
from pretraining.start.vocabulary_matching import NAMES, ROUTES, Matching

EXAMPLES = 12  # of each route
# {first word of a Unicode name: script}, where the two differ
SCRIPTS = {"CJK": "Han", "IDEOGRAPHIC": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana", "KATAKANA-HIRAGANA": "Kana"}


def report(
    matching: Matching,
    old: PreTrainedTokenizerBase,
    new: PreTrainedTokenizerBase,
    text_counts: dict[str, np.ndarray | None] | None = None,
) -> dict[str, Any]:
    """Returns the facts of a matching, for JSON: rows by route and script, dictionaries, examples of each route.

    text_counts: for each language, (V) how often each token occurs in its text, or None if the text is streamed
    (`not_counted`). With them, `tokens` counts by route the different tokens that each language's text uses, and `text`
    the tokens of the running text.
    """
    counted = {language: counts for language, counts in (text_counts or {}).items() if counts is not None}
    olds, news = (read_vocabulary(tokenizer, name) for tokenizer, name in zip((old, new), NAMES, strict=True))
    routes = np.array(matching.routes)
    scripts = pd.Series([_script(news, number) for number in range(len(routes))])
    return {
        "old_tokens": len(olds.subwords),
        "rows": _by_route(routes),
        "by_script": {script: _by_route(routes[scripts == script]) for script in scripts.value_counts().index},
        "tokens": {language: _by_route(routes, counts > 0) for language, counts in counted.items()},
        "text": {language: _by_route(routes, counts) for language, counts in counted.items()},
        "not_counted": [language for language in text_counts or {} if language not in counted],
        "dictionaries": [
            {name: getattr(dictionary, name) for name in ("language", "path", "lines", "pairs")}
            | {"skipped": dict(dictionary.skipped.most_common())}
            for dictionary in matching.dictionaries
        ],
        "overruled": len(matching.overruled),
        "examples": {
            route: [
                {"token": news.shown(number), "from": [olds.shown(i) for i in matching.sources[number]]}
                # spread over all ids, as a vocabulary has its frequent tokens first
                for number in numbers[np.unique(np.linspace(0, len(numbers) - 1, EXAMPLES, dtype=int))].tolist()
            ]
            for route in ROUTES
            if len(numbers := np.flatnonzero(routes == route))
        },
    }


def to_text(found: dict[str, Any]) -> str:
    """Returns a report as tables and lines of text."""
    rows = sum(found["rows"].values())
    left = found["rows"].get("random", 0)
    parts = [
        f"The new vocabulary has {rows:,} rows, that of the checkpoint {found['old_tokens']:,}. "
        f"{rows - left:,} rows are filled ({1 - left / rows:.1%}), {left:,} start random.",
        _table("Rows by script", {**found["by_script"], "all": found["rows"]}),
    ]
    for what, title in (("text", "running text"), ("tokens", "tokens that the text uses")):
        if found[what]:
            parts.append(_table(f"Share of the {title} whose row is filled, by language", found[what]))
    if streamed := found["not_counted"]:
        parts.append(f"Not counted, because the text is streamed: {', '.join(streamed)}")
    for dictionary in found["dictionaries"]:
        skipped = ", ".join(f"{count:,} {reason}" for reason, count in dictionary["skipped"].items()) or "none"
        parts.append(
            f"Dictionary {dictionary['path']} ({dictionary['language']}): {dictionary['lines']:,} lines, "
            f"{dictionary['pairs']:,} pairs, skipped: {skipped}"
        )
    if overruled := found["overruled"]:
        parts.append(
            f"For {overruled:,} of the rows filled by dictionary, the checkpoint has the same token "
            "(model.meta_pretrained.dictionary=fallback uses that instead)."
        )
    for route, examples in found["examples"].items():
        shown = (
            " <- ".join([entry["token"], " + ".join(entry["from"])][: 1 + bool(entry["from"])]) for entry in examples
        )
        parts.append(f"{route}: {', '.join(shown)}")
    wrap = textwrap.TextWrapper(120, break_long_words=False, break_on_hyphens=False).fill
    return "\n\n".join(part if "\n" in part else wrap(part) for part in parts) + "\n"


def _by_route(routes: np.ndarray, counts: np.ndarray | None = None) -> dict[str, int]:
    """Returns the number of rows of each route or, with `counts` (V), of the occurrences of their tokens."""
    weights = np.ones(len(routes), dtype=np.int64) if counts is None else counts
    return {route: number for route in ROUTES if (number := int(weights[routes == route].sum()))}


def _script(vocabulary: Vocabulary, number: int) -> str:
    """Returns the script of most letters of a token; without letters, what it consists of."""
    subword = vocabulary.subwords[number]
    if subword is None:
        return "special and added"
    letters = Counter() if isinstance(subword, bytes) else Counter(filter(None, map(script_of, subword.text)))
    if letters:
        script = letters.most_common(1)[0][0]
        return SCRIPTS.get(script, script.capitalize())
    return "bytes, digits, signs"


def _table(title: str, groups: dict[str, dict[str, int]]) -> str:
    """Returns a table with a line per group: its number, and the shares that are filled in all and by each route."""
    counts = pd.DataFrame(list(groups.values()), groups, [r for r in ROUTES if any(map({r}.issubset, groups.values()))])
    shares = counts.fillna(0).div(counts.sum(axis=1).clip(lower=1), axis=0)
    shares.insert(0, "filled", shares.drop(columns="random", errors="ignore").sum(axis=1))
    shares = shares.map("{:.1%}".format)
    shares.insert(0, "all", counts.sum(axis=1).map("{:,.0f}".format))
    return f"{title}\n{shares.to_string()}"
