"""predictions/: a row for each evaluated one, in order; their scores are those of results.json."""

import itertools

import numpy as np
import pytest

from crosslingual_zoo.finetuning.recipe import TaggingRecipe
from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.run_folder import finish_seed
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.zoo_core.masking import IGNORED
from tests.finetuning.labeled_rows import read_rows
from tests.finetuning.tasks import encode, predictions, recipe_with


def test_predictions_give_the_scores(topics_run, sample_corpus_dir):
    results = read_results(topics_run)
    predicted = set()
    for seed_number, seed in enumerate(results["seeds"]):
        folder = topics_run / f"seed-{seed}"
        assert {path.name for path in (folder / "predictions").iterdir()} == {"en.jsonl", "de.jsonl", "zh.jsonl"}
        for language, entry in results.languages.items():
            rows = predictions(folder, language)
            gold = read_rows(sample_corpus_dir / language / "test.jsonl")
            for number, (row, gold_row) in enumerate(zip(rows, gold, strict=True)):
                assert (row["row"], row["language"]) == (number, language)
                assert (row["text"], row["gold"]) == (gold_row["text"], gold_row["topic"])
                assert 0.2 <= row["probability"] <= 1  # the highest of five
            is_right = [row["gold"] == row["prediction"] for row in rows]
            assert 100 * np.mean(is_right) == pytest.approx(entry["scores"][seed_number])
            predicted |= {row["prediction"] for row in rows}
    assert len(predicted) > 2  # or any order of rows would do


def test_predictions_of_tagged_words(write, sample_tokenizer):
    words = [["Ana", "Silva", "left"], [], ["in", "Lima", "today"], ["nothing"], [f"word{n}" for n in range(9)]]
    tags = [["B-PER", "I-PER", "O"], [], ["O", "B-LOC", "_"], ["_"], ["O"] * 8 + ["B-PER"]]
    rows = [{"tokens": words[number], "tags": tags[number]} for number in range(5)]
    columns = {"text_columns": ["tokens"], "label_column": "tags", "languages": ["es"]}
    table = {"path": write("sentences", rows), **columns}
    settings = ["setting=supervised", "source_language=es", "max_length=12"]
    recipe = recipe_with(TaggingRecipe, [table], [table], *settings)
    data = encode(recipe, task_of(recipe).read(), sample_tokenizer)
    windows = data.evaluation["es"]
    assert len(windows) > 3  # the last sentence has several
    predictions = np.array(list(itertools.zip_longest(*windows["labels"][:], fillvalue=IGNORED))).T
    outside = data.label_names.index("O")
    predictions[predictions == IGNORED] = outside
    predictions[0] = outside  # the first sentence's person is missed
    records = list(task_of(recipe).outcome(data, "evaluation", "es", predictions).records)
    assert [record["row"] for record in records] == [0, 2, 4]
    assert [record["words"] for record in records] == words[::2]
    assert [record["gold"] for record in records] == tags[::2]
    assert [record["prediction"] for record in records] == [["O"] * 3, tags[2], tags[4]]


@pytest.mark.parametrize("language", ["a/b", "../up", "50%", "日本語", ".hidden"])
def test_finish_seed_writes_any_language(language, tmp_path):
    finish_seed(tmp_path / "seed", {}, {language: [{"row": 0}], "other": []})
    assert len(list((tmp_path / "seed" / "predictions").iterdir())) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"seed"}
