"""Sentences as vectors, by layer."""

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from finetuning.tasks.vectors import encoder as retrieval_search
from finetuning.tasks.vectors.encoder import SentenceEncoder, vectors_by_layer
from finetuning.tasks.vectors.recipe import POOLINGS

TEXTS = ["Anna bakes fresh bread every Sunday morning.", "雨。", "a", "", "The train to Berlin leaves at nine."]


@pytest.fixture(scope="module")
def encoder_of(tiny_model):
    model, tokenizer = AutoModel.from_pretrained(tiny_model, add_pooling_layer=False), None
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    return lambda **options: SentenceEncoder(model.eval(), tokenizer, **{"batch_size": 2, **options})


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_those_of_a_text_alone(encoder_of, pooling):
    encoder = encoder_of(pooling=pooling)
    tokens = encoder.tokens(TEXTS)
    found = encoder.vectors(tokens, [0, 1, 2])
    for number, text in enumerate(TEXTS):
        alone = encoder.tokenizer(text, return_tensors="pt")  # the tokenizer's own special tokens, nothing padded
        assert alone["input_ids"][0, 1:-1].tolist() == tokens[number]
        states = encoder.states.model(**alone, output_hidden_states=True).hidden_states
        for layer in range(3):
            part = {"mean": slice(1, -1), "mean_with_special_tokens": slice(None), "cls": slice(1)}[pooling]
            states_TH = states[layer][0, part]
            expected = states_TH.mean(0) if len(states_TH) else torch.zeros(32)
            torch.testing.assert_close(found[layer][number], expected, rtol=1e-4, atol=1e-5)


def test_vectors_of_long_texts_are_cut(encoder_of):
    encoder = encoder_of(max_length=6)
    tokens = encoder.tokens(TEXTS)
    assert [encoder.is_cut(ids) for ids in tokens] == [len(ids) > 4 for ids in tokens]
    cut = encoder.vectors(tokens, [2])[2]
    torch.testing.assert_close(cut, encoder_of().vectors([ids[:4] for ids in tokens], [2])[2], rtol=1e-4, atol=1e-5)
    assert encoder_of().max_length == 64, "as many positions as the model has"
    with pytest.raises(ValueError, match="2 tokens are special"):
        encoder_of(max_length=2)


def test_vectors_by_layer_in_several_passes(encoder_of, monkeypatch):
    encoder = encoder_of()
    sides = [TEXTS, TEXTS[:3]]
    asked, vectors = [], encoder.vectors
    monkeypatch.setattr(encoder, "vectors", lambda side, layers: asked.append(layers) or vectors(side, layers))
    whole = list(vectors_by_layer(encoder, sides, [0, 1, 2])[1])
    assert asked == [[0, 1, 2]] * 2
    asked.clear()
    monkeypatch.setattr(retrieval_search, "BYTES_OF_VECTORS", 2 * 4 * 8 * 32)  # two layers of 8 texts
    parts = list(vectors_by_layer(encoder, sides, [0, 1, 2])[1])
    assert asked == [[0, 1], [0, 1], [2], [2]]
    for (layer, *one), (same, *other) in zip(whole, parts, strict=True):
        assert layer == same
        torch.testing.assert_close(one, other)


def test_tokens_without_spelled_special_tokens(encoder_of):
    special = set(encoder_of().tokenizer.all_special_ids) - {encoder_of().tokenizer.unk_token_id}
    assert special.isdisjoint(encoder_of().tokens(["a <mask> b </s>"])[0])
