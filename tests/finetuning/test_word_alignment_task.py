"""finetuning/run.py with kind word_alignment: from files and gold to results, and everything that reads them."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from transformers import AutoModel, AutoTokenizer

from finetuning.align.gold import read_gold
from finetuning.align.pairs import PairReader
from finetuning.experiments import compare_runs as compare
from finetuning.results.report import score_table
from finetuning.results.table import read_results
from finetuning.run import main
from finetuning.seeds import load_metric
from finetuning.tasks.features.results import curves
from finetuning.tasks.word_alignment import task as word_alignment
from finetuning.tasks.word_alignment.layers import sweep
from finetuning.tasks.word_alignment.recipe import WordAlignmentRecipe
from hub_cards.card import write_card
from modeling.word_alignment import WordAligner, WordAlignment
from zoo_core.recipes import load_recipe

RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes"


def recipe_of(corpus, model, out):
    """The hand-linked sentences of the sample corpus, English-German and Chinese-English."""
    path = corpus / "alignments"
    pairs = [
        f"{{source_language: {s}, target_language: {t}, path: {path}, source: {s}-{t}.txt, gold: {s}-{t}.gold}}"
        for s, t in (("en", "de"), ("zh", "en"))
    ]
    table = f"pairs=[{', '.join(pairs)}]"
    return ["kind=word_alignment", f"model={model}", f"output_dir={out}", "task=sample", table, "methods=[ot, itermax]"]


@pytest.fixture
def aligned(sample_corpus_dir, tiny_model, tmp_path):
    return recipe_of(sample_corpus_dir, tiny_model, tmp_path / "out")


def test_a_run_leaves_results_that_agree_with_each_other(base):
    out, printed = base
    assert {path.name for path in out.iterdir()} == {
        "recipe.yaml", "run.json", "results.json", "results.md", "results.csv", "layers.png", "seed-1",
    }  # fmt: skip
    results = read_results(out)
    assert (results["kind"], results["setting"], results["seeds"]) == ("word_alignment", "feature", [1])
    protocol = results["protocol"]
    assert (protocol["method"], protocol["encoding"], protocol["layer"], protocol["depth"]) == ("ot", "separate", 1, 2)
    assert protocol["metric"] == {
        "name": "aer", "module": "aer", "version": load_metric("aer").version, "unit": "percent",
        "greater_is_better": False,
    }  # fmt: skip
    assert protocol["selection"] == {"rule": "two thirds of the layers", "data": None}
    assert protocol["evaluated_rows"] == {"en-de": 20, "zh-en": 10}
    assert [entry["gold"]["left_out"] for entry in protocol["evaluation_data"]] == [[], []]
    assert all(entry["gold"]["fingerprint"].startswith("sha256:") for entry in protocol["evaluation_data"])
    assert results.methods == ["ot", "itermax"] and results.layers == [0, 1, 2] and results.metric == "aer"
    reported = {pair: results.of(pair, "aer", "ot", 1) for pair in ("en-de", "zh-en")}
    assert results.languages == reported
    assert results.average["mean"] == pytest.approx(sum(entry["mean"] for entry in reported.values()) / 2)

    with (out / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 3 * 2 * 4
    of_reported = [r for r in rows if (r["method"], r["layer"], r["metric"]) == ("ot", "1", "aer")]
    assert {(r["language"], float(r["value"])) for r in of_reported} == {
        (pair, entry["mean"]) for pair, entry in reported.items()
    }
    page = (out / "results.md").read_text(encoding="utf-8")
    assert f"| en-de | ot | 1 | {reported['en-de']['mean']:.1f} |" in page
    assert "lower is better" in page and "## itermax, by layer" in page and "best (chosen on this gold)" in page
    assert "zh-en, 10 sentences, layers 0 to 2" in printed


def test_scores_are_those_of_the_aligner(aligned, tmp_path, tiny_model, sample_corpus_dir):
    main([*aligned, "encoding=joint", "options={ot: {regularization: 0.5}}", "batch_size=3", "layer=2"])
    results = read_results(tmp_path / "out")
    model = AutoModel.from_pretrained(tiny_model, add_pooling_layer=False).eval()
    aligner = WordAligner(model, AutoTokenizer.from_pretrained(tiny_model), "ot", 2, "joint", regularization=0.5)
    pairs = [tuple(side.split() for side in p) for p in PairReader([str(sample_corpus_dir / "alignments/zh-en.txt")])]
    gold = read_gold(sample_corpus_dir / "alignments/zh-en.gold")
    found = load_metric("aer").compute(
        predictions=[alignment.links for alignment in aligner.align(pairs)],
        references=[{"sure": list(of.sure), "possible": list(of.possible)} for of in gold.values()],
    )
    assert {name: results.of("zh-en", name)["mean"] for name in results.metrics} == pytest.approx(found)
    assert results["protocol"]["options"]["regularization"] == 0.5
    assert results["protocol"]["selection"]["rule"] == "named in the recipe"


def test_links_no_better_than_by_position_are_told(aligned, tmp_path, monkeypatch):
    class Unable:
        num_layers = 2

        def align_layers(self, pairs, layers, methods):
            for source, target in pairs:
                yield {layer: dict.fromkeys(methods, WordAlignment(source, target, [])) for layer in layers}

    monkeypatch.setattr(word_alignment, "sweep", lambda aligner, *more: sweep(Unable(), *more))
    main(aligned)
    results = read_results(tmp_path / "out")
    assert results.average["mean"] == 100
    assert re.search(r"seed 1: AER is no lower .* en-de 100.0 \(\d\d\.\d\), zh-en 100.0", results["warnings"][0])


def test_a_half_of_the_sentences_is_scored(aligned, tmp_path):
    main(aligned)
    whole = read_results(tmp_path / "out")
    rows, links, scores = [], [], []
    for half in ("even", "odd"):
        main([*aligned, f"pairs.1.sentences={half}", f"output_dir={tmp_path / half}"])
        results = read_results(tmp_path / half)
        entry = results["protocol"]["evaluation_data"][1]
        assert entry["split"] == f"test, {half} sentences"
        rows.append(entry["rows"])
        links.append(entry["gold"]["possible_links"])
        scores.append(results.of("zh-en", "aer")["mean"])
        assert results.of("en-de", "aer") == whole.of("en-de", "aer")
    of_all = whole["protocol"]["evaluation_data"][1]
    assert sum(rows) == of_all["rows"] and abs(rows[0] - rows[1]) <= 1
    assert sum(links) == of_all["gold"]["possible_links"]
    assert min(scores) < whole.of("zh-en", "aer")["mean"] < max(scores)


def test_links_past_a_sentence_are_counted_and_listed(aligned, tmp_path, sample_corpus_dir, capsys):
    folder = tmp_path / "data"
    shutil.copytree(sample_corpus_dir / "alignments", folder)
    lines = (folder / "en-de.gold").read_text(encoding="utf-8").splitlines()
    lines[2] += " 9-0 0p40"  # of 9 and 9 words
    (folder / "en-de.gold").write_text("\n".join(lines) + "\n", encoding="utf-8")
    aligned = [item.replace(str(sample_corpus_dir / "alignments"), str(folder)) for item in aligned]
    main([*aligned, "pairs.1.note=ten sentences"])
    results = read_results(tmp_path / "out")
    gold = results["protocol"]["evaluation_data"][0]["gold"]
    assert len(gold["left_out"]) == 2 and "sentence 3: (10, 1), of 9 and 9 words" in gold["left_out"]
    assert "en-de.gold: 2 links point past" in results["warnings"][0] and "ten sentences" in results["warnings"]
    assert "sentence 3: (10, 1)" in " ".join(capsys.readouterr().out.split())


def test_alignv2_scores_the_sentences_it_names(aligned, tmp_path, sample_corpus_dir):
    for side, sentences in (("de", "das Haus\nja\nein Baum\n"), ("en", "the house\nyes\na tree\n")):
        (tmp_path / f"text.{side}").write_text(sentences, encoding="utf-8")
    (tmp_path / "gold.txt").write_text("0001 1 1 S\n0001 2 2 S\n0003 2 2 S\n0003 1 1 P\n", encoding="utf-8")
    source, target, gold = (tmp_path / name for name in ("text.de", "text.en", "gold.txt"))
    pair = f"{{source_language: de, target_language: en, source: {source}, target: {target}, gold: {gold}}}"
    main([*aligned, f"pairs=[{pair}]"])
    results = read_results(tmp_path / "out")
    assert results["protocol"]["evaluated_rows"] == {"de-en": 2}
    assert "de-en: 1 of 3 sentences have no gold and were not scored" in results["warnings"]
    gold.write_text(gold.read_text(encoding="utf-8") + "0009 1 1 S\n", encoding="utf-8")  # 1, 3 and 9, of 3 sentences
    data = word_alignment.read(load_recipe(WordAlignmentRecipe, None, [*aligned, f"pairs=[{pair}]"]))
    assert sorted(data.pairs["de-en"].gold) == [0, 1, 2] and "in their order" in data.warnings[0]
    assert str(tmp_path) not in (tmp_path / "out" / "results.md").read_text(encoding="utf-8").split("model:")[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["pairs=[]"], "no pairs of languages"),
        (["pairs.1.source_language=en", "pairs.1.target_language=de"], "en-de is evaluated twice"),
        (["methods=[otter]"], "otter"),
        (["methods=[ot, ot]"], "methods is"),
        (["options={softmax: {threshold: 0.1}}"], "options has some of softmax"),
        (["options={ot: {threshold: 0.1}}"], "option 'threshold' with method 'ot'"),
        (["layer=3"], "layer has 3"),
        (["layers=[0, 7]"], "layers has 7"),
        (["layers=[0, 2]"], "the layer that is reported is 1 of 2"),
        (["layer=1", "layers=[0, 2]"], "layer is 1, and layers is"),
        (["seeds=[1, 2]"], "seeds is [1, 2]"),
        (["batch_size=0"], "batch_size is 0"),
        (["pairs.0.path=nowhere"], "nowhere is no folder"),
        (["pairs.0.gold=missing.gold"], "missing.gold"),
        (["pairs.0.source=missing.txt"], "missing.txt"),
        (["pairs.0.gold=zh-en.gold"], "has 10 lines, the input 20 sentences"),
        (["pairs.1.source=FOLDER/short.txt"], "point past the words"),
        (["pairs.0.gold=FOLDER/empty.gold"], "holds no links"),
        (["compare_with={XLM-R: [nowhere]}"], "nowhere has no results.json"),
        (["precision=fp16"], "fp32, bf16"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(aligned, tmp_path, refused, changes, expected):
    (tmp_path / "short.txt").write_text("".join(f"a ||| b{number}\n" for number in range(10)), encoding="utf-8")
    (tmp_path / "empty.gold").write_text("\n" * 20, encoding="utf-8")
    changes = [change.replace("FOLDER", str(tmp_path)) for change in changes]
    assert expected in " ".join(refused([*aligned, *changes]).split())
    assert not (tmp_path / "out").exists()


def test_seeds_are_models_and_can_be_added(aligned, two_seeds, change_weights, tmp_path, refused):
    main([*aligned, two_seeds, "seeds=[2]"])
    second = read_results(tmp_path / "out")
    written = (tmp_path / "out" / "seed-2" / "scores.json").stat().st_mtime_ns
    assert "is not empty" in refused([*aligned, two_seeds, "seeds=[2]"])
    assert "methods.1: itermax -> mutual" in refused([*aligned, two_seeds, "methods=[ot, mutual]", "--resume"])
    main([*aligned, two_seeds, "seeds=[1, 2]", "--resume"])
    assert written == (tmp_path / "out" / "seed-2" / "scores.json").stat().st_mtime_ns, "not scored again"
    results = read_results(tmp_path / "out")
    first, other = results.languages["en-de"]["scores"]
    assert other == second.languages["en-de"]["mean"] != first
    assert results.languages["en-de"]["sd"] == pytest.approx(abs(first - other) / 2**0.5)
    assert results.average["scores"][1] == second.average["mean"]
    prints = results["model"]["fingerprint"].split("+")
    assert len(set(prints)) == 2 and prints[1] == second["model"]["fingerprint"]
    assert curves(results)["average"][1] == results.average

    for seed in (1, 2):
        folder = tmp_path / f"run-{seed}" / "model"
        card = write_card(str(folder), [str(tmp_path / "out" / "results.json")]).read_text(encoding="utf-8")
        assert "### sample, feature" in card and "| en-de | ot | 1 |" in card
        assert "type: word-alignment" in card and "name: aer, average, feature, 2 seeds" in card
    change_weights(folder)
    with pytest.raises(ValueError, match="is of the weights"):
        write_card(str(folder), [str(tmp_path / "out" / "results.json")])
    message = " ".join(refused([*aligned, two_seeds, "seeds=[1, 2]", "--resume"]).split())
    assert "have changed since seed 2 was scored" in message


def test_seeds_have_to_be_of_one_depth(aligned, two_seeds, tmp_path, refused):
    config = tmp_path / "run-2" / "model" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 1'))
    assert "have [2, 1] layers" in " ".join(refused([*aligned, two_seeds, "seeds=[1, 2]"]).split())


@pytest.mark.slow
def test_models_stand_side_by_side(aligned, base, tmp_path, monkeypatch, refused):
    drawn = {}
    monkeypatch.setattr(compare, "plot_lines", lambda panels, *a, **k: drawn.update(panels=panels, levels=a[4]))
    together = [*aligned, "methods=[ot, mutual]", "name=XLM-Align", f"compare_with={{XLM-R: [{base[0]}]}}"]
    main(together)
    out, results = tmp_path / "out", read_results(base[0])
    assert list(drawn["panels"]) == ["average", "en-de", "zh-en"]
    assert list(drawn["panels"]["average"]) == ["XLM-Align", "XLM-R"]
    assert drawn["panels"]["average"]["XLM-R"][1] == results.average
    assert drawn["panels"]["zh-en"]["XLM-Align"] == curves(read_results(out))["zh-en"]
    levels = results["protocol"]["by_position"]
    assert drawn["levels"]["average"][1] == pytest.approx((levels["en-de"]["aer"] + levels["zh-en"]["aer"]) / 2)
    page = (out / "comparison.md").read_text(encoding="utf-8")
    assert "aer (lower is better)" in page and f"| XLM-R | {results.languages['en-de']['mean']:.1f} |" in page
    assert "mutual" not in page, "the methods that stand beside are no difference"
    compare.main(["--run", "a", str(out), "--run", "b", str(base[0]), "--output", str(tmp_path / "both")])
    for change, said in (("name=XLM-R", "compare_with names XLM-R"), ("task=other", "XLM-R has task sample")):
        assert said in " ".join(refused([*together, change, f"output_dir={tmp_path / 'new'}"]).split())


def test_published_figures_stand_beside_the_method_and_layer_they_are_of(aligned, tmp_path):
    def published(row, method, layer, **more):
        return {"paper": "P", "table": "T", "row": row, "method": method, "layer": layer, **more}

    both = {"en-de": 16.63, "zh-en": 30.0}
    rows = [
        published("same", "ot", 1, languages=both, average=23.32),
        published("layer 2", "itermax", 2, languages={"en-de": 17.42, "en-hi": 1.0}, average=9.0),
        published("deeper", "ot", 8, languages=both),
    ]
    main([*aligned, f"published={json.dumps(rows)}"])
    results = read_results(tmp_path / "out")
    columns, table = score_table(results)
    assert all(len(row) == len(columns) for row in table)
    cells = {tuple(row[:3]): dict(zip(columns, row, strict=True)) for row in table}
    assert [place[1:] for place in cells if place[0] == "en-de"] == [("ot", "1"), ("itermax", "1"), ("itermax", "2")]
    same, second, deeper = "P, T, same (ot, layer 1)", "P, T, layer 2 (itermax, layer 2)", "P, T, deeper (ot, layer 8)"
    assert cells["en-de", "ot", "1"][same] == "16.63" and cells["zh-en", "ot", "1"][same] == "30.0"
    assert cells["en-de", "itermax", "2"][second] == "17.42"
    assert not cells["en-de", "itermax", "1"][same] and not cells["en-de", "itermax", "1"][second]
    assert cells["**average**", "ot", "1"][same] == "23.32"
    # of a layer that was not scored here, beside the one that is reported
    assert cells["en-de", "ot", "1"][deeper] == "16.63" and not cells["en-de", "itermax", "2"][deeper]


def test_the_sample_gold_is_of_sentences_of_the_sample_corpus(sample_corpus_dir):
    recipe = load_recipe(
        WordAlignmentRecipe,
        str(RECIPES / "xlm_align" / "sample_word_alignment.yaml"),
        ["model=x", *(f"pairs.{number}.path={sample_corpus_dir / 'alignments'}" for number in (0, 1))],
    )
    data = word_alignment.read(recipe)
    assert not data.warnings
    squeezed = {}
    for language in ("en", "de", "zh"):
        lines = (sample_corpus_dir / language / "test.jsonl").read_text(encoding="utf-8").splitlines()
        squeezed[language] = [json.loads(line)["text"].replace(" ", "") for line in lines]
    for name, pair in data.pairs.items():
        source, target = name.split("-")
        for number, (x, y) in enumerate(pair.sentences):
            assert ("".join(x), "".join(y)) == (squeezed[source][number], squeezed[target][number])
            assert pair.gold[number].sure and pair.gold[number].sure <= pair.gold[number].possible
