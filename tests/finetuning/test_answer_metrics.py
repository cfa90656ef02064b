"""The metrics squad and mlqa on answers whose scores can be told by hand, and against their definitions, plainly."""

import itertools
import random
import string
import unicodedata
from collections import Counter

import pytest

from finetuning.seeds import load_metric


def squad(prediction, *golds):
    return load_metric("squad").compute(predictions=[prediction], references=[list(golds)])


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


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(ValueError, match="'ru' is not one of MLQA's: en, es, de, ar, hi, vi, zh.*metric squad"):
        mlqa("ru", "a", "a")
    with pytest.raises(ValueError, match="Question 0.*no gold answer"):
        squad("a")
    with pytest.raises(ValueError, match="F1 of 0 questions"):
        load_metric("squad").compute(predictions=[], references=[])


# What the public scripts of SQuAD 1.1 and MLQA define, character by character: an answer is put into lower case, loses
# its punctuation, then its articles, and is split into tokens.

ARTICLES = {
    "squad": {"a", "an", "the"},
    "en": {"a", "an", "the"},
    "es": {"un", "una", "unos", "unas", "el", "la", "los", "las"},
    "de": {"ein", "eine", "einen", "einem", "eines", "einer", "der", "die", "das", "den", "dem", "des"},
    "vi": {"của", "là", "cái", "chiếc", "những"},
    "hi": set(),
    "zh": set(),
    "ar": set(),  # its article is no word of its own: the two letters go wherever they stand
}
WORDS = {
    "squad": "the The a an theatre Anna café 5 £5 der 黑豹队 308分 _the_ a's",
    "en": "the A an tower U.S. x-ray the-tower £3 5% naïve _the_ a's",
    "es": "El la los unas casa ñandú él ¿Qué? «hola» el. 3,5 Los-Ángeles lasaña",
    "de": "Der die einem eines Haus „Haus“ straße STRASSE das-Haus 3,5 €5 derselbe Ein",
    "vi": "của Là cái chiếc những Việt Nam, thủ-đô “Hà Nội” 5% cái. làng",
    "hi": "राम। और श्याम॥ the १८८९ हिन्दी, — “घर” का",
    "zh": "黑豹队 308分， 《红楼梦》 iPhone手机 the 、 24 次。 Ａ １ 㐀 龥 「人」 a的b",
    "ar": "الكتاب، البيت ؟كتاب في ال رسالة؛ 187 ـالمال٪ «مصر» وال the",
}
PUNCTUATION = {"en": "“”—'$", "es": "¿¡«»", "de": "„“–", "ar": "،؛؟٪«", "hi": "।॥—", "vi": "“”…", "zh": "，。《》、「·"}


def defined_tokens(answer, language):
    is_gone = set(string.punctuation).__contains__
    if language != "squad":
        is_gone = lambda c: c in string.punctuation or unicodedata.category(c)[0] == "P"  # noqa: E731
    text = "".join(character for character in answer.lower() if not is_gone(character))
    if language == "ar":
        text = " ".join(text.split("ال"))
    runs = ["".join(run) for _, run in itertools.groupby(text, lambda c: c.isalnum() or c == "_")]
    text = "".join(" " if run in ARTICLES[language] else run for run in runs)
    if language == "zh":
        text = "".join(f" {c} " if "\u4e00" <= c <= "\u9fa5" else c for c in text)
    return text.split()


def defined_scores(prediction, golds, language):
    f1 = exact = 0.0
    predicted = defined_tokens(prediction, language)
    for gold in (defined_tokens(gold, language) for gold in golds):
        exact = max(exact, float(" ".join(predicted) == " ".join(gold)))
        if same := (Counter(predicted) & Counter(gold)).total():
            precision, recall = same / len(predicted), same / len(gold)
            f1 = max(f1, 2 * precision * recall / (precision + recall))
    return f1, exact


@pytest.mark.parametrize("language", WORDS)
def test_scores_are_those_of_the_published_definition(language):
    draw = random.Random(language)
    marks = PUNCTUATION.get(language, "") + ".,'-_()%\u00a0\u3000 "

    def answer():
        parts = [draw.choice(WORDS[language].split()) for _ in range(draw.randint(0, 4))]
        parts = [part + draw.choice(marks) if draw.random() < 0.3 else part for part in parts]
        return draw.choice((" ", "  ", "", "-")).join(parts)

    cases = [(answer(), [answer() for _ in range(draw.randint(1, 3))]) for _ in range(400)]
    for prediction, golds in cases[:40]:
        found = squad(prediction, *golds) if language == "squad" else mlqa(language, prediction, *golds)
        assert found == scores(*defined_scores(prediction, golds, language)), (prediction, golds)
    expected = [defined_scores(*case, language) for case in cases]
    assert 5 < sum(exact for _, exact in expected) < 395  # there is something to tell apart
    options = {} if language == "squad" else {"language": language}
    predictions, references = zip(*cases, strict=True)
    together = load_metric("squad" if language == "squad" else "mlqa").compute(
        predictions=list(predictions), references=list(references), **options
    )
    means = [sum(values) / len(cases) for values in zip(*expected, strict=True)]
    assert together == {"f1": pytest.approx(100 * means[0]), "exact_match": pytest.approx(100 * means[1])}
