"""Scores by label: of rows, words and chunks against counts by hand; in results.json, results.csv and on the page."""

import csv

import numpy as np
import pytest

from finetuning.recipe import Recipe
from finetuning.results.protocol import LanguageProtocol
from finetuning.results.table import load_results
from finetuning.tasks.by_language import by_label
from finetuning.tasks.registry import report_of, task_of
from finetuning.tasks.tagging.recipe import TaggingRecipe
from finetuning.tasks.tagging.task import TaggingTask
from tests.finetuning.tasks import encode
from tests.finetuning.test_results import BASE, MODEL, record
from zoo_core.recipes import load_recipe

NOTHING = {"precision": 0, "recall": 0, "f1": 0, "support": 0}


def percent(right, predicted, support):
    return pytest.approx(
        {
            "precision": 100 * right / max(predicted, 1),
            "recall": 100 * right / max(support, 1),
            "f1": 200 * right / (predicted + support),
            "support": support,
        }
    )


def test_rows_count_for_the_label_that_they_have_and_for_the_one_that_is_predicted():
    found = by_label(gold=[0, 0, 1, 1, 1, 2], found=[0, 1, 1, 1, 0, 1], names=["low", "high", "odd", "never"])
    assert list(found) == ["low", "high", "odd", "never"] and found["never"] == NOTHING
    assert found["low"] == percent(1, 2, 2) and found["high"] == percent(2, 4, 3) and found["odd"] == percent(0, 0, 1)


def outcome_of(write, tokenizer, sentences, predicted, gold_of_training=None):
    """What tagging makes of predicted labels of words that are one token each or more, and the protocol."""
    rows = [{"tokens": [f"w{n}" for n in range(len(tags))], "tags": tags} for tags in sentences]
    columns = "text_columns: [tokens], label_column: tags"
    train = [*rows, *({"tokens": ["w"], "tags": [tag]} for tag in gold_of_training or [])]
    tables = [
        f"train=[{{path: {write('train', train)}, {columns}}}]",
        f"evaluation=[{{path: {write('test', rows)}, languages: [fi], {columns}}}]",
    ]
    base = ["kind=tagging", "model=m", "output_dir=o", "task=t", "selection=last", "training.learning_rate=1"]
    data = task_of(load_recipe(TaggingRecipe, None, [*base, *tables])).read()
    data = encode(TaggingRecipe(max_length=60, label_subword="first"), data, tokenizer)
    windows = data.evaluation["fi"]
    assert len(windows) == len(sentences)
    ids = np.full((len(windows), max(windows["length"][:])), -100)
    for row, (labels, tags) in enumerate(zip(windows["labels"][:], predicted, strict=True)):
        ids[row, np.flatnonzero(np.array(labels) != -100)] = [data.label_names.index(tag) for tag in tags]
    return TaggingTask(None).score(data, "evaluation", "fi", ids), data.protocol


def test_chunks_are_scored_by_their_type(write, sample_tokenizer):
    gold = [["B-ORG", "I-ORG", "O", "B-LOC"], ["B-LOC", "B-LOC", "O", "O"]]
    found = [["B-ORG", "O", "O", "B-LOC"], ["B-LOC", "I-LOC", "O", "B-DAY"]]
    outcome, protocol = outcome_of(write, sample_tokenizer, gold, found, ["B-DAY", "B-PER"])
    assert protocol.label_unit == "chunks"
    assert outcome.label_scores() == {
        "DAY": percent(0, 1, 0), "LOC": percent(1, 2, 3), "ORG": percent(0, 1, 1), "PER": NOTHING
    }  # fmt: skip


def test_labels_that_mark_no_chunks_are_scored_word_by_word(write, sample_tokenizer):
    gold = [["NOUN", "NOUN", "VERB", "_"], ["VERB", "NOUN"]]
    found = [["NOUN", "VERB", "VERB"], ["VERB", "NOUN"]]
    outcome, protocol = outcome_of(write, sample_tokenizer, gold, found, ["INTJ"])
    assert protocol.label_unit == "words"
    assert outcome.label_scores() == {"INTJ": NOTHING, "NOUN": percent(2, 2, 3), "VERB": percent(2, 3, 2)}


def test_where_nothing_is_found_every_score_is_zero(write, sample_tokenizer):
    outcome, _ = outcome_of(write, sample_tokenizer, [["O", "B-LOC"]], [["O", "O"]], ["I-LOC"])
    assert outcome.label_scores() == {"LOC": {**NOTHING, "support": 1}}


def of_labels(*scores):
    """Scores of labels a, b, ... given as (f1, support)."""
    values = [{"precision": f1 / 2, "recall": f1 + 1, "f1": f1, "support": support} for f1, support in scores]
    return dict(zip("ab|", values, strict=False))


@pytest.fixture
def results():
    """Of two seeds; label b is not in the rows of sw."""
    labels = [
        {"en": of_labels((80.0, 30), (60.0, 10)), "sw": of_labels((40.0, 5), (0.0, 0))},
        {"en": of_labels((90.0, 30), (50.0, 10)), "sw": of_labels((20.0, 5), (0.0, 0))},
    ]
    scores = [record(1, en=80.0, sw=60.0), record(2, en=82.0, sw=62.0)]
    records = [{**one, "label_scores": own} for one, own in zip(scores, labels, strict=True)]
    protocol = {"label_unit": "rows", "evaluated_split": "test", "labels": ["a", "b"], "fine_tuned_before": []}
    protocol |= {"training_data": [], "training_rows": 1, "evaluation_data": [], "max_length": 9}
    protocol |= {"selection": {"rule": "last", "data": None}}
    return task_of(load_recipe(Recipe, None, BASE)).results(MODEL, LanguageProtocol.of(protocol), records, [])


def test_they_are_a_table_beside_the_scores(results, tmp_path):
    assert len(results["scores"]) == 4 and len(results["label_scores"]) == 8
    assert {tuple(row) for row in results["label_scores"]} == {
        ("language", "label", "seed", "precision", "recall", "f1", "support")
    }
    report_of(results).write(tmp_path)
    assert load_results(tmp_path / "results.json") == results
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    own = [row for row in rows if row["label"]]
    assert len(own) == 8 * 4 and len(rows) == len(own) + 4
    assert {row["metric"] for row in own} == {f"label_{name}" for name in ("precision", "recall", "f1", "support")}
    wanted = {"language": "sw", "label": "a", "seed": "2", "metric": "label_f1"}
    (found,) = (row for row in own if wanted.items() <= row.items())
    assert float(found["value"]) == 20 and found["split"] == "test"


def test_the_page_shows_means_over_seeds_and_over_languages_that_have_the_label(results):
    (columns, rows), (languages, by_language) = report_of(results).label_tables().values()
    assert columns == ["label", "precision", "recall", "f1", "rows"]
    assert rows == [["a", "28.8", "58.5", "57.5", "35"], ["b", "27.5", "56.0", "55.0", "10"]]
    assert languages == ["language", "a", "b"] and by_language == [["en", "85.0", "55.0"], ["sw", "30.0", ""]]
    assert results.metrics == ["accuracy"] and "rows" not in report_of(results).table()[0]
