"""Random numbers that depend on a key (seed, objective, corpus, epoch, example), not on the process or the batch.

Numbers are hashes: each of the `B` rows of a batch has a key, and each position of a row its own number.
"""

import hashlib
from functools import lru_cache

import numpy as np

STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: SplitMix64's


def keyed_rng(*key: int | str) -> np.random.Generator:
    """Returns a generator whose numbers depend only on the key: the same in every process and on every machine."""
    return np.random.default_rng(keyed_seed(*key))


def keyed_seed(*key: int | str) -> int:
    """Returns 128 bits that depend only on the key. Python's own hash() differs between processes."""
    text = "\x1f".join(str(part) for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())


@lru_cache(maxsize=1 << 16)
def short_seed(*key: int | str) -> int:
    """Returns half of the bits of `keyed_seed`, cached: the next batch needs the same ones."""
    return keyed_seed(*key) % 2**64


def row_keys(seeds_B: np.ndarray, epochs_B: np.ndarray, ids_B: np.ndarray) -> np.ndarray:
    """Returns (B,) uint64: the key of each row, of the `short_seed` (uint64) of its corpus, its epoch and its id."""
    epoch_B = _scramble_64(seeds_B + STEP * epochs_B.astype(np.uint64))
    return _scramble_64(epoch_B + STEP * ids_B.astype(np.uint64))


def key_stream(keys_B: np.ndarray, stream: int) -> np.ndarray:
    """Returns (B,) keys of another stream of random numbers of the same rows; `stream` 1, 2, ..."""
    return _scramble_64(keys_B ^ np.uint64(stream * 0xD1342543DE82EF95 % 2**64))


def uniform_of(keys_B: np.ndarray) -> np.ndarray:
    """Returns (B,): a number in [0, 1) for each key."""
    return (keys_B >> np.uint64(11)) * 2.0**-53


def bits_of(keys_B: np.ndarray, count: int) -> np.ndarray:
    """Returns (B, count) uint32: a number for each position of each row, which depends only on key and position. Every
    step is a bijection of 32 bits, so the numbers of a row are distinct and can be sorted without ties."""
    bits_BT = (keys_B.astype(np.uint32))[:, None] + np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9)
    scratch = np.empty_like(bits_BT)
    scramble_32(bits_BT, scratch)
    bits_BT += (keys_B >> np.uint64(32)).astype(np.uint32)[:, None]
    return scramble_32(bits_BT, scratch)


def scramble_32(numbers: np.ndarray, scratch: np.ndarray) -> np.ndarray:
    """Mixes uint32 numbers in place (lowbias32, https://nullprogram.com/blog/2018/07/31/); a bijection."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None)):
        np.right_shift(numbers, np.uint32(shift), out=scratch)
        numbers ^= scratch
        if factor is not None:
            numbers *= np.uint32(factor)
    return numbers


def _scramble_64(numbers: np.ndarray) -> np.ndarray:
    """Mixed copies of uint64 numbers (SplitMix64; Steele, Lea and Flood 2014); a bijection."""
    numbers = numbers + STEP
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
