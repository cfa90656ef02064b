"""Precision and recall by threshold, calibration, and that looking at candidates changes no link."""

import math

import pytest

from finetuning.align.command import main
from finetuning.align.confidence import Bin, Confidence, cut, with_threshold
from finetuning.align.gold import Gold
from modeling.word_alignment import WordAlignment


@pytest.fixture
def confidence():
    """Two sentences; of four candidates two are sure, one is possible and one is wrong."""
    found = Confidence(is_calibrated=True)
    links, gold = [(0, 0), (1, 1), (1, 0)], Gold({(0, 0), (2, 2)}, {(0, 0), (2, 2), (1, 1)})
    found.add(WordAlignment(["a", "b", "c"], ["x", "y", "z"], links, [0.95, 0.65, 0.15]), gold)
    found.add(WordAlignment(["a"], ["x"], [(0, 0)], [0.61]), Gold({(0, 0)}, {(0, 0)}))
    return found


def test_curves_are_the_scores_of_the_links_at_a_threshold(confidence):
    curves = confidence.curves([0.1, 0.61, 0.7, 0.99])
    assert curves["precision"][:3] == pytest.approx([75, 100, 100]) and math.isnan(curves["precision"][3])
    assert curves["recall"] == pytest.approx([200 / 3, 200 / 3, 100 / 3, 0])
    assert curves["AER"] == pytest.approx([100 - 500 / 7, 100 - 500 / 6, 50, 100])


def test_calibration_compares_probabilities_with_what_is_right(confidence):
    low, middle, high = confidence.bins()
    assert low == Bin(1, 0.15, 0.0) and high == Bin(1, 0.95, 1.0)
    assert (middle.count, middle.right) == (2, 1.0) and middle.mean == pytest.approx(0.63)
    assert confidence.error() == pytest.approx((0.15 + 2 * 0.37 + 0.05) / 4)
    assert confidence.error(0.5) == pytest.approx((2 * 0.37 + 0.05) / 3)


def test_candidates_cut_at_the_threshold_are_the_links(tiny_model):
    from transformers import AutoModel, AutoTokenizer

    from modeling.word_alignment import WordAligner

    model, tokenizer = AutoModel.from_pretrained(tiny_model).eval(), AutoTokenizer.from_pretrained(tiny_model)
    pairs = [("zwei Hunde spielen im Schnee", "two dogs play in the snow")]
    for threshold in (0.5, 0.005):
        aligner = WordAligner(model, tokenizer, threshold=threshold)
        (expected,) = aligner.align(pairs, probabilities=True)
        (candidates,) = with_threshold(aligner, 0.01).align(pairs, probabilities=True)
        assert cut(candidates, threshold) == expected
        assert len(candidates.links) > len(expected.links) or threshold < 0.01
    mutual = WordAligner(model, tokenizer, "mutual")
    assert with_threshold(mutual, 0.01) is mutual


@pytest.mark.parametrize("method", ["ot_words", "ot"])
def test_the_plot_is_drawn_and_the_links_stay(tiny_model, tmp_path, capsys, method):
    pairs, gold, plot = tmp_path / "pairs.txt", tmp_path / "gold.txt", tmp_path / "confidence.png"
    pairs.write_text("ein Mann geht ||| a man walks\nzwei Hunde ||| two dogs\n", encoding="utf-8")
    gold.write_text("0-0 1-1\n0-0 1p1\n")
    command = [str(pairs), "--model", str(tiny_model), "--method", method, "--gold", str(gold)]
    main(command)
    plain = capsys.readouterr()
    main([*command, "--plot", str(plot), "--html", str(tmp_path / "page.html")])
    drawn = capsys.readouterr()
    assert drawn.out == plain.out and str(plot) in drawn.err
    assert plain.err.splitlines()[-1] in drawn.err  # the scores
    assert plot.read_bytes().startswith(b"\x89PNG")
