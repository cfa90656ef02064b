"""Runs of all kinds that train nothing: retrieval, mining and word alignment; in several processes as in one."""

import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import load_dataset
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from crosslingual_zoo.finetuning.align.gold import read_gold
from crosslingual_zoo.finetuning.align.pairs import PairReader
from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.finetuning.tasks.vectors import retrieval
from crosslingual_zoo.finetuning.tasks.vectors.mining import Pool, divide
from crosslingual_zoo.finetuning.tasks.vectors.recipe import RetrievalRecipe, WordAlignmentRecipe
from crosslingual_zoo.finetuning.tasks.vectors.retrieval import Side
from crosslingual_zoo.finetuning.tasks.vectors.search import mine
from crosslingual_zoo.finetuning.tasks.vectors.word_alignment import position_links, score, sweep
from crosslingual_zoo.modeling.optimal_transport import METHOD_OPTIONS
from crosslingual_zoo.modeling.word_alignment import WordAligner
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.feature_recipes import FEATURE_RECIPES, METHODS, mining_of, pairs_of, sentence, write_pools
from tests.finetuning.labeled_rows import write_configs
from tests.finetuning.tasks import main_in, predictions

KINDS = {  # metric, methods, evaluated rows, and of the protocol
    "retrieval": ("accuracy", ["mean"], {"de-en": 60, "zh-en": 60}, {"pooling": "mean", "similarity": "cosine"}),
    "mining": ("f1", ["mean"], {"xx-en": 13}, {"margin": "ratio", "neighbors": 4, "dev_rows": {"xx-en": 7}}),
    "word_alignment": ("aer", METHODS, {"en-de": 20, "zh-en": 10}, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_vector_run_writes_results(kind, feature_run):
    (metric, methods, evaluated, expected), out = KINDS[kind], feature_run(kind)
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


def test_predictions_of_retrieval_give_the_accuracy(feature_run):
    out = feature_run("retrieval")
    results = read_results(out)
    for pair in results.names:
        rows = predictions(out / "seed-1", pair)
        assert [row["row"] for row in rows] == list(range(results["protocol"]["evaluated_rows"][pair]))
        for side, metric in (("target", "source_to_target"), ("source", "target_to_source")):
            right = sum(row[side] == row[f"found_{side}"] for row in rows)
            assert results.of(pair, metric)["mean"] == pytest.approx(100 * right / len(rows))


def test_predictions_of_mining_are_those_counted(feature_run):
    out = feature_run("mining")
    results = read_results(out)
    for pair, counts in results["protocol"]["counts"].items():
        rows = predictions(out / "seed-1", pair)
        assert (len(rows), sum(row["is_gold"] for row in rows)) == (counts["mined"], counts["right"])
        margins = [row["margin"] for row in rows]
        assert margins == sorted(margins, reverse=True)


@pytest.mark.slow
def test_vector_run_in_processes_is_that_of_one(tiny_model, sample_corpus_dir, tmp_path):
    def arguments(kind, processes):
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        given = [f"kind={kind}", f"task={kind}", f"model={tiny_model}", f"output_dir={folder}/{processes}"]
        return given + FEATURE_RECIPES[kind](sample_corpus_dir, folder)

    for kind in FEATURE_RECIPES:
        main(arguments(kind, 1))
    for processes in (2, 3):
        said = main_in(processes, [arguments(kind, processes) for kind in FEATURE_RECIPES], tmp_path)
        assert "ended with" not in said, said
        for kind in FEATURE_RECIPES:
            one, several = (tmp_path / kind / str(number) for number in (1, processes))
            predicted = (one / "seed-1" / "predictions").glob("*")
            for name in ("results.csv", *(str(file.relative_to(one)) for file in predicted)):
                assert (several / name).read_bytes() == (one / name).read_bytes(), (kind, processes, name)
            records = [json.loads((folder / "seed-1" / "scores.json").read_text()) for folder in (one, several)]
            assert [record.pop("processes") for record in records] == [1, processes]
            assert records[0]["scores"] and records[0] == records[1]
            assert json.loads((several / "results.json").read_text())["processes"] == [processes]


def vectors(model_dir, texts):
    """By layer, vectors (N, H): the mean over the tokens of each text, one text at a time."""
    model = AutoModel.from_pretrained(model_dir, add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    with torch.no_grad():
        states = [model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)[1] for text in texts]
    return [torch.stack([layer[0, 1:-1].mean(0) for layer in layers]) for layers in zip(*states, strict=True)]


def test_retrieval_task_scores_as_brute_force(feature_run, tiny_model, sample_corpus_dir):
    results = read_results(feature_run("retrieval"))
    texts = [load_dataset(str(sample_corpus_dir), config, split="test")["text"] for config in ("zh", "en")]
    gold = torch.arange(len(texts[0]))
    for layer, sides in enumerate(zip(*(vectors(tiny_model, side) for side in texts), strict=True)):
        source, target = (F.normalize(side, dim=1) for side in sides)
        right = [(source @ target.T).argmax(axis) == gold for axis in (1, 0)]
        shown = [results.of("zh-en", name, layer=layer)["mean"] for name in ("source_to_target", "target_to_source")]
        assert shown == pytest.approx([100 * side.double().mean().item() for side in right])


def test_read_retrieval_leaves_out_rows_without_partner_or_text(write):
    def side(name, ids, empty):
        rows = [{"id": n, "text": "" if n == empty else f"{name} {n}"} for n in ids]
        return {"path": write(name, rows)}

    pair = {**side("de", range(8), 2), "source_column": "text", "source_language": "de", "join_on": "id"}
    pair |= {"target": side("en", range(12, 2, -1), 5), "target_column": "text", "target_language": "en"}
    recipe = load_recipe(RetrievalRecipe, None, ["model=m", "output_dir=o", "task=t", pairs_of(pair)])
    data = task_of(recipe).read()
    assert [of.texts for of in data.pairs["de-en"]] == [[f"{name} {n}" for n in (3, 4, 6, 7)] for name in ("de", "en")]
    (entry,) = data.protocol["evaluation_data"]
    assert (entry["rows"], entry["unpaired"], entry["empty"]) == (4, [3, 5], 1)


def test_accuracy_where_texts_repeat():
    source, target = Side.of(["a", "b", "a", "c"]), Side.of(["A", "B", "X", "A"])
    assert (source.texts, source.of_pairs, target.of_pairs) == (["a", "b", "c"], [0, 1, 0, 2], [0, 1, 2, 0])
    # a finds A: right in its first pair, not in its second, whose translation is X. A finds a: right for a, not for c
    found_source, found_target = np.array([0, 0, 0]), np.array([0, 2, 0])
    assert retrieval.accuracy((source, target), found_source, found_target) == {
        "source_to_target": 50.0, "target_to_source": 50.0, "accuracy": 50.0
    }  # fmt: skip


RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes"


@pytest.fixture
def pools(tmp_path):
    return partial(write_pools, tmp_path)


@pytest.fixture
def mined(feature_recipe, tmp_path):
    return feature_recipe("mining", tmp_path)


def test_mining_task_scores_by_the_threshold_of_dev(feature_run, tiny_model):
    results = read_results(feature_run("mining"))
    for layer in (0, 2):
        found = {}
        for name, numbers in (("dev", range(20)), ("test", range(20, 60))):
            target = [sentence(n if n % 3 == 0 else n + 500, " !") for n in numbers]
            pairs = mine(*(vectors(tiny_model, side)[layer] for side in ([sentence(n) for n in numbers], target)))
            right = (pairs[0] == pairs[1]) & ([numbers[place] % 3 == 0 for place in pairs[0]])
            found[name] = (pairs[2], right, sum(n % 3 == 0 for n in numbers))
        scores, right, gold = found["dev"]
        cuts = sorted(scores, reverse=True)  # the lower score of each cut is the place to look at
        dev_f1 = [200 * right[scores >= cut].sum() / ((scores >= cut).sum() + gold) for cut in cuts]
        best = cuts[dev_f1.index(max(dev_f1))]
        below = max((score for score in scores if score < best), default=best)
        scores, right, gold = found["test"]
        taken = scores >= (best + below) / 2
        f1, recall = (results.of("xx-en", name, layer=layer)["mean"] for name in ("f1", "recall"))
        assert f1 == pytest.approx(200 * right[taken].sum() / (taken.sum() + gold)) and gold == 13
        assert recall == pytest.approx(100 * right[taken].sum() / gold)
    assert results.average["mean"] > 30, "the twins are nearly equal"


def test_divide_shares_no_text_and_repeats():
    gold = {(n, 159 - n) for n in range(40)} | {(0, 158), (1, 50), (2, 51), (3, 51)}  # texts in two pairs, in a chain
    pool = Pool([f"s{n}" for n in range(100)], [f"t{n}" for n in range(160)], gold)
    dev, rest = divide(pool, 0.25, "xx-en")
    for side in ("source", "target"):
        parts = [set(getattr(part, side)) for part in (dev, rest)]
        assert not parts[0] & parts[1] and parts[0] | parts[1] == set(getattr(pool, side))
    named = [{(part.source[s], part.target[t]) for s, t in part.gold} for part in (dev, rest)]
    assert named[0] | named[1] <= {(f"s{s}", f"t{t}") for s, t in gold} and not named[0] & named[1]
    assert 10 <= len(dev.gold) <= 14 and len(dev.gold) + len(rest.gold) >= len(gold) - 4  # of chains, some are lost
    assert len(dev.source) == pytest.approx(25, abs=4) and len(dev.target) == pytest.approx(40, abs=4)
    assert divide(pool, 0.25, "xx-en") == (dev, rest)


def test_read_pools_merges_equal_texts_and_leaves_out_others(mined, pools, tmp_path):
    more = [{"id": "again", "text": sentence(21)}]  # gold knows it as s21
    more += [{"id": "empty", "text": " \u200b"}, {"id": "null", "text": None}]
    gold = [("again", 21), ("empty", 21), ("nowhere", 22), ("s22", 9999)]
    part = pools(slice(20, 60), source=more, gold=[{"s": s, "t": t} for s, t in gold])
    main([*mined, mining_of({**part, "dev": pools(slice(0, 22), "dev")})])
    results = read_results(tmp_path / "out")
    protocol, warnings = results["protocol"], results["warnings"]
    assert protocol["pool_sizes"] == {"xx-en": [40, 40]} and protocol["evaluated_rows"] == {"xx-en": 13}
    assert protocol["evaluation_data"][0]["not_in_pools"] == 3
    assert all(any(f"xx-en: {count}" in line for line in warnings) for count in ("3 gold pairs", "4 texts"))


def test_read_pools_of_the_pairs_alone(mined, tmp_path):
    def rows(language, numbers):
        texts = [(f"{sentence(n)} {language}", sentence(n) if n != 30 else "") for n in numbers]
        return [dict(zip(("source_sentence", "target_sentence"), pair, strict=True)) for pair in texts]

    parts = {"validation": range(20), "test": range(20, 50)}
    splits = {f"bucc18.{code}": {name: rows(code, of) for name, of in parts.items()} for code in ("de", "zh")}
    write_configs(tmp_path / "hub" / "google" / "xtreme", splits)
    recipe = ["--config", str(RECIPES / "xtreme" / "bucc.yaml"), *mined[1:3], f"hub_root={tmp_path / 'hub'}"]
    main([*recipe, "pairs.0.languages=[de, zh]", "max_length=64"])
    results = read_results(tmp_path / "out")
    assert results["protocol"]["pool_sizes"] == {"de-en": [29, 29], "zh-en": [29, 29]}
    assert results["protocol"]["dev_rows"] == {"de-en": 20, "zh-en": 20}
    warnings = "\n".join(results["warnings"])
    assert "de-en: 1 gold pairs are not in the pools" in warnings


def test_sweep_needs_one_forward_pass(tiny_model, sample_corpus_dir, monkeypatch):
    pairs = list(PairReader([str(sample_corpus_dir / "alignments/zh-en.txt")]))
    gold = {n: of for n, of in read_gold(sample_corpus_dir / "alignments/zh-en.gold").items() if n != 1}
    model = AutoModel.from_pretrained(tiny_model, add_pooling_layer=False).eval()
    passes, forward = [], type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda self, *a, **k: passes.append(1) or forward(self, *a, **k))
    aligner = WordAligner(model, AutoTokenizer.from_pretrained(tiny_model))
    options = {"ot": {"sinkhorn_iterations": 5}, "itermax": {}, "mutual": {}}
    scores = sweep(aligner, pairs, gold, range(3), options)
    assert len(passes) == 2  # of the sources and of the targets
    assert {name: list(by_layer) for name, by_layer in scores.items()} == dict.fromkeys(options, [0, 1, 2])
    assert len({of["aer"] for of in scores["itermax"].values()}) == 3
    for method, layer in (("ot", 0), ("itermax", 0), ("itermax", 1), ("mutual", 2)):  # one at a time
        alone = WordAligner(model, aligner.tokenizer, method, layer, **options[method])
        links = {n: found.links for n, found in zip(gold, alone.align([pairs[n] for n in gold]), strict=True)}
        assert score(links, gold) == scores[method][layer]


def test_position_links():
    assert position_links(3, 3) == [(0, 0), (1, 1), (2, 2)]
    assert position_links(3, 5) == [(0, 0), (1, 2), (2, 4)]
    assert position_links(0, 3) == [] == position_links(3, 0)


def test_word_alignment_task_scores_as_the_aligner(feature_recipe, tmp_path, aligner, sample_corpus_dir):
    main([*feature_recipe("word_alignment", tmp_path), "batch_size=3", "layer=1"])
    results = read_results(tmp_path / "out")
    by_ot = aligner(method="ot", layer=1)
    pairs = list(PairReader([str(sample_corpus_dir / "alignments/zh-en.txt")]))
    gold = read_gold(sample_corpus_dir / "alignments/zh-en.gold")
    found = load_metric("aer").compute(
        predictions=[alignment.links for alignment in by_ot.align(pairs)],
        references=[{"sure": list(of.sure), "possible": list(of.possible)} for of in gold.values()],
    )
    assert {name: results.of("zh-en", name)["mean"] for name in results.metrics} == pytest.approx(found)
    assert results["protocol"]["options"] == METHOD_OPTIONS["ot"]


@pytest.mark.parametrize(("half", "first"), [("even", 0), ("odd", 1)])
def test_read_word_alignment_of_a_half(half, first, feature_recipe, tmp_path):
    given = [*feature_recipe("word_alignment", tmp_path), f"pairs.1.sentences={half}"]
    pairs = task_of(load_recipe(WordAlignmentRecipe, None, given)).read().pairs
    assert sorted(pairs["zh-en"][1]) == list(range(first, 10, 2)) and len(pairs["en-de"][1]) == 20
