"""The F1 of chunks, on each way to mark chunks."""

import pytest

from finetuning.tasks.tagging import chunk_scores


def test_chunk_scores_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    found = [["B-PER", "I-PER", "O", "B-PER"], ["O", "B-ORG"]]
    scores = chunk_scores(gold, found)
    assert scores == pytest.approx({"f1": 200 / 3, "precision": 200 / 3, "recall": 200 / 3, "token_accuracy": 500 / 6})


def test_chunk_scores_of_iob1_and_iob2():
    # two adjacent persons, then a place: IOB1 has B- only if a chunk follows one of its type
    iob1 = [["I-PER", "I-PER", "B-PER", "I-LOC", "O", "I-LOC"]]
    iob2 = [["B-PER", "I-PER", "B-PER", "B-LOC", "O", "B-LOC"]]
    wrong = [["B-PER", "I-PER", "I-PER", "B-LOC", "O", "B-LOC"]]  # one person of three words
    assert chunk_scores(iob2, iob1)["f1"] == 100
    for gold in (iob1, iob2):
        scores = chunk_scores(gold, wrong)
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
def test_chunk_scores_of_every_scheme(gold, found):
    scores = chunk_scores([gold.split()], [found.split()])
    assert (scores["precision"], scores["recall"]) == (100, 50) and scores["f1"] == pytest.approx(200 / 3)


def test_chunk_scores_across_schemes():
    scores = chunk_scores([["B-PER", "L-PER", "O"]], [["I-PER", "I-PER", "O"]])
    assert {scores[name] for name in ("f1", "precision", "recall")} == {100}


def test_chunk_scores_of_nothing_found():
    scores = chunk_scores([["B-PER", "O"]], [["O", "O"]])
    assert scores == {"f1": 0, "precision": 0, "recall": 0, "token_accuracy": 50}


def test_chunk_scores_of_parts_of_speech():
    gold, found = [["DET", "NOUN", "NOUN", "VERB"]], [["DET", "NOUN", "VERB", "VERB"]]
    scores = chunk_scores(gold, found)
    assert scores["token_accuracy"] == 75 and scores["f1"] == pytest.approx(100 / 3)
    confused = chunk_scores([["CCONJ", "AUX", "SCONJ"]], [["SCONJ", "AUX", "CCONJ"]])
    assert (confused["f1"], confused["token_accuracy"]) == (pytest.approx(100 / 3), pytest.approx(100 / 3))
    # as in seqeval 0.0.12, X is a chunk, and so is each S label: 4 in gold, 3 found, 1 of them right
    scores = chunk_scores([["SYM", "SYM", "PUNCT", "X"]], [["SYM", "PUNCT", "X", "X"]])
    assert (scores["precision"], scores["recall"]) == (pytest.approx(100 / 3), 25)


def test_chunk_scores_token_accuracy():
    scores = chunk_scores([["B-LOC", "I-LOC", "O"]], [["I-LOC", "I-LOC", "O"]])
    assert (scores["f1"], scores["token_accuracy"]) == (100, pytest.approx(200 / 3))


def test_chunk_scores_refuses_mixed_labels():
    with pytest.raises(ValueError, match="'PER'"):
        chunk_scores([["O"], ["B-PER"]], [["O"], ["PER"]])
