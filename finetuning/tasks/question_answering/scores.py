"""F1 and exact match of answers, as SQuAD and MLQA define them; they differ only in how an answer becomes tokens."""

import functools
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable

# Chinese and Hindi have none. The Arabic one is a part of its noun's word. The benchmark's scores come from a rule that
# removes these two letters everywhere, also within a word.
ARTICLES = {
    "en": r"\b(?:a|an|the)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "ال",
    "hi": None,
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
    "zh": None,
}
# an ideograph, or a run of anything else between white space
MIXED = re.compile(r"[\u4e00-\u9fa5]|[^\s\u4e00-\u9fa5]+")


def squad_tokens(answer: str) -> list[str]:
    """Tokens of an answer of SQuAD 1.1 (Rajpurkar et al. 2016), also in other languages, as in XQuAD and TyDiQA.

    Lower case; ASCII punctuation and then English articles are removed, so that `the-` is one; split at white space. A
    Chinese answer is therefore mostly one token: right or wrong.
    """
    text = "".join(character for character in answer.lower() if character not in string.punctuation)
    return re.sub(ARTICLES["en"], " ", text).split()


def mlqa_tokens(answer: str, language: str) -> list[str]:
    """Tokens of an answer of MLQA (Lewis et al. 2020, section 5), by the language of the context: en, es, de, ar, hi,
    vi or zh.

    Lower case; punctuation of every script is removed (the Unicode classes P*, and ASCII's symbols), then the
    language's articles; split at white space, and in Chinese each ideograph (U+4E00 to U+9FA5) is a token. Raises
    ValueError for another language.
    """
    if language not in ARTICLES:
        raise ValueError(f"The language {language!r} is not one of MLQA's: {', '.join(ARTICLES)}. Use metric=squad.")
    text = "".join(character for character in answer.lower() if not _is_punctuation(character))
    articles = ARTICLES[language]
    if articles:
        text = re.sub(articles, " ", text)
    if language == "zh":
        return MIXED.findall(text)
    return text.split()


@functools.cache
def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def token_f1(predicted: list[str], gold: list[str]) -> float:
    """Harmonic mean of precision and recall over the two bags of tokens, in [0, 1]; 0 where they share none.

    Rajpurkar et al. (EMNLP 2016, section 6.1). So it is also 0 if both are empty: a gold answer of only articles or
    punctuation never adds to F1, only to exact match.
    """
    shared = (Counter(predicted) & Counter(gold)).total()
    if not shared:
        return 0.0
    return 2 * shared / (len(predicted) + len(gold))


def score_answers(
    predictions: list[str], references: list[list[str]], tokenize: Callable[[str], list[str]]
) -> dict[str, float]:
    """Mean over the questions, in percent, of F1 and of exact match, each with the gold answer that it is best with.

    `references` holds the gold answers of each question, `tokenize` normalizes and splits. Raises ValueError for no
    question, and for one without a gold answer.
    """
    if not len(references) or not all(map(len, references)):
        raise ValueError(f"F1 needs a gold answer of each question; of {len(references)} questions, some have none.")
    f1 = 0.0
    exact = 0
    for prediction, golds in zip(predictions, references, strict=True):
        predicted = tokenize(prediction)
        answers = [tokenize(gold) for gold in golds]
        f1 += max(token_f1(predicted, answer) for answer in answers)
        exact += predicted in answers
    return {"f1": 100 * f1 / len(references), "exact_match": 100 * exact / len(references)}
