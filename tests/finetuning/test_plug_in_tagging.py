"""Plug-in tagging: words beside the words of their translation, windows, the loss of both sides, and a run."""

import json

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification, AutoTokenizer

from finetuning.results.table import read_results
from finetuning.run import main
from finetuning.tasks.tagging import task as tagging
from finetuning.tasks.tagging.recipe import TaggingRecipe
from zoo_core.recipes import load_recipe

NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
PLUG_IN = ["setting=translate_train_all", "translations_from=Anna, labeled by Bob", "plug_in=true"]
X = {"text_columns": ["tokens"], "label_column": "labels"}
BOTH, WORDS = {"translation_columns": ["tokens_en", "labels_en"]}, {"translation_columns": ["tokens_en"]}


def sentences(count, repeated=4):
    """Somebody goes somewhere, in two languages; every fourth text, and every third translation, is long."""
    rows = []
    for number in range(count):
        name, place = ("Dora", "Emil", "Franz")[number % 3], ("Rom", "Paris")[number % 2]
        times, times_en = (repeated if number % every == 0 else 1 for every in (4, 3))
        rows.append(
            {
                "id": number,
                "tokens": [name, "ging", "nach", place] * times,
                "labels": ["B-PER", "O", "O", "B-LOC"] * times,
                "tokens_en": [name, "Smith", "went", "to", place] * times_en,
                "labels_en": ["B-PER", "I-PER", "O", "O", "B-LOC"] * times_en,
            }
        )
    return rows


def read(train, evaluation, *overrides):
    base = ["model=m", "output_dir=o", "task=t", "kind=tagging", "selection=last", "training.learning_rate=1"]
    tables = [
        f"{part}={json.dumps([{**X, 'languages': ['de'], **table}])}"
        for part, table in (("train", train), ("evaluation", evaluation))
    ]
    return tagging.read(load_recipe(TaggingRecipe, None, [*base, *PLUG_IN, *tables, *overrides]))


def test_words_and_labels_of_both_sides_are_read_by_name(write):
    gold = Features(
        {
            "id": Value("int64"),
            "tokens": Sequence(Value("string")),
            "labels": Sequence(Value("string")),
            "tokens_en": Sequence(Value("string")),
            "labels_en": Sequence(ClassLabel(names=NAMES)),  # gold English beside text that a model has labeled
        }
    )
    rows = sentences(6)
    numbered = [{**row, "labels_en": [NAMES.index(name) for name in row["labels_en"]]} for row in rows]
    data = read({"path": write("train", numbered, gold), **BOTH}, {"path": write("test", rows), **WORDS})
    assert data.train.column_names == ["words", "tags", "translation_words", "translation_tags"]
    assert data.evaluation["de"].column_names == ["words", "tags", "translation_words"]
    for mine, theirs in (("tags", "labels"), ("translation_tags", "labels_en")):
        named = [[data.label_names[tag] for tag in tags] for tags in data.train[mine][:]]
        assert named == [row[theirs] for row in rows]


def test_translations_are_joined(write):
    rows = sentences(6)
    other = write("en", [{"id": row["id"], "words": row["tokens_en"], "tags": row["labels_en"]} for row in rows[::-1]])
    train = {"path": write("train", rows), "translations": {"path": other, "text_columns": ["words", "tags"]}}
    test = {"path": write("test", rows), "translations": {"path": write("en2", rows), "text_columns": ["tokens_en"]}}
    data = read(train, test)
    assert data.train["translation_words"][:] == [row["tokens_en"] for row in rows]
    assert [table["translations"]["join_on"] for table in data.protocol["training_data"]] == ["id"]


@pytest.mark.parametrize(
    ("changes", "train", "test", "message"),
    [
        (
            {},
            WORDS,
            WORDS,
            "train.0 names 1 columns of translations.*Both sides are learned from.*Name 2.*en, labels_en",
        ),
        ({}, BOTH, BOTH, "evaluation.0 names 2 columns.*Only labels of the text itself are.*Name 1, as"),
        ({"tokens_en": []}, BOTH, WORDS, "row 1 .*5 labels in column labels_en"),
        ({"tokens_en": [], "labels_en": []}, BOTH, WORDS, "row 1 .*its translation, column tokens_en, has no words"),
        ({"labels_en": ["B-PRE"] * 5}, BOTH, WORDS, None),  # a type of its own is one of the training data's labels
        ({"tokens_en": "Emil went"}, BOTH, WORDS, None),
        ({}, {"translation_columns": ["tokens_de", "labels_en"]}, WORDS, "no column tokens_de.*Did you mean"),
        ({}, {"translation_columns": ["tokens_en", "id"]}, WORDS, "column id holds int64, not lists"),
    ],
)
def test_translations_that_cannot_be_read_are_named(write, changes, train, test, message):
    if changes.get("tokens_en") == "Emil went":
        rows, message = [{**row, **changes} for row in sentences(4)], "column tokens_en holds string, not lists"
    else:
        rows = [{**row, **(changes if row["id"] == 1 else {})} for row in sentences(4)]
    tables = {"path": write("train", rows), **train}, {"path": write("test", sentences(4)), **test}
    if message is None:
        assert "B-PRE" in read(*tables).label_names
        return
    with pytest.raises(ValueError, match=message):
        read(*tables)


def test_each_window_stands_beside_the_whole_translation_whose_labels_count_once(write, sample_tokenizer):
    rows = sentences(12)
    data = read({"path": write("train", rows), **BOTH}, {"path": write("test", rows), **WORDS})
    encoded = tagging.encode(data, sample_tokenizer, 32, "first")
    assert "translation_labels" not in encoded.evaluation["de"].column_names
    split = [number for number in range(12) if encoded.train["sentence"][:].count(number) > 1]
    cut = 0
    for number, row in enumerate(rows):
        windows = [window for window in encoded.train if window["sentence"] == number]
        whole = sample_tokenizer(row["tokens_en"], is_split_into_words=True)
        kept = whole["input_ids"] if len(whole["input_ids"]) <= 32 else [*whole["input_ids"][:31], 2]
        cut += kept != whole["input_ids"]
        words = whole.word_ids()
        firsts = {words.index(word): tag for word, tag in enumerate(row["labels_en"])}
        expected = [
            data.label_names.index(firsts[place]) if place in firsts and place < 31 else -100
            for place in range(len(kept))
        ]
        for place, window in enumerate(windows):
            assert window["translation_input_ids"] == kept and set(window["translation_attention_mask"]) == {1}
            assert window["translation_labels"] == (expected if place == 0 else [-100] * len(kept))
            assert window["length"] == len(window["input_ids"]) + len(kept)
            assert len(window["input_ids"]) <= 32
    assert split == [0, 4, 8] and cut == 4
    assert encoded.protocol["cut_translations"]["train"] == {"all": 4}
    assert encoded.protocol["cut_translations"]["evaluation"] == {"de": 4}
    assert encoded.protocol["split_texts"]["train"] == {"all": 3}


@pytest.fixture
def plug_in_people(plug_in_veco, tmp_path):
    """Overrides of a plug-in tagging recipe, one seed of twelve steps."""
    for name, count in (("train", 48), ("test", 9)):
        Dataset.from_list(sentences(count)).to_parquet(tmp_path / f"{name}.parquet")
    tables = {"train": {"path": f"{tmp_path}/train.parquet", **BOTH}}
    tables["evaluation"] = {"path": f"{tmp_path}/test.parquet", **WORDS}
    return [
        "kind=tagging",
        "label_subword=first",
        f"model={plug_in_veco}",
        f"output_dir={tmp_path / 'out'}",
        "task=people",
        *PLUG_IN,
        *(f"{part}={json.dumps([{**X, 'languages': ['de'], **table}])}" for part, table in tables.items()),
        "selection=last",
        "max_length=40",
        "training.learning_rate=1e-2",
        "training.batch_size=16",
        "training.max_steps=12",
    ]


@pytest.mark.slow
def test_a_run_leaves_scores_that_the_saved_model_gives_beside_the_translations(plug_in_people, tmp_path):
    main(plug_in_people)
    results = read_results(tmp_path / "out")
    assert results.languages["de"]["mean"] > 60  # it has learned something
    assert results["protocol"]["plug_in"] is True and results["protocol"]["cut_translations"]["evaluation"] == {"de": 3}
    folder = tmp_path / "out" / "seed-1" / "model"
    model = AutoModelForTokenClassification.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)

    def predictions(others):
        """Labels of the sentences that are one window, each by itself, beside the words of `others`."""
        found = []
        for row, other in zip(sentences(9), others, strict=True):
            x = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
            y = tokenizer(other, is_split_into_words=True, return_tensors="pt", truncation=True, max_length=40)
            if x["input_ids"].shape[1] <= 40:
                y = {f"translation_{name}": values for name, values in y.items()}
                with torch.no_grad():
                    logits = model(**x, **y).logits[0]
                words = x.word_ids(0)
                found.append(logits[[words.index(word) for word in range(len(row["tokens"]))]])
        return found

    beside = predictions([row["tokens_en"] for row in sentences(9)])
    elsewhere = predictions([["Paris"]] * 9)
    assert len(beside) == 6
    assert not any(torch.allclose(one, other) for one, other in zip(beside, elsewhere, strict=True))
    recipe = load_recipe(TaggingRecipe, None, plug_in_people)
    data = tagging.KIND.encode(tagging.read(recipe), tokenizer, recipe)
    record = json.loads((tmp_path / "out" / "seed-1" / "scores.json").read_text(encoding="utf-8"))
    rows = data.evaluation["de"]
    fields = ("input_ids", "attention_mask", "translation_input_ids", "translation_attention_mask")
    found = []
    for row in rows:
        with torch.no_grad():
            logits = model(**{name: torch.tensor([row[name]]) for name in fields}).logits[0]
        found.append(logits.argmax(-1).tolist())
    assert tagging.score(recipe, data, "evaluation", "de", found) == pytest.approx(record["all_scores"]["de"])
    by_sentence, _ = tagging.labels_of_sentences(rows, found, data.label_names)
    short = [labels for labels in by_sentence if len(labels) == 4]
    assert short == [[model.config.id2label[number] for number in one.argmax(-1).tolist()] for one in beside]


@pytest.mark.slow
def test_an_update_is_the_same_however_the_words_of_both_sides_are_divided(plug_in_people, tmp_path):
    one = [*plug_in_people, "training.max_steps=2", "training.max_grad_norm=0.01"]
    main(one)
    main([*one, f"output_dir={tmp_path / 'four'}", "training.gradient_accumulation_steps=4"])
    whole, split = (load_file(tmp_path / name / "seed-1" / "model" / "model.safetensors") for name in ("out", "four"))
    assert all(torch.allclose(whole[name], split[name], atol=1e-5) for name in whole)
