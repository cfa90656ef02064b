"""Word links read from attention."""

import json

import numpy as np
import pytest
from transformers import AutoModel, AutoTokenizer

from finetuning.tools import attention_links
from finetuning.tools.attention_map import read_attention

PAIR = ("The house is small .", "Das Haus ist klein .")


@pytest.mark.parametrize(
    "name, config, kind",
    [("veco", {}, "cross"), ("veco", {"cross_stream": "causal"}, "cross"), ("metaxlm", {}, "joint")],
)
def test_links_are_where_both_sides_give_each_other_their_largest_weight(zoo_model_dir, name, config, kind):
    folder = zoo_model_dir(name, **config)
    model = AutoModel.from_pretrained(folder, trust_remote_code=True, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    words = [side.split() for side in PAIR]
    found = attention_links.links_of(model, tokenizer, *words)

    maps = read_attention(str(folder), *PAIR, kind)
    forward, backward = maps[0], maps[-1]
    rows, columns = (np.array(sides, dtype=float) for sides in (forward.row_sides, forward.column_sides))
    x, y = np.flatnonzero(rows == 0), np.flatnonzero(columns == 1)
    y_rows = np.flatnonzero(np.array(backward.row_sides, dtype=float) == 1)
    x_columns = np.flatnonzero(np.array(backward.column_sides, dtype=float) == 0)
    word_of = [[n for n, word in enumerate(side) for _ in tokenizer.tokenize(word)] for side in words]
    assert len(found) == len(forward.weights) == model.config.num_hidden_layers
    for layer, links in enumerate(found):
        there = forward.weights[layer].mean(0)[np.ix_(x, y)].argmax(1)
        back = backward.weights[layer].mean(0)[np.ix_(y_rows, x_columns)].argmax(1)
        mutual = {(word_of[0][i], word_of[1][j]) for i, j in enumerate(there) if back[j] == i}
        assert links == sorted(mutual) and links


def test_the_command_scores_every_layer(zoo_model_dir, tmp_path):
    config = "finetuning/recipes/xlm_align/sample_word_alignment.yaml"
    model = f"model={zoo_model_dir('veco')}"
    attention_links.main(["--config", config, model, f"output_dir={tmp_path / 'run'}"])
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    rows = [row for row in results["scores"] if row["metric"] == "aer"]
    assert {row["layer"] for row in rows} == {1, 2} and {row["method"] for row in rows} == {"cross-attention"}
    assert all(0 < row["value"] <= 100 for row in rows)
