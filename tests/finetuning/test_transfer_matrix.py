"""The source-by-target matrix: what each run is trained and evaluated on, the figures, and what is refused."""

import csv
import json
import shutil

import pytest

from finetuning.experiments.runs import evaluate_in, train_in
from finetuning.experiments.transfer_matrix import main, minus_first
from finetuning.recipe import Recipe
from finetuning.results.table import Results, read_results
from zoo_core.recipes import load_recipe, save_recipe
from zoo_core.run_folders import run_lock

FAST = ("training.max_steps=1", "training.batch_size=8", "max_evaluation_examples=9", "seeds=[1]", "selection=last")


@pytest.fixture
def recipe(topics, sample_corpus_dir, tmp_path):
    """Arguments: a recipe file of one step, whose training table names the language, and the output."""
    path = tmp_path / "recipe.yaml"
    save_recipe(load_recipe(Recipe, None, [*topics, *FAST, "train.0.config={language}"]), path)
    return ["--config", str(path), "--output", str(tmp_path / "matrix")]


@pytest.fixture
def refusal(recipe, tiny_model, capsys):
    """refusal(arguments) -> the message with which the command refuses them."""

    def message(*arguments, models=("--model", f"XLM={tiny_model}")):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([*recipe, *models, *arguments])
        assert stopped.value.code == 2
        return " ".join(capsys.readouterr().err.split())

    return message


@pytest.mark.slow
def test_each_language_is_the_source_once(recipe, tiny_model, tmp_path, capsys, drawn):
    other = shutil.copytree(tiny_model, tmp_path / "other")
    asked = [*recipe, "--model", f"XLM={tiny_model}", "--model", f"MetaXLM={other}", "--languages", "zh", "en"]
    main([*asked, "training.learning_rate=1e-3"])  # an override after a list
    out = tmp_path / "matrix"
    found = json.loads((out / "matrix.json").read_text(encoding="utf-8"))
    for name in ("XLM", "MetaXLM"):
        for source in ("zh", "en"):
            run = read_results(out / name / f"from-{source}")
            assert run["source_language"] == source and list(run.languages) == ["zh", "en"]
            (table,) = run["protocol"]["training_data"]
            assert table["config"] == source and table["languages"] == [source]
            assert run["hyperparameters"]["learning_rate"] == 1e-3
            own = [row["value"] for row in found["scores"] if (row["run"], row["source"]) == (name, source)]
            assert own == [score for entry in run.languages.values() for score in entry["scores"]]
    # equal weights give equal figures
    assert found["differences"] == {"MetaXLM - XLM": {s: {"zh": 0.0, "en": 0.0} for s in ("zh", "en")}}
    assert not found["differing"]
    page = (out / "matrix.md").read_text(encoding="utf-8")
    assert page.count("| from | zh | en | mean of others | gap |") == 2 and page.count("| from | zh | en |\n") == 1
    assert "MetaXLM - XLM: higher in 0 of 4 directions" in page
    with (out / "matrix.csv").open(encoding="utf-8") as stream:
        rows = [(row["run"], row["source"], row["language"]) for row in csv.DictReader(stream)]
    assert len(rows) == len(set(rows)) == 8
    assert (out / "matrix.png").stat().st_size > 5000
    capsys.readouterr()
    main([*asked, "training.learning_rate=1e-3"])
    assert "4 finished before, 0 to do" in capsys.readouterr().out


def test_two_commands_do_not_share_an_output(refusal, tmp_path):
    with run_lock(tmp_path / "matrix"):
        assert "in use" in refusal("--languages", "zh", "en")
    with run_lock(tmp_path / "matrix" / "XLM" / "from-zh"):
        assert "XLM, from zh" in (message := refusal("--languages", "zh", "en")) and "in use" in message


def test_differences_are_to_the_first_model():
    def matrix(*means):
        cells = iter(means)
        return {source: {target: next(cells) for target in "ab"} for source in "ab"}

    found = minus_first(
        {"X": matrix(50.0, 40.0, 30.0, 60.0), "M": matrix(55.0, 39.0, 30.0, 61.0), "D": matrix(*[70.0] * 4)}
    )
    assert found["M - X"] == {"a": {"a": 5.0, "b": -1.0}, "b": {"a": 0.0, "b": 1.0}}
    assert list(found) == ["M - X", "D - X"]


def test_gaps_are_taken_seed_by_seed():
    values = {"en": (80.0, 70.0), "de": (60.0, 65.0), "fr": (40.0, 45.0)}

    def results(names, source="en"):
        rows = [
            {"language": name, "seed": seed, "metric": "accuracy", "value": value}
            for name in names
            for seed, value in zip((1, 2), values[name], strict=True)
        ]
        protocol = {"metric": {"name": "accuracy"}}
        return Results({"source_language": source, "seeds": [1, 2], "scores": rows, "protocol": protocol}).transfer

    found = {name: entry["scores"] for name, entry in results(values).items()}
    assert found == {"others": [50.0, 55.0], "source": [80.0, 70.0], "gap": [30.0, 15.0]}
    assert results(values, "sw") == results(["en"]) == {}


def test_tables_are_read_in_the_source_language_alone():
    tables = (
        "train=[{path: a/en}, {path: 'a/{language}', languages: [nl, es]}, {path: all, language_column: language}]",
        "evaluation=[{path: b/en, languages: [en]}, {path: 'b/{language}', languages: [nl, es, de]}, "
        "{path: all, language_column: language, split: dev}]",
    )

    def recipe():
        return load_recipe(Recipe, None, ["model=m", "output_dir=o", "task=t", "training.learning_rate=1e-3", *tables])

    for source, expected in (
        ("en", [("a/en", []), ("all", ["en"])]),
        ("es", [("a/{language}", ["es"]), ("all", ["es"])]),
        ("ja", [("all", ["ja"])]),
    ):
        changed = recipe()
        train_in(changed, source)
        assert [(table.path, table.languages) for table in changed.train] == expected
        assert changed.source_language == source
    changed = recipe()
    evaluate_in(changed, ["ja", "es", "en"])
    assert [(table.path, table.languages) for table in changed.evaluation] == [
        ("b/en", ["en"]), ("b/{language}", ["es"]), ("all", ["ja"]),
    ]  # fmt: skip
    changed = recipe()
    changed.train = changed.train[:2]
    with pytest.raises(ValueError, match="No training table of the recipe has rows in ja"):
        train_in(changed, "ja")
    changed.evaluation = changed.evaluation[:2]
    with pytest.raises(ValueError, match="The recipe evaluates no ja"):
        evaluate_in(changed, ["en", "ja"])


def test_what_makes_no_matrix_is_refused(refusal, tiny_model, tmp_path):
    languages = ("--languages", "en", "de", "--output", str(tmp_path / "none"))
    assert "Write {language} into its path or config" in refusal(*languages, "train.0.config=en")
    assert "evaluates no it" in refusal("--languages", "en", "it")
    assert "setting is supervised" in refusal(*languages, "setting=supervised")
    assert "source_language is another one in each run" in refusal(*languages, "source_language=de")
    assert "--languages en stands twice" in refusal("--languages", "en", "en")
    assert "has no language to be trained in" in refusal(*languages, "kind=word_alignment")
    assert "is not of the form NAME=PATH" in refusal(*languages, models=("--model", str(tiny_model)))
    twice = ("--model", f"XLM={tiny_model}", "--model", f"XLM={tiny_model}")
    assert "--model XLM stands twice" in refusal(*languages, models=twice)
    missing = ("--model", f"XLM={tiny_model}", "--model", f"MetaXLM={tmp_path / 'modle'}")
    assert f"Model folder not found: {tmp_path / 'modle'}" in refusal(*languages, models=missing)
    assert "unknown field training.epoch" in refusal(*languages, "training.epoch=3")
    assert not (tmp_path / "none").exists(), "everything is checked before anything is run"
