"""VECO's original checkpoints and the models made of them compute the same."""

import json
import os
from fractions import Fraction

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, XLMRobertaConfig, XLMRobertaModel
from transformers.utils import logging

from modeling.convert_common import names_of
from modeling.convert_veco import fairseq_table, from_fairseq, from_native, main, native_table
from modeling.modeling_veco import VecoForConditionalGeneration, VecoForMaskedLM, VecoForPreTraining, VecoModel

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
def test_native_weights_compute_what_xlmrs_do(originals, prefix, kinds, name, options, tmp_path):
    """Plug-out as XLMRobertaModel, plug-in as its decoder, on the same weights."""
    state = originals.native_state(prefix, kinds)
    from_native(originals.saved(tmp_path, state, name=name), str(tmp_path / "veco"), **options)
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
    with pytest.raises(ValueError, match="left over: roberta.pooler.dense.weight"):
        from_native(path, str(tmp_path / "veco"), **options)
    from_native(path, str(tmp_path / "veco"), ignore_keys=[r"roberta\.pooler\..*"], **options)
    model = VecoForMaskedLM.from_pretrained(tmp_path / "veco").eval()
    assert not model.config.cross_attention
    assert torch.equal(model.lm_head.dense.weight, state["lm_head.dense.weight"])
    assert torch.equal(model.lm_head.bias, state["lm_head.bias"])


# fairseq


@pytest.mark.parametrize("decoder", [(0, 1, 2), (1, 2), (0,)])
@torch.no_grad()
def test_fairseq_translation_of_tied_layers(originals, decoder, options, tmp_path):
    """The words are this zoo's, of any length, where the file says no_scale_embedding."""
    state = originals.fairseq_state(decoder=decoder, words=0.05)
    args = {"no_scale_embedding": True}
    from_fairseq(originals.saved(tmp_path, state, args), str(tmp_path / "veco"), **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    config = model.config
    assert config.tie_decoder and config.decoder_layer_indices == list(decoder) and not config.lm_head_transform
    assert model.decoder.layer[0].attention.self.query.weight is (
        model.roberta.encoder.layer[decoder[0]].attention.self.query.weight
    )
    source, target = originals.ids(9), originals.ids(6, seed=2)
    expected = originals.FairseqForward(state, 1.0).logits(source, target)
    originals.close(model(input_ids=source, decoder_input_ids=target).logits, expected)
    assert model.generate(source, max_new_tokens=4).shape[0] == 2


@torch.no_grad()
def test_fairseq_translation_of_other_layers_is_not_tied(originals, options, tmp_path):
    state = originals.fairseq_state(decoder=(1, 2), tied=False)
    from_fairseq(originals.saved(tmp_path, state), str(tmp_path / "veco"), **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    assert not model.config.tie_decoder and model.config.decoder_layer_indices == [1, 2]
    source, target = originals.ids(9), originals.ids(6, seed=2)
    expected = originals.FairseqForward(state, 1.0).logits(source, target)
    originals.close(model(input_ids=source, decoder_input_ids=target).logits, expected)


@pytest.mark.parametrize("words, setting, factor", [
    (0.3, None, 1), (0.3 / 4, None, 4), (0.3, "multiply", 4), (0.3 / 4, "keep", 1),
])  # fmt: skip
@torch.no_grad()
def test_words_that_are_stored_to_be_multiplied(originals, words, setting, factor, options, tmp_path):
    """Shorter by sqrt(hidden size), or as long as XLM-R's: told by the rows, unless it is said."""
    state = originals.fairseq_state(words=words)
    path = originals.saved(tmp_path, state, {"no_scale_embedding": False})
    from_fairseq(path, str(tmp_path / "veco"), embedding_scale=setting, **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    assert torch.equal(model.lm_head.decoder.weight, factor * state["encoder.embed_tokens.weight"])
    source, target = originals.ids(9), originals.ids(6, seed=2)
    reference = originals.FairseqForward(state, factor)
    originals.close(model.roberta(source).last_hidden_state, reference.side("encoder", source))
    expected = reference.logits(source, target)
    originals.close(model(input_ids=source, decoder_input_ids=target).logits, expected)

    from_fairseq(path, str(tmp_path / "encoder"), model="encoder", embedding_scale=setting, **options)
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
    from_fairseq(path, str(tmp_path / "veco"), model="encoder", **options)
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
    from_fairseq(originals.saved(tmp_path, state, args), str(tmp_path / "veco"), **options)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco", dtype="auto")
    assert (model.config.num_attention_heads, model.config.hidden_act) == (2, "relu")
    assert model.dtype == torch.float16
    assert torch.equal(model.decoder.layer[0].output.dense.weight, state["decoder.layers.0.fc2.weight"])


@torch.no_grad()
def test_layers_of_two_digits_keep_their_names(originals, options, tmp_path):
    """Layer 1 among 12, whose fc1 must not become fc0: every tensor has its own place."""
    state = originals.fairseq_state(layers=12, decoder=(1, 10, 11))
    path = originals.saved(tmp_path, state, {"no_scale_embedding": True})
    from_fairseq(path, str(tmp_path / "veco"), **options)
    found = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").state_dict()
    read = {name: key for key in found for name in names_of(key, fairseq_table())}
    assert set(read) == {key for key in state if "version" not in key and "_float_tensor" not in key}
    assert [name for name, key in read.items() if not torch.equal(found[key], state[name])] == []
    name = "encoder.layer.11.crossattention.output.LayerNorm.weight"
    assert names_of(name, native_table("bert.", (".gamma", ".beta"), False)) == [
        "bert.encoder.layer.11.cross_attention.output.LayerNorm.gamma"
    ]


# what does not fit is refused, all of it at once, and nothing is written


def problems(error):
    return [line.strip().partition(";")[0] for line in str(error.value).splitlines()[1:]]


def test_all_that_does_not_fit_is_listed_at_once_and_nothing_is_written(originals, options, tmp_path):
    state = originals.native_state()
    del state["bert.encoder.layer.1.attention.self.key.bias"]
    state["bert.encoder.layer.2.cross_attention.output.LayerNorm.gamma"] = torch.ones(originals.HIDDEN + 1)
    state["bert.encoder.layer.0.output.LayerNorm.weight"] = torch.zeros(originals.HIDDEN)  # in addition to gamma
    state["bert.encoder.layer.1.output.dense.bias"][0] = torch.nan
    state["bert.encoder.layer.2.output.dense.bias"] = torch.ones(originals.HIDDEN, dtype=torch.int32)
    with pytest.raises(ValueError) as error:
        from_native(originals.saved(tmp_path, state), str(tmp_path / "veco"), **options)
    assert problems(error) == [
        "missing: bert.encoder.layer.1.attention.self.key.bias (16,)",
        "no finite numbers: bert.encoder.layer.1.output.dense.bias torch.float32",
        "of another shape: bert.encoder.layer.2.cross_attention.output.LayerNorm.gamma (17,), not (16,)",
        "no finite numbers: bert.encoder.layer.2.output.dense.bias torch.int32",
        "left over: bert.encoder.layer.0.output.LayerNorm.weight",
    ]
    state = originals.fairseq_state(decoder=(1, 2))
    del state["decoder.layers.0.encoder_attn.q_proj.weight"]
    state["decoder.embed_positions.weight"] = state["decoder.embed_positions.weight"] + 1
    path = originals.saved(tmp_path, state)
    with pytest.raises(ValueError) as error:
        from_fairseq(path, str(tmp_path / "veco"), **options)
    [shared, missing] = problems(error)
    assert shared.startswith("different: decoder.embed_positions.weight is not encoder.embed_positions.weight")
    assert missing == "missing: decoder.layers.0.encoder_attn.q_proj.weight (16, 16)"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pt"]


def test_files_that_are_no_checkpoints_are_refused(originals, options, tmp_path):
    output = str(tmp_path / "veco")
    torch.save({"model": originals.native_state(), "trainer": Fraction(1, 2)}, tmp_path / "objects.pt")
    torch.save({"weight": torch.ones(2), "step": 3}, tmp_path / "mixed.pt")
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    native = originals.saved(tmp_path, originals.native_state(), name="native.pt")
    other = originals.saved(tmp_path, originals.native_state(rows=1999), name="other.pt")
    encoder = originals.saved(tmp_path, originals.fairseq_state(decoder=()), name="encoder.pt")
    fairseq = originals.saved(tmp_path, originals.fairseq_state(), {"activation_fn": "swirl"}, name="fairseq.pt")
    for convert, file, changed, named in (
        (from_native, "objects.pt", {}, "fractions.Fraction"),
        (from_native, "mixed.pt", {}, "mixed.pt"),
        (from_native, "list.pt", {}, "list.pt"),
        (from_native, "text.pt", {}, "text.pt"),
        (from_native, "text.safetensors", {}, "text.safetensors"),
        (from_native, "nowhere.pt", {}, "nowhere.pt"),
        (from_native, fairseq, {}, "native layout"),
        (from_native, other, {}, "1,999 word embeddings"),
        (from_native, native, {"tokenizer": str(tmp_path / "nowhere")}, "nowhere"),
        (from_native, native, {"num_attention_heads": None}, "--num_attention_heads"),
        (from_native, native, {"num_attention_heads": 5}, "num_attention_heads 5"),
        (from_native, native, {"ignore_keys": ["pooler"]}, "--ignore_keys 'pooler'"),
        (from_fairseq, native, {}, "fairseq's layout"),
        (from_fairseq, encoder, {}, "encoder and decoder"),
        (from_fairseq, fairseq, {}, "swirl"),
    ):
        with pytest.raises(ValueError, match=named):
            convert(str(tmp_path / file), output, **(options | changed))


def test_a_tokenizer_of_other_special_tokens_is_refused(originals, options, sample_tokenizer, tmp_path):
    sample_tokenizer.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["vocab"].append(["more", -20.0])
    file.write_text(json.dumps(description))
    path = originals.saved(tmp_path, originals.native_state(rows=originals.TOKENS + 1))
    with pytest.raises(ValueError, match="'<mask>': 1999"):
        from_native(path, str(tmp_path / "veco"), **(options | {"tokenizer": str(tmp_path / "tokenizer")}))


def test_outputs_that_exist_are_not_touched(originals, options, tmp_path):
    path = originals.saved(tmp_path, originals.native_state())
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("mine")
    for convert, source, output in (
        (from_native, path, full),
        (from_native, path, path),
        (from_fairseq, path, full),
    ):
        with pytest.raises(ValueError, match=os.path.basename(output)):
            convert(str(source), str(output), **options)
    assert (full / "file").read_text() == "mine" and len(list(full.iterdir())) == 1
    (tmp_path / "empty").mkdir()
    from_native(path, str(tmp_path / "empty"), **options)
    assert (tmp_path / "empty" / "config.json").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoint.pt", "empty", "full"]


@pytest.mark.slow
def test_the_command_writes_folders_that_every_auto_class_loads(originals, sample_tokenizer_dir, tmp_path, capfd):
    verbosity = logging.get_verbosity()  # which the command lowers for its own sake
    path, encoder = originals.saved(tmp_path, originals.fairseq_state()), str(tmp_path / "encoder")
    options = ["--tokenizer", str(sample_tokenizer_dir), "--num_attention_heads", "4"]
    try:
        main(["from-fairseq", path, str(tmp_path / "translation"), *options])
        main(["from-fairseq", path, encoder, *options, "--model", "encoder"])
        out, err = capfd.readouterr()
        assert out.count("parameters: ") == 2 and not err
        with pytest.raises(SystemExit, match="2"):
            main(["from-fairseq", path, encoder, *options])
        assert encoder in capfd.readouterr().err
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
    batch = AutoTokenizer.from_pretrained(encoder)(["a b", "c"], padding=True, return_tensors="pt")
    states = AutoModel.from_pretrained(encoder, trust_remote_code=True)(**batch).last_hidden_state
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "translation", trust_remote_code=True)
    assert torch.equal(states, model.get_encoder()(**batch).last_hidden_state)
    assert not list(tmp_path.glob("*/convert_*"))
    settings = json.loads((tmp_path / "encoder" / "tokenizer_config.json").read_text())
    assert not {"is_local", "local_files_only"} & settings.keys()
