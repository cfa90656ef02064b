"""SQuAD's F1 and exact match as an `evaluate` module, loaded by its path so that it works without the Hub."""

import re
import string

import evaluate

from finetuning.tasks.question_answering.scores import answer_features, score_answers

_DESCRIPTION = """
F1 over tokens and exact match of SQuAD 1.1 (Rajpurkar et al. 2016), in percent. Answers are put into lower case, ASCII
punctuation and the English articles are removed, and what remains is split at white space: so in every language, which
is how XQuAD and TyDiQA-GoldP are scored. A Chinese answer is therefore mostly one token: right or wrong.
"""

_INPUTS = """
predictions: list of str, one answer a question
references: list of lists of str, the gold answers of each question; the best one counts
Returns {"f1", "exact_match": float in [0, 100]}. Raises ValueError for no question and for one without gold answer.
"""

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class Squad(evaluate.Metric):
    """Mean over questions, each with the gold answer that it is best with."""

    version = "1.0.0"  # of the definition; results carry it

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION, citation="", inputs_description=_INPUTS, features=answer_features()
        )

    def _compute(self, predictions, references):
        return score_answers(predictions, references, tokenize)


def tokenize(answer):
    """Tokens of a normalized answer; articles go after punctuation, so that `the-` is one."""
    return ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split()
