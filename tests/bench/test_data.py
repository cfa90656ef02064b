"""What bench/data.py reads is the same text on every way, and its figures are rates."""

import numpy as np
import pytest

from bench.data import PARTS, hub_texts

SMALL = "--sentences 300 --per_text 2 --vocab 500 --batch 16 --length 32 --updates 4 --rounds 1".split()


def test_text_of_the_hub_has_one_line_each(tmp_path):
    with pytest.raises(ValueError, match="local/bible"):
        hub_texts(tmp_path, 5, np.random.default_rng(0))
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "local/bible/en").mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a\nb", " ", "c", None]}), tmp_path / "local/bible/en/train.parquet")
    assert sorted(hub_texts(tmp_path, 5, np.random.default_rng(0))) == ["a b", "c"]


@pytest.mark.slow
def test_the_command_writes_its_figures(figures, sample_tokenizer_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))  # which the command changes
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    parts = figures("data", *SMALL, "--tokenizer", str(sample_tokenizer_dir), "--workers", "0")["parts"]
    assert list(parts) == list(PARTS)
    batches = {row["way"]: row for row in parts["batches"]}
    assert batches["prepared, 0 workers"]["ratio"] == pytest.approx(
        batches["prepared, 0 workers"]["tokens_per_second"] / batches["on the fly, 0 workers"]["tokens_per_second"]
    )
    assert "masking alone, DataCollatorForLanguageModeling" in batches
    assert [row["way"] for row in parts["preparing"]] == ["prepare", "tokenizers"]
