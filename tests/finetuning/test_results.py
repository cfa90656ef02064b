"""results.json and what is made from it, from made-up scores."""

import csv

import pytest

from finetuning.data.task_tables import table_warnings
from finetuning.page import score_table, warnings_of, write_results
from finetuning.recipe import Recipe
from finetuning.results import Protocol, load_results
from finetuning.tasks.base import scores_of
from finetuning.tasks.registry import task_of
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
    assert found.of("transfer gap")["scores"] == [15.0, 14.0]
    assert found.transfer_gap == pytest.approx(81 - (72 + 61) / 2)
    assert found["protocol"]["selection"]["selected_steps"] == [80, 80]
    expected = {"name": "accuracy", "module": "accuracy", "version": "1.0.0", "unit": "percent"}
    expected["greater_is_better"] = True
    assert found["protocol"]["metric"] == expected and found.is_higher_better


def test_results_chance_warnings_name_the_seed():
    # two standard errors of 1/3 over 5,010 rows: 1.33 points
    found = results(records=[record(1, en=34.6, de=34.7, sw=90.0), record(2, en=90.0, de=90.0, sw=90.0)])
    (warning,) = [line for line in found["warnings"] if "at chance" in line]
    assert warning.startswith("seed 1: accuracy is at chance in en 34.6") and "de" not in warning
    commonest = results(records=[record(1, en=57.1)], rows=4927, chance={"en": {"accuracy": 57.0}})
    assert any("en 57.1 (guessing: 57.0)" in line for line in commonest["warnings"])


def test_table_warnings_of_a_part_of_the_data():
    tables = ["evaluation=[{path: a, split: 'test[:9]', language_column: l}]", "max_evaluation_examples=9"]
    recipe = load_recipe(Recipe, None, [*BASE, *tables])
    split, limit = table_warnings(recipe, recipe.evaluation, "max_evaluation_examples", "max_train_examples")
    assert "split test[:9]" in split and "max_evaluation_examples is 9" in limit


def test_score_table_has_published_scores_and_their_average_over_the_same_languages():
    columns, rows = score_table(results(PUBLISHED))
    title = "XLM-Align (ACL 2021), Table 18, XLM-Align base, zero-shot"
    assert columns == ["language", "accuracy", "seed 1", "seed 2", "guessing", title]
    assert [row[-1] for row in rows] == ["86.7", "78.8", "67.1", "", ""]
    every = "en fr es de el bg ru tr ar vi th zh hi sw ur".split()
    whole = results(PUBLISHED, records=[record(1, **dict.fromkeys(every, 70.0))])
    assert score_table(whole)[1][-2][-1] == "76.2"
    (warning,) = set(warnings_of(results(PUBLISHED, differs=["fewer rows"]))) - set(warnings_of(results(PUBLISHED)))
    assert "fewer rows" in warning


def test_write_results_files_agree(tmp_path, drawn, capsys):
    found = results(records=[record(1, en=80.0), record(2, en=82.0)])
    write_results(found, tmp_path)
    assert load_results(tmp_path / "results.json") == found
    assert "| en | 81.0 ± 1.4 |" in (tmp_path / "results.md").read_text(encoding="utf-8")
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    wanted = {"language": "en", "seed": "2", "metric": "accuracy", "split": "test"}
    assert [float(row["value"]) for row in rows if wanted.items() <= row.items()] == [82.0] and len(rows) == 2
    assert (tmp_path / "scores.png").stat().st_size > 5000
