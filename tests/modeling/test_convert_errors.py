"""What does not fit is refused, all of it at once, and nothing is written."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from modeling.convert_ernie_m_checkpoints import to_transformers4, to_zoo
from modeling.convert_veco_checkpoints import from_fairseq, from_native, to_fairseq, to_native
from modeling.modeling_ernie_m import ErnieMModel
from modeling.modeling_veco import VecoForConditionalGeneration, VecoForMaskedLM, VecoModel

# errors


def test_all_that_does_not_fit_is_listed_at_once_and_nothing_is_written(originals, vocabulary, tmp_path):
    state = originals.native_state()
    del state["bert.encoder.layer.1.attention.self.key.bias"]
    del state["bert.embeddings.position_embeddings.weight"]
    state["bert.encoder.layer.2.cross_attention.output.LayerNorm.gamma"] = torch.ones(originals.HIDDEN + 1)
    state["bert.encoder.layer.0.intermediate.dense.weight"] = torch.ones(originals.INNER, originals.HIDDEN - 1)
    state["bert.encoder.layer.0.output.LayerNorm.weight"] = torch.zeros(originals.HIDDEN)  # beside gamma
    state["cls.predictions.bias"] = torch.ones(originals.TOKENS)
    state["encoder.layer.0.output.dense.bias"] = torch.ones(originals.HIDDEN)
    with pytest.raises(ValueError) as error:
        from_native(originals.saved(tmp_path, state), str(tmp_path / "veco"), vocabulary, originals.HEADS)
    assert [line.strip() for line in str(error.value).splitlines()[1:-1]] == [
        "missing: bert.embeddings.position_embeddings.weight (514, 16)",
        "missing: bert.encoder.layer.1.attention.self.key.bias (16,)",
        "left over: cls.predictions.bias",
        "left over: encoder.layer.0.output.dense.bias",
        "of another shape: bert.encoder.layer.0.intermediate.dense.weight (24, 15), not (24, 16)",
        "of another shape: bert.encoder.layer.2.cross_attention.output.LayerNorm.gamma (17,), not (16,)",
        "different: bert.encoder.layer.0.output.LayerNorm.weight is not bert.encoder.layer.0.output.LayerNorm.gamma",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt"]


def test_all_that_does_not_fit_fairseqs_layout_is_listed(originals, vocabulary, tmp_path):
    state = originals.fairseq_state(decoder=(1, 2))
    del state["decoder.layers.0.encoder_attn.q_proj.weight"], state["encoder.layers.0.fc1.bias"]
    state["encoder.layer_norm.weight"] = torch.ones(originals.HIDDEN)
    state["decoder.layers.1.fc2.weight"] = torch.ones(originals.INNER, originals.HIDDEN)
    state["decoder.embed_positions.weight"] = state["decoder.embed_positions.weight"] + 1
    state["decoder.output_projection.weight"] = state["decoder.output_projection.weight"] * 2
    path = originals.saved(tmp_path, state)
    with pytest.raises(ValueError, match="--model encoder converts the encoder alone") as error:
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=originals.HEADS)
    assert [line.strip() for line in str(error.value).splitlines()[1:-1]] == [
        "missing: encoder.layers.0.fc1.bias (24,)",
        "missing: decoder.layers.0.encoder_attn.q_proj.weight (16, 16)",
        "left over: encoder.layer_norm.weight",
        "of another shape: decoder.layers.1.fc2.weight (24, 16), not (16, 24)",
        "different: decoder.output_projection.weight is not encoder.embed_tokens.weight",
        "different: decoder.embed_positions.weight is not encoder.embed_positions.weight",
    ]
    assert not (tmp_path / "veco").exists()


def test_a_decoder_without_names_for_what_it_shares(originals, vocabulary, tmp_path):
    path = originals.saved(tmp_path, originals.fairseq_state(aliases=False))
    from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=originals.HEADS)
    assert VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").config.decoder_layers == originals.LAYERS


def test_files_that_are_no_checkpoints_are_refused(originals, vocabulary, tmp_path):
    from fractions import Fraction

    output = str(tmp_path / "veco")
    torch.save({"model": originals.native_state(), "trainer": Fraction(1, 2)}, tmp_path / "objects.pt")
    torch.save({"weight": torch.ones(2), "step": 3}, tmp_path / "mixed.pt")
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    for name, message in {
        "objects.pt": "holds objects of fractions.Fraction beside its tensors",
        "mixed.pt": r"holds entries that are no tensors \(step\)",
        "list.pt": "holds no state dict",
        "text.pt": "text.pt cannot be read",
        "text.safetensors": "text.safetensors cannot be read",
        "nowhere.pt": "nowhere.pt cannot be read: FileNotFoundError",
    }.items():
        for convert in (from_native, from_fairseq):
            with pytest.raises(ValueError, match=message):
                convert(str(tmp_path / name), output, vocabulary)
    with pytest.raises(ValueError, match="no layer of this layout .*Use from-native for BERT's names"):
        from_fairseq(originals.saved(tmp_path, originals.native_state()), output, vocabulary)
    with pytest.raises(ValueError, match="no layer of this layout .*from-fairseq for fairseq's"):
        from_native(originals.saved(tmp_path, originals.fairseq_state()), output, vocabulary)
    path = originals.saved(tmp_path, originals.native_state())
    with pytest.raises(ValueError, match="hidden size 16 and does not say how many attention heads"):
        from_native(path, output, vocabulary)
    with pytest.raises(ValueError, match="which 5 attention heads do not divide"):
        from_native(path, output, vocabulary, 5)
    with pytest.raises(ValueError, match="matches no key"):
        from_native(path, output, vocabulary, originals.HEADS, ["pooler"])
    with pytest.raises(ValueError, match="is no regular expression"):
        from_native(path, output, vocabulary, originals.HEADS, ["pooler("])
    path = originals.saved(
        tmp_path, originals.fairseq_state(), {"activation_fn": "swirl", "encoder_attention_heads": originals.HEADS}
    )
    with pytest.raises(ValueError, match="trained with the activation 'swirl'"):
        from_fairseq(path, output, vocabulary)


@torch.no_grad()
def test_models_that_the_layouts_cannot_hold_are_refused(originals, tmp_path):
    output = str(tmp_path / "model.pt")
    decoder = {"cross_attention": False, "decoder_layers": 1, "decoder_layer_indices": [2], "is_encoder_decoder": True}
    folder = str(tmp_path / "zoo")
    originals.folder_of(VecoForConditionalGeneration, tmp_path, lm_head_transform=True, **decoder)
    with pytest.raises(ValueError, match="dense and LayerNorm in its LM head"):
        to_fairseq(folder, output)
    model = originals.folder_of(VecoForConditionalGeneration, tmp_path, **decoder)
    model.lm_head.bias.fill_(0.1)
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match="a bias in its LM head"):
        to_fairseq(folder, output)
    notes = to_fairseq(folder, output, "encoder")
    assert notes[-1] == "left out, since the layout has no place for it: decoder, lm_head"
    notes = to_native(folder, str(tmp_path / "native.bin"))
    assert "left out, since the layout has no place for it: decoder, lm_head" in notes
    output = str(tmp_path / "other.pt")
    originals.folder_of(VecoModel, tmp_path, cross_attention=False)
    with pytest.raises(ValueError, match="has no cross-attention: a decoder cannot be made of it"):
        to_fairseq(folder, output, "translation")
    originals.folder_of(VecoModel, tmp_path, layer_norm_eps=1e-12)
    with pytest.raises(ValueError, match="layer_norm_eps 1e-12"):
        to_fairseq(folder, output)
    with pytest.raises(ValueError, match="Name it .pt"):
        to_fairseq(folder, str(tmp_path / "model.safetensors"))
    with pytest.raises(ValueError, match="does not end with a dot"):
        to_native(folder, output, prefix="bert")
    with pytest.raises(ValueError, match="is a checkpoint of 'xlm-roberta', class 'XLMRobertaForMaskedLM'"):
        to_native(str(originals.xlmr_folder(tmp_path, torch.zeros(9, originals.HIDDEN))), output)
    with pytest.raises(ValueError, match="holds no checkpoint"):
        to_native(str(tmp_path / "nowhere"), output)
    weights = safetensors.torch.load_file(tmp_path / "zoo" / "model.safetensors")
    del weights["encoder.layer.0.output.dense.bias"]
    safetensors.torch.save_file(weights, tmp_path / "zoo" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="lacks weights: encoder.layer.0.output.dense.bias"):
        to_native(folder, output)
    (tmp_path / "zoo" / "model.safetensors").write_text("hello")
    with pytest.raises(ValueError, match="cannot be read"):
        to_native(folder, output)
    assert not Path(output).exists()


def test_outputs_that_exist_are_not_touched(originals, vocabulary, tmp_path):
    path = originals.saved(tmp_path, originals.native_state())
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("mine")
    for convert in (
        lambda: from_native(path, str(full), vocabulary, originals.HEADS),
        lambda: from_native(path, path, vocabulary, originals.HEADS),
        lambda: from_fairseq(path, str(full), vocabulary),
        lambda: to_native(str(full), path),
        lambda: to_fairseq(str(full), path),
    ):
        with pytest.raises(ValueError, match="there already and not empty"):
            convert()
    assert (full / "file").read_text() == "mine" and len(list(full.iterdir())) == 1
    (tmp_path / "empty").mkdir()
    from_native(path, str(tmp_path / "empty"), vocabulary, originals.HEADS)
    assert (tmp_path / "empty" / "config.json").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoint.pt", "empty", "full"]


# numbers


def test_weights_that_are_no_finite_numbers_are_listed(originals, ernie_m_oracle, vocabulary, tmp_path):
    weights = ernie_m_oracle.weights("ErnieMModel")
    weights["embeddings.word_embeddings.weight"][3, 4] = torch.nan
    weights["encoder.layers.0.linear1.bias"][0] = -torch.inf
    weights["pooler.dense.weight"] = weights["pooler.dense.weight"].int()
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old", weights)
    with pytest.raises(ValueError, match="quantized weights.*before the training broke down") as error:
        to_zoo(str(old), str(tmp_path / "new"))
    assert [line.strip() for line in str(error.value).splitlines()[1:-1]] == [
        "not floating point: pooler.dense.weight torch.int32",
        "not finite: embeddings.word_embeddings.weight",
        "not finite: encoder.layers.0.linear1.bias",
    ]
    state = originals.fairseq_state(decoder=(1, 2))
    state["decoder.embed_tokens.weight"][0] = torch.nan
    state["encoder.layers.1.fc1.weight"] = state["encoder.layers.1.fc1.weight"].int()
    with pytest.raises(ValueError) as error:
        from_fairseq(
            originals.saved(tmp_path, state), str(tmp_path / "new"), vocabulary, num_attention_heads=originals.HEADS
        )
    assert [line.strip() for line in str(error.value).splitlines()[1:-1]] == [
        "not floating point: encoder.layers.1.fc1.weight torch.int32",
        "not finite: decoder.embed_tokens.weight",
    ]
    integers = {key: np.ones(tensor.shape, np.int32) for key, tensor in ernie_m_oracle.weights("ErnieMModel").items()}
    np.savez(old / "integers.npz", **integers)
    with pytest.raises(ValueError, match="not floating point: embeddings.word_embeddings.weight torch.int32"):
        to_zoo(str(old / "integers.npz"), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_weights_become_float32_where_types_are_mixed_or_double(originals, ernie_m_oracle, vocabulary, tmp_path):
    weights = ernie_m_oracle.weights("ErnieMModel")
    old = ernie_m_oracle.save_tokenizer(tmp_path / "old")
    np.savez(old / "double.npz", **{key: tensor.double().numpy() for key, tensor in weights.items()})
    options = {"tokenizer": str(old), "tokenizer_type": "ernie_m", "num_attention_heads": 4}
    notes = to_zoo(str(old / "double.npz"), str(tmp_path / "new"), **options)
    assert "types: torch.float64; all weights were made float32" in notes
    model = ErnieMModel.from_pretrained(tmp_path / "new", dtype="auto")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(model.pooler.dense.weight, weights["pooler.dense.weight"])
    state = originals.native_state()
    state["bert.embeddings.word_embeddings.weight"] = state["bert.embeddings.word_embeddings.weight"].half()
    notes = from_native(originals.saved(tmp_path, state), str(tmp_path / "veco"), vocabulary, originals.HEADS)
    assert "types: torch.float16, torch.float32; all weights were made float32" in notes
    assert VecoForMaskedLM.from_pretrained(tmp_path / "veco", dtype="auto").dtype == torch.float32


# what is chosen is said, or refused


def test_what_no_configuration_says_is_said(ernie_m_oracle, tmp_path):
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old")
    config = ernie_m_oracle.config("ErnieMModel")
    notes = to_zoo(str(old), str(tmp_path / "a"), num_attention_heads=8)
    assert f"num_attention_heads: 8, as asked for; {old / 'config.json'} says {config['num_attention_heads']}" in notes
    assert not any(note.startswith("assumed") for note in notes)
    assert ErnieMModel.from_pretrained(tmp_path / "a").config.num_attention_heads == 8
    (old / "config.json").write_text(json.dumps({name: config[name] for name in config if name != "layer_norm_eps"}))
    assert "assumed: eps 1e-05" in to_zoo(str(old), str(tmp_path / "b"))
    (old / "config.json").unlink()
    notes = to_zoo(str(old), str(tmp_path / "c"), num_attention_heads=4)
    assert "configuration: none" in notes and "assumed: gelu, eps 1e-05" in notes
    assert "num_attention_heads: 4, as asked for" in notes
    with pytest.raises(ValueError, match="which 0 attention heads do not divide"):
        to_zoo(str(old), str(tmp_path / "d"), num_attention_heads=0)
    # 64 dimensions, so that the heads can be assumed too
    wide = {key: tensor.repeat(*(2 if size == 32 else 1 for size in tensor.shape)) for key, tensor in weights_of(old)}
    safetensors.torch.save_file(wide, old / "model.safetensors")
    assert "assumed: 1 heads of 64, gelu, eps 1e-05" in to_zoo(str(old), str(tmp_path / "e"))


def weights_of(folder):
    return safetensors.torch.load_file(folder / "model.safetensors").items()


def test_several_files_that_may_be_the_model_are_refused(pickled, tmp_path):
    for name in ("a.pdparams", "b.pdparams"):
        pickled({"w": np.ones(2, np.float32)}, tmp_path / name)
    with pytest.raises(ValueError, match=r"2 files of weights \(a.pdparams, b.pdparams\).*Give the file itself"):
        to_zoo(str(tmp_path), str(tmp_path / "new"))


# damaged files


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_attention_heads": "4"}, "config.json cannot be used: .*'num_attention_heads' expected int, got str"),
        ({"num_hidden_layers": "2"}, "config.json cannot be used: .*'num_hidden_layers' expected int, got str"),
        ({"hidden_size": "32"}, "config.json cannot be used: .*'hidden_size' expected int, got str"),
        ({"layer_norm_eps": None}, "config.json cannot be used: .*'layer_norm_eps' expected float, got NoneType"),
        ({"hidden_act": ["gelu"]}, "config.json cannot be used: .*'hidden_act' expected str, got list"),
        ({"id2label": ["a", "b"]}, "config.json cannot be used: "),
        ({"architectures": "ErnieMModel"}, "config.json says architectures 'ErnieMModel': it has to be a list"),
        ({"architectures": [{}]}, r"config.json says architectures \[\{\}\]: a class is told by its name"),
        ({"init_args": {"hidden_size": 32}}, "config.json says init_args .*: it has to be a list"),
        ({"num_hidden_layers": 1}, "says 1 layers, the weights have 2: .* Correct config.json"),
        ({"num_hidden_layers": 3}, "says 3 layers, the weights have 2: .* Correct config.json"),
    ],
)
def test_configurations_of_wrong_values(config, message, ernie_m_oracle, tmp_path):
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old", **config)
    with pytest.raises(ValueError, match=message):
        to_zoo(str(old), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_arguments_of_null_are_none(ernie_m_oracle, tmp_path):
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old", init_args=None, architectures=None)
    assert "head: ErnieMModel, by its keys" in to_zoo(str(old), str(tmp_path / "new"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "index.json cannot be read: .* It is damaged, or no JSON. Copy it again"),
        ("[]", "index.json cannot be read: a list, not an object"),
        ("{}", "index.json has no weight_map"),
        ('{"weight_map": {}}', "index.json has no weight_map"),
        ('{"weight_map": {"a": 3}}', "index.json has no weight_map"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "index.json has no weight_map"),
    ],
)
def test_damaged_indices(content, message, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        to_zoo(str(tmp_path), str(tmp_path / "new"))


def test_damaged_folders_of_this_zoo(ernie_m_oracle, tmp_path):
    to_zoo(str(ernie_m_oracle.save("ErnieMModel", tmp_path / "old")), str(tmp_path / "zoo"))
    (tmp_path / "zoo" / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer_config.json cannot be read"):
        to_transformers4(str(tmp_path / "zoo"), str(tmp_path / "back"))
    config = json.loads((tmp_path / "zoo" / "config.json").read_text())
    (tmp_path / "zoo" / "config.json").write_text(json.dumps(config | {"layer_norm_eps": None}))
    with pytest.raises(ValueError, match="cannot be read: .*'layer_norm_eps' expected float"):
        to_transformers4(str(tmp_path / "zoo"), str(tmp_path / "back"))
    assert not (tmp_path / "back").exists()
