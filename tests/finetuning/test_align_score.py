"""`word-align score`: scores, calibration; looking at candidates changes no link."""

import re

import numpy as np
import pytest

from crosslingual_zoo.finetuning.align.command import main
from crosslingual_zoo.finetuning.align.score import calibration
from crosslingual_zoo.finetuning.metrics import load_metric
from tests.finetuning.conftest import PAIRS

GOLD = "1 1 1 S\n1 2 2 S\n1 3 3 P\n2 1 1 S\n2 2 2 S\n5 1 1 S\n5 99 1 S\n"  # one link past its sentence


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.0), (2.0, -1.0), (0.5, 0.7)])
def test_calibration_finds_slope_and_offset(slope, offset):
    generator = np.random.default_rng(0)
    logits = generator.uniform(-4, 4, 20_000)
    is_right = generator.random(len(logits)) < 1 / (1 + np.exp(-(slope * logits + offset)))
    probabilities = 1 / (1 + np.exp(-logits))
    fitted = calibration([*zip(probabilities.tolist(), is_right.tolist(), strict=True)])
    assert fitted == pytest.approx([slope, offset], abs=0.08)


@pytest.fixture
def score(word_align, tmp_path):
    """score(text of gold, *arguments) -> (stdout, stderr) of the command with five pairs and the tiny model."""
    (tmp_path / "pairs.txt").write_text("\n".join(PAIRS) + "\n", encoding="utf-8")

    def with_gold(gold, *arguments):
        (tmp_path / "gold.txt").write_text(gold)
        return word_align("score", tmp_path / "pairs.txt", "--gold", tmp_path / "gold.txt", *arguments)

    return with_gold


def test_score_is_that_of_the_links(score, word_align, tmp_path):
    out, err = score(GOLD)
    assert "sentence 5: (99, 1), of 7 and 8 words" in err
    assert "3 of the 5 sentences" in err
    links = []
    for line in word_align(tmp_path / "pairs.txt").out.splitlines():
        links.append([list(map(int, link.split("-"))) for link in line.split()])
    sure = {0: [[0, 0], [1, 1]], 1: [[0, 0], [1, 1]], 4: [[0, 0]]}
    possible = sure | {0: [[0, 0], [1, 1], [2, 2]]}
    references = [{"sure": sure[number], "possible": possible[number]} for number in sure]
    expected = load_metric("aer").compute(predictions=[links[number] for number in sure], references=references)
    assert f"AER {expected['aer']:.1f}, precision {expected['precision']:.1f}" in out
    swept = score(GOLD, "--sweep-layers").out
    assert re.findall(r"^│ +(\d)", swept, re.MULTILINE) == ["0", "1", "2"]


def test_score_of_links_in_files_without_a_model(score, word_align, tmp_path, capsys, refused):
    expected = score(GOLD).out.splitlines()[0].partition(": ")[2]
    plain = tmp_path / "plain"
    probable = tmp_path / "probable"
    word_align(tmp_path / "pairs.txt", "--output", plain)
    word_align(tmp_path / "pairs.txt", "--output", probable, "--probabilities")
    arguments = f"score {tmp_path}/pairs.txt --gold {tmp_path}/gold.txt --links {plain} {probable}".split()
    main(arguments)
    assert capsys.readouterr().out.splitlines() == [f"{path}: {expected}" for path in (plain, probable)]
    links = probable.read_text()
    for text, named in ((links + "\n", f"{probable} has 6 lines"), (f"0-70:0.5 {links}", f"{probable}, line 1")):
        probable.write_text(text)
        assert named in refused(arguments, main)
