"""Metrics, on predictions whose scores were worked out by hand or follow from a formula."""

import math
from functools import partial

import numpy as np
import pytest

from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.finetuning.tasks.question_answering.scores import mlqa_tokens, score_answers, squad_tokens
from crosslingual_zoo.finetuning.tasks.tagging import chunk_scores

SURE = [[0, 0], [1, 2]]
POSSIBLE = [[0, 0], [1, 2], [2, 1]]
GOLD = {"sure": SURE, "possible": POSSIBLE}


def aer(predictions, references):
    return load_metric("aer").compute(predictions=predictions, references=references)


ONLY_POSSIBLE = {"sure": [], "possible": [[0, 0], [1, 1]]}


@pytest.mark.parametrize(
    ("predictions", "references", "expected"),
    [
        ([[], []], [GOLD, {"sure": [], "possible": [[0, 1]]}], (0, 0, 0, 100)),
        ([[[0, 0]]], [ONLY_POSSIBLE], (100, 0, 0, 0)),
        ([[[0, 0], [5, 5]]], [ONLY_POSSIBLE], (50, 0, 0, 50)),  # |A| = 2, |S| = 0, |A & P| = 1
    ],
)
def test_aer_of_links_by_hand(predictions, references, expected):
    names = ("precision", "recall", "f1", "aer")
    assert aer(predictions, references) == pytest.approx(dict(zip(names, expected, strict=True)))


def test_aer_counts_each_link_once_and_sure_ones_as_possible():
    links = [[0, 0], [2, 1], [9, 9]]
    assert aer([links * 2], [{"sure": SURE * 2, "possible": [[2, 1]] * 3}]) == aer([links], [GOLD])


def test_aer_is_the_formula_of_the_paper():
    generator = np.random.default_rng(3)
    sure = generator.random((50, 6, 7)) < 0.1
    possible = sure | (generator.random((50, 6, 7)) < 0.1)
    links = generator.random((50, 6, 7)) < 0.2

    def listed(matrices):
        return [np.argwhere(matrix).tolist() for matrix in matrices]

    gold = zip(listed(sure), listed(possible), strict=True)
    scores = aer(
        listed(links), [{"sure": sure_links, "possible": possible_links} for sure_links, possible_links in gold]
    )
    right_sure = (links & sure).sum()
    right_possible = (links & possible).sum()
    precision = right_possible / links.sum()
    recall = right_sure / sure.sum()
    error = 1 - (right_sure + right_possible) / (links.sum() + sure.sum())
    f1 = 2 * precision * recall / (precision + recall)
    expected = {"precision": precision, "recall": recall, "f1": f1, "aer": error}
    assert scores == pytest.approx({name: 100 * value for name, value in expected.items()})


def bleu(prediction, reference, **options):
    return load_metric("bleu").compute(predictions=[prediction], references=[reference], **options)


@pytest.mark.parametrize(
    ("prediction", "reference", "sacrebleu", "ratio"),
    [
        ("a b c d", "a b c d e f", math.exp(1 - 6 / 4), 4 / 6),  # every n-gram is right
        ("a b c d e f", "a b c d", (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25, 6 / 4),  # no penalty
        ("a b c x", "a b c d", (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25, 1),  # smoothed: half of a 4-gram
    ],
)
def test_bleu_is_precision_times_brevity(prediction, reference, sacrebleu, ratio):
    scores = bleu(prediction, reference)
    assert scores["sacrebleu"] == pytest.approx(100 * sacrebleu)
    assert scores["length_ratio"] == pytest.approx(ratio)


def test_bleu_of_the_corpus_ignores_case_and_splits_as_moses():
    scores = load_metric("bleu").compute(predictions=["a b c d", "x"], references=["a b c d", "y"])
    assert scores["sacrebleu"] == pytest.approx(100 * (4 / 5 * 3 / 3 * 2 / 2 * 1 / 1) ** 0.25)
    scores = bleu("The Cat sat on the Mat", "the cat sat on the mat")
    assert scores["bleu"] == pytest.approx(100)
    assert scores["sacrebleu"] < 50
    # 13a leaves hyphen and German quotation marks in the word: one wrong word is all that differs
    scores = bleu("er trägt ein blau-weißes „T-Shirt“ und lacht", "er trägt ein blau-weißes T-Shirt und lacht")
    assert scores["sacrebleu"] == pytest.approx(100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25)
    assert scores["bleu"] == pytest.approx(100 * (11 / 13 * 8 / 12 * 5 / 11 * 3 / 10) ** 0.25)
    assert "tok:13a" in scores["signatures"]["sacrebleu"]
    assert "smooth:none" in scores["signatures"]["bleu"]


@pytest.mark.parametrize(
    ("language", "tokenizer", "text"),
    [
        ("zho_Hans", "zh", "我买了两张票。"),
        ("th", "char", "ฉันชอบแมว"),
        ("de-AT", "13a", "ich mag alle Katzen"),
        ("", "char", "ฉันชอบแมว 3 ตัว"),
    ],
)
def test_bleu_tokenizer_of_the_language(language, tokenizer, text):
    signatures = bleu(text, text, language=language)["signatures"]
    assert f"tok:{tokenizer}|" in signatures["sacrebleu"]
    assert f"tok:{tokenizer.replace('13a', 'intl')}|" in signatures["bleu"]


def answer_scores(f1, exact_match):
    return {"f1": pytest.approx(100 * f1), "exact_match": 100 * exact_match}


@pytest.mark.parametrize(
    ("prediction", "golds", "f1", "exact"),
    [
        ("The  Eiffel-Tower!", ["eiffeltower"], 1, 1),  # a hyphen goes and leaves no gap
        ("the-tower", ["tower"], 0, 0),  # punctuation goes before articles
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
def test_score_answers_as_squad(prediction, golds, f1, exact):
    assert score_answers([prediction], [golds], squad_tokens) == answer_scores(f1, exact)


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
        ("zh", "iPhone 4手机", "iPhone4手机", 4 / 7, 0),  # iphone, 4, 手, 机 and iphone4, 手, 机
        ("zh", "the 手机", "手机", 4 / 5, 0),  # Chinese has no articles
    ],
)
def test_mlqa_scores_by_language(language, prediction, gold, f1, exact):
    scores = score_answers([prediction], [[gold]], partial(mlqa_tokens, language=language))
    assert scores == answer_scores(f1, exact)


def test_score_answers_is_a_mean_over_questions():
    scores = score_answers(["in Paris", "Rome"], [["Paris"], ["Bern", "Rome"]], squad_tokens)
    assert scores == answer_scores((2 / 3 + 1) / 2, 0.5)


@pytest.mark.parametrize(
    ("gold", "predicted", "precision", "recall", "accuracy"),
    [
        ("B-PER I-PER O B-LOC O B-ORG", "B-PER I-PER O B-PER O B-ORG", 2 / 3, 2 / 3, 5 / 6),
        ("B-PER O", "O O", 0, 0, 1 / 2),
        # two adjacent persons, then a place, in IOB1 and IOB2; found is one person of three words
        ("I-PER I-PER B-PER I-LOC O I-LOC", "B-PER I-PER I-PER B-LOC O B-LOC", 2 / 3, 2 / 4, 2 / 6),
        ("B-PER I-PER B-PER B-LOC O B-LOC", "I-PER I-PER B-PER I-LOC O I-LOC", 1, 1, 3 / 6),
        ("B-PER L-PER O", "I-PER I-PER O", 1, 1, 1 / 3),
        ("B-LOC B-LOC", "U-LOC O", 1, 1 / 2, 0),
        ("LOC-B LOC-B", "LOC-B O", 1, 1 / 2, 1 / 2),
        ("B I O B I", "B I O B O", 1 / 2, 1 / 2, 4 / 5),  # without a type
        ("B M E S", "B E B E", 0, 0, 1 / 4),
        # parts of speech; as in seqeval 0.0.12, X is a chunk, and so is each S label
        ("DET NOUN NOUN VERB", "DET NOUN VERB VERB", 1 / 3, 1 / 3, 3 / 4),
        ("CCONJ AUX SCONJ", "SCONJ AUX CCONJ", 1 / 3, 1 / 3, 1 / 3),
        ("SYM SYM PUNCT X", "SYM PUNCT X X", 1 / 3, 1 / 4, 1 / 2),
    ],
)
def test_chunk_scores_by_hand(gold, predicted, precision, recall, accuracy):
    expected = {"precision": precision, "recall": recall, "token_accuracy": accuracy, "f1": 0}
    if precision:
        expected["f1"] = 2 * precision * recall / (precision + recall)
    scores = chunk_scores([gold.split()], [predicted.split()])
    assert scores == pytest.approx({name: 100 * value for name, value in expected.items()})


@pytest.mark.parametrize(
    ("scores", "right", "gold", "threshold"),
    [
        ([4.0, 3.0, 2.0, 1.0], [1, 1, 0, 0], 2, 2.5),
        ([1.0, 4.0, 2.0, 3.0], [0, 1, 0, 1], 2, 2.5),  # in any order
        ([4.0, 3.0, 2.0], [1, 1, 1], 3, 2.0),  # the public script reads past the end here
        ([4.0, 3.0, 2.0], [1, 0, 0], 1, 3.5),
        ([4.0, 3.0, 3.0, 2.0], [1, 0, 1, 0], 2, 2.5),  # equal scores are taken together
        ([4.0, 2.0, 2.0], [1, 1, 0], 2, 2.0),  # and not cut between, F1 4 / 5; the first alone has 2 / 3
        ([4.0, 3.0, 2.0, 1.0], [1, 0, 0, 1], 2, 3.5),  # 2 / 3 and 4 / 6: of equal F1 the fewest pairs
        ([4.0, 3.0], [0, 0], 2, math.inf),
        ([], [], 2, math.inf),
        ([np.nextafter(1.0, 2), 1.0], [1, 0], 1, np.nextafter(1.0, 2)),  # there is nothing between them
    ],
)
def test_mining_f1_fits_the_best_threshold(scores, right, gold, threshold):
    scores = np.array(scores)
    is_right = np.array(right, bool)
    compute = partial(load_metric("mining_f1").compute, predictions=scores, references=is_right, gold=gold)

    def f1(cut):
        is_taken = scores >= cut
        return 200 * is_right[is_taken].sum() / (is_taken.sum() + gold)

    fitted = compute()
    assert fitted["threshold"] == threshold
    assert fitted["f1"] == pytest.approx(max(map(f1, [*scores, math.inf])))
    assert fitted == compute(threshold=threshold)
    is_taken = scores >= threshold
    assert (fitted["mined"], fitted["right"], fitted["gold"]) == (is_taken.sum(), is_right[is_taken].sum(), gold)
