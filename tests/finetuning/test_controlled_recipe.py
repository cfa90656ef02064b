"""The transfer recipe of the controlled pair, on a pair made by the command that its header names."""

import re
from pathlib import Path

import datasets

from common.recipes import load_recipe
from finetuning.recipe import Recipe
from finetuning.tasks import classification
from finetuning.trainer import check_setting
from pretraining import controlled_pair

RECIPE = Path(__file__).parents[2] / "finetuning" / "recipes" / "controlled_sick.yaml"
FEATURES = datasets.Features(
    {
        "premise": datasets.Value("string"),
        "hypothesis": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]),
    }
)


def test_the_recipe_reads_what_the_command_in_its_header_writes(sample_corpus_dir, tmp_path, monkeypatch):
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
    monkeypatch.chdir(tmp_path)
    source = ["--dataset", str(sample_corpus_dir), "--config", "en", "--vocab_size", "300"]
    controlled_pair.main([*source, "--output", "runs/controlled_pair"])

    header = RECIPE.read_text(encoding="utf-8").split("\n\n")[0].replace("\\\n#", "").replace("# ", "")
    command = re.search(r"python -m pretraining\.controlled_pair (.*)", header)[1]
    controlled_pair.main(command.replace("<folder>", "hub").split())
    assert "--config finetuning/recipes/controlled_sick.yaml" in header

    recipe = load_recipe(Recipe, str(RECIPE), ["model=somewhere"])
    check_setting(recipe)
    data = classification.read(recipe)
    assert data.label_names == FEATURES["label"].names and len(data.train) == 9
    assert list(data.evaluation) == ["en", "fake"] and list(data.dev) == ["en"]
    assert data.evaluation["en"]["labels"] == data.evaluation["fake"]["labels"] == [0, 1, 2]
    assert data.evaluation["en"]["text"][0] == "The boat of test lies at the pier."
    assert not set("".join(data.evaluation["fake"]["text"])) & set("".join(data.evaluation["en"]["text"])) - {" "}
