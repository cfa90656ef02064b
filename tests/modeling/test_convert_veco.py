"""VECO's original checkpoints, as synthetic state dicts of exactly their layouts, against the models made of them."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.nn import functional as F
from transformers import AutoTokenizer, XLMRobertaConfig, XLMRobertaForMaskedLM, XLMRobertaModel

from modeling.configuration_veco import VecoConfig
from modeling.convert_veco_checkpoints import Vocabulary, from_fairseq, from_native, to_fairseq, to_native
from modeling.convert_veco_layouts import fairseq_names, native_names
from modeling.modeling_veco import (
    VecoForConditionalGeneration,
    VecoForMaskedLM,
    VecoForPreTraining,
    VecoForTokenClassification,
    VecoModel,
)

PIECES = 2000  # of the sample tokenizer
HIDDEN, HEADS, INNER, POSITIONS, LAYERS = 16, 4, 24, 40, 3
ROOT = 4.0  # of HIDDEN


@pytest.fixture
def vocabulary(sample_tokenizer_dir):
    return Vocabulary(str(sample_tokenizer_dir))


class Maker:
    """Random tensors far from their initial values, the LayerNorms about 1."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape, offset=0.0, scale=0.2):
        return offset + scale * torch.randn(*shape, generator=self.generator)

    def linear(self, state, name, size_out=HIDDEN, size_in=HIDDEN):
        state[f"{name}.weight"], state[f"{name}.bias"] = self(size_out, size_in), self(size_out)

    def norm(self, state, name, kinds=("weight", "bias")):
        state[f"{name}.{kinds[0]}"], state[f"{name}.{kinds[1]}"] = self(HIDDEN, offset=1.0), self(HIDDEN)


def native_state(prefix="bert.", kinds=("gamma", "beta"), cross=True, layers=LAYERS, rows=PIECES):
    make, state = Maker(), {}
    state[f"{prefix}embeddings.word_embeddings.weight"] = make(rows, HIDDEN)
    state[f"{prefix}embeddings.position_embeddings.weight"] = make(POSITIONS, HIDDEN)
    state[f"{prefix}embeddings.token_type_embeddings.weight"] = make(1, HIDDEN)
    make.norm(state, f"{prefix}embeddings.LayerNorm", kinds)
    for layer in range(layers):
        start = f"{prefix}encoder.layer.{layer}"
        for block in ("attention", "cross_attention") if cross else ("attention",):
            for part in ("query", "key", "value"):
                make.linear(state, f"{start}.{block}.self.{part}")
            make.linear(state, f"{start}.{block}.output.dense")
            make.norm(state, f"{start}.{block}.output.LayerNorm", kinds)
        make.linear(state, f"{start}.intermediate.dense", INNER)
        make.linear(state, f"{start}.output.dense", HIDDEN, INNER)
        make.norm(state, f"{start}.output.LayerNorm", kinds)
    return state


def fairseq_attention(make, state, name):
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        make.linear(state, f"{name}.{part}")
    make.norm(state, f"{name}_layer_norm")


def fairseq_layer(make, state, name):
    fairseq_attention(make, state, f"{name}.self_attn")
    make.linear(state, f"{name}.fc1", INNER)
    make.linear(state, f"{name}.fc2", HIDDEN, INNER)
    make.norm(state, f"{name}.final_layer_norm")


def fairseq_state(layers=LAYERS, decoder=(0, 1, 2), tied=True, rows=PIECES, words=0.4, aliases=True, seed=0):
    """`decoder`: the encoder layer that each decoder layer is (`tied`) or began as."""
    make, state = Maker(seed), {"encoder.version": torch.tensor([3.0])}
    state["encoder.embed_tokens.weight"] = make(rows, HIDDEN, scale=words)
    state["encoder.embed_positions.weight"] = make(POSITIONS, HIDDEN)
    make.norm(state, "encoder.layernorm_embedding")
    for layer in range(layers):
        fairseq_layer(make, state, f"encoder.layers.{layer}")
    if not decoder:
        return state
    state["decoder.version"] = torch.tensor([3.0])
    state["decoder.embed_positions._float_tensor"] = torch.zeros(1)
    if aliases:
        for name in ("embed_tokens.weight", "embed_positions.weight"):
            state[f"decoder.{name}"] = state[f"encoder.{name}"].clone()
        for kind in ("weight", "bias"):
            state[f"decoder.layernorm_embedding.{kind}"] = state[f"encoder.layernorm_embedding.{kind}"].clone()
        state["decoder.output_projection.weight"] = state["encoder.embed_tokens.weight"].clone()
    for index, layer in enumerate(decoder):
        origin = f"encoder.layers.{layer}."
        for key in [key for key in state if key.startswith(origin)]:
            moved = 0.0 if tied else make(*state[key].shape, scale=0.02)
            state[key.replace(origin, f"decoder.layers.{index}.", 1)] = state[key] + moved
        fairseq_attention(make, state, f"decoder.layers.{index}.encoder_attn")
    return state


class FairseqForward:
    """fairseq's post-LN transformer, written out on the names of its state dict."""

    def __init__(self, state, scale):
        self.state, self.scale = state, scale

    def linear(self, name, states):
        return F.linear(states, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def norm(self, name, states):
        return F.layer_norm(states, (HIDDEN,), self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def embed(self, side, ids):
        positions = torch.arange(ids.shape[1]) + 2
        words = self.scale * self.state["encoder.embed_tokens.weight"][ids]
        return self.norm(f"{side}.layernorm_embedding", words + self.state[f"{side}.embed_positions.weight"][positions])

    def attention(self, name, states, keys, is_causal=False):
        def heads(part, from_states):
            return self.linear(f"{name}.{part}", from_states).unflatten(-1, (HEADS, -1)).transpose(1, 2)

        scores = heads("q_proj", states) @ heads("k_proj", keys).transpose(2, 3) / (HIDDEN // HEADS) ** 0.5
        if is_causal:
            scores = scores + torch.full(scores.shape[2:], -torch.inf).triu(1)
        mixed = (scores.softmax(-1) @ heads("v_proj", keys)).transpose(1, 2).flatten(2)
        return self.norm(f"{name}_layer_norm", states + self.linear(f"{name}.out_proj", mixed))

    def side(self, side, ids, memory=None):
        states = self.embed(side, ids)
        layers = 1 + max(int(key.split(".")[2]) for key in self.state if key.startswith(f"{side}.layers."))
        for layer in range(layers):
            name = f"{side}.layers.{layer}"
            states = self.attention(f"{name}.self_attn", states, states, is_causal=memory is not None)
            if memory is not None:
                states = self.attention(f"{name}.encoder_attn", states, memory)
            inner = F.gelu(self.linear(f"{name}.fc1", states))
            states = self.norm(f"{name}.final_layer_norm", states + self.linear(f"{name}.fc2", inner))
        return states

    def logits(self, source, target):
        states = self.side("decoder", target, self.side("encoder", source))
        return states @ self.state["encoder.embed_tokens.weight"].T


def ids(length, seed=1, rows=2):
    return torch.randint(4, PIECES - 1, (rows, length), generator=torch.Generator().manual_seed(seed))


def saved(tmp_path, state, args=None, name="checkpoint.pt"):
    path = tmp_path / name
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state if args is None else {"model": state, "args": argparse.Namespace(**args)}, path)
    return str(path)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    assert [key for key in a if not torch.equal(a[key], b[key])] == []


# native


@pytest.mark.parametrize(
    "prefix, kinds, name",
    [
        ("bert.", ("gamma", "beta"), "pytorch_model.bin"),
        ("", ("weight", "bias"), "model.safetensors"),
        ("roberta.", ("gamma", "beta"), "model.pt"),
    ],
)
@torch.no_grad()
def test_native_weights_compute_what_xlmrs_do(prefix, kinds, name, vocabulary, tmp_path):
    """Plug-out as XLMRobertaModel, plug-in as its decoder, on the same weights."""
    state = native_state(prefix, kinds)
    notes = from_native(saved(tmp_path, state, name=name), str(tmp_path / "veco"), vocabulary, HEADS)
    assert "VecoForMaskedLM" in notes[0] and any("lm_head_transform is false" in note for note in notes)
    model = VecoModel.from_pretrained(tmp_path / "veco").eval()
    assert (model.config.num_hidden_layers, model.config.intermediate_size) == (LAYERS, INNER)
    assert model.config.cross_attention and not model.config.lm_head_transform
    sizes = dict(
        vocab_size=PIECES,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        max_position_embeddings=POSITIONS,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    renamed = {}
    for key, tensor in state.items():
        for old, new in ((prefix, ""), ("cross_attention", "crossattention"), ("gamma", "weight"), ("beta", "bias")):
            key = key.replace(old, new, 1) if old else key
        renamed[key] = tensor
    text, other = ids(11), torch.randn(2, 7, HIDDEN)

    plain = XLMRobertaModel(XLMRobertaConfig(**sizes), add_pooling_layer=False).eval()
    plain.load_state_dict({key: value for key, value in renamed.items() if ".crossattention." not in key})
    close(model(text).last_hidden_state, plain(text).last_hidden_state)

    config = XLMRobertaConfig(is_decoder=True, add_cross_attention=True, **sizes)
    decoder = XLMRobertaModel(config, add_pooling_layer=False).eval()
    decoder.load_state_dict(renamed)
    causal = torch.ones(2, 11, 11, dtype=torch.bool).tril()
    expected = decoder(text, encoder_hidden_states=other, use_cache=False).last_hidden_state
    close(model(text, attention_mask=causal, encoder_hidden_states=other).last_hidden_state, expected)


@pytest.mark.parametrize("cls", [VecoModel, VecoForMaskedLM, VecoForPreTraining])
@pytest.mark.parametrize("name", ["native.bin", "native.safetensors"])
def test_native_there_and_back_is_exact(cls, name, vocabulary, tmp_path):
    zoo = folder_of(cls, tmp_path)
    notes = to_native(str(tmp_path / "zoo"), str(tmp_path / name))
    assert any("'num_attention_heads': 4" in note for note in notes)
    from_native(str(tmp_path / name), str(tmp_path / "back"), vocabulary, HEADS)
    back = (VecoModel if cls is VecoModel else VecoForMaskedLM).from_pretrained(tmp_path / "back")
    same_weights(back, zoo)
    assert back.config.architectures == ["VecoForMaskedLM"]
    assert back.config.lm_head_transform == (cls is not VecoModel)


def folder_of(cls, tmp_path, **config):
    """A model of this zoo with random weights, saved in tmp_path/zoo."""
    torch.manual_seed(0)
    config = {"lm_head_transform": cls is not VecoForConditionalGeneration} | config
    model = cls(
        VecoConfig(
            vocab_size=PIECES,
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=INNER,
            max_position_embeddings=POSITIONS,
            **config,
        )
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "lm_head.bias":
                parameter.normal_(1.0 if name.endswith("orm.weight") else 0.0, 0.2)
        (model if cls is VecoModel else model.roberta).embeddings.token_type_embeddings.weight.zero_()
    model.save_pretrained(tmp_path / "zoo")
    return model


def test_native_files_as_they_were_written(tmp_path):
    """The names of the original, and what the layout has no place for is named."""
    folder_of(VecoForTokenClassification, tmp_path)
    notes = to_native(str(tmp_path / "zoo"), str(tmp_path / "native.bin"))
    assert notes[1] == "left out, since the layout has no place for it: classifier"
    assert torch.load(tmp_path / "native.bin").keys() == native_state().keys()
    to_native(str(tmp_path / "zoo"), str(tmp_path / "bare.bin"), prefix="")
    assert torch.load(tmp_path / "bare.bin").keys() == native_state(prefix="").keys()


def test_native_without_cross_attention_and_with_a_head(vocabulary, tmp_path):
    """As the release for understanding: XLM-R's shape, a buffer of positions, perhaps a pooler and an LM head."""
    state = native_state("roberta.", cross=False) | {"roberta.embeddings.position_ids": torch.arange(POSITIONS)[None]}
    make = Maker(1)
    make.linear(state, "lm_head.dense")
    make.norm(state, "lm_head.layer_norm")
    state["lm_head.bias"] = make(PIECES)
    state["lm_head.decoder.weight"] = state["roberta.embeddings.word_embeddings.weight"].clone()
    make.linear(state, "roberta.pooler.dense")
    path = saved(tmp_path, state)
    left_over = r"left over: roberta.pooler.dense.weight\n  left over: roberta.pooler.dense.bias"
    with pytest.raises(ValueError, match=left_over):
        from_native(path, str(tmp_path / "veco"), vocabulary, HEADS)
    notes = from_native(path, str(tmp_path / "veco"), vocabulary, HEADS, [r"roberta\.pooler\..*"])
    assert "ignored: roberta.pooler.dense.weight, roberta.pooler.dense.bias" in notes
    assert any("config.cross_attention is false" in note for note in notes)
    model = VecoForMaskedLM.from_pretrained(tmp_path / "veco").eval()
    assert not model.config.cross_attention
    assert torch.equal(model.lm_head.dense.weight, state["lm_head.dense.weight"])
    assert torch.equal(model.lm_head.bias, state["lm_head.bias"])


# fairseq


@pytest.mark.parametrize("decoder", [(0, 1, 2), (1, 2), (0,)])
@torch.no_grad()
def test_fairseq_translation_of_tied_layers(decoder, vocabulary, tmp_path):
    state = fairseq_state(decoder=decoder)
    args = {"no_scale_embedding": True, "encoder_attention_heads": HEADS}
    notes = from_fairseq(saved(tmp_path, state, args), str(tmp_path / "veco"), vocabulary)
    assert any(f"equal to encoder layers {list(decoder)}" in note for note in notes)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    config = model.config
    assert config.tie_decoder and config.decoder_layer_indices == list(decoder) and not config.lm_head_transform
    assert model.decoder.layer[0].attention.self.query.weight is (
        model.roberta.encoder.layer[decoder[0]].attention.self.query.weight
    )
    source, target = ids(9), ids(6, seed=2)
    close(model(input_ids=source, decoder_input_ids=target).logits, FairseqForward(state, 1.0).logits(source, target))
    assert model.generate(source, max_new_tokens=4).shape[0] == 2


@torch.no_grad()
def test_fairseq_translation_that_was_trained(vocabulary, tmp_path):
    """An untied decoder was trained with words times sqrt(hidden size): states and logits stay fairseq's."""
    state = fairseq_state(decoder=(1, 2), tied=False)
    args = {"no_scale_embedding": False, "encoder_attention_heads": HEADS}
    path = saved(tmp_path, state, args)
    notes = from_fairseq(path, str(tmp_path / "veco"), vocabulary)
    assert any("multiplied by 4, its decoder was trained in fairseq" in note for note in notes)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    assert not model.config.tie_decoder and model.config.decoder_layer_indices == [1, 2]
    source, target = ids(9), ids(6, seed=2)
    reference = FairseqForward(state, ROOT)
    close(model.roberta(source).last_hidden_state, reference.side("encoder", source))
    close(model(input_ids=source, decoder_input_ids=target).logits, reference.logits(source, target))

    from_fairseq(path, str(tmp_path / "encoder"), vocabulary, model="encoder")
    encoder = VecoModel.from_pretrained(tmp_path / "encoder").eval()
    assert not encoder.config.cross_attention
    close(encoder(source).last_hidden_state, reference.side("encoder", source))

    del args["no_scale_embedding"]
    with pytest.raises(ValueError, match="was trained in fairseq, and the checkpoint has no args that say whether"):
        from_fairseq(saved(tmp_path, state, args), str(tmp_path / "other"), vocabulary)


@torch.no_grad()
def test_fairseq_encoder_with_the_cross_attention_of_its_decoder(vocabulary, tmp_path):
    """The released form, all layers twice: one encoder with cross-attention, and translation models of any depth."""
    state = fairseq_state()
    path = saved(tmp_path, state)
    from_fairseq(path, str(tmp_path / "veco"), vocabulary, "encoder", "keep", HEADS)
    model = VecoModel.from_pretrained(tmp_path / "veco").eval()
    assert model.config.cross_attention
    source, target = ids(9), ids(6, seed=2)
    reference = FairseqForward(state, 1.0)
    memory = reference.side("encoder", source)
    close(model(source).last_hidden_state, memory)
    causal = torch.ones(2, 6, 6, dtype=torch.bool).tril()
    states = model(target, attention_mask=causal, encoder_hidden_states=memory).last_hidden_state
    close(states, reference.side("decoder", target, memory))

    last = {key: tensor for key, tensor in state.items() if not key.startswith("decoder.layers.0.")}
    for layer in (1, 2):
        for key in [key for key in last if key.startswith(f"decoder.layers.{layer}.")]:
            last[key.replace(f"layers.{layer}.", f"layers.{layer - 1}.", 1)] = last.pop(key)
    translation = VecoForConditionalGeneration.from_encoder(tmp_path / "veco", decoder_layers=2).eval()
    expected = FairseqForward(last, 1.0).logits(source, target)
    close(translation(input_ids=source, decoder_input_ids=target).logits, expected)


def test_fairseq_encoder_alone(vocabulary, tmp_path):
    path = saved(tmp_path, fairseq_state(decoder=()))
    from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=HEADS)
    assert not VecoModel.from_pretrained(tmp_path / "veco").config.cross_attention
    with pytest.raises(ValueError, match="has no decoder"):
        from_fairseq(path, str(tmp_path / "other"), vocabulary, "translation")


def test_settings_of_later_fairseqs(vocabulary, tmp_path):
    """`cfg` in place of `args`, half precision."""
    state = {key: tensor.half() for key, tensor in fairseq_state(decoder=(2,)).items()}
    holder = argparse.Namespace(no_scale_embedding=True, encoder_attention_heads=2, activation_fn="relu")
    torch.save({"model": state, "args": None, "cfg": {"model": holder}, "extra_state": {}}, tmp_path / "model.pt")
    from_fairseq(str(tmp_path / "model.pt"), str(tmp_path / "veco"), vocabulary)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco", dtype="auto")
    assert (model.config.num_attention_heads, model.config.hidden_act) == (2, "relu")
    assert model.dtype == torch.float16
    assert torch.equal(model.decoder.layer[0].output.dense.weight, state["decoder.layers.0.fc2.weight"])


def test_layers_of_two_digits_keep_their_names(vocabulary, tmp_path):
    """Layer 1 among 12, whose fc1 must not become fc0: every tensor comes back under its own name."""
    state = fairseq_state(layers=12, decoder=(1, 10, 11))
    path = saved(tmp_path, state, {"no_scale_embedding": True, "encoder_attention_heads": HEADS})
    from_fairseq(path, str(tmp_path / "veco"), vocabulary)
    to_fairseq(str(tmp_path / "veco"), str(tmp_path / "back.pt"))
    with torch.serialization.safe_globals([argparse.Namespace]):
        back = torch.load(tmp_path / "back.pt")["model"]
    del state["decoder.embed_positions._float_tensor"]
    assert back.keys() == state.keys()
    assert [key for key in state if not torch.equal(back[key], state[key])] == []
    assert fairseq_names("roberta.encoder.layer.11.intermediate.dense.bias", False) == ["encoder.layers.11.fc1.bias"]
    name = "encoder.layer.11.crossattention.output.LayerNorm.weight"
    assert native_names(name, "bert.", False)[0] == "bert.encoder.layer.11.cross_attention.output.LayerNorm.gamma"


@pytest.mark.parametrize("scale", ["keep", "divide"])
@pytest.mark.parametrize(
    "cls, config",
    [
        (VecoModel, {}),
        (VecoModel, {"cross_attention": False}),
        (
            VecoForConditionalGeneration,
            {
                "cross_attention": False,
                "decoder_layers": 2,
                "decoder_layer_indices": [1, 2],
                "is_encoder_decoder": True,
            },
        ),
    ],
)
@torch.no_grad()
def test_fairseq_there_and_back_is_exact(cls, config, scale, vocabulary, tmp_path):
    """sqrt(16) is a power of two. What is written computes in fairseq what the model computes."""
    zoo = folder_of(cls, tmp_path, **config)
    to_fairseq(str(tmp_path / "zoo"), str(tmp_path / "model.pt"), embedding_scale=scale)
    with torch.serialization.safe_globals([argparse.Namespace]):
        written = torch.load(tmp_path / "model.pt")
    assert written["args"].no_scale_embedding == (scale == "keep")
    reference = FairseqForward(written["model"], 1.0 if scale == "keep" else ROOT)
    source, target = ids(9), ids(6, seed=2)
    encoder = zoo if cls is VecoModel else zoo.roberta
    close(encoder(source).last_hidden_state, reference.side("encoder", source))
    if cls is not VecoModel:
        close(zoo(input_ids=source, decoder_input_ids=target).logits, reference.logits(source, target))

    model = "encoder" if cls is VecoModel else "translation"
    from_fairseq(str(tmp_path / "model.pt"), str(tmp_path / "back"), vocabulary, model)
    back = cls.from_pretrained(tmp_path / "back")
    same_weights(back, zoo)
    # the scaled LayerNorm of its last layer is no longer the encoder's in the file
    assert back.config.tie_decoder == (cls is VecoModel or scale == "keep")


def test_scaling_and_back_by_another_size_costs_one_unit_in_the_last_place():
    from modeling.convert_vocabulary import times

    rows = Maker()(500, 48)
    back = times(times(rows, 1 / 48**0.5), 48**0.5)
    unit = torch.finfo(torch.float32).eps * rows.abs()
    assert 0 < (back - rows).abs().max() and ((back - rows).abs() <= unit).all()


@torch.no_grad()
def test_the_constant_token_type_goes_into_the_positions(tmp_path):
    zoo = folder_of(VecoModel, tmp_path)
    zoo.embeddings.token_type_embeddings.weight.fill_(0.5)
    zoo.embeddings.token_type_embeddings.weight[0, 3] = -0.5
    zoo.save_pretrained(tmp_path / "zoo")
    notes = to_fairseq(str(tmp_path / "zoo"), str(tmp_path / "model.pt"), model="encoder")
    assert any("added to the position embeddings" in note for note in notes)
    assert notes[-1] == "left out, since the layout has no place for it: cross-attention"
    with torch.serialization.safe_globals([argparse.Namespace]):
        state = torch.load(tmp_path / "model.pt")["model"]
    assert not [key for key in state if key.startswith("decoder.")]
    close(FairseqForward(state, 1.0).side("encoder", ids(9)), zoo(ids(9)).last_hidden_state)


# the scale of the words


@pytest.mark.parametrize("words, factor", [(0.3, 1.0), (0.3 / ROOT, ROOT), (0.3 * ROOT, 1 / ROOT)])
@pytest.mark.parametrize("with_reference", [False, True])
def test_the_scale_is_told_by_the_rows(words, factor, with_reference, vocabulary, tmp_path):
    state = fairseq_state(words=words)
    if with_reference:
        # the rows of XLM-R, which pre-training moved a little; its own positions say nothing
        reference = fairseq_state(words=0.3)["encoder.embed_tokens.weight"]
        state["encoder.embed_positions.weight"] = state["decoder.embed_positions.weight"] = (
            Maker()(POSITIONS, HIDDEN) * 9
        )
        noise = Maker(5)(PIECES, HIDDEN, scale=0.05)
        vocabulary.reference = str(xlmr_folder(tmp_path, reference + noise))
    path = saved(tmp_path, state, {"no_scale_embedding": False})
    notes = from_fairseq(path, str(tmp_path / "veco"), vocabulary, "encoder", num_attention_heads=HEADS)
    done = {1.0: "kept", ROOT: "multiplied by 4", 1 / ROOT: "divided by 4"}[factor]
    assert any(done in note and "by the lengths" in note for note in notes), notes
    model = VecoModel.from_pretrained(tmp_path / "veco")
    assert torch.equal(model.embeddings.word_embeddings.weight, factor * state["encoder.embed_tokens.weight"])


def xlmr_folder(tmp_path, words):
    model = XLMRobertaForMaskedLM(
        XLMRobertaConfig(
            vocab_size=len(words),
            hidden_size=words.shape[1],
            num_hidden_layers=1,
            num_attention_heads=HEADS,
            intermediate_size=INNER,
            max_position_embeddings=POSITIONS,
            type_vocab_size=1,
        )
    )
    with torch.no_grad():
        model.roberta.embeddings.word_embeddings.weight.copy_(words)
    model.save_pretrained(tmp_path / "xlmr")
    return tmp_path / "xlmr"


@pytest.mark.parametrize("words", [0.3 / ROOT**0.5, 0.3 * ROOT**2])
def test_a_scale_that_cannot_be_told_is_refused(words, vocabulary, tmp_path):
    path = saved(tmp_path, fairseq_state(words=words))
    with pytest.raises(ValueError, match=r"cannot be told \(median length of the word rows .*--reference"):
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=HEADS)
    notes = from_fairseq(path, str(tmp_path / "veco"), vocabulary, None, "multiply", HEADS)
    assert any("multiplied by 4, as asked for" in note for note in notes)
    assert any("logits: 4 times fairseq's" in note for note in notes)  # tied: one LayerNorm serves both sides


def test_a_reference_of_other_rows_is_refused(vocabulary, tmp_path):
    path = saved(tmp_path, fairseq_state())
    vocabulary.reference = str(xlmr_folder(tmp_path, Maker(9)(PIECES, HIDDEN)))
    with pytest.raises(ValueError, match="the rows do not come from the reference's"):
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=HEADS)
    vocabulary.reference = str(xlmr_folder(tmp_path, Maker(9)(PIECES - 1, HIDDEN)))
    with pytest.raises(ValueError, match=r"word embeddings \(1999, 16\), and tokenizer and checkpoint \(2000, 16\)"):
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=HEADS)
    vocabulary.reference = str(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="the reference .*nowhere' cannot be loaded"):
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=HEADS)


# vocabularies


def kept_pieces():
    """Every special piece, and two of three others; <mask> aside."""
    return torch.tensor([index for index in range(PIECES - 1) if index < 4 or index % 3])


def write_map(tmp_path, kept, lines):
    """A map for all ids, or for those of fairseq's dict.txt."""
    flags = torch.zeros(PIECES, dtype=torch.long)
    flags[kept] = 1
    flags = flags if lines == PIECES else flags[4:-1]
    assert len(flags) == lines
    (tmp_path / "map.txt").write_text("\n".join(str(flag) for flag in flags.tolist()) + "\n")
    return str(tmp_path / "map.txt")


@pytest.mark.parametrize("lines", [PIECES, PIECES - 5])
@pytest.mark.parametrize("has_mask", [True, False])
@torch.no_grad()
def test_a_pruned_vocabulary_gets_a_tokenizer_of_its_own(lines, has_mask, vocabulary, sample_corpus_dir, tmp_path):
    import datasets

    kept = kept_pieces()
    state = fairseq_state(rows=len(kept) + has_mask)
    vocabulary.map = write_map(tmp_path, kept, lines)
    notes = from_fairseq(saved(tmp_path, state), str(tmp_path / "veco"), vocabulary, None, "keep", HEADS)
    assert any(f"{len(kept) + 1:,} of {PIECES:,} pieces" in note for note in notes)
    assert any("it is fresh" in note for note in notes) == (not has_mask)

    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    rows = model.roberta.embeddings.word_embeddings.weight
    assert model.config.vocab_size == len(rows) == len(kept) + 1
    assert torch.equal(rows[: len(state["encoder.embed_tokens.weight"])], state["encoder.embed_tokens.weight"])
    assert 0.5 < rows[-1].std() / rows.std() < 2

    full = AutoTokenizer.from_pretrained(vocabulary.tokenizer)
    pruned = AutoTokenizer.from_pretrained(tmp_path / "veco")
    assert type(pruned) is type(full) and len(pruned) == len(kept) + 1
    assert (pruned.mask_token_id, pruned.pad_token_id, pruned.eos_token_id) == (len(kept), 1, 2)
    assert [pruned.convert_ids_to_tokens(index) for index in range(len(kept))] == full.convert_ids_to_tokens(
        kept.tolist()
    )
    new_ids = {old: new for new, old in enumerate([*kept.tolist(), PIECES - 1])}
    texts = datasets.load_dataset(str(sample_corpus_dir), "en", split="train")["text"]
    words = sorted({word for text in texts for word in text.split()})
    as_before = 0
    for word in words:
        before, after = full(word)["input_ids"], pruned(word)["input_ids"]
        if set(before) <= new_ids.keys():
            as_before += 1
            assert after == [new_ids[index] for index in before]
    assert 50 < as_before < len(words)
    sentence = pruned("a <mask>", return_tensors="pt")["input_ids"]
    close(
        model(input_ids=sentence, decoder_input_ids=sentence).logits[..., :-1],
        FairseqForward(state | {"encoder.embed_tokens.weight": rows}, 1.0).logits(sentence, sentence)[..., :-1],
    )


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_a_pruned_vocabulary_is_filled_from_a_reference(prefix, vocabulary, tmp_path):
    kept = kept_pieces()
    state = native_state(prefix, rows=len(kept))
    make = Maker(1)
    make.linear(state, "lm_head.dense")
    make.norm(state, "lm_head.layer_norm")
    state["lm_head.bias"] = make(len(kept))
    reference = Maker(2)(PIECES, HIDDEN)
    vocabulary.map, vocabulary.fill = write_map(tmp_path, kept, PIECES), True
    path = saved(tmp_path, state)
    with pytest.raises(ValueError, match="--fill_vocabulary was given without --reference"):
        from_native(path, str(tmp_path / "veco"), vocabulary, HEADS)
    vocabulary.reference = str(xlmr_folder(tmp_path, reference))
    notes = from_native(path, str(tmp_path / "veco"), vocabulary, HEADS)
    assert f"vocabulary: {PIECES - len(kept)} of 2,000 rows are the reference's, with that of <mask>" in notes
    model = VecoForMaskedLM.from_pretrained(tmp_path / "veco")
    reference[kept] = state[f"{prefix}embeddings.word_embeddings.weight"]
    assert torch.equal(model.roberta.embeddings.word_embeddings.weight, reference)
    assert torch.equal(model.lm_head.bias[kept], state["lm_head.bias"])
    assert model.lm_head.bias.count_nonzero() == len(kept)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "veco")) == PIECES


@pytest.mark.parametrize("with_reference", [False, True])
def test_an_absent_mask_row_is_added(with_reference, vocabulary, tmp_path):
    reference = Maker(2)(PIECES, HIDDEN)
    if with_reference:
        vocabulary.reference = str(xlmr_folder(tmp_path, reference))
    state = native_state(rows=PIECES - 1)
    notes = from_native(saved(tmp_path, state), str(tmp_path / "veco"), vocabulary, HEADS)
    assert any(("the reference's was taken" if with_reference else "it is fresh") in note for note in notes)
    rows = VecoModel.from_pretrained(tmp_path / "veco").embeddings.word_embeddings.weight.detach()
    assert torch.equal(rows[:-1], state["bert.embeddings.word_embeddings.weight"])
    assert torch.equal(rows[-1], reference[-1]) == with_reference
    assert 0.3 < rows[-1].std() / rows.std() < 3


def test_vocabularies_that_do_not_fit_are_refused(vocabulary, sample_tokenizer, tmp_path):
    output = str(tmp_path / "veco")
    path = saved(tmp_path, native_state(rows=1000))
    with pytest.raises(ValueError, match="1,000 word embeddings and the tokenizer has 2,000 pieces"):
        from_native(path, output, vocabulary, HEADS)
    vocabulary.map = write_map(tmp_path, kept_pieces(), PIECES)
    with pytest.raises(ValueError, match="1,000 word embeddings and the vocabulary map keeps 1,3.. pieces"):
        from_native(path, output, vocabulary, HEADS)
    for text, message in {
        "1\n" * 10: "has 10 lines and the tokenizer 2,000 pieces",
        "1\n1\ntwo\n": "line 3 of .* is 'two'",
        "1\n\n": "line 2 of .* is ''",
        "0\n" + "1\n" * (PIECES - 1): "leaves out one of <s>",
    }.items():
        (tmp_path / "map.txt").write_text(text)
        with pytest.raises(ValueError, match=message):
            from_native(path, output, vocabulary, HEADS)
    vocabulary.map = str(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match="nowhere.txt' cannot be read"):
        from_native(path, output, vocabulary, HEADS)
    with pytest.raises(ValueError, match="no tokenizer could be loaded from .*nowhere'"):
        from_native(path, output, Vocabulary(str(tmp_path / "nowhere")), HEADS)
    sample_tokenizer.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["vocab"].append(["more", -20.0])
    file.write_text(json.dumps(description))
    with pytest.raises(ValueError, match="the special pieces .*'<mask>': 1999.*Give an XLM-R tokenizer"):
        from_native(path, output, Vocabulary(str(tmp_path / "tokenizer")), HEADS)
    assert not (tmp_path / "veco").exists()


def test_a_tokenizer_that_is_no_list_of_pieces_is_not_pruned(tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from modeling.convert_vocabulary import save_tokenizer

    pieces = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "<mask>"]
    words = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="'WordLevel' and cannot be pruned"):
        save_tokenizer(PreTrainedTokenizerFast(tokenizer_object=words), torch.tensor([0, 1, 2, 3, 5, 6]), tmp_path)


# errors


def test_all_that_does_not_fit_is_listed_at_once_and_nothing_is_written(vocabulary, tmp_path):
    state = native_state()
    del state["bert.encoder.layer.1.attention.self.key.bias"]
    del state["bert.embeddings.position_embeddings.weight"]
    state["bert.encoder.layer.2.cross_attention.output.LayerNorm.gamma"] = torch.ones(HIDDEN + 1)
    state["bert.encoder.layer.0.intermediate.dense.weight"] = torch.ones(INNER, HIDDEN - 1)
    state["bert.encoder.layer.0.output.LayerNorm.weight"] = torch.zeros(HIDDEN)  # beside gamma
    state["cls.predictions.bias"] = torch.ones(PIECES)
    state["encoder.layer.0.output.dense.bias"] = torch.ones(HIDDEN)
    with pytest.raises(ValueError) as error:
        from_native(saved(tmp_path, state), str(tmp_path / "veco"), vocabulary, HEADS)
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


def test_all_that_does_not_fit_fairseqs_layout_is_listed(vocabulary, tmp_path):
    state = fairseq_state(decoder=(1, 2))
    del state["decoder.layers.0.encoder_attn.q_proj.weight"], state["encoder.layers.0.fc1.bias"]
    state["encoder.layer_norm.weight"] = torch.ones(HIDDEN)
    state["decoder.layers.1.fc2.weight"] = torch.ones(INNER, HIDDEN)
    state["decoder.embed_positions.weight"] = state["decoder.embed_positions.weight"] + 1
    state["decoder.output_projection.weight"] = state["decoder.output_projection.weight"] * 2
    path = saved(tmp_path, state)
    with pytest.raises(ValueError, match="--model encoder converts the encoder alone") as error:
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=HEADS)
    assert [line.strip() for line in str(error.value).splitlines()[1:-1]] == [
        "missing: encoder.layers.0.fc1.bias (24,)",
        "missing: decoder.layers.0.encoder_attn.q_proj.weight (16, 16)",
        "left over: encoder.layer_norm.weight",
        "of another shape: decoder.layers.1.fc2.weight (24, 16), not (16, 24)",
        "different: decoder.output_projection.weight is not encoder.embed_tokens.weight",
        "different: decoder.embed_positions.weight is not encoder.embed_positions.weight",
    ]
    assert not (tmp_path / "veco").exists()


def test_a_decoder_without_names_for_what_it_shares(vocabulary, tmp_path):
    path = saved(tmp_path, fairseq_state(aliases=False))
    from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=HEADS)
    assert VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").config.decoder_layers == LAYERS


def test_files_that_are_no_checkpoints_are_refused(vocabulary, tmp_path):
    from fractions import Fraction

    output = str(tmp_path / "veco")
    torch.save({"model": native_state(), "trainer": Fraction(1, 2)}, tmp_path / "objects.pt")
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
        from_fairseq(saved(tmp_path, native_state()), output, vocabulary)
    with pytest.raises(ValueError, match="no layer of this layout .*from-fairseq for fairseq's"):
        from_native(saved(tmp_path, fairseq_state()), output, vocabulary)
    path = saved(tmp_path, native_state())
    with pytest.raises(ValueError, match="hidden size 16, which 0 attention heads do not divide"):
        from_native(path, output, vocabulary)
    with pytest.raises(ValueError, match="which 5 attention heads do not divide"):
        from_native(path, output, vocabulary, 5)
    with pytest.raises(ValueError, match="matches no key"):
        from_native(path, output, vocabulary, HEADS, ["pooler"])
    with pytest.raises(ValueError, match="is no regular expression"):
        from_native(path, output, vocabulary, HEADS, ["pooler("])
    path = saved(tmp_path, fairseq_state(), {"activation_fn": "swirl", "encoder_attention_heads": HEADS})
    with pytest.raises(ValueError, match="trained with the activation 'swirl'"):
        from_fairseq(path, output, vocabulary)


@torch.no_grad()
def test_models_that_the_layouts_cannot_hold_are_refused(tmp_path):
    output = str(tmp_path / "model.pt")
    decoder = {"cross_attention": False, "decoder_layers": 1, "decoder_layer_indices": [2], "is_encoder_decoder": True}
    folder = str(tmp_path / "zoo")
    folder_of(VecoForConditionalGeneration, tmp_path, lm_head_transform=True, **decoder)
    with pytest.raises(ValueError, match="dense and LayerNorm in its LM head"):
        to_fairseq(folder, output)
    model = folder_of(VecoForConditionalGeneration, tmp_path, **decoder)
    model.lm_head.bias.fill_(0.1)
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match="a bias in its LM head"):
        to_fairseq(folder, output)
    notes = to_fairseq(folder, output, "encoder")
    assert notes[-1] == "left out, since the layout has no place for it: decoder, lm_head"
    notes = to_native(folder, str(tmp_path / "native.bin"))
    assert "left out, since the layout has no place for it: decoder, lm_head" in notes
    output = str(tmp_path / "other.pt")
    folder_of(VecoModel, tmp_path, cross_attention=False)
    with pytest.raises(ValueError, match="has no cross-attention: a decoder cannot be made of it"):
        to_fairseq(folder, output, "translation")
    folder_of(VecoModel, tmp_path, layer_norm_eps=1e-12)
    with pytest.raises(ValueError, match="layer_norm_eps 1e-12"):
        to_fairseq(folder, output)
    with pytest.raises(ValueError, match="Name it .pt"):
        to_fairseq(folder, str(tmp_path / "model.safetensors"))
    with pytest.raises(ValueError, match="does not end with a dot"):
        to_native(folder, output, prefix="bert")
    with pytest.raises(ValueError, match="is a checkpoint of 'xlm-roberta', class 'XLMRobertaForMaskedLM'"):
        to_native(str(xlmr_folder(tmp_path, torch.zeros(9, HIDDEN))), output)
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


def test_outputs_that_exist_are_not_touched(vocabulary, tmp_path):
    path = saved(tmp_path, native_state())
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("mine")
    for convert in (
        lambda: from_native(path, str(full), vocabulary, HEADS),
        lambda: from_native(path, path, vocabulary, HEADS),
        lambda: from_fairseq(path, str(full), vocabulary),
        lambda: to_native(str(full), path),
        lambda: to_fairseq(str(full), path),
    ):
        with pytest.raises(ValueError, match="there already and not empty"):
            convert()
    assert (full / "file").read_text() == "mine" and len(list(full.iterdir())) == 1
    (tmp_path / "empty").mkdir()
    from_native(path, str(tmp_path / "empty"), vocabulary, HEADS)
    assert (tmp_path / "empty" / "config.json").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoint.pt", "empty", "full"]


# the command line

LOAD = """
import sys, torch, transformers
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer
encoder, translation = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(encoder)
batch = tokenizer(["a b", "c"], padding=True, return_tensors="pt")
states = AutoModel.from_pretrained(encoder, trust_remote_code=True)(**batch).last_hidden_state
AutoModelForMaskedLM.from_pretrained(encoder, trust_remote_code=True)(**batch)
model = AutoModelForSeq2SeqLM.from_pretrained(translation, trust_remote_code=True)
assert torch.equal(states, model.get_encoder()(**batch).last_hidden_state)
print(model.generate(**batch, max_new_tokens=3).shape[0])
"""


@pytest.fixture
def command_line():
    """The command line in this process, which it makes silent for its own sake."""
    from transformers.utils import logging

    from modeling.convert_veco import main

    verbosity = logging.get_verbosity()
    yield lambda *arguments: main(list(arguments))
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()


def test_command_line_end_to_end(command_line, sample_tokenizer_dir, tmp_path, pytestconfig, capfd):
    path = saved(tmp_path, fairseq_state())
    encoder, translation = str(tmp_path / "encoder"), str(tmp_path / "translation")
    options = ("--tokenizer", str(sample_tokenizer_dir), "--num_attention_heads", "4")
    environment = os.environ | {"HF_HOME": str(tmp_path / "hf_home")}
    command = [sys.executable, "-m", "modeling.convert_veco", "from-fairseq", path, translation, *options]
    done = subprocess.run(command, cwd=pytestconfig.rootpath, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("VecoForConditionalGeneration of ") and not done.stderr

    command_line("from-fairseq", path, encoder, *options, "--model", "encoder")
    load = [sys.executable, "-c", LOAD, encoder, translation]
    done = subprocess.run(load, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split()[-1] == "2", done.stderr[-2000:]
    assert "MISSING" not in done.stderr
    assert not list(tmp_path.glob("*/convert_*"))

    command_line("to-fairseq", translation, str(tmp_path / "back.pt"))
    command_line("to-native", encoder, str(tmp_path / "native.bin"), "--prefix", "")
    command_line("from-native", str(tmp_path / "native.bin"), str(tmp_path / "again"), *options)
    out, err = capfd.readouterr()
    assert out.count("parameters: ") == 4 and not err
    same_weights(VecoModel.from_pretrained(tmp_path / "again"), VecoModel.from_pretrained(encoder))
    settings = json.loads((tmp_path / "encoder" / "tokenizer_config.json").read_text())
    assert not {"is_local", "local_files_only"} & settings.keys()

    with pytest.raises(SystemExit, match="2"):
        command_line("from-fairseq", path, encoder, *options)
    error = capfd.readouterr().err
    assert error.splitlines()[-1].startswith("convert_veco from-fairseq: error: ") and "there already" in error


def test_help_teaches_and_does_not_load_torch():
    script = (
        "import sys, modeling.convert_veco as convert\n"
        "try: convert.main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    for arguments, words in {
        ("--help",): ["from-native", "from-fairseq", "to-native", "to-fairseq", "nothing is written"],
        ("from-fairseq", "--help"): ["--embedding_scale", "--vocabulary_map", "--reference", "sqrt(hidden size)"],
        ("to-fairseq", "--help"): ["--no-scale-embedding"],
    }.items():
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert all(word in done.stdout for word in words)
