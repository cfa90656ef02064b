"""Runs of all kinds that train nothing: retrieval, mining and word alignment; in several processes as in one."""

import csv
import json

import numpy as np
import pytest
import torch
from datasets import load_dataset
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks.vectors import retrieval as retrieval
from finetuning.tasks.vectors.base import share
from finetuning.tasks.vectors.retrieval import Side
from tests.finetuning.feature_recipes import FEATURE_RECIPES, METHODS
from tests.finetuning.processes import run_in
from tests.finetuning.tasks import predictions

KINDS = {  # metric, methods, evaluated rows, and of the protocol
    "retrieval": ("accuracy", ["mean"], {"de-en": 60, "zh-en": 60}, {"pooling": "mean", "similarity": "cosine"}),
    "mining": ("f1", ["mean"], {"xx-en": 13}, {"margin": "ratio", "neighbors": 4, "dev_rows": {"xx-en": 7}}),
    "word_alignment": ("aer", METHODS, {"en-de": 20, "zh-en": 10}, {"encoding": "separate"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_vector_run_writes_results(kind, feature_run):
    (metric, methods, evaluated, expected), out = KINDS[kind], feature_run(kind)[0]
    results = read_results(out)
    assert (results["kind"], results["setting"], results["seeds"]) == (kind, "feature", [1])
    expected = expected | {"method": methods[0], "layer": 1, "depth": 2, "evaluated_rows": evaluated}
    assert {name: results["protocol"][name] for name in expected} == expected
    assert results["protocol"]["metric"]["greater_is_better"] == (metric != "aer")
    assert (results.metric, results.methods, results.layers) == (metric, methods, [0, 1, 2])
    reported = {pair: results.of(pair, metric, methods[0], 1) for pair in evaluated}
    assert results.languages == reported
    mean = sum(entry["mean"] for entry in reported.values()) / len(reported)
    assert results.average["mean"] == pytest.approx(mean)
    with (out / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(evaluated) * 3 * len(methods) * (4 if kind == "word_alignment" else 3)


def test_vector_task_seeds_are_models(feature_recipe, two_seeds, change_weights, tmp_path, refused):
    out = tmp_path / "out"
    recipe = [*feature_recipe("word_alignment", tmp_path), two_seeds]
    main([*recipe, "seeds=[2]"])
    second = read_results(out)
    written = (out / "seed-2" / "scores.json").stat().st_mtime_ns
    assert str(out) in "".join(refused([*recipe, "seeds=[2]"]).split())
    assert "methods.1" in refused([*recipe, "methods=[ot, mutual]", "--resume"])
    main([*recipe, "seeds=[1, 2]", "--resume"])
    assert written == (out / "seed-2" / "scores.json").stat().st_mtime_ns, "not scored again"
    results = read_results(out)
    first, other = results.languages["en-de"]["scores"]
    assert other == second.languages["en-de"]["mean"] != first
    assert results.languages["en-de"]["sd"] == pytest.approx(abs(first - other) / 2**0.5)
    assert results.average["scores"][1] == second.average["mean"]
    prints = results["model"]["fingerprint"].split("+")
    assert len(set(prints)) == 2 and prints[1] == second["model"]["fingerprint"]

    change_weights(tmp_path / "run-2" / "model")
    assert "seed 2" in " ".join(refused([*recipe, "seeds=[1, 2]", "--resume"]).split())


def test_retrieval_predictions_give_the_accuracy(feature_run):
    out, _ = feature_run("retrieval")
    results = read_results(out)
    for pair in results.names:
        rows = predictions(out / "seed-1", pair)
        assert [row["row"] for row in rows] == list(range(results["protocol"]["evaluated_rows"][pair]))
        for side, metric in (("target", "source_to_target"), ("source", "target_to_source")):
            right = sum(row[side] == row[f"found_{side}"] for row in rows)
            assert results.of(pair, metric)["mean"] == pytest.approx(100 * right / len(rows))


def test_mining_predictions_are_those_counted(feature_run):
    out, _ = feature_run("mining")
    results = read_results(out)
    for pair, counts in results["protocol"]["counts"]["1"].items():
        rows = predictions(out / "seed-1", pair)
        assert (len(rows), sum(row["is_gold"] for row in rows)) == (counts["mined"], counts["right"])
        margins = [row["margin"] for row in rows]
        assert margins == sorted(margins, reverse=True)


PROGRAM = """
import json, sys
from finetuning.run import main
for arguments in json.loads(sys.argv[1]):
    main(arguments)
"""


def test_share_is_about_equal():
    sizes = {"a": 5, "b": 1, "c": 4, "d": 3}
    assert share(sizes, 2) == [["a", "b"], ["c", "d"]]
    assert share(sizes, 1) == [["a", "c", "d", "b"]]
    assert share({"a": 5}, 3) == [["a"], [], []]


@pytest.mark.slow
def test_processes_evaluate_vectors_as_one(tiny_model, sample_corpus_dir, tmp_path):
    def arguments(kind, processes):
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        given = [f"kind={kind}", f"task={kind}", f"model={tiny_model}", f"output_dir={folder}/{processes}"]
        return given + FEATURE_RECIPES[kind](sample_corpus_dir, folder)

    for kind in FEATURE_RECIPES:
        main(arguments(kind, 1))
    for processes in (2, 3):
        commands = [arguments(kind, processes) for kind in FEATURE_RECIPES]
        codes, printed = run_in(processes, PROGRAM, commands, tmp_path)
        assert codes == [0] * processes, printed
        for kind in FEATURE_RECIPES:
            one, several = (tmp_path / kind / str(number) for number in (1, processes))
            predicted = (one / "seed-1" / "predictions").glob("*")
            for name in ("results.csv", *(str(file.relative_to(one)) for file in predicted)):
                assert (several / name).read_bytes() == (one / name).read_bytes(), (kind, processes, name)
            records = [json.loads((folder / "seed-1" / "scores.json").read_text()) for folder in (one, several)]
            assert [record.pop("processes") for record in records] == [1, processes]
            assert records[0]["scores"] and records[0] == records[1]
            assert json.loads((several / "results.json").read_text())["processes"] == [processes]


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
