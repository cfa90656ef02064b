import importlib
import itertools
from pathlib import Path

import datasets
import pytest
import yaml

from common.recipes import load_recipe
from finetuning.recipe import Recipe
from finetuning.task_tables import check_tables
from finetuning.tasks import tagging
from finetuning.tasks.classification import KIND
from finetuning.trainer import check_setting

RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes"
MODELS = ("veco", "ernie_m", "xlm_align", "metaxlm")
TASKS = ("xnli", "pawsx", "sick", "sample")
OF_ERNIE_M = (
    "xnli_translate_train_all",
    "xnli_translate_train_all_large",
    "pawsx_translate_train_all",
    "conll",
    "conll_supervised",
    "panx",
)


@pytest.mark.parametrize(
    ("model", "task"), [*itertools.product(MODELS, TASKS), *(("ernie_m", task) for task in OF_ERNIE_M)]
)
def test_every_recipe_parses_and_is_consistent(model, task):
    path = RECIPES / model / f"{task}.yaml"
    recipe = load_recipe(Recipe, str(path), ["model=somewhere"])
    check_setting(recipe, importlib.import_module(f"finetuning.tasks.{recipe.kind}").KIND)
    check_tables(recipe)
    assert recipe.output_dir == f"runs/{model}/{task}"
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    assert f"--config finetuning/recipes/{model}/{task}.yaml" in header


@pytest.mark.parametrize(
    ("model", "task", "languages"),
    [
        *((model, *task) for model, task in itertools.product(MODELS, [("xnli", 15), ("pawsx", 7)])),
        ("ernie_m", "xnli_translate_train_all", 15),
        ("ernie_m", "xnli_translate_train_all_large", 15),
        ("ernie_m", "pawsx_translate_train_all", 7),
        ("ernie_m", "conll", 4),
        ("ernie_m", "conll_supervised", 4),
    ],
)
def test_published_averages_are_those_of_the_languages(model, task, languages):
    published = load_recipe(Recipe, str(RECIPES / model / f"{task}.yaml"), ["model=somewhere"]).published
    scores = published.languages
    assert len(published.average_over or scores) == languages
    if not published.average_over:  # a mistyped figure would move the mean by more than the rounding
        assert sum(scores.values()) / languages == pytest.approx(published.average, abs=0.06)


@pytest.mark.parametrize(
    ("task", "batch", "rate", "decay", "weight_decay", "epochs", "length"),
    [  # Tables 11 and 12
        ("xnli", 32, 5e-5, 0.8, 0, 5, 256),
        ("xnli_translate_train_all", 128, 5e-5, 0.8, 0, 2, 256),
        ("xnli_translate_train_all_large", 128, 5e-5, 0.8, 0, 1, 256),
        ("conll", 8, 4e-4, 0.8, 0.01, 10, 512),
        ("conll_supervised", 8, 3e-4, 0.8, 0.01, 10, 512),
        ("pawsx", 64, 5e-5, 0.9, 0.01, 10, 128),
        ("pawsx_translate_train_all", 64, 7e-5, 0.9, 0.01, 2, 128),
    ],
)
def test_ernie_m_is_fine_tuned_as_its_paper_prints(task, batch, rate, decay, weight_decay, epochs, length):
    recipe = load_recipe(Recipe, str(RECIPES / "ernie_m" / f"{task}.yaml"), ["model=somewhere"])
    training = recipe.training
    assert (training.batch_size, training.learning_rate, training.layerwise_decay) == (batch, rate, decay)
    assert (training.weight_decay, training.epochs, recipe.max_length) == (weight_decay, epochs, length)
    assert (training.warmup_steps, training.schedule, training.epsilon, training.max_grad_norm) == (
        0.1,
        "linear",
        1e-6,
        1.0,
    )
    assert recipe.seeds == [1, 2, 3, 4, 5]


def test_conll_is_read_from_the_folders_that_its_header_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = datasets.ClassLabel(names=["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"])
    text = datasets.Sequence(datasets.Value("string"))
    typed = datasets.Features({"tokens": text, "ner_tags": datasets.Sequence(labels)})
    bare = datasets.Features({"tokens": text, "ner_tags": datasets.Sequence(datasets.Value("int64"))})
    rows = [{"tokens": ["Wolff", "in", "Bonn"], "ner_tags": [1, 0, 5]}]
    for split in ("train", "validation", "test"):
        for language in ("es", "nl"):  # as `hf download` leaves them
            folder = tmp_path / "conll" / language / split
            folder.mkdir(parents=True)
            datasets.Dataset.from_list(rows, features=typed).to_parquet(folder / "0000.parquet")
        folder = tmp_path / "hub/lhoestq/conll2003/data"
        folder.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_list(rows, features=bare).to_parquet(folder / f"{split}-00000-of-00001.parquet")
        german = tmp_path / "conll/de" / f"{split}.jsonl"
        german.parent.mkdir(exist_ok=True)
        german.write_text('{"tokens": ["Wolff", "in", "Bonn"], "ner_tags": ["I-PER", "O", "I-LOC"]}\n')
    everywhere = ["model=m", "hub_root=hub"]
    data = tagging.read(load_recipe(Recipe, str(RECIPES / "ernie_m" / "conll.yaml"), everywhere))
    assert list(data.evaluation) == ["en", "nl", "es"] and list(data.dev) == ["en"]
    german = [f"{part}.1.languages=[nl, es, de]" for part in ("train", "evaluation")]
    recipe = load_recipe(Recipe, str(RECIPES / "ernie_m" / "conll_supervised.yaml"), [*everywhere, *german])
    data = tagging.read(recipe)
    assert list(data.evaluation) == list(data.dev) == ["en", "nl", "es", "de"] and len(data.train) == 4
    assert all(rows["tags"][:] == [[1, 0, 5]] for rows in data.evaluation.values())
    assert data.label_names == labels.names


def test_no_recipe_names_a_folder_of_a_machine():
    for path in RECIPES.rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert "../" not in text and " /" not in text
        assert yaml.safe_load(text)


@pytest.mark.parametrize("seeds", ["[]", "[1, 1]"])
def test_seeds_are_named_once(seeds):
    recipe = load_recipe(Recipe, str(RECIPES / "veco" / "sample.yaml"), ["model=x", f"seeds={seeds}"])
    with pytest.raises(ValueError, match="Name each once"):
        check_setting(recipe, KIND)
