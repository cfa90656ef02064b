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
    weight, bias = marks
    state = {}
    for key, tensor in model.state_dict().items():
        key = key.replace("LayerNorm.weight", f"LayerNorm.{weight}").replace("LayerNorm.bias", f"LayerNorm.{bias}")
        state[prefix + key.replace("crossattention", "cross_attention")] = tensor
    return model, state


def bart(layers, decoder_layers, is_scaled):
    sizes = dict(vocab_size=TOKENS, d_model=16, encoder_layers=layers, decoder_layers=decoder_layers, use_cache=False)
    sizes |= dict(encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24)
    config = BartConfig(**sizes, max_position_embeddings=38, scale_embedding=is_scaled)
    return far_from_initial(BartForConditionalGeneration(config), scale=0.2)


@torch.no_grad()
def fairseq(layers=3, decoder=(0, 1, 2), is_tied=True, words=0.4, is_scaled=False):
    """A model, and its weights as fairseq saves them. `decoder`: the encoder layer that each decoder layer is
    (`is_tied`) or began as; `words`: the standard deviation of the word embeddings."""
    model = bart(layers, len(decoder), is_scaled)
    encoder_side = model.model.encoder
    decoder_side = model.model.decoder
    model.model.shared.weight *= words / 0.2
    decoder_side.layernorm_embedding.load_state_dict(encoder_side.layernorm_embedding.state_dict())
    decoder_side.embed_positions.load_state_dict(encoder_side.embed_positions.state_dict())
    for layer, origin in zip(decoder_side.layers, decoder, strict=True):
        weights = encoder_side.layers[origin].state_dict()
        if not is_tied:
            weights = {key: tensor + 0.1 * tensor.roll(1, 0) for key, tensor in weights.items()}
        layer.load_state_dict(weights, strict=False)
    state = {key.removeprefix("model."): tensor for key, tensor in model.state_dict().items()}
    state["decoder.output_projection.weight"] = state.pop("lm_head.weight")
    del state["shared.weight"]
    del state["final_logits_bias"]
    state["encoder.version"] = torch.tensor([3.0])
    state["decoder.version"] = torch.tensor([3.0])
    state["decoder.embed_positions._float_tensor"] = torch.zeros(1)
    return model, state


def ids(length, seed):
    return torch.randint(4, TOKENS - 1, (2, length), generator=torch.Generator().manual_seed(seed))


SOURCE = ids(9, seed=1)
TARGET = ids(6, seed=2)


def logits(model, source=SOURCE, target=TARGET):
    return model(input_ids=source, decoder_input_ids=target).logits


@pytest.fixture
def save(tmp_path):
    """`save(state, args=None, name="checkpoint.pt")`: the path of a checkpoint; fairseq's where there are `args`."""

    def write(state, args=None, name="checkpoint.pt"):
        path = tmp_path / name
        if path.suffix == ".safetensors":
            safetensors.torch.save_file(state, path)
        elif args is None:
            torch.save(state, path)
        else:
            torch.save({"model": state, "args": argparse.Namespace(**args)}, path)
        return str(path)

    return write


@pytest.fixture
def convert(save, options, tmp_path):
    """`convert(state, args=None, name="checkpoint.pt", **changes)`: the folder that is made of a checkpoint."""

    def run(state, args=None, name="checkpoint.pt", **changes):
        folder = tmp_path / "veco"
        convert_veco(save(state, args, name), str(folder), **options | changes)
        return folder

    return run


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
def test_convert_veco_native_weights_compute_what_xlm_r_s_do(prefix, marks, name, convert):
    """Plug-out as XLMRobertaModel, plug-in as its decoder, on the same weights."""
    decoder, state = native(prefix, marks)
    model = VecoModel.from_pretrained(convert(state, name=name)).eval()
    assert model.config.cross_attention
    assert not model.config.lm_head_transform
    plain = XLMRobertaModel(XLMRobertaConfig(**SIZES), add_pooling_layer=False).eval()
    plain.load_state_dict({key: value for key, value in decoder.state_dict().items() if ".crossattention." not in key})
    close(model(SOURCE).last_hidden_state, plain(SOURCE).last_hidden_state)
    other = torch.randn(2, 7, 16)
    causal = torch.ones(2, 9, 9, dtype=torch.bool).tril()
    expected = decoder(SOURCE, encoder_hidden_states=other, use_cache=False).last_hidden_state
    close(model(SOURCE, attention_mask=causal, encoder_hidden_states=other).last_hidden_state, expected)


@torch.no_grad()
def test_convert_veco_native_without_cross_attention_and_with_a_head(convert):
    """As the release for understanding: XLM-R's shape, a buffer of positions, perhaps a pooler and an LM head."""
    theirs = far_from_initial(XLMRobertaForMaskedLM(XLMRobertaConfig(**SIZES)), scale=0.2)
    state = theirs.state_dict() | {"roberta.embeddings.position_ids": torch.arange(40)[None]}
    state["roberta.pooler.dense.weight"] = torch.ones(16, 16)
    with pytest.raises(ValueError, match="has .*pooler.dense.weight"):
        convert(state)
    model = VecoForMaskedLM.from_pretrained(convert(state, ignore_keys=[r"roberta\.pooler\..*"])).eval()
    assert not model.config.cross_attention
    close(model(SOURCE).logits, theirs(SOURCE).logits)


@pytest.mark.parametrize(
    "layers, decoder, is_tied",  # among 12 layers, layer 1's fc1 must not become fc0
    [(3, (0, 1, 2), True), (3, (1, 2), True), (3, (0,), True), (3, (1, 2), False), (12, (1, 10, 11), True)],
)
@torch.no_grad()
def test_convert_veco_fairseq_translation(layers, decoder, is_tied, convert):
    """The words are this zoo's, of any length, where the file says no_scale_embedding."""
    theirs, state = fairseq(layers, decoder, is_tied, words=0.05)
    model = VecoForConditionalGeneration.from_pretrained(convert(state, UNSCALED)).eval()
    assert model.config.decoder_layer_indices == list(decoder)
    assert not model.config.lm_head_transform
    assert model.config.tie_decoder == is_tied
    query = model.decoder.layer[0].attention.self.query.weight
    query_of_encoder = model.roberta.encoder.layer[decoder[0]].attention.self.query.weight
    assert (query is query_of_encoder) == is_tied
    close(logits(model), logits(theirs))


WORD_LENGTHS = pytest.mark.parametrize(
    "words, setting, is_scaled",
    [(0.3, None, False), (0.3 / 4, None, True), (0.3, "multiply", True), (0.3 / 4, "keep", False)],
)


@WORD_LENGTHS
@torch.no_grad()
def test_convert_veco_words_that_are_stored_to_be_multiplied(words, setting, is_scaled, convert):
    """Shorter by sqrt(hidden size), or as long as XLM-R's: told by the rows, unless it is said."""
    theirs, state = fairseq(words=words, is_scaled=is_scaled)
    folder = convert(state, {"no_scale_embedding": False}, embedding_scale=setting)
    close(logits(VecoForConditionalGeneration.from_pretrained(folder).eval()), logits(theirs))


@WORD_LENGTHS
@torch.no_grad()
def test_convert_veco_words_of_an_encoder(words, setting, is_scaled, convert):
    """The causal S stream is the decoder, and translation models keep the scale."""
    theirs, state = fairseq(words=words, is_scaled=is_scaled)
    folder = convert(state, {"no_scale_embedding": False}, model="encoder", embedding_scale=setting)
    x = {"input_ids": SOURCE, "labels": SOURCE, "attention_mask": torch.ones_like(SOURCE)}
    y = {"input_ids": TARGET, "labels": TARGET, "attention_mask": torch.ones_like(TARGET)}
    encoder = VecoForPreTraining.from_pretrained(folder, cross_stream="causal").eval()
    losses = encoder(ca_mlm_pairs={"x": x, "y": y}).token_losses["ca_mlm_pairs.cross"]
    expected = cross_entropy(logits(theirs).flatten(0, 1), TARGET.flatten(), reduction="none")
    close(losses[-TARGET.numel() :], expected)
    close(logits(VecoForConditionalGeneration.from_encoder(folder).eval()), logits(theirs))


@torch.no_grad()
def test_convert_veco_fairseq_encoder_with_the_cross_attention_of_its_decoder(convert):
    """The released form, all layers twice: one encoder with cross-attention, and translation models of any depth."""
    theirs, state = fairseq()
    folder = convert(state, model="encoder")
    model = VecoModel.from_pretrained(folder).eval()
    memory = theirs.model.encoder(SOURCE).last_hidden_state
    close(model(SOURCE).last_hidden_state, memory)
    causal = torch.ones(2, 6, 6, dtype=torch.bool).tril()
    states = model(TARGET, attention_mask=causal, encoder_hidden_states=memory).last_hidden_state
    close(states, theirs.model.decoder(TARGET, encoder_hidden_states=memory).last_hidden_state)
    theirs.model.decoder.layers = theirs.model.decoder.layers[1:]
    translation = VecoForConditionalGeneration.from_encoder(folder, decoder_layers=2).eval()
    close(logits(translation), logits(theirs))


def test_convert_veco_settings_of_fairseq(options, convert):
    """What `args` says, and half precision."""
    _, state = fairseq(decoder=(2,))
    state = {key: tensor.half() for key, tensor in state.items()}
    args = UNSCALED | {"encoder_attention_heads": 2, "activation_fn": "relu"}
    del options["num_attention_heads"]
    model = VecoForConditionalGeneration.from_pretrained(convert(state, args), dtype="auto")
    assert model.config.num_attention_heads == 2
    assert model.config.hidden_act == "relu"
    assert model.dtype == torch.float16
    assert torch.equal(model.decoder.layer[0].output.dense.weight, state["decoder.layers.0.fc2.weight"])


@pytest.mark.parametrize("is_pruned", [False, True])
@torch.no_grad()
def test_convert_veco_without_the_row_of_the_mask_or_of_pruned_tokens(is_pruned, convert, tmp_path):
    """Logits of the rows in the file are the file's; another token is read as <unk>, and never predicted."""
    theirs, state = fairseq()
    has_row = torch.arange(TOKENS) < TOKENS - 1  # <mask> is the last
    missing = TOKENS - 1
    changes = {}
    if is_pruned:
        missing = 150
        has_row[100:200] = False
        lines = [str(int(flag)) for flag in has_row[4:-1]]
        (tmp_path / "map.txt").write_text("\n".join(lines) + "\n")
        changes = {"dict_map": str(tmp_path / "map.txt")}
    for key in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        state[key] = state[key][has_row]
    model = VecoForConditionalGeneration.from_pretrained(convert(state, UNSCALED, **changes)).eval()
    source = SOURCE.where(has_row[SOURCE], 5)
    target = TARGET.where(has_row[TARGET], 5)
    logits_BTV = logits(model, source, target)
    close(logits_BTV[..., has_row], logits(theirs, source, target)[..., has_row])
    assert (logits_BTV[..., ~has_row] < NEVER / 2).all()
    source[0, 3] = missing
    unknown = source.clone()
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
def test_convert_veco_refuses_weights(convert, change, named, tmp_path):
    _, state = fairseq() if "decoder.embed_positions.weight" in change else native()
    state |= change
    with pytest.raises(ValueError, match=named):
        convert({key: tensor for key, tensor in state.items() if tensor is not None})
    assert not (tmp_path / "veco").exists()


def test_convert_veco_refuses_a_tokenizer_of_other_special_tokens(convert, sample_tokenizer, tmp_path):
    sample_tokenizer.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["vocab"].append(["more", -20.0])
    file.write_text(json.dumps(description))
    _, state = native(rows=TOKENS + 1)
    with pytest.raises(ValueError, match="'<mask>': 1999"):
        convert(state, tokenizer=str(tmp_path / "tokenizer"))


@pytest.mark.slow
def test_convert_command_writes_folders_that_every_auto_class_loads(save, sample_tokenizer_dir, tmp_path):
    _, state = fairseq()
    path = save(state)
    encoder = str(tmp_path / "encoder")
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
