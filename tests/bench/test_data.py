"""What bench/data.py reads is the same text on every way, and its figures are rates and bytes."""

import json

import numpy as np
import pytest

from bench.data import anonymous_bytes, enlarge, hub_texts, make_texts, read_flags, recipe_of, write_shards

SMALL = "--sentences 300 --per_text 2 --vocab 500 --batch 16 --length 32 --updates 4".split()
SMALL += "--shards 12 --budget_mib 1 --rounds 1".split()


@pytest.fixture
def folder(tmp_path, sample_tokenizer_dir, monkeypatch):
    """Text with a tokenizer, and its shards."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tokenizer").symlink_to(sample_tokenizer_dir)
    texts = make_texts(300, np.random.default_rng(0))
    (tmp_path / "text.txt").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    write_shards(read_flags(SMALL), tmp_path, "prepared", 2**20)
    return tmp_path


def test_made_up_text_has_words_as_text_has_them():
    texts = make_texts(2000, np.random.default_rng(0))
    words = [word for text in texts for word in text.split()]
    kinds, counts = np.unique(words, return_counts=True)
    assert 20 < len(words) / len(texts) < 35
    assert len(kinds) > 0.15 * len(words) and counts.max() > 0.03 * len(words)  # many are rare, some are common


def test_text_of_the_hub_has_one_line_each(tmp_path):
    with pytest.raises(ValueError, match="has no local/bible and no local/ntrex"):
        hub_texts(tmp_path, 5, np.random.default_rng(0))
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "local/bible/en").mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a\nb", " ", "c", None]}), tmp_path / "local/bible/en/train.parquet")
    assert sorted(hub_texts(tmp_path, 5, np.random.default_rng(0))) == ["a b", "c"]


def test_an_enlarged_folder_is_read_as_so_many_copies(folder):
    from pretraining.data.corpora import load_corpora
    from pretraining.start.initialization import load_tokenizer

    flags = read_flags(SMALL)
    one, many = (recipe_of(flags, folder, prepared=str(folder / name)) for name in ("prepared", "large"))
    tokens = enlarge(folder / "prepared", folder / "large", 2**18)
    tokenizer = load_tokenizer(one)
    (small,), (large,) = load_corpora(one, tokenizer), load_corpora(many, tokenizer)
    copies = len(large.lengths) // len(small.lengths)
    assert copies > 1 and 4 * tokens >= 2**18
    assert large.lengths.tolist() == small.lengths.tolist() * copies and sum(large.lengths) == tokens
    for index in (0, 7):
        far = index + (copies - 1) * len(small.lengths)
        assert small.fetch(0, index).sides[0].tolist() == large.fetch(0, far).sides[0].tolist()


def test_anonymous_memory_is_what_was_allocated():
    before = anonymous_bytes()
    held = np.ones(2**22)
    assert anonymous_bytes() - before == pytest.approx(held.nbytes, rel=0.2)


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
    assert [row["way"] for row in parts["preparing"]][1:] == ["its tokenizing", "sentencepiece", "tokenizers"]
    start = parts["start"]
    assert [row["shards"] for row in start][0] == 1 and 8 <= start[1]["shards"] <= 24
    assert all(row["whole"] == pytest.approx(row["open"] + row["first_batch"]) for row in start)
    (memory,) = parts["memory"]
    assert memory["budget_mib"] == 1 and memory["way"].startswith("1") and memory["tokens_per_second"] > 0
    assert "masked batches: 150 rows of 2 sentences of made-up words" in capsys.readouterr().out


def test_sizes_that_cannot_be_measured_are_refused(in_this_process, tmp_path, capsys):
    with pytest.raises(SystemExit):
        in_this_process("data").main(["--batch", "0", "--output", str(tmp_path / "out.json")])
    assert "--batch is 0. Nothing would be measured. Give 1 or more" in capsys.readouterr().err
