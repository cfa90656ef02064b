"""Words and labels: schemes of spans, windows and back to sentences, a run, and scores by label."""

import itertools
import random
import shutil

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Features, Sequence, Value
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support
from transformers import AutoModelForTokenClassification, AutoTokenizer

from crosslingual_zoo.finetuning.data.label_schemes import form_of, to_iob2
from crosslingual_zoo.finetuning.recipe import TaggingRecipe
from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.tasks import tagging
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.provenance import read_json, write_json
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.labeled_rows import sentences
from tests.finetuning.tasks import encode, labels_of_words, read_alike, recipe_with, record_of

SCHEMES = {
    "IOB1": "I I I O I B B I",
    "IOB2": "B I I O B B B I",
    "IOBES": "B I E O S S B E",
    "BILOU": "B I L O U U B L",
    "BMES": "B M E O S S B E",
    "BMEW": "B M E O W W B E",
}


def labels_of(marks, form):
    """Three persons and two places; a type may hold the mark's hyphen."""
    types = "PER-x PER-x PER-x O LOC-x LOC-x PER-x PER-x".split()
    labels = [form.replace("TYPE", name).replace("B", mark) for mark, name in zip(marks, types, strict=True)]
    return [label if mark != "O" else "O" for mark, label in zip(marks, labels, strict=True)]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("form", ["B-TYPE", "TYPE-B", "B"])
def test_to_iob2_same_spans_of_every_scheme(scheme, form):
    labels = labels_of(SCHEMES[scheme].split(), form)
    assert form_of(labels) == form
    assert to_iob2(labels, form) == labels_of(SCHEMES["IOB2"].split(), form.replace("TYPE-B", "B-TYPE"))


@pytest.mark.parametrize("marks", ["BI", "BIES"])
def test_to_iob2_of_any_sequence_has_the_spans_of_seqeval(marks):
    draw = random.Random(0)
    all_labels = ["O"]
    for mark in marks:
        all_labels += [f"{mark}-PER", f"{mark}-LOC"]
    for _ in range(300):
        labels = draw.choices(all_labels, k=draw.randint(1, 9))
        converted = to_iob2(labels, "B-TYPE")
        assert get_entities(converted) == get_entities(labels)
        assert to_iob2(converted, "B-TYPE") == converted
        begins = [word for word, label in enumerate(converted) if label.startswith("B-")]
        assert begins == [start for _, start, _ in get_entities(labels)]


@pytest.mark.parametrize(
    "tags",
    [
        *("NOUN VERB", "N O S L U M E V", "PER LOC O", "_", "", "S----3MS2- I--------- N"),
        *("B I O X", "I O N", "S O", "B W", "S M L", "E I", "B", "I"),
    ],
)
def test_form_of_tags_also_such_as_look_like_marks(tags):
    assert form_of(tags.split()) is None


@pytest.mark.parametrize("marks", ["BIO", "BIESO", "BI", "IO", "BO"])
def test_chunk_scores_of_marks_without_a_type_are_those_of_seqeval(marks):
    draw = random.Random(0)
    for _ in range(100):
        lengths = [draw.randint(1, 9) for _ in range(4)]
        gold = [draw.choices(marks, k=length) for length in lengths]
        predicted = [draw.choices(marks, k=length) for length in lengths]
        scores = tagging.chunk_scores(gold, predicted, marks)
        precision, recall, f1, _ = precision_recall_fscore_support(gold, predicted, average="micro", zero_division=0)
        assert scores["precision"] == pytest.approx(100 * precision)
        assert scores["recall"] == pytest.approx(100 * recall)
        assert scores["f1"] == pytest.approx(100 * f1)


def rows(tags, column="ner_tags", **more):
    return [{"tokens": [f"word{i}" for i in range(len(row))], column: row, **more} for row in tags]


def read(train, evaluation):
    """The data of a table that is trained on, and of a German one."""
    columns = {"text_columns": ["tokens"], "label_column": "ner_tags"}
    return read_alike(recipe_with(TaggingRecipe, [columns | train], [columns | {"languages": ["de"]} | evaluation]))


def names_of(data, dataset):
    """The tags of each sentence, by name."""
    return [list(map(data.label_names.__getitem__, tags)) for tags in dataset["tags"][:]]


def test_read_of_marks_without_a_type_and_of_tags_of_one_letter(write):
    data = read(
        {"path": write("marks", rows([["B", "M", "E"], ["S", "B"]]))},
        {"path": write("other", rows([["B", "E"], ["S"]]))},
    )
    assert data.label_names == ["B", "I"]
    assert data.warnings == []
    assert names_of(data, data.train) == [["B", "I", "I"], ["B", "B"]]
    tags = [["B", "I", "X"], ["O", "N"]]
    data = read({"path": write("tags", rows(tags))}, {"path": write("few", rows([["B", "I"], ["O"]]))})
    assert names_of(data, data.train) == tags
    assert len(data.warnings) == 1
    # a language may lack the labels that show it
    gold = [["B", "I", "O"]]
    predicted = [["B", "O", "O"]]
    assert tagging.chunk_scores(gold, predicted, data.label_names)["precision"] == 100
    assert tagging.chunk_scores(gold, predicted)["precision"] == 0


IOB2 = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


CLASSES = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(ClassLabel(names=IOB2))})


@pytest.mark.parametrize("missing", [-1, -100])
def test_read_words_without_a_label_in_every_form(write, missing):
    tags = [[0, missing, 1], [missing, missing]]
    digits = [list(map(str, sentence)) for sentence in tags]
    tables = [
        {"path": write("classes", rows(tags), CLASSES)},
        {"path": write("names", rows([["O", "_", "B-PER"], ["_", "_"]]))},
        {"path": write("numbers", rows(tags)), "label_names": IOB2},
        {"path": write("digits", rows(digits)), "label_names": IOB2},
        {"path": write("plain", rows(tags))},
    ]
    for table in tables:
        data = read(table, table)
        assert data.train["words"][:] == [["word0", "word1", "word2"]]
        ((first, second, third),) = data.train["tags"][:]
        assert second == IGNORED
        assert [data.label_names[first], data.label_names[third]] in (["O", "B-PER"], ["0", "1"])


TAGS = [["B-PER", "I-PER", "O"], ["O", "B-LOC"], ["B-PER", "B-PER", "B-LOC", "I-LOC"]]


def test_read_matches_labels_by_name(write):
    def numbered(names):
        return rows([list(map(names.index, tags)) for tags in TAGS])

    classes = {"path": write("classes", numbered(IOB2), CLASSES)}
    bare = {"path": write("bare", numbered(IOB2)), "label_names": IOB2}
    backwards = {"path": write("backwards", numbered(IOB2[::-1])), "label_names": IOB2[::-1]}
    text = {"path": write("text", rows(TAGS))}
    for train, test in ((classes, bare), (classes, text), (bare, classes), (bare, text), (text, backwards)):
        data = read(train, test)
        assert data.label_names == (sorted(IOB2) if train == text else IOB2)
        assert data.warnings == []
        assert names_of(data, data.train) == names_of(data, data.evaluation["de"]) == TAGS


def encoded(write, tokenizer, sentences, max_length, label_subword="first"):
    content = [{"tokens": words, "ner_tags": tags} for words, tags in sentences]
    data = read({"path": write("train", content)}, {"path": write("test", content)})
    return encode(TaggingRecipe(max_length=max_length, label_subword=label_subword), data, tokenizer)


def test_encode_words_without_a_label(write, sample_tokenizer):
    sentences = [(["x", "y", "z"], ["B-PER", "_", "I-PER"]), (["x"], ["O"]), (["x"], ["_"])]
    data = encoded(write, sample_tokenizer, sentences, 64, "first_with_text")
    labels = [label for label in data.train["labels"][0] if label != IGNORED]
    assert [data.label_names[label] for label in labels] == ["B-PER", "B-PER"]  # the second begins a chunk
    assert sorted(data.label_names) == ["B-PER", "I-PER", "O"]
    windows = data.evaluation["de"]
    assert len(tagging.words_of_sentences(windows, windows["labels"][:])[0]) == 2


def test_encode_labels_the_first_subword_with_text(write, sample_tokenizer):
    words = ["雨", "我", "喜", "a", "雨"]
    first = []
    first_with_text = []
    for word in words:
        subwords = sample_tokenizer([word], is_split_into_words=True, add_special_tokens=False).tokens()
        first.append(subwords[0])
        first_with_text.append(next(subword for subword in subwords if subword != "▁"))
    assert first.count("▁") in (2, 3, 4)
    for rule, expected in (("first", first), ("first_with_text", first_with_text)):
        data = encoded(write, sample_tokenizer, [(words, ["O", "O", "O", "O", "B-LOC"])], 64, rule)
        (row,) = data.evaluation["de"].to_list()
        is_labeled = np.array(row["labels"]) != IGNORED
        assert sample_tokenizer.convert_ids_to_tokens(np.array(row["input_ids"])[is_labeled]) == expected


def test_encode_predicts_every_word_once(write, sample_tokenizer):
    draw = random.Random(0)
    vocabulary = ["a", "dog", "runs", "\u200b", "", "Bern", "extraordinarily" * 4, "Donaudampfschifffahrt"]
    lengths = (1, 2, 7, 40, 90)
    words = [draw.choices(vocabulary, k=length) for length in lengths]
    tags = [to_iob2(draw.choices(IOB2, k=length), "B-TYPE") for length in lengths]
    data = encoded(write, sample_tokenizer, zip(words, tags, strict=True), 12)
    windows = data.evaluation["de"]
    assert max(windows["length"][:]) <= 12
    assert data.protocol["split_texts"]["evaluation"]["de"] >= 2
    too_long = [word for word in itertools.chain(*words) if len(sample_tokenizer.tokenize(word)) > 10]
    assert data.protocol["cut_texts"]["evaluation"]["de"] == len(too_long)
    assert windows["input_ids"][:][0][0] == sample_tokenizer.bos_token_id
    assert all(row[-1] == sample_tokenizer.eos_token_id for row in windows["input_ids"][:])

    # predictions padded to the longest: every word's own label comes back
    labels = windows["labels"][:]
    padded = zip(*itertools.zip_longest(*labels, fillvalue=IGNORED), strict=True)
    tags_by_sentence = tagging.words_of_sentences(windows, np.array(list(padded)))
    assert [list(map(data.label_names.__getitem__, sentence)) for sentence in tags_by_sentence] == tags


@pytest.mark.slow
def test_tagging_scores_are_those_of_the_saved_model(people, people_run):
    results = read_results(people_run)
    assert results["kind"] == "tagging"
    assert list(results.languages) == ["en", "de"]
    assert results.languages["en"]["mean"] > 60  # it has learned something
    assert results.metrics == ["f1", "precision", "recall", "token_accuracy"]
    assert results["protocol"]["labels"] == ["B-LOC", "B-PER", "I-PER", "O", "I-LOC"]
    assert results["protocol"]["split_texts"]["evaluation"] == {"en": 3, "de": 3}

    # the German sentences that are one window, each by itself, without the run's windows and batches
    folder = people_run / "seed-1" / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForTokenClassification.from_pretrained(folder)
    short = [row["tokens"] for row in sentences("de", 9) if len(row["tokens"]) == 5]
    by_hand = [labels_of_words(model, tokenizer, words) for words in short]
    task = task_of(load_recipe(TaggingRecipe, None, people))
    data = encode(task.recipe, task.read(), tokenizer)
    windows = data.evaluation["de"]
    inputs = windows.select_columns(["input_ids", "attention_mask", "labels"]).to_list()
    with torch.no_grad():
        predictions = model(**task.collator(tokenizer)(inputs)).logits.argmax(-1).numpy()
    predicted = []
    for tags in tagging.words_of_sentences(windows, predictions):
        predicted.append([data.label_names[tag] for tag in tags])
    assert len(by_hand) == 6
    assert [labels for labels in predicted if len(labels) == 5] == by_hand
    outcome = task.outcome(data, "evaluation", "de", predictions)
    assert outcome.scores == pytest.approx(record_of(people_run / "seed-1")["all_scores"]["de"])


def test_begin_pads_on_the_right(people, tiny_model, tmp_path):
    left = shutil.copytree(tiny_model, tmp_path / "left")
    settings = read_json(left / "tokenizer_config.json")
    write_json(left / "tokenizer_config.json", settings | {"padding_side": "left"})
    task = task_of(load_recipe(TaggingRecipe, None, [*people, f"model={left}"]))
    task.open()
    assert task.start.tokenizer.padding_side == "right"
