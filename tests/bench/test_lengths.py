"""The lengths that come with the benchmarks, and how they are counted."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench._lengths import PAIRS, from_texts, lengths_of, read_lengths


def test_the_shipped_lengths_are_those_of_news(tmp_path):
    pairs_M2, texts_K = lengths_of(None, None, tmp_path)
    assert pairs_M2.shape == (5 * 1997, 2) and texts_K.shape == (6 * 1997,)
    assert 30 < pairs_M2.mean() < 40 and 30 < texts_K.mean() < 40
    assert np.corrcoef(pairs_M2.T)[0, 1] > 0.8  # of translations: a side's length tells the other's


def test_they_are_counted_from_texts(tmp_path, sample_tokenizer_dir):
    languages = sorted({code for pair in PAIRS for code in pair.split("-")})
    for code in languages:
        (tmp_path / "local/ntrex" / code).mkdir(parents=True)
        rows = {"text": ["a b c", "a"] if code == "en" else ["a b", "a b"]}
        pq.write_table(pa.table(rows), tmp_path / "local/ntrex" / code / "test.parquet")
    counted = tmp_path / "lengths.json"
    counted.write_text(from_texts(tmp_path, str(sample_tokenizer_dir), tmp_path), encoding="utf-8")
    pairs_M2, texts_K = read_lengths(counted)
    one, two, three = sorted(set(texts_K))
    assert sorted(texts_K) == [one, *[two] * 10, three]
    expected = [[three, two], [one, two]] * 3 + [[two, three], [two, one]] + [[two, two]] * 2
    assert sorted(pairs_M2.tolist()) == sorted(expected)


def test_a_folder_without_the_texts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="local/ntrex/de"):
        from_texts(tmp_path, None, tmp_path)
