"""Lengths of real sentences, in tokens: news in six languages and its translations.

bench/lengths.json has counts of length pairs, and no text. The pairs are those of NTREX (1,997 sentences of news) under
a unigram tokenizer of 64,000 tokens, trained on the Bible, NTREX and Multi30k in nine languages. XLM-R's tokenizer,
with 250,002 tokens for a hundred languages, cuts these texts about as finely.
"""

import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("lengths.json")


def read_lengths() -> tuple[np.ndarray, np.ndarray]:
    """(M, 2) lengths of both sides of every pair, (K,) of every text, in tokens without special tokens."""
    counts = json.loads(FILE.read_text(encoding="utf-8"))
    pairs = [
        (int(source), int(target), count)
        for source, targets in counts["pairs"].items()
        for target, count in targets.items()
    ]
    pairs_M3 = np.array(pairs)
    texts = np.array([(int(length), count) for length, count in counts["texts"].items()])
    return np.repeat(pairs_M3[:, :2], pairs_M3[:, 2], axis=0), np.repeat(texts[:, 0], texts[:, 1])
