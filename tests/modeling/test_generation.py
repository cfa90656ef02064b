"""The translation model at work: its decoder, its loss, its cache, and its folder in a fresh process."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    XLMRobertaConfig,
    XLMRobertaForCausalLM,
)

from modeling import encoder_decoder, masked_lm
from modeling.configuration_encoder import HEADS
from modeling.configuration_veco import VecoConfig
from modeling.modeling_veco import (
    VecoForConditionalGeneration,
    VecoForPreTraining,
    VecoModel,
)

LAYERS = 3
TINY = dict(
    vocab_size=61,
    hidden_size=32,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    intermediate_size=40,
    max_position_embeddings=50,
    type_vocab_size=1,
    layer_norm_eps=1e-5,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def scattered(model):
    """Weights far from their initial values, so that no term of the computation vanishes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            offset = 1.0 if name.endswith("orm.weight") else 0.0
            scale = 0.4 if "attention.self" in name else 0.15
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale + offset)
            if name.endswith("word_embeddings.weight"):
                parameter[1] = 0
    return model.eval()


@pytest.fixture(scope="module")
def veco_dir(tmp_path_factory):
    """A pre-trained VECO's folder, cross-attention and LM head included."""
    folder = tmp_path_factory.mktemp("veco")
    scattered(VecoForPreTraining(VecoConfig(**TINY))).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def translator_dir(tmp_path_factory):
    """A translation model that has half learnt to take a source's length and to go on from its first piece.

    What it says depends on the source and on what it said, ends by itself, and differs from beam to beam.
    """
    torch.manual_seed(0)
    config = VecoConfig(**TINY, decoder_layers=2, decoder_layer_indices=[1, 2])
    model = VecoForConditionalGeneration(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        source, labels = torch.full((16, 10), 1), torch.full((16, 9), -100)
        for row, length in enumerate(torch.randint(1, 9, (16,)).tolist()):
            source[row, : length + 2] = torch.tensor([0, *torch.randint(4, 24, (length,)), 2])
            piece = int(source[row, 1])
            for position in range(length):
                piece = 4 + (piece * 7 + 3) % 20
                labels[row, position] = piece
            labels[row, length] = 2
        optimizer.zero_grad()
        model(source, attention_mask=source.ne(1).long(), labels=labels).loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("translator")
    model.save_pretrained(folder)
    return folder


def translator(folder, tie=True, **options):
    """The model of `translator_dir`, or an untied one of the same weights."""
    model = VecoForConditionalGeneration.from_pretrained(folder, **options)
    if tie:
        return model
    untied = VecoForConditionalGeneration._from_config(
        VecoConfig(**TINY, decoder_layers=2, decoder_layer_indices=[1, 2], tie_decoder=False), **options
    )
    untied.load_state_dict(model.state_dict())
    return untied.eval()


def translation(folder, decoder_layers=2, **options):
    return VecoForConditionalGeneration.from_encoder(folder, decoder_layers, **options).eval()


def sources(padding="right", rows=4, length=9):
    """`<s> x </s>` of different lengths, padded on one side: (input_ids, attention_mask)."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.full((rows, length), 1)
    for row in range(rows):
        pieces = torch.randint(4, 24, (length - 2 * row,), generator=generator)
        pieces[0], pieces[-1] = 0, 2
        input_ids[row, slice(len(pieces)) if padding == "right" else slice(-len(pieces), None)] = pieces
    return input_ids, input_ids.ne(1).long()


def targets(rows=4, length=7):
    """`y </s>`, -100 behind."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(4, 60, (rows, length), generator=generator)
    for row in range(rows):
        labels[row, length - row - 1] = 2
        labels[row, length - row :] = -100
    return labels


def own_pieces(tokens):
    """A generated row without the padding behind it."""
    return [int(token) for token in tokens if token != 1]


# The decoder


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("tie", [True, False])
def test_the_decoder_equals_xlmrs(attention, tie, tmp_path):
    """`XLMRobertaForCausalLM` with cross-attention, given states of any other encoder, is our decoder."""
    reference = XLMRobertaForCausalLM(XLMRobertaConfig(is_decoder=True, add_cross_attention=True, **TINY))
    scattered(reference).save_pretrained(tmp_path)
    reference.set_attn_implementation(attention)
    ours = translation(tmp_path, None, tie_decoder=tie, attn_implementation=attention)
    other = torch.randn(4, 9, 32, generator=torch.Generator().manual_seed(3))
    _, other_mask = sources()
    inputs = ours.prepare_decoder_input_ids_from_labels(targets())
    mask = inputs.ne(1).long()
    with torch.no_grad():
        expected = reference(
            inputs,
            attention_mask=mask,
            encoder_hidden_states=other,
            encoder_attention_mask=other_mask,
            use_cache=False,
        ).logits
        actual = ours(
            attention_mask=other_mask,
            encoder_outputs=(other,),
            decoder_input_ids=inputs,
            decoder_attention_mask=mask,
        ).logits
    assert expected.std() > 0.3
    torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_prediction_moves_with_the_source_and_the_past_only(veco_dir, attention):
    model = translation(veco_dir, attn_implementation=attention)
    source, mask = sources()
    inputs = model.prepare_decoder_input_ids_from_labels(targets())

    def logits(source=source, inputs=inputs):
        return model(source, attention_mask=mask, decoder_input_ids=inputs).logits

    before = logits()
    changed = inputs.clone()
    changed[:, 3] = 4 + (inputs[:, 3] - 3) % 50
    moved = (logits(inputs=changed) - before).abs().amax((0, 2)) > 1e-6
    assert moved.tolist() == [position >= 3 for position in range(7)]
    changed = source.clone()
    changed[0, 4] = 4 + (source[0, 4] - 3) % 50
    moved = (logits(source=changed) - before).abs().amax(2) > 1e-6
    assert moved[0].all() and not moved[1:].any()


@torch.no_grad()
@pytest.mark.parametrize("padding", ["left", "right"])
def test_padding_of_sources_and_targets_changes_nothing(veco_dir, padding):
    model = translation(veco_dir)
    source, mask = sources(padding)
    labels = targets()
    together = model(source, attention_mask=mask, labels=labels, output_logits=True)
    losses = []
    for row in range(4):
        label = labels[row : row + 1, : 7 - row]
        alone = model(source[row : row + 1, mask[row].bool()], labels=label, output_logits=True)
        torch.testing.assert_close(together.logits[row, : 7 - row], alone.logits[0], atol=1e-5, rtol=0)
        losses.append(alone.loss * label.numel())
    torch.testing.assert_close(together.loss, sum(losses) / (7 + 6 + 5 + 4))


@torch.no_grad()
def test_the_encoder_is_the_encoder_plugged_out(veco_dir):
    model, encoder = translation(veco_dir), VecoModel.from_pretrained(veco_dir).eval()
    source, mask = sources()
    ours = model(source, attention_mask=mask, labels=targets(), output_hidden_states=True)
    expected = encoder(source, attention_mask=mask, output_hidden_states=True)
    for a, b in zip(ours.encoder_hidden_states, expected.hidden_states, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(ours.encoder_last_hidden_state, expected.last_hidden_state)
    assert not [key for key in model.state_dict() if key.startswith("roberta.") and "crossattention" in key]


@torch.no_grad()
def test_attentions_of_all_three_kinds(veco_dir):
    model = translation(veco_dir, attn_implementation="eager")
    source, mask = sources()
    out = model(source, attention_mask=mask, labels=targets(), output_attentions=True, output_hidden_states=True)
    kinds = {
        "encoder_attentions": (LAYERS, 9, 9),
        "decoder_attentions": (2, 7, 7),
        "cross_attentions": (2, 7, 9),
    }
    for name, (layers, rows, columns) in kinds.items():
        weights = getattr(out, name)
        assert [tuple(w.shape) for w in weights] == [(4, 4, rows, columns)] * layers, name
        torch.testing.assert_close(weights[0].sum(-1), torch.ones(4, 4, rows))
    assert torch.equal(out.decoder_attentions[0], out.decoder_attentions[0].tril())
    assert not out.cross_attentions[1].masked_select(mask[:, None, None] == 0).any()
    assert [tuple(h.shape) for h in out.decoder_hidden_states] == [(4, 7, 32)] * 3


# Loss


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("rows_at_once", [1, 5, 10_000])
def test_label_smoothing_is_torchs(label_smoothing, rows_at_once, monkeypatch):
    monkeypatch.setattr(masked_lm, "LOGITS_AT_ONCE", rows_at_once * 31)
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(11, 8), torch.randn(31, 8), torch.randn(31)
    leaves = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    labels, row_weights = torch.randint(0, 31, (11,)), torch.rand(11)
    total, losses = masked_lm.linear_cross_entropy(hidden, weight, bias, labels, row_weights, label_smoothing)
    expected = nn.functional.cross_entropy(
        hidden @ weight.T + bias, labels, reduction="none", label_smoothing=label_smoothing
    )
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(total, (expected * row_weights).sum())
    ours = torch.autograd.grad(total, leaves)
    for a, b in zip(ours, torch.autograd.grad((expected * row_weights).sum(), leaves), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_fused_loss_and_its_gradients_are_those_of_the_logits(veco_dir, label_smoothing):
    model = translation(veco_dir).train()
    source, mask = sources()
    batch = dict(input_ids=source, attention_mask=mask, labels=targets())
    out = model(**batch, label_smoothing=label_smoothing)
    assert out.logits is None and out.past_key_values is None
    out.loss.backward()
    ours = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    logits = model(**batch, output_logits=True).logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=label_smoothing)
    loss.backward()
    torch.testing.assert_close(out.loss, loss)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_decoder_inputs_are_the_labels_shifted(veco_dir):
    labels = torch.tensor([[7, 8, 9, 2], [7, 2, -100, -100]])
    inputs = translation(veco_dir).prepare_decoder_input_ids_from_labels(labels)
    assert inputs.tolist() == [[2, 7, 8, 9], [2, 7, 2, 1]]


def test_gradient_checkpointing_changes_no_gradient(veco_dir):
    model = translation(veco_dir).train()
    source, mask = sources()
    gradients = []
    for enable in (False, True):
        if enable:
            (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
        model.zero_grad()
        model(source, attention_mask=mask, labels=targets()).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    with pytest.raises(ValueError, match="cache was asked for in training with gradient checkpointing"):
        model(source, attention_mask=mask, labels=targets(), use_cache=True)


def test_bfloat16(veco_dir):
    model = translation(veco_dir, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    source, mask = sources()
    exact = translation(veco_dir)(source, attention_mask=mask, labels=targets()).loss
    loss = model.train()(source, attention_mask=mask, labels=targets()).loss
    loss.backward()
    assert abs(loss - exact) < 0.03 * exact
    assert model.eval().generate(source, attention_mask=mask, max_new_tokens=4).shape == (4, 5)


# Generation


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("tie", [True, False])
def test_cached_and_uncached_greedy_tokens_are_the_same(translator_dir, tie, padding, attention):
    model = translator(translator_dir, tie, attn_implementation=attention)
    source, mask = sources(padding)
    settings = dict(attention_mask=mask, num_beams=1, return_dict_in_generate=True, output_logits=True)
    cached = model.generate(source, **settings)
    plain = model.generate(source, use_cache=False, **settings)
    assert torch.equal(cached.sequences, plain.sequences)
    for a, b in zip(cached.logits, plain.logits, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    assert cached.past_key_values.cross_attention_cache.get_seq_length() == 9
    # neither a constant nor all of one length
    assert len({len(own_pieces(row)) for row in cached.sequences}) > 1
    assert len(cached.sequences.unique()) > 8


def test_the_cache_step_by_step_equals_one_forward(translator_dir):
    """Positions of cached steps count on from the cached pieces, with several pieces a step too."""
    model = translator(translator_dir)
    source, mask = sources()
    inputs = torch.cat([torch.full((4, 1), 2), torch.randint(4, 60, (4, 6))], 1)
    with torch.no_grad():
        whole = model(source, attention_mask=mask, decoder_input_ids=inputs)
        cache, logits = EncoderDecoderCache(DynamicCache(), DynamicCache()), []
        for start, end in ((0, 3), (3, 4), (4, 7)):
            step = model(
                attention_mask=mask,
                encoder_outputs=(whole.encoder_last_hidden_state,),
                decoder_input_ids=inputs[:, start:end],
                past_key_values=cache,
            )
            logits.append(step.logits)
        torch.testing.assert_close(torch.cat(logits, 1), whole.logits, atol=1e-5, rtol=0)
        last = model(source, attention_mask=mask, decoder_input_ids=inputs, logits_to_keep=1).logits
        torch.testing.assert_close(last, whole.logits[:, -1:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_beams", [1, 5])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_a_batch_equals_its_rows_alone(translator_dir, padding, num_beams, monkeypatch):
    """Sources of different lengths; translations that end by themselves, and ones cut at their own source's limit."""
    model = translator(translator_dir)
    source, mask = sources(padding)
    by_limit = {}
    for longer in (50, -2):
        monkeypatch.setattr(encoder_decoder, "LONGER_THAN_SOURCE", longer)
        together = model.generate(source, attention_mask=mask, num_beams=num_beams)
        by_limit[longer] = [own_pieces(row) for row in together]
        for row, pieces in enumerate(by_limit[longer]):
            alone = model.generate(source[row : row + 1, mask[row].bool()], num_beams=num_beams)
            assert own_pieces(alone[0]) == pieces
            assert len(pieces) - 1 <= mask[row].sum() + longer and pieces[-1] == 2
    assert any(short != long for short, long in zip(*by_limit.values(), strict=True))


def test_beams_are_reordered_with_their_cache(translator_dir):
    model = translator(translator_dir)
    source, mask = sources()
    settings = dict(attention_mask=mask, num_return_sequences=3, return_dict_in_generate=True, output_scores=True)
    cached, plain = model.generate(source, **settings), model.generate(source, use_cache=False, **settings)
    assert torch.equal(cached.sequences, plain.sequences)
    torch.testing.assert_close(cached.sequences_scores, plain.sequences_scores, atol=1e-5, rtol=0)
    assert len({tuple(own_pieces(row)) for row in cached.sequences}) > 8
    greedy = model.generate(source, attention_mask=mask, num_beams=1)
    assert any(own_pieces(cached.sequences[3 * row]) != own_pieces(greedy[row]) for row in range(4))


def test_sampling_with_and_without_cache(translator_dir):
    model = translator(translator_dir)
    source, mask = sources()
    drawn = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        drawn.append(
            model.generate(
                source, attention_mask=mask, do_sample=True, num_beams=1, num_return_sequences=2, use_cache=use_cache
            )
        )
    assert torch.equal(*drawn) and len(drawn[0]) == 8


@pytest.mark.parametrize("padding", ["left", "right"])
def test_a_static_cache_gives_the_same(translator_dir, padding):
    model = translator(translator_dir)
    source, mask = sources(padding)
    expected = model.generate(source, attention_mask=mask)
    assert torch.equal(model.generate(source, attention_mask=mask, cache_implementation="static"), expected)


def endless(model):
    """The model with an end that it never chooses."""
    with torch.no_grad():
        model.lm_head.bias[2] = -100.0
    return model


def test_the_length_is_bounded_by_the_sources_unless_something_else_is_said(translator_dir, monkeypatch):
    monkeypatch.setattr(encoder_decoder, "LONGER_THAN_SOURCE", 12)
    model = endless(translator(translator_dir))
    source, mask = sources()

    def lengths(*args, **settings):
        return [len(own_pieces(row)) - 1 for row in model.generate(*args, **{"num_beams": 1, **settings})]

    by_source = [9 + 12, 7 + 12, 5 + 12, 3 + 12]
    assert lengths(source, attention_mask=mask) == by_source
    assert lengths(source) == by_source
    assert lengths(input_ids=source, attention_mask=mask, num_beams=3) == by_source
    states = model.roberta(source, attention_mask=mask)
    assert lengths(encoder_outputs=states, attention_mask=mask) == by_source
    assert lengths(encoder_outputs=states) == [9 + 12] * 4
    words = model.roberta.embeddings.word_embeddings(source)
    assert lengths(inputs_embeds=words, attention_mask=mask) == by_source
    assert lengths(source, attention_mask=mask, labels=targets()) == by_source  # as Seq2SeqTrainer calls it
    # what is said counts: in the call, in a given configuration, in the saved one
    assert lengths(source, attention_mask=mask, max_new_tokens=4) == [4] * 4
    assert lengths(source, attention_mask=mask, max_length=4) == [3] * 4
    settings = GenerationConfig(max_new_tokens=6, num_beams=1)
    assert [len(own_pieces(row)) for row in model.generate(source, settings, attention_mask=mask)] == [7] * 4
    assert settings.max_new_tokens == 6
    prompt = torch.tensor([[2, 7, 8]]).expand(4, -1)
    assert lengths(source, attention_mask=mask, decoder_input_ids=prompt) == [n + 2 for n in by_source]
    assert lengths(source, attention_mask=mask, decoder_input_ids=prompt[:, 1:]) == [n + 2 for n in by_source]
    model.generation_config.max_length = 8
    assert lengths(source, attention_mask=mask) == [7] * 4


def test_no_translation_runs_beyond_the_positions(translator_dir):
    """48 positions: 48 pieces after the start, the last of which is never read."""
    model = endless(translator(translator_dir))
    source, mask = sources()
    for settings in ({}, {"max_new_tokens": 200}, {"max_length": 200}):
        assert model.generate(source, attention_mask=mask, num_beams=1, **settings).shape == (4, 49)
    prompt = torch.full((4, 5), 7)  # the library puts the start before it
    tokens = model.generate(source, attention_mask=mask, num_beams=1, decoder_input_ids=prompt)
    assert tokens.shape == (4, 49) and tokens[0, :7].tolist()[:6] == [2, 7, 7, 7, 7, 7]


# Folders

RELOAD = """
import json, sys, warnings
import torch, transformers
source, mask = (torch.tensor(rows) for rows in json.loads(sys.argv[1]))
result = {}
for name, folder in json.loads(sys.argv[2]).items():
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    assert "transformers_modules" in type(model).__module__
    result[name] = {
        "beam": model.generate(source, attention_mask=mask).tolist(),
        "greedy": model.generate(source, attention_mask=mask, num_beams=1).tolist(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "settings": [model.generation_config.num_beams, model.generation_config.decoder_start_token_id],
    }
reports = {}
for auto in json.loads(sys.argv[4]):
    encoder, report = getattr(transformers, auto).from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True)
    base = encoder.base_model.eval()
    states = base(source, attention_mask=mask).last_hidden_state
    reports[auto] = {
        "missing": sorted(report["missing_keys"]), "unexpected": sorted(report["unexpected_keys"]),
        "equal": torch.equal(states, model.eval().roberta(source, attention_mask=mask).last_hidden_state)}
result["encoders"] = reports
try:
    transformers.AutoModelForSeq2SeqLM.from_pretrained(sys.argv[3], trust_remote_code=True)
except ValueError as error:
    result["error"] = str(error)
print(json.dumps(result))
"""


def test_a_fresh_process_loads_the_folder_and_generates_the_same(veco_dir, translator_dir, tmp_path):
    source, mask = sources()
    folders, expected = {}, {}
    for name, tie in (("tied", True), ("untied", False)):
        model = translator(translator_dir, tie)
        folders[name] = str(tmp_path / f"{name}_folder")
        model.save_pretrained(folders[name])
        expected[name] = {
            "beam": model.generate(source, attention_mask=mask).tolist(),
            "greedy": model.generate(source, attention_mask=mask, num_beams=1).tolist(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "settings": [5, 2],
        }
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "PYTHONPATH"))}
    environment |= {"HF_HOME": str(tmp_path / "hf_home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            RELOAD,
            json.dumps([source.tolist(), mask.tolist()]),
            json.dumps(folders),
            str(veco_dir),
            json.dumps(list(HEADS)),
        ],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert {name: result[name] for name in folders} == expected
    assert "from_encoder" in result["error"]
    for auto, report in result["encoders"].items():
        assert report["equal"], auto
        assert all(key.startswith(("classifier.", "qa_outputs.")) for key in report["missing"])
        assert all(key.startswith("lm_head.") for key in report["unexpected"])
    for auto in ("AutoModelForMaskedLM", "AutoModelForPreTraining"):
        assert not result["encoders"][auto]["missing"] and not result["encoders"][auto]["unexpected"]


def test_a_folder_without_its_generation_config_starts_from_the_end_piece(veco_dir, tmp_path):
    translation(veco_dir).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    model = VecoForConditionalGeneration.from_pretrained(tmp_path)
    assert (model.generation_config.decoder_start_token_id, model.generation_config.num_beams) == (2, 5)


def test_errors_of_forward(veco_dir):
    model = translation(veco_dir)
    source, mask = sources()
    with pytest.raises(ValueError, match="neither decoder_input_ids nor labels"):
        model(source, attention_mask=mask)
    with pytest.raises(ValueError, match="no predicted position"):
        model(source, attention_mask=mask, labels=torch.full((4, 3), -100))
    with pytest.raises(ValueError, match=r"labels have shape \(4, 7\), and the inputs to predict from \(4, 5\)"):
        model(source, attention_mask=mask, labels=targets(), decoder_input_ids=torch.full((4, 5), 7))
    with pytest.raises(ValueError, match="got no source"):
        model.generate()
    with pytest.raises(ValueError, match="label_smoothing is 1.5"):
        model(source, attention_mask=mask, labels=targets(), label_smoothing=1.5)
    with pytest.raises(ValueError, match="exactly one"):
        model(labels=targets())
    with pytest.raises(ValueError, match="48 positions"):
        model(source, attention_mask=mask, labels=torch.full((4, 49), 7))
    cache = model(source, attention_mask=mask, decoder_input_ids=torch.full((4, 48), 7)).past_key_values
    step = dict(input_ids=source, attention_mask=mask, decoder_input_ids=torch.full((4, 1), 7), past_key_values=cache)
    with pytest.raises(ValueError, match="a translation of 49 pieces"):
        model(**step)
    step["past_key_values"] = model(
        source, attention_mask=mask, decoder_input_ids=torch.full((4, 3), 7)
    ).past_key_values
    with pytest.raises(ValueError, match="cached ones need a mask too"):
        model(**step, decoder_attention_mask=torch.ones(4, 1, dtype=torch.long))
