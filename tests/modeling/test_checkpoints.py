"""Checkpoints that lack weights: what training adds may be fresh, anything else is refused."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from crosslingual_zoo.modeling.checkpoints import fresh_weights, load_whole
from crosslingual_zoo.modeling.modeling_ernie_m import ErnieMForPreTraining
from crosslingual_zoo.modeling.modeling_veco import VecoForConditionalGeneration, VecoForPreTraining
from crosslingual_zoo.modeling.modeling_xlm_align import XlmAlignForPreTraining
from tests.architectures import ARCHITECTURES

SHAPE = dict(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
KINDS = {"xlm-roberta": {}, "bert": {"eos_token_id": 2}} | ARCHITECTURES
LAYER = re.compile(r"(layers?\.1\.)")
WORDS = re.compile(r"word_embeddings|tok_embeddings|embed_tokens")

# how a checkpoint names its weights, or None where it does not have one
CHANGES = {
    "compiled": lambda key: f"_orig_mod.{key}",
    "a compiled layer": lambda key: LAYER.sub(r"\1_orig_mod.", key),
    "a layer less": lambda key: None if LAYER.search(key) else key,
    "no words": lambda key: None if WORDS.search(key) else key,
}


def change(folder, rename):
    """Renames the weights of a folder, or leaves them out."""
    weights = load_file(folder / "model.safetensors")
    renamed = {rename(key): tensor for key, tensor in weights.items()}
    renamed.pop(None, None)
    assert renamed.keys() != weights.keys()
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})


def load(auto_class, folder, **options):
    """The fresh weights of a model that is loaded."""
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    model, report = auto_class.from_pretrained(folder, **options)
    return fresh_weights(model, report, "mine", is_whole=auto_class is AutoModel)


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(kind, auto_class=AutoModelForMaskedLM)`: the folder of a small model of one of KINDS."""

    def save(kind, auto_class=AutoModelForMaskedLM):
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **SHAPE | dict(pad_token_id=1, bos_token_id=0) | KINDS[kind])
        auto_class.from_config(config).save_pretrained(tmp_path)
        return tmp_path

    return save


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("auto_class", "heads"), [(AutoModelForMaskedLM, set()), (AutoModel, {"lm_head"})])
def test_fresh_weights_lists_heads(kind, auto_class, heads, checkpoint):
    folder = checkpoint(kind, auto_class)
    fresh = load(XlmAlignForPreTraining, folder)
    assert {"q_linear.weight", "k_linear.weight"} <= set(fresh)
    assert {key.split(".")[0] for key in fresh} == {"q_linear", "k_linear", *heads}
    assert all("pooler" in key for key in load(AutoModel, folder))
    assert "classifier.weight" in load(AutoModelForSequenceClassification, folder) or kind == "xlm-roberta"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CHANGES)
def test_fresh_weights_refuses_an_encoder_in_part(kind, name, checkpoint):
    folder = checkpoint(kind)
    change(folder, CHANGES[name])
    for auto_class in (XlmAlignForPreTraining, AutoModel, AutoModelForSequenceClassification):
        with pytest.raises(ValueError, match=r"^mine lacks \d+ weight"):
            load(auto_class, folder)


def test_fresh_weights_of_what_the_models_add(checkpoint):
    folder = checkpoint("xlm-roberta")
    of_veco = load(VecoForPreTraining, folder)
    assert of_veco
    assert all(".crossattention." in key for key in of_veco)
    languages = dict(languages=["en", "de"], mask_token_id=3)
    assert load(ErnieMForPreTraining, folder, **languages) == ["roberta.language_embeddings.weight"]


def test_fresh_weights_names_layers_that_the_configuration_does_not_count(tmp_path, caplog):
    XlmAlignForPreTraining(XlmAlignForPreTraining.config_class(**SHAPE)).save_pretrained(tmp_path)
    assert not load(XlmAlignForPreTraining, tmp_path)
    assert not caplog.records
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with caplog.at_level("WARNING", logger="crosslingual_zoo.modeling.checkpoints"):
        load(XlmAlignForPreTraining, tmp_path)
    messages = [message for name, _, message in caplog.record_tuples if name == "crosslingual_zoo.modeling.checkpoints"]
    assert any("layer.1." in message for message in messages)


@pytest.mark.parametrize("name", ["compiled", "a layer less"])
def test_translation_models_in_part_are_refused(name, checkpoint, tmp_path):
    """And those of an encoder in part."""
    encoder = checkpoint("xlm-roberta")
    folder = tmp_path / "translation"
    VecoForConditionalGeneration.from_encoder(encoder, decoder_layers=1, tie_decoder=False).save_pretrained(folder)
    change(folder, CHANGES[name])
    with pytest.raises(ValueError, match=r"lacks \d+ weights"):
        load_whole(AutoModelForSeq2SeqLM, str(folder), "model")
    change(encoder, CHANGES[name])
    with pytest.raises(ValueError, match=r"lacks \d+ weights"):
        VecoForConditionalGeneration.from_encoder(str(encoder))


def test_fresh_weights_refuses_another_shape(checkpoint):
    folder = checkpoint("xlm-roberta")
    weights = load_file(folder / "model.safetensors")
    weights["roberta.encoder.layer.1.output.dense.weight"] = torch.zeros(3, 3)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"encoder\.layer\.1\.output\.dense\.weight.* shape"):
        load(AutoModel, folder)
