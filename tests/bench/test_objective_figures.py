"""There is a figure for each objective, and it can be drawn; and VECO's figure of a model's attention."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModel

from bench.objective_figures import FIGURES, Attention, attention_links, draw, main, read_attention
from crosslingual_zoo.modeling.checkpoints import load_whole
from crosslingual_zoo.pretraining.objectives import OBJECTIVES, Collator


def test_objective_figures_of_every_objective_with_a_collator():
    with_collator = [name for name, objective in OBJECTIVES.items() if issubclass(objective, Collator)]
    assert [name for name in with_collator if not name.startswith(tuple(FIGURES))] == []


@pytest.mark.parametrize("name", FIGURES)
def test_objective_figures_draw(name, tmp_path):
    draw(name, tmp_path)
    with Image.open(tmp_path / f"objective_{name}.png") as image:
        assert image.width == 510 * len(FIGURES[name]())
        assert len(image.getcolors(2**16)) > 8


X = "The house is small .".split()
Y = "Das Haus ist klein .".split()


def loaded(folder):
    return load_whole(AutoModel, str(folder), "model", attn_implementation="eager")


@torch.no_grad()
def test_attention_of_veco_reads_the_last_states_of_the_other_side(zoo_model_dir, sample_tokenizer):
    model = loaded(zoo_model_dir("veco"))
    attention = read_attention(model, sample_tokenizer, X, Y)
    x = sample_tokenizer(" ".join(X), return_tensors="pt")
    y = sample_tokenizer(" ".join(Y), return_tensors="pt")
    size = len(x["input_ids"][0]) - 2
    assert attention.size == size
    assert attention.tokens == sample_tokenizer.tokenize(" ".join(X)) + sample_tokenizer.tokenize(" ".join(Y))
    for side, other_side, block in ((x, y, np.s_[:, :size, size:]), (y, x, np.s_[:, size:, :size])):
        states = model(**other_side).last_hidden_state
        outputs = model(**side, encoder_hidden_states=states, output_attentions=True)
        expected = torch.cat(outputs.cross_attentions).mean(1)[:, 1:-1, 1:-1].numpy()
        np.testing.assert_allclose(attention.weights[block], expected, atol=1e-6)
    assert not attention.weights[:, :size, :size].any()
    assert not attention.weights[:, size:, size:].any()


@torch.no_grad()
def test_attention_of_an_encoder_is_its_own_over_both_sentences(zoo_model_dir, sample_tokenizer):
    model = loaded(zoo_model_dir("metaxlm"))
    attention = read_attention(model, sample_tokenizer, X, Y)
    pair = sample_tokenizer(" ".join(X), " ".join(Y), return_tensors="pt")
    special_tokens = sample_tokenizer.get_special_tokens_mask(pair["input_ids"][0], None, True)
    is_text = torch.tensor(special_tokens) == 0
    attentions_LAKK = torch.cat(model(**pair, output_attentions=True).attentions)
    expected = attentions_LAKK.mean(1)[:, is_text][:, :, is_text]
    np.testing.assert_allclose(attention.weights, expected.numpy(), atol=1e-6)
    assert len(attention.weights) == 2
    assert 0 < attention.weights.sum(2).max() < 1


def test_attention_links_are_where_both_sides_give_each_other_their_largest_weight():
    weights = np.zeros((2, 5, 5))  # x has tokens 0 to 2, of the words 0, 1 and 1; y tokens 3 and 4, of 0 and 1
    weights[1, :3, 3:] = [[0.1, 0.2], [0.3, 0.1], [0.2, 0.3]]
    weights[1, 3:, :3] = [[0.1, 0.5, 0.2], [0.4, 0.1, 0.2]]
    attention = Attention(weights, list("abcde"), [0, 1, 1, 0, 1], 3)
    assert attention_links(attention, 1) == [(0, 1), (1, 0)]


@pytest.mark.parametrize("kind", ["veco", "xlm_align"])
def test_attention_command_draws_the_middle_layer_and_scores_every_layer(kind, zoo_model_dir, tmp_path, capsys):
    main(["--attention", str(zoo_model_dir(kind)), "--output", str(tmp_path)])
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["en-de", "zh-en", "mean"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert all(0 < float(value) <= 100 for row in rows for value in row.split()[1:])
    assert [path.name for path in tmp_path.iterdir()] == ["attention.png"]
