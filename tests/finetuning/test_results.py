"""results.json and what is made from it, from made-up scores."""

import pandas
import pytest

from crosslingual_zoo.finetuning.page import references_of, score_table, warnings_of, write_results
from crosslingual_zoo.finetuning.recipe import Recipe
from crosslingual_zoo.finetuning.results import load_results, make_results, with_deviation
from crosslingual_zoo.finetuning.tasks.base import scores_of
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.test_compare import made_up

RECIPE = ["model=m", "output_dir=o", "task=xnli", "training.learning_rate=1e-5", "train=[{path: a}]"]
SCORES = {"accuracy": {"en": [80.0, 82.0], "de": [70.0, 74.0], "sw": [60.0, 62.0]}}
PUBLISHED = {"paper": "xlm_align", "table": "Table 18", "row": "XLM-Align base, zero-shot"}


def test_figures_means_deviations_average_and_gap_seed_by_seed():
    results = made_up("xnli", SCORES)
    assert results.languages["de"] == {"scores": [70.0, 74.0], "mean": 72.0, "sd": pytest.approx(8**0.5)}
    assert results.figures["average"]["scores"] == [70.0, pytest.approx(218 / 3)]
    assert results.average["mean"] == pytest.approx((81 + 72 + 61) / 3)
    assert results.of("transfer gap")["scores"] == [15.0, 14.0]
    assert results.transfer_gap == pytest.approx(81 - (72 + 61) / 2)


def task_results(rows, chance, score):
    """Results of a task in English from a seed with this accuracy."""
    record = {"seed": 1, "scores": scores_of({"en": {"accuracy": score}}), "parameters": 1, "steps": 100}
    record |= {"metric": {"name": "accuracy", "module": "accuracy", "version": "1"}, "history": [], "processes": 1}
    record |= {"selected_step": 80, "selection_score": 81.5, "selection_loss": 0.5}
    record |= {"facts": {"fresh_parameters": {"count": 0, "names": []}}}
    facts = {"training_data": [], "training_rows": 1, "evaluation_data": [], "evaluated_split": "test", "differs": []}
    facts |= {"evaluated_rows": {"en": rows}, "selection": {"rule": "mean_dev", "data": None}, "max_length": 128}
    facts |= {"chance": {"en": {"accuracy": chance}}}
    recipe = load_recipe(Recipe, None, [*RECIPE, "evaluation=[{path: b}]"])
    model = {"folder": "runs/m/model", "fingerprint": "sha256:0", "type": "veco"}
    return make_results(recipe, model, facts, [record], ["a warning of the data"])


@pytest.mark.parametrize(
    ("is_higher_better", "chance", "score", "verdict"),
    [
        (True, 40.0, 50.0, None),  # a standard error of 1.55 over 1,000 rows
        (True, 40.0, 43.0, "at chance"),
        (True, 40.0, 37.0, "at chance"),
        (True, 40.0, 36.8, "worse than chance"),
        (True, None, 0.0, "at chance"),
        (True, None, 0.1, None),
        (False, 40.0, 39.9, None),
        (False, 40.0, 40.0, "at chance"),
        (False, 40.0, 60.0, "worse than chance"),
    ],
)
def test_results_say_at_chance_only_of_scores_that_chance_explains(is_higher_better, chance, score, verdict):
    results = task_results(1000, chance or 0.0, score)
    assert results["warnings"] == ["a warning of the data"]
    results["protocol"]["metric"]["greater_is_better"] = is_higher_better
    if chance is None:
        del results["protocol"]["chance"]
    warnings = results.at_chance()
    assert len(warnings) == (verdict is not None)
    assert all(f"is {verdict} in en {score:.1f}" in warning for warning in warnings)


@pytest.mark.parametrize(("mean", "text"), [(-0.04, "0.0"), (-1e-14, "0.0"), (0.04, "0.0"), (-0.06, "-0.1")])
def test_with_deviation_has_no_negative_zero(mean, text):
    assert with_deviation({"mean": mean, "sd": None}) == text
    assert with_deviation({"mean": mean, "sd": 0.25}) == f"{text} ± 0.2"


def test_score_table_has_published_scores_and_their_average_over_the_same_languages():
    chance = dict.fromkeys(SCORES["accuracy"], {"accuracy": 100 / 3})
    results = made_up("xnli", SCORES, chance=chance, differs=["fewer rows"])
    results["published"] = [PUBLISHED]
    references = references_of(results)
    columns, rows = score_table(results, references)
    title = "XLM-Align (ACL 2021), Table 18, XLM-Align base, zero-shot"
    assert columns == ["language", "accuracy", "guessing", title]
    assert [row[-1] for row in rows] == ["86.7", "78.8", "67.1", "", "", ""]
    assert "fewer rows" in warnings_of(results, references)[0]
    every = "en fr es de el bg ru tr ar vi th zh hi sw ur".split()
    whole = made_up("xnli", {"accuracy": dict.fromkeys(every, [70.0] * 2)})
    whole["published"] = [PUBLISHED]
    assert score_table(whole, references_of(whole))[1][-3][-1] == "76.2"


def test_write_results_files_agree(tmp_path, drawn):
    results = made_up("xnli", {"accuracy": {"en": [80.0, 82.0], "de": [70.0, 71.0]}})
    write_results(results, tmp_path)
    assert load_results(tmp_path / "results.json") == results
    assert "| en | 81.0 ± 1.4 |" in (tmp_path / "results.md").read_text(encoding="utf-8")
    table = pandas.read_csv(tmp_path / "results.csv").set_index(["language", "seed"])["value"]
    assert table.to_dict() == {("en", 1): 80.0, ("en", 2): 82.0, ("de", 1): 70.0, ("de", 2): 71.0}
    assert (tmp_path / "scores.png").stat().st_size > 5000
