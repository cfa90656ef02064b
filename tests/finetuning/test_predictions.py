"""predictions/: a row for each evaluated one, in order, of the selected checkpoint; there whenever scores.json is."""

import csv
import json

import numpy as np
import pytest
from transformers import pipeline

from finetuning.recipe import QuestionAnsweringRecipe, TaggingRecipe
from finetuning.results import read_results
from finetuning.run import main
from finetuning.run_folder import finish_seed
from finetuning.tasks import classification
from finetuning.tasks.question_answering.windows import windowing, windows_of_rows
from finetuning.tasks.registry import task_of
from finetuning.tasks.tagging import windows_of
from finetuning.tasks.translation import task as translation
from tests.finetuning.tasks import encode, predictions, recipe_with

SHORT = ["training.max_steps=1", "selection=last", "save_models=false"]


def test_predictions_give_the_scores(topics_run, sample_corpus_dir):
    results = read_results(topics_run[0])
    for place, seed in enumerate(results["seeds"]):
        folder = topics_run[0] / f"seed-{seed}"
        assert {path.name for path in (folder / "predictions").iterdir()} == {"en.jsonl", "de.jsonl", "zh.jsonl"}
        for language, entry in results.languages.items():
            found = predictions(folder, language)
            table = (sample_corpus_dir / language / "test.jsonl").read_text(encoding="utf-8").splitlines()
            own = [(row["text"], row["topic"]) for row in map(json.loads, table)]
            assert [(row["text"], row["gold"]) for row in found] == own
            assert [row["row"] for row in found] == list(range(len(own)))
            assert {row["language"] for row in found} == {language}
            right = [row["gold"] == row["prediction"] for row in found]
            assert 100 * np.mean(right) == pytest.approx(entry["scores"][place])
            assert all(0.2 <= row["probability"] <= 1 for row in found)  # the highest of five


def test_names_as_text_in_every_task(topics_run, sample_tokenizer):
    text, fill = "old</s></s>new <s>12</s> ＜pad＞ <mask>", {"labels": [0], "tags": [[0, 0, 0, 0]]}
    batch = fill | {"text": [text], "words": [text.split()], "source": [text], "target": [text]}
    answer = {"answers": [["12"]], "start": [text.index("12")]}
    batch |= {"question": [text], "context": [text], **answer, "end": [text.index("12") + 2]}
    saved = pipeline("text-classification", str(topics_run[0] / "seed-1" / "model"), trust_remote_code=True)
    cutting = windowing(sample_tokenizer, 128, 16, 60)
    sides = translation._encode_batch(batch, sample_tokenizer, {"source": 128, "target": 128})
    (window,) = windows_of_rows(batch, [0], sample_tokenizer, cutting, is_train=True)[0]
    read = {
        "<s> </s>": [
            *classification.encode_batch(batch, [0], sample_tokenizer, 128, False)["input_ids"],
            *windows_of(batch, [0], sample_tokenizer, 128, "first")["input_ids"],
            *saved.preprocess(text)["input_ids"].tolist(),
            sides["source_ids"][0],
        ],
        "</s>": [sides["target_ids"][0]],
        "<s> </s> </s> </s>": [window["input_ids"]],
    }
    special = {*sample_tokenizer.all_special_tokens} - {"<unk>"}
    for frame, found in read.items():
        tokens = sample_tokenizer.convert_ids_to_tokens(found[0])
        assert " ".join(token for token in tokens if token in special) == frame
        assert found == [found[0]] * len(found)
    first, last = window["labels"]
    assert sample_tokenizer.decode(window["input_ids"][first : last + 1]).strip() == "12"
    assert sample_tokenizer("<s>").input_ids == [0, 0, 2]  # the given tokenizer is as before


def test_predictions_of_sampled_rows(topics, tmp_path):
    """Of one table with the languages in a column: the number is that in the table."""
    texts = [(f"text {n}", ["mul", "pt/BR"][n % 3 == 0], str(n % 2)) for n in range(30)]
    with (tmp_path / "all.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("text", "code", "label"), *texts])
    table = f"{{path: {tmp_path}/all.csv, language_column: code, label_column: label, languages: [mul, pt/BR]}}"
    train = f"train=[{{path: {tmp_path}/train.csv, label_column: label}}]"
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"word {n},{n % 2}\n" for n in range(8)))
    main([*topics, *SHORT, "seeds=[3]", train, f"evaluation=[{table}]", "max_evaluation_examples=7"])
    for language, name in (("mul", "mul"), ("pt/BR", "pt%2FBR")):
        found = predictions(tmp_path / "out" / "seed-3", name)
        assert len(found) == 7 and {row["language"] for row in found} == {language}
        assert [texts[row["row"]] for row in found] == [(row["text"], language, row["gold"]) for row in found]


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
    found = list(task_of(recipe).score(data, "evaluation", "es", predictions).records())
    assert [(row["row"], row["words"]) for row in found] == [(n, sentences[n][0]) for n in (0, 2, 4)]
    assert [row["gold"] for row in found] == [["B-PER", "I-PER", "O"], sentences[2][1], sentences[4][1]]
    assert [row["prediction"] for row in found] == [["O"] * 3, sentences[2][1], sentences[4][1]]


@pytest.mark.parametrize("ids", [None, ["q7", "q8"], [7, 8]])
def test_predictions_of_answers_have_ids(ids, write, sample_tokenizer):
    contexts = ["ten and twenty or " * 9 + "thirty", "a river"]
    rows = [
        {"question": f"which {n} ?", "context": context, "answers": {"text": [gold], "answer_start": [place]}}
        | ({"id": ids[n]} if ids else {})
        for n, (context, gold, place) in enumerate(zip(contexts, ["ten", "river"], [0, 2], strict=True))
    ]
    other = [{"id": "of training", **row} if not ids else row for row in rows]
    columns = {"text_columns": ["question", "context"], "label_column": "answers"}
    first, second, test = ({"path": write(*of), **columns} for of in (("a", rows), ("b", other), ("test", rows)))
    windowing = "max_length=30 doc_stride=8 max_question_length=8".split()
    recipe = recipe_with(QuestionAnsweringRecipe, [first, second], [test | {"languages": ["en"]}], *windowing)
    data = encode(recipe, task_of(recipe).read(), sample_tokenizer)
    windows = data.evaluation["en"]
    logits = np.zeros((2, len(windows), max(windows["length"][:])), dtype=np.float32)
    for window, places in enumerate(windows["labels"][:]):
        logits[[0, 1], window, places] = 9
    found = list(task_of(recipe).score(data, "evaluation", "en", tuple(logits)).records())
    assert [(row["row"], row["question"], row["gold"]) for row in found] == [
        (0, "which 0 ?", ["ten"]), (1, "which 1 ?", ["river"])
    ]  # fmt: skip
    assert [row["prediction"] for row in found] == ["ten", "river"]
    assert [row.get("id") for row in found] == ([str(name) for name in ids] if ids else [None, None])


@pytest.mark.parametrize("language", ["zh-Hant", "a/b", "../up", "50%", "fr:CA", "日本語", ".hidden"])
def test_finish_seed_writes_any_language(language, tmp_path):
    finish_seed(tmp_path / "seed", {}, {language: lambda: [{"row": 0}], "other": list})
    files = list((tmp_path / "seed" / "predictions").iterdir())
    assert len(files) == 2 and {path.name for path in tmp_path.iterdir()} == {"seed"}
    assert sum(language in path.read_text(encoding="utf-8") for path in files) == 1
