"""Words and labels: schemes of spans, windows and back to sentences, a run, and scores by label."""

import itertools
import json
import random
import re
import shutil

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Features, Sequence, Value
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support
from transformers import AutoModelForTokenClassification, AutoTokenizer

from crosslingual_zoo.finetuning.data.label_schemes import form_of, iob2_names, to_iob2
from crosslingual_zoo.finetuning.recipe import TaggingRecipe
from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.tasks import tagging
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.labeled_rows import sentences
from tests.finetuning.tasks import encode, read_alike, recipe_with, record_of

SPANS = "B-PER I-PER I-PER O B-LOC B-LOC B-PER I-PER".split()


@pytest.mark.parametrize(
    "labels",
    [
        " ".join(SPANS),
        "I-PER I-PER I-PER O I-LOC B-LOC I-PER I-PER",  # IOB1
        "B-PER I-PER E-PER O S-LOC S-LOC B-PER E-PER",  # IOBES
        "B-PER I-PER L-PER O U-LOC U-LOC B-PER L-PER",  # BILOU
        "B-PER M-PER E-PER O S-LOC S-LOC B-PER E-PER",  # BMES
    ],
)
@pytest.mark.parametrize("form", ["B-TYPE", "TYPE-B"])
def test_to_iob2_same_spans_of_every_scheme(labels, form):
    labels = [label.replace("-PER", "-PER-x").replace("-LOC", "-LOC-x") for label in labels.split()]
    expected = [label.replace("-PER", "-PER-x").replace("-LOC", "-LOC-x") for label in SPANS]
    if form == "TYPE-B":
        labels = [re.sub(r"(\w)-(.+)", r"\2-\1", label) for label in labels]
    assert form_of(labels) == form
    assert to_iob2(labels, form) == expected


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


@pytest.mark.parametrize(
    "labels",
    [
        "B I I O B B B I",
        "I I I O I B B I",  # IOB1
        "B I E O S S B E",
        "B I L O U U B L",
        "B M E O W W B E",
    ],
)
def test_to_iob2_same_spans_of_marks_without_a_type(labels):
    labels = labels.split()
    assert form_of(labels) == "B"
    assert set(iob2_names(labels, "B")) == {"B", "I", "O"}
    assert to_iob2(labels, "B") == [mark[0] for mark in SPANS]


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


def test_read_of_marks_without_a_type_and_of_tags_of_one_letter(write):
    marks = [["B", "M", "E"], ["S", "B"]]
    data = read({"path": write("marks", rows(marks))}, {"path": write("other", rows([["B", "E"], ["S"]]))})
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


@pytest.mark.parametrize("missing", [-1, -100])
def test_read_words_without_a_label_as_numbers(write, missing):
    tags = [[0, missing, 1], [missing, missing]]
    digits = [["0", str(missing), "1"], [str(missing), str(missing)]]
    by_name = [["O", "_", "B-PER"], ["_", "_"]]
    tables = [
        {"path": write("classes", rows(tags), CLASSES)},
        {"path": write("names", rows(by_name))},
        {"path": write("numbers", rows(tags)), "label_names": IOB2},
        {"path": write("digits", rows(digits)), "label_names": IOB2},
    ]
    for table in tables:
        data = read(table, table)
        assert data.train["words"][:] == [["word0", "word1", "word2"]]
        ((first, second, third),) = data.train["tags"][:]
        assert data.label_names[first] == "O"
        assert second == IGNORED
        assert data.label_names[third] == "B-PER"
    plain = {"path": write("plain", rows(tags))}
    data = read(plain, plain)
    assert data.label_names == ["0", "1"]
    assert data.train["tags"][:] == [[0, IGNORED, 1]]


IOB2 = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
CLASSES = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(ClassLabel(names=IOB2))})
NUMBERS = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(Value("int64"))})
TAGS = [["B-PER", "I-PER", "O"], ["O", "B-LOC"], ["B-PER", "B-PER", "B-LOC", "I-LOC"]]


def rows(tags, column="ner_tags", **more):
    return [{"tokens": [f"word{i}" for i in range(len(row))], column: row, **more} for row in tags]


def read(train, evaluation):
    """The data of a table or tables that are trained on, and of a German one."""
    columns = {"text_columns": ["tokens"], "label_column": "ner_tags"}
    if not isinstance(train, list):
        train = [train]
    evaluation = {**columns, "languages": ["de"], **evaluation}
    return read_alike(recipe_with(TaggingRecipe, [columns | table for table in train], [evaluation]))


def names_of(data, dataset):
    """The tags of each sentence, by name."""
    return [list(map(data.label_names.__getitem__, tags)) for tags in dataset["tags"][:]]


def numbers(tags, names=IOB2):
    """The tags of each sentence, as numbers."""
    return [list(map(names.index, sentence)) for sentence in tags]


def test_read_matches_labels_by_name(write):
    classes = {"path": write("classes", rows(numbers(TAGS)), CLASSES)}
    bare = {"path": write("bare", rows(numbers(TAGS)), NUMBERS), "label_names": IOB2}
    text = {"path": write("text", rows(TAGS))}
    for train, test in ((classes, bare), (classes, text), (bare, classes), (bare, text)):
        data = read(train, test)
        assert data.label_names == IOB2
        assert data.warnings == []
        assert names_of(data, data.train) == names_of(data, data.evaluation["de"]) == TAGS
    backwards = IOB2[::-1]  # other numbers for the same names
    other = write("other", rows(numbers(TAGS, backwards)), NUMBERS)
    data = read(text, {"path": other, "label_names": backwards})
    assert names_of(data, data.evaluation["de"]) == TAGS
    assert data.label_names == sorted(IOB2)


@pytest.mark.parametrize(
    ("tags", "third"),
    [
        ([["DET", "_", "VERB"], ["NOUN"]], "VERB"),
        ([["B-PER", "_", "I-PER"], ["O"]], "B-PER"),  # I- begins a chunk where the word before it has no label
    ],
)
def test_encode_words_without_a_label(write, sample_tokenizer, tags, third):
    train = write("train", rows([*tags, ["_", "_"]]))
    test = write("test", rows(tags))
    data = read({"path": train}, {"path": test})
    assert data.train["words"][:] == [["word0", "word1", "word2"], ["word0"]]
    first = data.train["tags"][0]
    assert first[1] == IGNORED
    assert "_" not in data.label_names
    assert data.label_names[first[2]] == third
    windows = encode(TaggingRecipe(max_length=64, label_subword="first_with_text"), data, sample_tokenizer)
    assert [label for label in windows.train["labels"][0] if label != IGNORED] == [first[0], first[2]]
    rows_of = windows.evaluation["de"]
    assert len(tagging.words_of_sentences(rows_of, rows_of["labels"][:])[0]) == 2


def encoded(write, tokenizer, sentences, max_length, label_subword="first"):
    content = [{"tokens": words, "ner_tags": tags} for words, tags in sentences]
    data = read({"path": write("train", content)}, {"path": write("test", content)})
    return encode(TaggingRecipe(max_length=max_length, label_subword=label_subword), data, tokenizer)


def test_encode_labels_the_first_subword_with_text(write, sample_tokenizer):
    words = ["雨", "我", "喜", "a", "雨"]
    subwords = [sample_tokenizer([word], is_split_into_words=True, add_special_tokens=False).tokens() for word in words]
    first = [subwords_of_word[0] for subwords_of_word in subwords]
    first_with_text = []
    for subwords_of_word in subwords:
        first_with_text.append(next(subword for subword in subwords_of_word if subword != "▁"))
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


SCHEMES = {
    "iob1": "I-PER I-PER O|O I-LOC|I-PER B-PER I-LOC I-LOC",
    "iobes": "B-PER E-PER O|O S-LOC|S-PER S-PER B-LOC E-LOC",
}


def test_read_every_scheme_as_iob2(write, tmp_path):
    tables = []
    for name, labels in SCHEMES.items():
        tags = [sentence.split() for sentence in labels.split("|")]
        label_names = sorted(set(itertools.chain(*tags)))
        tables.append({"path": write(name, rows(tags))})
        ids = rows(numbers(tags, label_names))
        tables.append({"path": write(f"{name} ids", ids, NUMBERS), "label_names": label_names})
    lines = ["-DOCSTART- -X- O"]
    for tags in TAGS:
        lines += ["", *(f"word X {tag}" for tag in tags)]
    (tmp_path / "deu.conll").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = read(tables, {"path": str(tmp_path / "deu.conll"), "label_column": "tags"})
    assert names_of(data, data.train) == TAGS * len(tables)
    assert set(data.label_names) == set(IOB2)
    assert names_of(data, data.evaluation["de"]) == TAGS


@pytest.mark.slow
def test_tagging_scores_are_those_of_the_saved_model(people, people_run):
    out = people_run
    results = read_results(out)
    assert results["kind"] == "tagging"
    assert list(results.languages) == ["en", "de"]
    assert results.languages["en"]["mean"] > 60  # it has learned something
    assert results.metrics == ["f1", "precision", "recall", "token_accuracy"]
    assert results["protocol"]["labels"] == ["B-LOC", "B-PER", "I-PER", "O", "I-LOC"]
    assert results["protocol"]["split_texts"]["evaluation"] == {"en": 3, "de": 3}

    record = record_of(out / "seed-1")
    looked_at = {entry["step"]: entry["eval_en_f1"] for entry in record["history"] if "eval_en_f1" in entry}
    assert record["selection_score"] == max(looked_at.values()) == looked_at[record["selected_step"]]

    # the German sentences that are one window, each by itself, without the run's windows and batches
    folder = out / "seed-1" / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    by_hand = []
    for row in sentences("de", 9):
        batch = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
        if batch["input_ids"].shape[1] > 40:
            continue
        with torch.no_grad():
            predicted = model(**batch).logits[0].argmax(-1).tolist()
        label_of_word = {}  # at its first subword with text
        for word, token, number in zip(batch.word_ids(0), batch.tokens(), predicted, strict=True):
            if word is not None and token.strip("▁"):
                label_of_word.setdefault(word, model.config.id2label[number])
        by_hand.append(list(label_of_word.values()))
    recipe = load_recipe(TaggingRecipe, None, people)
    data = encode(recipe, task_of(recipe).read(), tokenizer)
    rows = data.evaluation["de"]
    inputs = rows.select_columns(["input_ids", "attention_mask", "labels"]).to_list()
    batch = tagging.TaggingTask.collator(tokenizer)(inputs)
    with torch.no_grad():
        predictions = model(**batch).logits.argmax(-1).numpy()
    words = tagging.words_of_sentences(rows, predictions)
    predicted_labels = [list(map(data.label_names.__getitem__, sentence)) for sentence in words]
    assert len(by_hand) == 6
    assert [labels for labels in predicted_labels if len(labels) == 5] == by_hand
    outcome = task_of(recipe).outcome(data, "evaluation", "de", predictions)
    assert outcome.scores == pytest.approx(record["all_scores"]["de"])


def test_begin_pads_on_the_right(people, tiny_model, tmp_path):
    left = shutil.copytree(tiny_model, tmp_path / "left")
    settings = json.loads((left / "tokenizer_config.json").read_text(encoding="utf-8"))
    (left / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": "left"}), encoding="utf-8")
    task = task_of(load_recipe(TaggingRecipe, None, [*people, f"model={left}"]))
    task.open()
    assert task.start.tokenizer.padding_side == "right"
