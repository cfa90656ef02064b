"""finetuning/run.py with kind word_alignment: from files and gold to results."""

import json
import re

import pytest
from transformers import AutoModel, AutoTokenizer

from finetuning.align.gold import read_gold
from finetuning.align.pairs import PairReader
from finetuning.metrics import load_metric
from finetuning.page import score_table
from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks.registry import task_of
from finetuning.tasks.vectors import word_alignment as word_alignment
from finetuning.tasks.vectors.recipe import AlignedPairs, WordAlignmentRecipe
from finetuning.tasks.vectors.word_alignment import sweep
from modeling.optimal_transport import METHOD_OPTIONS
from modeling.word_alignment import WordAligner, WordAlignment


@pytest.fixture
def aligned(feature_recipe, tmp_path):
    return feature_recipe("word_alignment", tmp_path)


def test_scores_are_those_of_the_aligner(aligned, tmp_path, tiny_model, sample_corpus_dir):
    main([*aligned, "encoding=joint", "batch_size=3", "layer=2"])
    results = read_results(tmp_path / "out")
    model = AutoModel.from_pretrained(tiny_model, add_pooling_layer=False).eval()
    aligner = WordAligner(model, AutoTokenizer.from_pretrained(tiny_model), "ot", 2, "joint")
    pairs = list(PairReader([str(sample_corpus_dir / "alignments/zh-en.txt")]))
    gold = read_gold(sample_corpus_dir / "alignments/zh-en.gold")
    found = load_metric("aer").compute(
        predictions=[alignment.links for alignment in aligner.align(pairs)],
        references=[{"sure": list(of.sure), "possible": list(of.possible)} for of in gold.values()],
    )
    assert {name: results.of("zh-en", name)["mean"] for name in results.metrics} == pytest.approx(found)
    assert results["protocol"]["options"] == METHOD_OPTIONS["ot"]
    assert results["protocol"]["selection"]["rule"] == "named in the recipe"


@pytest.mark.parametrize("name", ["x.txt", "x.jsonl"])
def test_gold_counts_the_words_between_spaces_and_tabs(tmp_path, name):
    """A no-break space is part of one."""
    sides = ["Preis 10\u00a0000 \u00a0 EUR.", "price\t10\u00a0000 EUR."]
    text = " ||| ".join(sides) if name == "x.txt" else json.dumps({"source": sides[0], "target": sides[1]})
    (tmp_path / name).write_text(f"{text}\r\n", encoding="utf-8")
    (tmp_path / "gold").write_text("0-0 1-1 3-2\n")
    files = dict(path=str(tmp_path), source=name, gold="gold")
    pair = AlignedPairs(source_language="de", target_language="en", **files)
    data = task_of(WordAlignmentRecipe(pairs=[pair])).read()
    words = ["Preis", "10\u00a0000", "\u00a0", "EUR."], ["price", "10\u00a0000", "EUR."]
    assert data.pairs["de-en"].sentences == [words]
    assert data.pairs["de-en"].gold[0].sure == {(0, 0), (1, 1), (3, 2)} and not data.warnings


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
    assert re.search(r"at chance in en-de 100\.0 \(guessing: \d\d\.\d\), zh-en 100\.0", results["warnings"][0])


def test_a_half_of_the_sentences_is_scored(aligned, feature_run, tmp_path):
    whole = read_results(feature_run("word_alignment")[0])
    rows, links, scores = [], [], []
    for half in ("even", "odd"):
        main([*aligned, f"pairs.1.sentences={half}", f"output_dir={tmp_path / half}"])
        results = read_results(tmp_path / half)
        entry = results["protocol"]["evaluation_data"][1]
        assert entry["split"] == f"test, {half} sentences"
        rows.append(entry["rows"])
        links.append(entry["possible_links"])
        scores.append(results.of("zh-en", "aer")["mean"])
        assert results.of("en-de", "aer") == whole.of("en-de", "aer")
    of_all = whole["protocol"]["evaluation_data"][1]
    assert sum(rows) == of_all["rows"] and abs(rows[0] - rows[1]) <= 1
    assert sum(links) == of_all["possible_links"]
    assert min(scores) < whole.of("zh-en", "aer")["mean"] < max(scores)


def test_alignv2_scores_the_sentences_it_names(aligned, tmp_path, sample_corpus_dir):
    for side, sentences in (("de", "das Haus\nja\nein Baum\n"), ("en", "the house\nyes\na tree\n")):
        (tmp_path / f"text.{side}").write_text(sentences, encoding="utf-8")
    (tmp_path / "gold.txt").write_text("0001 1 1 S\n0001 2 2 S\n0003 2 2 S\n0003 1 1 P\n", encoding="utf-8")
    source, target, gold = (tmp_path / name for name in ("text.de", "text.en", "gold.txt"))
    pair = f"{{source_language: de, target_language: en, source: {source}, target: {target}, gold: {gold}}}"
    main([*aligned, f"pairs=[{pair}]"])
    results = read_results(tmp_path / "out")
    assert results["protocol"]["evaluated_rows"] == {"de-en": 2}
    assert any("de-en: 1 of 3 sentences" in warning for warning in results["warnings"])
    assert str(tmp_path) not in (tmp_path / "out" / "results.md").read_text(encoding="utf-8").split("model:")[0]


def test_published_scores_are_those_of_a_method_and_layer(aligned, tmp_path):
    def published(row, method, layer):
        return {"paper": "xlm_align", "table": "Table 2", "row": row, "method": method, "layer": layer}

    names = ("XLM-Align, optimal transport", "XLM-Align, SimAlign (reimplementation)", "XLM-R base, optimal transport")
    places = (("ot", 1), ("itermax", 2), ("ot", 8))
    rows = [published(name, *place) for name, place in zip(names, places, strict=True)]
    main([*aligned, f"published={json.dumps(rows)}"])
    columns, table = score_table(read_results(tmp_path / "out"))
    assert all(len(row) == len(columns) for row in table)
    cells = {tuple(row[:3]): dict(zip(columns, row, strict=True)) for row in table}
    assert [place[1:] for place in cells if place[0] == "en-de"] == [("ot", "1"), ("itermax", "1"), ("itermax", "2")]
    titles = [f"{name} ({method}, layer {layer})" for name, (method, layer) in zip(names, places, strict=True)]
    same, second, deeper = (f"XLM-Align (ACL 2021), Table 2, {title}" for title in titles)
    assert cells["en-de", "ot", "1"][same] == "16.63" and not cells["zh-en", "ot", "1"][same]
    assert cells["en-de", "itermax", "2"][second] and not cells["en-de", "itermax", "1"][second]
    assert not cells["**average**", "ot", "1"][same]  # of other pairs
    # a published score of a layer that was not scored here, next to the reported one
    assert cells["en-de", "ot", "1"][deeper] and not cells["en-de", "itermax", "2"][deeper]
