"""MLQA's F1 and exact match as an `evaluate` module, loaded by its path so that it works without the Hub."""

import functools
import re
import string
import unicodedata

import datasets
import evaluate

from finetuning.tasks.question_answering.scores import score_answers

_DESCRIPTION = """
F1 over tokens and exact match of MLQA (Lewis et al. 2020, section 5), in percent: SQuAD's, with what is removed and how
it is split by language. Lower case; punctuation of every script (the Unicode classes P*, and ASCII's symbols); the
language's articles; then tokens at white space, and in Chinese each ideograph (U+4E00 to U+9FA5) for itself.
"""

_INPUTS = """
predictions: list of str, one answer a question; references: list of lists of str, the gold answers, the best one counts
language: the answers' language, which in MLQA is that of the context: en, es, de, ar, hi, vi or zh
Returns {"f1", "exact_match": float in [0, 100]}. Raises ValueError for another language, and without gold answers.
"""


def words(*articles):
    """A pattern that matches these as whole words."""
    return re.compile(r"\b(?:" + "|".join(articles) + r")\b")


# Chinese and Hindi have none. The Arabic one is a part of its noun's word. The benchmark's scores come from a rule that
# removes these two letters everywhere, also within a word.
ARTICLES = {
    "en": words("a", "an", "the"),
    "es": words("un", "una", "unos", "unas", "el", "la", "los", "las"),
    "de": words(*"ein eine einen einem eines einer der die das den dem des".split()),
    "ar": re.compile("ال"),
    "hi": None,
    "vi": words("của", "là", "cái", "chiếc", "những"),
    "zh": None,
}
# an ideograph, or a run of anything else between white space
MIXED = re.compile(r"[\u4e00-\u9fa5]|[^\s\u4e00-\u9fa5]+")


class Mlqa(evaluate.Metric):
    """Mean over questions, each with the gold answer that it is best with."""

    version = "1.0.0"  # of the definition; results carry it

    def _info(self):
        text = datasets.Value("string")
        features = datasets.Features({"predictions": text, "references": datasets.List(text)})
        return evaluate.MetricInfo(description=_DESCRIPTION, citation="", inputs_description=_INPUTS, features=features)

    def _compute(self, predictions, references, language):
        if language not in ARTICLES:
            raise ValueError(
                f"The language {language!r} is not one of MLQA's: {', '.join(ARTICLES)}. Use metric=squad."
            )
        return score_answers(predictions, references, functools.partial(tokenize, language=language))


@functools.cache
def is_punctuation(character):
    """Whether MLQA removes a character."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def tokenize(answer, language):
    """Tokens of a normalized answer; articles go after punctuation, and leave a gap."""
    text = "".join(character for character in answer.lower() if not is_punctuation(character))
    if ARTICLES[language]:
        text = ARTICLES[language].sub(" ", text)
    return MIXED.findall(text) if language == "zh" else text.split()
