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
from tests.conftest import PREFIXES
from tests.modeling.tiny import SIZES, class_of, far_from_initial, gradients, made, sources, targets


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
    state = {}
    for key, tensor in model.state_dict().items():
        has_prefix = key.startswith(("roberta.", "lm_head."))
        state[key if has_prefix else f"roberta.{key}"] = tensor
    return state


KINDS = {
    "VecoForPreTraining": (),
    "VecoModel": ("lm_head",),
    "XLMRobertaForMaskedLM": ("crossattention",),
    "XlmAlignForPreTraining": ("crossattention",),
    "ErnieMForMaskedLM": ("crossattention",),
    "MetaXlmModel": ("crossattention", "lm_head"),
}


def assert_fresh(key, tensor):
    """A weight of cross-attention as it is drawn."""
    assert ".crossattention." in key
    assert key.endswith(("bias", "LayerNorm.weight")) or 0.01 < tensor.std() < 0.03


@pytest.mark.parametrize("kind", KINDS)
def test_from_encoder_of_every_kind_of_folder_says_what_is_fresh(kind, tmp_path, caplog):
    theirs = saved_encoder(kind, tmp_path)
    with caplog.at_level(logging.INFO, "crosslingual_zoo.modeling.encoder_decoder"):
        ours = translation(tmp_path).state_dict()
    fresh = KINDS[kind]
    for part in ("crossattention", "lm_head"):
        assert (part in caplog.text) == (part in fresh)
    for key, tensor in theirs.items():
        if key.startswith(("roberta.embeddings.", "roberta.encoder.", "lm_head.")) and ".crossattention." not in key:
            assert torch.equal(ours[key], tensor), key
    for key, tensor in ours.items():
        if not key.startswith("decoder.layer."):
            continue
        # layers 0 and 1 of the decoder are 1 and 2 of the encoder
        _, _, layer, name = key.split(".", 3)
        origin = f"roberta.encoder.layer.{int(layer) + 1}.{name}"
        if origin in theirs:
            assert torch.equal(tensor, theirs[origin]), key
        else:
            assert "crossattention" in fresh
            assert_fresh(key, tensor)


def test_from_encoder_random_takes_the_architecture_only(veco_dir, tmp_path):
    VecoConfig.from_pretrained(veco_dir).save_pretrained(tmp_path)  # no weights at all
    torch.manual_seed(0)
    model = VecoForConditionalGeneration.from_encoder(tmp_path, 2, random=True, hidden_dropout_prob=0.3)
    assert model.config.hidden_dropout_prob == 0.3
    assert model.config.hidden_size == 32
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
    saved = " ".join(key for key in load_file(tmp_path / "model.safetensors") if key.startswith("decoder."))
    assert ".crossattention." in saved
    assert (".attention." in saved) == (not tie)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["decoder_start_token_id"] == 2
    assert generation["eos_token_id"] == 2
    assert generation["pad_token_id"] == 1
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["is_encoder_decoder"]
    assert config["decoder_layer_indices"] == [1, 2]
    assert not config["cross_attention"]

    loaded, report = VecoForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=0, rtol=0)
    query = loaded.decoder.layer[0].attention.self.query.weight
    assert (query is loaded.roberta.encoder.layer[1].attention.self.query.weight) == tie


@pytest.mark.parametrize(
    ("decoder_layers", "options", "indices"),
    [(2, {}, [1, 2]), (2, {"decoder_layer_selection": "first"}, [0, 1]), (None, {}, [0, 1, 2])],
)
def test_from_encoder_decodes_with_the_last_layers_the_first_or_all(veco_dir, decoder_layers, options, indices):
    assert translation(veco_dir, decoder_layers, **options).config.decoder_layer_indices == indices


def test_from_encoder_refuses(veco_dir, tmp_path):
    with pytest.raises(ValueError, match="decoder_layers is 4"):
        translation(veco_dir, 4)
    with pytest.raises(ValueError, match="from_encoder"):
        VecoForConditionalGeneration.from_pretrained(veco_dir)
    translation(veco_dir).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=tmp_path.name):
        translation(tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("tie", [True, False])
def test_decoder_equals_xlm_r_s(attention, tie, tmp_path):
    """`XLMRobertaForCausalLM` with cross-attention, given states of any other encoder, is our decoder."""
    reference = XLMRobertaForCausalLM(XLMRobertaConfig(is_decoder=True, add_cross_attention=True, **SIZES))
    far_from_initial(reference).save_pretrained(tmp_path)
    reference.set_attn_implementation(attention)
    ours = translation(tmp_path, None, tie_decoder=tie, attn_implementation=attention)
    memory = torch.randn(4, 9, 32, generator=torch.Generator().manual_seed(3))
    _, memory_mask = sources()
    inputs = ours.prepare_decoder_input_ids_from_labels(targets())
    mask = inputs.ne(1).long()
    expected = reference(
        inputs, attention_mask=mask, encoder_hidden_states=memory, encoder_attention_mask=memory_mask, use_cache=False
    ).logits
    assert expected.std() > 0.3
    is_real = mask.bool()
    at_once = ours(None, memory_mask, inputs, mask, encoder_outputs=(memory,)).logits
    torch.testing.assert_close(at_once[is_real], expected[is_real], atol=1e-5, rtol=0)

    cache = ours(None, memory_mask, inputs[:, :3], encoder_outputs=(memory,)).past_key_values
    rest = ours(None, memory_mask, inputs[:, 3:], mask, encoder_outputs=(memory,), past_key_values=cache).logits
    torch.testing.assert_close(rest[is_real[:, 3:]], expected[:, 3:][is_real[:, 3:]], atol=1e-5, rtol=0)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_for_conditional_generation_loss_and_gradients_are_those_of_the_logits(veco_dir, label_smoothing):
    model = translation(veco_dir).train()
    source, mask = sources()
    batch = dict(input_ids=source, attention_mask=mask, labels=targets())
    output = model(**batch, label_smoothing=label_smoothing)
    assert output.logits is None
    assert output.past_key_values is None
    logits = model(**batch, output_logits=True).logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=label_smoothing)
    torch.testing.assert_close(output.loss, loss)
    torch.testing.assert_close(gradients(model, output.loss), gradients(model, loss), atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("padding", ["left", "right"])
def test_for_conditional_generation_padding_changes_nothing(veco_dir, padding):
    model = translation(veco_dir)
    labels = targets()
    source, mask = sources(padding)
    together = model(source, attention_mask=mask, labels=labels)
    for row in range(4):
        label = labels[row : row + 1, : 7 - row]
        alone = model(source[row : row + 1, mask[row].bool()], labels=label)
        torch.testing.assert_close(together.logits[row, : 7 - row], alone.logits[0], atol=1e-5, rtol=0)
