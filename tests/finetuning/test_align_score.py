"""`word-align score`: scores, calibration; looking at candidates changes no link."""

import re
from pathlib import Path

import numpy as np
import pytest

from crosslingual_zoo.finetuning.align.command import main
from crosslingual_zoo.finetuning.align.score import calibration
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

    def with_gold(gold, *arguments, files=(tmp_path / "pairs.txt",), name="gold.txt"):
        (tmp_path / name).write_text(gold)
        return word_align("score", *files, "--gold", tmp_path / name, *arguments)

    return with_gold


def test_score_is_that_of_the_links(score, tiny_model, tmp_path, capsys):
    out, err = score(GOLD)
    assert "sentence 5: (99, 1), of 7 and 8 words" in err
    assert "3 of the 5 sentences" in err
    main(["--model", str(tiny_model), str(tmp_path / "pairs.txt")])
    lines = capsys.readouterr().out.splitlines()
    links = []
    for line in lines:
        links.append({(int(source), int(target)) for source, target in re.findall(r"(\d+)-(\d+)", line)})
    sure = {0: {(0, 0), (1, 1)}, 1: {(0, 0), (1, 1)}, 4: {(0, 0)}}
    possible = sure | {0: {(0, 0), (1, 1), (2, 2)}}
    linked = sum(len(links[number]) for number in sure)
    right_sure = sum(len(links[number] & sure[number]) for number in sure)
    right_possible = sum(len(links[number] & possible[number]) for number in sure)
    error = 100 - 100 * (right_sure + right_possible) / (linked + 5)
    assert f"AER {error:.1f}, precision {100 * right_possible / linked:.1f}" in out
    swept = score(GOLD, "--sweep-layers").out.splitlines()
    assert [line.split()[1] for line in swept if line.startswith("│")] == ["0", "1", "2"]


def test_score_of_links_in_files_without_a_model(score, tiny_model, tmp_path, capsys, refused):
    expected = score(GOLD).out.splitlines()[0].partition(": ")[2]
    pairs = str(tmp_path / "pairs.txt")
    files = [str(tmp_path / name) for name in ("plain", "probable")]
    for path, option in zip(files, ([], ["--probabilities"]), strict=True):
        main(["--model", str(tiny_model), pairs, "--output", path, *option])
    capsys.readouterr()
    arguments = ["score", pairs, "--gold", str(tmp_path / "gold.txt"), "--links", *files]
    main(arguments)
    assert capsys.readouterr().out.splitlines() == [f"{path}: {expected}" for path in files]
    links = Path(files[1]).read_text()
    for text, named in ((links + "\n", f"{files[1]} has 6 lines"), (f"0-70:0.5 {links}", f"{files[1]}, line 1")):
        Path(files[1]).write_text(text)
        assert named in refused(arguments, main)
