"""The utilization that bench/mfu.py prints is useful FLOPs over seconds and peak."""

import argparse

import numpy as np
import pytest

from bench.mfu import SIZES, row_lengths

SMALL = "--layers 1 --hidden 64 --vocab 300 --rows 2 --pairs 3 --packed 32 --bitext 24 --matrix 64 --rounds 2".split()


def test_rows_are_full_or_pairs_cut_to_their_room():
    flags = argparse.Namespace(rows=3, packed=512, pairs=400, bitext=64)
    rng = np.random.default_rng(0)
    assert (row_lengths("mlm", flags, rng).sum(1) + 2).tolist() == [512] * 3
    pairs = row_lengths("tlm", flags, rng)
    assert pairs.shape == (400, 2) and (pairs.sum(1) + 4).max() == 64
    longer, shorter = pairs.max(1), pairs.min(1)
    cut = pairs.sum(1) == 60
    assert cut.any() and (shorter[cut] <= 30).all() and (longer[cut] >= 30).all()  # the longer side gives way


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_command_writes_its_figures(figures, tmp_path, precision):
    flags = [*SMALL, "--sizes", "base", "--precision", precision, "--profile", str(tmp_path / "profiles")]
    steps = figures("mfu", *flags)["steps"]
    assert list(steps) == ["base, MLM packed 32", "base, TLM bitext 24"]
    size = SIZES["base"]._replace(layers=1, hidden=64, vocab=300)
    for row in steps.values():
        assert row["model"] == size._asdict()
        assert row["of_measured_peak"] == pytest.approx(row["tera_flops_per_second"] / row["measured_peak_tera"])
        rate = row["tokens_per_second"] * row["flops_per_token"] / 1e12
        assert row["tera_flops_per_second"] == pytest.approx(rate, rel=0.3)  # medians of rounds with other lengths
        assert row["of_data_sheet"] is None and row["aim"] is None  # no GPU whose aim it would be
    packed = steps["base, MLM packed 32"]
    assert packed["flops_per_token"] == pytest.approx(size.mlm([32], 32 * packed["share_predicted"]) / 32)
    assert packed["share_predicted"] == pytest.approx(0.15 * 30 / 32, rel=0.15)  # whole tokens
    assert "aten::addmm" in (tmp_path / "profiles" / "base-mlm.txt").read_text(encoding="utf-8")
