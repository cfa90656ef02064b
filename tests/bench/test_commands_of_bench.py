"""Every benchmark at a tiny size writes its figures."""

from types import SimpleNamespace

import pytest

from bench.word_alignment import save_encoder

pytestmark = pytest.mark.slow


def test_finetuning(figures):
    sizes = "--layers 1 --hidden 64 --max_length 40 --batch 8 --train 24 --evaluated 5 --rounds 1".split()
    rows = figures("finetuning", *sizes)["rows"]
    assert len(rows) == 4 and all(row["seconds"] > 0 and 0 <= row["accuracy"] <= 100 for row in rows)


def test_masked_lm_step(figures):
    sizes = "--layers 1 --hidden 64 --vocab 300 --pairs 2 --rounds 1 --batches 1".split()
    found = figures("masked_lm_step", *sizes, "--parts", "random-fp32", "--mfu", "64")["parts"]["random-fp32"]
    peer, packed, ours, _ = found["ways"]
    assert ours["memory_ratio"] == pytest.approx(peer["memory_mib"] / ours["memory_mib"])
    for against, name in ((peer, "ratio"), (packed, "packed_ratio")):
        assert ours[name] == pytest.approx(against["seconds"][0] / ours["seconds"][0])
    assert ours["mfu"] == pytest.approx(peer["mfu"] * ours["ratio"]) and ours["mfu"] > 0


def test_word_alignment(figures, tmp_path):
    sizes = "--pairs 3 --hidden 64 --layers 2 --rounds 1 --ways word-align plain".split()
    rows = figures("word_alignment", *sizes)["rows"]
    assert [row["way"] for row in rows] == ["word-align", "plain"] and rows[1]["ratio"] == 1
    assert all(row["seconds"] > 0 and row["memory"] > 0 for row in rows)
    model = str(tmp_path / "model")
    save_encoder(model, SimpleNamespace(layers=2, hidden=64))
    texts = {"source": "ein Haus\nzwei Hunde spielen\n", "target": "a house\ntwo dogs play\n", "gold": "0-0 1-1\n" * 2}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files, ways = [str(tmp_path / name) for name in texts], ["word-align, probabilities", "word-align, mutual", "plain"]
    flags = ["--model", model, "--gold_set", "tiny", *files, "--ways", *ways]
    rows = figures("word_alignment", *flags)["rows"]
    assert [(row["gold"], row["way"]) for row in rows] == [(gold, way) for gold in ("tiny", "mean") for way in ways]
    assert [row["aer"] for row in rows[:3]] == [row["aer"] for row in rows[3:]]  # of one gold set, the mean is its own
    assert all(0 <= row["aer"] <= 100 for row in rows) and rows[1]["aer"] == rows[2]["aer"]
