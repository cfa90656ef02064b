"""Tables to encoded rows: languages, labels, selection data, and all their faults."""

import re

import pandas
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from crosslingual_zoo.finetuning.recipe import Recipe
from crosslingual_zoo.finetuning.tasks.registry import task_of
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


@pytest.mark.parametrize("form", ["csv", "tsv", "numbers.csv", "jsonl", "numbers.jsonl", "numbers", "classes", "names"])
def test_read_leaves_out_rows_without_a_label_in_every_format(write, tmp_path, form):
    def table(name, labels):
        labeled = rows(labels)
        if "numbers" not in form and form != "classes":
            labeled = rows([NLI[label] if label >= 0 else "-" for label in labels])
        path = tmp_path / f"{name}.{form}"
        if form.endswith("sv"):
            pandas.DataFrame(labeled).to_csv(path, index=False, sep="\t" if form == "tsv" else ",")
        elif form.endswith("jsonl"):
            pandas.DataFrame(labeled).to_json(path, orient="records", lines=True)
        elif form == "names":  # `-` among the names of the classes
            Dataset.from_list(labeled).class_encode_column("label").to_parquet(path := tmp_path / f"{name}.parquet")
        else:
            kinds = {"classes": ClassLabel(names=NLI), "numbers": Value("int64")}
            path = write(name, labeled, Features({"text": Value("string"), "label": kinds[form]}))
        return str(path)

    data = read({"path": table("train", [0, 1, -1, 2, 2])}, evaluated(table("test", [-1, 2, 1, 0, -1, 0])))
    assert sorted(data.label_names) == (["0", "1", "2"] if "numbers" in form else sorted(NLI))
    expected = ["2", "1", "0", "0"] if "numbers" in form else [NLI[label] for label in (2, 1, 0, 0)]
    assert [data.label_names[id] for id in data.evaluation["de"]["labels"]] == expected
    assert data.train["row"][:] == [0, 1, 3, 4] and data.evaluation["de"]["row"][:] == [1, 2, 3, 5]
    assert data.protocol["training_rows"] == 4 and data.protocol["evaluated_rows"] == {"de": 4}
    assert [part[0]["unlabeled"] for part in (data.protocol["training_data"], data.protocol["evaluation_data"])] == [
        1,
        2,
    ]
    (line,) = data.warnings
    assert re.findall(r"\b(\d) of (\d)", line) == [("1", "5"), ("2", "6")]


@pytest.mark.parametrize("labels", [[-1, 0, 1, 1], ["-1", "0", "1", "1"], ["-", "0", "+", "+"]])
def test_read_label_names_can_hold_what_means_no_label_elsewhere(write, labels):
    path = write("train", rows(labels))
    names = list(dict.fromkeys(map(str, labels)))
    data = read({"path": path, "label_names": names}, evaluated(path, label_names=names))
    assert data.label_names == names and data.train["labels"][:] == [0, 1, 2, 2]
    assert [line for line in data.warnings if "left out" in line] == []


def test_read_leaves_out_development_rows_without_a_label(tmp_path):
    parts = {"train": rows([0, 1, 2]), "dev": rows([0, -1, 1, -1]), "test": rows([2, 1, 0])}
    path = write_configs(tmp_path, {"en": parts})
    test = [{"path": path, "config": "en", "languages": ["en"], "dev_split": "dev"}]
    for selection in ("source_dev", "mean_dev"):
        recipe = recipe_with(Recipe, [{"path": path, "config": "en"}], test, f"selection={selection}")
        data = task_of(recipe).read()
        assert data.dev["en"]["row"][:] == [0, 2] and data.protocol["selection"]["rows"] == {"en": 2}
        assert re.findall(r"\d of \d", data.warnings[0]) == ["2 of 4"]


def test_read_refuses_tables_of_one_label_and_none(write):
    train, binary = write("train", rows([0, 1])), write("binary", rows([-1, 1, 1, -1]))
    with pytest.raises(ValueError, match="train.*'1'.* 2 .*label_names"):
        read({"path": binary}, evaluated(train))
    with pytest.raises(ValueError, match="none of its 3 rows"):
        read({"path": train}, evaluated(write("hidden", rows([-1] * 3))))


def test_read_counts_texts_of_an_earlier_part(tmp_path):
    texts = {"train": "ax by by cx", "dev": "cx dy", "de": "ay ex", "fr": "by dy fx"}
    split = {name: [{"text": row[0], "label": row[1]} for row in of.split()] for name, of in texts.items()}
    parts = {"en": {"train": split["train"], "dev": split["dev"]}}
    path = write_configs(tmp_path, parts | {language: {"test": split[language]} for language in ("de", "fr")})
    train = [{"path": path, "config": "en", "dev_split": "dev"}]
    test = [{"path": path, "config": "{language}", "languages": ["de", "fr"]}]
    data = task_of(recipe_with(Recipe, train, test, "selection=source_dev")).read()
    found = [re.findall("[0-9]+", line) for line in data.warnings if "whose text" in line]
    # c of dev; a of de, with another label, and b of fr; d of fr
    assert found == [["1", "2"], ["1", "2", "1", "1", "3"], ["1", "3"]]


def test_read_counts_equal_texts_with_different_labels(write):
    def table(name, labeled):
        return write(name, [{"text": row[0], "label": row[1]} for row in labeled.split()])

    def warnings_of(path):
        return task_of(recipe_with(Recipe, [train], [evaluated(path)])).read().warnings

    train = {"path": table("train", "ax ay bx bx cy")}
    warnings = warnings_of(table("test", "bx cx dy dy ex"))
    # b and c are in train, c with another label; a has two labels in train
    assert [re.findall("[0-9]+", line) for line in warnings] == [["2", "5", "1"], ["2", "5"]]
    assert warnings_of(table("other", "dx ey")) == warnings[1:]


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


@pytest.mark.parametrize(
    ("count", "options", "is_warned"),
    [
        (990, ["selection=source_dev"], True),
        (1000, ["selection=source_dev"], False),
        (30, [], False),  # the last checkpoint
        (30, ["selection=mean_dev"], True),
        (100, ["selection=mean_dev"], False),
    ],
)
def test_read_warns_of_few_held_out_rows(write, tmp_path, count, options, is_warned):
    texts = [{"text": f"text {number}", "label": NLI[number % 3]} for number in range(count)]
    test = write_configs(tmp_path / "test", {"default": {"validation": texts, "test": texts}})
    tables = {"path": test, "languages": ["en"], "dev_split": "validation" if "selection=mean_dev" in options else None}
    data = read({"path": write("train", texts)}, tables, *options)
    warnings = [warning for warning in data.warnings if "selection: last" in warning]
    assert len(warnings) == is_warned
    if is_warned:
        assert str(sum(map(len, data.dev.values()))) in warnings[0] and "\n" not in warnings[0]


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
