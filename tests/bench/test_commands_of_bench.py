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
def figures(tmp_path):
    """`figures("finetuning", "--rounds", "1")`: the figures that the command writes."""

    def written(name: str, *flags: str) -> dict:
        output = tmp_path / "results" / "figures.json"
        importlib.import_module(f"bench.{name}").main([*flags, "--output", str(output)])
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


def test_bench_collators(figures, model):
    rows = figures("collators", "--model", model, "--examples", "3", "--rounds", "1")["rows"]
    assert [(row["objective"], row["from"]) for row in rows] == [
        ("mlm", "texts"), ("mlm", "ids"), ("tlm", "texts"), ("tlm", "ids"),
    ]  # fmt: skip
    assert all(row["times as long"] == pytest.approx(row["ours"] / row["transformers"]) for row in rows)


def test_bench_finetuning(figures, model):
    sizes = "--max_length 40 --batch 8 --train 24 --evaluated 5 --rounds 1".split()
    rows = figures("finetuning", "--model", model, *sizes)["rows"]
    assert len(rows) == 3
    assert all(row["seconds"] > 0 and 0 <= row["accuracy"] <= 100 for row in rows)


def test_bench_masked_lm_step(figures):
    sizes = "--layers 1 --hidden 64 --vocab 300 --pairs 2 --rounds 1 --batches 1".split()
    part = figures("masked_lm_step", *sizes, "--parts", "random-fp32", "--mfu", "64")["parts"]["random-fp32"]
    peer, packed, ours = part["ways"]
    seconds = {way: timed[0] for way, timed in part["seconds"].items()}
    assert ours["less by"] == pytest.approx(peer["MiB above"] / ours["MiB above"])
    assert ours["faster by"] == pytest.approx(seconds[peer["way"]] / seconds["ours"])
    assert ours["than packed"] == pytest.approx(seconds[packed["way"]] / seconds["ours"])
    assert ours["of the peak"] == pytest.approx(peer["of the peak"] * ours["faster by"])
    assert ours["of the peak"] > 0


def test_bench_word_alignment(figures, model, tmp_path):
    rows = figures("word_alignment", *f"--pairs 3 --rounds 2 --ways word-align plain --model {model}".split())["rows"]
    assert [row["way"] for row in rows] == ["word-align", "plain"]
    assert rows[1]["times as fast as plain"] == 1
    assert all(row["seconds"] > 0 and row["MiB"] > 0 for row in rows)
    texts = {"source": "ein Haus\nzwei Hunde spielen\n", "target": "a house\ntwo dogs play\n", "gold": "0-0 1-1\n" * 2}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = f"--text {tmp_path}/source {tmp_path}/target --gold {tmp_path}/gold --rounds 1 --model {model}"
    ours, plain = figures("word_alignment", *files.split(), "--ways", "word-align, mutual", "plain")["scores"]
    assert ours.removeprefix("word-align, mutual") == plain.removeprefix("plain")
    assert "AER" in ours


def test_bench_mining(figures):
    parts = figures("mining", "--vectors", "40", "--rounds", "1")["parts"]
    assert list(parts) == ["random", "in a cone"]
    for rows in parts.values():
        assert rows[1]["times as fast as the product"] == 1
        assert all(row["seconds"] > 0 for row in rows)


def test_bench_prepare(figures, model, tmp_path):
    (tmp_path / "xx.txt").write_text("ein Haus\nzwei Hunde\n")
    for flags in (["--lines", "20"], ["--text", str(tmp_path / "xx.txt")]):
        ours, script = figures("prepare", "--model", model, "--rounds", "1", *flags)["rows"]
        assert script["times as fast as script"] == 1
        assert ours["seconds"] > 0
        assert ours["MiB"] > script["MiB"]
