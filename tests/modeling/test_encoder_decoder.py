"""Translation models: the weights they take from an encoder, share, draw and save; their decoder and their loss."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import XLMRobertaConfig, XLMRobertaForCausalLM, XLMRobertaForMaskedLM

from crosslingual_zoo.modeling.configuration_veco import VecoConfig
from crosslingual_zoo.modeling.modeling_veco import VecoForConditionalGeneration
from tests.modeling.tiny import PREFIXES, SIZES, class_of, far_from_initial, made, sources, targets


@pytest.fixture(scope="module")
def veco_dir(tmp_path_factory):
    """A pre-trained VECO's folder, cross-attention and LM head included."""
    folder = tmp_path_factory.mktemp("veco")
    made("veco").save_pretrained(folder)
    return folder


def translation(folder, decoder_layers=2, **options):
    """A translation model of an encoder's folder."""
    return VecoForConditionalGeneration.from_encoder(folder, decoder_layers, **options).eval()


def saved_encoder(kind, folder):
    """A folder of that kind, and its state dict with XLM-R's names."""
    torch.manual_seed(3)
    if kind.startswith("XLMRoberta"):
        model = XLMRobertaForMaskedLM(XLMRobertaConfig(**SIZES))
    else:
        model_type = next(model_type for model_type, prefix in PREFIXES.items() if kind.startswith(prefix))
        cls = class_of(model_type, kind.removeprefix(PREFIXES[model_type]))
        model = cls(cls.config_class(**SIZES))
    far_from_initial(model).save_pretrained(folder)
    return {
        key if key.startswith(("roberta.", "lm_head.")) else f"roberta.{key}": v
        for key, v in model.state_dict().items()
    }


KINDS = {
    "VecoForPreTraining": (),
    "VecoModel": ("lm_head",),
    "XLMRobertaForMaskedLM": ("crossattention",),
    "XlmAlignForPreTraining": ("crossattention",),
    "ErnieMForMaskedLM": ("crossattention",),
    "MetaXlmModel": ("crossattention", "lm_head"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_from_encoder_of_every_kind_of_folder_says_what_is_fresh(kind, tmp_path, caplog):
    state = saved_encoder(kind, tmp_path / "encoder")
    with caplog.at_level(logging.INFO, "crosslingual_zoo.modeling.encoder_decoder"):
        model = translation(tmp_path / "encoder")
    fresh = KINDS[kind]
    assert all((what in caplog.text) == (what in fresh) for what in ("crossattention", "lm_head"))
    ours = model.state_dict()
    for key, value in state.items():
        if key.startswith(("roberta.embeddings.", "roberta.encoder.", "lm_head.")) and ".crossattention." not in key:
            assert torch.equal(ours[key], value), key
    for index, source in enumerate((1, 2)):
        for key in (key for key in ours if key.startswith(f"decoder.layer.{index}.")):
            origin = f"roberta.encoder.layer.{source}.{key.removeprefix(f'decoder.layer.{index}.')}"
            if origin in state:
                assert torch.equal(ours[key], state[origin]), key
            else:
                assert ".crossattention." in key and "crossattention" in fresh
                assert key.endswith(("bias", "LayerNorm.weight")) or 0.01 < ours[key].std() < 0.03
    # the folder it saves is VECO's own, even if it came from another model
    model.save_pretrained(tmp_path / "translation")
    auto_map = json.loads((tmp_path / "translation" / "config.json").read_text())["auto_map"]
    assert auto_map["AutoModelForSeq2SeqLM"] == "modeling_veco.VecoForConditionalGeneration"
    assert all((tmp_path / "translation" / f"{target.split('.')[0]}.py").exists() for target in auto_map.values())


def test_from_encoder_random_takes_the_architecture_only(veco_dir, tmp_path):
    VecoConfig.from_pretrained(veco_dir).save_pretrained(tmp_path)  # no weights at all
    torch.manual_seed(0)
    model = VecoForConditionalGeneration.from_encoder(tmp_path, 2, random=True, hidden_dropout_prob=0.3)
    assert model.config.hidden_dropout_prob == 0.3 and model.config.hidden_size == 32
    trained = translation(veco_dir).state_dict()
    for key, value in model.state_dict().items():
        assert not torch.equal(value, trained[key]), key
        if value.dim() == 2:
            assert 0.01 < value.std() < 0.03, key
    assert model.decoder.layer[1].output.dense.weight is model.roberta.encoder.layer[2].output.dense.weight


@pytest.mark.parametrize("tie", [True, False])
def test_from_encoder_saved_once_and_reloaded_tied(veco_dir, tie, tmp_path):
    model = translation(veco_dir, tie_decoder=tie)
    model.save_pretrained(tmp_path)
    own = {key for key in load_file(tmp_path / "model.safetensors") if key.startswith("decoder.")}
    assert any(".attention." in key for key in own) != tie and any(".crossattention." in key for key in own)
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    assert (settings["decoder_start_token_id"], settings["eos_token_id"], settings["pad_token_id"]) == (2, 2, 1)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["is_encoder_decoder"] and config["decoder_layer_indices"] == [1, 2] and not config["cross_attention"]
    again, report = VecoForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    query = again.decoder.layer[0].attention.self.query.weight
    assert (query is again.roberta.encoder.layer[1].attention.self.query.weight) == tie


def test_from_encoder_decodes_with_the_last_layers_the_first_or_all(veco_dir):
    for chosen, indices in ((dict(), [1, 2]), (dict(decoder_layer_selection="first"), [0, 1])):
        assert translation(veco_dir, **chosen).config.decoder_layer_indices == indices
    assert translation(veco_dir, None).config.decoder_layer_indices == [0, 1, 2]


def test_from_encoder_refuses(veco_dir, tmp_path):
    with pytest.raises(ValueError, match="decoder_layers is 4"):
        translation(veco_dir, 4)
    with pytest.raises(ValueError, match="from_encoder"):
        VecoForConditionalGeneration.from_pretrained(veco_dir)
    translation(veco_dir).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=tmp_path.name):
        translation(tmp_path)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("tie", [True, False])
def test_decoder_equals_xlm_r_s(attention, tie, tmp_path):
    """`XLMRobertaForCausalLM` with cross-attention, given states of any other encoder, is our decoder."""
    reference = XLMRobertaForCausalLM(XLMRobertaConfig(is_decoder=True, add_cross_attention=True, **SIZES))
    far_from_initial(reference).save_pretrained(tmp_path)
    reference.set_attn_implementation(attention)
    ours = translation(tmp_path, None, tie_decoder=tie, attn_implementation=attention)
    other = torch.randn(4, 9, 32, generator=torch.Generator().manual_seed(3))
    _, other_mask = sources()
    inputs = ours.prepare_decoder_input_ids_from_labels(targets())
    mask = inputs.ne(1).long()
    with torch.no_grad():
        expected = reference(
            inputs, attention_mask=mask, encoder_hidden_states=other, encoder_attention_mask=other_mask, use_cache=False
        ).logits
        actual = ours(None, other_mask, inputs, mask, encoder_outputs=(other,)).logits
        cache = ours(None, other_mask, inputs[:, :3], encoder_outputs=(other,)).past_key_values
        rest = ours(None, other_mask, inputs[:, 3:], mask, encoder_outputs=(other,), past_key_values=cache).logits
    assert expected.std() > 0.3
    torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=0)
    torch.testing.assert_close(rest[mask[:, 3:].bool()], expected[:, 3:][mask[:, 3:].bool()], atol=1e-5, rtol=0)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_for_conditional_generation_loss_and_gradients_are_those_of_the_logits(veco_dir, label_smoothing):
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


@torch.no_grad()
@pytest.mark.parametrize("padding", ["left", "right"])
def test_for_conditional_generation_padding_changes_nothing(veco_dir, padding):
    model, labels = translation(veco_dir), targets()
    source, mask = sources(padding)
    together = model(source, attention_mask=mask, labels=labels)
    for row in range(4):
        label = labels[row : row + 1, : 7 - row]
        alone = model(source[row : row + 1, mask[row].bool()], labels=label)
        torch.testing.assert_close(together.logits[row, : 7 - row], alone.logits[0], atol=1e-5, rtol=0)
