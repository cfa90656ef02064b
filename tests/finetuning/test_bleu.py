"""The module of finetuning/metrics/bleu: values worked out by hand, its two tokenizers, and what it refuses."""

import math
import sys

import pytest

from finetuning.metrics import load_metric


def score(prediction, reference, **options):
    return load_metric("bleu").compute(predictions=[prediction], references=[reference], **options)


def test_bleu_is_precision_times_brevity():
    short, long = "a b c d", "a b c d e f"
    found = score(short, long)
    assert found["sacrebleu"] == pytest.approx(100 * math.exp(1 - 6 / 4))  # every n-gram is right
    assert found["length_ratio"] == pytest.approx(4 / 6)
    # the other way round: no penalty, and 4/6, 3/5, 2/4 and 1/3 of the n-grams
    found = score(long, short)
    assert found["sacrebleu"] == pytest.approx(100 * (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert found["length_ratio"] == pytest.approx(6 / 4)


def test_bleu_smoothing():
    found = score("a b c x", "a b c d")
    assert found["sacrebleu"] == pytest.approx(100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25)  # half of a 4-gram
    assert found["bleu"] == 0.0


def test_bleu_capitals():
    found = score("The Cat sat on the Mat", "the cat sat on the mat")
    assert found["bleu"] == pytest.approx(100) and found["sacrebleu"] < 50


def test_bleu_splits_as_moses():
    # 13a leaves hyphen and German quotation marks in the word: one wrong word is all that differs
    prediction = "er trägt ein blau-weißes „T-Shirt“ und lacht"
    reference = "er trägt ein blau-weißes T-Shirt und lacht"
    found = score(prediction, reference)
    assert found["sacrebleu"] == pytest.approx(100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25)
    assert found["bleu"] == pytest.approx(100 * (11 / 13 * 8 / 12 * 5 / 11 * 3 / 10) ** 0.25)
    assert "tok:13a" in found["signatures"]["sacrebleu"] and "tok:intl" in found["signatures"]["bleu"]
    assert "case:lc" in found["signatures"]["bleu"] and "smooth:none" in found["signatures"]["bleu"]


def test_bleu_is_of_the_corpus():
    metric = load_metric("bleu")
    found = metric.compute(predictions=["a b c d", "x"], references=["a b c d", "y"])
    assert found["sacrebleu"] == pytest.approx(100 * (4 / 5 * 3 / 3 * 2 / 2 * 1 / 1) ** 0.25)


def test_bleu_refuses(monkeypatch):
    with pytest.raises(ValueError, match="BLEU of 0 sentences"):
        load_metric("bleu").compute(predictions=[], references=[])
    monkeypatch.setitem(sys.modules, "MeCab", None)  # as where sacrebleu[ja] is not installed
    with pytest.raises(ValueError, match="ja-mecab needs sacrebleu"):
        score("a", "a", language="ja")


@pytest.mark.parametrize(
    ("language", "tokenizer", "text"),
    [
        ("zh", "zh", "我买了两张票。"),
        ("zho_Hans", "zh", "我买了两张票。"),
        ("th", "char", "ฉันชอบแมว"),
        ("de-AT", "13a", "ich mag alle Katzen"),
        ("chinese", "zh", "我买了两张 T 恤。"),
        ("", "char", "ฉันชอบแมว 3 ตัว"),
    ],
)
def test_bleu_tokenizer_of_the_language(language, tokenizer, text):
    found = score(text, text, language=language)
    assert found["sacrebleu"] == pytest.approx(100) and f"tok:{tokenizer}|" in found["signatures"]["sacrebleu"]
    assert f"tok:{'intl' if tokenizer == '13a' else tokenizer}|" in found["signatures"]["bleu"]
