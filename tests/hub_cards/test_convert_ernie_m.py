"""Original checkpoints of ERNIE-M, and the models made of them, compute the same."""

import collections
import json
import os
import pickle
from fractions import Fraction

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
    """Class -> the folder that was converted from one of transformers 4."""
    folders = {}
    for cls in CLASSES:
        source = ernie_m_oracle.save(cls, tmp_path_factory.mktemp("saved") / cls)
        folders[cls] = tmp_path_factory.mktemp("converted") / cls
        convert_ernie_m(str(source), str(folders[cls]))
    return folders


def load(cls, folder):
    model, report = ERNIE_M_HEADS[CLASSES[cls]].from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return model.eval()


def assert_same_weights(cls, folder, expected_folder):
    weights = load(cls, folder).state_dict()
    torch.testing.assert_close(weights, load(cls, expected_folder).state_dict(), atol=0, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("case", ["right", "right, no mask", "right, positions", "left", "left, positions"])
@pytest.mark.parametrize("cls", CLASSES)
def test_convert_ernie_m_outputs_are_those_of_transformers_4(cls, case, converted, ernie_m_oracle):
    """At every token, and of texts. Padding on the left moves the positions of transformers 4, so these are given; its
    pooler reads the padding there."""
    inputs = ernie_m_oracle.inputs(case)
    is_token = inputs["input_ids"].ne(1)
    is_left = case.startswith("left")
    if is_left or "position_ids" in inputs:
        inputs["position_ids"] = 2 + inputs.get("position_ids", torch.arange(is_token.shape[1])[None])
    outputs = load(cls, converted[cls])(**inputs, output_hidden_states=cls == "ErnieMModel")
    for name, theirs in ernie_m_oracle.outputs(cls, case).items():
        ours = outputs[name]
        if name == "hidden_states":
            ours = torch.stack(ours)[:, is_token]
            theirs = theirs[:, is_token]
        elif ours.shape[:2] == is_token.shape:
            ours = ours[is_token]
            theirs = theirs[is_token]
        elif is_left:
            continue
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_convert_ernie_m_configuration(converted, ernie_m_oracle):
    cls = "ErnieMForTokenClassification"
    config = load(cls, converted[cls]).config
    expected = ernie_m_oracle.config(cls)
    for name in ("layer_norm_eps", "max_position_embeddings", "hidden_act", "classifier_dropout", "vocab_size"):
        assert getattr(config, name) == expected[name]
    assert config.num_labels == 3
    assert config.id2label == {0: "O", 1: "B-PER", 2: "I-PER"}
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 2, 1)
    assert longest_input(config) == expected["max_position_embeddings"] - 2


def test_convert_ernie_m_assumes_what_no_configuration_says(ernie_m_oracle, tmp_path):
    source = ernie_m_oracle.save("ErnieMModel", tmp_path / "old")
    (source / "config.json").unlink()
    convert_ernie_m(str(source), str(tmp_path / "new"), num_attention_heads=8)
    config = ErnieMModel.from_pretrained(tmp_path / "new").config
    assert config.num_attention_heads == 8
    assert config.hidden_act == "gelu"
    assert config.layer_norm_eps == 1e-5


def arrays_of(weights):
    """Weights as Paddle's arrays: (in, out)."""
    arrays = {}
    for key, tensor in weights.items():
        is_matrix = tensor.dim() == 2 and "embedding" not in key
        arrays[key] = (tensor.T if is_matrix else tensor).numpy()
    return arrays


def settings_of(oracle, cls):
    return {name: value for name, value in oracle.config(cls).items() if name != "architectures"}


def paddlenlp_arrays(oracle, cls):
    """What PaddleNLP saves of this class."""
    weights = {}
    for key, tensor in oracle.weights(cls).items():
        key = key.replace("qa_outputs", "classifier").replace("self_attn.self_attn", "self_attn")
        weights[key] = tensor
    if CLASSES[cls] != "base":  # there, every head has a pooler below it, and the span head is a classifier too
        for key, tensor in oracle.under("weights/ErnieMModel/pooler.").items():
            weights[f"ernie_m.pooler.{key}"] = tensor.float()
    return arrays_of(weights) | {"ernie_m.embeddings.position_ids": np.arange(24)[None]}


@torch.no_grad()
@pytest.mark.parametrize("cls", CLASSES)
def test_convert_ernie_m_paddlenlp(cls, converted, ernie_m_oracle, tmp_path):
    source = ernie_m_oracle.save_tokenizer(tmp_path / "paddle")
    names = {"StructuredToParameterName@@": {"linear.weight": "linear_0.w_0"}}
    content = paddlenlp_arrays(ernie_m_oracle, cls) | names
    (source / "model_state.pdparams").write_bytes(pickle.dumps(content, protocol=2))
    settings = settings_of(ernie_m_oracle, cls) | {"init_class": "ErnieMModel"}
    if CLASSES[cls] != "base":
        settings = {"init_args": [settings], "init_class": cls}
    (source / "model_config.json").write_text(json.dumps(settings))
    convert_ernie_m(str(source), str(tmp_path / "new"), tokenizer_type="ernie_m")
    assert_same_weights(cls, tmp_path / "new", converted[cls])


@torch.no_grad()
@pytest.mark.parametrize("cls", [cls for cls, head in CLASSES.items() if head != "base"])
def test_convert_ernie_m_paddlenlp_of_newer_versions_without_a_configuration(cls, converted, ernie_m_oracle, tmp_path):
    source = ernie_m_oracle.save_tokenizer(tmp_path / "paddle")
    arrays = paddlenlp_arrays(ernie_m_oracle, cls)
    content = collections.OrderedDict((name, (f"{name}_0", array)) for name, array in arrays.items())
    file = source / "model_state.pdparams"
    file.write_bytes(pickle.dumps(content))
    options = {"tokenizer": str(source), "tokenizer_type": "ernie_m", "num_attention_heads": 4}
    convert_ernie_m(str(file), str(tmp_path / "new"), head=CLASSES[cls], **options)
    assert_same_weights(cls, tmp_path / "new", converted[cls])


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


def static_name(key, head):
    """The name of a weight in a static graph."""
    module, _, kind = key.removeprefix("ernie_m.").rpartition(".")
    if f"{module}.{kind}" in STATIC:
        return STATIC[f"{module}.{kind}"]
    if module in ("classifier", "qa_outputs"):
        return f"{STATIC_HEADS[head]}_{kind[0]}"
    module = module.replace("encoder.layers.", "encoder_layer_")
    if module.startswith("encoder_layer"):
        layer, _, submodule = module.partition(".")
        module = f"{layer}_{STATIC[submodule]}"
    else:
        module = STATIC.get(module, module)
    if "norm" in module:
        return f"{module}_scale" if kind == "weight" else f"{module}_bias"
    return f"{module}.{kind[0]}_0"


@torch.no_grad()
@pytest.mark.parametrize("cls", CLASSES)
def test_convert_ernie_m_static_graph(cls, converted, ernie_m_oracle, tmp_path):
    source = ernie_m_oracle.save_tokenizer(tmp_path / "variables")
    head = CLASSES[cls]
    for key, array in arrays_of(ernie_m_oracle.weights(cls)).items():
        write_variable(source / static_name(key, head), array)
    write_variable(source / "word_embedding_moment1_0", np.zeros((3, 2), np.float32))  # of the optimizer
    (source / "ernie_config.json").write_text(json.dumps(settings_of(ernie_m_oracle, cls)))
    main(["ernie_m", str(source), str(tmp_path / "new"), "--tokenizer_type", "ernie_m", "--head", head])
    assert_same_weights(cls, tmp_path / "new", converted[cls])


def test_convert_ernie_m_tokenizer_of_xlm_r(ernie_m_oracle, sample_tokenizer, sample_tokenizer_dir, tmp_path):
    """The zoo's default for Paddle's weights that bring no tokenizer. A vocab.txt tells which tokens the rows are."""
    weights = {}
    for key, tensor in ernie_m_oracle.weights("ErnieMModel").items():
        weights[key.replace("self_attn.self_attn", "self_attn")] = tensor
    weights["embeddings.word_embeddings.weight"] = torch.zeros(len(sample_tokenizer), 32)
    file = tmp_path / "all.pdparams"
    file.write_bytes(pickle.dumps(arrays_of(weights)))
    options = {"tokenizer": str(sample_tokenizer_dir), "num_attention_heads": 4}
    lines = sample_tokenizer.convert_ids_to_tokens(range(len(sample_tokenizer)))
    lines[:4] = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
    lines[-1] = "[MASK]"
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    convert_ernie_m(str(file), str(tmp_path / "checked"), **options)
    loaded = XLMRobertaTokenizer.from_pretrained(tmp_path / "checked")
    assert loaded("Hi")["input_ids"] == sample_tokenizer("Hi")["input_ids"]
    lines[7] = "other"
    vocabulary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="row 7 is 'other'"):
        convert_ernie_m(str(file), str(tmp_path / "another"), **options)


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
    content, named = FILES[name]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
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
