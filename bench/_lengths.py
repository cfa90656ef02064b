"""Lengths of real sentences, in tokens: news in six languages and its translations.

bench/lengths.json holds counts of length pairs, no text. They are those of NTREX (1,997 sentences of news) under a
unigram tokenizer of 64,000 tokens that was trained on the Bible, NTREX and Multi30k in nine languages: XLM-R's own, of
250,002 tokens for a hundred languages, is cut about as finely for these. `from_texts` counts them anew.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("lengths.json")
PAIRS = ("en-de", "en-zh", "en-ru", "fr-en", "es-de")
VOCABULARY = 64_000


def read_lengths(path: Path = FILE) -> tuple[np.ndarray, np.ndarray]:
    """(M, 2) lengths of both sides of every pair, (K,) of every text, in tokens without special tokens."""
    counts = json.loads(path.read_text(encoding="utf-8"))
    pairs = [
        (int(source), int(target), count)
        for source, targets in counts["pairs"].items()
        for target, count in targets.items()
    ]
    pairs_M3 = np.array(pairs)
    texts = np.array([(int(length), count) for length, count in counts["texts"].items()])
    return np.repeat(pairs_M3[:, :2], pairs_M3[:, 2], axis=0), np.repeat(texts[:, 0], texts[:, 1])


def lengths_of(hub_root: str | None, tokenizer: str | None, scratch: Path) -> tuple[np.ndarray, np.ndarray]:
    """The shipped lengths, or those of the texts under `hub_root`; see `read_lengths`."""
    if hub_root is None:
        return read_lengths()
    counts = scratch / "lengths.json"
    counts.write_text(from_texts(Path(hub_root), tokenizer, scratch), encoding="utf-8")
    return read_lengths(counts)


def from_texts(hub_root: Path, tokenizer: str | None, scratch: Path) -> str:
    """The content of lengths.json from local/ntrex; `tokenizer` is a folder, by default one that is trained first.

    Raises ValueError where there is no such text.
    """
    from transformers import AutoTokenizer

    news = {folder.name: _column(folder, "text") for folder in sorted((hub_root / "local/ntrex").glob("??"))}
    lacking = {code for pair in PAIRS for code in pair.split("-")} - set(news)
    if lacking:
        raise ValueError(
            f"{hub_root} has no local/ntrex/{sorted(lacking)[0]}: the lengths are those of its sentences. Give the "
            "folder that mirrors the Hub, or leave --hub_root out: the counted lengths come with the benchmark."
        )
    if tokenizer is None:
        from pretraining.tools.train_tokenizer import train_tokenizer

        tokenizer = str(scratch / "tokenizer")
        train_tokenizer(_training_texts(hub_root, news), tokenizer, VOCABULARY)
    encoder = AutoTokenizer.from_pretrained(tokenizer)
    lengths = {
        code: [len(ids) for ids in encoder(texts, add_special_tokens=False, verbose=False)["input_ids"]]
        for code, texts in news.items()
    }
    pairs: dict[int, Counter] = {}
    for pair in PAIRS:
        for source, target in zip(*(lengths[code] for code in pair.split("-")), strict=True):
            pairs.setdefault(source, Counter())[target] += 1
    texts = Counter(length for of_language in lengths.values() for length in of_language)
    lines = [f'  "{source}": {json.dumps(dict(sorted(targets.items())))}' for source, targets in sorted(pairs.items())]
    about = f"NTREX: tokens of {', '.join(PAIRS)} (source: target: count) and of single texts; bench/_lengths.py"
    head = f'{{\n "about": {json.dumps(about)},\n "texts": {json.dumps(dict(sorted(texts.items())))},\n "pairs": {{\n'
    return head + ",\n".join(lines) + "\n }\n}\n"


def _training_texts(hub_root: Path, news: dict[str, list[str]]) -> list[str]:
    texts = [text for of_language in news.values() for text in of_language]
    for folder in sorted((hub_root / "local/bible").glob("??")):
        texts += _column(folder, "text")
    for captions in _column(hub_root / "local/multi30k/default", "translation", "train*.parquet"):
        texts += captions.values()
    return [text for text in texts if text]


def _column(folder: Path, column: str, pattern: str = "*.parquet") -> list:
    import pyarrow.parquet as pq

    return [value for file in sorted(folder.glob(pattern)) for value in pq.read_table(file)[column].to_pylist()]
