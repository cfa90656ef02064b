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


LABEL_OF = dict(enumerate(NLI)) | {-1: "-"}
CLASSES = Features({"text": Value("string"), "label": ClassLabel(names=NLI)})


def read(train, evaluation, *overrides):
    return read_alike(recipe_with(Recipe, [train], [evaluation], *overrides))


def rows(labels, column="label", **more):
    return [{"text": f"text {i}", column: label, **more} for i, label in enumerate(labels)]


def evaluated(path, **fields):
    return {"path": path, "languages": ["de"], **fields}


def test_read_matches_labels_by_name(write):
    train = write("train", rows([0, 1, 2, 2]), CLASSES)
    names = write("names", rows(["contradiction", "entailment", "neutral"]))
    other = Features({"text": Value("string"), "label": ClassLabel(names=NLI[::-1])})
    for path, expected in ((names, [2, 0, 1]), (write("numbered", rows([0, 1, 2]), other), [2, 1, 0])):
        data = read({"path": train}, evaluated(path))
        assert data.label_names == NLI
        assert data.train["labels"][:] == [0, 1, 2, 2]
        assert data.evaluation["de"]["labels"][:] == expected
        assert data.warnings == []


FORMATS = {  # how a table is written, and whether by the labels' names
    "x.csv": lambda frame, path: frame.to_csv(path, index=False),
    "x.tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    "x.jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True),
    "x.parquet": lambda frame, path: frame.to_parquet(path),
    # `-` among the names of the classes
    "names.parquet": lambda frame, path: Dataset.from_pandas(frame).class_encode_column("label").to_parquet(path),
    "classes.parquet": lambda frame, path: Dataset.from_pandas(frame, features=CLASSES).to_parquet(path),
}


@pytest.mark.parametrize(
    ("form", "names"),
    [
        *((form, NLI) for form in ("x.csv", "x.tsv", "x.jsonl", "names.parquet", "classes.parquet")),
        *((form, ["0", "1", "2"]) for form in ("x.csv", "x.jsonl", "x.parquet")),
    ],
)
def test_read_leaves_out_rows_without_a_label_in_every_format(tmp_path, form, names):
    def table(name, labels):
        if names == NLI and form != "classes.parquet":
            labels = [LABEL_OF[label] for label in labels]
        path = tmp_path / f"{name}.{form}"
        FORMATS[form](pandas.DataFrame(rows(labels)), path)
        return str(path)

    data = read({"path": table("train", [0, 1, -1, 2, 2])}, evaluated(table("test", [-1, 2, 1, 0, -1, 0])))
    assert sorted(data.label_names) == sorted(names)
    evaluated_labels = [data.label_names[number] for number in data.evaluation["de"]["labels"]]
    assert evaluated_labels == [names[2], names[1], names[0], names[0]]
    assert data.train["row"][:] == [0, 1, 3, 4]
    assert data.evaluation["de"]["row"][:] == [1, 2, 3, 5]
    assert data.protocol["training_rows"] == 4
    assert data.protocol["evaluated_rows"] == {"de": 4}
    assert data.protocol["training_data"][0]["unlabeled"] == 1
    assert data.protocol["evaluation_data"][0]["unlabeled"] == 2
    (line,) = data.warnings
    assert re.findall(r"\b(\d) of (\d)", line) == [("1", "5"), ("2", "6")]


@pytest.mark.parametrize("labels", [[-1, 0, 1, 1], ["-1", "0", "1", "1"], ["-", "0", "+", "+"]])
def test_read_label_names_can_hold_what_means_no_label_elsewhere(write, labels):
    path = write("train", rows(labels))
    names = list(dict.fromkeys(map(str, labels)))
    data = read({"path": path, "label_names": names}, evaluated(path, label_names=names))
    assert data.label_names == names
    assert data.train["labels"][:] == [0, 1, 2, 2]
    assert [line for line in data.warnings if "left out" in line] == []


def test_read_leaves_out_development_rows_without_a_label(tmp_path):
    parts = {"train": rows([0, 1, 2]), "dev": rows([0, -1, 1, -1]), "test": rows([2, 1, 0])}
    path = write_configs(tmp_path, {"en": parts})
    train = {"path": path, "config": "en"}
    for selection in ("source_dev", "mean_dev"):
        data = read(train, {**train, "languages": ["en"], "dev_split": "dev"}, f"selection={selection}")
        assert data.dev["en"]["row"][:] == [0, 2]
        assert data.protocol["selection"]["rows"] == {"en": 2}
        assert re.findall(r"\d of \d", data.warnings[0]) == ["2 of 4"]


def test_read_refuses_tables_of_one_label_and_none(write):
    train = write("train", rows([0, 1]))
    binary = write("binary", rows([-1, 1, 1, -1]))
    with pytest.raises(ValueError, match="train.*'1'.* 2 .*label_names"):
        read({"path": binary}, evaluated(train))
    with pytest.raises(ValueError, match="none of its 3 rows"):
        read({"path": train}, evaluated(write("hidden", rows([-1] * 3))))


def labeled(texts):
    """Rows from `ax by`: text a with label x, text b with label y."""
    return [{"text": text, "label": label} for text, label in texts.split()]


def test_read_counts_texts_of_an_earlier_part(tmp_path):
    english = {"train": labeled("ax by by cx"), "dev": labeled("cx dy")}
    others = {"de": {"test": labeled("ay ex")}, "fr": {"test": labeled("by dy fx")}}
    path = write_configs(tmp_path, {"en": english, **others})
    train = [{"path": path, "config": "en", "dev_split": "dev"}]
    test = [{"path": path, "config": "{language}", "languages": ["de", "fr"]}]
    data = task_of(recipe_with(Recipe, train, test, "selection=source_dev")).read()
    counts = [re.findall("[0-9]+", line) for line in data.warnings if "whose text" in line]
    # c of dev; a of de, with another label, and b of fr; d of fr
    assert counts == [["1", "2"], ["1", "2", "1", "1", "3"], ["1", "3"]]


def test_read_counts_equal_texts_with_different_labels(write):
    train = {"path": write("train", labeled("ax ay bx bx cy"))}

    def warnings_of(texts):
        test = evaluated(write("test", labeled(texts)))
        return task_of(recipe_with(Recipe, [train], [test])).read().warnings

    warnings = warnings_of("bx cx dy dy ex")
    # b and c are in train, c with another label; a has two labels in train
    assert [re.findall("[0-9]+", line) for line in warnings] == [["2", "5", "1"], ["2", "5"]]
    assert warnings_of("dx ey") == warnings[1:]


def test_read_languages_of_column_recipe_or_tables(write, tmp_path):
    table = write("test", rows(NLI, language="de") + rows(NLI, language="fr") + rows(NLI, language="sw"))
    train = {"path": write("train", rows(NLI))}
    test = {"path": table, "language_column": "language"}
    assert list(read(train, test).evaluation) == ["de", "fr", "sw"]
    chosen = read(train, {**test, "languages": ["sw", "de"]}).evaluation
    assert {language: part["row"][:] for language, part in chosen.items()} == {"sw": [6, 7, 8], "de": [0, 1, 2]}
    for language in ("german", "fr"):
        write(f"test.{language}", rows(NLI))
    path = str(tmp_path / "test.{language}.parquet")
    data = read(train, {"path": path, "languages": ["fr", "de"], "language_names": {"de": "german"}})
    assert list(data.evaluation) == ["fr", "de"]


def test_read_a_sample_of_the_rows_that_where_names(write):
    texts = rows(NLI * 9, domain="books") + rows(NLI * 9, domain="dvd")
    path = write("texts", texts)
    train = {"path": path, "where": {"domain": "dv*"}}
    test = evaluated(path, where={"domain": "books"})
    limits = ["max_train_examples=7", "max_evaluation_examples=5"]
    data = read(train, test, *limits)
    numbers = data.train["row"][:]
    assert read(train, test, *limits).train["row"][:] == numbers
    assert len(numbers) == 7
    assert min(numbers) >= 27
    evaluated_rows = data.evaluation["de"]
    assert len(evaluated_rows) == 5
    assert evaluated_rows["text"][:] == [texts[row]["text"] for row in evaluated_rows["row"]]


def test_read_development_rows_of_benchmark_training_set_or_held_out(tmp_path):
    languages = rows(NLI, language="en") + rows(NLI, language="de")
    benchmark = write_configs(tmp_path / "bench", {"default": {"validation": languages, "test": languages}})
    corpus = write_configs(tmp_path / "corpus", {"default": {"train": rows(NLI * 20), "validation": rows(NLI * 2)}})
    test = {"path": benchmark, "language_column": "language"}
    train = {"path": corpus}
    of_benchmark = test | {"dev_split": "validation"}
    of_corpus = train | {"dev_split": "validation"}

    def dev_rows(train, test, selection):
        data = read(train, test, f"selection={selection}")
        return {language: len(part) for language, part in data.dev.items()}

    assert dev_rows(train, of_benchmark, "source_dev") == {"en": 3}
    # also where the source language itself is not evaluated
    assert dev_rows(train, of_benchmark | {"languages": ["de"]}, "source_dev") == {"en": 3}
    assert dev_rows(train, of_benchmark, "mean_dev") == {"en": 3, "de": 3}
    assert dev_rows(of_corpus, test, "source_dev") == {"en": 6}
    assert dev_rows(train, test, "last") == {}
    data = read(train, test, "selection=source_dev")
    assert (len(data.train), len(data.dev["en"])) == (54, 6)
    assert "10% of the training rows, held out" in data.protocol["selection"]["data"]
    assert set(data.train["text"]).isdisjoint(data.dev["en"]["text"])


@pytest.mark.parametrize(
    ("count", "selection", "dev_split", "warned_rows"),
    [
        (990, "source_dev", None, ["99"]),
        (1000, "source_dev", None, []),
        (30, "last", None, []),
        (30, "mean_dev", "validation", ["30"]),
        (100, "mean_dev", "validation", []),
    ],
)
def test_read_warns_of_few_held_out_rows(write, tmp_path, count, selection, dev_split, warned_rows):
    texts = rows((NLI * count)[:count])
    path = write_configs(tmp_path / "test", {"default": {"train": texts, "validation": texts, "test": texts}})
    table = {"path": path, "languages": ["en"], "dev_split": dev_split}
    data = read({"path": path}, table, f"selection={selection}")
    warnings = [warning for warning in data.warnings if "selection: last" in warning]
    assert [re.search("[0-9]+", warning)[0] for warning in warnings] == warned_rows


def test_encode_pairs_as_xlm_r_and_count_cut_texts(write, sample_tokenizer):
    pairs = [
        {"text": "one", "pair": "two", "label": "entailment"},
        {"text": "word " * 40, "pair": "two", "label": "neutral"},
        {"text": "a", "pair": "b", "label": "contradiction"},
    ]
    table = evaluated(write("pairs", pairs), text_columns=["text", "pair"])
    encoded = encode(Recipe(max_length=16), read({**table, "languages": ["en"]}, table), sample_tokenizer)
    first, second, _ = encoded.train["input_ids"]
    bos = sample_tokenizer.bos_token_id
    eos = sample_tokenizer.eos_token_id
    x = sample_tokenizer("one", add_special_tokens=False)["input_ids"]
    y = sample_tokenizer("two", add_special_tokens=False)["input_ids"]
    assert first == [bos, *x, eos, eos, *y, eos]
    assert len(second) == 16
    assert second[-len(y) - 1 :] == [*y, eos]  # the longer text is cut, not the second
    assert encoded.protocol["cut_texts"] == {"train": {"all": 1}, "evaluation": {"de": 1}}
    assert encoded.protocol["max_length"] == 16
    assert set(encoded.train.column_names) == {"input_ids", "attention_mask", "labels", "length"}
