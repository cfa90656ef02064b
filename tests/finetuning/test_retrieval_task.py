"""finetuning/run.py with kind retrieval: from tables of pairs to results, and everything that reads them."""

import csv
import json
from pathlib import Path

import pytest
import torch
from datasets import load_dataset
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from finetuning.experiments import compare_runs as compare
from finetuning.results.plots import plot_lines
from finetuning.results.table import Results, read_results, summary
from finetuning.run import main
from finetuning.seeds import load_metric
from finetuning.tasks.features.results import curves
from finetuning.tasks.retrieval import results as retrieval_results
from finetuning.tasks.retrieval import task as retrieval
from finetuning.tasks.retrieval.recipe import RetrievalRecipe, expanded
from finetuning.tasks.retrieval.task import Side
from finetuning.tasks.tagging.recipe import TaggingRecipe
from hub_cards.card import write_card
from zoo_core.recipes import load_recipe, recipe_of_run, save_recipe

RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes"


def pairs_of(*tables):
    return f"pairs={json.dumps(tables)}"


def recipe_of(corpus, model, out):
    """The test sentences of the sample corpus, German and Chinese to and from English, joined on their ids."""
    side = {"path": str(corpus)}
    joined = {
        **side, "config": "{language}", "source_column": "text", "source_language": "{language}",
        "languages": ["de", "zh"], "target": {**side, "config": "en"}, "target_column": "text",
        "target_language": "en", "join_on": "id",
    }  # fmt: skip
    return ["kind=retrieval", f"model={model}", f"output_dir={out}", "task=sample", pairs_of(joined)]


@pytest.fixture
def found(sample_corpus_dir, tiny_model, tmp_path):
    return recipe_of(sample_corpus_dir, tiny_model, tmp_path / "out")


def parsed(overrides):
    return load_recipe(RetrievalRecipe, None, overrides)


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


def test_a_run_leaves_results_that_agree_with_each_other(base):
    out, printed = base
    assert {path.name for path in out.iterdir()} == {
        "recipe.yaml", "run.json", "results.json", "results.md", "results.csv", "layers.png", "seed-1",
    }  # fmt: skip
    results = read_results(out)
    assert (results["kind"], results["setting"], results["seeds"]) == ("retrieval", "feature", [1])
    protocol = results["protocol"]
    assert (protocol["pooling"], protocol["method"], protocol["similarity"]) == ("mean", "mean", "cosine")
    assert (protocol["layer"], protocol["depth"], protocol["max_length"]) == (1, 2, 64)
    assert protocol["selection"] == {"rule": "two thirds of the layers", "data": None}
    assert protocol["metric"] == {
        "name": "accuracy", "module": "retrieval_accuracy", "version": load_metric("retrieval_accuracy").version,
        "unit": "percent", "greater_is_better": True,
    }  # fmt: skip
    assert protocol["evaluated_rows"] == {"de-en": 60, "zh-en": 60}
    assert protocol["chance"]["de-en"] == pytest.approx(dict.fromkeys(retrieval_results.METRICS, 100 / 60))
    assert protocol["cut_texts"] == protocol["texts_without_tokens"] == {"de-en": [0, 0], "zh-en": [0, 0]}
    entry = protocol["evaluation_data"][1]
    assert (entry["config"], entry["split"], entry["target"]["config"]) == ("zh", "test", "en")
    assert (entry["languages"], entry["rows"], entry["empty"], entry["unpaired"]) == (["zh-en"], 60, 0, [0, 0])

    assert results.methods == ["mean"] and results.layers == [0, 1, 2]
    assert results.languages == {pair: results.of(pair, "accuracy", "mean", 1) for pair in ("de-en", "zh-en")}
    for pair, entry in results.languages.items():
        both = [results.of(pair, name)["mean"] for name in ("source_to_target", "target_to_source")]
        assert entry["mean"] == pytest.approx(sum(both) / 2)
    mean = sum(entry["mean"] for entry in results.languages.values()) / 2
    assert results.average["mean"] == pytest.approx(mean)

    with (out / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 2 * 3
    assert {r["language"]: float(r["value"]) for r in rows if r["layer"] == "1" and r["metric"] == "accuracy"} == {
        pair: entry["mean"] for pair, entry in results.languages.items()
    }
    page = (out / "results.md").read_text(encoding="utf-8")
    assert "## mean, by layer" in page and f"| de-en | 1 | {results.languages['de-en']['mean']:.1f} |" in page
    assert f"| **average** | 1 | {mean:.1f} |" in page
    assert "zh-en, 60 pairs, layers 0 to 2" in printed


def test_scores_are_those_of_brute_force(base, tiny_model, sample_corpus_dir):
    results = read_results(base[0])
    texts = [load_dataset(str(sample_corpus_dir), config, split="test")["text"] for config in ("zh", "en")]
    for layer, expected in enumerate(brute_force(tiny_model, *texts)):
        shown = [results.of("zh-en", name, layer=layer)["mean"] for name in ("source_to_target", "target_to_source")]
        assert shown == pytest.approx(expected)


def test_equal_texts_are_right_for_each_of_their_pairs(found, write, tmp_path):
    """Every source finds itself: a side is its own translation, but for its order of rows and one text that repeats."""
    texts = ["The train is late.", "It rains.", "Anna bakes bread.", "It rains."]
    rows = [{"x": text, "y": text} for text in texts]
    table = {"path": write("pairs", rows), "source_language": "en", "target_language": "EN"}
    main([*found, pairs_of({**table, "source_column": "x", "target_column": "y"})])
    results = read_results(tmp_path / "out")
    assert {results.average["mean"], *(results.of("en-EN", name)["mean"] for name in results.metrics)} == {100.0}
    protocol = results["protocol"]
    assert protocol["evaluation_data"][0]["repeated"] == [1, 1]
    assert protocol["chance"]["en-EN"]["accuracy"] == pytest.approx(100 / 3)
    page = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert "1 pairs repeat a source text, 1 a target text" in page


def test_scores_by_hand_where_texts_repeat():
    source, target = Side.of(["a", "b", "a", "c"]), Side.of(["A", "B", "X", "A"])
    assert (source.texts, source.of_pairs, target.of_pairs) == (["a", "b", "c"], [0, 1, 0, 2], [0, 1, 2, 0])
    # a finds A: right in its first pair, not in its second, whose translation is X. A finds a: right for a, not for c
    found_source, found_target = torch.tensor([0, 0, 0]), torch.tensor([0, 2, 0])
    assert retrieval.score((source, target), found_source, found_target) == {
        "source_to_target": 50.0, "target_to_source": 50.0, "accuracy": 50.0
    }  # fmt: skip


def test_one_table_a_language_as_the_hub_has_tatoeba(found, tmp_path):
    folder = tmp_path / "hub" / "google" / "xtreme"
    lines = []
    for language, size in (("deu", 4), ("swh", 3)):
        (folder / f"tatoeba.{language}").mkdir(parents=True)
        lines.append(
            f"- config_name: tatoeba.{language}\n  data_files:\n  - split: validation\n"
            f"    path: tatoeba.{language}/validation.jsonl\n"
        )
        rows = [{"source_sentence": f"{language} {n} {'x' * n}", "target_sentence": f"en {n}"} for n in range(size)]
        text = "".join(json.dumps({**row, "source_lang": language, "target_lang": "eng"}) + "\n" for row in rows)
        (folder / f"tatoeba.{language}" / "validation.jsonl").write_text(text, encoding="utf-8")
    (folder / "README.md").write_text(f"---\nconfigs:\n{''.join(lines)}---\n", encoding="utf-8")
    recipe = ["--config", str(RECIPES / "metaxlm" / "tatoeba.yaml"), *found[1:3], f"hub_root={tmp_path / 'hub'}"]
    main([*recipe, "pairs.0.languages=[de, sw]", "pairs.0.max_pairs=3", "max_length=64"])
    results = read_results(tmp_path / "out")
    assert results["protocol"]["evaluated_rows"] == {"de-en": 3, "sw-en": 3}
    assert "de-en: 3 of 4 pairs were evaluated, drawn at random" in results["warnings"]
    assert not any("sw-en: 3 of" in warning for warning in results["warnings"])
    page = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert "evaluated: google/xtreme tatoeba.deu, tatoeba.swh validation (6 pairs" in page


def test_what_is_not_evaluated_is_counted_and_said(found, write, tmp_path):
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
    assert "de-en: 3 rows of the source and 5 of the target have no partner" in results["warnings"]
    assert "de-en: 1 of 5 pairs have an empty side and were left out" in results["warnings"]
    assert "not the benchmark's own" in results["warnings"]
    cut = results["protocol"]["cut_texts"]["de-en"]
    assert sum(cut) > 0
    said = f"de-en: {cut[0]} texts of the source and {cut[1]} of the target are longer than 8 positions and were cut"
    assert said in results["warnings"]
    page = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert "not read: 8 rows without a partner, 1 pairs with an empty side" in page
    assert f"max length: 8 positions ({sum(cut)} texts cut)" in page


def test_accuracy_at_chance_is_said(found, tmp_path, monkeypatch):
    def nothing(source, target, device):
        return torch.zeros(len(source), dtype=torch.long), torch.zeros(len(target), dtype=torch.long)

    monkeypatch.setattr(retrieval, "nearest", nothing)
    main(found)
    results = read_results(tmp_path / "out")
    assert results.average["mean"] == pytest.approx(100 / 60)
    assert "seed 1: accuracy is at chance in de-en 1.7 (chance: 1.7), zh-en 1.7" in results["warnings"][0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["pairs.0.languages=[]"], "pairs.0 has a place for the language"),
        (["pairs.0.languages=[de, de]"], "de-en is evaluated twice"),
        (["pairs.0.config=de", "pairs.0.source_language=de"], "languages and no place for one"),
        (["pairs.0.target=null", "pairs.0.join_on=null"], "text for source_column and target_column"),
        (["pairs.0.target=null", "pairs.0.target_column=id"], "there is one table"),
        (["pairs.0.source_column=texts"], "column texts"),
        (["pairs.0.join_on=ids"], "column ids"),
        (["SAME"], "different text"),
        (["pairs.0.split=dev"], "dev"),
        (["pairs.0.max_pairs=1"], "pairs.0.max_pairs is 1"),
        (["pairs.0.streaming=true"], "streaming is true"),
        (["max_length=65"], "64 positions"),
        (["max_length=2"], "max_length is 2"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(found, tmp_path, refused, write, changes, expected):
    if changes == ["SAME"]:
        pair = {"path": write("same", [{"x": "x", "y": "z"}] * 3), "source_column": "x", "target_column": "y"}
        changes = [pairs_of({**pair, "source_language": "a", "target_language": "b"})]
    assert expected in " ".join(refused([*found, *changes]).split())
    assert not (tmp_path / "out").exists()


def test_the_place_of_the_language_is_filled_everywhere():
    table = {
        "path": "{language}.tsv", "source_column": "translation.{language}", "source_language": "{language}",
        "languages": ["de", "fr"], "target": {"path": "{language}-en.tsv", "config": "{language}"},
        "target_column": "en", "target_language": "en",
    }  # fmt: skip
    first, second = expanded(parsed(["model=x", "output_dir=y", "task=z", pairs_of(table)]).pairs)
    assert (first.name, second.name) == ("de-en", "fr-en")
    assert (second.path, second.source_column) == ("fr.tsv", "translation.fr")
    assert (second.target.path, second.target.config) == ("fr-en.tsv", "fr")


@pytest.mark.slow
def test_models_and_seeds_stand_side_by_side_and_on_cards(found, base, two_seeds, tmp_path, monkeypatch, refused):
    drawn = {}
    monkeypatch.setattr(compare, "plot_lines", lambda panels, *a, **k: drawn.update(panels=panels, levels=a[4]))
    together = [*found, two_seeds, "seeds=[1, 2]", "name=MetaXLM", f"compare_with={{XLM: [{base[0]}]}}"]
    main(together)
    out, results = tmp_path / "out", read_results(tmp_path / "out")
    assert len(results.average["scores"]) == 2 and results.average["sd"] is not None
    first = read_results(base[0]).languages["de-en"]["mean"]  # the first seed's weights are the other model's
    assert results.languages["de-en"] == summary([first, results.languages["de-en"]["scores"][1]])
    assert list(drawn["panels"]) == ["average", "de-en", "zh-en"]
    assert list(drawn["panels"]["average"]) == ["MetaXLM", "XLM"]
    assert drawn["panels"]["average"]["XLM"][1] == read_results(base[0]).average
    assert all(level == pytest.approx(100 / 60) for _, level in drawn["levels"].values())
    page = (out / "comparison.md").read_text(encoding="utf-8")
    assert "# sample, accuracy on test" in page and "| XLM |" in page and "lower is better" not in page
    message = " ".join(refused([*together, "pairs.0.languages=[de]", f"output_dir={tmp_path / 'new'}"]).split())
    assert "XLM has languages ['de-en', 'zh-en']" in message

    card = write_card(str(tmp_path / "run-2" / "model"), [str(out / "results.json")]).read_text(encoding="utf-8")
    assert "### sample, feature" in card and "| de-en | 1 |" in card and "by exact search" in card
    assert "type: sentence-similarity" in card and "name: accuracy, average, feature, 2 seeds" in card


def test_many_pairs_are_rows_and_the_average_alone_is_drawn_by_name(base, tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    results = read_results(base[0])
    rows = [row for row in results["scores"] if row["language"] == "de-en"]
    for number in range(12):  # as many again, under other names
        results["scores"] += [{**row, "language": f"x{number}-en"} for row in rows]
        results["protocol"]["chance"][f"x{number}-en"] = results["protocol"]["chance"]["de-en"]
    results = Results(results)
    drawn, line = [], Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: drawn.append(k) or line(self, *a, **k))
    compare.plot({"XLM": results}, tmp_path / "comparison.png", "title")
    assert [style["label"] for style in drawn] == ["XLM"], "the average alone"
    columns, rows = compare.score_table({"XLM": results, "MetaXLM": results})
    assert columns == ["run", "XLM", "MetaXLM"] and len(rows) == 14 + 2
    assert rows[0] == ["de-en", *[f"{results.languages['de-en']['mean']:.1f}"] * 2]
    assert rows[-1] == ["seeds", "1", "1"]
    drawn.clear()
    plot_lines({"": curves(results)}, tmp_path / "many.png", "title", "layer", "accuracy")
    assert [style["label"] for style in drawn] == results.with_average
    assert len({(style["color"], style.get("linestyle"), style["marker"]) for style in drawn}) == 15


def test_of_a_single_layer_bars_are_drawn(base, tmp_path):
    results = read_results(base[0])
    rows = [row for row in results["scores"] if row["layer"] == 1]
    assert retrieval_results.plot(Results({**results, "scores": rows}), tmp_path) == "scores.png"
    assert [path.name for path in tmp_path.iterdir()] == ["scores.png"]


def test_a_run_from_before_is_read_as_it_was(tmp_path):
    """Fields that were renamed or added keep the meaning that the run had."""
    path = tmp_path / "recipe.yaml"

    def before(recipe_class, name, field, line):
        save_recipe(load_recipe(recipe_class, str(RECIPES / name), ["model=x"]), path)
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line if old.startswith(f"{field}:") else old for old in lines), encoding="utf-8")
        return recipe_of_run(path, recipe_class)[field]

    for counts, pooling in (("true", "mean_with_special_tokens"), ("false", "mean")):
        line = f"special_tokens: {counts}\n"
        assert before(RetrievalRecipe, "xtreme/tatoeba.yaml", "pooling", line) == pooling
    assert before(TaggingRecipe, "controlled_panx.yaml", "label_subword", "") == "first"
