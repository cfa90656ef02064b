"""F1 and exact match of answers, as SQuAD and MLQA define them; they differ only in how an answer becomes tokens."""

from collections import Counter
from collections.abc import Callable
from typing import Any

Tokenize = Callable[[str], list[str]]


def token_f1(predicted: list[str], gold: list[str]) -> float:
    """Harmonic mean of precision and recall over the two bags of tokens, in [0, 1]; 0 where they share none.

    Rajpurkar et al. (EMNLP 2016, section 6.1). So it is also 0 if both are empty: a gold answer of only articles or
    punctuation never adds to F1, only to exact match.
    """
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold)) if shared else 0.0


def score_answers(predictions: list[str], references: list[list[str]], tokenize: Tokenize) -> dict[str, float]:
    """Mean over the questions, in percent, of F1 and of exact match, each with the gold answer that it is best with.

    `references` holds the gold answers of each question, `tokenize` normalizes and splits. Returns {"f1",
    "exact_match": float in [0, 100]}. Raises ValueError for no question, and for one without a gold answer.
    """
    if len(references) == 0:
        raise ValueError("F1 of 0 questions is not defined. Evaluate at least one.")
    f1 = exact = 0.0
    for number, (prediction, golds) in enumerate(zip(predictions, references, strict=True)):
        if len(golds) == 0:
            raise ValueError(
                f"Question {number} (from 0) has no gold answer. Every question of SQuAD 1.1 and MLQA has one, and "
                "their F1 is not defined for a question without one. Leave it out."
            )
        predicted, answers = tokenize(prediction), [tokenize(gold) for gold in golds]
        f1 += max(token_f1(predicted, answer) for answer in answers)
        exact += max(float(predicted == answer) for answer in answers)
    return {"f1": 100 * f1 / len(references), "exact_match": 100 * exact / len(references)}


def answer_features() -> Any:
    """The `datasets.Features` of predicted and gold answers, for an `evaluate` module."""
    import datasets

    text = datasets.Value("string")
    return datasets.Features({"predictions": text, "references": datasets.List(text)})
