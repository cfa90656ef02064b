"""ERNIE-M's checkpoints: what transformers 4 computed, computed here, and every layout there and back."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from transformers import XLMRobertaTokenizer

from modeling.convert_ernie_m import main
from modeling.convert_ernie_m_checkpoints import TRANSFORMERS4_FIELDS, to_transformers4, to_zoo
from modeling.convert_ernie_m_layouts import HEADS, static_names
from modeling.modeling_ernie_m import ErnieMForPreTraining, ErnieMForSequenceClassification, ErnieMModel

CLASSES = [
    "ErnieMModel",
    "ErnieMForSequenceClassification",
    "ErnieMForTokenClassification",
    "ErnieMForQuestionAnswering",
]
OURS = {cls.__name__: cls for cls in HEADS.values()}


@pytest.fixture(scope="module")
def converted(ernie_m_oracle, tmp_path_factory):
    """class -> (the folder of transformers 4, ours, the notes), converted once."""
    folders = {}
    for cls in CLASSES:
        old = ernie_m_oracle.save(cls, tmp_path_factory.mktemp("saved") / cls)
        new = tmp_path_factory.mktemp("converted") / cls
        folders[cls] = old, new, to_zoo(str(old), str(new))
    return folders


def load(cls, folder):
    model, report = OURS[cls].from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    return model.eval()


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
    have other positions. Padding on the left moves the positions of transformers 4, and has to be told; its pooler
    reads the padding there."""
    inputs, expected = ernie_m_oracle.inputs(case), ernie_m_oracle.outputs(cls, case)
    tokens = inputs["input_ids"].ne(1)
    model = load(cls, converted[cls][1])
    hidden = {"output_hidden_states": cls == "ErnieMModel"}
    if "position_ids" in inputs:
        inputs["position_ids"] = inputs["position_ids"] + 2
        tokens = None
    if case == "left":
        length = inputs["input_ids"].shape[1]
        ours = model(**inputs)
        name = "last_hidden_state" if cls == "ErnieMModel" else next(iter(expected))
        assert difference(ours[name], expected[name], None if ours[name].dim() == 2 else tokens) > 1e-3
        inputs["position_ids"] = torch.arange(length)[None] + 2
        tokens = None
    ours = model(**inputs, **hidden)
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
    model = model.roberta
    states_right, states_left = (model(**inputs).last_hidden_state for inputs in (right, left))
    for row, mask in enumerate(right["attention_mask"]):
        length = int(mask.sum())
        torch.testing.assert_close(states_right[row, :length], states_left[row, -length:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("cls", CLASSES)
def test_there_and_back_is_bit_equal(cls, converted, tmp_path):
    old, new, notes = converted[cls]
    assert notes[1:-1] == [
        f"weights: {old / 'model.safetensors'}",
        f"configuration: {old / 'config.json'}",
        "layout: transformers 4's layout",
        f"head: {cls}, the configuration names {cls}",
    ]
    assert "tokenizer_type ernie_m, the folder brings it" in notes[-1]
    to_transformers4(str(new), str(tmp_path / "back"))
    before, after = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (old, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert [key for key in before if not torch.equal(before[key], after[key])] == []
    with safetensors.safe_open(tmp_path / "back" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}  # transformers 4 loads no other
    config, back = (json.loads((folder / "config.json").read_text()) for folder in (old, tmp_path / "back"))
    for name in ("transformers_version", "dtype", "torch_dtype"):
        config.pop(name, None), back.pop(name, None)
    assert back == config
    for name in ("vocab.txt", "sentencepiece.bpe.model"):
        assert (tmp_path / "back" / name).read_bytes() == (old / name).read_bytes()
    settings = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "ErnieMTokenizer" and "auto_map" not in settings


def test_configuration(converted, ernie_m_oracle):
    config = load("ErnieMForTokenClassification", converted["ErnieMForTokenClassification"][1]).config
    expected = ernie_m_oracle.config("ErnieMForTokenClassification")
    for name in ("layer_norm_eps", "max_position_embeddings", "hidden_act", "classifier_dropout", "vocab_size"):
        assert getattr(config, name) == expected[name]
    assert config.id2label == {0: "O", 1: "B-PER", 2: "I-PER"} and config.num_labels == 3
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 2, 1)
    assert config.longest_input == expected["max_position_embeddings"] - 2


LOAD = """
import json, sys
import torch, transformers
folder = sys.argv[1]
auto = json.loads(sys.argv[2])
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
batch = tokenizer(["in der", "Hi"], ["a", "b"], padding=True, return_tensors="pt")
found = {"ids": batch["input_ids"].tolist(), "tokenizer": type(tokenizer).__name__}
for name in auto:
    auto_class = getattr(transformers, name)
    model, report = auto_class.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    assert "transformers_modules" in type(model).__module__
    with torch.no_grad():
        model.eval()(**batch)
    found[name] = [type(model).__name__, sorted(report["missing_keys"])]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("cls", ["ErnieMModel", "ErnieMForSequenceClassification"])
def test_one_command_and_the_auto_classes_load_it(cls, ernie_m_oracle, tmp_path, capsys):
    main([str(ernie_m_oracle.save(cls, tmp_path / "old")), str(tmp_path / "new")])
    assert capsys.readouterr().out.splitlines()[0].startswith(f"{cls} of ")
    (tmp_path / "elsewhere").mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "PYTHONPATH"))}
    environment |= {"HF_HOME": str(tmp_path / "hf_home"), "HF_HUB_OFFLINE": "1"}
    auto = ["AutoModel", "AutoModelForSequenceClassification"]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "new"), json.dumps(auto)],
        cwd=tmp_path / "elsewhere",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tokenizer"] == "ErnieMTokenizer" and found["ids"][0][0] == 0
    assert found["AutoModel"] == ["ErnieMModel", []]
    missing = [] if cls == auto[1].replace("Auto", "ErnieM").replace("ModelFor", "For") else ["bias", "weight"]
    assert found[auto[1]] == ["ErnieMForSequenceClassification", [f"classifier.{kind}" for kind in missing]]


# the other layouts


def paddle(weights):
    """transformers 4's state dict in PaddleNLP's layout, as arrays."""
    return {
        key.replace(".self_attn.self_attn.", ".self_attn."): (
            tensor.T if tensor.dim() == 2 and "embeddings" not in key else tensor
        ).numpy()
        for key, tensor in weights.items()
    }


def static(model, head):
    """Our model as the static graph's variables."""
    return {
        name: (tensor.T if tensor.dim() == 2 and "embeddings" not in key else tensor).numpy()
        for key, tensor in model.state_dict().items()
        for name in static_names(key, "", head)
    }


@torch.no_grad()
@pytest.mark.parametrize("cls", CLASSES)
def test_paddlenlp(cls, converted, ernie_m_oracle, pickled, tmp_path):
    old = ernie_m_oracle.weights(cls)
    head = {"classifier.weight", "qa_outputs.weight"} & set(old)
    if head:  # there, below every head stands a pooler, and the span head is a classifier too
        pooler = ernie_m_oracle.under("weights/ErnieMModel/pooler.")
        old |= {f"ernie_m.pooler.{key}": tensor.float() for key, tensor in pooler.items()}
    old = {key.replace("qa_outputs", "classifier"): tensor for key, tensor in old.items()}
    source = ernie_m_oracle.save_tokenizer(tmp_path / "paddle")
    pickled(paddle(old) | {"ernie_m.embeddings.position_ids": np.arange(24)[None]}, source / "model_state.pdparams")
    base = {name: value for name, value in ernie_m_oracle.config(cls).items() if name != "architectures"}
    base |= {"init_class": "ErnieMModel"}
    settings = {"init_args": [base], "init_class": cls} if head else base
    (source / "model_config.json").write_text(json.dumps(settings))
    notes = to_zoo(str(source), str(tmp_path / "new"), tokenizer_type="ernie_m")
    assert "layout: PaddleNLP's layout" in notes
    ours, expected = load(cls, tmp_path / "new").state_dict(), load(cls, converted[cls][1]).state_dict()
    assert [key for key in expected if not torch.equal(ours[key], expected[key])] == []
    if cls in CLASSES[2:]:
        assert f"left out, since a {cls} does not read it: pooler" in notes
    if head:
        (source / "model_config.json").unlink()
        with pytest.raises(ValueError, match="Say --head sequence, token or question_answering"):
            to_zoo(str(source), str(tmp_path / "other"), num_attention_heads=4, tokenizer_type="ernie_m")
        to_zoo(
            str(source / "model_state.pdparams"),
            str(tmp_path / "other"),
            tokenizer=str(source),
            tokenizer_type="ernie_m",
            head=next(name for name, ours in HEADS.items() if ours.__name__ == cls),
            num_attention_heads=4,
        )
        assert torch.equal(
            load(cls, tmp_path / "other").state_dict()["roberta.embeddings.word_embeddings.weight"],
            expected["roberta.embeddings.word_embeddings.weight"],
        )


@torch.no_grad()
@pytest.mark.parametrize("form", ["variables", "npz", "safetensors"])
@pytest.mark.parametrize("head", ["base", "sequence", "token", "question_answering"])
def test_static_graph(head, form, converted, variable, ernie_m_oracle, tmp_path):
    cls = HEADS[head].__name__
    model = load(cls, converted[cls][1])
    arrays = static(model, head)
    source = ernie_m_oracle.save_tokenizer(tmp_path / "static")
    extra = {"word_embedding_moment1_0": np.zeros((2, 2), np.float32), "learning_rate_0": np.ones(1, np.float32)}
    if form == "variables":
        for name, array in (arrays | extra).items():
            variable(source / name, array)
        path = source
    elif form == "npz":
        np.savez(source / "all.npz", **arrays, **extra)
        path = source / "all.npz"
    else:
        path = source / "all.safetensors"
        arrays = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in (arrays | extra).items()}
        safetensors.torch.save_file(arrays, path)
    notes = to_zoo(
        str(path), str(tmp_path / "new"), tokenizer=str(source), tokenizer_type="ernie_m", num_attention_heads=4
    )
    assert "layout: the static graph's variables" in notes and "left out: 2 variables of the optimizer" in notes
    ours, expected = load(cls, tmp_path / "new").state_dict(), model.state_dict()
    assert [key for key in expected if not torch.equal(ours[key], expected[key])] == []


def test_static_graph_with_a_masked_lm_head(ernie_m_oracle, converted, tmp_path):
    torch.manual_seed(0)
    config = load("ErnieMModel", converted["ErnieMModel"][1]).config
    model = HEADS["masked_lm"](config)
    arrays = static(model, "masked_lm") | static(load("ErnieMModel", converted["ErnieMModel"][1]), "base")
    source = ernie_m_oracle.save_tokenizer(tmp_path / "static")
    np.savez(source / "all.npz", **arrays)
    options = {"tokenizer": str(source), "tokenizer_type": "ernie_m", "num_attention_heads": 4}
    notes = to_zoo(str(source / "all.npz"), str(tmp_path / "base"), **options)
    assert any("--head masked_lm keeps it" in note for note in notes)
    notes = to_zoo(str(source / "all.npz"), str(tmp_path / "lm"), head="masked_lm", **options)
    assert any(note.endswith("does not read it: pooler") for note in notes)
    found = load("ErnieMForMaskedLM", tmp_path / "lm")
    assert torch.equal(found.lm_head.dense.weight, model.lm_head.dense.weight)
    assert found.lm_head.decoder.weight is found.roberta.embeddings.word_embeddings.weight


@torch.no_grad()
def test_information_extraction_and_multiple_choice(converted, ernie_m_oracle, tmp_path):
    """They have no class here; the heads that they become give the same logits."""
    body = {f"ernie_m.{key}": tensor for key, tensor in ernie_m_oracle.weights("ErnieMModel").items()}
    span = {"linear_start": (1, 32), "linear_end": (1, 32)}
    weights = body | {f"{name}.weight": torch.randn(shape) for name, shape in span.items()}
    weights |= {f"{name}.bias": torch.randn(1) for name in span}
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "ie", weights, architectures=["ErnieMForInformationExtraction"])
    notes = to_zoo(str(old), str(tmp_path / "ie_new"))
    assert any("read each through a sigmoid" in note for note in notes)
    inputs = ernie_m_oracle.inputs("right")
    states = load("ErnieMModel", converted["ErnieMModel"][1])(**inputs).last_hidden_state
    found = load("ErnieMForQuestionAnswering", tmp_path / "ie_new")(**inputs)
    for name, logits in (("linear_start", found.start_logits), ("linear_end", found.end_logits)):
        expected = states @ weights[f"{name}.weight"][0] + weights[f"{name}.bias"]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)

    weights = body | {"classifier.weight": torch.randn(1, 32), "classifier.bias": torch.randn(1)}
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "mc", weights, architectures=["ErnieMForMultipleChoice"])
    notes = to_zoo(str(old), str(tmp_path / "mc_new"))
    assert any("logits.view(texts, choices)" in note for note in notes)
    pooled = load("ErnieMModel", converted["ErnieMModel"][1])(**inputs).pooler_output
    expected = pooled @ weights["classifier.weight"].T + weights["classifier.bias"]
    found = load("ErnieMForSequenceClassification", tmp_path / "mc_new")(**inputs).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_tokenizer_of_xlm_r(converted, ernie_m_oracle, sample_tokenizer_dir, sample_tokenizer, tmp_path):
    """The zoo's default for everything that brings no tokenizer of transformers 4."""
    config = load("ErnieMModel", converted["ErnieMModel"][1]).config
    config.vocab_size = len(sample_tokenizer)
    np.savez(tmp_path / "all.npz", **static(ErnieMModel(config), "base"))
    notes = to_zoo(
        str(tmp_path / "all.npz"), str(tmp_path / "new"), tokenizer=str(sample_tokenizer_dir), num_attention_heads=4
    )
    assert "tokenizer_type xlm_roberta, the zoo's default" in notes[-1]
    assert notes[-1].startswith(f"tokenizer: XLM-R's of {sample_tokenizer_dir}")
    loaded = XLMRobertaTokenizer.from_pretrained(tmp_path / "new")
    assert loaded("Hi")["input_ids"] == sample_tokenizer("Hi")["input_ids"]
    to_transformers4(str(tmp_path / "new"), str(tmp_path / "back"))
    assert (tmp_path / "back" / "tokenizer.json").exists()
    settings = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "XLMRobertaTokenizer"
    assert not isinstance(settings.get("extra_special_tokens"), list)  # transformers 4 fails on it
    # a vocab.txt tells which tokens the rows are
    lines = sample_tokenizer.convert_ids_to_tokens(range(len(sample_tokenizer)))
    lines[:4], lines[-1] = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"], "[MASK]"
    wrong = f"1 of 1,995 rows stand for other tokens in .*row 7: 'other' and {re.escape(repr(lines[7]))}"
    for name, message in ((lines[7], None), ("other", wrong)):
        (tmp_path / "vocab.txt").write_text("\n".join([*lines[:7], name, *lines[8:]]) + "\n", encoding="utf-8")
        options = {"tokenizer": str(sample_tokenizer_dir), "num_attention_heads": 4}
        if message:
            with pytest.raises(ValueError, match=message):
                to_zoo(str(tmp_path / "all.npz"), str(tmp_path / "another"), **options)
        else:
            to_zoo(str(tmp_path / "all.npz"), str(tmp_path / "checked"), **options)
    with pytest.raises(ValueError, match="no tokenizer could be loaded from 'FacebookAI/xlm-roberta-base'"):
        to_zoo(str(tmp_path / "all.npz"), str(tmp_path / "other"), num_attention_heads=4)


@torch.no_grad()
def test_back_from_a_pre_trained_model(converted, ernie_m_oracle, tmp_path):
    """What transformers 4 has no place for is named, and the constant token type moves into the positions."""
    config = load("ErnieMModel", converted["ErnieMModel"][1]).config
    config.num_languages, config.mask_token_id = 2, config.vocab_size - 1
    torch.manual_seed(0)
    model = ErnieMForPreTraining(config).eval()
    model.roberta.embeddings.token_type_embeddings.weight.normal_()
    model.save_pretrained(tmp_path / "zoo")
    notes = to_transformers4(str(tmp_path / "zoo"), str(tmp_path / "back"))
    assert "left out, since the layout has no place for it: language_embeddings, lm_head" in notes
    assert any(note.startswith("pooler: the model has none") for note in notes)
    assert any(note.startswith("tokenizer: none") for note in notes)
    state = safetensors.torch.load_file(tmp_path / "back" / "model.safetensors")
    embeddings = model.roberta.embeddings
    expected = embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0]
    assert torch.equal(state["embeddings.position_embeddings.weight"], expected)
    # and read again: a base model without a pooler
    ernie_m_oracle.save_tokenizer(tmp_path / "back")
    notes = to_zoo(str(tmp_path / "back"), str(tmp_path / "again"))
    assert any(note.startswith("pooler: the checkpoint has none; config.add_pooling_layer is false") for note in notes)
    again = load("ErnieMModel", tmp_path / "again")
    assert again.pooler is None and torch.equal(again.embeddings.position_embeddings.weight, expected)


def test_transformers_4_gets_its_own_fields_only(converted, tmp_path):
    _, new, _ = converted["ErnieMForSequenceClassification"]
    model = load("ErnieMForSequenceClassification", new)
    model.config.fine_tuned_on, model.config.problem_type = "xnli", "single_label_classification"
    model.save_pretrained(tmp_path / "zoo")
    to_transformers4(str(tmp_path / "zoo"), str(tmp_path / "back"))
    fields = json.loads((tmp_path / "back" / "config.json").read_text())
    assert set(fields) == {
        *TRANSFORMERS4_FIELDS,
        *("id2label", "label2id", "problem_type", "architectures", "torch_dtype", "act_dropout"),
    }


# the head


@torch.no_grad()
def test_the_head_reads_the_pooler(converted, ernie_m_oracle):
    model = load("ErnieMForSequenceClassification", converted["ErnieMForSequenceClassification"][1])
    inputs = ernie_m_oracle.inputs("right")
    pooled = model.roberta(**inputs).pooler_output
    assert torch.equal(model(**inputs).logits, model.classifier(pooled))
    assert model.dropout.p == 0.2
    loss = model(**inputs, labels=torch.tensor([0, 1, 2])).loss
    assert torch.equal(loss, torch.nn.functional.cross_entropy(model(**inputs).logits, torch.tensor([0, 1, 2])))
    config = type(model.config)(**{**model.config.to_dict(), "add_pooling_layer": False})
    with pytest.raises(ValueError, match="asked for with add_pooling_layer=False"):
        ErnieMForSequenceClassification(config)


# errors


def test_keys_that_do_not_fit_are_all_named(ernie_m_oracle, tmp_path):
    weights = ernie_m_oracle.weights("ErnieMForSequenceClassification")
    del weights["ernie_m.encoder.layers.1.norm2.bias"]
    weights["ernie_m.encoder.layers.0.linear1.weight"] = torch.zeros(32, 48)
    weights["lm_head.bias"] = torch.zeros(3)
    old = ernie_m_oracle.save("ErnieMForSequenceClassification", tmp_path / "old", weights)
    with pytest.raises(ValueError) as error:
        to_zoo(str(old), str(tmp_path / "new"))
    assert [line.strip() for line in str(error.value).splitlines()[1:-1]] == [
        "missing: ernie_m.encoder.layers.1.norm2.bias (32,)",
        "left over: lm_head.bias",
        "of another shape: ernie_m.encoder.layers.0.linear1.weight (32, 48), not (48, 32)",
    ]
    assert not (tmp_path / "new").exists()
    weights = ernie_m_oracle.weights("ErnieMForSequenceClassification") | {"lm_head.bias": torch.zeros(3)}
    ernie_m_oracle.save("ErnieMForSequenceClassification", tmp_path / "old", weights)
    notes = to_zoo(str(old), str(tmp_path / "new"), ignore_keys=[r"lm_head\..*"])
    assert "ignored: lm_head.bias" in notes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["ErnieMForPoetry"]}, "names the class 'ErnieMForPoetry'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"hidden_act": "swirl"}, "the activation 'swirl'"),
        ({"num_attention_heads": 5}, "which 5 attention heads do not divide"),
        ({"pad_token_id": 3}, "the padding id is 1 in the tokenizer and 3 in the checkpoint"),
    ],
)
def test_configurations_that_cannot_be_kept(config, message, ernie_m_oracle, tmp_path):
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old", **config)
    with pytest.raises(ValueError, match=message):
        to_zoo(str(old), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_dropout_that_is_not_kept_is_said(ernie_m_oracle, tmp_path):
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old", act_dropout=0.1)
    assert any(note.startswith("act_dropout 0.1: not kept") for note in to_zoo(str(old), str(tmp_path / "new")))


def test_sources_that_are_none(converted, ernie_m_oracle, tmp_path):
    new = str(tmp_path / "new")
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old")
    with pytest.raises(ValueError, match="is neither a file nor a folder"):
        to_zoo(str(tmp_path / "nowhere"), new)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no weights: none of model.safetensors"):
        to_zoo(str(tmp_path / "empty"), new)
    with pytest.raises(ValueError, match="is there already and not empty"):
        to_zoo(str(old), str(old))
    with pytest.raises(ValueError, match="it needs no conversion"):
        to_zoo(str(converted["ErnieMModel"][1]), new)
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.bin")
    with pytest.raises(ValueError, match="has no layer of ERNIE-M's layouts; its keys are weight"):
        to_zoo(str(tmp_path / "other.bin"), new)
    (old / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json cannot be read"):
        to_zoo(str(old), new)
    with pytest.raises(ValueError, match="only ERNIE-M's can be written in ERNIE-M's layouts|holds no checkpoint"):
        to_transformers4(str(tmp_path / "empty"), new)
    vocabulary = old / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    (old / "config.json").write_text(json.dumps(ernie_m_oracle.config("ErnieMModel")))
    with pytest.raises(ValueError, match=r"the tokenizer has \d+ tokens and the checkpoint \d+ embeddings"):
        to_zoo(str(old), new)
    with pytest.raises(ValueError, match="holds no sentencepiece.bpe.model"):
        to_zoo(str(old), new, tokenizer=str(tmp_path / "empty"), tokenizer_type="ernie_m")


def test_the_command_line_tells_what_to_do(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path / "nowhere"), str(tmp_path / "new")])
    assert stopped.value.code == 2
    assert re.match(r"convert_ernie_m: error: .*nowhere is neither a file nor a folder", capsys.readouterr().err)
    with pytest.raises(SystemExit):
        main(["a", "b", "--to", "transformers4", "--head", "base"])
    assert "--head: only for --to zoo" in capsys.readouterr().err


def test_several_files_of_weights(ernie_m_oracle, converted, tmp_path):
    old = ernie_m_oracle.save("ErnieMModel", tmp_path / "old")
    weights = ernie_m_oracle.weights("ErnieMModel")
    (old / "model.safetensors").unlink()
    names = {key: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, key in enumerate(weights)}
    for name in set(names.values()):
        safetensors.torch.save_file({key: weights[key] for key in weights if names[key] == name}, old / name)
    (old / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    to_zoo(str(old), str(tmp_path / "new"))
    ours, expected = (load("ErnieMModel", folder) for folder in (tmp_path / "new", converted["ErnieMModel"][1]))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), expected.parameters(), strict=True))
