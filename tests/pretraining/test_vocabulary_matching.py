"""Vocabulary matching on hand-made vocabularies: what tokens mean, each route, and their order."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from crosslingual_zoo.pretraining.recipe import Dictionary
from crosslingual_zoo.pretraining.start.token_texts import fold_case, normalize, read_vocabulary
from crosslingual_zoo.pretraining.start.vocabulary_matching import match_vocabularies

STARTS = {"wordpiece": "{}", "unigram": "▁{}", "byte_level": "Ġ{}"}  # how a kind marks a word's first token
INSIDE = {"wordpiece": "##{}", "unigram": "{}", "byte_level": "{}"}
RANDOM = ("random", None)


def match(old, new, **fields):
    """The matching of two tokenizers: {new token: (route, the old token that the row comes from)}."""
    matching = match_vocabularies(old, new, **fields)
    matches = {}
    for row, route in enumerate(matching.routes):
        source = matching.sources[row]
        token = new.convert_ids_to_tokens(row)
        matches[token] = (route, source if source is None else old.convert_ids_to_tokens(source))
    return matches


def sources_of(matches):
    return {token: source for token, (_, source) in matches.items()}


@pytest.mark.parametrize(
    ("kind", "subwords", "meanings"),
    [
        ("wordpiece", ["the", "##s", "##", ","], [("the", True), ("s", False), ("##", True), (",", True)]),
        ("unigram", ["▁the", "s", "▁", "<0xC3>"], [("the", True), ("s", False), ("", True), b"\xc3"]),
        ("byte_level", ["Ġthe", "ä¸Ĭ", "Ġ", "Ġæ"], [("the", True), ("上", False), ("", True), b" \xe6"]),
    ],
)
def test_read_vocabulary_by_kind(tokenizer_of, kind, subwords, meanings):
    tokenizer = tokenizer_of(kind, [*subwords, "added"])
    tokenizer.add_tokens(["added", "<extra>"])
    vocabulary = read_vocabulary(tokenizer)
    start = tokenizer.convert_tokens_to_ids(subwords[0])
    stop = start + 4
    assert vocabulary.subwords[start:stop] == meanings
    assert vocabulary.added["<extra>"] == len(vocabulary.subwords) - 1
    assert not any(vocabulary.subwords[:start])
    assert not any(vocabulary.subwords[stop:])


def test_read_vocabulary_of_sentencepiece_without_metaspace():
    """A BPE model as Llama's: the normalizer writes the marks, and there is no pre-tokenizer."""
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}
    backend = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    read = read_vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
    assert read.kind == "sentencepiece"
    assert read.subwords == [None, ("", True), ("a", False), ("a", True)]


def test_normalize():
    forms = dict(The="the", Été="ete", ﬁn="fin", ＡＢＣ１="abc1", Straße="straße", 한국="한국", İ="i", 上="上", Ёж="еж")
    forms |= {"´": "", "\u0301": "", "Άλφα": "αλφα", "שָׁלוֹם": "שלום", "كَتَبَ": "كتب"}
    # vowels, voicing and strokes are no accents
    forms |= {"के": "के", "กิน": "กิน", "が": "が", "ｶﾞ": "ガ", "≠": "≠"}
    assert {text: normalize(text) for text in forms} == forms
    folded = {"Schön": "schön", "E\u0301": "é", "ﬁn": "fin", "İ": "i̇", "´": ""}
    assert {text: fold_case(text) for text in folded} == folded


@pytest.mark.parametrize("old_kind", STARTS)
@pytest.mark.parametrize("new_kind", STARTS)
def test_match_vocabularies_equal_tokens_across_kinds(tokenizer_of, old_kind, new_kind):
    old_start = STARTS[old_kind].format("the")
    old_inside = INSIDE[old_kind].format("the")
    start = STARTS[new_kind].format("the")
    inside = INSIDE[new_kind].format("the")
    inside_only = INSIDE[new_kind].format("ing")  # the old vocabulary has it at the start of words only
    old = tokenizer_of(old_kind, [old_inside, old_start, STARTS[old_kind].format("ing")])
    matches = match(old, tokenizer_of(new_kind, [start, inside, inside_only]))
    assert matches[start] == ("exact", old_start)
    assert matches[inside] == ("exact", old_inside)
    assert matches[inside_only] == RANDOM


MATCHES = [  # kind and tokens of the old vocabulary; {token of the new unigram vocabulary: its match}
    (
        "wordpiece",
        ["Ete", "ete", "the", "##the", "Über", "ÜBER", "café"],
        # written in that form, though its id is higher; the lowest id
        {"▁Été": "ete", "▁The": "the", "The": "##the", "▁uber": "Über", "▁cafe": "café", "▁Café": "café", "▁ﬀ": None},
    ),
    (  # a word in another case comes before another word
        "wordpiece",
        ["schon", "Schön", "schön", "É", "e", "##schön"],
        {"▁SCHÖN": "schön", "▁Schon": "schon", "▁schôn": "schon", "▁é": "É", "Schön": "##schön", "▁È": "e"},
    ),
    (  # the mark says nothing without letters of a script with spaces; the same mark first
        "byte_level",
        ["Ġ;", "12", "Ġ12", "ä¸Ĭ", "Ġa", "(", "a!"],
        {";": "Ġ;", "▁12": "Ġ12", "▁上": "ä¸Ĭ", "▁（": "(", "a": None, "▁a!": None},
    ),
    (  # what no text of the checkpoint had gives no row; BERT does not cut before a digit; better `##?` than none
        "wordpiece",
        [",", "##,", "上", "##上", "1", "##1", "##?"],
        {",": ",", "▁,": ",", "上": "上", "1": "##1", "?": "##?"},
    ),
    (
        "byte_level",
        ["a", "Ġ!", "Ã", "Ċ", "ãģ"],
        {"<0x61>": "a", "<0xC3>": "Ã", "<0x0A>": "Ċ", "<0xC4>": None, "<0x21>": "Ġ!", "<0x62>": None},
    ),
    ("unigram", ["<0x61>", "▁b", "<0x62>", "b"], {"a": "<0x61>", "▁a": None, "b": "b"}),
]


@pytest.mark.parametrize("kind, tokens, matches", MATCHES)
def test_match_vocabularies_without_dictionaries(tokenizer_of, kind, tokens, matches):
    matched = match(tokenizer_of(kind, tokens), tokenizer_of("unigram", list(matches)))
    assert sources_of(matched).items() >= matches.items()
    for route, source in matched.values():
        assert (route == "random") == (source is None)


REGEN = ["regen\train", "kaffee\tcafé", "zwölf\t12", "haus\tdwelling", "haus\thouse", "haus\thome", "tal\tvalley"]
GERMAN = ["die\tthe", "hut\that"]
FRENCH = ["fin\tnowhere", "fin\tend"]
SPANISH = ["fin\tpurpose", "final\tend"]
TRANSLATED = [  # kind and tokens of the old vocabulary, lines of dictionaries; {new token: its match}
    ("wordpiece", ["the", "die", "hut", "hat"], [GERMAN], {"▁die": "the", "▁Hut": "hat", "die": None}),
    (  # a translation is a word, exactly or normalized; the first that the old vocabulary has
        "byte_level",
        ["rain", "ĠRain", "Ġrain", "ĠCafe", "Ġ12", "Ġhouse", "Ġhome"],
        [REGEN],
        {"▁Regen": "Ġrain", "▁kaffee": "ĠCafe", "▁Zwölf": "Ġ12", "▁tal": None, "▁haus": "Ġhouse"},
    ),
    (  # words of a script without spaces need no mark
        "wordpiece",
        ["rain", "the", "rainy"],
        [["下雨\train", "雨\train", "雨a\trainy", ",\tthe"]],
        {"下雨": "rain", "▁雨": "rain", "雨a": None, ",": None},
    ),
    ("wordpiece", ["end", "purpose"], [FRENCH, SPANISH], {"▁fin": "end", "▁final": "end"}),
    ("wordpiece", ["end", "purpose"], [SPANISH, FRENCH], {"▁fin": "purpose", "▁final": "end"}),
]


@pytest.mark.parametrize("kind, tokens, lines, matches", TRANSLATED)
def test_match_vocabularies_with_dictionaries(tokenizer_of, files, kind, tokens, lines, matches):
    dictionaries = [Dictionary("de", files.lines(f"de-en.{number}.txt", pairs)) for number, pairs in enumerate(lines)]
    old = tokenizer_of(kind, tokens)
    matched = match(old, tokenizer_of("unigram", list(matches)), dictionaries=dictionaries)
    assert sources_of(matched).items() >= matches.items()


def test_match_vocabularies_special_tokens_by_role(tokenizer_of):
    matches = match(tokenizer_of("wordpiece", ["<s>", "<mask>"]), tokenizer_of("unigram", ["[CLS]"]))
    assert matches == {
        "<s>": ("special", "[CLS]"),
        "<pad>": ("special", "[PAD]"),
        "</s>": ("special", "[SEP]"),
        "<unk>": ("special", "[UNK]"),
        "<mask>": ("special", "[MASK]"),
        "[CLS]": RANDOM,  # a token of text, that only looks like a special token
    }


def test_match_vocabularies_special_tokens_that_the_old_one_lacks(tokenizer_of):
    old = tokenizer_of("wordpiece", ["a"], mask_token=None, sep_token=None)
    new = tokenizer_of("unigram", ["▁a"])
    new.add_tokens(["<extra>"], special_tokens=True)
    matches = match(old, new)
    assert [matches[token] for token in ("<mask>", "</s>", "<extra>")] == [RANDOM] * 3


@pytest.mark.parametrize("kind", STARTS)
def test_match_vocabularies_with_itself(tokenizer_of, kind):
    subwords = []
    for word in ("the", "The", "été", "ete", ",", "上", "1"):
        subwords += [INSIDE[kind].format(word), STARTS[kind].format(word)]
    tokenizer = tokenizer_of(kind, subwords)
    tokenizer.add_tokens(["<extra>"], special_tokens=True)
    matching = match_vocabularies(tokenizer, tokenizer)
    assert matching.sources == list(range(len(tokenizer)))
    assert set(matching.routes) == {"special", "exact"}
    old_VH = torch.randn(len(tokenizer), 4)
    assert torch.equal(matching.embeddings(old_VH), old_VH)
