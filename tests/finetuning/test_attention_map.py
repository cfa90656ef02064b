"""Attention maps: their numbers against the models' own, what is drawn and written, and bad input."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM

from finetuning.results.attention_map import AttentionMap, choose, fonts_for, main, read_attention
from modeling.modeling_veco import VecoForConditionalGeneration, VecoForPreTraining

X, Y = "Take a seat and have a rest", "Setz dich und ruh dich aus"


@pytest.fixture(scope="module")
def veco_dir(zoo_model_dir):
    """A random VECO, sharp enough for its heads to differ; by `cross_stream`."""
    sizes = dict(num_hidden_layers=3, max_position_embeddings=66, initializer_range=0.3)
    return {stream: zoo_model_dir("veco", cross_stream=stream, **sizes) for stream in ("bidirectional", "causal")}


@pytest.fixture(scope="module")
def translation_dir(veco_dir, sample_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation") / "model"
    VecoForConditionalGeneration.from_encoder(veco_dir["bidirectional"], decoder_layers=2).save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)
    return folder


def load(folder, auto_class=AutoModel):
    return auto_class.from_pretrained(folder, trust_remote_code=True, attn_implementation="eager").eval()


def assert_rows_sum_to_one(maps):
    for item in maps:
        assert item.weights.shape[2:] == (len(item.rows), len(item.columns))
        assert len(item.row_sides) == len(item.rows) and len(item.column_sides) == len(item.columns)
        np.testing.assert_allclose(item.weights.sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("model", ["xlm-r", "veco", "translation"])
def test_joint_is_the_self_attention_over_both_sentences(
    model, tiny_model, veco_dir, translation_dir, sample_tokenizer
):
    folder = {"xlm-r": tiny_model, "veco": veco_dir["causal"], "translation": translation_dir}[model]
    maps = read_attention(str(folder), X, Y)
    assert_rows_sum_to_one(maps)
    (item,) = maps
    inputs = sample_tokenizer(X, Y, return_tensors="pt")
    with torch.no_grad():
        expected = load(folder)(inputs["input_ids"], output_attentions=True).attentions
    np.testing.assert_allclose(item.weights, torch.cat(expected).numpy(), atol=1e-6)
    assert item.rows == item.columns == sample_tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    x, y = (sample_tokenizer.tokenize(text) for text in (X, Y))
    assert item.rows == ["<s>", *x, "</s>", "</s>", *y, "</s>"]
    assert item.row_sides == [None, *[0] * len(x), None, None, *[1] * len(y), None]


@pytest.mark.parametrize("stream", ["bidirectional", "causal"])
def test_cross_is_the_s_stream_of_pre_training(stream, veco_dir, sample_tokenizer):
    """The weights that VecoForPreTraining's own S stream uses, taken from its modules while it runs."""
    maps = read_attention(str(veco_dir[stream]), X, Y, "cross")
    assert_rows_sum_to_one(maps)
    model = VecoForPreTraining.from_pretrained(veco_dir[stream], attn_implementation="eager").eval()
    seen = []
    for layer in model.roberta.encoder.layer:
        layer.crossattention.self.register_forward_hook(lambda module, inputs, output: seen.append(output[1]))
    batch = {}
    for side, text in (("x", X), ("y", Y)):
        fields = sample_tokenizer(text, return_tensors="pt")
        batch[side] = {**fields, "labels": fields["input_ids"]}
    with torch.no_grad():
        model(ca_mlm_pairs=batch)
    for number, item in enumerate(maps):
        length, other = item.weights.shape[2:]
        expected = torch.stack(seen)[:, number, :, :length, :other]
        np.testing.assert_allclose(item.weights, expected.numpy(), atol=1e-5)
    assert [item.name for item in maps] == ["source reads target", "target reads source"]
    assert maps[0].rows == maps[1].columns != maps[1].rows == maps[0].columns
    assert set(maps[0].row_sides) == {None, 0} and set(maps[0].column_sides) == {None, 1}


def test_cross_of_a_translation_model_is_its_decoders(translation_dir, sample_tokenizer):
    maps = read_attention(str(translation_dir), X, Y, "cross")
    assert_rows_sum_to_one(maps)
    (item,) = maps
    y = sample_tokenizer(Y, add_special_tokens=False)["input_ids"]
    source = sample_tokenizer(X, return_tensors="pt")
    with torch.no_grad():
        outputs = load(translation_dir, AutoModelForSeq2SeqLM)(
            **source, decoder_input_ids=torch.tensor([[2, *y]]), output_attentions=True, use_cache=False
        )
    assert len(outputs.cross_attentions) == 2
    np.testing.assert_allclose(item.weights, torch.cat(outputs.cross_attentions).numpy(), atol=1e-6)
    assert item.rows == ["</s>", *sample_tokenizer.convert_ids_to_tokens(y)]
    assert item.columns == sample_tokenizer.convert_ids_to_tokens(source["input_ids"][0])
    assert item.across(item.weights[0, 0]) is None


def small_map(layers=2, heads=3):
    sides = [None, 0, None, None, 1, 1, None]
    weights = np.zeros((layers, heads, 7, 7))
    weights[..., 0] = 1.0  # all attend to <s>
    weights[1, 2, 1] = [0, 0.2, 0.1, 0, 0.3, 0.4, 0]  # 0.7 of the one source token's goes across
    weights[1, 2, 4] = [0, 0.5, 0, 0, 0.5, 0, 0]  # 0.5 of the first of two target tokens'
    return AttentionMap("self-attention", list("sa//bc/"), list("sa//bc/"), sides, sides, weights)


def test_layers_are_chosen_and_heads_averaged():
    item = small_map()
    assert [layer for layer, _, _ in choose([item], None)] == [1, 2]
    ((layer, _, mean),) = choose([item], 2)
    assert layer == 2
    np.testing.assert_allclose(mean, item.weights[1].mean(0))
    assert item.across(item.weights[1, 2]) == pytest.approx((0.7 + 0.5 + 0.0) / 3)
    assert item.across(mean) == pytest.approx((0.7 + 0.5 + 0.0) / 9)
    assert len(choose([item, item], None)) == 4


@pytest.mark.parametrize("layer", [0, 3])
def test_a_layer_that_is_not_there(layer):
    with pytest.raises(ValueError, match=f"layer is {layer}, and this attention has 2 layers.*from 1 to 2"):
        choose([small_map()], layer)


def test_a_picture_is_written(veco_dir, tmp_path, capsys, drawn):
    image = tmp_path / "new" / "attention.png"
    main(["--model", str(veco_dir["causal"]), "--source", X, "--target", Y, "--kind", "cross", "--output", str(image)])
    assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 10_000
    assert f"written: {image}" in capsys.readouterr().out


def test_fonts_are_found_by_their_glyphs(monkeypatch):
    """A warning about a missing glyph would be an error here."""
    from matplotlib import font_manager

    assert fonts_for("Take ▁ä→□") == ["DejaVu Sans"]
    own = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    fonts = {"han.ttf": SimpleNamespace(get_charmap=lambda: {ord("坐"): 1})}
    entries = [font_manager.FontEntry(fname="han.ttf", name="Han"), font_manager.FontEntry(fname="own", name="Own")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", entries)
    monkeypatch.setattr(font_manager, "get_font", lambda path: fonts.get(path, own))
    assert fonts_for("a坐") == ["DejaVu Sans", "Han"]


def test_bad_input(tiny_model, veco_dir, sample_tokenizer, tmp_path):
    for arguments, message in (
        ((str(tiny_model), " \n", Y), r"source is ' \\n'. Attention is between two sentences. Give both."),
        ((str(tiny_model), X, ""), "target is ''"),
        ((str(tiny_model), "\u200b", Y), "source has no token left"),
        ((str(tiny_model), X, "\u200b"), "target has no token left"),
        ((str(veco_dir["causal"]), X, "\u200b", "cross"), "target has no token left"),
        ((str(tiny_model), X, Y, "cross"), r"xlm-roberta\) has no cross-attention.*Use kind joint"),
        ((str(tiny_model), X, "und so " * 99), r"The input has \d+ tokens, and .* has 64 positions.*shorter"),
        ((str(veco_dir["causal"]), X, "und so " * 99, "cross"), r"The input has \d+ tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            read_attention(*arguments)
    model = VecoForPreTraining.from_pretrained(veco_dir["causal"])
    state = {key: value for key, value in model.state_dict().items() if ".crossattention." not in key}
    model.save_pretrained(tmp_path / "model", state_dict=state)
    with pytest.raises(ValueError, match="holds no tokenizer"):
        read_attention(str(tmp_path / "model"), X, Y)
    sample_tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"lacks 30 weights of VecoModel \(.*crossattention.*random numbers"):
        read_attention(str(tmp_path / "model"), X, Y, "cross")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--output", "map.txt"], r"output is map.txt.*Use one of .*\.png"),
        (["--layer", "7"], "layer is 7"),
        (["--model", "nowhere/at/all"], "Model folder not found"),
    ],
)
def test_bad_command_lines_end_in_one_line(change, message, tiny_model, tmp_path, capsys):
    arguments = ["--model", str(tiny_model), "--source", X, "--target", Y, "--output", str(tmp_path / "map.png")]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, *change])
    assert stop.value.code == 2
    assert re.search(message, capsys.readouterr().err.splitlines()[-1])
    assert not (tmp_path / "map.png").exists()
