"""`word-align score`: scores, precision and recall by threshold, calibration; looking at candidates changes no link."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from finetuning.align.command import main
from finetuning.align.confidence import Bin, Confidence, cut, with_threshold
from finetuning.align.gold import Gold
from modeling.word_alignment import WordAlignment
from tests.finetuning.conftest import PAIRS


@pytest.fixture
def confidence():
    """Two sentences; of four candidates two are sure, one is possible and one is wrong."""
    found = Confidence()
    links, gold = [(0, 0), (1, 1), (1, 0)], Gold({(0, 0), (2, 2)}, {(0, 0), (2, 2), (1, 1)})
    found.add(WordAlignment(["a", "b", "c"], ["x", "y", "z"], links, [0.95, 0.65, 0.15]), gold)
    found.add(WordAlignment(["a"], ["x"], [(0, 0)], [0.61]), Gold({(0, 0)}, {(0, 0)}))
    return found


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
    for threshold, link_all in itertools.product((0.5, 0.005), (False, True)):
        aligner = WordAligner(model, tokenizer, threshold=threshold, link_all=link_all)
        (expected,) = aligner.align(pairs, probabilities=True)
        (candidates,) = with_threshold(aligner, 0.01).align(pairs, probabilities=True)
        assert cut(candidates, aligner) == expected
        assert len(candidates.links) > len(expected.links) or threshold < 0.01
    mutual = WordAligner(model, tokenizer, "mutual")
    assert with_threshold(mutual, 0.01) is mutual


# ---- the command


@pytest.fixture
def score(tiny_model, tmp_path, capsys):
    """score(text of gold, *arguments) -> (stdout, stderr) of the command with five pairs and the tiny model."""
    (tmp_path / "pairs.txt").write_text("\n".join(PAIRS) + "\n", encoding="utf-8")

    def with_gold(gold, *arguments, files=(tmp_path / "pairs.txt",), name="gold.txt"):
        (tmp_path / name).write_text(gold)
        given = [*files, "--gold", tmp_path / name, "--model", tiny_model, *arguments]
        main(["score", *map(str, given)])
        return capsys.readouterr()

    return with_gold


@pytest.fixture
def refused(score, capsys):
    """refused(text of gold, *arguments) -> the message with which the command refuses them."""

    def message(*arguments, **keywords):
        with pytest.raises(SystemExit) as stopped:
            score(*arguments, **keywords)
        assert stopped.value.code == 2
        return capsys.readouterr().err

    return message


GOLD = "1 1 1 S\n1 2 2 S\n1 3 3 P\n2 1 1 S\n2 2 2 S\n5 1 1 S\n5 99 1 S\n"  # one link past its sentence


def test_scores_are_those_of_the_links(score, tiny_model, tmp_path, capsys):
    out, err = score(GOLD)
    assert "sentence 5: (99, 1), of 7 and 8 words" in err and "3 of the 5 sentences" in err
    main(["--model", str(tiny_model), str(tmp_path / "pairs.txt")])
    lines = capsys.readouterr().out.splitlines()
    links = [{tuple(map(int, link.split("-"))) for link in line.split()} for line in lines]
    sure = [{(0, 0), (1, 1)}, {(0, 0), (1, 1)}, set(), set(), {(0, 0)}]
    possible = [sure[0] | {(2, 2)}, *sure[1:]]
    linked = sum(len(links[n]) for n in (0, 1, 4))
    hits = [sum(len(links[n] & of[n]) for n in (0, 1, 4)) for of in (sure, possible)]
    assert f"AER {100 - 100 * sum(hits) / (linked + 5):.1f}, precision {100 * hits[1] / linked:.1f}" in out
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line[0] == "│"]
    assert rows[0] == ["one to one", "5", f"{100 * hits[0] / 5:.1f}"]  # of this gold all sure links
    assert sum(int(count) for _, count, _ in rows[1:]) == 5


def test_links_in_files_are_scored_without_a_model(score, tiny_model, tmp_path, capsys):
    expected = score(GOLD).out.splitlines()[0].partition(": ")[2]
    pairs, files = str(tmp_path / "pairs.txt"), [str(tmp_path / name) for name in ("plain", "probable")]
    for path, option in zip(files, ([], ["--probabilities"]), strict=True):
        main(["--model", str(tiny_model), pairs, "--output", path, *option])
    capsys.readouterr()
    given = ["score", pairs, "--gold", str(tmp_path / "gold.txt"), "--links", *files]
    main(given)
    assert capsys.readouterr().out.splitlines() == [f"{path}: {expected}" for path in files]
    links = Path(files[1]).read_text()
    for text, option, named in (
        (links, "--layer=1", "--layer"),
        (links + "\n", "--quiet", f"{files[1]} has 6 lines"),
        ("0-70:0.5 " + links, "--quiet", f"{files[1]}, line 1: '0-70:0.5'"),
        (links.replace("\n", " 0\n"), "--quiet", f"{files[1]}, line 1: '0'"),
    ):
        Path(files[1]).write_text(text)
        with pytest.raises(SystemExit) as stopped:
            main([*given, option])
        assert stopped.value.code == 2 and named in capsys.readouterr().err


def test_gold_without_sure_links_has_no_recall_by_kind(score):
    out, err = score("1 1 1 P\n1 2 2 P\n")
    assert "AER" in out and len(out.splitlines()) == 1


def test_gold_counts_the_words_between_blanks_or_those_that_text_is_split_into(score, refused, tmp_path):
    """In lines and in JSON strings; a no-break space is part of a word."""
    (tmp_path / "x.txt").write_text("ein Mann,\u00a0zwei Hunde. ||| a man, two dogs.\n", encoding="utf-8")
    row = {"source": "ein Mann,\u00a0zwei Hunde.", "target": "a man, two dogs."}
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    for name in ("x.txt", "x.jsonl"):
        given = {"files": (tmp_path / name,)}
        assert "of 3 and 4 words" in refused("1 6 6 S\n", **given)
        assert "AER" in score("1 3 4 S\n", **given).out
        for option in ("--layer=1", "--sweep-layers"):
            out, err = score("1 6 6 S\n", "--split", option, **given)
            assert "AER" in out and "not scored" not in err


def test_sentences_and_links_of_one_table(score, tmp_path):
    table = "a\tein Mann\ta man\t0-0 1-1\nb\tzwei Hunde\ttwo dogs\t0-0 1p1\n"
    given = ("--columns", "2", "3", "--layer", "1", "--quiet")
    of_table = score(table, *given, files=(tmp_path / "x.tsv",), name="x.tsv")
    of_links = score("0-0 1-1\n0-0 1p1\n", *given, files=(tmp_path / "x.tsv",))
    assert of_table.out.replace("x.tsv", "gold.txt") == of_links.out and "AER" in of_links.out


def test_gold_whose_sentence_numbers_have_gaps_scores_the_same(score):
    said = [score("".join(f"{n} 1 1 S\n" for n in numbers)) for numbers in (range(1, 6), (3, 4, 8, 9, 20))]
    assert said[0].out == said[1].out and "AER" in said[0].out
    assert len(said[1].err.splitlines()) == len(said[0].err.splitlines()) + 1, "the gaps are reported"


def test_layers_are_swept(score):
    out, err = score(GOLD, "--sweep-layers")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("│")] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--sweep-layers --layer 1", "--layer"),
        ("--output x", "--output"),
        ("--languages de en", "--languages"),
    ],
)
def test_what_is_refused(refused, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("finetuning.align.score.load_aligner", None)  # all is found before the model is loaded
    assert named in refused(GOLD, *arguments.split())


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (2.0, -1.0), (0.5, 0.7)])
def test_calibration_finds_slope_and_offset(slope, offset):
    generator = np.random.default_rng(0)
    logits = generator.uniform(-4, 4, 20_000)
    is_right = generator.random(len(logits)) < 1 / (1 + np.exp(-(slope * logits + offset)))
    probabilities = 1 / (1 + np.exp(-logits))
    found = Confidence()
    found.candidates = [*zip(probabilities.tolist(), is_right.tolist(), strict=True)]
    assert found.calibration() == pytest.approx([slope, offset], abs=0.08)
