"""Original checkpoints of VECO and ERNIE-M, and the models made of them, compute the same."""

import collections
import json
import os
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    XLMRobertaConfig,
    XLMRobertaModel,
    XLMRobertaTokenizer,
)

from modeling.convert import (
    ERNIE_M_HEADS,
    NEVER,
    VECO_FAIRSEQ,
    convert_ernie_m,
    convert_veco,
    main,
    read_state,
    renamed,
)
from modeling.modeling_ernie_m import ErnieMModel
from modeling.modeling_veco import VecoForConditionalGeneration, VecoForMaskedLM, VecoForPreTraining, VecoModel

CLASSES = {cls.__name__: head for head, cls in ERNIE_M_HEADS.items()}

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
def test_native_weights_compute_what_xlmrs_do(originals, prefix, kinds, name, options, tmp_path):
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


def test_native_without_cross_attention_and_with_a_head(originals, options, tmp_path):
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
def test_fairseq_translation(originals, decoder, tied, options, tmp_path):
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
def test_words_that_are_stored_to_be_multiplied(originals, words, setting, factor, options, tmp_path):
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
def test_fairseq_encoder_with_the_cross_attention_of_its_decoder(originals, options, tmp_path):
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


def test_settings_of_fairseq(originals, options, tmp_path):
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
def test_layers_of_two_digits_keep_their_names(originals, options, tmp_path):
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
def test_fairseq_without_the_row_of_the_mask_or_of_pruned_tokens(originals, is_pruned, options, tmp_path):
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


# ERNIE-M


@pytest.fixture(scope="module")
def converted(ernie_m_oracle, tmp_path_factory):
    """class -> (the folder of transformers 4, ours), converted once."""
    folders = {}
    for cls in CLASSES:
        old = ernie_m_oracle.save(cls, tmp_path_factory.mktemp("saved") / cls)
        new = tmp_path_factory.mktemp("converted") / cls
        convert_ernie_m(str(old), str(new))
        folders[cls] = old, new
    return folders


def load(cls, folder):
    model, report = ERNIE_M_HEADS[CLASSES[cls]].from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    return model.eval()


def same(folder, model):
    ours, expected = load(type(model).__name__, folder).state_dict(), model.state_dict()
    return ours.keys() == expected.keys() and all(torch.equal(ours[key], expected[key]) for key in expected)


def difference(ours, theirs, tokens=None):
    """Largest difference over (..., B, T, ...) at the tokens, or everywhere."""
    apart = (ours - theirs).abs()
    if tokens is not None:
        first = apart.shape.index(tokens.shape[0]) if apart.dim() < 4 else 1
        apart = apart[(slice(None),) * first + (tokens,)]
    return apart.max().item()


@torch.no_grad()
@pytest.mark.parametrize("case", ["right", "right, no mask", "right, positions", "left", "left, positions"])
@pytest.mark.parametrize("cls", CLASSES)
def test_outputs_are_those_of_transformers_4(cls, case, converted, ernie_m_oracle):
    """Positions given: equal everywhere. Not given: equal at every token; padding's own states, which nothing reads,
    have other positions. Padding on the left moves the positions of transformers 4, so these are given; its pooler
    reads the padding there."""
    inputs, expected = ernie_m_oracle.inputs(case), ernie_m_oracle.outputs(cls, case)
    tokens = inputs["input_ids"].ne(1)
    model = load(cls, converted[cls][1])
    if "position_ids" in inputs:
        inputs["position_ids"] = inputs["position_ids"] + 2
        tokens = None
    if case == "left":
        ours = model(**inputs)
        name = "last_hidden_state" if cls == "ErnieMModel" else next(iter(expected))
        assert difference(ours[name], expected[name], None if ours[name].dim() == 2 else tokens) > 1e-3
        inputs["position_ids"] = torch.arange(inputs["input_ids"].shape[1])[None] + 2
        tokens = None
    ours = model(**inputs, output_hidden_states=cls == "ErnieMModel")
    for name, tensor in expected.items():
        found = torch.stack(ours[name]) if name == "hidden_states" else ours[name]
        assert found.shape == tensor.shape
        per_text = name == "pooler_output" or (name == "logits" and found.dim() == 2)
        if not (per_text and case.startswith("left")):
            assert difference(found, tensor, None if per_text else tokens) < 1e-5, name


def test_configuration(converted, ernie_m_oracle, tmp_path):
    config = load("ErnieMForTokenClassification", converted["ErnieMForTokenClassification"][1]).config
    expected = ernie_m_oracle.config("ErnieMForTokenClassification")
    for name in ("layer_norm_eps", "max_position_embeddings", "hidden_act", "classifier_dropout", "vocab_size"):
        assert getattr(config, name) == expected[name]
    assert config.id2label == {0: "O", 1: "B-PER", 2: "I-PER"} and config.num_labels == 3
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 2, 1)
    assert config.longest_input == expected["max_position_embeddings"] - 2
    # what the configuration does not say is assumed
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old")
    (old / "config.json").unlink()
    convert_ernie_m(str(old), str(tmp_path / "b"), num_attention_heads=8)
    config = ErnieMModel.from_pretrained(tmp_path / "b").config
    assert (config.num_attention_heads, config.hidden_act, config.layer_norm_eps) == (8, "gelu", 1e-5)


def arrays_of(weights):
    """Weights as Paddle's arrays: (in, out)."""
    return {
        key: (tensor.T if tensor.dim() == 2 and "embedding" not in key else tensor).numpy()
        for key, tensor in weights.items()
    }


@torch.no_grad()
@pytest.mark.parametrize("cls", CLASSES)
def test_paddlenlp(cls, converted, ernie_m_oracle, tmp_path):
    expected = load(cls, converted[cls][1])
    old = ernie_m_oracle.weights(cls)
    if CLASSES[cls] != "base":  # there, every head has a pooler below it, and the span head is a classifier too
        pooler = ernie_m_oracle.under("weights/ErnieMModel/pooler.")
        old |= {f"ernie_m.pooler.{key}": tensor.float() for key, tensor in pooler.items()}
    arrays = arrays_of(
        {
            key.replace("qa_outputs", "classifier").replace("self_attn.self_attn", "self_attn"): tensor
            for key, tensor in old.items()
        }
    )
    source = ernie_m_oracle.save_tokenizer(tmp_path / "paddle")
    arrays |= {"ernie_m.embeddings.position_ids": np.arange(24)[None]}
    (source / "model_state.pdparams").write_bytes(pickle.dumps(arrays))
    base = {name: value for name, value in ernie_m_oracle.config(cls).items() if name != "architectures"}
    base |= {"init_class": "ErnieMModel"}
    settings = base if CLASSES[cls] == "base" else {"init_args": [base], "init_class": cls}
    (source / "model_config.json").write_text(json.dumps(settings))
    convert_ernie_m(str(source), str(tmp_path / "new"), tokenizer_type="ernie_m")
    assert same(tmp_path / "new", expected)
    if CLASSES[cls] != "base":
        (source / "model_config.json").unlink()
        options = {"tokenizer": str(source), "tokenizer_type": "ernie_m", "num_attention_heads": 4}
        file = str(source / "model_state.pdparams")
        convert_ernie_m(file, str(tmp_path / "other"), head=CLASSES[cls], **options)
        assert same(tmp_path / "other", expected)


def write_variable(path, array):
    """An array as a variable of Paddle's static graph."""

    def number(value):
        groups = []
        while value > 127:
            groups.append(value & 127 | 128)
            value >>= 7
        return bytes([*groups, value])

    kind = {"int64": 3, "float16": 4, "float32": 5, "float64": 6}[array.dtype.name]
    message = b"\x08" + number(kind) + b"".join(b"\x10" + number(size) for size in array.shape)
    path.write_bytes(bytes(16) + len(message).to_bytes(4, "little") + message + array.tobytes())


# ERNIE's own names in its training program
STATIC = {
    "embeddings.word_embeddings.weight": "word_embedding",
    "embeddings.position_embeddings.weight": "pos_embedding",
    "embeddings.layer_norm": "pre_encoder_layer_norm",
    "pooler.dense": "pooled_fc",
    "self_attn.self_attn.q_proj": "multi_head_att_query_fc",
    "self_attn.self_attn.k_proj": "multi_head_att_key_fc",
    "self_attn.self_attn.v_proj": "multi_head_att_value_fc",
    "self_attn.out_proj": "multi_head_att_output_fc",
    "linear1": "ffn_fc_0",
    "linear2": "ffn_fc_1",
    "norm1": "post_att_layer_norm",
    "norm2": "post_ffn_layer_norm",
}
STATIC_HEADS = {"sequence": "cls_out", "token": "cls_seq_label_out", "question_answering": "cls_mrc_out"}


@torch.no_grad()
@pytest.mark.parametrize("cls", CLASSES)
def test_static_graph(cls, converted, ernie_m_oracle, tmp_path):
    source, head = ernie_m_oracle.save_tokenizer(tmp_path / "variables"), CLASSES[cls]
    for key, array in arrays_of(ernie_m_oracle.weights(cls)).items():
        module, _, kind = key.removeprefix("ernie_m.").rpartition(".")
        module = module.replace("encoder.layers.", "encoder_layer_")
        for theirs, static in STATIC.items():
            module = module.replace(f".{theirs}", f"_{static}") if module.startswith("encoder_layer") else module
        if f"{module}.{kind}" in STATIC:
            name = STATIC[f"{module}.{kind}"]
        elif module in ("classifier", "qa_outputs"):
            name = f"{STATIC_HEADS[head]}_{kind[0]}"
        elif "norm" in module:
            name = f"{STATIC.get(module, module)}_{'scale' if kind == 'weight' else 'bias'}"
        else:
            name = f"{STATIC.get(module, module)}.{kind[0]}_0"
        write_variable(source / name, array)
    write_variable(source / "word_embedding_moment1_0", np.zeros((3, 2), np.float32))  # of the optimizer
    settings = {name: value for name, value in ernie_m_oracle.config(cls).items() if name != "architectures"}
    (source / "ernie_config.json").write_text(json.dumps(settings))
    main(["ernie_m", str(source), str(tmp_path / "new"), "--tokenizer_type", "ernie_m", "--head", head])
    assert same(tmp_path / "new", load(cls, converted[cls][1]))


def test_tokenizer_of_xlm_r(ernie_m_oracle, sample_tokenizer_dir, sample_tokenizer, tmp_path):
    """The zoo's default for everything that brings no tokenizer of transformers 4."""
    source = str(tmp_path / "all.pdparams")
    weights = ernie_m_oracle.weights("ErnieMModel")
    weights["embeddings.word_embeddings.weight"] = torch.zeros(len(sample_tokenizer), 32)
    weights = {key.replace("self_attn.self_attn", "self_attn"): tensor for key, tensor in weights.items()}
    Path(source).write_bytes(pickle.dumps(arrays_of(weights)))
    options = {"tokenizer": str(sample_tokenizer_dir), "num_attention_heads": 4}
    convert_ernie_m(source, str(tmp_path / "new"), **options)
    loaded = XLMRobertaTokenizer.from_pretrained(tmp_path / "new")
    assert loaded("Hi")["input_ids"] == sample_tokenizer("Hi")["input_ids"]
    # a vocab.txt tells which tokens the rows are
    lines = sample_tokenizer.convert_ids_to_tokens(range(len(sample_tokenizer)))
    lines[:4], lines[-1] = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"], "[MASK]"
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    convert_ernie_m(source, str(tmp_path / "checked"), **options)
    (tmp_path / "vocab.txt").write_text("\n".join([*lines[:7], "other", *lines[8:]]) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="row 7 is 'other'"):
        convert_ernie_m(source, str(tmp_path / "another"), **options)


# Paddle's files


WEIGHTS = {"linear.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "linear.bias": np.ones(3, np.float16)}


def read_as(path, arrays):
    state, _ = read_state(path)
    assert state.keys() == arrays.keys()
    return all(torch.equal(state[name], torch.from_numpy(array)) for name, array in arrays.items())


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_state_dicts(protocol, tmp_path):
    path = tmp_path / "a.pdparams"
    path.write_bytes(
        pickle.dumps(WEIGHTS | {"StructuredToParameterName@@": {"linear.weight": "linear_0.w_0"}}, protocol)
    )
    assert read_as(path, WEIGHTS)
    # newer versions write (name, array)
    named = collections.OrderedDict((name, (f"{name}_0", array)) for name, array in WEIGHTS.items())
    path.write_bytes(pickle.dumps(named, protocol))
    assert read_as(path, WEIGHTS)


class Harmful:
    """A pickle of this calls os.mkdir when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_objects_are_refused_before_they_are_made(protocol, tmp_path):
    content = {"w": WEIGHTS["linear.bias"], "x": Harmful(str(tmp_path / "made"))}
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(ValueError, match="(posix|nt|os).mkdir"):
        read_state(tmp_path / "a.pdparams")
    assert not (tmp_path / "made").exists()


# what does not fit is refused, and nothing is written


LAYER = "bert.encoder.layer.1"
UNFIT = [  # weights of VECO in addition, None where one is missing: what is named
    ({f"{LAYER}.attention.self.key.bias": None}, "layer.1.attention.self.key.bias"),
    ({f"{LAYER}.cross_attention.output.LayerNorm.gamma": torch.ones(9)}, "layer.1.crossattention.output.LayerNorm"),
    ({f"{LAYER}.output.LayerNorm.weight": torch.zeros(16)}, "layer.1.output.LayerNorm.weight .*gamma"),
    ({f"{LAYER}.output.dense.bias": torch.full((16,), torch.nan)}, "layer.1.output.dense.bias"),
    ({"cls.bias": torch.zeros(3)}, "cls.bias"),
    ({"bert.embeddings.word_embeddings.weight": torch.ones(1999, 16)}, "1,999"),
    ({"decoder.embed_positions.weight": torch.zeros(40, 16)}, "decoder.embed_positions.weight"),
]


@pytest.mark.parametrize(("change", "named"), UNFIT)
def test_weights_that_do_not_fit(originals, options, change, named, tmp_path):
    whole = originals.fairseq_state() if "decoder.embed_positions.weight" in change else originals.native_state()
    state = {key: tensor for key, tensor in (whole | change).items() if tensor is not None}
    with pytest.raises(ValueError, match=named):
        convert_veco(originals.saved(tmp_path, state), str(tmp_path / "veco"), **options)
    assert not (tmp_path / "veco").exists()


FILES = {  # a file's content: what is named
    "objects.pt": ({"model": {"w": torch.ones(2)}, "trainer": Fraction(1, 2)}, "fractions.Fraction"),
    "list.pt": ([torch.ones(2)], "list.pt"),
    "text.pt": (b"hello", "text.pt"),
    "cut_off.pdparams": (pickle.dumps(WEIGHTS)[:-20], "cut_off.pdparams"),
    "mixed.pdparams": (pickle.dumps({"w": np.ones(2), "step": 3}), "mixed.pdparams"),
    # not even by a longer name of what is allowed
    "tofile.pdparams": (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "numpy.ndarray.tofile"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_checkpoints(name, tmp_path):
    (content, named), path = FILES[name], tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=named):
        read_state(path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_attention_heads": None}, "--num_attention_heads"),
        ({"ignore_keys": ["pooler"]}, "--ignore_keys 'pooler'"),
        ({"output": "full"}, "full"),
    ],
)
def test_options_that_do_not_fit(originals, options, change, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full", "file").write_text("mine")
    path = originals.saved(tmp_path, originals.native_state())
    with pytest.raises(ValueError, match=named):
        convert_veco(**{"source": path, "output": "new", **options, **change})
    assert Path("full", "file").read_text() == "mine" and not Path("new").exists()


def test_a_tokenizer_of_other_special_tokens_is_refused(originals, options, sample_tokenizer, tmp_path):
    sample_tokenizer.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["vocab"].append(["more", -20.0])
    file.write_text(json.dumps(description))
    path = originals.saved(tmp_path, originals.native_state(rows=originals.TOKENS + 1))
    with pytest.raises(ValueError, match="'<mask>': 1999"):
        convert_veco(path, str(tmp_path / "veco"), **(options | {"tokenizer": str(tmp_path / "tokenizer")}))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["ErnieMForPoetry"]}, "ErnieMForPoetry"),
        ({"pad_token_id": 3}, "padding id 3"),
        ({"num_hidden_layers": 3}, "encoder.layer.2"),
        ({"num_hidden_layers": 1}, "encoder.layer.1"),
    ],
)
def test_configurations_that_cannot_be_kept(config, named, ernie_m_oracle, tmp_path):
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old", **config)
    with pytest.raises(ValueError, match=named):
        convert_ernie_m(str(old), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_the_command_writes_folders_that_every_auto_class_loads(originals, sample_tokenizer_dir, tmp_path):
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
