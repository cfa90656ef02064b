"""Attention maps: their numbers against the models' own, what is drawn and written, and bad input."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModel

from finetuning.tools.attention_map import AttentionMap, choose, fonts_for, main, read_attention
from modeling.modeling_veco import VecoForPreTraining

X, Y = "Take a seat and have a rest", "Setz dich und ruh dich aus"


@pytest.fixture(scope="module")
def veco_dir(zoo_model_dir):
    """A random VECO, sharp enough for its heads to differ; by `cross_stream`."""
    sizes = dict(num_hidden_layers=3, max_position_embeddings=66, initializer_range=0.3)
    return {stream: zoo_model_dir("veco", cross_stream=stream, **sizes) for stream in ("bidirectional", "causal")}


def load(folder):
    return AutoModel.from_pretrained(folder, trust_remote_code=True, attn_implementation="eager").eval()


def assert_rows_sum_to_one(maps):
    for item in maps:
        assert item.weights.shape[2:] == (len(item.rows), len(item.columns))
        assert len(item.row_sides) == len(item.rows) and len(item.column_sides) == len(item.columns)
        np.testing.assert_allclose(item.weights.sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("model", ["xlm-r", "veco"])
def test_joint_is_the_self_attention_over_both_sentences(model, tiny_model, veco_dir, sample_tokenizer):
    folder = {"xlm-r": tiny_model, "veco": veco_dir["causal"]}[model]
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
    for absent in (0, 3):
        with pytest.raises(ValueError, match=f"layer is {absent}.* from 1 to 2"):
            choose([item], absent)


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


@pytest.mark.parametrize(
    ("model", "kind", "source", "target", "named"),
    [
        ("xlm-r", "joint", " \n", Y, "source has no token"),
        ("xlm-r", "joint", "\u200b", Y, "source has no token"),
        ("xlm-r", "joint", X, "\u200b", "target has no token"),
        ("veco", "cross", X, "", "target has no token"),
        ("xlm-r", "cross", X, Y, "kind is cross.*xlm-roberta"),
        ("xlm-r", "joint", X, "und so " * 99, "64 positions"),
        ("veco", "cross", X, "und so " * 99, "positions"),
    ],
)
def test_sentences_and_models_that_have_no_attention_between_them(
    model, kind, source, target, named, tiny_model, veco_dir
):
    folder = {"xlm-r": tiny_model, "veco": veco_dir["causal"]}[model]
    with pytest.raises(ValueError, match=named):
        read_attention(str(folder), source, target, kind)


def test_a_format_that_cannot_be_written_is_refused_in_one_line(tiny_model, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--model", str(tiny_model), "--source", X, "--target", Y, "--output", str(tmp_path / "map.txt")])
    assert stop.value.code == 2 and "map.txt" in capsys.readouterr().err
