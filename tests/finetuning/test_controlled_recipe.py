"""The transfer recipe of the controlled pair, on a pair made by the command that its header names."""

import re
from pathlib import Path

import datasets
import pytest

from finetuning.recipe import Recipe
from finetuning.tasks.registry import task_of
from finetuning.tasks.tagging.recipe import TaggingRecipe
from pretraining.tools import controlled_pair
from zoo_core.recipes import load_recipe

RECIPE = Path(__file__).parents[2] / "finetuning" / "recipes" / "controlled_sick.yaml"
FEATURES = datasets.Features(
    {
        "premise": datasets.Value("string"),
        "hypothesis": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]),
    }
)


@pytest.fixture
def pair_tokenizer(sample_corpus_dir, tmp_path, monkeypatch):
    """The tokenizer of a controlled pair, where the recipes' headers expect it."""
    monkeypatch.chdir(tmp_path)
    source = ["--dataset", str(sample_corpus_dir), "--config", "en", "--vocab_size", "300"]
    controlled_pair.main([*source, "--output", "runs/controlled_pair"])


def make_pair(recipe):
    """Runs the command that makes the recipe's data, as its header gives it."""
    header = recipe.read_text(encoding="utf-8").split("\n\n")[0].replace("\\\n#", "").replace("# ", "")
    assert f"--config finetuning/recipes/{recipe.name}" in header
    controlled_pair.main(
        re.search(r"python -m pretraining\.tools\.controlled_pair (.*)", header)[1].replace("<folder>", "hub").split()
    )


def test_words_get_twins_with_the_same_labels(pair_tokenizer, tmp_path):
    names = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"]
    features = datasets.Features(
        {
            "tokens": datasets.Sequence(datasets.Value("string")),
            "ner_tags": datasets.Sequence(datasets.ClassLabel(names=names)),
        }
    )
    folder = tmp_path / "hub/google/xtreme"
    (folder / "PAN-X.en").mkdir(parents=True)
    lines = ["---", "configs:", "- config_name: PAN-X.en", "  data_files:"]
    for split, count in (("train", 20), ("validation", 4)):
        rows = [{"tokens": ["Ann", "sails", "to", "Rio"], "ner_tags": [1, 0, 0, 5]}] * count
        datasets.Dataset.from_list(rows, features=features).to_parquet(folder / "PAN-X.en" / f"{split}.parquet")
        lines += [f"  - split: {split}", f"    path: PAN-X.en/{split}.parquet"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    path = RECIPE.with_name("controlled_panx.yaml")
    make_pair(path)
    recipe = load_recipe(TaggingRecipe, str(path), ["model=somewhere"])
    task_of(recipe).check()
    data = task_of(recipe).read()
    english, fake = data.evaluation["en"], data.evaluation["fake"]
    assert english["words"][0] == ["Ann", "sails", "to", "Rio"] and len(data.train) == 18
    assert fake["words"][0] == [controlled_pair.twin_of(word) for word in english["words"][0]]
    assert fake["tags"][:] == english["tags"][:] == [[1, 0, 0, 5]] * 4


def test_the_recipe_reads_what_the_command_in_its_header_writes(pair_tokenizer, tmp_path):
    rows = {
        split: [
            {
                "premise": f"The boat of {split} lies at the pier.",
                "hypothesis": f"Number {n} sails.",
                "label": n % 3,
            }
            for n in range(count)
        ]
        for split, count in (("train", 9), ("validation", 6), ("test", 3))
    }
    (tmp_path / "hub/local/sick").mkdir(parents=True)
    for split, values in rows.items():
        table = datasets.Dataset.from_list(values, features=FEATURES)
        table.to_parquet(tmp_path / "hub/local/sick" / f"{split}.parquet")
    make_pair(RECIPE)
    recipe = load_recipe(Recipe, str(RECIPE), ["model=somewhere"])
    task_of(recipe).check()
    data = task_of(recipe).read()
    assert data.label_names == FEATURES["label"].names and len(data.train) == 9
    assert list(data.evaluation) == ["en", "fake"] and list(data.dev) == ["en"]
    assert data.evaluation["en"]["labels"] == data.evaluation["fake"]["labels"] == [0, 1, 2]
    assert data.evaluation["en"]["text"][0] == "The boat of test lies at the pier."
    assert not set("".join(data.evaluation["fake"]["text"])) & set("".join(data.evaluation["en"]["text"])) - {" "}
