"""Original checkpoints of ERNIE-M, and the models made of them, compute the same."""

import collections
import json
import os
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import XLMRobertaTokenizer

from crosslingual_zoo.hub_cards.convert import ERNIE_M_HEADS, convert_ernie_m, main, read_state
from crosslingual_zoo.modeling.configuration_encoder import longest_input
from crosslingual_zoo.modeling.modeling_ernie_m import ErnieMModel

CLASSES = {cls.__name__: head for head, cls in ERNIE_M_HEADS.items()}


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


@torch.no_grad()
@pytest.mark.parametrize("case", ["right", "right, no mask", "right, positions", "left", "left, positions"])
@pytest.mark.parametrize("cls", CLASSES)
def test_convert_ernie_m_outputs_are_those_of_transformers_4(cls, case, converted, ernie_m_oracle):
    """At every token, and of texts. Padding on the left moves the positions of transformers 4, so these are given; its
    pooler reads the padding there."""
    inputs, expected = ernie_m_oracle.inputs(case), ernie_m_oracle.outputs(cls, case)
    tokens, is_left = inputs["input_ids"].ne(1), case.startswith("left")
    if is_left or "position_ids" in inputs:
        inputs["position_ids"] = 2 + inputs.get("position_ids", torch.arange(tokens.shape[1])[None])
    ours = load(cls, converted[cls][1])(**inputs, output_hidden_states=cls == "ErnieMModel")
    for name, theirs in expected.items():
        found = torch.stack(ours[name]) if name == "hidden_states" else ours[name]
        if name == "hidden_states":
            found, theirs = found[:, tokens], theirs[:, tokens]
        elif found.shape[:2] == tokens.shape:
            found, theirs = found[tokens], theirs[tokens]
        elif is_left:
            continue
        torch.testing.assert_close(found, theirs, atol=1e-5, rtol=0)


def test_convert_ernie_m_configuration(converted, ernie_m_oracle, tmp_path):
    config = load("ErnieMForTokenClassification", converted["ErnieMForTokenClassification"][1]).config
    expected = ernie_m_oracle.config("ErnieMForTokenClassification")
    for name in ("layer_norm_eps", "max_position_embeddings", "hidden_act", "classifier_dropout", "vocab_size"):
        assert getattr(config, name) == expected[name]
    assert config.id2label == {0: "O", 1: "B-PER", 2: "I-PER"} and config.num_labels == 3
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 2, 1)
    assert longest_input(config) == expected["max_position_embeddings"] - 2
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
def test_convert_ernie_m_paddlenlp(cls, converted, ernie_m_oracle, tmp_path):
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
    names = {"StructuredToParameterName@@": {"linear.weight": "linear_0.w_0"}}
    (source / "model_state.pdparams").write_bytes(pickle.dumps(arrays | names, protocol=2))
    base = {name: value for name, value in ernie_m_oracle.config(cls).items() if name != "architectures"}
    base |= {"init_class": "ErnieMModel"}
    settings = base if CLASSES[cls] == "base" else {"init_args": [base], "init_class": cls}
    (source / "model_config.json").write_text(json.dumps(settings))
    convert_ernie_m(str(source), str(tmp_path / "new"), tokenizer_type="ernie_m")
    assert same(tmp_path / "new", expected)
    if CLASSES[cls] != "base":
        (source / "model_config.json").unlink()
        options = {"tokenizer": str(source), "tokenizer_type": "ernie_m", "num_attention_heads": 4}
        file = source / "model_state.pdparams"
        named = collections.OrderedDict((name, (f"{name}_0", array)) for name, array in arrays.items())
        file.write_bytes(pickle.dumps(named))  # of newer versions
        convert_ernie_m(str(file), str(tmp_path / "other"), head=CLASSES[cls], **options)
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
def test_convert_ernie_m_static_graph(cls, converted, ernie_m_oracle, tmp_path):
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


def test_convert_ernie_m_tokenizer_of_xlm_r(ernie_m_oracle, sample_tokenizer_dir, sample_tokenizer, tmp_path):
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


WEIGHTS = {"linear.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "linear.bias": np.ones(3, np.float16)}


class Harmful:
    """A pickle of this calls os.mkdir when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_read_state_refuses_objects_before_they_are_made(protocol, tmp_path):
    content = {"w": WEIGHTS["linear.bias"], "x": Harmful(str(tmp_path / "made"))}
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(ValueError, match="(posix|nt|os).mkdir"):
        read_state(tmp_path / "a.pdparams")
    assert not (tmp_path / "made").exists()


FILES = {  # a file's content: what is named
    "objects.pt": ({"model": {"w": torch.ones(2)}, "trainer": Fraction(1, 2)}, "fractions.Fraction"),
    "text.pt": (b"hello", "text.pt"),
    "cut_off.pdparams": (pickle.dumps(WEIGHTS)[:-20], "cut_off.pdparams"),
    "mixed.pdparams": (pickle.dumps({"w": np.ones(2), "step": 3}), "mixed.pdparams"),
    # not even by a longer name of what is allowed
    "tofile.pdparams": (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "numpy.ndarray.tofile"),
}


@pytest.mark.parametrize("name", FILES)
def test_read_state_refuses_files_that_are_no_checkpoints(name, tmp_path):
    (content, named), path = FILES[name], tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=named):
        read_state(path)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["ErnieMForPoetry"]}, "ErnieMForPoetry"),
        ({"pad_token_id": 3}, "padding id 3"),
        ({"num_hidden_layers": 1}, "encoder.layer.1"),
    ],
)
def test_convert_ernie_m_refuses_configurations_that_cannot_be_kept(config, named, ernie_m_oracle, tmp_path):
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old", **config)
    with pytest.raises(ValueError, match=named):
        convert_ernie_m(str(old), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
