"""Scores by label: of rows, words and chunks against counts by hand."""

import numpy as np
import pytest

from finetuning.recipe import TaggingRecipe
from finetuning.tasks.by_language import by_label
from finetuning.tasks.registry import task_of
from finetuning.tasks.tagging import TaggingTask
from tests.finetuning.tasks import encode, recipe_with

NOTHING = {"precision": 0, "recall": 0, "f1": 0, "support": 0}


def percent(right, predicted, support):
    shares = {"precision": right / max(predicted, 1), "recall": right / max(support, 1)}
    shares["f1"] = 2 * right / (predicted + support)
    return pytest.approx({name: 100 * share for name, share in shares.items()} | {"support": support})


def test_by_label_counts():
    found = by_label(gold=[0, 0, 1, 1, 1, 2], found=[0, 1, 1, 1, 0, 1], names=["low", "high", "odd", "never"])
    assert list(found) == ["low", "high", "odd", "never"] and found["never"] == NOTHING
    assert found["low"] == percent(1, 2, 2) and found["high"] == percent(2, 4, 3) and found["odd"] == percent(0, 0, 1)


def outcome_of(write, tokenizer, sentences, predicted, gold_of_training=None):
    """What tagging makes of predicted labels of words that are one token each or more, and the protocol."""
    rows = [{"tokens": [f"w{n}" for n in range(len(tags))], "tags": tags} for tags in sentences]
    columns = {"text_columns": ["tokens"], "label_column": "tags"}
    train = {"path": write("train", [*rows, *({"tokens": ["w"], "tags": [tag]} for tag in gold_of_training or [])])}
    test = {"path": write("test", rows), "languages": ["fi"]}
    data = task_of(recipe_with(TaggingRecipe, [train | columns], [test | columns])).read()
    data = encode(TaggingRecipe(max_length=60, label_subword="first"), data, tokenizer)
    windows = data.evaluation["fi"]
    assert len(windows) == len(sentences)
    ids = np.full((len(windows), max(windows["length"][:])), -100)
    for row, (labels, tags) in enumerate(zip(windows["labels"][:], predicted, strict=True)):
        ids[row, np.flatnonzero(np.array(labels) != -100)] = [data.label_names.index(tag) for tag in tags]
    return TaggingTask(None).score(data, "evaluation", "fi", ids), data.protocol


def test_by_type_of_chunks(write, sample_tokenizer):
    gold = [["B-ORG", "I-ORG", "O", "B-LOC"], ["B-LOC", "B-LOC", "O", "O"]]
    found = [["B-ORG", "O", "O", "B-LOC"], ["B-LOC", "I-LOC", "O", "B-DAY"]]
    outcome, protocol = outcome_of(write, sample_tokenizer, gold, found, ["B-DAY", "B-PER"])
    assert protocol["label_unit"] == "chunks"
    assert outcome.label_scores() == {
        "DAY": percent(0, 1, 0), "LOC": percent(1, 2, 3), "ORG": percent(0, 1, 1), "PER": NOTHING
    }  # fmt: skip


def test_by_label_of_words(write, sample_tokenizer):
    gold = [["NOUN", "NOUN", "VERB", "_"], ["VERB", "NOUN"]]
    found = [["NOUN", "VERB", "VERB"], ["VERB", "NOUN"]]
    outcome, protocol = outcome_of(write, sample_tokenizer, gold, found, ["INTJ"])
    assert protocol["label_unit"] == "words"
    assert outcome.label_scores() == {"INTJ": NOTHING, "NOUN": percent(2, 2, 3), "VERB": percent(2, 3, 2)}


def test_by_type_of_nothing_found(write, sample_tokenizer):
    outcome, _ = outcome_of(write, sample_tokenizer, [["O", "B-LOC"]], [["O", "O"]], ["I-LOC"])
    assert outcome.label_scores() == {"LOC": {**NOTHING, "support": 1}}
