"""ERNIE-M's checkpoints: what transformers 4 computed, computed here, from every layout."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, XLMRobertaTokenizer

from modeling.convert_common import names_of
from modeling.convert_ernie_m import HEADS, main, make_table, to_zoo
from modeling.modeling_ernie_m import ErnieMForSequenceClassification, ErnieMModel

CLASSES = {cls.__name__: head for head, cls in HEADS.items()}


@pytest.fixture(scope="module")
def converted(ernie_m_oracle, tmp_path_factory):
    """class -> (the folder of transformers 4, ours), converted once."""
    folders = {}
    for cls in CLASSES:
        old = ernie_m_oracle.save(cls, tmp_path_factory.mktemp("saved") / cls)
        new = tmp_path_factory.mktemp("converted") / cls
        to_zoo(str(old), str(new))
        folders[cls] = old, new
    return folders


def load(cls, folder):
    model, report = HEADS[CLASSES[cls]].from_pretrained(folder, output_loading_info=True)
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


@torch.no_grad()
def test_padding_on_the_left_changes_nothing_here(converted, ernie_m_oracle):
    right, left = (ernie_m_oracle.inputs(case) for case in ("right", "left"))
    model = load("ErnieMForSequenceClassification", converted["ErnieMForSequenceClassification"][1])
    torch.testing.assert_close(model(**right).logits, model(**left).logits, atol=1e-5, rtol=0)
    states_right, states_left = (model.roberta(**inputs).last_hidden_state for inputs in (right, left))
    for row, mask in enumerate(right["attention_mask"]):
        length = int(mask.sum())
        torch.testing.assert_close(states_right[row, :length], states_left[row, -length:], atol=1e-5, rtol=0)


def test_configuration(converted, ernie_m_oracle, tmp_path):
    config = load("ErnieMForTokenClassification", converted["ErnieMForTokenClassification"][1]).config
    expected = ernie_m_oracle.config("ErnieMForTokenClassification")
    for name in ("layer_norm_eps", "max_position_embeddings", "hidden_act", "classifier_dropout", "vocab_size"):
        assert getattr(config, name) == expected[name]
    assert config.id2label == {0: "O", 1: "B-PER", 2: "I-PER"} and config.num_labels == 3
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 2, 1)
    assert config.longest_input == expected["max_position_embeddings"] - 2
    # what the configuration does not say is assumed, and said
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old")
    to_zoo(str(old), str(tmp_path / "a"), num_attention_heads=8)
    assert ErnieMModel.from_pretrained(tmp_path / "a").config.num_attention_heads == 8
    (old / "config.json").unlink()
    with pytest.raises(ValueError, match="--num_attention_heads"):
        to_zoo(str(old), str(tmp_path / "b"))
    notes = to_zoo(str(old), str(tmp_path / "b"), num_attention_heads=4)
    assert "assumed: hidden_act gelu, layer_norm_eps 1e-05" in notes


@pytest.mark.slow
@pytest.mark.parametrize("cls", ["ErnieMModel", "ErnieMForSequenceClassification"])
def test_one_command_and_the_auto_classes_load_it(cls, ernie_m_oracle, tmp_path, capsys):
    folder = tmp_path / "new"
    main([str(ernie_m_oracle.save(cls, tmp_path / "old")), str(folder)])
    assert capsys.readouterr().out.splitlines()[0].startswith(f"{cls} of ")
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer(["in der", "Hi"], ["a", "b"], padding=True, return_tensors="pt")
    fresh_head = [] if CLASSES[cls] == "sequence" else ["classifier.bias", "classifier.weight"]
    for auto_class, fresh in ((AutoModel, []), (AutoModelForSequenceClassification, fresh_head)):
        model, report = auto_class.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
        assert sorted(report["missing_keys"]) == fresh and model.eval()(**batch)[0].isfinite().all()


# the other layouts


def arrays_of(weights):
    """Weights as Paddle's arrays: (in, out)."""
    return {
        key: (tensor.T if tensor.dim() == 2 and "embedding" not in key else tensor).numpy()
        for key, tensor in weights.items()
    }


@torch.no_grad()
@pytest.mark.parametrize("cls", CLASSES)
def test_paddlenlp(cls, converted, ernie_m_oracle, pickled, tmp_path):
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
    pickled(arrays | {"ernie_m.embeddings.position_ids": np.arange(24)[None]}, source / "model_state.pdparams")
    base = {name: value for name, value in ernie_m_oracle.config(cls).items() if name != "architectures"}
    base |= {"init_class": "ErnieMModel"}
    settings = base if CLASSES[cls] == "base" else {"init_args": [base], "init_class": cls}
    (source / "model_config.json").write_text(json.dumps(settings))
    notes = to_zoo(str(source), str(tmp_path / "new"), tokenizer_type="ernie_m")
    assert "layout: PaddleNLP" in notes
    assert same(tmp_path / "new", expected)
    if CLASSES[cls] == "base":
        return
    (source / "model_config.json").unlink()
    options = {"tokenizer": str(source), "tokenizer_type": "ernie_m", "num_attention_heads": 4}
    with pytest.raises(ValueError, match="--head"):
        to_zoo(str(source), str(tmp_path / "other"), **options)
    to_zoo(str(source / "model_state.pdparams"), str(tmp_path / "other"), head=CLASSES[cls], **options)
    assert same(tmp_path / "other", expected)


def test_tokenizer_of_xlm_r(converted, sample_tokenizer_dir, sample_tokenizer, pickled, tmp_path):
    """The zoo's default for everything that brings no tokenizer of transformers 4."""
    config = load("ErnieMModel", converted["ErnieMModel"][1]).config
    config.vocab_size = len(sample_tokenizer)
    source = str(tmp_path / "all.pdparams")
    table = make_table("PaddleNLP", "")
    weights = {
        name: tensor for key, tensor in ErnieMModel(config).state_dict().items() for name in names_of(key, table)
    }
    pickled(arrays_of(weights), tmp_path / "all.pdparams")
    options = {"tokenizer": str(sample_tokenizer_dir), "num_attention_heads": 4}
    to_zoo(source, str(tmp_path / "new"), **options)
    loaded = XLMRobertaTokenizer.from_pretrained(tmp_path / "new")
    assert loaded("Hi")["input_ids"] == sample_tokenizer("Hi")["input_ids"]
    # a vocab.txt tells which tokens the rows are
    lines = sample_tokenizer.convert_ids_to_tokens(range(len(sample_tokenizer)))
    lines[:4], lines[-1] = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"], "[MASK]"
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    to_zoo(source, str(tmp_path / "checked"), **options)
    (tmp_path / "vocab.txt").write_text("\n".join([*lines[:7], "other", *lines[8:]]) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="row 7 is 'other'"):
        to_zoo(source, str(tmp_path / "another"), **options)
    with pytest.raises(ValueError, match="FacebookAI/xlm-roberta-base"):
        to_zoo(source, str(tmp_path / "other"), num_attention_heads=4)


def test_the_head_needs_the_pooler(converted):
    config = load("ErnieMModel", converted["ErnieMModel"][1]).config
    with pytest.raises(ValueError, match="add_pooling_layer"):
        ErnieMForSequenceClassification(type(config)(**{**config.to_dict(), "add_pooling_layer": False}))


# what does not fit is refused, and nothing is written


def test_keys_that_do_not_fit_are_all_named(ernie_m_oracle, tmp_path):
    weights = ernie_m_oracle.weights("ErnieMForSequenceClassification") | {"lm_head.bias": torch.zeros(3)}
    old = ernie_m_oracle.save("ErnieMForSequenceClassification", tmp_path / "ignored", weights)
    to_zoo(str(old), str(tmp_path / "fits"), ignore_keys=[r"lm_head\..*"])
    del weights["ernie_m.encoder.layers.1.norm2.bias"]
    weights["ernie_m.encoder.layers.0.linear1.weight"] = torch.zeros(32, 48)
    weights["ernie_m.pooler.dense.bias"][0] = -torch.inf
    old = ernie_m_oracle.save("ErnieMForSequenceClassification", tmp_path / "old", weights)
    with pytest.raises(ValueError) as error:
        to_zoo(str(old), str(tmp_path / "new"))
    for problem in (
        "missing: ernie_m.encoder.layers.1.norm2.bias (32,)",
        "left over: lm_head.bias",
        "of another shape: ernie_m.encoder.layers.0.linear1.weight (32, 48), not (48, 32)",
        "no finite numbers: ernie_m.pooler.dense.bias",
    ):
        assert problem in str(error.value)
    assert len(str(error.value).splitlines()) == 5
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["ErnieMForPoetry"]}, "ErnieMForPoetry"),
        ({"hidden_act": "swirl"}, "swirl"),
        ({"num_attention_heads": 5}, "num_attention_heads 5"),
        ({"pad_token_id": 3}, "padding id 3"),
        ({"num_hidden_layers": 3}, r"missing: encoder.layers.2.self_attn"),
        ({"num_hidden_layers": 1}, r"left over: encoder.layers.1.self_attn"),
    ],
)
def test_configurations_that_cannot_be_kept(config, named, ernie_m_oracle, tmp_path):
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old", **config)
    with pytest.raises(ValueError, match=named):
        to_zoo(str(old), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_sources_that_are_none(converted, ernie_m_oracle, tmp_path):
    old, empty = ernie_m_oracle.save("ErnieMModel", tmp_path / "old"), tmp_path / "empty"
    empty.mkdir()
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.bin")

    def refused(source, named, output="new", **options):
        with pytest.raises(ValueError, match=named):
            to_zoo(str(source), str(tmp_path / output), **options)

    refused(tmp_path / "nowhere", "nowhere")
    refused(empty, "model.safetensors")
    refused(old, "old", output="old")
    refused(converted["ErnieMModel"][1], "no conversion")
    refused(tmp_path / "other.bin", "weight")
    refused(old, "sentencepiece.bpe.model", tokenizer=str(empty), tokenizer_type="ernie_m")
    vocabulary = (old / "vocab.txt").read_text(encoding="utf-8")
    (old / "vocab.txt").write_text(vocabulary + "more\n", encoding="utf-8")
    refused(old, "589 tokens")
    (old / "config.json").write_text("{")
    refused(old, "config.json")
