import re
import shlex
from pathlib import Path

import pytest

from finetuning.results.published_rows import complete_published
from finetuning.tasks.registry import kind_of
from finetuning.tasks.translation.recipe import TranslationRecipe, check_recipe
from finetuning.tasks.translation.task import check_tables
from zoo_core.recipes import load_recipe

FOLDER = Path(__file__).parents[2] / "finetuning" / "recipes" / "veco"
NAMES = ("iwslt14_de_en", "mbart_small", "mbart_small_mono", "multi30k", "multi30k_mbart", "opus_en_de", "wmt14_en_de",
         "wmt14_en_fr")  # fmt: skip


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
    # as a shell cuts them, at spaces that are not quoted
    shown = re.findall(r"""'published\.[^']+'|"published\.[^"]+"|\bpublished\.\S+?(?=[,.;]?(?:\s|$))""", header)
    words = [word for text in shown for word in shlex.split(text)]
    for number, word in enumerate(words):
        table = [before for before in words[max(number - 1, 0) : number] if "published.table=" in before]
        if "published.row=" in word and recipe.published:  # it is a row of the table
            complete_published(load_recipe(TranslationRecipe, str(path), ["model=somewhere", *table, word]))


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
    assert (recipe.decoder_layers, recipe.decoder_layer_selection, recipe.tie_decoder) == (None, None, True)
    # from the released scripts: Adam (0.9, 0.999), and dropout by pair
    assert (training.label_smoothing, training.max_grad_norm, training.weight_decay) == (0.2, 0.1, 0.01)
    assert (training.betas, training.epsilon) == ([0.9, 0.999], 1e-8)
    assert training.dropout == {"en-de": 0.3, "en-fr": 0.1}[pair]
    complete_published(recipe)
    assert (recipe.published.bleu[pair], recipe.published.sacrebleu[pair]) == (bleu, sacrebleu)


def test_the_second_half_of_more_bilingual_data_is_the_first_halfs_recipe():
    halves = [load_recipe(TranslationRecipe, str(FOLDER / f"{n}.yaml"), ["model=x"]) for n in ("opus_en_de", NAMES[-2])]
    assert halves[0].training == halves[1].training
    assert [half.initialize for half in halves] == ["random", "pretrained"]


@pytest.mark.parametrize(("name", "translates"), [("mbart_small", 2), ("mbart_small_mono", 0), ("multi30k_mbart", 2)])
def test_the_mbart_style_model_restores_words_and_translates_masked_text(name, translates):
    recipe = load_recipe(TranslationRecipe, str(FOLDER / f"{name}.yaml"), ["model=x"])
    assert recipe.initialize == "random"
    tables = [(t.source_column == t.target_column, t.predict, t.source_mask_probability) for t in recipe.train]
    assert tables == [(True, "masked", 0.15)] * 2 + [(False, "all", 0.25)] * translates


def test_the_mbart_style_model_has_the_numbers_of_table_8():
    recipe = load_recipe(TranslationRecipe, str(FOLDER / "mbart_small.yaml"), ["model=x"])
    training = recipe.training
    assert (training.learning_rate, training.max_steps, training.warmup_steps) == (3e-4, 240_000, 12_000)
    assert (training.betas, training.epsilon, training.weight_decay) == ([0.9, 0.999], 1e-6, 0.01)
    assert (training.dropout, training.attention_dropout, training.schedule) == (0.1, 0.1, "linear")
    assert training.max_tokens == 4096 * 128
    assert recipe.tie_decoder is True and training.label_smoothing == 0.0
