"""Tables to encoded rows: languages, labels, selection data, and all their faults."""

import re

from datasets import ClassLabel, Features, Value

from finetuning.recipe import Recipe
from finetuning.tasks.registry import task_of
from tests.finetuning.labeled_rows import write_configs
from tests.finetuning.tasks import encode, read_alike, recipe_with

NLI = ["entailment", "neutral", "contradiction"]


def read(train, evaluation, *overrides):
    return read_alike(recipe_with(Recipe, [train], [evaluation], *overrides))


def rows(labels, column="label", **more):
    return [{"text": f"text {i}", column: label, **more} for i, label in enumerate(labels)]


def evaluated(path, **fields):
    return {"path": path, "languages": ["de"], **fields}


def test_read_matches_labels_by_name(write):
    classes = Features({"text": Value("string"), "label": ClassLabel(names=NLI)})
    train = write("train", rows([0, 1, 2, 2]), classes)
    names = write("names", rows(["contradiction", "entailment", "neutral"]))
    other = Features({"text": Value("string"), "label": ClassLabel(names=NLI[::-1])})
    numbered = write("numbered", rows([0, 1, 2]), other)
    for path, expected in ((names, [2, 0, 1]), (numbered, [2, 1, 0])):
        data = read({"path": train}, evaluated(path))
        assert data.label_names == NLI
        assert data.train["labels"][:] == [0, 1, 2, 2]
        assert data.evaluation["de"]["labels"][:] == expected
        assert data.warnings == []


def test_read_counts_texts_of_an_earlier_part(tmp_path):
    texts = {"train": "ax by by cx", "dev": "cx dy", "de": "ay ex", "fr": "by dy fx"}
    split = {name: [{"text": row[0], "label": row[1]} for row in of.split()] for name, of in texts.items()}
    parts = {"en": {"train": split["train"], "dev": split["dev"]}}
    path = write_configs(tmp_path, parts | {language: {"test": split[language]} for language in ("de", "fr")})
    train = [{"path": path, "config": "en", "dev_split": "dev"}]
    test = [{"path": path, "config": "{language}", "languages": ["de", "fr"]}]
    data = task_of(recipe_with(Recipe, train, test, "selection=source_dev")).read()
    found = [re.findall("[0-9]+", line) for line in data.warnings]
    # c of dev; a of de and b of fr; d of fr
    assert found == [["1", "2"], ["1", "2", "1", "3"], ["1", "3"]]


def test_read_languages_of_column_recipe_or_tables(write, tmp_path):
    table = write("test", rows(NLI, language="de") + rows(NLI, language="fr") + rows(NLI, language="sw"))
    train = {"path": write("train", rows(NLI))}
    test = {"path": table, "language_column": "language"}
    assert list(read(train, test).evaluation) == ["de", "fr", "sw"]
    chosen = read(train, {**test, "languages": ["sw", "de"]}).evaluation
    assert {language: rows["row"][:] for language, rows in chosen.items()} == {"sw": [6, 7, 8], "de": [0, 1, 2]}
    for language in ("german", "fr"):
        write(f"test.{language}", rows(NLI))
    path = str(tmp_path / "test.{language}.parquet")
    data = read(train, {"path": path, "languages": ["fr", "de"], "language_names": {"de": "german"}})
    assert list(data.evaluation) == ["fr", "de"] and data.protocol["evaluation_data"][0]["split"] == "whole file"


def test_read_a_sample_of_the_rows_that_where_names(write):
    texts = rows(NLI * 9, domain="books") + rows(NLI * 9, domain="dvd")
    train = {"path": write("train", texts), "where": {"domain": "dv*"}}
    test = evaluated(write("test", texts), where={"domain": "books"})
    first, second = (read(train, test, "max_train_examples=7", "max_evaluation_examples=5") for _ in range(2))
    assert first.train["row"][:] == second.train["row"][:] and len(first.train) == 7
    found = first.evaluation["de"]
    assert min(first.train["row"]) >= 27 > max(found["row"]) and len(found) == 5
    assert found["text"][:] == [texts[row]["text"] for row in found["row"]]


def test_read_development_rows_of_benchmark_training_set_or_held_out(tmp_path):
    languages = [{**row, "language": language} for language in ("en", "de") for row in rows(NLI)]
    benchmark = write_configs(tmp_path / "bench", {"default": {"validation": languages, "test": languages}})
    corpus = write_configs(tmp_path / "corpus", {"default": {"train": rows(NLI * 20), "validation": rows(NLI * 2)}})
    test = {"path": benchmark, "language_column": "language"}
    train = {"path": corpus}

    data = read(train, {**test, "dev_split": "validation"}, "selection=source_dev")
    assert {language: len(part) for language, part in data.dev.items()} == {"en": 3}
    # also where the source language itself is not evaluated
    data = read(train, {**test, "dev_split": "validation", "languages": ["de"]}, "selection=source_dev")
    assert list(data.dev) == ["en"]
    data = read(train, {**test, "dev_split": "validation"}, "selection=mean_dev")
    assert list(data.dev) == ["en", "de"]
    data = read({**train, "dev_split": "validation"}, test, "selection=source_dev")
    assert len(data.dev["en"]) == 6 and data.protocol["selection"]["data"][0]["split"] == "validation"
    data = read(train, test, "selection=source_dev")
    assert (len(data.train), len(data.dev["en"])) == (54, 6)
    assert "10% of the training rows, held out" in data.protocol["selection"]["data"]
    assert set(data.train["text"]).isdisjoint(data.dev["en"]["text"])
    assert read(train, test).dev == {}


def test_encode_pairs_as_xlm_r_and_count_cut_texts(write, sample_tokenizer):
    texts = [("one", "two"), ("word " * 40, "two"), ("a", "b")]
    pairs = [{"x": x, "y": y, "label": label} for (x, y), label in zip(texts, NLI, strict=True)]
    table = {"path": write("train", pairs), "text_columns": ["x", "y"]}
    data = read(table, evaluated(write("test", pairs), text_columns=["x", "y"]))
    encoded = encode(Recipe(max_length=16), data, sample_tokenizer)
    bos, eos = sample_tokenizer.bos_token_id, sample_tokenizer.eos_token_id
    x, y = (sample_tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("one", "two"))
    assert encoded.train[0]["input_ids"] == [bos, *x, eos, eos, *y, eos]
    assert len(encoded.train[1]["input_ids"]) == 16
    assert encoded.train[1]["input_ids"][-len(y) - 1 :] == [*y, eos]  # the longer text is cut, not the second
    assert encoded.protocol["cut_texts"] == {"train": {"all": 1}, "evaluation": {"de": 1}}
    assert encoded.protocol["max_length"] == 16
    assert set(encoded.train.column_names) == {"input_ids", "attention_mask", "labels", "length"}
