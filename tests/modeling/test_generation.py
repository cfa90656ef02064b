"""What a translation model generates: with and without its cache, in batches and in beams."""

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import utils as generation_utils

from crosslingual_zoo.modeling.configuration_veco import VecoConfig
from crosslingual_zoo.modeling.modeling_veco import VecoForConditionalGeneration
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
        source = torch.full((16, 10), 1)
        labels = torch.full((16, 9), -100)
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


@pytest.fixture
def endless(translator):
    """A translation model that never ends by itself."""
    model = translator()
    model.lm_head.bias.data[2] = -100.0
    return model


def rows_of(sequences):
    """Generated rows without the padding behind them."""
    return [row[row != 1].tolist() for row in sequences]


def lengths_of(sequences):
    """How many tokens were generated in each row."""
    return [len(row) - 1 for row in rows_of(sequences)]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("num_beams", [1, 5])
def test_generate_with_and_without_cache(translator, num_beams, padding, attention):
    model = translator(attn_implementation=attention)
    source, mask = sources(padding)
    settings = dict(attention_mask=mask, return_dict_in_generate=True, output_scores=True, output_logits=True)
    settings |= dict(num_beams=num_beams, num_return_sequences=min(num_beams, 3))
    cached = model.generate(source, **settings)
    plain = model.generate(source, use_cache=False, **settings)
    assert torch.equal(cached.sequences, plain.sequences)
    torch.testing.assert_close(cached.logits, plain.logits, atol=1e-5, rtol=0)
    assert cached.past_key_values.cross_attention_cache.get_seq_length() == 9
    # neither a constant nor all of one length, and beams differ
    assert len(set(lengths_of(cached.sequences))) > 1
    assert len(cached.sequences.unique()) > 8
    if num_beams > 1:
        torch.testing.assert_close(cached.sequences_scores, plain.sequences_scores, atol=1e-5, rtol=0)
        assert len(cached.sequences.unique(dim=0)) > 8


@pytest.mark.parametrize("num_beams", [1, 5])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_generate_a_batch_equals_its_rows_alone(translator, padding, num_beams):
    """Sources of different lengths; translations that end by themselves, and ones that are cut."""
    model = translator()
    source, mask = sources(padding)

    def translate(**limit):
        together = rows_of(model.generate(source, attention_mask=mask, num_beams=num_beams, **limit))
        for row, translation in enumerate(together):
            alone = model.generate(source[row : row + 1, mask[row].bool()], num_beams=num_beams, **limit)
            assert rows_of(alone) == [translation]
        return together

    assert translate() != translate(max_new_tokens=4)


def test_generate_is_bounded_by_the_positions(endless):
    source, mask = sources()
    states = endless.roberta(source, attention_mask=mask)
    for inputs in ({"inputs": source}, {"encoder_outputs": states}, {"inputs": source, "labels": targets()}):
        sequences = endless.generate(**inputs, attention_mask=mask, num_beams=1)
        assert lengths_of(sequences) == [58] * 4


@pytest.fixture
def warnings(monkeypatch):
    """What the library's generation warns of."""
    messages = []
    monkeypatch.setattr(generation_utils.logger, "warning", lambda message, *_: messages.append(message))
    return messages


@pytest.mark.parametrize(
    ("limit", "length"),
    [
        ({"max_new_tokens": 4}, 4),
        ({"generation_config": GenerationConfig(max_new_tokens=5)}, 5),
        ({"max_length": 7}, 6),
        ({"max_new_tokens": 3, "decoder_input_ids": torch.full((4, 2), 2)}, 4),
        ({}, 58),
    ],
)
def test_generate_limits_take_the_place_of_the_default(endless, warnings, limit, length):
    """Without the library's warning that two limits are set; and the default stays for the next call."""
    endless.generation_config.num_beams = 1
    source, mask = sources()
    assert lengths_of(endless.generate(source, attention_mask=mask, **limit)) == [length] * 4
    assert endless.generation_config.max_length == 59
    assert not warnings
