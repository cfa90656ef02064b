"""Word by word, texts get the tokenizer's own ids; whatever may not is given to the tokenizer."""

import json
import pickle

import numpy as np
import pytest

from pretraining.data import fast_tokenize as module
from pretraining.data.fast_tokenize import PROBES, FastTokens, encode_texts

LANGUAGES = ("en", "de", "fr", "es", "zh")


@pytest.fixture(scope="module")
def texts(sample_corpus_dir):
    files = [(sample_corpus_dir / name / "train.jsonl").read_text(encoding="utf-8") for name in LANGUAGES]
    lines = [line for content in files for line in content.split("\n") if line]
    return [json.loads(line)["text"] for line in lines]


@pytest.fixture
def asked(monkeypatch):
    """The texts that were given to the tokenizer."""
    given = []

    def ask(texts, tokenizer):
        given.extend(texts)
        return encode_texts(texts, tokenizer)

    monkeypatch.setattr("pretraining.data.fast_tokenize.encode_texts", ask)
    return given


def ids_of(encoder, texts):
    flat, lengths = encoder.encode(texts)
    assert flat.dtype == np.int32 and lengths.sum() == len(flat)
    return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]


def test_real_text_gets_the_tokenizers_ids_without_asking_it(sample_tokenizer, texts, asked):
    encoder = FastTokens(sample_tokenizer)
    assert encoder.why_not is None
    wanted = encode_texts(texts, sample_tokenizer)
    asked.clear()
    assert ids_of(encoder, texts) == wanted
    assert ids_of(encoder, texts) == wanted, "words that are known give the same"
    assert len(asked) < 0.02 * len(texts)
    # documents: sums over thousands of tokens, where the sentencepiece library itself goes wrong
    documents = [" ".join(texts[start : start + 240]) for start in range(0, len(texts), 240)]
    assert ids_of(encoder, documents) == encode_texts(documents, sample_tokenizer)


def test_odd_texts_get_the_tokenizers_ids(sample_tokenizer):
    encoder = FastTokens(sample_tokenizer)
    odd = [
        *PROBES,
        None,
        "a" * 5000,
        "𐍈" * 40,
        "a\u0301\u0301 b",
        "\u0301",
        "x \ufb01\u0301",
        " </s>",
        "&lt;s&gt;",
        "<mask",
    ]
    odd += [f"ab{chr(code)}cd {chr(code)} e{chr(code)}" for code in range(0x20, 0x3100, 7)]
    assert ids_of(encoder, odd) == encode_texts(odd, sample_tokenizer)
    assert ids_of(encoder, []) == [[]] and ids_of(encoder, ["", None]) == [[], []]


def test_special_tokens_spelt_in_a_text_become_the_unknown_token(sample_tokenizer):
    encoder = FastTokens(sample_tokenizer)
    special = set(sample_tokenizer.all_special_ids) - {sample_tokenizer.unk_token_id}
    for ids in ids_of(encoder, ["a <mask> b", "<s>x</s>", "＜mask＞ and ＜s＞", "word<pad>"]):
        assert ids and special.isdisjoint(ids)


def test_few_words_are_kept_and_the_ids_stay_the_same(sample_tokenizer, texts, monkeypatch):
    monkeypatch.setattr(module, "MOST_KEPT", 20)
    encoder = FastTokens(sample_tokenizer)
    wanted = encode_texts(texts[:300], sample_tokenizer)
    found = [ids for start in range(0, 300, 10) for ids in ids_of(encoder, texts[start : start + 10])]
    assert found == wanted
    assert len(encoder.words) < 200


def test_a_copy_for_another_process_gives_the_same(sample_tokenizer, texts):
    encoder = FastTokens(sample_tokenizer)
    ids_of(encoder, texts)
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy.why_not is None and len(copy.words) == 1, "words are learned anew"
    assert ids_of(copy, texts[:50]) == ids_of(encoder, texts[:50])


@pytest.mark.parametrize(("kind", "why"), [("wordpiece", "WordPiece"), ("byte_level", "BPE"), ("unigram", "Metaspace")])
def test_tokenizers_of_another_form_are_used_as_they_are(tokenizer_of, kind, why):
    tokenizer = tokenizer_of(kind, ["▁", "▁a", "a", "b", "##b", "Ġ"])
    encoder = FastTokens(tokenizer)
    assert why in encoder.why_not
    assert ids_of(encoder, ["a b", "", "ab"]) == encode_texts(["a b", "", "ab"], tokenizer)


def test_a_tokenizer_with_words_of_its_own_is_used_as_it_is(sample_tokenizer_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(sample_tokenizer_dir)
    tokenizer.add_tokens(["<place>"])
    encoder = FastTokens(tokenizer)
    assert "<place>" in encoder.why_not
    assert ids_of(encoder, ["in <place> now"]) == encode_texts(["in <place> now"], tokenizer)


def test_a_difference_found_turns_the_words_off(sample_tokenizer):
    encoder = FastTokens(sample_tokenizer)
    assert encoder.check(["rain and sun"]) and encoder.why_not is None
    encoder.words["rain"] = encoder.words["sun"]  # as if sentencepiece had given other tokens
    assert not encoder.check(["no fault", "rain and sun"])
    assert "rain and sun" in encoder.why_not
    assert ids_of(encoder, ["rain"]) == encode_texts(["rain"], sample_tokenizer)
    assert pickle.loads(pickle.dumps(encoder)).why_not == encoder.why_not
