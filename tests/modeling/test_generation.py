"""What a translation model generates: with and without its cache, in batches and in beams."""

import pytest
import torch
from transformers import GenerationConfig

from modeling import encoder_decoder
from modeling.configuration_veco import VecoConfig
from modeling.modeling_veco import VecoForConditionalGeneration
from tests.modeling.tiny import SIZES, sources, targets


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """Loads a translation model.

    It has half learned to take a source's length and to continue from its first subword. What it says depends on the
    source and on what it said, ends by itself, and differs from beam to beam.
    """
    torch.manual_seed(0)
    config = VecoConfig(**SIZES, decoder_layers=2, decoder_layer_indices=[1, 2])
    model = VecoForConditionalGeneration(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        source, labels = torch.full((16, 10), 1), torch.full((16, 9), -100)
        for row, length in enumerate(torch.randint(1, 9, (16,)).tolist()):
            source[row, : length + 2] = torch.tensor([0, *torch.randint(4, 24, (length,)), 2])
            subword = int(source[row, 1])
            for position in range(length):
                subword = 4 + (subword * 7 + 3) % 20
                labels[row, position] = subword
            labels[row, length] = 2
        optimizer.zero_grad()
        model(source, attention_mask=source.ne(1).long(), labels=labels).loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("translator")
    model.save_pretrained(folder)

    return lambda **options: VecoForConditionalGeneration.from_pretrained(folder, **options)


def own_subwords(tokens):
    """A generated row without the padding behind it."""
    return [int(token) for token in tokens if token != 1]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("num_beams", [1, 5])
def test_generate_with_and_without_cache(translator, num_beams, padding, attention):
    model = translator(attn_implementation=attention)
    source, mask = sources(padding)
    settings = dict(attention_mask=mask, return_dict_in_generate=True, output_scores=True, output_logits=True)
    settings |= dict(num_beams=num_beams, num_return_sequences=min(num_beams, 3))
    cached, plain = model.generate(source, **settings), model.generate(source, use_cache=False, **settings)
    assert torch.equal(cached.sequences, plain.sequences)
    torch.testing.assert_close([*cached.logits], [*plain.logits], atol=1e-5, rtol=0)
    assert cached.past_key_values.cross_attention_cache.get_seq_length() == 9
    # neither a constant nor all of one length, and beams differ
    assert len({len(own_subwords(row)) for row in cached.sequences}) > 1 and len(cached.sequences.unique()) > 8
    if num_beams > 1:
        torch.testing.assert_close(cached.sequences_scores, plain.sequences_scores, atol=1e-5, rtol=0)
        assert len({tuple(own_subwords(row)) for row in cached.sequences}) > 8


@pytest.mark.parametrize("num_beams", [1, 5])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_generate_a_batch_equals_its_rows_alone(translator, padding, num_beams, monkeypatch):
    """Sources of different lengths; translations that end by themselves, and ones cut at their own source's limit."""
    model = translator()
    source, mask = sources(padding)
    by_limit = {}
    for longer in (50, -2):
        monkeypatch.setattr(encoder_decoder, "LONGER_THAN_SOURCE", longer)
        together = model.generate(source, attention_mask=mask, num_beams=num_beams)
        by_limit[longer] = [own_subwords(row) for row in together]
        for row, subwords in enumerate(by_limit[longer]):
            alone = model.generate(source[row : row + 1, mask[row].bool()], num_beams=num_beams)
            assert own_subwords(alone[0]) == subwords
            assert len(subwords) - 1 <= mask[row].sum() + longer and subwords[-1] == 2
    assert any(short != long for short, long in zip(*by_limit.values(), strict=True))


def test_generate_length_is_bounded_by_the_sources_unless_something_else_is_said(translator, monkeypatch):
    monkeypatch.setattr(encoder_decoder, "LONGER_THAN_SOURCE", 12)
    model = translator()
    model.lm_head.bias.data[2] = -100.0  # never ends by itself
    source, mask = sources()

    def lengths(*args, **settings):
        return [len(own_subwords(row)) - 1 for row in model.generate(*args, **{"num_beams": 1, **settings})]

    by_source = [9 + 12, 7 + 12, 5 + 12, 3 + 12]
    assert lengths(source) == lengths(input_ids=source, attention_mask=mask, num_beams=3) == by_source
    states, words = model.roberta(source, attention_mask=mask), model.get_input_embeddings()(source)
    assert lengths(encoder_outputs=states, attention_mask=mask) == by_source
    assert lengths(inputs_embeds=words, attention_mask=mask) == by_source
    assert lengths(source, attention_mask=mask, labels=targets()) == by_source  # as Seq2SeqTrainer calls it
    # what is said counts: in the call, in a given configuration, in the saved one
    assert lengths(source, attention_mask=mask, max_new_tokens=4) == [4] * 4
    settings = GenerationConfig(max_new_tokens=6, num_beams=1)
    assert [len(own_subwords(row)) for row in model.generate(source, settings, attention_mask=mask)] == [7] * 4
    prompt = torch.tensor([[2, 7, 8]]).expand(4, -1)
    assert lengths(source, attention_mask=mask, decoder_input_ids=prompt) == [n + 2 for n in by_source]
    assert lengths(source, attention_mask=mask, max_new_tokens=200) == [58] * 4  # the positions
    model.generation_config.max_length = 8
    assert lengths(source, attention_mask=mask) == [7] * 4
