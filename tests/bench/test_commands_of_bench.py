"""Every benchmark at a tiny size writes its figures."""

import importlib
import json
import logging

import pytest
from transformers import XLMRobertaConfig, XLMRobertaModel

from bench.masked_lm_step import Size
from tests.conftest import forget_accelerate

pytestmark = pytest.mark.slow


@pytest.fixture
def figures(monkeypatch, tmp_path):
    """`figures("finetuning", "--rounds", "1")`: the figures that the command writes, measured in this process."""

    def written(name: str, *flags: str) -> dict:
        bench, output = importlib.import_module(f"bench.{name}"), tmp_path / "results" / "figures.json"
        monkeypatch.setattr(bench, "in_fresh_process", lambda function, *values: function(*values), raising=False)
        bench.main([*flags, "--output", str(output)])
        return json.loads(output.read_text(encoding="utf-8"))

    yield written
    forget_accelerate()
    logging.disable(logging.NOTSET)


@pytest.fixture
def model(sample_tokenizer, tmp_path):
    """Folder of a tiny XLM-R."""
    XLMRobertaModel(XLMRobertaConfig(**Size(2, 64, len(sample_tokenizer)).config())).save_pretrained(tmp_path / "model")
    sample_tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_bench_finetuning(figures, model):
    sizes = "--max_length 40 --batch 8 --train 24 --evaluated 5 --rounds 1".split()
    rows = figures("finetuning", "--model", model, *sizes)["rows"]
    assert len(rows) == 3 and all(row["seconds"] > 0 and 0 <= row["accuracy"] <= 100 for row in rows)


def test_bench_masked_lm_step(figures):
    sizes = "--layers 1 --hidden 64 --vocab 300 --pairs 2 --rounds 1 --batches 1".split()
    found = figures("masked_lm_step", *sizes, "--parts", "random-fp32", "--mfu", "64")["parts"]["random-fp32"]
    peer, packed, ours = found["ways"]
    assert ours["memory_ratio"] == pytest.approx(peer["memory_mib"] / ours["memory_mib"])
    for against, name in ((peer, "ratio"), (packed, "packed_ratio")):
        assert ours[name] == pytest.approx(against["seconds"][0] / ours["seconds"][0])
    assert ours["mfu"] == pytest.approx(peer["mfu"] * ours["ratio"]) and ours["mfu"] > 0


def test_bench_word_alignment(figures, model, tmp_path):
    rows = figures("word_alignment", *"--pairs 3 --rounds 2 --ways word-align plain --model".split(), model)["rows"]
    assert [row["way"] for row in rows] == ["word-align", "plain"] and rows[1]["ratio"] == 1
    assert all(row["seconds"] > 0 and row["memory"] > 0 for row in rows)
    texts = {"source": "ein Haus\nzwei Hunde spielen\n", "target": "a house\ntwo dogs play\n", "gold": "0-0 1-1\n" * 2}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    source, target, gold = (str(tmp_path / name) for name in texts)
    ways = ["word-align, mutual", "plain"]
    flags = ["--rounds", "1", "--model", model, "--text", source, target, "--gold", gold, "--ways", *ways]
    ours, plain = figures("word_alignment", *flags)["scores"]
    assert ours.removeprefix(ways[0]) == plain.removeprefix(ways[1]) and "AER" in ours
