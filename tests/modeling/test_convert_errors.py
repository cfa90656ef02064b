"""What does not fit is refused, all of it at once, and nothing is written."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

from modeling.convert_veco_checkpoints import from_fairseq, from_native, to_fairseq, to_native
from modeling.modeling_veco import (
    VecoForConditionalGeneration,
    VecoModel,
)

# errors


def test_all_that_does_not_fit_is_listed_at_once_and_nothing_is_written(originals, vocabulary, tmp_path):
    state = originals.native_state()
    del state["bert.encoder.layer.1.attention.self.key.bias"]
    del state["bert.embeddings.position_embeddings.weight"]
    state["bert.encoder.layer.2.cross_attention.output.LayerNorm.gamma"] = torch.ones(originals.HIDDEN + 1)
    state["bert.encoder.layer.0.intermediate.dense.weight"] = torch.ones(originals.INNER, originals.HIDDEN - 1)
    state["bert.encoder.layer.0.output.LayerNorm.weight"] = torch.zeros(originals.HIDDEN)  # beside gamma
    state["cls.predictions.bias"] = torch.ones(originals.PIECES)
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
