"""finetuning/run.py with kind mining: from pools and gold to results."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks.vectors.mining import Pool, chance_level, divide
from finetuning.tasks.vectors.search import mine
from tests.finetuning.feature_recipes import DEV, mining_of, sentence, write_pools
from tests.finetuning.labeled_rows import write_configs

RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes"


@pytest.fixture
def pools(tmp_path):
    return partial(write_pools, tmp_path)


@pytest.fixture
def mined(feature_recipe, tmp_path):
    return feature_recipe("mining", tmp_path)


def vectors(model_dir, texts, layer):
    """(N, H) vectors, one sentence at a time."""
    model = AutoModel.from_pretrained(model_dir, add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    with torch.no_grad():
        states = [
            model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states for text in texts
        ]
    return torch.stack([of_text[layer][0, 1:-1].mean(0) for of_text in states])


def test_mining_task_scores_by_the_threshold_of_dev(feature_run, tiny_model):
    results = read_results(feature_run("mining")[0])
    for layer in (0, 2):
        found = {}
        for name, numbers in (("dev", range(20)), ("test", range(20, 60))):
            target = [sentence(n if n % 3 == 0 else n + 500, " !") for n in numbers]
            pairs = mine(*(vectors(tiny_model, side, layer) for side in ([sentence(n) for n in numbers], target)))
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
    warnings = "\n".join(results["warnings"])
    assert re.search(r"\b13 gold .* 40 and 40\b", warnings)


def test_divide_shares_no_text_and_repeats():
    gold = {(n, n) for n in range(40)} | {(0, 1), (1, 50), (2, 51), (3, 51)}  # texts in two pairs, in a chain
    pool = Pool([f"s{n}" for n in range(100)], [f"t{n}" for n in range(160)], gold)
    dev, rest = divide(pool, 0.25, "xx-en")
    for side in ("source", "target"):
        parts = [set(getattr(part, side)) for part in (dev, rest)]
        assert not parts[0] & parts[1] and parts[0] | parts[1] == set(getattr(pool, side))
    named = [{(part.source[s], part.target[t]) for s, t in part.gold} for part in (dev, rest)]
    assert named[0] | named[1] == {(f"s{s}", f"t{t}") for s, t in gold} and not named[0] & named[1]
    assert 11 <= len(dev.gold) <= 14  # a quarter, except that chains stay together
    assert len(dev.source) == pytest.approx(25, abs=4) and len(dev.target) == pytest.approx(40, abs=4)
    assert divide(pool, 0.25, "xx-en") == (dev, rest)


def test_read_pools_merges_equal_texts_and_leaves_out_others(mined, pools, tmp_path):
    more = [{"id": "again", "text": sentence(21)}]  # gold knows it as s21
    more += [{"id": "empty", "text": " \u200b"}, {"id": "null", "text": None}]
    gold = [("again", 21), ("empty", 21), ("nowhere", 22), ("s22", 9999)]
    part = pools(slice(20, 60), source=more, gold=[{"s": s, "t": t} for s, t in gold])
    main([*mined, mining_of({**part, "dev": pools(DEV, "dev")})])
    results = read_results(tmp_path / "out")
    protocol, warnings = results["protocol"], results["warnings"]
    assert protocol["pool_sizes"] == {"xx-en": [40, 40]} and protocol["evaluated_rows"] == {"xx-en": 13}
    assert protocol["evaluation_data"][0]["not_in_pools"] == 3
    assert "xx-en: 3 gold pairs are not in the pools" in "\n".join(warnings)


def test_chance_level_of_random_pairs():
    generator = torch.Generator().manual_seed(0)
    pool = Pool(["s"] * 8, ["t"] * 20, {(n, n) for n in range(5)})
    drawn = [torch.randperm(20, generator=generator)[:8] for _ in range(4000)]
    right = sum(int((order[:5] == torch.arange(5)).sum()) for order in drawn) / len(drawn)
    levels = chance_level(pool)
    assert levels["recall"] == pytest.approx(100 * right / 5, rel=0.1)
    assert levels["precision"] == pytest.approx(100 * right / 8, rel=0.1)
    assert levels["f1"] == pytest.approx(2 / (1 / levels["precision"] + 1 / levels["recall"]))


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
    assert "de-en: 1 gold pairs are not in the pools" in warnings and "de-en: 29 gold pairs among 29 and 29" in warnings
