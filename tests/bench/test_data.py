"""What bench/data.py reads is the same text on every way, and its figures are rates."""

import json

import numpy as np
import pytest

from bench.data import hub_texts, make_texts

SMALL = "--sentences 300 --per_text 2 --vocab 500 --batch 16 --length 32 --updates 4 --rounds 1".split()


def test_made_up_text_has_words_as_text_has_them():
    texts = make_texts(2000, np.random.default_rng(0))
    words = [word for text in texts for word in text.split()]
    kinds, counts = np.unique(words, return_counts=True)
    assert 20 < len(words) / len(texts) < 35
    assert len(kinds) > 0.15 * len(words) and counts.max() > 0.03 * len(words)  # many are rare, some are common


def test_text_of_the_hub_has_one_line_each(tmp_path):
    with pytest.raises(ValueError, match="local/bible"):
        hub_texts(tmp_path, 5, np.random.default_rng(0))
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "local/bible/en").mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a\nb", " ", "c", None]}), tmp_path / "local/bible/en/train.parquet")
    assert sorted(hub_texts(tmp_path, 5, np.random.default_rng(0))) == ["a b", "c"]


@pytest.mark.slow
def test_the_command_writes_its_figures(in_this_process, sample_tokenizer_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))  # which the command changes
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    bench, output = in_this_process("data"), tmp_path / "results" / "data.json"
    settings = ["--tokenizer", str(sample_tokenizer_dir), "--workers", "0"]
    bench.main([*SMALL, *settings, "--output", str(output)])
    parts = json.loads(output.read_text(encoding="utf-8"))["parts"]
    assert list(parts) == list(bench.PARTS)
    batches = {row["way"]: row for row in parts["batches"]}
    assert batches["prepared, 0 workers"]["ratio"] == pytest.approx(
        batches["prepared, 0 workers"]["tokens_per_second"] / batches["on the fly, 0 workers"]["tokens_per_second"]
    )
    assert "masking alone, DataCollatorForLanguageModeling" in batches
    assert [row["way"] for row in parts["preparing"]] == ["prepare", "tokenizers"]
    assert "masked batches: 150 rows of 2 sentences of made-up words" in capsys.readouterr().out


def test_sizes_that_cannot_be_measured_are_refused(in_this_process, tmp_path, capsys):
    with pytest.raises(SystemExit):
        in_this_process("data").main(["--batch", "0", "--output", str(tmp_path / "out.json")])
    assert "--batch is 0" in capsys.readouterr().err
