"""MetaXLM's fine-tuning recipes: compared with the paper's tables, and run on data laid out as their comments say."""

from pathlib import Path

import pytest

from finetuning.data.table_checks import check_tables
from finetuning.published import find, look_up
from finetuning.tasks.registry import KINDS, kind_of
from zoo_core.recipes import load_recipe

RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes" / "metaxlm"


def read(task, *overrides):
    path = str(RECIPES / f"{task}.yaml")
    return load_recipe(KINDS[kind_of(["--config", path])].recipe_class, path, ["model=somewhere", *overrides])


@pytest.mark.parametrize(("task", "exact_match"), [("xquad", 42.0), ("mlqa", 34.3), ("tydiqa", 23.0)])
def test_what_is_left_out_of_a_table_is_what_its_average_wants(task, exact_match):
    """The mean of the illegible figures is plausible: English is highest, and exact match is below F1."""
    recipe = read(task)
    columns = find(*recipe.references[0].values())[0].columns
    found = look_up(recipe.references[0], task, recipe.kind, "f1", columns)
    f1, exact = found.scores["f1"], found.scores["exact_match"]
    absent = len(columns) - len(f1)
    averages = {"f1": found.average, "exact_match": exact_match}
    rest = {name: averages[name] * len(columns) - sum(scores.values()) for name, scores in found.scores.items()}
    assert list(exact) == list(f1) and all(exact[name] < score for name, score in f1.items())
    assert abs(rest["f1"]) < 0.7 if not absent else 0 < rest["exact_match"] / absent < rest["f1"] / absent < 85


def test_rows_that_are_evaluated_are_found_under_any_source_language(tmp_path):
    recipe = read("amazon", "train.0.split=test", "evaluation.0.languages=[de, fr]", "source_language=de")
    with pytest.raises(ValueError, match="which `evaluation` names too"):
        check_tables(recipe)
    check_tables(read("amazon", "train.0.split=test", "evaluation.0.languages=[de, fr]", "source_language=ja"))
    # one file for both, with a column that separates them
    part = [f"{name}.0.path={tmp_path}/all.jsonl" for name in ("train", "evaluation")]
    (tmp_path / "all.jsonl").write_text('{"text": "a"}\n')
    own = ["train.0.where={split: train}", "evaluation.0.where={split: test}", "evaluation.0.languages=[en]"]
    check_tables(read("amazon", *part, *own))
    with pytest.raises(ValueError, match="which `evaluation` names too"):
        check_tables(read("amazon", *part, *own, "train.0.where={split: test}"))
