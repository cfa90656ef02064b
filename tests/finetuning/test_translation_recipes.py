from pathlib import Path

import pytest

from common.recipes import load_recipe
from finetuning.run import kind_of
from finetuning.tasks.translation import check_tables
from finetuning.translation_recipe import TranslationRecipe, check_recipe

FOLDER = Path(__file__).parents[2] / "finetuning" / "recipes" / "veco"
NAMES = ("iwslt14_de_en", "mbart_small", "multi30k", "multi30k_mbart", "opus_en_de", "wmt14_en_de", "wmt14_en_fr")


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_parses_and_is_consistent(name):
    path = FOLDER / f"{name}.yaml"
    assert kind_of(["--config", str(path)]) == "translation"
    recipe = load_recipe(TranslationRecipe, str(path), ["model=somewhere"])
    check_recipe(recipe)
    check_tables(recipe)
    assert (recipe.output_dir, recipe.task) == (f"runs/veco/{name}", name)
    header = path.read_text(encoding="utf-8").split("kind:")[0]
    assert f"--config finetuning/recipes/veco/{name}.yaml" in header


def test_no_recipe_is_forgotten():
    kinds = {path.stem: kind_of(["--config", str(path)]) for path in FOLDER.glob("*.yaml")}
    assert {name for name, kind in kinds.items() if kind == "translation"} == set(NAMES)


@pytest.mark.parametrize(
    ("name", "pair", "tokens", "rate", "bleu", "sacrebleu"),
    [("wmt14_en_de", "en-de", 2**16, 1e-4, 31.7, 30.6), ("wmt14_en_fr", "en-fr", 2**18, 2e-4, 44.5, 42.0)],
)
def test_wmt14_is_trained_as_in_the_paper(name, pair, tokens, rate, bleu, sacrebleu):
    recipe = load_recipe(TranslationRecipe, str(FOLDER / f"{name}.yaml"), ["model=somewhere"])
    training = recipe.training
    assert (training.max_tokens, training.learning_rate) == (tokens, rate)
    assert (training.max_steps, training.warmup_steps, training.schedule) == (100_000, 16_000, "linear")
    assert (recipe.selection, recipe.average_checkpoints, recipe.generation.beams) == ("average", 10, 5)
    assert (recipe.decoder_layers, recipe.decoder_layer_selection, recipe.tie_decoder) == (None, "last", True)
    assert (recipe.published.bleu, recipe.published.sacrebleu) == ({pair: bleu}, {pair: sacrebleu})


def test_the_second_half_of_more_bilingual_data_is_the_first_halfs_recipe():
    halves = [load_recipe(TranslationRecipe, str(FOLDER / f"{n}.yaml"), ["model=x"]) for n in ("opus_en_de", NAMES[-2])]
    assert halves[0].training == halves[1].training
    assert [half.initialize for half in halves] == ["random", "pretrained"]


@pytest.mark.parametrize("name", ["mbart_small", "multi30k_mbart"])
def test_the_mbart_style_model_restores_words_and_translates_masked_text(name):
    recipe = load_recipe(TranslationRecipe, str(FOLDER / f"{name}.yaml"), ["model=x"])
    assert recipe.initialize == "random"
    tables = [(t.source_column == t.target_column, t.predict, t.source_mask_probability) for t in recipe.train]
    assert tables == [(True, "masked", 0.15)] * 2 + [(False, "all", 0.25)] * 2
