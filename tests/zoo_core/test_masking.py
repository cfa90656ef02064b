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
    """A key for each of `count` examples of a corpus."""
    seeds = np.full(count, short_seed(*(key or ("a",))), dtype=np.uint64)
    return row_keys(seeds, np.full(count, epoch), np.arange(count))


def mask(ids, special=False, probability=0.15, keys=None, **options):
    """(input_ids, labels) of rows of ids."""
    ids = np.atleast_2d(ids)
    is_special = np.broadcast_to(special, ids.shape)
    input_ids = ids.copy()
    labels = np.full(ids.shape, IGNORED)
    keys = keys_of(len(ids)) if keys is None else keys
    mask_rows(input_ids, labels, ~is_special, probability, keys, MASK, VOCABULARY, **options)
    return input_ids, labels


def chosen_cells(*arguments, **options):
    """The cells that `mask` predicts."""
    _, labels = mask(*arguments, **options)
    return labels != IGNORED


def test_mask_rows_shares_over_100_000_tokens():
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 46, 4200)
    columns = np.arange(50)
    is_special = (columns == 0) | (columns > lengths[:, None])
    ids = np.where(is_special, 0, rng.integers(4, 999, is_special.shape))
    input_ids, labels = mask(ids, is_special)
    is_chosen = labels != IGNORED
    assert not is_chosen[is_special].any()
    assert (labels[is_chosen] == ids[is_chosen]).all()
    assert (input_ids[~is_chosen] == ids[~is_chosen]).all()
    masked = (input_ids[is_chosen] == MASK).sum()
    unchanged = (input_ids[is_chosen] == ids[is_chosen]).sum()
    is_changed = is_chosen & (input_ids != ids) & (input_ids != MASK)
    assert np.isin(input_ids[is_changed], VOCABULARY).all()
    assert lengths.sum() > 100_000
    assert is_chosen.sum() / lengths.sum() == pytest.approx(0.15, abs=0.003)
    assert masked / is_chosen.sum() == pytest.approx(0.80, abs=0.01)
    assert is_changed.sum() / is_chosen.sum() == pytest.approx(0.10, abs=0.01)
    assert unchanged / is_chosen.sum() == pytest.approx(0.10, abs=0.01)


def test_mask_rows_number_of_predictions_varies_by_one():
    counts = chosen_cells(np.full((4000, 23), 500)).sum(1)
    assert set(counts.tolist()) == {3, 4}  # 0.15 * 23 = 3.45
    assert counts.mean() == pytest.approx(3.45, abs=0.03)


def test_mask_rows_chooses_every_ordinary_position_alike():
    is_special = np.isin(np.arange(11), [0, 5, 10])
    input_ids, labels = mask(np.full((20_000, 11), 500), is_special, probability=0.5)
    is_chosen = labels != IGNORED
    assert is_chosen[:, is_special].sum() == 0
    assert is_chosen[:, ~is_special].mean(0) == pytest.approx(0.5, abs=0.015)
    drawn = input_ids[is_chosen & (input_ids != MASK) & (input_ids != 500)]
    assert len(drawn) > 7500
    assert len(np.unique(drawn)) > 985
    # chi-squared of ~8,000 draws from 994 tokens: mean 993, standard deviation 45
    counts = np.bincount(drawn, minlength=1000)[np.setdiff1d(VOCABULARY, [500])]
    chi_squared = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert chi_squared == pytest.approx(993, abs=5 * 45)


def test_mask_rows_pairs_of_positions_are_chosen_as_without_replacement():
    """4 of 16: two positions are predicted together with 4 * 3 / (16 * 15)."""
    is_chosen = chosen_cells(np.full((60_000, 16), 500), probability=0.25)
    assert (is_chosen.sum(1) == 4).all()
    counts = is_chosen.astype(np.int64)
    together = (counts.T @ counts) / len(counts)
    assert together[~np.eye(16, dtype=bool)] == pytest.approx(4 * 3 / (16 * 15), abs=0.0045)  # 5 deviations


IDS = np.arange(10, 20)


@pytest.mark.parametrize(
    ("ids", "special", "options", "count"),
    [
        (IDS, False, {"probability": 1.0}, [10]),
        (IDS, True, {}, [0]),
        (IDS, False, {"probability": 0.0}, [0]),
        (np.zeros((1, 0), dtype=int), False, {}, [0]),
        (np.tile(IDS, (50, 1)), False, {"probability": 1.0, "leave": 1, "mask_share": 1.0}, [9] * 50),
        (np.tile(IDS, (3, 1)), False, {"probability": np.array([0.0, 0.5, 1.0])}, [0, 5, 10]),  # a share for each row
    ],
)
def test_mask_rows_edges(ids, special, options, count):
    assert chosen_cells(ids, special, **options).sum(1).tolist() == count


def test_mask_rows_alone_in_company_and_padded():
    ids = np.random.default_rng(1).integers(4, 999, (40, 30))
    keys = keys_of(40)
    together = np.stack(mask(ids, keys=keys, probability=0.4))
    is_padding = np.arange(47) >= 30
    for row in range(40):
        key = keys[row : row + 1]
        alone = np.concatenate(mask(ids[row], keys=key, probability=0.4))
        padded = np.concatenate(mask(np.pad(ids[row], (0, 17)), is_padding, keys=key, probability=0.4))
        assert (alone == together[:, row]).all()
        assert (padded[:, :30] == together[:, row]).all()


def bits(*key, epoch=0):
    """What 200,000 positions draw."""
    return bits_of(keys_of(500, *key, epoch=epoch), 400)


def test_row_keys_are_independent():
    """Correlation of the draws of neighbors in a row, in the next row, in another epoch, under another key."""
    drawn = bits(1, "mlm", "en")
    others = {
        "position": (drawn[:, :-1], drawn[:, 1:]),
        "example": (drawn[:-1], drawn[1:]),
        "epoch": (drawn, bits(1, "mlm", "en", epoch=1)),
        "objective": (drawn, bits(1, "tlm", "en")),
        "corpus": (drawn, bits(1, "mlm", "de")),
        "seed": (drawn, bits(2, "mlm", "en")),
        "stream": (drawn, bits_of(key_stream(keys_of(500, 1, "mlm", "en"), 1), 400)),
    }
    for name, (x, y) in others.items():
        correlation = np.corrcoef(x.ravel(), y.ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(x.size), name


def test_row_keys_of_swapped_numbers_and_epochs_differ():
    first, second = row_keys(np.zeros(2, dtype=np.uint64), np.array([0, 1]), np.array([1, 0]))
    assert first != second
    assert len(np.unique(keys_of(100_000))) == 100_000


def test_uniform_of_is_uniform():
    drawn = uniform_of(keys_of(100_000))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert drawn.mean() == pytest.approx(0.5, abs=0.005)


def test_bits_of_depend_on_the_key_alone_in_any_process():
    """Python's own hashes of text differ in each process."""
    assert keyed_seed(1, "mlm", 2) != keyed_seed(1, "mlm", 3) != keyed_seed(1, "tlm", 3)
    assert keyed_seed("a", "bc") != keyed_seed("ab", "c")
    assert keyed_seed(np.int64(5), "x") == keyed_seed(5, "x")
    assert keyed_rng(1, "mlm", "en", 0, 7).random() == 0.12692802223358657
    # a run that is resumed with a later version has the masks of its start
    key = row_keys(np.array([short_seed("a", 1)]), np.array([2]), np.array([3]))
    assert bits_of(key, 5).tolist() == [[2729652641, 4139290946, 2555137291, 828291193, 2637895358]]
