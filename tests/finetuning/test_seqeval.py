"""The chunk F1 module: by its path without the Hub, on each way to mark chunks, and what it refuses."""

import shutil
from importlib.metadata import version
from pathlib import Path

import evaluate
import pytest

SEQEVAL = Path(__file__).parents[2] / "finetuning" / "metrics" / "seqeval" / "seqeval.py"


@pytest.fixture(scope="module")
def metric(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metric")
    return evaluate.load(str(shutil.copy(SEQEVAL, folder / "seqeval.py")), keep_in_memory=True)


def test_it_is_loaded_by_its_path_and_says_seqevals_version(metric):
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    found = [["B-PER", "I-PER", "O", "B-PER"], ["O", "B-ORG"]]
    scores = metric.compute(predictions=found, references=gold)
    assert scores == pytest.approx({"f1": 200 / 3, "precision": 200 / 3, "recall": 200 / 3, "token_accuracy": 500 / 6})
    assert metric.version == f"1.2.0 (seqeval {version('seqeval')})"


def test_iob1_and_iob2_of_the_same_chunks_score_alike(metric):
    # two adjacent persons, then a place: IOB1 has B- only if a chunk follows one of its type
    iob1 = [["I-PER", "I-PER", "B-PER", "I-LOC", "O", "I-LOC"]]
    iob2 = [["B-PER", "I-PER", "B-PER", "B-LOC", "O", "B-LOC"]]
    wrong = [["B-PER", "I-PER", "I-PER", "B-LOC", "O", "B-LOC"]]  # one person of three words
    assert metric.compute(predictions=iob1, references=iob2)["f1"] == 100
    for gold in (iob1, iob2):
        scores = metric.compute(predictions=wrong, references=gold)
        assert (scores["precision"], scores["recall"]) == (pytest.approx(200 / 3), 50)  # 2 of 3 found, 2 of 4 there


@pytest.mark.parametrize(
    ("gold", "found"),
    [
        ("B-LOC B-LOC", "U-LOC O"),
        ("LOC-B LOC-B", "LOC-B O"),
        ("B-LOC L-LOC O U-PER", "B-LOC L-LOC O O"),
        ("B L O U", "B L O O"),
    ],
)
def test_every_scheme_has_chunks(metric, gold, found):
    scores = metric.compute(predictions=[found.split()], references=[gold.split()])
    assert (scores["precision"], scores["recall"]) == (100, 50) and scores["f1"] == pytest.approx(200 / 3)


def test_words_of_one_scheme_are_right_in_another(metric):
    scores = metric.compute(predictions=[["I-PER", "I-PER", "O"]], references=[["B-PER", "L-PER", "O"]])
    assert {scores[name] for name in ("f1", "precision", "recall")} == {100}


def test_nothing_found_is_zero_without_a_warning(metric):
    scores = metric.compute(predictions=[["O", "O"]], references=[["B-PER", "O"]])
    assert scores == {"f1": 0, "precision": 0, "recall": 0, "token_accuracy": 50}


def test_parts_of_speech_are_chunks_of_equal_neighbors(metric):
    gold, found = [["DET", "NOUN", "NOUN", "VERB"]], [["DET", "NOUN", "VERB", "VERB"]]
    scores = metric.compute(predictions=found, references=gold)
    assert scores["token_accuracy"] == 75 and scores["f1"] == pytest.approx(100 / 3)
    confused = metric.compute(predictions=[["SCONJ", "AUX", "CCONJ"]], references=[["CCONJ", "AUX", "SCONJ"]])
    assert (confused["f1"], confused["token_accuracy"]) == (pytest.approx(100 / 3), pytest.approx(100 / 3))
    # as in seqeval 0.0.12, X is a chunk, and so is each S label: 4 in gold, 3 found, 1 of them right
    scores = metric.compute(predictions=[["SYM", "PUNCT", "X", "X"]], references=[["SYM", "SYM", "PUNCT", "X"]])
    assert (scores["precision"], scores["recall"]) == (pytest.approx(100 / 3), 25)


def test_token_accuracy_is_of_the_labels_as_written(metric):
    scores = metric.compute(predictions=[["I-LOC", "I-LOC", "O"]], references=[["B-LOC", "I-LOC", "O"]])
    assert (scores["f1"], scores["token_accuracy"]) == (100, pytest.approx(200 / 3))


@pytest.mark.parametrize(
    ("found", "gold", "message"),
    [
        ([["O"]], [["O", "O"]], "Sentence 0 .* has 1 predictions and 2 labels.*none twice"),
        ([[]], [[]], "F1 of 0 words.*at least one sentence"),
        ([["O"], ["PER"]], [["O"], ["B-PER"]], "predictions, sentence 1 .*'PER'"),
    ],
)
def test_what_cannot_be_scored_is_refused(metric, found, gold, message):
    with pytest.raises(ValueError, match=message):
        metric.compute(predictions=found, references=gold)
