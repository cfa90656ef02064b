"""The languages of a run's text: their sampling, and the target languages of back-translation.

Recipes are read with this file, so it imports no library that takes seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np


def sampling_probabilities(sizes: Sequence[float], alpha: float) -> np.ndarray:
    """Returns p_i = N_i^alpha / sum_j N_j^alpha (Conneau and Lample 2019, section 3.1; of XLM-R and the four papers).

    alpha 1 draws languages by their size, alpha 0 equally often.
    """
    powers = np.asarray(sizes, dtype=np.float64) ** alpha
    return powers / powers.sum()


def corpus_probabilities(corpora: Sequence[Any], alpha: float) -> np.ndarray:
    """Returns (C,) the probability of each corpus: p_i of its language or pair, divided among their corpora by size.

    The formula is over languages and pairs (both directions are one pair); N_i is the size of all corpora of i. So the
    rows of a language are drawn equally often, also if its text is split into several corpora.
    """
    sizes: dict[frozenset[str], int] = {}
    for corpus in corpora:
        languages = frozenset(corpus.languages)
        sizes[languages] = sizes.get(languages, 0) + corpus.size
    shares = dict(zip(sizes, sampling_probabilities(list(sizes.values()), alpha), strict=True))
    probabilities = []
    for corpus in corpora:
        languages = frozenset(corpus.languages)
        probabilities.append(shares[languages] * (corpus.size / sizes[languages]))
    return np.array(probabilities)


@dataclass(frozen=True)
class Languages:
    """The languages of each corpus, and those into which a text may be back-translated.

    rows: language code -> row of the model's language embedding; of_corpus: corpus name -> its one or two codes;
    pairs: (size, its two codes) of each translation corpus.
    """

    rows: dict[str, int]
    of_corpus: dict[str, tuple[str, ...]]
    pairs: list[tuple[float, tuple[str, str]]]
    alpha: float

    @classmethod
    def of(cls, config: Any, corpora: Sequence[Any], alpha: float) -> "Languages | None":
        """Makes it from a model's configuration and all corpora of a run; None if <mask> carries no language."""
        rows = getattr(config, "languages", None)
        if not rows:
            return None
        of_corpus = {corpus.name: tuple(corpus.languages) for corpus in corpora}
        pairs = [(corpus.size, of_corpus[corpus.name]) for corpus in corpora if len(corpus.languages) == 2]
        return cls({code: row for row, code in enumerate(rows)}, of_corpus, pairs, alpha)

    @classmethod
    def among(cls, codes: Sequence[str]) -> "Languages":
        """Makes it from a model's languages, in the order of its embedding; all pairs may be back-translated."""
        pairs = [(1.0, pair) for pair in combinations(codes, 2)]
        return cls({code: row for row, code in enumerate(codes)}, {}, pairs, alpha=1.0)

    def targets(self, language: str, rule: str) -> tuple[list[str], np.ndarray]:
        """Returns the codes into which a text of `language` may be back-translated, and their probabilities.

        rule: `paired` allows the languages that have a translation corpus with it; `all` allows every other language of
        the translation corpora. N of a language is the size of its translation corpora that count.
        """
        sizes = dict.fromkeys(target_languages(language, [pair for _, pair in self.pairs], rule), 0.0)
        for size, pair in self.pairs:
            for code in pair:
                if code in sizes and (rule == "all" or language in pair):
                    sizes[code] += size
        return list(sizes), sampling_probabilities(list(sizes.values()), self.alpha)


def target_languages(language: str, pairs: Sequence[tuple[str, str]], rule: str) -> list[str]:
    """Returns the codes of `Languages.targets`, sorted; `pairs` are those of the translation corpora."""
    codes: set[str] = set()
    for pair in pairs:
        if rule == "all" or language in pair:
            codes.update(pair)
    return sorted(codes - {language})
