"""finetuning/run.py with kind mining: from pools and gold to results, and everything that reads them."""

import csv
import json
import random
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModel, AutoTokenizer

from finetuning.results.table import read_results
from finetuning.run import main
from finetuning.seeds import load_metric
from finetuning.tasks.mining import task as mining
from finetuning.tasks.mining.recipe import MiningRecipe
from finetuning.tasks.mining.search import Mined, mine
from finetuning.tasks.mining.task import Pool, chance_level, divide
from hub_cards.card import write_card
from zoo_core.recipes import load_recipe

RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes"
WORDS = "bread river letter garden window winter teacher ticket bridge lemon engine paper market silver doctor".split()
DEV = slice(0, 20)  # of the sentences of `pools`


def sentence(number, extra=""):
    return " ".join(random.Random(number).choices(WORDS, k=6)) + extra


def write_pools(folder, part, name="test", source=(), target=(), gold=()):
    """A pool's tables: part of 60 sentences a side, of which every third has a twin.

    The twin differs in its last mark, so that an untrained model finds many, but not all.
    """
    numbers = range(60)[part]
    sides = {
        "source": [{"id": f"s{n}", "text": sentence(n)} for n in numbers] + list(source),
        "target": [{"id": n, "text": sentence(n if n % 3 == 0 else n + 500, " !")} for n in numbers] + list(target),
        "gold": [{"s": f"s{n}", "t": n} for n in numbers if n % 3 == 0] + list(gold),
    }
    paths = {side: {"path": f"{folder / name}-{side}.parquet"} for side in sides}
    for side, rows in sides.items():
        Dataset.from_list(rows).to_parquet(paths[side]["path"])
    return {**paths, "gold": {**paths["gold"], "source_column": "s", "target_column": "t"}}


@pytest.fixture
def pools(tmp_path):
    return partial(write_pools, tmp_path)


def pairs_of(*tables):
    return f"pairs={json.dumps([{'source_language': 'xx', 'target_language': 'en', **table} for table in tables])}"


def recipe_of(model, folder):
    """Overrides of a recipe with dev pools of their own."""
    table = {**write_pools(folder, slice(20, 60)), "dev": write_pools(folder, DEV, "dev")}
    return ["kind=mining", f"model={model}", f"output_dir={folder / 'out'}", "task=bucc", pairs_of(table)]


@pytest.fixture
def mined(tiny_model, tmp_path):
    return recipe_of(tiny_model, tmp_path)


@pytest.fixture(scope="module")
def base(tiny_model, printed_by, tmp_path_factory):
    """Folder of a run, for reading alone, and what it printed."""
    folder = tmp_path_factory.mktemp("base")
    return folder / "out", printed_by(recipe_of(tiny_model, folder))


def vectors(model_dir, texts, layer):
    """(N, H) vectors, one sentence at a time."""
    model = AutoModel.from_pretrained(model_dir, add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    with torch.no_grad():
        states = [
            model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states for text in texts
        ]
    return torch.stack([of_text[layer][0, 1:-1].mean(0) for of_text in states])


def test_a_run_leaves_results_that_agree_with_each_other(base):
    out, printed = base
    assert {path.name for path in out.iterdir()} == {
        "recipe.yaml", "run.json", "results.json", "results.md", "results.csv", "layers.png", "seed-1",
    }  # fmt: skip
    results = read_results(out)
    assert (results["kind"], results["setting"], results["seeds"]) == ("mining", "feature", [1])
    protocol = results["protocol"]
    assert (protocol["margin"], protocol["neighbors"], protocol["threshold"]) == ("ratio", 4, "dev")
    assert (protocol["pool_sizes"], protocol["dev_sizes"]) == ({"xx-en": [40, 40]}, {"xx-en": [20, 20]})
    assert (protocol["evaluated_rows"], protocol["dev_rows"]) == ({"xx-en": 13}, {"xx-en": 7})
    assert protocol["metric"] == {
        "name": "f1", "module": "mining_f1", "version": load_metric("mining_f1").version, "unit": "percent",
        "greater_is_better": True,
    }  # fmt: skip
    assert list(results["mining"]["xx-en"]) == ["0", "1", "2"] and results.layers == [0, 1, 2]
    for layer in results.layers:
        (counts,) = results["mining"]["xx-en"][str(layer)]
        scores = {name: results.of("xx-en", name, layer=layer)["mean"] for name in results.metrics}
        assert counts["gold"] == 13 and counts["right"] <= counts["mined"] <= counts["candidates"]
        assert scores["f1"] == pytest.approx(200 * counts["right"] / (counts["mined"] + 13))
        assert scores["recall"] == pytest.approx(100 * counts["right"] / 13)
    assert results.languages["xx-en"] == results.of("xx-en", "f1", "mean", 1) == results.average
    assert results.average["mean"] > 30, "the twins are nearly equal"

    with (out / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 3 and {row["metric"] for row in rows} == {"f1", "precision", "recall"}
    page = (out / "results.md").read_text(encoding="utf-8")
    f1 = results.average["mean"]
    assert f"| xx-en | 1 | {f1:.1f} |" in page and "| 40 x 40 | 13 |" in page and "## mean, by layer" in page
    assert "4 nearest neighbors, by exact search in both directions, and taken one-to-one" in page
    assert "best F1 on dev, by pair and layer: dev-gold.parquet whole file (7 gold pairs)" in page
    assert f"xx-en {results['mining']['xx-en']['1'][0]['mined']} pairs from margin" in page
    assert any("13 gold pairs are to be found among 40 and 40 sentences" in line for line in results["warnings"])
    assert any("fitted on 7 gold pairs" in line for line in results["warnings"])
    assert "xx-en, 40 x 40 sentences, layers 0 to 2" in printed


def test_the_threshold_is_that_of_dev_and_scores_are_those_of_brute_force(base, tiny_model):
    results = read_results(base[0])
    for layer in (0, 2):
        found = {}
        for name, numbers in (("dev", range(20)), ("test", range(20, 60))):
            target = [sentence(n if n % 3 == 0 else n + 500, " !") for n in numbers]
            pairs = mine(*(vectors(tiny_model, side, layer) for side in ([sentence(n) for n in numbers], target)))
            right = (pairs.source == pairs.target) & ([numbers[place] % 3 == 0 for place in pairs.source])
            found[name] = (pairs.scores, right, sum(n % 3 == 0 for n in numbers))
        scores, right, gold = found["dev"]
        cuts = sorted(scores, reverse=True)  # the lower score of each cut is the place to look at
        dev_f1 = [200 * right[scores >= cut].sum() / ((scores >= cut).sum() + gold) for cut in cuts]
        (outcome,) = results["mining"]["xx-en"][str(layer)]
        assert outcome["dev_f1"] == pytest.approx(max(dev_f1))
        assert 200 * right[scores >= outcome["threshold"]].sum() / (
            (scores >= outcome["threshold"]).sum() + gold
        ) == pytest.approx(max(dev_f1))
        scores, right, gold = found["test"]
        taken = scores >= outcome["threshold"]
        assert (outcome["mined"], outcome["right"]) == (taken.sum(), right[taken].sum())


def test_a_threshold_of_the_evaluated_gold_is_an_upper_bound_and_says_so(mined, base, tmp_path, pools):
    main([*mined, pairs_of(pools(slice(20, 60))), "threshold=evaluated"])
    bound, results = read_results(tmp_path / "out"), read_results(base[0])
    for layer in results.layers:
        assert bound.of("xx-en", layer=layer)["mean"] >= results.of("xx-en", layer=layer)["mean"]
    assert bound["mining"]["xx-en"]["1"][0]["dev_f1"] is None
    assert any("fitted on the evaluated gold itself: F1 is an upper bound" in line for line in bound["warnings"])
    page = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert "an upper bound" in page.partition("## Protocol")[2]


def test_a_part_of_the_pools_can_be_kept_apart(mined, tmp_path, pools):
    main([*mined, pairs_of(pools(slice(0, 60))), "dev_fraction=0.5"])
    results = read_results(tmp_path / "out")
    protocol = results["protocol"]
    assert protocol["dev_sizes"] == protocol["pool_sizes"] == {"xx-en": [30, 30]}
    assert (protocol["dev_rows"], protocol["evaluated_rows"]) == ({"xx-en": 10}, {"xx-en": 10})
    assert any("50% of the pools were kept apart" in line for line in results["warnings"])
    assert "50% of the pools, kept apart (10 gold pairs)" in (tmp_path / "out" / "results.md").read_text()


def test_pools_are_divided_without_a_common_text_and_the_same_way_each_time():
    gold = {(n, n) for n in range(40)} | {(0, 1), (1, 50), (2, 51), (3, 51)}  # texts in two pairs, in a chain
    pool = Pool([f"s{n}" for n in range(100)], [f"t{n}" for n in range(160)], gold)
    dev, rest = divide(pool, 0.25, "xx-en")
    for side in ("source", "target"):
        parts = [set(getattr(part, side)) for part in (dev, rest)]
        assert not parts[0] & parts[1] and parts[0] | parts[1] == set(getattr(pool, side))
    named = [{(part.source[s], part.target[t]) for s, t in part.gold} for part in (dev, rest)]
    assert named[0] | named[1] == {(f"s{s}", f"t{t}") for s, t in gold} and not named[0] & named[1]
    assert 11 <= len(dev.gold) <= 14  # a quarter, but for chains that stay together
    assert len(dev.source) == pytest.approx(25, abs=4) and len(dev.target) == pytest.approx(40, abs=4)
    assert divide(pool, 0.25, "xx-en") == (dev, rest)


def test_equal_texts_are_one_candidate_and_empty_ones_and_gold_beyond_the_pools_are_left_out(mined, pools, tmp_path):
    more = [{"id": "again", "text": sentence(21)}]  # gold knows it as s21
    more += [{"id": "empty", "text": " "}, {"id": "null", "text": None}]
    gold = [("again", 21), ("empty", 21), ("nowhere", 22), ("s22", 9999)]
    part = pools(slice(20, 60), source=more, gold=[{"s": s, "t": t} for s, t in gold])
    main([*mined, pairs_of({**part, "dev": pools(DEV, "dev")})])
    results = read_results(tmp_path / "out")
    protocol, warnings = results["protocol"], results["warnings"]
    assert protocol["pool_sizes"] == {"xx-en": [40, 40]} and protocol["evaluated_rows"] == {"xx-en": 13}
    assert protocol["evaluation_data"][0]["repeated"] == [1, 0]
    assert "1 sentences of the source and 0 of the target repeat" in (tmp_path / "out" / "results.md").read_text()
    assert "xx-en: 2 sentences of the source and 0 of the target are empty, and left out" in warnings
    assert any("3 of 17 gold pairs have a sentence that is not in the pools" in line for line in warnings)


def test_pools_and_gold_of_csv_are_those_of_parquet(pools, tiny_model, tmp_path):
    base = ["kind=mining", f"model={tiny_model}", f"output_dir={tmp_path / 'out'}", "task=bucc", "threshold=evaluated"]
    part = pools(slice(20, 60))
    tables = {side: table | {"path": table["path"].replace(".parquet", ".csv")} for side, table in part.items()}
    for side, table in part.items():
        Dataset.from_parquet(table["path"]).to_csv(tables[side]["path"])
    recipes = (load_recipe(MiningRecipe, None, [*base, pairs_of(each)]) for each in (part, tables))
    found = [mining.read(recipe).pools["xx-en"] for recipe in recipes]
    assert found[0] == found[1] and len(found[0].gold) == 13


def test_pools_are_made_of_the_pairs_where_the_hub_has_no_others(mined, tmp_path):
    folder = tmp_path / "hub" / "google" / "xtreme"
    lines = []
    for language in ("de", "zh"):
        (folder / f"bucc18.{language}").mkdir(parents=True)
        lines.append(f"- config_name: bucc18.{language}\n  data_files:\n")
        for split, numbers in (("validation", range(20)), ("test", range(20, 50))):
            lines.append(f"  - split: {split}\n    path: bucc18.{language}/{split}.jsonl\n")
            rows = [
                {"source_sentence": f"{sentence(n)} {language}", "target_sentence": sentence(n) if n != 30 else ""}
                for n in numbers
            ]
            (folder / f"bucc18.{language}" / f"{split}.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
            )
    (folder / "README.md").write_text(f"---\nconfigs:\n{''.join(lines)}---\n", encoding="utf-8")
    recipe = ["--config", str(RECIPES / "xtreme" / "bucc.yaml"), *mined[1:3], f"hub_root={tmp_path / 'hub'}"]
    main([*recipe, "pairs.0.languages=[de, zh]", "max_length=64"])
    results = read_results(tmp_path / "out")
    assert results["protocol"]["pool_sizes"] == {"de-en": [29, 29], "zh-en": [29, 29]}
    assert results["protocol"]["dev_rows"] == {"de-en": 20, "zh-en": 20}
    assert "de-en: 0 sentences of the source and 1 of the target are empty, and left out" in results["warnings"]
    assert any("de-en: 29 gold pairs are to be found among 29 and 29" in line for line in results["warnings"])
    page = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert "evaluated: google/xtreme bucc18.de, bucc18.zh test (58 gold pairs)" in page
    assert "google/xtreme bucc18.de, bucc18.zh validation (40 gold pairs)" in page and "| **average** |" in page


def test_chance_edges_and_sentences_without_margin_are_said(mined, tmp_path, monkeypatch):
    def shifted(source, target, neighbors, device):
        places = torch.arange(len(source)).numpy()
        return Mined(places, (places + 1) % len(places), 2.0 - places / 100, (3, 0))

    monkeypatch.setattr(mining, "mine", shifted)
    main(mined)
    warnings = read_results(tmp_path / "out")["warnings"]
    assert any("xx-en: the threshold could not be fitted" in line for line in warnings)
    assert any("3 sentences of the source and 0 of the target are unlike all others" in line for line in warnings)
    assert any("F1 is at chance: 0 of 0 mined pairs are right" in line for line in warnings)
    assert read_results(tmp_path / "out")["mining"]["xx-en"]["1"][0]["threshold"] is None


def test_chance_is_that_of_pairs_drawn_at_random():
    generator = torch.Generator().manual_seed(0)
    pool = Pool(["s"] * 8, ["t"] * 20, {(n, n) for n in range(5)})
    drawn = [torch.randperm(20, generator=generator)[:8] for _ in range(4000)]
    right = sum(int((order[:5] == torch.arange(5)).sum()) for order in drawn) / len(drawn)
    levels = chance_level(pool)
    assert levels["recall"] == pytest.approx(100 * right / 5, rel=0.1)
    assert levels["precision"] == pytest.approx(100 * right / 8, rel=0.1)
    assert levels["f1"] == pytest.approx(2 / (1 / levels["precision"] + 1 / levels["recall"]))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["pairs.0.dev=null"], "pairs.0 has no dev, and dev_fraction is 0"),
        (["dev_fraction=0.5"], "dev_fraction is 0.5, and every pair has dev"),
        (["dev_fraction=1.0"], "dev_fraction is 1.0"),
        (["threshold=evaluated"], "threshold is evaluated, and there is pairs.0.dev"),
        (["threshold=evaluated", "pairs.0.dev=null", "dev_fraction=0.5"], "there is dev_fraction=0.5"),
        (["neighbors=0"], "neighbors is 0"),
        (["pairs.0.dev.source=null"], "pairs.0.dev has a pool for the target and none for the source"),
        (["pairs.0.source.text_column=texts"], "column texts"),
        (["pairs.0.source.id_column=ids"], "column ids"),
        (["pairs.0.target.text_column=id"], "int64"),
        (["pairs.0.gold.source_column=x"], "column x"),
        (["pairs.0.gold.source_column=t"], "no pair has both sentences in the pools"),
        (["SAME"], "gold and dev.gold are both of"),
        (["TWICE"], "'s21' occurs more than once"),
        (["FLOAT"], "float64"),
        (["ONE"], "the source has 1 different text"),
        (["pairs.0.dev=null", "dev_fraction=0.01"], "for dev it leaves 0 of 13 gold pairs"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    mined, tmp_path, refused, pools, write, changes, expected
):
    table = {**pools(slice(20, 60)), "dev": pools(DEV, "dev")}
    if changes == ["SAME"]:
        changes = [pairs_of({**table, "dev": pools(slice(20, 60))})]
    elif changes == ["TWICE"]:
        changes = [pairs_of({**table, **pools(slice(20, 60), source=[{"id": "s21", "text": "x"}])})]
    elif changes in (["FLOAT"], ["ONE"]):
        rows = [{"id": 0.5, "text": "x"}] if changes == ["FLOAT"] else [{"id": "s21", "text": "x"}]
        changes = [pairs_of({**table, "source": {"path": write("odd", rows)}})]
    assert expected in " ".join(refused([*mined, *changes]).split())
    assert not (tmp_path / "out").exists()


def test_the_card_says_how_pairs_were_mined(base, tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    card = write_card(str(model), [str(base[0] / "results.json")]).read_text(encoding="utf-8")
    assert "### bucc, feature" in card and "taken one-to-one" in card and "type: sentence-similarity" in card


def test_the_sample_recipe_runs(tiny_model, tmp_path, sample_corpus_dir):
    recipe = ["--config", str(RECIPES / "sample_mining.yaml"), f"model={tiny_model}", f"output_dir={tmp_path / 'out'}"]
    places = [f"pairs.0.{name}.path={sample_corpus_dir}" for name in ("gold", "source", "target")]
    published = "published=[{paper: X (2020), table: Table 1, row: base, languages: {zh-en: 51.5}}]"
    main([*recipe, *places, "pairs.0.languages=[de, zh]", published])
    results = read_results(tmp_path / "out")
    assert results["published"][0]["figures"] == {"f1": {"zh-en": 51.5}}
    header, _, german, chinese, *_ = (tmp_path / "out" / "results.md").read_text(encoding="utf-8").splitlines()[2:]
    assert "X (2020), Table 1, base" in header and chinese.endswith("| 51.5 |") and german.endswith("|  |")
    assert results["protocol"]["evaluated_rows"] == {"de-en": 30, "zh-en": 30}
    assert results["protocol"]["pool_sizes"] == {"de-en": [60, 60], "zh-en": [60, 60]}
