"""The meaning of subwords for each kind of tokenizer, and how a tokenizer cuts the subwords of another."""

import types

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pretraining.start.token_texts import (
    Subword,
    fold_case,
    is_spaced,
    may_be_word,
    normalize,
    read_vocabulary,
    script_of,
    segment_subwords,
)

SENTENCES = ["the rain in Spain stays mainly on the plain", "naïve café owners, Straße und Bäume", "rain rain the the"]


@pytest.mark.parametrize(
    ("kind", "subwords"),
    [
        ("wordpiece", ["the", "##s", "été", ","]),
        ("unigram", ["▁the", "s", "▁été", "▁,"]),
        ("byte_level", ["Ġthe", "s", "ĠÃ©tÃ©", "Ġ,"]),
    ],
)
def test_the_same_is_said_in_three_ways(tokenizer_of, kind, subwords):
    read = read_vocabulary(tokenizer_of(kind, subwords), "x")
    start = read.tokens.index(subwords[0])
    assert read.subwords[start : start + 4] == [("the", True), ("s", False), ("été", True), (",", True)]
    assert [subword for number, subword in enumerate(read.subwords) if not start <= number < start + 4] == [None] * 5


def test_bytes_and_lone_marks(tokenizer_of):
    read = read_vocabulary(tokenizer_of("byte_level", ["Ġ", "Ã", "Ġæ", "ä¸Ĭ", "Ċ"]), "x")
    assert read.subwords[4:9] == [("", True), b"\xc3", b" \xe6", ("上", False), ("\n", False)]
    read = read_vocabulary(tokenizer_of("unigram", ["▁", "<0x0A>", "<0xC3>", "▁a▁b"]), "x")
    assert read.subwords[4:8] == [("", True), b"\n", b"\xc3", ("a b", True)]
    assert read_vocabulary(tokenizer_of("wordpiece", ["##", "#"]), "x").subwords[5:] == [("##", True), ("#", True)]


def test_a_subword_of_the_vocabulary_that_was_added_says_nothing(tokenizer_of):
    tokenizer = tokenizer_of("unigram", ["▁the"])
    tokenizer.add_tokens(["▁the", "<extra>"])
    read = read_vocabulary(tokenizer, "x")
    assert read.subwords == [None] * 7 and read.tokens[4] == "▁the" and read.added["<extra>"] == 6


def llama(subwords: list[str]) -> PreTrainedTokenizerFast:
    """A BPE model of SentencePiece, as Llama's: the normalizer writes the marks, and there is no pre-tokenizer."""
    vocabulary = {subword: number for number, subword in enumerate(["<unk>", *subwords])}
    backend = Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("▁a", "b")], unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_sentencepiece_without_metaspace():
    tokenizer = llama(["▁", "a", "b", "▁a", "▁ab"])
    read = read_vocabulary(tokenizer, "x")
    assert read.kind == "sentencepiece"
    assert read.subwords == [None, ("", True), ("a", False), ("b", False), ("a", True), ("ab", True)]
    subwords = [Subword("ab", True), Subword("ab", False), Subword("b", False)]
    assert segment_subwords(tokenizer, "x", subwords, read.kind) == [[5], [2, 3], [3]]


@pytest.mark.parametrize(
    "model",
    [
        models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"),
        models.WordLevel({"a": 0}, unk_token="a"),
        models.Unigram([("a", 0.0)], unk_id=0),
        None,
    ],
)
def test_other_kinds_are_refused(model):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model)) if model else types.SimpleNamespace()
    with pytest.raises(ValueError, match="of mine"):
        read_vocabulary(tokenizer, "of mine")


def test_normalize():
    forms = dict(The="the", Été="ete", ﬁn="fin", ＡＢＣ１="abc1", Straße="straße", 한국="한국", İ="i", 上="上", Ёж="еж")
    forms |= {"´": "", "\u0301": "", "Άλφα": "αλφα", "שָׁלוֹם": "שלום", "كَتَبَ": "كتب"}
    # vowels, voicing and strokes are no accents
    forms |= {"के": "के", "กิน": "กิน", "が": "が", "ｶﾞ": "ガ", "≠": "≠"}
    for text, form in forms.items():
        assert normalize(text) == form == normalize(form), text


def test_fold_case_keeps_accents():
    for text, form in [("Schön", "schön"), ("ÉTÉ", "été"), ("E\u0301", "é"), ("ﬁn", "fin"), ("İ", "i̇"), ("´", "")]:
        assert fold_case(text) == form == fold_case(form), text


def test_scripts_and_spaces():
    assert [script_of(c) for c in "aжـ上ｶ1,"] == ["LATIN", "CYRILLIC", "ARABIC", "CJK", "KATAKANA", None, None]
    assert all(map(is_spaced, ["a", "3rd", "上a", "한", "é", "नम"]))
    assert not any(map(is_spaced, ["", ",", "12", "上海", "カー", "ไทย", "。", "\u0301"]))
    assert may_be_word(Subword("a", True)) and may_be_word(Subword("上", False)) and may_be_word(Subword("12", True))
    assert not any(map(may_be_word, [Subword("a", False), Subword(",", False), Subword("上a", False)]))


@pytest.mark.parametrize("adds_space", [True, False])
def test_byte_level_cuts_with_and_without_the_space(adds_space):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    subwords = [Subword("rain", True), Subword("rain", False), Subword("über", False), Subword("the rain", True)]
    cut = segment_subwords(tokenizer, "x", subwords, "byte_level")
    vocabulary = tokenizer.get_vocab()
    assert cut[0] == [vocabulary["Ġrain"]]
    assert ["".join(tokenizer.convert_ids_to_tokens(ids)) for ids in cut[1:3]] == ["rain", "Ã¼ber"]
    assert cut[3] == [vocabulary["Ġthe"], vocabulary["Ġrain"]]


def test_sentencepiece_cuts_with_and_without_the_mark(sample_tokenizer):
    subwords = [Subword("rain", True), Subword("rain", False), Subword("bread", True), Subword("ங", True)]
    cut = segment_subwords(sample_tokenizer, "x", subwords, "sentencepiece")
    tokens = [sample_tokenizer.convert_ids_to_tokens(ids) for ids in cut]
    assert tokens[0] == ["▁rain"] and "".join(tokens[1]) == "rain" and "".join(tokens[2]) == "▁bread"
    assert tokens[3] in ([], ["▁"])  # what is unknown is left out


def test_wordpiece_cuts_a_continuation_into_continuations(tokenizer_of):
    tokenizer = tokenizer_of("wordpiece", ["rain", "##rain", "##s", "s", "##bow", ","])
    subwords = [
        Subword("rains", True),
        Subword("rains", False),
        Subword("bow", False),
        Subword("bow", True),
        Subword(",", True),
    ]
    cut = segment_subwords(tokenizer, "x", subwords, "wordpiece")
    assert [tokenizer.convert_ids_to_tokens(ids) for ids in cut] == [
        ["rain", "##s"],
        ["##rain", "##s"],
        ["##bow"],
        [],
        [","],
    ]
    assert tokenizer("rains")["input_ids"] == [5, 7]  # the tokenizer itself is as it was
