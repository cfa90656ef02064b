"""F1 and exact match of answers, as SQuAD and MLQA define them; they differ only in how an answer becomes tokens."""

import re
import string
from collections import Counter
from collections.abc import Callable

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def squad_tokens(answer: str) -> list[str]:
    """Tokens of an answer of SQuAD 1.1 (Rajpurkar et al. 2016), also in other languages, as in XQuAD and TyDiQA.

    Lower case; ASCII punctuation and then English articles are removed, so that `the-` is one; split at white space. A
    Chinese answer is therefore mostly one token: right or wrong.
    """
    return ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split()


def token_f1(predicted: list[str], gold: list[str]) -> float:
    """Harmonic mean of precision and recall over the two bags of tokens, in [0, 1]; 0 where they share none.

    Rajpurkar et al. (EMNLP 2016, section 6.1). So it is also 0 if both are empty: a gold answer of only articles or
    punctuation never adds to F1, only to exact match.
    """
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold)) if shared else 0.0


def score_answers(
    predictions: list[str], references: list[list[str]], tokenize: Callable[[str], list[str]] = squad_tokens
) -> dict[str, float]:
    """Mean over the questions, in percent, of F1 and of exact match, each with the gold answer that it is best with.

    `references` holds the gold answers of each question, `tokenize` normalizes and splits. Raises ValueError for no
    question, and for one without a gold answer.
    """
    if not len(references) or not all(map(len, references)):
        raise ValueError(f"F1 needs a gold answer of each question; of {len(references)} questions, some have none.")
    f1 = exact = 0.0
    for prediction, golds in zip(predictions, references, strict=True):
        predicted, answers = tokenize(prediction), [tokenize(gold) for gold in golds]
        f1 += max(token_f1(predicted, answer) for answer in answers)
        exact += max(float(predicted == answer) for answer in answers)
    return {"f1": 100 * f1 / len(references), "exact_match": 100 * exact / len(references)}
