"""The module of finetuning/metrics/aer: values worked out by hand, its edges, and what it refuses."""

import random

import pytest

from finetuning.metrics import load_metric

SURE, POSSIBLE = [[0, 0], [1, 2]], [[0, 0], [1, 2], [2, 1]]
GOLD = {"sure": SURE, "possible": POSSIBLE}


def score(predictions, references):
    return load_metric("aer").compute(predictions=predictions, references=references)


def test_aer_of_the_gold_itself():
    assert score([SURE], [GOLD]) == pytest.approx({"precision": 100, "recall": 100, "f1": 100, "aer": 0})
    # further possible links change nothing if all sure ones are found
    assert score([POSSIBLE], [GOLD]) == pytest.approx({"precision": 100, "recall": 100, "f1": 100, "aer": 0})


def test_aer_without_links():
    assert score([[]], [GOLD]) == {"precision": 0, "recall": 0, "f1": 0, "aer": 100}
    assert score([[], []], [GOLD, {"sure": [], "possible": [[0, 1]]}])["aer"] == 100
    assert score([[]], [{"sure": [], "possible": [[0, 1]]}])["aer"] == 100  # nor is anything sure


def test_aer_of_possible_links_alone():
    only_possible = {"sure": [], "possible": [[0, 0], [1, 1]]}
    assert score([[[0, 0]]], [only_possible]) == {"precision": 100, "recall": 0, "f1": 0, "aer": 0}
    # |A| = 2, |S| = 0, |A & P| = 1
    assert score([[[0, 0], [5, 5]]], [only_possible])["aer"] == pytest.approx(50)


def test_aer_counts_sure_links_as_possible():
    links = [[0, 0], [2, 1], [9, 9]]
    assert score([links], [{"sure": SURE, "possible": [[2, 1]]}]) == score([links], [GOLD])


def test_aer_counts_a_link_once():
    assert score([[[0, 0], [0, 0], [3, 3]]], [GOLD]) == score([[[3, 3], [0, 0]]], [GOLD])
    doubled = {"sure": SURE * 2, "possible": POSSIBLE * 3}
    assert score([[[0, 0], [3, 3]]], [doubled]) == score([[[0, 0], [3, 3]]], [GOLD])


def test_aer_is_the_formula_of_the_paper():
    random.seed(3)

    def draw(share):
        return {(i, j) for i in range(6) for j in range(7) if random.random() < share}

    sentences = []
    for _ in range(50):
        sure = draw(0.1)
        sentences.append((draw(0.2), sure, sure | draw(0.1)))
    counted = {(n, *link) for n, (links, _, _) in enumerate(sentences) for link in links}
    sure = {(n, *link) for n, (_, links, _) in enumerate(sentences) for link in links}
    possible = {(n, *link) for n, (_, _, links) in enumerate(sentences) for link in links}
    found = score(
        [[list(link) for link in links] for links, _, _ in sentences],
        [{"sure": [list(x) for x in s], "possible": [list(x) for x in p]} for _, s, p in sentences],
    )
    precision, recall = len(counted & possible) / len(counted), len(counted & sure) / len(sure)
    aer = 1 - (len(counted & sure) + len(counted & possible)) / (len(counted) + len(sure))
    f1 = 2 * precision * recall / (precision + recall)
    expected = {"precision": precision, "recall": recall, "f1": f1, "aer": aer}
    assert found == pytest.approx({name: 100 * value for name, value in expected.items()})


def test_aer_refuses():
    with pytest.raises(ValueError, match=r"\[1, 2, 3\] is no link"):
        score([[], [[1, 2, 3]]], [GOLD, GOLD])
    with pytest.raises(ValueError, match=r"\[0, -1\] is no link"):
        score([[]], [{"sure": [[0, -1]], "possible": []}])
    with pytest.raises(ValueError, match="without a gold link"):
        score([[[0, 0]]], [{"sure": [], "possible": []}])
    with pytest.raises(ValueError, match="without a gold link"):
        score([], [])
    with pytest.raises(ValueError, match="number of predictions"):
        score([[]], [GOLD, GOLD])
