"""Rows of words and labels: to windows and back to sentences, and all their faults."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import ClassLabel, Features, Sequence, Value

from finetuning.data.label_schemes import to_iob2
from finetuning.recipe import TaggingRecipe
from finetuning.tasks import tagging
from finetuning.tasks.tagging import TaggingTask
from tests.finetuning.tasks import encode, read_alike, recipe_with
from zoo_core.masking import IGNORED

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
    assert read({"path": classes}, {"path": bare}).warnings[0].startswith("labels of")


def test_read_conll(tmp_path):
    lines = [[f"word{i} X {tag}" for i, tag in enumerate(tags)] for tags in TAGS]
    text = "-DOCSTART- -X- O\n\n" + "".join("\n".join(sentence) + "\n\n" for sentence in lines)
    (tmp_path / "eng.train").write_text(text, encoding="utf-8")
    (tmp_path / "deu.conll").write_text(text.replace(" ", "\t"), encoding="utf-8")
    train = {"path": str(tmp_path / "eng.train"), "format": "conll", "label_column": "tags"}
    data = read(train, {"path": str(tmp_path / "deu.conll"), "label_column": "tags"})
    assert names_of(data, data.train) == names_of(data, data.evaluation["de"]) == TAGS


def test_read_iob1_as_iob2(write):
    iob1 = [["I-PER", "I-PER", "O"], ["O", "I-LOC"], ["I-PER", "B-PER", "I-LOC", "I-LOC"]]
    first, second = write("iob1", rows(iob1)), write("iob2", rows(TAGS))
    data = read({"path": first}, {"path": second})  # the training data never say B-LOC
    assert set(data.label_names) == set(IOB2)
    assert names_of(data, data.train) == names_of(data, data.evaluation["de"]) == TAGS
    data = read({"path": second}, {"path": first})
    assert names_of(data, data.evaluation["de"]) == TAGS


def test_read_other_labels_with_a_warning(write):
    tags = [["DET", "NOUN", "VERB"], ["NOUN", "X"]]
    data = read({"path": write("train", rows(tags))}, {"path": write("test", rows(tags))})
    assert names_of(data, data.train) == tags
    assert "compare token_accuracy" in data.warnings[0]


# one person of two words, O; O, a place; two persons, a place of two words: as TAGS
OTHER_SCHEMES = {
    "IOBES": ["B-PER E-PER O", "O S-LOC", "S-PER S-PER B-LOC E-LOC"],
    "BILOU": ["B-PER L-PER O", "O U-LOC", "U-PER U-PER B-LOC L-LOC"],
    "BMEWO": ["B-PER E-PER O", "O W-LOC", "W-PER W-PER B-LOC E-LOC"],
    "TYPE-B": ["PER-B PER-I O", "O LOC-B", "PER-B PER-B LOC-B LOC-I"],
}


def test_read_training_tables_of_several_schemes(write):
    tables = [{"path": write("iob2", rows(TAGS))}]
    for name, sentences in OTHER_SCHEMES.items():
        tags = [sentence.split() for sentence in sentences]
        tables.append({"path": write(name, rows(tags))})
        names = sorted(set(itertools.chain(*tags)))
        ids = [[names.index(tag) for tag in sentence] for sentence in tags]
        tables.append({"path": write(f"{name} ids", rows(ids), NUMBERS), "label_names": names})
    data = read(tables, {"path": write("test", rows([["U-PER", "O"], ["O", "U-LOC"]]))})
    assert names_of(data, data.train) == TAGS * len(tables) and set(data.label_names) == set(IOB2)
    assert names_of(data, data.evaluation["de"]) == [["B-PER", "O"], ["O", "B-LOC"]]


def test_read_leaves_out_rows_without_words(write):
    data = read({"path": write("train", rows([*TAGS, []]))}, {"path": write("test", rows(TAGS))})
    assert len(data.train) == 3 and "1 rows without words or labels left out" in data.warnings[0]
    with pytest.raises(ValueError, match="none of its 2 rows has a word"):
        read({"path": write("one", rows(TAGS))}, {"path": write("none", rows([[], []]), NUMBERS)})


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


def wrong(tokens, tags):
    """The good rows, and then this one."""
    return [*rows(TAGS), {"tokens": tokens, "ner_tags": tags}]


@pytest.mark.parametrize(
    ("part", "content", "fields", "named"),
    [
        ("test", [{"tokens": ["a", "b"], "ner_tags": ["O"]}], {}, "row 0 .*2 words and 1 labels"),
        ("test", wrong(["a"], ["B-PRE"]), {}, "row 3 .*'B-PRE'"),
        ("test", wrong(["a", None], ["O", "O"]), {}, "row 3 .*column tokens"),
        ("test", wrong(["a\nb"], ["O"]), {}, "row 3 .*column tokens"),
        ("test", [{"tokens": "a b", "ner_tags": ["O", "O"]}], {}, "column tokens .*string"),
        ("test", [{"tokens": ["a"], "ner_tags": [0.5]}], {}, "column ner_tags holds (double|float64)"),
        ("test", rows(TAGS), {"text_columns": ["tokens", "ner_tags"]}, "evaluation.0.text_columns"),
        ("test", rows([["O", "O"], ["O"]]), {}, "language de: all 3 words .*'O'"),
        ("train", rows([["O", "O"], ["O"]]), {"label_names": IOB2}, "training rows .*'O'"),
        ("test", rows([["B", "I", "O"]]), {}, "row 0 .*label 'B'"),
        # labels of no scheme, or of several
        ("train", rows([["B-PER", "O"], ["PER"]]), {}, "train.*'PER'"),
    ],
)
def test_read_refuses_rows(write, part, content, fields, named):
    tables = {"train": {"path": write("train", rows(TAGS))}, "test": {"path": write("test", rows(TAGS))}}
    tables[part] = {"path": write(part, content), **fields}
    with pytest.raises(ValueError, match=named):
        read(tables["train"], tables["test"])


# --- settings ---


# --- windows ---


def encoded(write, tokenizer, sentences, max_length, label_subword="first"):
    content = [{"tokens": words, "ner_tags": tags} for words, tags in sentences]
    data = read({"path": write("train", content)}, {"path": write("test", content)})
    return encode(TaggingRecipe(max_length=max_length, label_subword=label_subword), data, tokenizer)


def test_encode_labels_the_first_subword(write, sample_tokenizer):
    words, tags = ["Extraordinary", "dogs", "bark", "in", "Valparaiso"], ["O", "O", "O", "O", "B-LOC"]
    data = encoded(write, sample_tokenizer, [(words, tags)], 64)
    (row,) = data.train.to_list()
    alone = [sample_tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    assert max(map(len, alone)) > 1
    subwords = list(itertools.chain(*alone))
    assert row["input_ids"] == [sample_tokenizer.bos_token_id, *subwords, sample_tokenizer.eos_token_id]
    firsts = np.cumsum([1, *map(len, alone)])[:-1]
    expected = [-100] * len(row["input_ids"])
    for place, tag in zip(firsts, tags, strict=True):
        expected[place] = data.label_names.index(tag)
    assert row["labels"] == expected and row["length"] == len(expected) and set(row["attention_mask"]) == {1}
    assert data.protocol["split_texts"]["train"] == {"all": 0}


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

    # windows in any order, predictions padded to the longest: every word's own label comes back
    order = list(range(len(windows)))
    draw.shuffle(order)
    shuffled = windows.select(order)
    labels = shuffled["labels"][:]
    width = max(map(len, labels))
    predictions = np.array([[*row, *[-100] * (width - len(row))] for row in labels])
    found = tagging.words_of_sentences(shuffled, predictions)
    assert [[data.label_names[tag] for tag in tags] for tags in found] == [tags for _, tags in sentences]


def test_score_joins_chunks_over_windows(write, sample_tokenizer):
    words = [f"name{i}" for i in range(12)]
    tags = ["O", "B-PER", *["I-PER"] * 10]
    data = encoded(write, sample_tokenizer, [(words, tags)], 10)
    rows_of_language = data.evaluation["de"]
    assert len(rows_of_language) > 2
    width = max(rows_of_language["length"][:])
    predictions = np.array([[*row, *[-100] * (width - len(row))] for row in rows_of_language["labels"][:]])
    outcome = TaggingTask(None).score(data, "evaluation", "de", predictions)
    assert outcome.scores == {"f1": 100, "precision": 100, "recall": 100, "token_accuracy": 100}


def test_encode_refuses_a_slow_tokenizer(write):
    data = read({"path": write("train", rows(TAGS))}, {"path": write("test", rows(TAGS))})
    with pytest.raises(ValueError, match="fast tokenizer"):
        encode(TaggingRecipe(max_length=64, label_subword="first"), data, SimpleNamespace(is_fast=False))
