"""results.json and what is made from it, from made-up scores."""

import csv
import json

import pytest

from finetuning.data.task_tables import table_warnings
from finetuning.page import label_table, lines_of, score_table, warnings_of, write_results
from finetuning.recipe import Recipe, TaggingRecipe
from finetuning.results import Protocol, load_results
from finetuning.tasks.base import scores_of
from finetuning.tasks.registry import task_of
from finetuning.tasks.translation.recipe import TranslationRecipe
from zoo_core.recipes import load_recipe

MODEL = {"folder": "runs/m/model", "fingerprint": "sha256:" + "0" * 64, "type": "veco"}
BASE = [
    "model=runs/m/model", "output_dir=o", "task=xnli", "training.learning_rate=1e-5", "seeds=[1, 2]",
    "train=[{path: nyu-mll/multi_nli}]",
    "evaluation=[{path: google/xtreme, config: XNLI, language_column: language}]",
]  # fmt: skip
ROWS = 5010
PUBLISHED = 'published={paper: xlm_align, table: Table 18, row: "XLM-Align base, zero-shot"}'


def record(seed, **scores):
    return {
        "seed": seed,
        "metric": {"name": "accuracy", "module": "accuracy", "version": "1.0.0"},
        "scores": scores_of({language: {"accuracy": score} for language, score in scores.items()}),
        "fresh_parameters": {"count": 0, "names": []},
        "steps": 100,
        "selected_step": 80,
        "selection_score": 81.5,
        "parameters": 278_000_000,
    }


def label_rows(labels):
    return [{"language": language, "label": name, **of} for language, own in labels.items() for name, of in own.items()]


def results(*overrides, records=None, rows=ROWS, recipe_class=Recipe, **facts):
    recipe = load_recipe(recipe_class, None, [*BASE, *overrides])
    records = records or [record(1, en=80.0, de=70.0, sw=60.0), record(2, en=82.0, de=74.0, sw=62.0)]
    languages = [row["language"] for row in records[0]["scores"]]
    table = {"path": "google/xtreme", "config": "XNLI", "split": "test", "languages": languages, "rows": 3 * rows}
    table |= {"fingerprint": "sha256:1"}
    protocol = {
        "training_data": [{**table, "path": "nyu-mll/multi_nli", "config": None, "languages": ["en"]}],
        "training_rows": 392_702,
        "labels": ["entailment", "neutral", "contradiction"],
        "evaluation_data": [table],
        "evaluated_split": "test",
        "evaluated_rows": dict.fromkeys(languages, rows),
        "chance": dict.fromkeys(languages, {"accuracy": 100 / 3}),
        "differs": [],
        "selection": {"rule": "mean_dev", "data": None, "rows": {}},
        "max_length": 128,
        "cut_texts": {"train": {"all": 3}, "dev": {}, "evaluation": dict.fromkeys(languages, 1)},
        "fine_tuned_before": [],
    }
    return task_of(recipe).results(MODEL, Protocol(protocol | facts), records, ["a warning of the data"])


def test_results_means_deviations_average_and_gap():
    found = results()
    assert found.languages["de"] == {"scores": [70.0, 74.0], "mean": 72.0, "sd": pytest.approx(8**0.5)}
    assert found.average["scores"] == [70.0, pytest.approx(218 / 3)]
    assert found.average["mean"] == pytest.approx((81 + 72 + 61) / 3)
    assert found.transfer["source"]["mean"] == 81.0 and found.transfer["gap"]["scores"] == [15.0, 14.0]
    assert found.transfer_gap == pytest.approx(81 - (72 + 61) / 2)
    assert found["protocol"]["selection"]["selected_steps"] == [80, 80]
    expected = {"name": "accuracy", "module": "accuracy", "version": "1.0.0", "unit": "percent"}
    expected["greater_is_better"] = True
    assert found["protocol"]["metric"] == expected and found.is_higher_better


def test_results_of_one_seed_have_no_deviation():
    found = results("seeds=[1]", records=[record(1, en=80.0, de=70.0)])
    assert found.average["sd"] is None
    columns, rows = score_table(found)
    assert columns == ["language", "accuracy", "guessing"] and rows[1] == ["de", "70.0", "33.3"]


def test_results_chance_warnings_name_the_seed():
    # two standard errors of 1/3 over 5,010 rows: 1.33 points
    found = results(records=[record(1, en=34.6, de=34.7, sw=90.0), record(2, en=90.0, de=90.0, sw=90.0)])
    (warning,) = [line for line in found["warnings"] if "at chance" in line]
    assert warning.startswith("seed 1: accuracy is at chance in en 34.6") and "de" not in warning
    commonest = results(records=[record(1, en=57.1)], rows=4927, chance={"en": {"accuracy": 57.0}})
    assert any("en 57.1 (guessing: 57.0)" in line for line in commonest["warnings"])


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (["evaluation=[{path: a, split: 'test[:9]', language_column: l}]"], "split test[:9]"),
        (["max_evaluation_examples=9"], "max_evaluation_examples is 9"),
    ],
)
def test_table_warnings(overrides, warning):
    recipe = load_recipe(Recipe, None, [*BASE, *overrides])
    (found,) = table_warnings(recipe, recipe.evaluation, "max_evaluation_examples")
    assert warning in found


def test_score_table_published_scores_are_looked_up_and_their_average_is_of_the_same_languages():
    found = results(PUBLISHED)
    assert found["published"] == [dict(paper="xlm_align", table="Table 18", row="XLM-Align base, zero-shot")]
    columns, rows = score_table(found)
    title = "XLM-Align (ACL 2021), Table 18, XLM-Align base, zero-shot"
    assert columns == ["language", "accuracy", "seed 1", "seed 2", "guessing", title]
    assert [row[-1] for row in rows] == ["86.7", "78.8", "67.1", "", ""]
    every = "en fr es de el bg ru tr ar vi th zh hi sw ur".split()
    whole = results(PUBLISHED, records=[record(1, **dict.fromkeys(every, 70.0))])
    assert score_table(whole)[1][-2][-1] == "76.2"


def test_warnings_of_published_rows_that_were_measured_in_another_way():
    (warning,) = set(warnings_of(results(PUBLISHED, differs=["fewer rows"]))) - set(warnings_of(results(PUBLISHED)))
    assert "fewer rows" in warning
    assert warnings_of(results(differs=["fewer rows"])) == results()["warnings"]


def test_results_further_scores_are_rows_and_columns():
    scores = {"en": {"f1": 80.0, "token_accuracy": 95.0}, "de": {"f1": 0.0, "token_accuracy": 85.0}}
    of_tagging = {"metric": {"name": "f1", "module": "squad", "version": "1"}, "scores": scores_of(scores)}
    records = [record(1, en=80.0, de=0.0) | of_tagging]
    facts = dict(chance={}, facts=["a fact"], split_texts={"train": {"all": 2}, "evaluation": {"en": 1}})
    found = results("seeds=[1]", "kind=tagging", records=records, recipe_class=TaggingRecipe, **facts)
    assert score_table(found)[0] == ["language", "f1", "token_accuracy"]
    assert [(row["metric"], row["language"], row["value"]) for row in found["scores"]] == [
        ("f1", "en", 80.0),
        ("token_accuracy", "en", 95.0),
        ("f1", "de", 0.0),
        ("token_accuracy", "de", 85.0),
    ]
    assert found["warnings"] == ["a warning of the data", "seed 1: f1 is at chance in de 0.0 (guessing: 0.0)"]
    lines = lines_of(found)
    assert "a fact" in lines and any("texts cut, 3 split)" in line for line in lines)


def test_translation_results_keep_the_reported_metrics_and_the_models_decoder():
    base = ["model=m", "output_dir=o", "task=wmt", "source_language=en", "target_language=de", "decoder_layers=6"]
    base += ["training.learning_rate=1e-4", "seeds=[1, 2]", "test=[{path: a/b, source_column: en, target_column: de}]"]
    table = {"path": "a/b", "config": "de-en", "split": "test", "languages": ["en-de"]}
    protocol = Protocol(
        training_data=[table], training_rows=4_500_000, evaluation_data=[table], evaluated_split="test",
        evaluated_rows={"en-de": 3003}, empty_pairs={"train": {"all": 2}, "dev": {}}, too_long="drop",
        long_pairs={"train": {"all": 7}, "dev": {}, "evaluation": {"en-de": 1}}, fine_tuned_before=[],
        selection=Protocol(rule="average", data=None, rows={}), max_source_length=256, max_length=256,
    )  # fmt: skip
    records = [
        record(seed)
        | {"metric": {"name": "sacrebleu", "version": "1"}, "decoder": {"decoder_layers": 2}, "curve": []}
        | {"scores": scores_of({"en-de": dict(sacrebleu=score, chrf=60.0, length_ratio=1.0)})}
        | {"signatures": {"en-de": {"sacrebleu": "s"}}}
        for seed, score in ((1, 30.0), (2, 31.0))
    ]
    published = "published={paper: veco, table: Table 3, row: VECO}"
    recipe = load_recipe(TranslationRecipe, None, [*base, published])
    found = task_of(recipe).results(MODEL, protocol, records, [])
    assert found["hyperparameters"]["decoder_layers"] == 2 and found.metrics == ["sacrebleu", "chrf"]
    assert found["protocol"]["metric"]["signatures"]["en-de"] == {"sacrebleu": "s"}


def test_protocol_keys_are_attributes():
    protocol = Protocol(selection={"rule": "last"})
    protocol.selection.scores = [1.0]
    protocol.layer = 3
    assert json.loads(json.dumps(protocol)) == {"selection": {"rule": "last", "scores": [1.0]}, "layer": 3}
    assert protocol.pooling is None


def test_write_results_files_agree(tmp_path, drawn, capsys):
    scores = dict(precision=30.0, recall=61.0, f1=60.0, support=30)
    labels = {"en": {"a": scores, "b": {**dict.fromkeys(scores, 0.0)}}}
    labels = label_rows(labels)
    records = [record(1, en=80.0) | {"label_scores": labels}, record(2, en=82.0) | {"label_scores": labels}]
    found = results(records=records, label_unit="rows")
    write_results(found, tmp_path)
    assert load_results(tmp_path / "results.json") == found
    assert "| en | 81.0 ± 1.4 |" in (tmp_path / "results.md").read_text(encoding="utf-8")
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 + 2 * 2 * 4
    wanted = {"language": "en", "label": "a", "seed": "2", "metric": "label_f1", "split": "test"}
    assert [float(row["value"]) for row in rows if wanted.items() <= row.items()] == [60.0]
    assert (tmp_path / "scores.png").stat().st_size > 5000


def test_label_table_has_means_over_seeds_and_over_languages_that_have_the_label():
    def of_labels(*scores):
        values = [dict(precision=f1 / 2, recall=f1 + 1, f1=f1, support=support) for f1, support in scores]
        return dict(zip("ab", values, strict=False))

    labels = [
        {"en": of_labels((80.0, 30), (60.0, 10)), "sw": of_labels((40.0, 5), (0.0, 0))},
        {"en": of_labels((90.0, 30), (50.0, 10)), "sw": of_labels((20.0, 5), (0.0, 0))},
    ]
    records = [record(n, en=80.0, sw=60.0) | {"label_scores": label_rows(own)} for n, own in enumerate(labels, 1)]
    columns, rows = label_table(results(records=records, label_unit="rows"))
    assert columns == ["label", "precision", "recall", "f1", "f1, en", "f1, sw", "rows"]
    assert rows[0] == ["a", "28.8", "58.5", "57.5", "85.0", "30.0", "35"]
    assert rows[1] == ["b", "27.5", "56.0", "55.0", "55.0", "", "10"]
