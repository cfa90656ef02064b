"""finetuning/run.py with kind retrieval: from tables of pairs to results."""

import re

import numpy as np
import pytest
import torch
from datasets import load_dataset
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks.vectors import retrieval as retrieval
from finetuning.tasks.vectors.recipe import RetrievalRecipe, expanded
from finetuning.tasks.vectors.retrieval import Side
from tests.finetuning.feature_recipes import pairs_of
from zoo_core.recipes import load_recipe


@pytest.fixture
def found(feature_recipe, tmp_path):
    return feature_recipe("retrieval", tmp_path)


def brute_force(model_dir, source, target):
    """By layer, accuracy in percent (source to target, target to source), one sentence at a time."""
    model = AutoModel.from_pretrained(model_dir, add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)

    def vectors(text):
        states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        return torch.stack([F.normalize(layer[0, 1:-1].mean(0), dim=0) for layer in states])

    with torch.no_grad():
        sides = [torch.stack([vectors(text) for text in side], 1) for side in (source, target)]
    gold = torch.arange(len(source))
    cosines = [one @ other.T for one, other in zip(*sides, strict=True)]
    return [[100 * (of.argmax(axis) == gold).double().mean().item() for axis in (1, 0)] for of in cosines]


def test_retrieval_task_scores_as_brute_force(feature_run, tiny_model, sample_corpus_dir):
    results = read_results(feature_run("retrieval")[0])
    texts = [load_dataset(str(sample_corpus_dir), config, split="test")["text"] for config in ("zh", "en")]
    for layer, expected in enumerate(brute_force(tiny_model, *texts)):
        shown = [results.of("zh-en", name, layer=layer)["mean"] for name in ("source_to_target", "target_to_source")]
        assert shown == pytest.approx(expected)


def test_accuracy_where_texts_repeat():
    source, target = Side.of(["a", "b", "a", "c"]), Side.of(["A", "B", "X", "A"])
    assert (source.texts, source.of_pairs, target.of_pairs) == (["a", "b", "c"], [0, 1, 0, 2], [0, 1, 2, 0])
    # a finds A: right in its first pair, not in its second, whose translation is X. A finds a: right for a, not for c
    found_source, found_target = np.array([0, 0, 0]), np.array([0, 2, 0])
    assert retrieval.accuracy((source, target), found_source, found_target) == {
        "source_to_target": 50.0, "target_to_source": 50.0, "accuracy": 50.0
    }  # fmt: skip


def test_retrieval_task_counts_what_is_left_out(found, write, tmp_path):
    def rows(side, ids, empty=()):
        return [{"id": n, "text": "" if n in empty else f"{side} {n} {'y' * n}"} for n in ids]

    source, target = write("source", rows("de", range(8), [2])), write("target", rows("en", range(3, 13), [5]))
    pair = {
        "path": source, "source_column": "text", "source_language": "de", "target": {"path": target},
        "target_column": "text", "target_language": "en", "join_on": "id", "note": "not the benchmark's own",
    }  # fmt: skip
    main([*found, pairs_of(pair), "max_length=8"])
    results = read_results(tmp_path / "out")
    assert results["protocol"]["evaluated_rows"] == {"de-en": 4}
    entry = results["protocol"]["evaluation_data"][0]
    assert (entry["unpaired"], entry["empty"], entry["split"]) == ([3, 5], 1, "whole file")
    cut = results["protocol"]["cut_texts"]["de-en"]
    assert sum(cut) > 0 and "not the benchmark's own" in results["warnings"]
    assert any(re.match(r"de-en: \D* 3 \D* 5 \D* 1 ", warning) for warning in results["warnings"])


def test_expanded_fills_every_table():
    table = {
        "path": "{language}.tsv", "source_column": "translation.{language}", "source_language": "{language}",
        "languages": ["de", "fr"], "target": {"path": "{language}-en.tsv", "config": "{language}"},
        "target_column": "en", "target_language": "en",
    }  # fmt: skip
    recipe = load_recipe(RetrievalRecipe, None, ["model=x", "output_dir=y", "task=z", pairs_of(table)])
    first, second = expanded(recipe.pairs)
    assert (first.name, second.name) == ("de-en", "fr-en")
    assert (second.path, second.source_column) == ("fr.tsv", "translation.fr")
    assert (second.target.path, second.target.config) == ("fr-en.tsv", "fr")
