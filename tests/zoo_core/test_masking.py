"""Masks against the shares of the papers (15%, of these 80/10/10) over many tokens, and those of each row alone."""

import numpy as np
import pytest

from crosslingual_zoo.zoo_core.keyed_random import (
    bits_of,
    key_stream,
    keyed_rng,
    keyed_seed,
    row_keys,
    short_seed,
    uniform_of,
)
from crosslingual_zoo.zoo_core.masking import IGNORED, mask_rows

MASK, PAD, UNK = 999, 1, 3
VOCABULARY = np.arange(4, 999)


def keys_of(count, *key, epoch=0):
    seeds = np.full(count, short_seed(*(key or ("a",))), dtype=np.uint64)
    return row_keys(seeds, np.full(count, epoch), np.arange(count))


def mask(ids, special, probability=0.15, keys=None, **options):
    ids, special = np.atleast_2d(ids), np.atleast_2d(special).astype(bool)
    input_ids, labels = np.array(ids), np.full(ids.shape, IGNORED)
    keys = keys_of(len(ids)) if keys is None else keys
    mask_rows(input_ids, labels, ~special, probability, keys, MASK, VOCABULARY, **options)
    return input_ids, labels


def test_mask_rows_shares_over_100_000_tokens():
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 46, 4200)
    special = ~((np.arange(50) > 0) & (np.arange(50) <= lengths[:, None]))
    ids = np.where(special, 0, rng.integers(4, 999, special.shape))
    input_ids, labels = mask(ids, special)
    chosen = labels != IGNORED
    assert not chosen[special].any()
    assert (labels[chosen] == ids[chosen]).all()
    assert (input_ids[~chosen] == ids[~chosen]).all()
    masked = (input_ids[chosen] == MASK).sum()
    kept = (input_ids[chosen] == ids[chosen]).sum()
    changed = chosen & (input_ids != ids) & (input_ids != MASK)
    assert np.isin(input_ids[changed], VOCABULARY).all()
    assert lengths.sum() > 100_000
    assert chosen.sum() / lengths.sum() == pytest.approx(0.15, abs=0.003)
    assert masked / chosen.sum() == pytest.approx(0.80, abs=0.01)
    assert changed.sum() / chosen.sum() == pytest.approx(0.10, abs=0.01)
    assert kept / chosen.sum() == pytest.approx(0.10, abs=0.01)


def test_mask_rows_number_of_predictions_varies_by_one():
    labels = mask(np.tile(np.arange(10, 33), (4000, 1)), np.zeros((4000, 23)))[1]
    numbers = (labels != IGNORED).sum(1)
    assert set(numbers.tolist()) == {3, 4}  # 0.15 * 23 = 3.45
    assert np.mean(numbers) == pytest.approx(3.45, abs=0.03)


def test_mask_rows_chooses_every_ordinary_position_alike():
    special = np.array([1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1])
    input_ids, labels = mask(np.full((20_000, 11), 500), np.tile(special, (20_000, 1)), probability=0.5)
    chosen = labels != IGNORED
    assert chosen[:, special == 1].sum() == 0
    assert chosen[:, special == 0].mean(0) == pytest.approx(0.5, abs=0.015)
    drawn = input_ids[chosen & (input_ids != MASK) & (input_ids != 500)]
    assert len(set(drawn.tolist())) > 985 and len(drawn) > 7500
    # chi-squared of ~8,000 draws from 994 tokens: mean 993, standard deviation 45
    counts = np.bincount(drawn, minlength=1000)[np.setdiff1d(VOCABULARY, [500])]
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() == pytest.approx(993, abs=5 * 45)


def test_mask_rows_pairs_of_positions_are_chosen_as_without_replacement():
    """4 of 16: two positions are predicted together with 4 * 3 / (16 * 15)."""
    chosen = mask(np.full((60_000, 16), 500), np.zeros((60_000, 16)), probability=0.25)[1] != IGNORED
    assert (chosen.sum(1) == 4).all()
    together = (chosen.T.astype(np.int64) @ chosen.astype(np.int64)) / len(chosen)
    assert together[~np.eye(16, dtype=bool)] == pytest.approx(4 * 3 / (16 * 15), abs=0.0045)  # 5 deviations


def test_mask_rows_edges():
    ids = np.arange(10, 20)
    input_ids, labels = mask(ids, np.zeros(10), probability=1.0)
    assert (labels == ids).all()
    assert (mask(ids, np.ones(10))[1] == IGNORED).all()
    assert (mask(ids, np.zeros(10), probability=0.0)[1] == IGNORED).all()
    assert mask(np.zeros((1, 0), dtype=int), np.zeros((1, 0)))[0].shape == (1, 0)
    labels = mask(np.tile(ids, (50, 1)), np.zeros((50, 10)), probability=1.0, leave=1, mask_share=1.0)[1]
    assert ((labels != IGNORED).sum(1) == 9).all()
    # a share for each row
    labels = mask(np.tile(ids, (3, 1)), np.zeros((3, 10)), probability=np.array([0.0, 0.5, 1.0]))[1]
    assert (labels != IGNORED).sum(1).tolist() == [0, 5, 10]


def test_mask_rows_alone_in_company_and_padded():
    rng = np.random.default_rng(1)
    ids, keys = rng.integers(4, 999, (40, 30)), keys_of(40)
    together = mask(ids, np.zeros(ids.shape), keys=keys, probability=0.4)
    for row in range(40):
        alone = mask(ids[row], np.zeros(30), keys=keys[row : row + 1], probability=0.4)
        wide = mask(np.pad(ids[row], (0, 17)), np.arange(47) >= 30, keys=keys[row : row + 1], probability=0.4)
        for field in (0, 1):
            assert (alone[field][0] == together[field][row]).all()
            assert (wide[field][0, :30] == together[field][row]).all()


def test_row_keys_are_independent():
    """Correlation of what 200,000 positions draw: of neighbors in a row, in the next row, in another epoch or key."""
    one = bits_of(keys_of(500, 1, "mlm", "en"), 400).astype(float)
    others = {
        "position": (one[:, :-1], one[:, 1:]),
        "example": (one[:-1], one[1:]),
        "epoch": (one, bits_of(keys_of(500, 1, "mlm", "en", epoch=1), 400).astype(float)),
        "objective": (one, bits_of(keys_of(500, 1, "tlm", "en"), 400).astype(float)),
        "corpus": (one, bits_of(keys_of(500, 1, "mlm", "de"), 400).astype(float)),
        "seed": (one, bits_of(keys_of(500, 2, "mlm", "en"), 400).astype(float)),
        "stream": (one, bits_of(key_stream(keys_of(500, 1, "mlm", "en"), 1), 400).astype(float)),
    }
    for name, (x, y) in others.items():
        assert abs(np.corrcoef(x.ravel(), y.ravel())[0, 1]) < 5 / np.sqrt(x.size), name
    # swapping an example's number and its epoch gives other masks
    swapped = row_keys(np.zeros(2, dtype=np.uint64), np.array([0, 1]), np.array([1, 0]))
    assert swapped[0] != swapped[1] and len(np.unique(keys_of(100_000))) == 100_000
    drawn = uniform_of(keys_of(100_000))
    assert 0 <= drawn.min() and drawn.max() < 1 and drawn.mean() == pytest.approx(0.5, abs=0.005)


def test_bits_of_depend_on_the_key_alone_in_any_process():
    """Python's own hashes of text differ in each process."""
    assert keyed_seed(1, "mlm", 2) != keyed_seed(1, "mlm", 3) != keyed_seed(1, "tlm", 3)
    assert keyed_seed("a", "bc") != keyed_seed("ab", "c")
    assert keyed_seed(np.int64(5), "x") == keyed_seed(5, "x")
    bits = bits_of(row_keys(np.array([short_seed("a", 1)]), np.array([2]), np.array([3])), 5)[0].tolist()
    assert keyed_rng(1, "mlm", "en", 0, 7).random() == 0.12692802223358657
    # a run that is resumed with a later version has the masks of its start
    assert bits == [2729652641, 4139290946, 2555137291, 828291193, 2637895358]
