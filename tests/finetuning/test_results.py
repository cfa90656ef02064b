"""results.json and what is made from it, from made-up scores."""

import shutil
from pathlib import Path

import evaluate
import pytest

from finetuning.recipe import Recipe
from finetuning.results.protocol import LanguageProtocol
from finetuning.results.table import load_results
from finetuning.tasks.registry import report_of, task_of
from finetuning.tasks.tagging.recipe import TaggingRecipe
from zoo_core.provenance import write_json
from zoo_core.recipes import load_recipe

ACCURACY = Path(__file__).parents[2] / "finetuning" / "metrics" / "accuracy" / "accuracy.py"
MODEL = {"folder": "runs/m/model", "fingerprint": "sha256:" + "0" * 64, "type": "veco"}
BASE = [
    "model=runs/m/model", "output_dir=o", "task=xnli", "training.learning_rate=1e-5", "seeds=[1, 2]",
    "train=[{path: nyu-mll/multi_nli}]",
    "evaluation=[{path: google/xtreme, config: XNLI, language_column: language}]",
]  # fmt: skip
ROWS = 5010


def record(seed, **scores):
    return {
        "seed": seed,
        "metric": {"name": "accuracy", "module": "accuracy", "version": "1.0.0"},
        "scores": scores,
        "steps": 100,
        "selected_step": 80,
        "selection_score": 81.5,
        "parameters": 278_000_000,
    }


def results(*overrides, records=None, rows=ROWS, fine_tuned_before=()):
    recipe = load_recipe(Recipe, None, [*BASE, *overrides])
    records = records or [record(1, en=80.0, de=70.0, sw=60.0), record(2, en=82.0, de=74.0, sw=62.0)]
    languages = list(records[0]["scores"])
    table = {"path": "google/xtreme", "config": "XNLI", "split": "test", "languages": languages, "rows": 3 * rows}
    protocol = {
        "training_data": [{**table, "path": "nyu-mll/multi_nli", "config": None, "split": "train"}],
        "training_rows": 392_702,
        "labels": ["entailment", "neutral", "contradiction"],
        "evaluation_data": [table],
        "evaluated_split": "test",
        "evaluated_rows": dict.fromkeys(languages, rows),
        "majority_share": dict.fromkeys(languages, 1 / 3),
        "selection": {"rule": "mean_dev", "data": None, "rows": {}},
        "max_length": 128,
        "cut_texts": {"train": {"all": 3}, "dev": {}, "evaluation": dict.fromkeys(languages, 1)},
        "fine_tuned_before": list(fine_tuned_before),
    }
    return task_of(recipe).results(MODEL, LanguageProtocol.of(protocol), records, ["a warning of the data"])


def test_means_deviations_average_and_gap():
    found = results()
    assert found.languages["de"] == {"scores": [70.0, 74.0], "mean": 72.0, "sd": pytest.approx(8**0.5)}
    assert found.average["scores"] == [70.0, pytest.approx(218 / 3)]
    assert found.average["mean"] == pytest.approx((81 + 72 + 61) / 3)
    assert found.transfer["source"]["mean"] == 81.0
    assert found.transfer_gap == pytest.approx(81 - (72 + 61) / 2)
    assert found["warnings"] == ["a warning of the data"]
    assert found["protocol"]["selection"]["selected_steps"] == [80, 80]
    expected = {"name": "accuracy", "module": "accuracy", "version": "1.0.0", "unit": "percent"}
    assert found["protocol"]["metric"] == expected


def test_one_seed_has_no_deviation():
    found = results("seeds=[1]", records=[record(1, en=80.0, de=70.0)])
    assert found.average["sd"] is None
    assert report_of(found).table()[0] == ["language", "accuracy"]
    assert "| de | 70.0 |" in report_of(found).to_markdown(None)


def test_seeds_at_chance_are_named():
    # two standard errors of 1/3 over 5,010 rows: 1.33 points
    found = results(records=[record(1, en=34.6, de=34.7, sw=90.0), record(2, en=90.0, de=90.0, sw=90.0)])
    (warning,) = [line for line in found["warnings"] if "at chance" in line]
    assert warning.startswith("seed 1: accuracy is at chance in en 34.6") and "de" not in warning
    few = results(records=[record(1, en=50.0, de=55.0)], rows=30)
    assert any("en 50.0" in line and "de" not in line.partition("chance in")[2] for line in few["warnings"])


def test_always_giving_the_commonest_label_is_chance_too():
    recipe = load_recipe(Recipe, None, BASE)
    found = results()
    protocol = {**found["protocol"], "majority_share": {"en": 0.57}, "evaluated_rows": {"en": 4927}}
    again = task_of(recipe).results(MODEL, LanguageProtocol.of(protocol), [record(1, en=57.1)], [])
    assert any("en 57.1 (guessing: 57.0)" in line for line in again["warnings"])


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (["evaluation=[{path: a, split: validation, language_column: l}]"], "evaluated on a, split validation"),
        (["evaluation=[{path: a, split: 'test[:9]', language_column: l}]"], "split test[:9]"),
        (
            ["evaluation=[{path: a, language_column: l, note: labels carried over by row}]"],
            "labels carried over by row",
        ),
        (["max_evaluation_examples=9"], "at most 9 rows per language were evaluated"),
        (["max_train_examples=9"], "at most 9 training rows"),
        (["source_language=fr"], "source language fr was not evaluated"),
        (["published={paper: P, table: T, row: R, average: 70, languages: {en: 80, ur: 60}}"], "not evaluated: ur"),
        (["published={paper: P, table: T, row: R, average: 70, average_over: [en, ur]}"], "not evaluated: ur"),
        (["published={paper: P, table: T, row: R, note: sw is torn}"], "published, P, T: sw is torn"),
    ],
)
def test_what_a_reader_must_know_is_a_warning(overrides, warning):
    assert any(warning in line for line in results(*overrides)["warnings"])


def test_published_figures_stand_beside_ours_and_their_average_only_over_the_same_languages():
    published = (
        "published={paper: VECO, table: Table 9, row: large, average: 70.5, languages: {sw: 58, en: 83, de: 70.5}}"
    )
    found = results(published)
    assert found["published"][0]["figures"] == {"accuracy": {"en": 83.0, "de": 70.5, "sw": 58.0}}
    assert found["published"][0]["average"] == {"accuracy": 70.5}
    columns, rows = report_of(found).table()
    assert columns == ["language", "accuracy", "seed 1", "seed 2", "VECO, Table 9, large"]
    assert rows[1] == ["de", "72.0 ± 2.8", "70.0", "74.0", "70.5"]
    assert all(len(row) == len(columns) for row in rows)
    fewer = results(published, records=[record(1, en=80.0, de=70.0)])
    assert fewer["published"][0]["average"] == {}
    assert fewer["published"][0]["figures"] == {"accuracy": {"en": 83.0, "de": 70.5}}


def test_further_scores_have_columns_rows_and_published_figures():
    scores = {"en": {"f1": 80.0, "token_accuracy": 95.0}, "de": {"f1": 0.0, "token_accuracy": 85.0}}
    records = [
        record(1, en=80.0, de=0.0) | {"metric": {"name": "f1", "module": "squad", "version": "1"}, "all_scores": scores}
    ]
    published = (
        "published={paper: P, table: T, row: R, average: 70, languages: {en: 81, de: 59}, "
        "further: {token_accuracy: {en: 96}}}"
    )
    recipe = load_recipe(TaggingRecipe, None, [*BASE, "seeds=[1]", "kind=tagging", published])
    protocol = {name: value for name, value in results()["protocol"].items() if name != "majority_share"}
    protocol |= {"split_texts": {"train": {"all": 2}, "dev": {}, "evaluation": {"en": 1}}, "facts": ["a fact"]}
    found = task_of(recipe).results(MODEL, LanguageProtocol.of(protocol), records, [])
    columns, rows = report_of(found).table()
    assert columns == ["language", "f1", "token_accuracy", "P, T, R", "token_accuracy: P, T, R"]
    assert rows[:3] == [
        ["en", "80.0", "95.0", "81.0", "96.0"],
        ["de", "0.0", "85.0", "59.0", ""],
        ["**average**", "40.0", "90.0", "70.0", ""],
    ]
    assert [(row["metric"], row["language"], row["value"]) for row in found["scores"]] == [
        ("f1", "en", 80.0),
        ("token_accuracy", "en", 95.0),
        ("f1", "de", 0.0),
        ("token_accuracy", "de", 85.0),
    ]
    assert found["warnings"] == ["seed 1: f1 is 0 in de"]
    page = report_of(found).to_markdown(None)
    assert "texts cut, 3 split)" in page and "- a fact" in page


def test_an_unknown_format_is_refused(tmp_path):
    write_json(tmp_path / "results.json", {**results(), "format": 3})
    with pytest.raises(ValueError, match="format 3"):
        load_results(tmp_path / "results.json")


def test_every_figure_of_the_page_is_in_the_json(tmp_path, drawn):
    found = results()
    report_of(found).write(tmp_path)
    assert load_results(tmp_path / "results.json") == found
    figures = [entry[key] for entry in [*found.languages.values(), found.average] for key in ("mean", "sd")]
    figures += [score for entry in [*found.languages.values(), found.average] for score in entry["scores"]]
    known = {f"{value:.1f}" for value in [*figures, found.transfer_gap]}
    table = [
        line for line in (tmp_path / "results.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ]
    shown = {word for line in table[2:] for word in line.replace("|", " ").split() if word[0].isdigit()}
    assert shown and shown <= known
    assert len(found.frame_with_labels()) == len((tmp_path / "results.csv").read_text().splitlines()) - 1 == 6
    assert (tmp_path / "scores.png").stat().st_size > 5000


def test_accuracy_is_loaded_by_its_path_without_the_hub(tmp_path):
    metric = evaluate.load(str(shutil.copy(ACCURACY, tmp_path / "accuracy.py")), keep_in_memory=True)
    assert metric.compute(predictions=[0, 1, 2, 2], references=[0, 1, 1, 2]) == {"accuracy": 75.0}
    assert metric.version == "1.0.0"
    with pytest.raises(ValueError, match="Accuracy of 0 examples"):
        metric.compute(predictions=[], references=[])
