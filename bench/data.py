"""How fast text becomes batches: `python -m bench.data`.

Parts:
- batches: tokens per second of masked MLM batches, as the training loop gets them. Workers read prepared shards, or a
  stream that they tokenize. Masking by itself is compared with transformers' DataCollatorForLanguageModeling.
- preparing: `pretraining.tools.prepare` on one core, and the tokenizer of the library `tokenizers` on the same text.

Text is made up: sentences have real lengths, and their words are drawn from parts of words of the sample corpus, by
Zipf's law. `--hub_root` reads the Bible and NTREX instead. Writes bench/results/data.json.
"""

import argparse
import contextlib
import io
import json
import logging
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from transformers import DataCollatorForLanguageModeling

from bench._common import check_sizes, in_fresh_process, interleaved, make_parser, median_ratio, show, write_results
from bench._lengths import read_lengths
from bench._steps import features, sample_texts
from pretraining.data.batches import Feed
from pretraining.data.corpora import load_corpora
from pretraining.data.prepared import MANIFEST
from pretraining.recipe import Recipe
from pretraining.start.initialization import Start
from pretraining.tools.prepare import prepare
from pretraining.tools.train_tokenizer import train_tokenizer
from zoo_core.command_line import user_errors
from zoo_core.recipes import load_recipe

NAME = "data"
PARTS = ("batches", "preparing")
BATCHES_AIM = 2.5e6  # tokens a second of one core: many times what one GPU trains
LANGUAGE = "en"  # of the made-up corpus
WORDS, TOKENS_PER_WORD = 150_000, 1.4
STREAMED_SHARE = 10  # times fewer steps are timed where text is tokenized on the fly
SHARD_BYTES = 64 * 2**20


def make_texts(count: int, rng: np.random.Generator) -> list[str]:
    """Sentences of news' lengths, of words made of the halves of the sample corpus' words."""
    words = sorted({word for text in sample_texts() for word in text.split() if len(word) > 1})
    heads, tails = (rng.choice(words, size=WORDS) for _ in range(2))
    known = [head[: (len(head) + 1) // 2] + tail[len(tail) // 2 :] for head, tail in zip(heads, tails, strict=True)]
    _, lengths = read_lengths()
    sizes = np.maximum(1, rng.choice(lengths, size=count) / TOKENS_PER_WORD).astype(int)
    ranks = 1 / np.arange(1, WORDS + 1)
    drawn = rng.choice(WORDS, size=sizes.sum(), p=ranks / ranks.sum())
    ends = np.cumsum(sizes)
    return [" ".join(known[word] for word in drawn[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def hub_texts(hub_root: Path, count: int, rng: np.random.Generator) -> list[str]:
    """So many verses and sentences, in a random order. Raises ValueError where there are none."""
    files = [file for name in ("bible", "ntrex") for file in sorted((hub_root / "local" / name).glob("*/*.parquet"))]
    texts = [text for file in files for text in pq.read_table(file)["text"].to_pylist() if text and text.strip()]
    if not texts:
        raise ValueError(
            f"{hub_root} has no local/bible and no local/ntrex: there is no text to measure with. Give the folder that "
            "mirrors the Hub, or leave --hub_root out: text is then made up."
        )
    chosen = rng.permutation(len(texts))[:count]
    return [" ".join(texts[number].split("\n")) for number in chosen]


def recipe_of(flags: argparse.Namespace, folder: Path, **fields: Any) -> Any:
    """An MLM recipe over the text in `folder`; `fields` are set in it."""
    table = {"path": str(folder / "text.txt"), "language": LANGUAGE}
    if fields.pop("streaming", False):
        table |= {"streaming": True, "size": flags.sentences}
    objective = {"batch_size": flags.batch, "max_length": flags.length}
    phase = {"name": "bench", "steps": 10**6, "learning_rate": 1e-4, "objectives": {"mlm": objective}}
    fields |= {"monolingual": [table], "phases": [phase], "tokenizer": str(folder / "tokenizer")}
    settings = [f"{name}={json.dumps(value)}" for name, value in fields.items()]
    return load_recipe(Recipe, None, ["output_dir=unused", "model.type=metaxlm", *settings])


def loader_of(recipe: Recipe) -> Iterator[dict]:
    """The training batches of a recipe, opened anew."""
    tokenizer = Start.of(recipe).load_tokenizer()
    return iter(Feed.of(recipe, load_corpora(recipe, tokenizer), tokenizer).training(recipe.phases[0], 0))


def tokens_per_second(recipe: Recipe, updates: int) -> float:
    """Of so many batches, after what the workers had ready; without workers in seconds of the processor."""
    clock = time.perf_counter if recipe.num_workers else time.process_time
    batches = loader_of(recipe)
    for _ in range(3 * recipe.num_workers + 1):
        next(batches)
    started, tokens = clock(), 0
    for _ in range(updates):
        tokens += int(next(batches)["mlm"]["attention_mask"].sum())
    return tokens / (clock() - started)


def measure_batches(flags: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Rates of prepared shards and of streams by workers, in interleaved rounds, and of masking."""
    logging.disable(logging.INFO)
    # a fresh process would start workers as it was started itself; those of a training run are forked
    multiprocessing.set_start_method("fork", force=True)
    streamed = max(2, flags.updates // STREAMED_SHARE)
    ways = {}
    for workers in flags.workers:
        prepared = recipe_of(flags, folder, prepared=str(folder / "prepared"), num_workers=workers)
        stream = recipe_of(flags, folder, streaming=True, num_workers=workers)
        ways["prepared", workers] = (prepared, flags.updates)
        ways["on the fly", workers] = (stream, streamed)
    rates: dict[tuple, list[float]] = {way: [] for way in ways}
    for _ in range(flags.rounds):
        for way, (recipe, updates) in ways.items():
            rates[way].append(tokens_per_second(recipe, updates))
    rows = []
    for (source, workers), values in rates.items():
        other = rates["on the fly", workers]
        rows.append(
            {
                "way": f"{source}, {workers} workers",
                "tokens_per_second": statistics.median(values),
                "ratio": median_ratio(values, other) if source == "prepared" else None,
                "against": f"on the fly, {workers} workers" if source == "prepared" else None,
                "aim": BATCHES_AIM if (source, workers) == ("prepared", 0) else None,
            }
        )
    return rows + measure_masking(flags, folder)


def measure_masking(flags: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Rows that are in memory already, to a masked batch: ours and transformers'."""
    recipe = recipe_of(flags, folder, prepared=str(folder / "prepared"))
    tokenizer = Start.of(recipe).load_tokenizer()
    (corpus,) = load_corpora(recipe, tokenizer)
    objective = recipe.phases[0].objectives["mlm"]
    collator = objective.collator(tokenizer)
    collate_rows = DataCollatorForLanguageModeling(tokenizer, mlm_probability=objective.mask_probability)
    rng = np.random.default_rng(0)
    order = np.sort(rng.permutation(len(corpus.lengths))[: flags.batch])
    order = order[np.argsort(corpus.lengths[order], kind="stable")]  # as the sampler sorts a batch
    texts = corpus.read(np.zeros(len(order), dtype=np.int64), order)
    rows = features([corpus.fetch(0, int(index)) for index in order], tokenizer)
    tokens = sum(len(row["input_ids"]) for row in rows)
    batches = {}

    def ours(number: int) -> None:
        batches["ours"] = collator.sub_batch(texts, ("bench",))

    def peer(number: int) -> None:
        batches["peer"] = collate_rows(rows)

    times = 20  # a batch takes a millisecond or two
    ways = {"ours": lambda n: [ours(n) for _ in range(times)], "peer": lambda n: [peer(n) for _ in range(times)]}
    seconds = interleaved(ways, flags.rounds, time.process_time)
    same_batches(batches["ours"], batches["peer"])
    ratio = median_ratio(seconds["peer"], seconds["ours"])
    rates = {name: times * tokens / statistics.median(values) for name, values in seconds.items()}
    peer_name = "masking alone, DataCollatorForLanguageModeling"
    return [
        {"way": "masking alone", "tokens_per_second": rates["ours"], "ratio": ratio, "against": peer_name},
        {"way": peer_name, "tokens_per_second": rates["peer"]},
    ]


def same_batches(ours: dict, peer: dict) -> None:
    """Both hold the same text, and predict about as many of its tokens."""
    texts = [batch["labels"].where(batch["labels"] != -100, batch["input_ids"]) for batch in (ours, peer)]
    assert (texts[0] == texts[1]).all() and (ours["attention_mask"] == peer["attention_mask"]).all()
    counts = [int((batch["labels"] != -100).sum()) for batch in (ours, peer)]
    assert abs(counts[0] / counts[1] - 1) < 0.5, counts


def measure_preparing(flags: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Tokens a second of one core, from text to ids."""
    logging.disable(logging.INFO)
    recipe = recipe_of(flags, folder)
    tokenizer = Start.of(recipe).load_tokenizer()
    texts = (folder / "text.txt").read_text(encoding="utf-8").split("\n")[:-1]
    found: dict[str, int] = {}

    def whole(number: int) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as output:
            quietly(lambda: prepare(recipe, output, 1, None, SHARD_BYTES))
            manifest = json.loads((Path(output) / MANIFEST).read_text(encoding="utf-8"))
            found["prepare"] = sum(column["tokens"] for column in manifest["columns"].values())

    def tokenizers(number: int) -> None:
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        found["tokenizers"] = sum(map(len, encoded["input_ids"]))

    seconds = interleaved({"prepare": whole, "tokenizers": tokenizers}, flags.rounds, time.process_time)
    assert found["prepare"] == found["tokenizers"], f"not the same tokens: {found}"
    rates = {name: found[name] / statistics.median(values) for name, values in seconds.items()}
    ratio = median_ratio(seconds["tokenizers"], seconds["prepare"])
    return [
        {"way": "prepare", "tokens_per_second": rates["prepare"], "ratio": ratio, "against": "tokenizers"},
        {"way": "tokenizers", "tokens_per_second": rates["tokenizers"]},
    ]


def quietly(work: Callable[[], Any]) -> None:
    """Without what it prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        work()


def write_shards(flags: argparse.Namespace, folder: Path) -> None:
    """Prepares the text into `folder/prepared`."""
    quietly(lambda: prepare(recipe_of(flags, folder), folder / "prepared", 1, None, SHARD_BYTES))


RATE = {"way": "", "tokens_per_second": "tokens/s", "aim": "aim", "ratio": "faster by", "against": "than"}
TITLES = {"batches": "masked batches", "preparing": "from text to ids, one core"}
MEASURES = {"batches": measure_batches, "preparing": measure_preparing}


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Sizes and parts."""
    parser = make_parser(
        __doc__,
        NAME,
        {
            "sentences": (60_000, "sentences of the text"),
            "per_text": (1, "sentences of a row: more make rows full"),
            "vocab": (16_000, "tokens of the tokenizer that is trained on it"),
            "batch": (1024, "sentences of a batch"),
            "length": (128, "positions of a row at most"),
            "updates": (100, "batches of a round from prepared shards"),
            "rounds": (5, "interleaved rounds"),
        },
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    parser.add_argument(
        "--workers", nargs="+", type=int, default=[0, 1, 2], help="workers of the loader (default: 0 1 2)"
    )
    parser.add_argument("--hub_root", metavar="DIR", help="take the text from local/bible and local/ntrex there")
    parser.add_argument("--tokenizer", metavar="DIR", help="folder of a tokenizer (default: trained on the text)")
    flags = parser.parse_args(argv)
    check_sizes(flags, {"length": 16})
    return flags


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        rng = np.random.default_rng(0)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            hub = flags.hub_root
            texts = hub_texts(Path(hub), flags.sentences, rng) if hub else make_texts(flags.sentences, rng)
            step = flags.per_text
            texts = [" ".join(texts[first : first + step]) for first in range(0, len(texts), step)]
            (folder / "text.txt").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
            if flags.tokenizer:
                shutil.copytree(flags.tokenizer, folder / "tokenizer")
            else:
                train_tokenizer(texts, folder / "tokenizer", flags.vocab)
            os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
            in_fresh_process(write_shards, flags, folder)
            parts = {}
            for part in flags.parts:
                parts[part] = in_fresh_process(MEASURES[part], flags, folder)
                of = "the Bible and NTREX" if hub else "made-up words"
                title = f"{TITLES[part]}: {len(texts):,} rows of {flags.per_text} sentences of {of}"
                show(title, RATE, parts[part])
        write_results(flags, NAME, argv, {"parts": parts})


if __name__ == "__main__":
    main()
