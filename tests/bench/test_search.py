"""bench/search.py compares searches that find the same, and writes its figures."""

import json

import pytest
import torch

from bench import search
from bench.search import BF16, FAISS, FP32, main

SMALL = ["--sources", "300", "--targets", "200", "--hidden", "64", "--rounds", "1", "--no_warm_up", "--threads", "1"]


@pytest.fixture(autouse=True)
def threads():
    """Leaves torch's threads as they were."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(tmp_path, capsys):
    output = tmp_path / "results" / "search.json"
    main([*SMALL, "--output", str(output)])
    return json.loads(output.read_text(encoding="utf-8"))["ways"], capsys.readouterr().out


def test_the_command_writes_its_figures(tmp_path, capsys):
    pytest.importorskip("faiss")
    ways, shown = run(tmp_path, capsys)
    assert [way["way"] for way in ways] == [FAISS, FP32, BF16] and "times faiss" in shown
    assert ways[0]["ratio"] == 1 and all(way["ratio"] > 0 and way["seconds"] > 0 for way in ways)
    assert [way["aim"] for way in ways] == [None, 1.5, 2.0]
    assert ways[1]["differing"] == ways[2]["differing"] <= 4, "of 2,000, and all of them equally near"


def test_without_the_peer_its_row_is_left_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(search, "has_faiss", lambda: False)
    ways, shown = run(tmp_path, capsys)
    assert [way["way"] for way in ways] == [FP32, BF16] and "faiss-cpu is not installed" in shown
    assert all(way["ratio"] is None for way in ways)


def test_another_neighbor_is_told_from_one_that_is_as_near():
    near, places = torch.tensor([[0.9, 0.8]]), torch.tensor([[3, 5]])
    assert search.differing([(near, places)], [(near - 1e-7, torch.tensor([[3, 6]]))]) == 1
    with pytest.raises(AssertionError, match="nearer"):
        search.differing([(near, places)], [(near - 1e-3, places)])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds", "0"], "--rounds is 0"),
        (["--threads", "0"], "--threads has 0"),
        (["--neighbors", "400"], "no more neighbors than vectors"),
    ],
)
def test_sizes_that_cannot_be_measured_are_refused(flags, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([*SMALL, *flags, "--output", str(tmp_path / "out.json")])
    assert message in capsys.readouterr().err and not (tmp_path / "out.json").exists()
