"""Word alignment by layer and method, with an aligner whose links are known, and from files and gold to results."""

import pytest
from transformers import AutoModel, AutoTokenizer

from finetuning.align.gold import Gold, read_gold
from finetuning.align.pairs import PairReader
from finetuning.metrics import load_metric
from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks.vectors import word_alignment as word_alignment
from finetuning.tasks.vectors.word_alignment import position_links, score, sweep
from modeling.optimal_transport import METHOD_OPTIONS
from modeling.word_alignment import WordAligner, WordAlignment

GOLD = {0: Gold({(0, 0), (1, 1)}, {(0, 0), (1, 1), (1, 0)}), 2: Gold({(0, 0)}, {(0, 0)})}
PAIRS = [(["a", "b"], ["x", "y"]), ("not annotated", "at all"), (["c"], ["z", "z z"])]


class KnownAligner:
    """Links everything in layer 0, and in layer 1 each word with the one at its place; `mutual` never links."""

    num_layers, method, matching = 1, "ot", {}

    def __init__(self):
        self.seen = []

    def align_layers(self, pairs, layers, methods):
        for source, target in pairs:
            self.seen.append((source, target))
            all_links = [(i, j) for i in range(len(source)) for j in range(len(target))]
            by_layer = {0: all_links, 1: [link for link in all_links if link[0] == link[1]]}
            yield {
                layer: {m: WordAlignment(source, target, [] if m == "mutual" else by_layer[layer]) for m in methods}
                for layer in layers
            }


def test_sweep_scores_every_layer_and_method():
    aligner = KnownAligner()
    scores = sweep(aligner, PAIRS, GOLD, methods=["ot", "mutual"])
    assert aligner.seen == [(["a", "b"], ["x", "y"]), (["c"], ["z", "z z"])]
    # layer 0: 6 links, of which 4 are possible and 3 of 3 sure
    assert scores["ot"][0] == pytest.approx(
        {"aer": 100 * (1 - 7 / 9), "precision": 100 * 4 / 6, "recall": 100, "f1": 100 * 2 * (2 / 3) / (5 / 3)}
    )
    assert scores["ot"][1]["aer"] == 0 and scores["mutual"][1]["aer"] == 100
    assert list(sweep(aligner, PAIRS, GOLD, [1])) == ["ot"], "the aligner's own method"
    assert list(sweep(aligner, PAIRS, GOLD, [1])["ot"]) == [1]


def test_sweep_needs_one_forward_pass(tiny_model, monkeypatch):

    model = AutoModel.from_pretrained(tiny_model, add_pooling_layer=False).eval()
    passes, forward = [], type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda self, *a, **k: passes.append(1) or forward(self, *a, **k))
    aligner = WordAligner(model, AutoTokenizer.from_pretrained(tiny_model), encoding="joint")
    options = {"ot": {"sinkhorn_iterations": 5}, "itermax": {}, "mutual": {}}
    scores = sweep(aligner, PAIRS, GOLD, methods=options)
    assert len(passes) == 1
    assert {name: list(by_layer) for name, by_layer in scores.items()} == dict.fromkeys(options, [0, 1, 2])
    for layer in (0, 2):  # as one layer and method at a time
        alone = WordAligner(model, aligner.tokenizer, "ot", layer, "joint", sinkhorn_iterations=5)
        links = {n: found.links for n, found in zip(GOLD, alone.align([PAIRS[n] for n in GOLD]), strict=True)}
        assert score(links, GOLD) == scores["ot"][layer]


def test_position_links():
    assert position_links(3, 3) == [(0, 0), (1, 1), (2, 2)]
    assert position_links(3, 5) == [(0, 0), (1, 2), (2, 4)]
    assert position_links(5, 1) == [(i, 0) for i in range(5)]
    assert position_links(1, 4) == [(0, 0)]
    assert position_links(0, 3) == [] == position_links(3, 0)


@pytest.fixture
def aligned(feature_recipe, tmp_path):
    return feature_recipe("word_alignment", tmp_path)


def test_word_alignment_task_scores_as_the_aligner(aligned, tmp_path, aligner, sample_corpus_dir):
    main([*aligned, "encoding=joint", "batch_size=3", "layer=2"])
    results = read_results(tmp_path / "out")
    joint = aligner(method="ot", layer=2, encoding="joint")
    pairs = list(PairReader([str(sample_corpus_dir / "alignments/zh-en.txt")]))
    gold = read_gold(sample_corpus_dir / "alignments/zh-en.gold")
    found = load_metric("aer").compute(
        predictions=[alignment.links for alignment in joint.align(pairs)],
        references=[{"sure": list(of.sure), "possible": list(of.possible)} for of in gold.values()],
    )
    assert {name: results.of("zh-en", name)["mean"] for name in results.metrics} == pytest.approx(found)
    assert results["protocol"]["options"] == METHOD_OPTIONS["ot"]
    assert results["protocol"]["selection"]["rule"] == "named in the recipe"
