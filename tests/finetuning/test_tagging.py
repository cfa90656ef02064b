"""Words and labels: schemes of spans, windows and back to sentences, a run, and scores by label."""

import itertools
import json
import random
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
    parts = [label.partition("-") for label in labels.split()]
    labels = [
        mark if mark == "O" else f"{mark}-{kind}-x" if form == "B-TYPE" else f"{kind}-x-{mark}"
        for mark, _, kind in parts
    ]
    assert form_of(labels) == form
    assert to_iob2(labels, form) == [label if label == "O" else f"{label}-x" for label in SPANS]


@pytest.mark.parametrize("marks", ["BI", "BIES"])
def test_to_iob2_of_any_sequence_has_the_spans_of_seqeval(marks):
    draw = random.Random(0)
    known = ["O", *(f"{mark}-{kind}" for mark in marks for kind in ("PER", "LOC"))]
    for _ in range(300):
        labels = [draw.choice(known) for _ in range(draw.randint(1, 9))]
        converted = to_iob2(labels, "B-TYPE")
        assert get_entities(converted) == get_entities(labels)
        assert to_iob2(converted, "B-TYPE") == converted
        begins = [place for place, label in enumerate(converted) if label.startswith("B-")]
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
    assert form_of(labels) == "B" and set(iob2_names(labels, "B")) == {"B", "I", "O"}
    assert to_iob2(labels, "B") == [mark[0] for mark in SPANS]


@pytest.mark.parametrize("marks", ["BIO", "BIESO", "BI", "IO", "BO"])
def test_chunk_scores_of_marks_without_a_type_are_those_of_seqeval(marks):
    draw = random.Random(0)
    for _ in range(100):
        lengths = [draw.randint(1, 9) for _ in range(4)]
        gold, found = ([draw.choices(marks, k=length) for length in lengths] for _ in range(2))
        scores = tagging.chunk_scores(gold, found, marks)
        expected = precision_recall_fscore_support(gold, found, average="micro", zero_division=0)
        assert [scores[name] for name in ("precision", "recall", "f1")] == pytest.approx(
            [100 * score for score in expected[:3]]
        )


def test_read_of_marks_without_a_type_and_of_tags_of_one_letter(write):
    marks = [["B", "M", "E"], ["S", "B"]]
    data = read({"path": write("marks", rows(marks))}, {"path": write("other", rows([["B", "E"], ["S"]]))})
    assert data.label_names == ["B", "I"] and data.warnings == []
    assert names_of(data, data.train) == [["B", "I", "I"], ["B", "B"]]
    tags = [["B", "I", "X"], ["O", "N"]]
    data = read({"path": write("tags", rows(tags))}, {"path": write("few", rows([["B", "I"], ["O"]]))})
    assert names_of(data, data.train) == tags and len(data.warnings) == 1
    # a language may lack the labels that show it
    gold, found = [["B", "I", "O"]], [["B", "O", "O"]]
    assert tagging.chunk_scores(gold, found, data.label_names)["precision"] == 100
    assert tagging.chunk_scores(gold, found)["precision"] == 0


@pytest.mark.parametrize("missing", [-1, -100])
def test_read_words_without_a_label_as_numbers(write, missing):
    tags = [[0, missing, 1], [missing, missing]]
    as_text = [[str(tag) for tag in row] for row in tags]
    by_name = [["O", "_", "B-PER"], ["_", "_"]]
    tables = [{"path": write("classes", rows(tags), CLASSES)}, {"path": write("names", rows(by_name))}]
    for name, labels in (("numbers", tags), ("text", as_text)):
        tables.append({"path": write(name, rows(labels)), "label_names": IOB2})
    for table in tables:
        data = read(table, table)
        assert data.train["words"][:] == [["word0", "word1", "word2"]]
        (first,) = data.train["tags"][:]
        assert first[1] == IGNORED and [data.label_names[tag] for tag in first[::2]] == ["O", "B-PER"]
    data = read({"path": write("plain", rows(tags))}, {"path": write("plain", rows(tags))})
    assert data.label_names == ["0", "1"] and data.train["tags"][:] == [[0, IGNORED, 1]]


IOB2 = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
CLASSES = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(ClassLabel(names=IOB2))})
NUMBERS = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(Value("int64"))})
TAGS = [["B-PER", "I-PER", "O"], ["O", "B-LOC"], ["B-PER", "B-PER", "B-LOC", "I-LOC"]]


def rows(tags, column="ner_tags", **more):
    return [{"tokens": [f"word{i}" for i in range(len(row))], column: row, **more} for row in tags]


def read(train, evaluation, *overrides):
    columns = {"text_columns": ["tokens"], "label_column": "ner_tags"}
    train = [columns | table for table in (train if isinstance(train, list) else [train])]
    return read_alike(recipe_with(TaggingRecipe, train, [{**columns, "languages": ["de"], **evaluation}], *overrides))


def names_of(data, dataset):
    return [[data.label_names[tag] for tag in row] for row in dataset["tags"][:]]


def numbers(tags):
    return [[IOB2.index(name) for name in row] for row in tags]


def test_read_matches_labels_by_name(write):
    classes = write("classes", rows(numbers(TAGS)), CLASSES)
    bare = write("bare", rows(numbers(TAGS)), NUMBERS)
    text = write("text", rows(TAGS))
    for train in ({"path": classes}, {"path": bare, "label_names": IOB2}):
        for test in ({"path": classes}, {"path": bare, "label_names": IOB2}, {"path": text}):
            if train["path"] == test["path"]:
                continue
            data = read(train, test)
            assert data.label_names == IOB2 and data.warnings == []
            assert names_of(data, data.train) == names_of(data, data.evaluation["de"]) == TAGS
    # other numbers for the same names
    other = write("other", rows([[4 - tag for tag in row] for row in numbers(TAGS)]), NUMBERS)
    data = read({"path": text}, {"path": other, "label_names": IOB2[::-1]})
    assert names_of(data, data.evaluation["de"]) == TAGS and data.label_names == sorted(IOB2)


@pytest.mark.parametrize("tags", [[["DET", "_", "VERB"], ["NOUN"]], [["B-PER", "_", "I-PER"], ["O"]]])
def test_encode_words_without_a_label(write, sample_tokenizer, tags):
    train, test = write("train", rows([*tags, ["_", "_"]])), write("test", rows(tags))
    data = read({"path": train}, {"path": test})
    assert data.train["words"][:] == [["word0", "word1", "word2"], ["word0"]]
    first = data.train["tags"][0]
    assert first[1] == IGNORED and "_" not in data.label_names
    # I- begins a chunk where the word before it has no label
    assert data.label_names[first[2]] == ("VERB" if tags[0][2] == "VERB" else "B-PER")
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
    alone = [sample_tokenizer([word], is_split_into_words=True, add_special_tokens=False).tokens() for word in words]
    blank = [subwords[0] == "▁" for subwords in alone]
    assert sum(blank) >= 2 and not all(blank)
    for where in ("first", "first_with_text"):
        data = encoded(write, sample_tokenizer, [(words, ["O", "O", "O", "O", "B-LOC"])], 64, where)
        (row,) = data.evaluation["de"].to_list()
        subwords = sample_tokenizer.convert_ids_to_tokens(row["input_ids"])
        labeled = [subword for subword, label in zip(subwords, row["labels"], strict=True) if label != -100]
        places = [int(is_blank and where == "first_with_text") for is_blank in blank]
        skipped = [of_word[place] for of_word, place in zip(alone, places, strict=True)]
        assert labeled == skipped


def test_encode_predicts_every_word_once(write, sample_tokenizer):
    draw = random.Random(0)
    known = ["a", "dog", "runs", "\u200b", "", "Bern", "extraordinarily" * 4, "Donaudampfschifffahrt"]
    sentences = [
        (draw.choices(known, k=length), to_iob2(draw.choices(IOB2, k=length), "B-TYPE")) for length in (1, 2, 7, 40, 90)
    ]
    data = encoded(write, sample_tokenizer, sentences, 12)
    windows = data.evaluation["de"]
    assert max(windows["length"][:]) <= 12
    assert data.protocol["split_texts"]["evaluation"]["de"] >= 2
    assert data.protocol["cut_texts"]["evaluation"]["de"] == sum(
        len(sample_tokenizer(word, add_special_tokens=False)["input_ids"]) > 10
        for words, _ in sentences
        for word in words
    )
    assert windows["input_ids"][:][0][0] == sample_tokenizer.bos_token_id
    assert all(row[-1] == sample_tokenizer.eos_token_id for row in windows["input_ids"][:])

    # predictions padded to the longest: every word's own label comes back
    labels = windows["labels"][:]
    width = max(map(len, labels))
    predictions = np.array([[*row, *[-100] * (width - len(row))] for row in labels])
    found = tagging.words_of_sentences(windows, predictions)
    assert [[data.label_names[tag] for tag in tags] for tags in found] == [tags for _, tags in sentences]


SCHEMES = {
    "iob1": "I-PER I-PER O|O I-LOC|I-PER B-PER I-LOC I-LOC",
    "iobes": "B-PER E-PER O|O S-LOC|S-PER S-PER B-LOC E-LOC",
}


def test_read_every_scheme_as_iob2(write, tmp_path):
    tables = []
    for name, labels in SCHEMES.items():
        tags = [of_sentence.split() for of_sentence in labels.split("|")]
        known = sorted(set(itertools.chain(*tags)))
        ids = [[known.index(tag) for tag in sentence] for sentence in tags]
        tables += [{"path": write(name, rows(tags))}]
        tables += [{"path": write(f"{name} ids", rows(ids), NUMBERS), "label_names": known}]
    lines = "\n\n".join("\n".join(f"word X {tag}" for tag in tags) for tags in TAGS)
    (tmp_path / "deu.conll").write_text(f"-DOCSTART- -X- O\n\n{lines}\n", encoding="utf-8")
    data = read(tables, {"path": str(tmp_path / "deu.conll"), "label_column": "tags"})
    assert names_of(data, data.train) == TAGS * len(tables) and set(data.label_names) == set(IOB2)
    assert names_of(data, data.evaluation["de"]) == TAGS


COLUMNS = ("input_ids", "attention_mask", "labels")


@pytest.mark.slow
def test_tagging_scores_are_those_of_the_saved_model(people, people_run):
    out = people_run
    results = read_results(out)
    assert results["kind"] == "tagging" and list(results.languages) == ["en", "de"]
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
        if batch["input_ids"].shape[1] <= 40:
            places = zip(batch.word_ids(0), batch.tokens(), strict=True)
            words = [word if token.strip("▁") else None for word, token in places]  # labels are at the first with text
            with torch.no_grad():
                predicted = model(**batch).logits[0].argmax(-1).tolist()
            by_hand.append([model.config.id2label[predicted[words.index(word)]] for word in range(len(row["tokens"]))])
    recipe = load_recipe(TaggingRecipe, None, people)
    data = encode(recipe, task_of(recipe).read(), tokenizer)
    rows = data.evaluation["de"]
    batch = tagging.TaggingTask.collator(tokenizer)(
        [dict(zip(COLUMNS, map(row.get, COLUMNS), strict=True)) for row in rows]
    )
    with torch.no_grad():
        predictions = model(**batch).logits.argmax(-1).numpy()
    words = tagging.words_of_sentences(rows, predictions)
    found = [[data.label_names[number] for number in sentence] for sentence in words]
    assert len(by_hand) == 6 and [labels for labels in found if len(labels) == 5] == by_hand
    outcome = task_of(recipe).outcome(data, "evaluation", "de", predictions)
    assert outcome.scores == pytest.approx(record["all_scores"]["de"])


def test_begin_pads_on_the_right(people, tiny_model, tmp_path):
    left = shutil.copytree(tiny_model, tmp_path / "left")
    settings = json.loads((left / "tokenizer_config.json").read_text(encoding="utf-8"))
    (left / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": "left"}), encoding="utf-8")
    task = task_of(load_recipe(TaggingRecipe, None, [*people, f"model={left}"]))
    task.open()
    assert task.start.tokenizer.padding_side == "right"
