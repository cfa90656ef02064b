"""Plug-in tagging: words with the words of their translation, and windows."""

from datasets import ClassLabel, Features, Sequence, Value

from finetuning.recipe import TaggingRecipe
from tests.finetuning.plug_in_kinds import KINDS, sentences
from tests.finetuning.tasks import encode

NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
KIND = KINDS["tagging"]


def test_read_words_of_both_sides(write):
    text = Sequence(Value("string"))
    labels = Sequence(ClassLabel(names=NAMES))  # gold English with text that a model has labeled
    gold = Features({"id": Value("int64"), "tokens": text, "labels": text, "tokens_en": text, "labels_en": labels})
    rows = sentences(6)
    numbered = [{**row, "labels_en": [NAMES.index(name) for name in row["labels_en"]]} for row in rows]
    data = KIND.read(write("train", numbered, gold), write("test", rows))
    assert data.train.column_names == ["words", "tags", "row", "translation_words", "translation_tags"]
    assert data.evaluation["de"].column_names == ["words", "tags", "row", "translation_words"]
    for mine, theirs in (("tags", "labels"), ("translation_tags", "labels_en")):
        named = [[data.label_names[tag] for tag in tags] for tags in data.train[mine][:]]
        assert named == [row[theirs] for row in rows]


def test_read_labels_of_translations_alone(write):
    rows = [{**row, "labels_en": ["B-PRE"] * len(row["labels_en"])} for row in sentences(4)]
    assert "B-PRE" in KIND.read(write("train", rows), write("test", sentences(4))).label_names


def test_windows_of_with_the_whole_translation(write, sample_tokenizer):
    rows = sentences(12)
    data = KIND.read(write("train", rows), write("test", rows))
    encoded = encode(TaggingRecipe(max_length=32, label_subword="first"), data, sample_tokenizer)
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
