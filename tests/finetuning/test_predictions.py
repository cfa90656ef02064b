"""predictions/: a row for each evaluated one, in order; their scores are those of results.json."""

import json

import numpy as np
import pytest

from crosslingual_zoo.finetuning.recipe import TaggingRecipe
from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.run_folder import finish_seed
from crosslingual_zoo.finetuning.tasks.registry import task_of
from tests.finetuning.tasks import encode, predictions, recipe_with


def test_predictions_give_the_scores(topics_run, sample_corpus_dir):
    results = read_results(topics_run)
    labels = []
    for seed_number, seed in enumerate(results["seeds"]):
        folder = topics_run / f"seed-{seed}"
        assert {path.name for path in (folder / "predictions").iterdir()} == {"en.jsonl", "de.jsonl", "zh.jsonl"}
        for language, entry in results.languages.items():
            rows = predictions(folder, language)
            table = (sample_corpus_dir / language / "test.jsonl").read_text(encoding="utf-8").splitlines()
            texts_and_topics = [(row["text"], row["topic"]) for row in map(json.loads, table)]
            assert [(row["text"], row["gold"]) for row in rows] == texts_and_topics
            assert [row["row"] for row in rows] == list(range(len(texts_and_topics)))
            assert {row["language"] for row in rows} == {language}
            right = [row["gold"] == row["prediction"] for row in rows]
            assert 100 * np.mean(right) == pytest.approx(entry["scores"][seed_number])
            assert all(0.2 <= row["probability"] <= 1 for row in rows)  # the highest of five
            labels.append({row["prediction"] for row in rows})
    assert max(map(len, labels)) > 2  # or any order of rows would do


def test_predictions_of_tagged_words(write, sample_tokenizer):
    sentences = [
        (["Ana", "Silva", "left"], ["I-PER", "I-PER", "O"]),
        ([], []),
        (["in", "Lima", "today"], ["O", "B-LOC", "_"]),
        (["nothing"], ["_"]),
        ([f"word{n}" for n in range(9)], ["O"] * 8 + ["B-PER"]),  # several windows
    ]
    rows = [{"tokens": words, "tags": tags} for words, tags in sentences]
    columns = {"text_columns": ["tokens"], "label_column": "tags", "languages": ["es"]}
    tables = [{"path": write(name, rows), **columns} for name in ("train", "test")]
    recipe = recipe_with(
        TaggingRecipe, tables[:1], tables[1:], "setting=supervised", "source_language=es", "max_length=12"
    )
    data = encode(TaggingRecipe(max_length=12, label_subword="first"), task_of(recipe).read(), sample_tokenizer)
    windows = data.evaluation["es"]
    assert len(windows) > 3
    outside = data.label_names.index("O")
    labels = [[outside if tag == -100 else tag for tag in tags] for tags in windows["labels"][:]]
    width = max(map(len, labels))
    predictions = np.array([[*tags, *[outside] * (width - len(tags))] for tags in labels])
    predictions[0] = outside  # the first sentence's person is missed
    records = list(task_of(recipe).outcome(data, "evaluation", "es", predictions).records)
    assert [(row["row"], row["words"]) for row in records] == [(n, sentences[n][0]) for n in (0, 2, 4)]
    assert [row["gold"] for row in records] == [["B-PER", "I-PER", "O"], sentences[2][1], sentences[4][1]]
    assert [row["prediction"] for row in records] == [["O"] * 3, sentences[2][1], sentences[4][1]]


@pytest.mark.parametrize("language", ["a/b", "../up", "50%", "日本語", ".hidden"])
def test_finish_seed_writes_any_language(language, tmp_path):
    finish_seed(tmp_path / "seed", {}, {language: [{"row": 0}], "other": []})
    assert len(list((tmp_path / "seed" / "predictions").iterdir())) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"seed"}
