"""Original checkpoints of VECO, and the models made of them, compute the same."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, XLMRobertaConfig, XLMRobertaModel

from modeling.convert import NEVER, VECO_FAIRSEQ, convert_veco, main, renamed
from modeling.modeling_veco import VecoForConditionalGeneration, VecoForMaskedLM, VecoForPreTraining, VecoModel

# VECO, native


@pytest.mark.parametrize(
    "prefix, kinds, name",
    [
        ("bert.", ("gamma", "beta"), "pytorch_model.bin"),
        ("", ("weight", "bias"), "model.safetensors"),
        ("roberta.", ("gamma", "beta"), "model.pt"),
    ],
)
@torch.no_grad()
def test_convert_veco_native_weights_compute_what_xlm_r_s_do(originals, prefix, kinds, name, options, tmp_path):
    """Plug-out as XLMRobertaModel, plug-in as its decoder, on the same weights."""
    state = originals.native_state(prefix, kinds)
    convert_veco(originals.saved(tmp_path, state, name=name), str(tmp_path / "veco"), **options)
    model = VecoModel.from_pretrained(tmp_path / "veco").eval()
    assert (model.config.num_hidden_layers, model.config.intermediate_size) == (originals.LAYERS, originals.INNER)
    assert model.config.cross_attention and not model.config.lm_head_transform
    sizes = dict(
        vocab_size=originals.TOKENS, num_hidden_layers=originals.LAYERS, type_vocab_size=1, layer_norm_eps=1e-5
    )
    sizes |= originals.SIZES
    renamed = {}
    for key, tensor in state.items():
        for old, new in ((prefix, ""), ("cross_attention", "crossattention"), ("gamma", "weight"), ("beta", "bias")):
            key = key.replace(old, new, 1) if old else key
        renamed[key] = tensor
    text, other = originals.ids(11), torch.randn(2, 7, originals.HIDDEN)

    plain = XLMRobertaModel(XLMRobertaConfig(**sizes), add_pooling_layer=False).eval()
    plain.load_state_dict({key: value for key, value in renamed.items() if ".crossattention." not in key})
    originals.close(model(text).last_hidden_state, plain(text).last_hidden_state)

    config = XLMRobertaConfig(is_decoder=True, add_cross_attention=True, **sizes)
    decoder = XLMRobertaModel(config, add_pooling_layer=False).eval()
    decoder.load_state_dict(renamed)
    causal = torch.ones(2, 11, 11, dtype=torch.bool).tril()
    expected = decoder(text, encoder_hidden_states=other, use_cache=False).last_hidden_state
    originals.close(model(text, attention_mask=causal, encoder_hidden_states=other).last_hidden_state, expected)


def test_convert_veco_native_without_cross_attention_and_with_a_head(originals, options, tmp_path):
    """As the release for understanding: XLM-R's shape, a buffer of positions, perhaps a pooler and an LM head."""
    state = originals.native_state("roberta.", cross=False)
    state["roberta.embeddings.position_ids"] = torch.arange(originals.POSITIONS)[None]
    make = originals.Maker(1)
    make.linear(state, "lm_head.dense")
    make.norm(state, "lm_head.layer_norm")
    state["lm_head.bias"] = make(originals.TOKENS)
    state["lm_head.decoder.weight"] = state["roberta.embeddings.word_embeddings.weight"].clone()
    make.linear(state, "roberta.pooler.dense")
    path = originals.saved(tmp_path, state)
    with pytest.raises(ValueError, match="has .*pooler.dense.weight"):
        convert_veco(path, str(tmp_path / "veco"), **options)
    convert_veco(path, str(tmp_path / "veco"), ignore_keys=[r"roberta\.pooler\..*"], **options)
    model = VecoForMaskedLM.from_pretrained(tmp_path / "veco").eval()
    assert not model.config.cross_attention
    assert torch.equal(model.lm_head.dense.weight, state["lm_head.dense.weight"])
    assert torch.equal(model.lm_head.bias, state["lm_head.bias"])


# VECO, fairseq


@pytest.mark.parametrize("decoder, tied", [((0, 1, 2), True), ((1, 2), True), ((0,), True), ((1, 2), False)])
@torch.no_grad()
def test_convert_veco_fairseq_translation(originals, decoder, tied, options, tmp_path):
    """The words are this zoo's, of any length, where the file says no_scale_embedding."""
    state = originals.fairseq_state(decoder=decoder, tied=tied, words=0.05)
    args = {"no_scale_embedding": True}
    convert_veco(originals.saved(tmp_path, state, args), str(tmp_path / "veco"), **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    config = model.config
    assert config.decoder_layer_indices == list(decoder) and not config.lm_head_transform
    layers = model.decoder.layer[0], model.roberta.encoder.layer[decoder[0]]
    query, of_encoder = (layer.attention.self.query.weight for layer in layers)
    assert config.tie_decoder == (query is of_encoder) == tied
    source, target = originals.ids(9), originals.ids(6, seed=2)
    expected = originals.FairseqForward(state, 1.0).logits(source, target)
    originals.close(model(input_ids=source, decoder_input_ids=target).logits, expected)
    assert model.generate(source, max_new_tokens=4).shape[0] == 2


@pytest.mark.parametrize("words, setting, factor", [
    (0.3, None, 1), (0.3 / 4, None, 4), (0.3, "multiply", 4), (0.3 / 4, "keep", 1),
])  # fmt: skip
@torch.no_grad()
def test_convert_veco_words_that_are_stored_to_be_multiplied(originals, words, setting, factor, options, tmp_path):
    """Shorter by sqrt(hidden size), or as long as XLM-R's: told by the rows, unless it is said."""
    state = originals.fairseq_state(words=words)
    path = originals.saved(tmp_path, state, {"no_scale_embedding": False})
    convert_veco(path, str(tmp_path / "veco"), embedding_scale=setting, **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    assert torch.equal(model.lm_head.decoder.weight, factor * state["encoder.embed_tokens.weight"])
    source, target = originals.ids(9), originals.ids(6, seed=2)
    reference = originals.FairseqForward(state, factor)
    originals.close(model.roberta(source).last_hidden_state, reference.side("encoder", source))
    expected = reference.logits(source, target)
    originals.close(model(input_ids=source, decoder_input_ids=target).logits, expected)

    convert_veco(path, str(tmp_path / "encoder"), model="encoder", embedding_scale=setting, **options)
    # the causal S stream is the decoder, and translation models keep the scale
    encoder = VecoForPreTraining.from_pretrained(tmp_path / "encoder", cross_stream="causal").eval()
    x, y = ({"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)} for ids in (source, target))
    losses = encoder(ca_mlm_pairs={"x": x, "y": y}).token_losses["ca_mlm_pairs.cross"][-target.numel() :]
    originals.close(losses, cross_entropy(expected.flatten(0, 1), target.flatten(), reduction="none"))
    model = VecoForConditionalGeneration.from_encoder(tmp_path / "encoder").eval()
    originals.close(model(input_ids=source, decoder_input_ids=target).logits, expected)


@torch.no_grad()
def test_convert_veco_fairseq_encoder_with_the_cross_attention_of_its_decoder(originals, options, tmp_path):
    """The released form, all layers twice: one encoder with cross-attention, and translation models of any depth."""
    state = originals.fairseq_state()
    path = originals.saved(tmp_path, state)
    convert_veco(path, str(tmp_path / "veco"), model="encoder", **options)
    model = VecoModel.from_pretrained(tmp_path / "veco").eval()
    assert model.config.cross_attention
    source, target = originals.ids(9), originals.ids(6, seed=2)
    reference = originals.FairseqForward(state, 1.0)
    memory = reference.side("encoder", source)
    originals.close(model(source).last_hidden_state, memory)
    causal = torch.ones(2, 6, 6, dtype=torch.bool).tril()
    states = model(target, attention_mask=causal, encoder_hidden_states=memory).last_hidden_state
    originals.close(states, reference.side("decoder", target, memory))

    last = {key: tensor for key, tensor in state.items() if not key.startswith("decoder.layers.0.")}
    for layer in (1, 2):
        for key in [key for key in last if key.startswith(f"decoder.layers.{layer}.")]:
            last[key.replace(f"layers.{layer}.", f"layers.{layer - 1}.", 1)] = last.pop(key)
    translation = VecoForConditionalGeneration.from_encoder(tmp_path / "veco", decoder_layers=2).eval()
    expected = originals.FairseqForward(last, 1.0).logits(source, target)
    originals.close(translation(input_ids=source, decoder_input_ids=target).logits, expected)


def test_convert_veco_settings_of_fairseq(originals, options, tmp_path):
    """What `args` says, and half precision."""
    state = {key: tensor.half() for key, tensor in originals.fairseq_state(decoder=(2,)).items()}
    args = {"no_scale_embedding": True, "encoder_attention_heads": 2, "activation_fn": "relu"}
    del options["num_attention_heads"]
    convert_veco(originals.saved(tmp_path, state, args), str(tmp_path / "veco"), **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco", dtype="auto")
    assert (model.config.num_attention_heads, model.config.hidden_act) == (2, "relu")
    assert model.dtype == torch.float16
    assert torch.equal(model.decoder.layer[0].output.dense.weight, state["decoder.layers.0.fc2.weight"])


@torch.no_grad()
def test_convert_veco_layers_of_two_digits(originals, options, tmp_path):
    """Layer 1 among 12, whose fc1 must not become fc0: every tensor has its own place."""
    state = originals.fairseq_state(layers=12, decoder=(1, 10, 11))
    path = originals.saved(tmp_path, state, {"no_scale_embedding": True})
    convert_veco(path, str(tmp_path / "veco"), **options)
    found = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").state_dict()
    kept = {key: tensor for key, tensor in state.items() if "version" not in key and "_float_tensor" not in key}
    for key, tensor in kept.items():
        ((name, _),) = renamed({key: tensor}, VECO_FAIRSEQ).items()
        assert torch.equal(found[name], tensor), (key, name)
    name = "decoder.layer.1.crossattention.output.LayerNorm.weight"
    assert torch.equal(found[name], state["decoder.layers.1.encoder_attn_layer_norm.weight"])


@pytest.mark.parametrize("is_pruned", [False, True])
@torch.no_grad()
def test_convert_veco_without_the_row_of_the_mask_or_of_pruned_tokens(originals, is_pruned, options, tmp_path):
    """Logits of the rows in the file are the file's; another token is read as <unk>, and never predicted."""
    state, rows = originals.fairseq_state(), originals.TOKENS
    kept = torch.arange(rows) < rows - 1  # <mask> is the last
    if is_pruned:
        kept[100:200] = False
        lines = [str(int(is_kept)) for is_kept in kept[4:-1]]
        (tmp_path / "map.txt").write_text("\n".join(lines) + "\n")
        options["dict_map"] = str(tmp_path / "map.txt")
    whole = dict(state)
    for key in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        state[key] = state[key][kept]
    path = originals.saved(tmp_path, state, {"no_scale_embedding": True})
    convert_veco(path, str(tmp_path / "veco"), **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    source, target = (ids.where(kept[ids], 5) for ids in (originals.ids(9), originals.ids(6, seed=2)))
    found = model(input_ids=source, decoder_input_ids=target).logits
    originals.close(found[..., kept], originals.FairseqForward(whole, 1.0).logits(source, target)[..., kept])
    assert (found[..., ~kept] < NEVER / 2).all()
    source[0, 3], unknown = 150 if is_pruned else rows - 1, source.clone()
    unknown[0, 3] = 3
    assert torch.equal(model.roberta(source).last_hidden_state, model.roberta(unknown).last_hidden_state)


# what does not fit is refused, and nothing is written


LAYER = "bert.encoder.layer.1"
UNFIT = [  # weights of VECO in addition, None where one is missing: what is named
    ({f"{LAYER}.attention.self.key.bias": None}, "layer.1.attention.self.key.bias"),
    ({f"{LAYER}.cross_attention.output.LayerNorm.gamma": torch.ones(9)}, "layer.1.crossattention.output.LayerNorm"),
    ({f"{LAYER}.output.LayerNorm.weight": torch.zeros(16)}, "layer.1.output.LayerNorm.weight differs"),
    ({f"{LAYER}.output.dense.bias": torch.full((16,), torch.nan)}, "layer.1.output.dense.bias"),
    ({"cls.bias": torch.zeros(3)}, "cls.bias"),
    ({"bert.embeddings.word_embeddings.weight": torch.ones(1999, 16)}, "1,999"),
    ({"decoder.embed_positions.weight": torch.zeros(40, 16)}, "decoder.embed_positions.weight"),
]


@pytest.mark.parametrize(("change", "named"), UNFIT)
def test_convert_veco_refuses_weights(originals, options, change, named, tmp_path):
    whole = originals.fairseq_state() if "decoder.embed_positions.weight" in change else originals.native_state()
    state = {key: tensor for key, tensor in (whole | change).items() if tensor is not None}
    with pytest.raises(ValueError, match=named):
        convert_veco(originals.saved(tmp_path, state), str(tmp_path / "veco"), **options)
    assert not (tmp_path / "veco").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_attention_heads": None}, "--num_attention_heads"),
        ({"output": "full"}, "full"),
    ],
)
def test_convert_veco_refuses_options(originals, options, change, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full", "file").write_text("mine")
    path = originals.saved(tmp_path, originals.native_state())
    with pytest.raises(ValueError, match=named):
        convert_veco(**{"source": path, "output": "new", **options, **change})
    assert Path("full", "file").read_text() == "mine" and not Path("new").exists()


def test_convert_veco_refuses_a_tokenizer_of_other_special_tokens(originals, options, sample_tokenizer, tmp_path):
    sample_tokenizer.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["vocab"].append(["more", -20.0])
    file.write_text(json.dumps(description))
    path = originals.saved(tmp_path, originals.native_state(rows=originals.TOKENS + 1))
    with pytest.raises(ValueError, match="'<mask>': 1999"):
        convert_veco(path, str(tmp_path / "veco"), **(options | {"tokenizer": str(tmp_path / "tokenizer")}))


@pytest.mark.slow
def test_convert_command_writes_folders_that_every_auto_class_loads(originals, sample_tokenizer_dir, tmp_path):
    path, encoder = originals.saved(tmp_path, originals.fairseq_state()), str(tmp_path / "encoder")
    options = ["--tokenizer", str(sample_tokenizer_dir), "--num_attention_heads", "4"]
    main(["veco", path, str(tmp_path / "translation"), *options])
    main(["veco", path, encoder, *options, "--model", "encoder"])
    with pytest.raises(SystemExit, match="2"):
        main(["veco", path, encoder, *options])
    batch = AutoTokenizer.from_pretrained(encoder)(["a b", "c"], padding=True, return_tensors="pt")
    states = AutoModel.from_pretrained(encoder, trust_remote_code=True)(**batch).last_hidden_state
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "translation", trust_remote_code=True)
    assert torch.equal(states, model.get_encoder()(**batch).last_hidden_state)
    assert not list(tmp_path.glob("*/convert*"))
