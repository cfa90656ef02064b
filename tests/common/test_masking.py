import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from common.masking import IGNORED, keyed_rng, keyed_seed, mask_pieces

MASK, PAD, UNK = 999, 1, 3
VOCABULARY = np.arange(4, 999)


def mask(ids, special, probability=0.15, key=0):
    return mask_pieces(np.asarray(ids), np.asarray(special), probability, keyed_rng(key), MASK, VOCABULARY)


def test_shares_over_100_000_tokens():
    rng = np.random.default_rng(0)
    ordinary = predicted = masked = replaced = kept = 0
    for text in range(4200):
        length = int(rng.integers(5, 46))
        ids = np.concatenate([[0], rng.integers(4, 999, length), [2], [PAD] * 3])
        special = np.array([1] + [0] * length + [1] + [1] * 3)
        input_ids, labels = mask(ids, special, key=text)
        chosen = labels != IGNORED
        assert not chosen[special == 1].any()
        assert (labels[chosen] == ids[chosen]).all()
        assert (input_ids[~chosen] == ids[~chosen]).all()
        ordinary += length
        predicted += chosen.sum()
        masked += (input_ids[chosen] == MASK).sum()
        kept += (input_ids[chosen] == ids[chosen]).sum()
        changed = chosen & (input_ids != ids) & (input_ids != MASK)
        assert np.isin(input_ids[changed], VOCABULARY).all()
        replaced += changed.sum()
    assert ordinary > 100_000
    assert predicted / ordinary == pytest.approx(0.15, abs=0.003)
    assert masked / predicted == pytest.approx(0.80, abs=0.01)
    assert replaced / predicted == pytest.approx(0.10, abs=0.01)
    assert kept / predicted == pytest.approx(0.10, abs=0.01)


def test_number_of_predictions_varies_by_one_and_is_right_on_average():
    numbers = [(mask(np.arange(10, 33), np.zeros(23), key=key)[1] != IGNORED).sum() for key in range(2000)]
    assert set(numbers) == {3, 4}  # 0.15 * 23 = 3.45
    assert np.mean(numbers) == pytest.approx(3.45, abs=0.05)


def test_every_ordinary_position_is_chosen_alike_and_random_pieces_fill_the_vocabulary():
    special = np.array([1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1])
    times, seen = np.zeros(11), set()
    for key in range(4000):
        input_ids, labels = mask(np.full(11, 500), special, probability=0.5, key=key)
        times += labels != IGNORED
        seen |= set(input_ids[(labels != IGNORED) & (input_ids != 500)].tolist())
    assert times[special == 1].sum() == 0
    assert times[special == 0] / 4000 == pytest.approx(0.5, abs=0.04)
    assert len(seen - {MASK}) > 700


def test_edges_and_that_the_input_stays_as_it_was():
    ids = np.arange(10, 20)
    input_ids, labels = mask(ids, np.zeros(10), probability=1.0)
    assert (labels == np.arange(10, 20)).all() and (ids == np.arange(10, 20)).all()
    assert (mask(ids, np.ones(10))[1] == IGNORED).all()
    assert (mask(ids, np.zeros(10), probability=0.0)[1] == IGNORED).all()
    assert len(mask([], [])[0]) == 0
    view = np.frombuffer(np.arange(5, dtype=np.int32).tobytes(), dtype=np.int32)  # as Arrow's: not to be written to
    mask(view, np.zeros(5), probability=1.0)


def test_numbers_depend_on_the_key_alone_in_any_process():
    assert keyed_seed(1, "mlm", 2) != keyed_seed(1, "mlm", 3) != keyed_seed(1, "tlm", 3)
    assert keyed_seed("a", "bc") != keyed_seed("ab", "c")
    assert keyed_seed(np.int64(5), "x") == keyed_seed(5, "x")
    program = "from common.masking import keyed_rng; print(keyed_rng(1, 'mlm', 'en', 0, 7).random())"
    other = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "1"},
    )
    assert float(other.stdout) == keyed_rng(1, "mlm", "en", 0, 7).random()
