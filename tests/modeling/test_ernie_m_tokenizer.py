"""ERNIE-M's tokenizer against transformers 4's, piece by piece, and in everything that tokenizers are used for."""

import pickle

import pytest

from crosslingual_zoo.modeling.checkpoints import load_tokenizer
from crosslingual_zoo.modeling.tokenization_ernie_m import ErnieMTokenizer


@pytest.fixture(scope="module")
def folder(ernie_m_oracle, tmp_path_factory):
    return ernie_m_oracle.save_tokenizer(tmp_path_factory.mktemp("ernie_m_tokenizer"))


@pytest.fixture
def tokenizer(folder):
    return ErnieMTokenizer.from_pretrained(folder)


def test_ernie_m_tokenizer_is_loaded_without_the_folder_s_code(folder):
    assert type(load_tokenizer(str(folder))) is ErnieMTokenizer


def test_ernie_m_tokenizer_ids_are_those_of_transformers_4(ernie_m_oracle, tokenizer):
    expected = ernie_m_oracle.tokens
    texts = expected["texts"]
    others = texts[1:] + texts[:1]
    assert len(texts) > 100
    assert [tokenizer.tokenize(text) for text in texts] == expected["pieces"]
    assert tokenizer(texts)["input_ids"] == expected["single"]
    assert tokenizer(texts, others)["input_ids"] == expected["pair"]
    assert tokenizer(texts, others, truncation=True, max_length=30)["input_ids"] == expected["cut"]
    words = [text.split() for text in texts if text.split()]
    assert tokenizer(words, is_split_into_words=True)["input_ids"] == expected["words"]
    assert tokenizer.unk_token_id in sum(expected["single"], [])


def test_ernie_m_tokenizer_offsets_and_words_point_into_the_text(tokenizer):
    text = "Hi, 2019年  in ½ [MASK] Köln!"
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    spans = [text[begin:end] for begin, end in encoded["offset_mapping"]]
    assert "".join(spans).replace("½½½", "½") == text.replace(" ", "")
    for subword, span in zip(encoded.tokens(), spans, strict=True):
        assert span in ("½", subword.replace("▁", "")), (subword, span)
    words = text.split()
    for word, span in zip(encoded.word_ids(), spans, strict=True):
        assert span in words[word]
    assert sorted(set(encoded.word_ids())) == list(range(len(words)))


def test_ernie_m_tokenizer_saving_copying_and_pickling(tokenizer, tmp_path):
    tokenizer.add_tokens(["<sound>"])
    tokenizer.save_pretrained(tmp_path)
    # no tokenizer.json, which others would take for the whole tokenizer
    assert {path.name for path in tmp_path.iterdir()} == {
        "sentencepiece.bpe.model",
        "tokenization_ernie_m.py",
        "tokenizer_config.json",
        "vocab.txt",
    }
    assert str(tmp_path) not in (tmp_path / "tokenizer_config.json").read_text(encoding="utf-8")
    text = "Hi <sound> 2019年 [MASK]"
    expected = tokenizer(text)["input_ids"]
    assert len(tokenizer) - 1 in expected
    for other in (ErnieMTokenizer.from_pretrained(tmp_path), pickle.loads(pickle.dumps(tokenizer)), tokenizer):
        assert other(text)["input_ids"] == expected


LOAD = """
import json, sys
import torch
from transformers import AutoTokenizer
folder, texts = map(json.loads, sys.argv[2:])
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
torch.save([type(tokenizer).__module__.split(".")[0], tokenizer(texts).input_ids], sys.argv[1])
"""


@pytest.mark.slow
def test_ernie_m_tokenizer_folder_carries_its_code(ernie_m_oracle, tokenizer, fresh_process, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    texts = ernie_m_oracle.tokens["texts"][:20]
    expected = ernie_m_oracle.tokens["single"][:20]
    assert fresh_process(LOAD, str(tmp_path), texts) == ["transformers_modules", expected]


def test_ernie_m_tokenizer_lower_case(folder, tokenizer):
    lower = ErnieMTokenizer.from_pretrained(folder, do_lower_case=True)
    assert lower.tokenize("HI in KÖLN") == tokenizer.tokenize("hi in köln")
