"""Tests of all kinds that train nothing: retrieval, mining and word alignment with the vectors of a model."""

import csv
import json
import re
from types import SimpleNamespace

import pytest

from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks.vectors.base import reported_layer
from hub_cards.card import write_card
from tests.finetuning.feature_recipes import METHODS
from tests.finetuning.tasks import predictions

LANGUAGES = ("source_language", "target_language")
NONE = {"de-en": [0, 0], "zh-en": [0, 0]}
KINDS = {
    "retrieval": SimpleNamespace(
        metric="accuracy", module="retrieval_accuracy", methods=["mean"], rows={"de-en": 60, "zh-en": 60},
        protocol=dict(pooling="mean", similarity="cosine", max_length=64, cut_texts=NONE),
    ),
    "mining": SimpleNamespace(
        metric="f1", module="mining_f1", methods=["mean"], rows={"xx-en": 13},
        protocol=dict(
            margin="ratio", neighbors=4, pool_sizes={"xx-en": [40, 40]}, dev_sizes={"xx-en": [20, 20]},
            dev_rows={"xx-en": 7},
        ),
    ),
    "word_alignment": SimpleNamespace(
        metric="aer", module="aer", methods=METHODS, rows={"en-de": 20, "zh-en": 10},
        protocol=dict(encoding="separate"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_vector_run_writes_results(kind, feature_run):
    facts, out = KINDS[kind], feature_run(kind)[0]
    assert {path.name for path in out.iterdir()} == {
        "recipe.yaml", "run.json", "results.json", "results.md", "results.csv", "scores.png", "seed-1",
    }  # fmt: skip
    results = read_results(out)
    assert (results["kind"], results["setting"], results["seeds"]) == (kind, "feature", [1])
    expected = facts.protocol | {
        "method": facts.methods[0], "layer": 1, "depth": 2, "evaluated_rows": facts.rows,
        "selection": {"rule": "three fifths of the layers", "data": None},
        "metric": {
            "name": facts.metric, "module": facts.module, "version": "1.0.0",
            "unit": "percent", "greater_is_better": facts.metric != "aer",
        },
    }  # fmt: skip
    assert {name: results["protocol"][name] for name in expected} == expected
    tables = results["protocol"]["evaluation_data"]
    assert [table["languages"] for table in tables] == [[pair] for pair in facts.rows]
    assert all(table["fingerprint"].startswith("sha256:") for table in tables)

    assert (results.metric, results.methods, results.layers) == (facts.metric, facts.methods, [0, 1, 2])
    reported = {pair: results.of(pair, facts.metric, facts.methods[0], 1) for pair in facts.rows}
    assert results.languages == reported
    mean = sum(entry["mean"] for entry in reported.values()) / len(reported)
    assert results.average["mean"] == pytest.approx(mean)
    with (out / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(facts.rows) * 3 * len(facts.methods) * (4 if kind == "word_alignment" else 3)


def test_reported_layer_by_depth():
    named = (("middle", 5), ("two_thirds", 12), (None, 12))
    assert [reported_layer(name, [], depth)[0] for name, depth in named] == [2, 8, 7]


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

    model = tmp_path / "run-2" / "model"
    card = write_card(str(model), [str(out / "results.json")]).read_text(encoding="utf-8")
    assert re.search("name: aer, average, .* at layer 1, 2 seeds", card)
    change_weights(model)
    with pytest.raises(ValueError, match="weights"):
        write_card(str(model), [str(out / "results.json")])
    assert "seed 2" in " ".join(refused([*recipe, "seeds=[1, 2]", "--resume"]).split())


SAME = json.dumps([{"path": "SAME", "source_column": "x", "target_column": "y", **dict.fromkeys(LANGUAGES, "a")}])
REFUSED = {
    "retrieval": {
        "3": ["layer=3"],
        "reported is 1": ["layer=middle", "layers=[0, 2]"],
        "seeds is [1, 2]": ["seeds=[1, 2]"],
        "pairs.0": ["pairs.0.languages=[]"],
        "pairs.0 has no target": ["pairs.0.target=null", "pairs.0.join_on=null"],
        "1 different text": [f"pairs={SAME}"],
    },
    "mining": {
        "without dev are [0]": ["pairs.0.dev=null"],
        "column ids": ["pairs.0.source.id_column=ids"],
        "['21'] in gold": ["pairs.0.gold.source_column=t"],
        "dev_fraction 0.01": ["pairs.0.dev=null", "dev_fraction=0.01"],
    },
    "word_alignment": {
        "otter": ["methods=[otter]"],
        "10 lines": ["pairs.0.gold=zh-en.gold"],
    },
}


@pytest.mark.parametrize(("kind", "named"), [(kind, named) for kind, of_kind in REFUSED.items() for named in of_kind])
def test_vector_run_refuses(kind, named, feature_recipe, tmp_path, refused, write):
    path = write("same", [{"x": "x", "y": "z"}] * 3)
    changes = [change.replace("SAME", path) for change in REFUSED[kind][named]]
    assert named in " ".join(refused([*feature_recipe(kind, tmp_path), *changes]).split())
    assert not (tmp_path / "out").exists()


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
