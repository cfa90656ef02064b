"""The metrics squad and mlqa on answers whose scores were computed by hand."""

import pytest

from finetuning.metrics import load_metric
from finetuning.tasks.question_answering.scores import score_answers


def squad(prediction, *golds):
    return score_answers([prediction], [list(golds)])


def mlqa(language, prediction, *golds):
    return load_metric("mlqa").compute(predictions=[prediction], references=[list(golds)], language=language)


def scores(f1, exact_match):
    return {"f1": pytest.approx(100 * f1), "exact_match": 100 * exact_match}


@pytest.mark.parametrize(
    ("prediction", "golds", "f1", "exact"),
    [
        ("The  Eiffel-Tower!", ["eiffeltower"], 1, 1),  # a hyphen goes and leaves no gap
        ("in Paris", ["Paris"], 2 / 3, 0),  # precision 1/2, recall 1
        ("to be or not", ["be be"], 1 / 3, 0),  # a bag: one `be` is shared; 2 * 1 / (4 + 2)
        ("Paris", ["London", "in Paris", "paris."], 1, 1),  # the best gold answer
        ("anthem then a", ["anthem then"], 1, 1),  # articles are whole words
        ("", ["Paris"], 0, 0),
        ("an", ["the"], 0, 1),  # nothing is left of either: equal, and without a shared token
        ("der Turm", ["Turm"], 2 / 3, 0),  # only English articles go, in every language
        ("黑豹队。", ["黑豹队"], 0, 0),  # only ASCII punctuation goes, and there are no spaces
        ("「308」 分", ["308 分"], 0.5, 0),
    ],
)
def test_squad(prediction, golds, f1, exact):
    assert squad(prediction, *golds) == scores(f1, exact)


@pytest.mark.parametrize(
    ("language", "prediction", "gold", "f1", "exact"),
    [
        ("en", "“The Tower” — of London", "tower of london", 1, 1),  # punctuation of every script
        ("en", "the theatre, $5", "theatre 5", 1, 1),  # ASCII's symbols too
        ("en", "5 €", "5", 2 / 3, 0),  # no other symbols
        ("es", "La casa de los espíritus", "casa de espíritus", 1, 1),
        ("es", "el él", "él", 1, 1),
        ("de", "Die „Ursache“ des Krieges", "ursache krieges", 1, 1),
        ("ar", "الكتاب،", "كتاب", 1, 1),
        ("ar", "في البيت الكبير", "بيت كبير", 4 / 5, 0),
        ("ar", "رسالة", "رس ة", 1, 1),  # also within a word, where it leaves a gap
        ("hi", "राम और श्याम।", "राम और श्याम", 1, 1),  # the danda is punctuation, there are no articles
        ("vi", "Thủ đô của Việt Nam", "thủ đô Việt Nam", 1, 1),
        ("zh", "黑豹队。", "黑豹队", 1, 1),
        ("zh", "308分", "308 分", 1, 1),
        ("zh", "iPhone手机", "iphone 手机", 1, 1),
        ("zh", "iPhone 4手机", "iPhone4手机", 4 / 7, 0),  # iphone, 4, 手, 机 and iphone4, 手, 机
        ("zh", "the 手机", "手机", 4 / 5, 0),  # Chinese has no articles
    ],
)
def test_mlqa(language, prediction, gold, f1, exact):
    assert mlqa(language, prediction, gold) == scores(f1, exact)


def test_score_answers_refuses():
    with pytest.raises(ValueError, match="'ru' is not one of MLQA's: en, es, de, ar, hi, vi, zh"):
        mlqa("ru", "a", "a")
    for predictions, references in ((["a"], [[]]), ([], [])):
        with pytest.raises(ValueError, match="gold answer"):
            score_answers(predictions, references)


def test_score_answers_is_a_mean_over_questions():
    found = score_answers(["in Paris", "Rome"], [["Paris"], ["Bern", "Rome"]])
    assert found == scores((2 / 3 + 1) / 2, 0.5)
