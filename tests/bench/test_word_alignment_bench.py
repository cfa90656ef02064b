"""What bench/word_alignment.py measures is the same on both sides, and it runs without its peers."""

import random
import sys

import pytest

from bench.word_alignment import draw_sorted, read_lengths, require_same

SMALL = "--pairs 8 --batch 4 --hidden 64 --layers 1 --sentence_pairs 3 --rounds 2 --threads 1".split()


@pytest.fixture
def short_pairs(tmp_path):
    """Two line-aligned files."""
    words = random.Random(0)
    for name in ("source", "target"):
        lines = [" ".join("x" * words.randint(3, 9)) for _ in range(20)] + [""]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]


def test_every_part_writes_its_ratios(figures, short_pairs):
    parts = figures("word_alignment", *SMALL, *short_pairs)["parts"]
    found = {part: {(row["ours"], row["peer"]) for row in rows} for part, rows in parts.items()}
    assert {("mutual", "simalign mutual"), ("itermax", "simalign itermax")} <= found["matching"]
    assert found["sinkhorn"] == {("Sinkhorn", "POT sinkhorn"), ("Sinkhorn", "POT log_sinkhorn")}
    assert ("itermax, separate, float32", "simalign") in found["end-to-end"] and len(found["end-to-end"]) == 4
    assert all(row["ratio"] > 0 and row["pairs_per_second"] > 0 for rows in parts.values() for row in rows)
    assert {row["results"] for row in parts["matching"] if row["ours"] == "itermax"} == {"same links in 8 of 8 pairs"}


def test_peers_that_are_not_installed_are_left_out(figures, short_pairs, monkeypatch):
    for name in ("simalign", "ot", "ot.batch", "awesome_align", "awesome_align.modeling"):
        monkeypatch.setitem(sys.modules, name, None)
    parts = figures("word_alignment", *SMALL, *short_pairs)["parts"]
    assert parts == {"matching": [], "sinkhorn": [], "end-to-end": []}


def test_lengths_and_batches(short_pairs, tmp_path):
    kept = read_lengths(None, None)
    assert len(kept) == 96 and kept == sorted(kept, key=sum)
    assert len(read_lengths(tmp_path / "source", tmp_path / "target")) == 20
    batches = draw_sorted(kept, 64, 16, 1.5)
    assert [len(batch) for batch in batches] == [16] * 4
    assert [sum(pair) for batch in batches for pair in batch] == sorted(
        sum(pair) for batch in batches for pair in batch
    )


def test_files_that_make_no_sense(short_pairs, tmp_path):
    (tmp_path / "longer").write_text("x\n" * 30, encoding="utf-8")
    with pytest.raises(ValueError, match="21 .*30"):
        read_lengths(tmp_path / "source", tmp_path / "longer")
    (tmp_path / "empty").write_text("\n" * 30, encoding="utf-8")
    with pytest.raises(ValueError, match="empty"):
        read_lengths(tmp_path / "longer", tmp_path / "empty")


def test_other_links_are_not_timed():
    assert require_same(1, 200, "x") == "same links in 199 of 200 pairs"
    with pytest.raises(ValueError, match="3 of 200"):
        require_same(3, 200, "x")
