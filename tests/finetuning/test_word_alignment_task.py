"""finetuning/run.py with kind word_alignment: from files and gold to results."""

import pytest
from transformers import AutoModel, AutoTokenizer

from finetuning.align.gold import read_gold
from finetuning.align.pairs import PairReader
from finetuning.metrics import load_metric
from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks.vectors import word_alignment as word_alignment
from modeling.optimal_transport import METHOD_OPTIONS
from modeling.word_alignment import WordAligner


@pytest.fixture
def aligned(feature_recipe, tmp_path):
    return feature_recipe("word_alignment", tmp_path)


def test_word_alignment_task_scores_as_the_aligner(aligned, tmp_path, tiny_model, sample_corpus_dir):
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


def test_word_alignment_task_scores_a_half(aligned, feature_run, tmp_path):
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
