"""What bench/word_alignment.py measures is the same on both sides, and it runs without its peers."""

import sys

import pytest

from bench.word_alignment import draw_sorted, require_same

SMALL = "--pairs 8 --batch 4 --hidden 64 --layers 1 --sentence_pairs 3 --rounds 2 --threads 1".split()


def test_every_part_writes_its_ratios(figures):
    parts = figures("word_alignment", *SMALL)["parts"]
    found = {part: {(row["ours"], row["peer"]) for row in rows} for part, rows in parts.items()}
    assert {("mutual", "simalign mutual"), ("itermax", "simalign itermax")} <= found["matching"]
    assert found["sinkhorn"] == {("Sinkhorn", "POT sinkhorn"), ("Sinkhorn", "POT log_sinkhorn")}
    assert ("itermax, separate, float32", "simalign") in found["end-to-end"] and len(found["end-to-end"]) == 4
    assert all(row["ratio"] > 0 and row["pairs_per_second"] > 0 for rows in parts.values() for row in rows)
    assert {row["results"] for row in parts["matching"] if row["ours"] == "itermax"} == {"same links in 8 of 8 pairs"}


def test_peers_that_are_not_installed_are_left_out(figures, monkeypatch):
    for name in ("simalign", "ot", "ot.batch", "awesome_align", "awesome_align.modeling"):
        monkeypatch.setitem(sys.modules, name, None)
    parts = figures("word_alignment", *SMALL)["parts"]
    assert parts == {"matching": [], "sinkhorn": [], "end-to-end": []}


def test_batches_are_sorted():
    batches = draw_sorted(64, 16)
    assert [len(batch) for batch in batches] == [16] * 4
    drawn = [sum(pair) for batch in batches for pair in batch]
    assert drawn == sorted(drawn)


def test_other_links_are_not_timed():
    assert require_same(1, 200, "x") == "same links in 199 of 200 pairs"
    with pytest.raises(ValueError, match="3 of 200"):
        require_same(3, 200, "x")
