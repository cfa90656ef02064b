"""Original checkpoints of VECO, and the models made of them, compute the same as XLM-R and as BART.

BART's classes are fairseq's transformer with its names: a model of them gives fairseq's state dict and the numbers.
"""

import argparse
import json

import pytest
import safetensors.torch
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaModel,
)

from crosslingual_zoo.hub_cards.convert import NEVER, convert_veco, main
from crosslingual_zoo.modeling.modeling_veco import (
    VecoForConditionalGeneration,
    VecoForMaskedLM,
    VecoForPreTraining,
    VecoModel,
)
from tests.modeling.tiny import far_from_initial

TOKENS = 2000  # of the sample tokenizer
SIZES = dict(vocab_size=TOKENS, hidden_size=16, num_attention_heads=4, intermediate_size=24, num_hidden_layers=3)
SIZES |= dict(max_position_embeddings=40, type_vocab_size=1, layer_norm_eps=1e-5)
UNSCALED = {"no_scale_embedding": True}


@pytest.fixture
def options(sample_tokenizer_dir):
    """The options that the converter needs for these checkpoints."""
    return {"tokenizer": str(sample_tokenizer_dir), "num_attention_heads": 4}


def native(prefix="bert.", marks=("gamma", "beta"), rows=TOKENS):
    """XLM-R with cross-attention, and its weights with the names of VECO's release."""
    config = XLMRobertaConfig(**SIZES | {"vocab_size": rows}, is_decoder=True, add_cross_attention=True)
    model = far_from_initial(XLMRobertaModel(config, add_pooling_layer=False), scale=0.2)
    state = {}
    for key, tensor in model.state_dict().items():
        for old, new in zip(("LayerNorm.weight", "LayerNorm.bias"), marks, strict=True):
            key = key.replace(old, f"LayerNorm.{new}")
        state[prefix + key.replace("crossattention", "cross_attention")] = tensor
    return model, state


def fairseq(layers=3, decoder=(0, 1, 2), is_tied=True, words=0.4, is_scaled=False):
    """A model, and its weights as fairseq saves them. `decoder`: the encoder layer that each decoder layer is
    (`is_tied`) or began as; `words`: the standard deviation of the word embeddings."""
    sizes = dict(vocab_size=TOKENS, d_model=16, encoder_layers=layers, decoder_layers=len(decoder), use_cache=False)
    sizes |= dict(encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24)
    config = BartConfig(**sizes, max_position_embeddings=38, scale_embedding=is_scaled)
    model = far_from_initial(BartForConditionalGeneration(config), scale=0.2)
    sides = model.model.encoder, model.model.decoder
    with torch.no_grad():
        model.model.shared.weight *= words / 0.2
        for side in sides:
            side.layernorm_embedding.load_state_dict(sides[0].layernorm_embedding.state_dict())
            side.embed_positions.load_state_dict(sides[0].embed_positions.state_dict())
        for layer, origin in zip(sides[1].layers, decoder, strict=True):
            moved = {
                key: w + (not is_tied) * 0.1 * w.roll(1, 0) for key, w in sides[0].layers[origin].state_dict().items()
            }
            layer.load_state_dict(moved, strict=False)
    state = {key.removeprefix("model."): tensor for key, tensor in model.state_dict().items()}
    state["decoder.output_projection.weight"] = state.pop("lm_head.weight")
    del state["shared.weight"], state["final_logits_bias"]
    state |= {"encoder.version": torch.tensor([3.0]), "decoder.version": torch.tensor([3.0])}
    return model, state | {"decoder.embed_positions._float_tensor": torch.zeros(1)}


def ids(length, seed=1, rows=2):
    return torch.randint(4, TOKENS - 1, (rows, length), generator=torch.Generator().manual_seed(seed))


SOURCE, TARGET = ids(9), ids(6, seed=2)


def logits(model, source=SOURCE, target=TARGET):
    return model(input_ids=source, decoder_input_ids=target).logits


def saved(tmp_path, state, args=None, name="checkpoint.pt"):
    path = tmp_path / name
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state if args is None else {"model": state, "args": argparse.Namespace(**args)}, path)
    return str(path)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "prefix, marks, name",
    [
        ("bert.", ("gamma", "beta"), "pytorch_model.bin"),
        ("", ("weight", "bias"), "model.safetensors"),
        ("roberta.", ("gamma", "beta"), "model.pt"),
    ],
)
@torch.no_grad()
def test_convert_veco_native_weights_compute_what_xlm_r_s_do(prefix, marks, name, options, tmp_path):
    """Plug-out as XLMRobertaModel, plug-in as its decoder, on the same weights."""
    decoder, state = native(prefix, marks)
    convert_veco(saved(tmp_path, state, name=name), str(tmp_path / "veco"), **options)
    model = VecoModel.from_pretrained(tmp_path / "veco").eval()
    assert model.config.cross_attention and not model.config.lm_head_transform
    plain = XLMRobertaModel(XLMRobertaConfig(**SIZES), add_pooling_layer=False).eval()
    plain.load_state_dict({key: value for key, value in decoder.state_dict().items() if ".crossattention." not in key})
    close(model(SOURCE).last_hidden_state, plain(SOURCE).last_hidden_state)
    other, causal = torch.randn(2, 7, 16), torch.ones(2, 9, 9, dtype=torch.bool).tril()
    expected = decoder(SOURCE, encoder_hidden_states=other, use_cache=False).last_hidden_state
    close(model(SOURCE, attention_mask=causal, encoder_hidden_states=other).last_hidden_state, expected)


@torch.no_grad()
def test_convert_veco_native_without_cross_attention_and_with_a_head(options, tmp_path):
    """As the release for understanding: XLM-R's shape, a buffer of positions, perhaps a pooler and an LM head."""
    theirs = far_from_initial(XLMRobertaForMaskedLM(XLMRobertaConfig(**SIZES)), scale=0.2)
    state = theirs.state_dict() | {"roberta.embeddings.position_ids": torch.arange(40)[None]}
    path = saved(tmp_path, state | {"roberta.pooler.dense.weight": torch.ones(16, 16)})
    with pytest.raises(ValueError, match="has .*pooler.dense.weight"):
        convert_veco(path, str(tmp_path / "veco"), **options)
    convert_veco(path, str(tmp_path / "veco"), ignore_keys=[r"roberta\.pooler\..*"], **options)
    model = VecoForMaskedLM.from_pretrained(tmp_path / "veco").eval()
    assert not model.config.cross_attention
    close(model(SOURCE).logits, theirs(SOURCE).logits)


@pytest.mark.parametrize(
    "layers, decoder, is_tied",  # among 12 layers, layer 1's fc1 must not become fc0
    [(3, (0, 1, 2), True), (3, (1, 2), True), (3, (0,), True), (3, (1, 2), False), (12, (1, 10, 11), True)],
)
@torch.no_grad()
def test_convert_veco_fairseq_translation(layers, decoder, is_tied, options, tmp_path):
    """The words are this zoo's, of any length, where the file says no_scale_embedding."""
    theirs, state = fairseq(layers, decoder, is_tied, words=0.05)
    convert_veco(saved(tmp_path, state, UNSCALED), str(tmp_path / "veco"), **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    assert model.config.decoder_layer_indices == list(decoder) and not model.config.lm_head_transform
    first = model.decoder.layer[0], model.roberta.encoder.layer[decoder[0]]
    query, of_encoder = (layer.attention.self.query.weight for layer in first)
    assert model.config.tie_decoder == (query is of_encoder) == is_tied
    close(logits(model), logits(theirs))


@pytest.mark.parametrize(
    "words, setting, is_scaled",
    [(0.3, None, False), (0.3 / 4, None, True), (0.3, "multiply", True), (0.3 / 4, "keep", False)],
)
@torch.no_grad()
def test_convert_veco_words_that_are_stored_to_be_multiplied(words, setting, is_scaled, options, tmp_path):
    """Shorter by sqrt(hidden size), or as long as XLM-R's: told by the rows, unless it is said."""
    theirs, state = fairseq(words=words, is_scaled=is_scaled)
    path, expected = saved(tmp_path, state, {"no_scale_embedding": False}), logits(theirs)
    convert_veco(path, str(tmp_path / "veco"), embedding_scale=setting, **options)
    close(logits(VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()), expected)

    convert_veco(path, str(tmp_path / "encoder"), model="encoder", embedding_scale=setting, **options)
    # the causal S stream is the decoder, and translation models keep the scale
    encoder = VecoForPreTraining.from_pretrained(tmp_path / "encoder", cross_stream="causal").eval()
    x, y = ({"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)} for ids in (SOURCE, TARGET))
    losses = encoder(ca_mlm_pairs={"x": x, "y": y}).token_losses["ca_mlm_pairs.cross"][-TARGET.numel() :]
    close(losses, cross_entropy(expected.flatten(0, 1), TARGET.flatten(), reduction="none"))
    close(logits(VecoForConditionalGeneration.from_encoder(tmp_path / "encoder").eval()), expected)


@torch.no_grad()
def test_convert_veco_fairseq_encoder_with_the_cross_attention_of_its_decoder(options, tmp_path):
    """The released form, all layers twice: one encoder with cross-attention, and translation models of any depth."""
    theirs, state = fairseq()
    convert_veco(saved(tmp_path, state), str(tmp_path / "veco"), model="encoder", **options)
    model = VecoModel.from_pretrained(tmp_path / "veco").eval()
    memory = theirs.model.encoder(SOURCE).last_hidden_state
    close(model(SOURCE).last_hidden_state, memory)
    causal = torch.ones(2, 6, 6, dtype=torch.bool).tril()
    states = model(TARGET, attention_mask=causal, encoder_hidden_states=memory).last_hidden_state
    close(states, theirs.model.decoder(TARGET, encoder_hidden_states=memory).last_hidden_state)
    theirs.model.decoder.layers = theirs.model.decoder.layers[1:]
    translation = VecoForConditionalGeneration.from_encoder(tmp_path / "veco", decoder_layers=2).eval()
    close(logits(translation), logits(theirs))


def test_convert_veco_settings_of_fairseq(options, tmp_path):
    """What `args` says, and half precision."""
    state = {key: tensor.half() for key, tensor in fairseq(decoder=(2,))[1].items()}
    args = UNSCALED | {"encoder_attention_heads": 2, "activation_fn": "relu"}
    del options["num_attention_heads"]
    convert_veco(saved(tmp_path, state, args), str(tmp_path / "veco"), **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco", dtype="auto")
    assert (model.config.num_attention_heads, model.config.hidden_act) == (2, "relu")
    assert model.dtype == torch.float16
    assert torch.equal(model.decoder.layer[0].output.dense.weight, state["decoder.layers.0.fc2.weight"])


@pytest.mark.parametrize("is_pruned", [False, True])
@torch.no_grad()
def test_convert_veco_without_the_row_of_the_mask_or_of_pruned_tokens(is_pruned, options, tmp_path):
    """Logits of the rows in the file are the file's; another token is read as <unk>, and never predicted."""
    theirs, state = fairseq()
    kept = torch.arange(TOKENS) < TOKENS - 1  # <mask> is the last
    if is_pruned:
        kept[100:200] = False
        lines = [str(int(is_kept)) for is_kept in kept[4:-1]]
        (tmp_path / "map.txt").write_text("\n".join(lines) + "\n")
        options["dict_map"] = str(tmp_path / "map.txt")
    for key in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        state[key] = state[key][kept]
    convert_veco(saved(tmp_path, state, UNSCALED), str(tmp_path / "veco"), **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    source, target = (ids.where(kept[ids], 5) for ids in (SOURCE, TARGET))
    found = logits(model, source, target)
    close(found[..., kept], logits(theirs, source, target)[..., kept])
    assert (found[..., ~kept] < NEVER / 2).all()
    source[0, 3], unknown = 150 if is_pruned else TOKENS - 1, source.clone()
    unknown[0, 3] = 3
    assert torch.equal(model.roberta(source).last_hidden_state, model.roberta(unknown).last_hidden_state)


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
def test_convert_veco_refuses_weights(options, change, named, tmp_path):
    _, whole = fairseq() if "decoder.embed_positions.weight" in change else native()
    state = {key: tensor for key, tensor in (whole | change).items() if tensor is not None}
    with pytest.raises(ValueError, match=named):
        convert_veco(saved(tmp_path, state), str(tmp_path / "veco"), **options)
    assert not (tmp_path / "veco").exists()


def test_convert_veco_refuses_a_tokenizer_of_other_special_tokens(options, sample_tokenizer, tmp_path):
    sample_tokenizer.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["vocab"].append(["more", -20.0])
    file.write_text(json.dumps(description))
    path = saved(tmp_path, native(rows=TOKENS + 1)[1])
    with pytest.raises(ValueError, match="'<mask>': 1999"):
        convert_veco(path, str(tmp_path / "veco"), **options | {"tokenizer": str(tmp_path / "tokenizer")})


@pytest.mark.slow
def test_convert_command_writes_folders_that_every_auto_class_loads(sample_tokenizer_dir, tmp_path):
    path, encoder = saved(tmp_path, fairseq()[1]), str(tmp_path / "encoder")
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
