"""Every benchmark at a tiny size writes its figures."""

import sys
from types import SimpleNamespace

import pytest

from bench.word_alignment import save_encoder
from modeling.word_probabilities import CONTEXT_WEIGHTS

pytestmark = pytest.mark.slow


def test_finetuning(figures):
    sizes = "--layers 1 --hidden 64 --rows 2000 --vocab 600 --max_length 40 --batch 8 --updates 3".split()
    (part,) = figures("finetuning", *sizes, "--evaluated", "5", "--rounds", "1")["parts"].values()
    assert all(line["examples_per_second"] > 0 for line in part["ways"])


def test_masked_lm_step(figures):
    sizes = "--layers 1 --hidden 64 --vocab 300 --pairs 2 --rounds 1 --batches 1".split()
    found = figures("masked_lm_step", *sizes, "--parts", "random-fp32", "--mfu", "64")["parts"]["random-fp32"]
    peer, ours, _ = found["ways"]
    assert ours["memory_ratio"] == pytest.approx(peer["memory_mib"] / ours["memory_mib"])
    assert ours["ratio"] == pytest.approx(peer["seconds"][0] / ours["seconds"][0])
    assert ours["mfu"] == pytest.approx(peer["mfu"] * ours["ratio"]) and ours["mfu"] > 0


def test_word_alignment(figures, monkeypatch):
    sizes = "--pairs 8 --batch 4 --hidden 64 --layers 1 --sentence_pairs 3 --rounds 1 --threads 1".split()
    parts = figures("word_alignment", *sizes)["parts"]
    assert all(row["ratio"] > 0 for rows in parts.values() for row in rows) and all(parts.values())
    for name in ("simalign", "ot", "ot.batch", "awesome_align", "awesome_align.modeling"):
        monkeypatch.setitem(sys.modules, name, None)
    assert not any(figures("word_alignment", *sizes)["parts"].values())


def test_word_alignment_with_gold_links(figures, tmp_path):
    model = str(tmp_path / "model")
    save_encoder(model, SimpleNamespace(layers=8, hidden=64))
    texts = {"source": "ein Haus\nzwei Hunde spielen\n", "target": "a house\ntwo dogs play\n", "gold": "0-0 1-1\n" * 2}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in texts]
    ways = ["word-align", "simalign inter"]
    flags = ["--model", model, "--gold_set", "tiny", *files, "--ways", *ways]
    rows = figures("word_alignment", *flags)["rows"]
    assert [(row["gold"], row["way"]) for row in rows] == [(gold, way) for gold in ("tiny", "mean") for way in ways]
    assert [row["aer"] for row in rows[:2]] == [row["aer"] for row in rows[2:]]  # of one gold set, the mean is its own
    assert all(0 <= row["aer"] <= 100 and row["seconds"] > 0 and row["memory"] > 0 for row in rows)


def test_word_logits(figures, sample_corpus_dir, tmp_path):
    model = str(tmp_path / "model")
    save_encoder(model, SimpleNamespace(layers=2, hidden=64))
    sets = []
    for name in ("en-de", "zh-en"):
        stem = sample_corpus_dir / "alignments" / name
        sets += ["--gold_set", name, f"{stem}.txt", f"{stem}.gold"]
    found = figures("word_logits", "--model", model, *sets, "--half", "en-de")
    kinds = [f"{name}, {kind}" for name in ("en-de", "zh-en") for kind in ("left out", "as they are")]
    assert [row["gold"] for row in found["rows"]] == [*kinds, "en-de, other half"]
    assert all(0 <= row["aer"] <= 100 and 0 <= row["calibration"] <= 1 for row in found["rows"])
    assert len(found["weights"]) == 5 and found["weights"] != list(CONTEXT_WEIGHTS)
