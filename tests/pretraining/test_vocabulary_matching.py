"""Vocabulary matching on hand-made vocabularies: each route, their order, unchanged rows, and the command."""

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from pretraining.recipe import Dictionary
from pretraining.start.vocabulary_matching import match_vocabularies
from pretraining.tools.match_vocabularies import main


class Matched:
    """The matching of two tokenizers, read by token."""

    def __init__(self, old, new, **fields):
        self.old, self.new = old, new
        self.matching = match_vocabularies(old, new, **fields)

    def __getitem__(self, token: str) -> tuple:
        """(route, the old tokens that the row comes from)."""
        number = self.new.convert_tokens_to_ids(token)
        return self.matching.routes[number], *self.old.convert_ids_to_tokens(list(self.matching.sources[number]))


@pytest.fixture
def dictionary(files):
    """A dictionary of the given lines, from a language into English."""

    def make(language: str, *lines: str) -> Dictionary:
        return Dictionary(language, files.lines(f"{language}-en.txt", list(lines)))

    return make


MARKED = {"wordpiece": ("{}", "##{}"), "unigram": ("▁{}", "{}"), "byte_level": ("Ġ{}", "{}")}


@pytest.mark.parametrize("old_kind", MARKED)
@pytest.mark.parametrize("new_kind", MARKED)
def test_equal_tokens_meet_across_kinds(tokenizer_of, old_kind, new_kind):
    starts, goes_on = MARKED[new_kind]
    old_starts, old_goes_on = MARKED[old_kind]
    old = tokenizer_of(old_kind, [old_goes_on.format("the"), old_starts.format("the"), old_starts.format("ing")])
    matched = Matched(old, tokenizer_of(new_kind, [starts.format("the"), goes_on.format("the"), goes_on.format("ing")]))
    assert matched[starts.format("the")] == ("exact", old_starts.format("the"))
    assert matched[goes_on.format("the")] == ("exact", old_goes_on.format("the"))
    assert matched[goes_on.format("ing")] == ("random",)  # it starts no word here and does there


def test_normalized_tokens(tokenizer_of):
    old = tokenizer_of("wordpiece", ["Ete", "ete", "the", "##the", "Über", "ÜBER", "café"])
    new = tokenizer_of("unigram", ["▁Été", "▁Ete", "▁The", "The", "▁uber", "▁cafe", "▁Café", "▁ﬀ"])
    matched = Matched(old, new)
    assert matched["▁Été"] == ("normalized", "ete")  # written in that form, though its id is higher
    assert matched["▁Ete"] == ("exact", "Ete")
    assert matched["▁The"] == ("normalized", "the") and matched["The"] == ("normalized", "##the")
    assert matched["▁uber"] == ("normalized", "Über")  # the lowest id
    assert matched["▁cafe"] == matched["▁Café"] == ("normalized", "café")
    assert matched["▁ﬀ"] == ("random",)


def test_a_word_in_another_case_comes_before_another_word(tokenizer_of):
    old = tokenizer_of("wordpiece", ["schon", "Schön", "schön", "É", "e", "##schön"])
    matched = Matched(old, tokenizer_of("unigram", ["▁SCHÖN", "▁Schon", "▁schôn", "▁é", "Schön", "▁È"]))
    assert matched["▁SCHÖN"] == ("normalized", "schön")
    assert matched["▁Schon"] == matched["▁schôn"] == ("normalized", "schon")
    assert matched["▁é"] == ("normalized", "É") and matched["▁È"] == ("normalized", "e")
    assert matched["Schön"] == ("normalized", "##schön")


def test_the_mark_says_nothing_without_letters_of_a_script_with_spaces(tokenizer_of):
    old = tokenizer_of("byte_level", ["Ġ;", "12", "Ġ12", "ä¸Ĭ", "Ġa", "(", "a!"])
    new = tokenizer_of("unigram", [";", "▁12", "▁上", "a", "▁（", "▁a!"])
    matched = Matched(old, new)
    assert matched[";"] == ("exact", "Ġ;")
    assert matched["▁12"] == ("exact", "Ġ12")  # the same mark first
    assert matched["▁上"] == ("exact", "ä¸Ĭ")
    assert matched["▁（"] == ("normalized", "(")
    assert matched["a"] == matched["▁a!"] == ("random",)


def test_tokens_that_no_text_of_the_checkpoint_had_give_no_row(tokenizer_of):
    old = tokenizer_of("wordpiece", [",", "##,", "上", "##上", "1", "##1", "##?"])
    matched = Matched(old, tokenizer_of("unigram", [",", "▁,", "上", "1", "?"]))
    assert matched[","] == matched["▁,"] == ("exact", ",") and matched["上"] == ("exact", "上")
    assert matched["1"] == ("exact", "##1")  # BERT does not cut before a digit
    assert matched["?"] == ("exact", "##?")  # better than none


def test_bytes(tokenizer_of):
    old = tokenizer_of("byte_level", ["a", "Ġ!", "Ã", "Ċ", "ãģ"])
    matched = Matched(old, tokenizer_of("unigram", ["<0x61>", "<0xC3>", "<0x0A>", "<0xC4>", "<0x21>", "<0x62>"]))
    assert matched["<0x61>"] == ("exact", "a") and matched["<0xC3>"] == ("exact", "Ã")
    assert matched["<0x0A>"] == ("exact", "Ċ") and matched["<0x21>"] == ("exact", "Ġ!")
    assert matched["<0xC4>"] == matched["<0x62>"] == ("random",)
    old = tokenizer_of("unigram", ["<0x61>", "▁b", "<0x62>", "b", "<0xE3>"])
    matched = Matched(old, tokenizer_of("byte_level", ["a", "Ġa", "b", "ãģ", "ã"]))
    assert matched["a"] == ("exact", "<0x61>") and matched["b"] == ("exact", "b")
    assert matched["Ġa"] == matched["ãģ"] == ("random",) and matched["ã"] == ("exact", "<0xE3>")


def test_the_dictionary_comes_first_or_last(tokenizer_of, dictionary):
    old = tokenizer_of("wordpiece", ["the", "die", "hut", "hat", "gift", "poison"])
    new = tokenizer_of("unigram", ["▁die", "▁Hut", "▁gift", "die"])
    german = [dictionary("de", "die\tthe", "hut\that", "gift\tpoison")]
    matched = Matched(old, new, dictionaries=german)
    assert matched["▁die"] == ("dictionary", "the") and matched["▁Hut"] == ("dictionary", "hat")
    assert matched["die"] == ("random",)  # no whole word
    matched = Matched(old, new, dictionaries=german, dictionary="fallback")
    assert matched["▁die"] == ("exact", "die") and matched["▁gift"] == ("exact", "gift")
    assert matched["▁Hut"] == ("normalized", "hut")


def test_translations_are_matched_as_words_exactly_then_normalized(tokenizer_of, dictionary):
    old = tokenizer_of("byte_level", ["rain", "ĠRain", "Ġrain", "ĠCafe", "Ġ12", "Ġhouse", "Ġhome"])
    lines = ["regen\train", "kaffee\tcafé", "zwölf\t12", "haus\tdwelling", "haus\thouse", "haus\thome", "tal\tvalley"]
    new = tokenizer_of("unigram", ["▁Regen", "▁kaffee", "▁Zwölf", "▁haus", "▁tal"])
    matched = Matched(old, new, dictionaries=[dictionary("de", *lines)])
    assert matched["▁Regen"] == ("dictionary", "Ġrain") and matched["▁kaffee"] == ("dictionary", "ĠCafe")
    assert matched["▁Zwölf"] == ("dictionary", "Ġ12") and matched["▁tal"] == ("random",)
    assert matched["▁haus"] == ("dictionary", "Ġhouse")  # the first that the old vocabulary has


def test_words_of_a_script_without_spaces_are_looked_up_without_the_mark(tokenizer_of, dictionary):
    old = tokenizer_of("wordpiece", ["rain", "the", "rainy"])
    new = tokenizer_of("unigram", ["下雨", "▁雨", "雨a", ","])
    chinese = dictionary("zh", "下雨\train", "雨\train", "雨a\trainy", ",\tthe")
    matched = Matched(old, new, dictionaries=[chinese])
    assert matched["下雨"] == matched["▁雨"] == ("dictionary", "rain")
    assert matched["雨a"] == matched[","] == ("random",)


def test_dictionaries_are_asked_in_their_order(tokenizer_of, dictionary):
    old = tokenizer_of("wordpiece", ["end", "purpose", "finally"])
    new = tokenizer_of("unigram", ["▁fin", "▁final"])
    french, spanish = dictionary("fr", "fin\tnowhere", "fin\tend"), dictionary("es", "fin\tpurpose", "final\tend")
    both = Matched(old, new, dictionaries=[french, spanish])
    assert both["▁fin"] == ("dictionary", "end") and both["▁final"] == ("dictionary", "end")
    assert Matched(old, new, dictionaries=[spanish, french])["▁fin"] == ("dictionary", "purpose")
    assert [read.pairs for read in both.matching.dictionaries] == [2, 2]


def test_special_tokens_go_by_their_role(tokenizer_of):
    old = tokenizer_of("wordpiece", ["<s>", "<mask>"])
    matched = Matched(old, tokenizer_of("unigram", ["[CLS]"]))
    tokens = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    assert [matched[token] for token in tokens] == [
        ("special", token) for token in ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
    ]
    assert matched["[CLS]"] == ("random",)  # a token of text, that only looks like a special token


def test_a_special_token_without_counterpart_starts_random(tokenizer_of):
    old = tokenizer_of("wordpiece", ["a"], mask=None, sep=None)
    new = tokenizer_of("unigram", ["▁a"])
    new.add_tokens(["<extra>"], special_tokens=True)
    matched = Matched(old, new)
    assert matched["<mask>"] == matched["</s>"] == matched["<extra>"] == ("random",)


@pytest.mark.parametrize("kind", MARKED)
def test_a_vocabulary_is_matched_to_itself_row_by_row(tokenizer_of, kind):
    starts, goes_on = MARKED[kind]
    words = ["the", "The", "été", "ete", ",", "上", "1"]
    tokenizer = tokenizer_of(kind, [form.format(word) for word in words for form in (goes_on, starts)])
    tokenizer.add_tokens(["<extra>"], special_tokens=True)
    found = Matched(tokenizer, tokenizer).matching
    assert found.sources == [(number,) for number in range(len(tokenizer))]
    assert set(found.routes) == {"special", "exact"}


def test_rows(tokenizer_of):
    old = tokenizer_of("wordpiece", ["rain", "##bow", "##s", "b"])
    new = tokenizer_of("unigram", ["▁rain", "▁rainbow", "bow", "▁Rains", "▁xyz", "▁", "<0x62>"])
    tokens = ["▁rain", "▁rainbow", "▁Rains", "▁xyz", "▁", "<0x62>", "<s>"]

    def routes(rows: str) -> list:
        return [Matched(old, new, rows=rows)[token] for token in tokens]

    exact, cut, left = ("exact", "rain"), ("subwords", "rain", "##bow"), ("random",)
    assert routes("matched") == [exact, left, left, left, left, left, ("special", "[CLS]")]
    assert routes("matched_or_subwords") == [exact, cut, left, left, left, left, ("special", "[CLS]")]
    assert routes("subwords") == [("subwords", "rain"), cut, left, left, left, left, ("special", "[CLS]")]
    assert routes("random") == [left] * 7


def test_the_command_counts_the_rows_and_writes_the_start(
    tokenizer_of, sample_tokenizer, sample_tokenizer_dir, sample_corpus_dir, tmp_path, files, capsys
):
    checkpoint, tokenizer = tmp_path / "bert", tokenizer_of("wordpiece", ["rain", "bread", "the", "##s"])
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    old = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes))
    old.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    recipe = {
        "output_dir": "unused",
        "tokenizer": str(sample_tokenizer_dir),
        "model": {"type": "metaxlm", "meta_pretrained": {"path": str(checkpoint)}},
        "monolingual": [{"language": "en", "path": str(sample_corpus_dir), "config": "en"}],
    }
    config, output = files.lines("recipe.yaml", [json.dumps(recipe)]), tmp_path / "out"
    main(["--config", config, "--output", str(output)])
    header, _, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    *scripts, total = [dict(zip(header, line, strict=True)) for line in lines if len(line) == len(header)]
    assert total["route"] == "all" and int(total["all"]) == len(sample_tokenizer) and int(total["exact"]) > 0
    assert {"LATIN", "CJK"} <= {row["route"] for row in scripts}
    model = AutoModelForMaskedLM.from_pretrained(output / "model", trust_remote_code=True)
    number = sample_tokenizer.convert_tokens_to_ids("▁rain")
    assert torch.equal(model.get_input_embeddings().weight[number], old.get_input_embeddings().weight[5])
    for arguments in (["--config", config, "--output", str(output)], [f"tokenizer={sample_tokenizer_dir}"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
