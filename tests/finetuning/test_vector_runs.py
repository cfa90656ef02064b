"""Runs of all kinds that train nothing: retrieval, mining and word alignment; in several processes as in one."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from datasets import load_dataset
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, XLMRobertaModel

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
from crosslingual_zoo.zoo_core.provenance import read_json
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.feature_recipes import FEATURE_RECIPES, METHODS, mining_of, pairs_of, sentence, twin, write_pools
from tests.finetuning.labeled_rows import write_configs
from tests.finetuning.tasks import main_in, predictions

KINDS = {  # metric, methods, evaluated rows, and of the protocol
    "retrieval": ("accuracy", ["mean"], {"de-en": 60, "zh-en": 60}, {"pooling": "mean", "similarity": "cosine"}),
    "mining": ("f1", ["mean"], {"xx-en": 13}, {"margin": "ratio", "neighbors": 4, "dev_rows": {"xx-en": 7}}),
    "word_alignment": ("aer", METHODS, {"en-de": 20, "zh-en": 10}, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_vector_run_writes_results(kind, feature_run):
    metric, methods, evaluated, expected = KINDS[kind]
    out = feature_run(kind)
    results = read_results(out)
    assert (results["kind"], results["setting"], results["seeds"]) == (kind, "feature", [1])
    expected = expected | {"method": methods[0], "layer": 1, "depth": 2, "evaluated_rows": evaluated}
    assert {name: results["protocol"][name] for name in expected} == expected
    assert results["protocol"]["metric"]["greater_is_better"] == (metric != "aer")
    assert (results.metric, results.methods, results.layers) == (metric, methods, [0, 1, 2])
    reported = {pair: results.of(pair, metric, methods[0], 1) for pair in evaluated}
    assert results.languages == reported
    assert results.average["mean"] == pytest.approx(np.mean([entry["mean"] for entry in reported.values()]))
    rows = pandas.read_csv(out / "results.csv")
    assert len(rows) == len(evaluated) * 3 * len(methods) * (4 if kind == "word_alignment" else 3)


def test_predictions_of_retrieval_give_the_accuracy(feature_run):
    out = feature_run("retrieval")
    results = read_results(out)
    for pair in results.names:
        rows = predictions(out / "seed-1", pair)
        assert [row["row"] for row in rows] == list(range(60))
        for side, metric in (("target", "source_to_target"), ("source", "target_to_source")):
            is_right = [row[side] == row[f"found_{side}"] for row in rows]
            assert results.of(pair, metric)["mean"] == pytest.approx(100 * np.mean(is_right))


@pytest.fixture
def mined(feature_recipe, tmp_path):
    """Overrides of a recipe that mines the pools of `write_pools`."""
    return feature_recipe("mining", tmp_path)


def test_predictions_of_mining_are_those_counted(feature_run):
    out = feature_run("mining")
    results = read_results(out)
    for pair, counts in results["protocol"]["counts"].items():
        rows = predictions(out / "seed-1", pair)
        assert len(rows) == counts["mined"]
        assert sum(row["is_gold"] for row in rows) == counts["right"]
        margins = [row["margin"] for row in rows]
        assert margins == sorted(margins, reverse=True)


def assert_same_run(single, several, processes):
    """Scores, predictions and records are those of one process; the number of processes is recorded."""
    for file in (single / "results.csv", *(single / "seed-1" / "predictions").glob("*")):
        assert (several / file.relative_to(single)).read_bytes() == file.read_bytes(), file
    expected = read_json(single / "seed-1" / "scores.json")
    assert expected["scores"]
    assert read_json(several / "seed-1" / "scores.json") == expected | {"processes": processes}
    assert read_json(several / "results.json")["processes"] == [processes]


@pytest.mark.slow
def test_vector_run_in_processes_is_that_of_one(tiny_model, sample_corpus_dir, tmp_path):
    recipes = {}
    for kind, fields_of in FEATURE_RECIPES.items():
        (tmp_path / kind).mkdir()
        fields = fields_of(sample_corpus_dir, tmp_path / kind)
        recipes[kind] = [f"kind={kind}", f"task={kind}", f"model={tiny_model}", *fields]
        main([*recipes[kind], f"output_dir={tmp_path / kind}/1"])
    for processes in (2, 3):
        commands = [[*recipe, f"output_dir={tmp_path / kind}/{processes}"] for kind, recipe in recipes.items()]
        printed = main_in(processes, commands, tmp_path)
        assert "ended with" not in printed, printed
        for kind in recipes:
            assert_same_run(tmp_path / kind / "1", tmp_path / kind / str(processes), processes)


def vectors(model_dir, texts):
    """By layer, vectors (N, H): the mean over the tokens of each text, one text at a time."""
    model = AutoModel.from_pretrained(model_dir, add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    vectors_of_texts = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs, output_hidden_states=True).hidden_states
        vectors_of_texts.append(torch.stack([states_1TH[0, 1:-1].mean(0) for states_1TH in states]))
    return torch.stack(vectors_of_texts, dim=1)


def test_retrieval_task_scores_as_brute_force(feature_run, tiny_model, sample_corpus_dir):
    results = read_results(feature_run("retrieval"))
    chinese = load_dataset(str(sample_corpus_dir), "zh", split="test")["text"]
    english = load_dataset(str(sample_corpus_dir), "en", split="test")["text"]
    source_LNH = F.normalize(vectors(tiny_model, chinese), dim=2)
    target_LNH = F.normalize(vectors(tiny_model, english), dim=2)
    gold = torch.arange(len(chinese))
    for layer, cosines in enumerate(source_LNH @ target_LNH.mT):
        for axis, metric in ((1, "source_to_target"), (0, "target_to_source")):
            is_right = cosines.argmax(axis) == gold
            score = results.of("zh-en", metric, layer=layer)["mean"]
            assert score == pytest.approx(100 * is_right.double().mean().item())


def test_read_retrieval_leaves_out_rows_without_partner_or_text(write):
    def side(language, texts):
        rows = [{"id": number, "text": text and f"{language} {text}"} for number, text in texts.items()]
        return {"path": write(language, rows)}

    german = {1: "no partner", 2: "", 3: "three", 4: "four", 5: "five", 6: "six"}
    english = {6: "six", 5: "", 4: "four", 3: "three", 2: "two", 0: "no partner", 9: "no partner"}
    pair = {**side("de", german), "source_column": "text", "source_language": "de", "join_on": "id"}
    pair |= {"target": side("en", english), "target_column": "text", "target_language": "en"}
    recipe = load_recipe(RetrievalRecipe, None, ["model=m", "output_dir=o", "task=t", pairs_of(pair)])
    data = task_of(recipe).read()
    source, target = data.pairs["de-en"]
    assert source.texts == ["de three", "de four", "de six"]
    assert target.texts == ["en three", "en four", "en six"]
    (entry,) = data.protocol["evaluation_data"]
    assert (entry["rows"], entry["unpaired"], entry["empty"]) == (3, [1, 2], 2)


def test_accuracy_where_texts_repeat():
    source = Side.of(["a", "b", "a", "c"])
    target = Side.of(["A", "B", "X", "A"])
    assert source.texts == ["a", "b", "c"]
    assert source.of_pairs == [0, 1, 0, 2]
    assert target.of_pairs == [0, 1, 2, 0]
    # a finds A: right in its first pair, not in its second, whose translation is X. A finds a: right for a, not for c
    found_source = np.array([0, 0, 0])
    found_target = np.array([0, 2, 0])
    assert retrieval.accuracy((source, target), found_source, found_target) == {
        "source_to_target": 50.0, "target_to_source": 50.0, "accuracy": 50.0
    }  # fmt: skip


RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes"


@pytest.fixture
def pools(tmp_path):
    """pools(part, name="test", ...) -> a pool's tables, as `write_pools`."""
    return partial(write_pools, tmp_path)


def mined_pool(model, numbers, layer):
    """The margin of each pair mined from the sentences of these numbers, and whether the pair is gold."""
    source = vectors(model, [sentence(number) for number in numbers])
    target = vectors(model, [twin(number) for number in numbers])
    sources, targets, margins = mine(source[layer], target[layer])
    has_twin = np.array(numbers) % 3 == 0
    return margins, (sources == targets) & has_twin[sources]


def test_mining_task_scores_by_the_threshold_of_dev(feature_run, tiny_model):
    results = read_results(feature_run("mining"))
    dev_gold = 7
    test_gold = 13
    for layer in (0, 2):
        margins, is_gold = mined_pool(tiny_model, range(20), layer)
        cuts = np.sort(margins)[::-1]
        dev_f1 = []
        for cut in cuts:
            is_taken = margins >= cut
            dev_f1.append(2 * is_gold[is_taken].sum() / (is_taken.sum() + dev_gold))
        best = np.argmax(dev_f1)
        threshold = cuts[best : best + 2].mean()  # between the last pair that is taken and the next one

        margins, is_gold = mined_pool(tiny_model, range(20, 60), layer)
        is_taken = margins >= threshold
        right = is_gold[is_taken].sum()
        f1 = results.of("xx-en", "f1", layer=layer)["mean"]
        assert f1 == pytest.approx(200 * right / (is_taken.sum() + test_gold))
        assert results.of("xx-en", "recall", layer=layer)["mean"] == pytest.approx(100 * right / test_gold)
    assert results.average["mean"] > 30, "the twins are nearly equal"


def test_divide_shares_no_text_and_repeats():
    gold = {(n, 159 - n) for n in range(40)} | {(0, 158), (1, 50), (2, 51), (3, 51)}  # texts in two pairs, in a chain
    pool = Pool([f"s{n}" for n in range(100)], [f"t{n}" for n in range(160)], gold)
    parts = divide(pool, 0.25, "xx-en")
    dev, rest = parts
    assert sorted(dev.source + rest.source) == sorted(pool.source)
    assert sorted(dev.target + rest.target) == sorted(pool.target)
    divided = []
    for part in parts:
        divided += [(part.source[s], part.target[t]) for s, t in part.gold]
    assert len(set(divided)) == len(divided) >= len(gold) - 4  # of chains, some are lost
    assert set(divided) <= {(f"s{s}", f"t{t}") for s, t in gold}
    assert 10 <= len(dev.gold) <= 14
    assert len(dev.source) == pytest.approx(25, abs=4)
    assert len(dev.target) == pytest.approx(40, abs=4)
    assert divide(pool, 0.25, "xx-en") == parts


def test_read_pools_merges_equal_texts_and_leaves_out_others(mined, pools, tmp_path):
    more = [{"id": "again", "text": sentence(21)}]  # gold knows it as s21
    more += [{"id": "empty", "text": " \u200b"}, {"id": "null", "text": None}]
    gold = [("again", 21), ("empty", 21), ("nowhere", 22), ("s22", 9999)]
    part = pools(slice(20, 60), source=more, gold=[{"s": s, "t": t} for s, t in gold])
    main([*mined, mining_of({**part, "dev": pools(slice(0, 22), "dev")})])
    results = read_results(tmp_path / "out")
    protocol = results["protocol"]
    assert protocol["pool_sizes"] == {"xx-en": [40, 40]}
    assert protocol["evaluated_rows"] == {"xx-en": 13}
    assert protocol["evaluation_data"][0]["not_in_pools"] == 3
    assert any("xx-en: 4 texts" in warning for warning in results["warnings"])


def test_read_pools_of_the_pairs_alone(mined, tmp_path):
    configs = {}
    for language in ("de", "zh"):
        rows = [{"source_sentence": f"{sentence(n)} {language}", "target_sentence": sentence(n)} for n in range(50)]
        rows[30]["target_sentence"] = ""
        configs[f"bucc18.{language}"] = {"validation": rows[:20], "test": rows[20:]}
    write_configs(tmp_path / "hub" / "google" / "xtreme", configs)
    recipe = ["--config", str(RECIPES / "xtreme" / "bucc.yaml"), *mined[1:3], f"hub_root={tmp_path / 'hub'}"]
    main([*recipe, "pairs.0.languages=[de, zh]", "max_length=64"])
    results = read_results(tmp_path / "out")
    assert results["protocol"]["pool_sizes"] == {"de-en": [29, 29], "zh-en": [29, 29]}
    assert results["protocol"]["dev_rows"] == {"de-en": 20, "zh-en": 20}
    assert any("de-en: 1 gold pairs are not in the pools" in warning for warning in results["warnings"])


@pytest.fixture
def chinese(sample_corpus_dir):
    """The Chinese-English pairs of the sample corpus, and their gold links."""
    folder = sample_corpus_dir / "alignments"
    return list(PairReader([str(folder / "zh-en.txt")])), read_gold(folder / "zh-en.gold")


def test_sweep_needs_one_forward_pass(aligner, chinese, monkeypatch):
    pairs, gold = chinese
    del gold[1]
    passes = []
    forward = XLMRobertaModel.forward
    monkeypatch.setattr(
        XLMRobertaModel, "forward", lambda *args, **kwargs: passes.append(1) or forward(*args, **kwargs)
    )
    options = {"ot": {"sinkhorn_iterations": 5}, "itermax": {}, "mutual": {}}
    scores = sweep(aligner(), pairs, gold, range(3), options)
    assert len(passes) == 2  # of the sources and of the targets
    assert {name: list(by_layer) for name, by_layer in scores.items()} == dict.fromkeys(options, [0, 1, 2])
    assert len({scores_of_layer["aer"] for scores_of_layer in scores["itermax"].values()}) == 3
    for method, layer in (("ot", 0), ("itermax", 0), ("itermax", 1), ("mutual", 2)):
        alone = aligner(method=method, layer=layer, **options[method])
        links = {number: next(alone.align([pairs[number]])).links for number in gold}
        assert score(links, gold) == scores[method][layer]


def test_position_links():
    assert position_links(3, 3) == [(0, 0), (1, 1), (2, 2)]
    assert position_links(3, 5) == [(0, 0), (1, 2), (2, 4)]
    assert position_links(0, 3) == [] == position_links(3, 0)


def test_word_alignment_task_scores_as_the_aligner(feature_recipe, tmp_path, aligner, chinese):
    main([*feature_recipe("word_alignment", tmp_path), "batch_size=3", "layer=1"])
    results = read_results(tmp_path / "out")
    pairs, gold = chinese
    links = [alignment.links for alignment in aligner(method="ot", layer=1).align(pairs)]
    references = [{"sure": list(row.sure), "possible": list(row.possible)} for row in gold.values()]
    expected = load_metric("aer").compute(predictions=links, references=references)
    assert {name: results.of("zh-en", name)["mean"] for name in results.metrics} == pytest.approx(expected)
    assert results["protocol"]["options"] == METHOD_OPTIONS["ot"]


@pytest.mark.parametrize(("half", "first"), [("even", 0), ("odd", 1)])
def test_read_word_alignment_of_a_half(half, first, feature_recipe, tmp_path):
    overrides = [*feature_recipe("word_alignment", tmp_path), f"pairs.1.sentences={half}"]
    pairs = task_of(load_recipe(WordAlignmentRecipe, None, overrides)).read().pairs
    assert sorted(pairs["zh-en"][1]) == list(range(first, 10, 2))
    assert len(pairs["en-de"][1]) == 20
