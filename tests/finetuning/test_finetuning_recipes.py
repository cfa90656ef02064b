from pathlib import Path

import pytest
import yaml

from common.recipes import load_recipe
from finetuning.recipe import Recipe
from finetuning.task_tables import check_tables
from finetuning.trainer import check_setting

RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes"
MODELS = ("veco", "ernie_m", "xlm_align", "metaxlm")
TASKS = ("xnli", "pawsx", "sick", "sample")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", MODELS)
def test_every_recipe_parses_and_is_consistent(model, task):
    path = RECIPES / model / f"{task}.yaml"
    recipe = load_recipe(Recipe, str(path), ["model=somewhere"])
    check_setting(recipe)
    check_tables(recipe)
    assert recipe.output_dir == f"runs/{model}/{task}"
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    assert f"--config finetuning/recipes/{model}/{task}.yaml" in header


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("task", "languages"), [("xnli", 15), ("pawsx", 7)])
def test_published_averages_are_those_of_the_languages(model, task, languages):
    published = load_recipe(Recipe, str(RECIPES / model / f"{task}.yaml"), ["model=somewhere"]).published
    scores = published.languages
    assert len(scores or published.average_over) == languages
    if scores:  # a mistyped figure would move the mean by more than the rounding
        assert sum(scores.values()) / languages == pytest.approx(published.average, abs=0.06)


def test_no_recipe_names_a_folder_of_a_machine():
    for path in RECIPES.rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert "../" not in text and " /" not in text
        assert yaml.safe_load(text)


def test_settings_of_later_releases_are_refused():
    recipe = load_recipe(Recipe, str(RECIPES / "veco" / "sample.yaml"), ["model=x", "setting=supervised"])
    with pytest.raises(ValueError, match="setting is 'supervised', which is not supported yet.*setting=zero_shot"):
        check_setting(recipe)


@pytest.mark.parametrize("seeds", ["[]", "[1, 1]"])
def test_seeds_are_named_once(seeds):
    recipe = load_recipe(Recipe, str(RECIPES / "veco" / "sample.yaml"), ["model=x", f"seeds={seeds}"])
    with pytest.raises(ValueError, match="Name each once"):
        check_setting(recipe)
