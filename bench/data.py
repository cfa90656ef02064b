"""How fast text becomes batches: `python -m bench.data`.

Parts:
- batches: tokens a second of masked MLM batches, as the training loop gets them, from prepared shards and tokenized on
  the fly from a stream, by workers; and masking alone against transformers' DataCollatorForLanguageModeling on the same
  rows.
- preparing: `pretraining.tools.prepare` on one core, and its tokenizing alone, against sentencepiece's own `encode` and
  the
  tokenizer of the library `tokenizers`, on the same text.
- start: seconds from a recipe to its first batch, with the text in `--shards` files and in one.
- memory: anonymous memory that grows while a corpus of ten times `--budget_mib` is read at random; mapped files do not
  count, the system takes them back when it needs to.

Text is made up: sentences of real lengths, of words that are drawn as words are (Zipf) from parts of the sample corpus'
own. `--hub_root` takes the Bible and NTREX instead. Writes bench/results/data.json.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench._common import check_sizes, in_fresh_process, interleaved, make_parser, median_ratio, show, write_results
from bench._lengths import read_lengths
from zoo_core.recipes import load_recipe, user_errors

NAME = "data"
PARTS = ("batches", "preparing", "start", "memory")
BATCHES_AIM, PREPARING_AIM = 50e6, 1.5e6  # tokens a second of one core
LANGUAGE = "en"  # of the made-up corpus
WORDS, TOKENS_PER_WORD = 150_000, 1.4
MIB = 2**20
STREAMED_SHARE = 10  # times fewer steps are timed where text is tokenized on the fly
LARGE_SHARD = 64 * MIB


def make_texts(count: int, rng: np.random.Generator) -> list[str]:
    """Sentences of news' lengths, of words made of the halves of the sample corpus' words."""
    corpus = Path(__file__).parents[1] / "sample_corpus"
    files = [(corpus / code / "train.jsonl").read_text(encoding="utf-8") for code in ("en", "de", "es", "fr")]
    rows = [json.loads(line) for file in files for line in file.split("\n") if line]
    words = sorted({word for row in rows for word in row["text"].split() if len(word) > 1})
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
    import pyarrow.parquet as pq

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
    from pretraining.recipe import Recipe

    table = {"path": str(folder / "text.txt"), "language": LANGUAGE}
    if fields.pop("streaming", False):
        table |= {"streaming": True, "size": flags.sentences}
    objective = {"batch_size": flags.batch, "max_length": flags.length}
    phase = {"name": "bench", "steps": 10**6, "learning_rate": 1e-4, "objectives": {"mlm": objective}}
    fields |= {"monolingual": [table], "phases": [phase], "tokenizer": str(folder / "tokenizer")}
    settings = [f"{name}={json.dumps(value)}" for name, value in fields.items()]
    return load_recipe(Recipe, None, ["output_dir=unused", "model.type=metaxlm", *settings])


def loader_of(recipe: Any) -> Iterator[dict]:
    """The training batches of a recipe, opened anew."""
    from pretraining.data.corpora import load_corpora, training_batches
    from pretraining.start.initialization import load_tokenizer

    tokenizer = load_tokenizer(recipe)
    return iter(training_batches(load_corpora(recipe, tokenizer), recipe.phases[0], recipe, 0, tokenizer))


def tokens_per_second(recipe: Any, updates: int) -> float:
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
    import logging
    import multiprocessing

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
    from transformers import DataCollatorForLanguageModeling

    from bench._steps import features
    from pretraining.collators import MlmCollator
    from pretraining.data.corpora import load_corpora
    from pretraining.start.initialization import load_tokenizer

    recipe = recipe_of(flags, folder, prepared=str(folder / "prepared"))
    tokenizer = load_tokenizer(recipe)
    (corpus,) = load_corpora(recipe, tokenizer)
    objective = recipe.phases[0].objectives["mlm"]
    collate = MlmCollator(tokenizer, ("bench",))
    collate_rows = DataCollatorForLanguageModeling(tokenizer, mlm_probability=objective.mask_probability)
    rng = np.random.default_rng(0)
    order = np.sort(rng.permutation(len(corpus.lengths))[: flags.batch])
    order = order[np.argsort(corpus.lengths[order], kind="stable")]  # as the sampler sorts a batch
    texts = corpus.read(np.zeros(len(order), dtype=np.int64), order)
    rows = features([corpus.fetch(0, int(index)) for index in order], tokenizer)
    tokens = sum(len(row["input_ids"]) for row in rows)
    batches = {}

    def ours(number: int) -> None:
        batches["ours"] = collate(texts, objective)

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
    import logging

    from sentencepiece import SentencePieceProcessor

    from pretraining.data.fast_tokenize import FastTokens
    from pretraining.start.initialization import load_tokenizer
    from pretraining.tools.prepare import prepare
    from pretraining.tools.train_tokenizer import MODEL_FILE

    logging.disable(logging.INFO)
    recipe = recipe_of(flags, folder)
    tokenizer = load_tokenizer(recipe)
    texts = (folder / "text.txt").read_text(encoding="utf-8").split("\n")[:-1]
    model = SentencePieceProcessor(model_file=str(folder / "tokenizer" / MODEL_FILE))
    found: dict[str, int] = {}

    def whole(number: int) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as output:
            quietly(lambda: prepare(recipe, output, 1, None, LARGE_SHARD))
            manifest = json.loads((Path(output) / "prepared.json").read_text(encoding="utf-8"))
            shards = [shard for column in manifest["columns"].values() for shard in column["shards"]]
            found["prepare"] = sum(shard["tokens"] for shard in shards)

    def ours(number: int) -> None:
        found["its tokenizing"] = len(FastTokens(tokenizer).encode(texts)[0])  # which knows no word yet

    def sentencepiece(number: int) -> None:
        found["sentencepiece"] = sum(map(len, model.encode(texts, out_type=int, num_threads=1)))

    def tokenizers(number: int) -> None:
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        found["tokenizers"] = sum(map(len, encoded["input_ids"]))

    # `prepare` may work in another process, whose processor time is not its own
    seconds = interleaved({"prepare": whole}, flags.rounds, time.perf_counter)
    ways: dict[str, Callable] = {"its tokenizing": ours, "sentencepiece": sentencepiece, "tokenizers": tokenizers}
    seconds |= interleaved(ways, flags.rounds, time.process_time)
    assert found["prepare"] == found["its tokenizing"] == found["tokenizers"], f"not the same tokens: {found}"
    rows = []
    for name, values in seconds.items():
        rate = found[name] / statistics.median(values)
        row = {"way": name, "tokens_per_second": rate, "aim": PREPARING_AIM if name == "prepare" else None}
        if name == "its tokenizing":
            row |= {"ratio": median_ratio(seconds["sentencepiece"], values), "against": "sentencepiece"}
        rows.append(row)
    return rows


def quietly(work: Callable[[], Any]) -> None:
    """Without what it prints."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        work()


def first_batch(flags: argparse.Namespace, folder: Path, prepared: str) -> dict[str, float]:
    """Seconds from a recipe to corpora, and to the first batch; libraries are imported before."""
    import logging

    from pretraining.data.corpora import load_corpora, training_batches
    from pretraining.start.initialization import load_tokenizer

    logging.disable(logging.INFO)
    recipe = recipe_of(flags, folder, prepared=str(folder / prepared))
    tokenizer = load_tokenizer(recipe)
    started = time.perf_counter()
    corpora = load_corpora(recipe, tokenizer)
    opened = time.perf_counter()
    next(iter(training_batches(corpora, recipe.phases[0], recipe, 0, tokenizer)))
    return {"open": opened - started, "first_batch": time.perf_counter() - opened}


def measure_start(flags: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Seconds by the number of shards, medians of fresh processes."""
    size = (folder / "text.txt").stat().st_size
    write_shards(flags, folder, "many", max(1, size // flags.shards))
    rows = []
    for prepared in ("prepared", "many"):
        found = [in_fresh_process(first_batch, flags, folder, prepared) for _ in range(flags.rounds)]
        manifest = json.loads((folder / prepared / "prepared.json").read_text(encoding="utf-8"))
        shards = sum(len(column["shards"]) for column in manifest["columns"].values())
        medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
        rows.append({"way": f"{shards:,} shards", "shards": shards, **medians, "whole": sum(medians.values())})
    return rows


def write_shards(flags: argparse.Namespace, folder: Path, name: str, shard_bytes: int) -> None:
    """Prepares the text into `folder/name`."""
    from pretraining.tools.prepare import prepare

    quietly(lambda: prepare(recipe_of(flags, folder), folder / name, 1, None, shard_bytes))


def enlarge(prepared: Path, output: Path, least_bytes: int) -> int:
    """A prepared folder of at least so many bytes of ids: that of `prepared` as often as it takes; its tokens."""
    manifest = json.loads((prepared / "prepared.json").read_text(encoding="utf-8"))
    ((key, column),) = manifest["columns"].items()
    tokens, rows = (sum(shard[name] for shard in column["shards"]) for name in ("tokens", "rows"))
    copies = -(-least_bytes // (4 * tokens))
    shards = []
    for number in range(copies):
        for shard in column["shards"]:
            file = Path(shard["file"])
            copied = file.with_name(f"copy-{number}-{file.name}")
            (output / copied).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(prepared / file, output / copied)
            shards.append(shard | {"file": copied.as_posix(), "first": shard["first"] + number * rows})
    manifest["columns"][key] = column | {"shards": shards}
    (output / "prepared.json").write_text(json.dumps(manifest), encoding="utf-8")
    return copies * tokens


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise ValueError(
        "/proc/self/status names no RssAnon: anonymous memory is what this part measures. Run it on Linux, or leave "
        "`memory` out of --parts."
    )


def read_all(flags: argparse.Namespace, folder: Path, tokens: int) -> dict[str, float]:
    """Anonymous memory while every example is read once at random, above that of the same on hardly any text."""
    import logging

    logging.disable(logging.INFO)
    next(loader_of(recipe_of(flags, folder, prepared=str(folder / "prepared"))))  # libraries, tokenizer, a first batch
    before = most = anonymous_bytes()
    started, seen = time.perf_counter(), 0
    for number, batch in enumerate(loader_of(recipe_of(flags, folder, prepared=str(folder / "large")))):
        seen += int(batch["mlm"]["attention_mask"].sum()) - 2 * len(batch["mlm"]["input_ids"])
        if number % 8 == 0:
            most = max(most, anonymous_bytes())
        if seen >= tokens:
            break
    most = max(most, anonymous_bytes())
    return {"anonymous": most - before, "before": before, "seconds": time.perf_counter() - started, "tokens": seen}


def measure_memory(flags: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Of a corpus ten times the budget."""
    tokens = enlarge(folder / "prepared", folder / "large", 10 * flags.budget_mib * MIB)
    found = in_fresh_process(read_all, flags, folder, tokens)
    return [
        {
            "way": f"{4 * tokens / MIB:,.0f} MiB of ids, read at random",
            "anonymous_mib": found["anonymous"] / MIB,
            "budget_mib": flags.budget_mib,
            "process_mib": found["before"] / MIB,
            "tokens_per_second": found["tokens"] / found["seconds"],
        }
    ]


RATE = {"way": "", "tokens_per_second": "tokens/s", "aim": "aim", "ratio": "faster by", "against": "than"}
TABLES = {
    "batches": ("masked batches", RATE),
    "preparing": ("from text to ids, one core", RATE),
    "start": ("start", {"way": "", "open": "s to open", "first_batch": "s to first batch", "whole": "s"}),
    "memory": (
        "memory",
        {
            "way": "",
            "anonymous_mib": "MiB more",
            "budget_mib": "budget",
            "process_mib": "before",
            "tokens_per_second": "tokens/s",
        },
    ),
}
MEASURES = {
    "batches": measure_batches,
    "preparing": measure_preparing,
    "start": measure_start,
    "memory": measure_memory,
}


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
            "shards": (1000, "files of the part `start`"),
            "budget_mib": (64, "memory that a tenth of the corpus would fill"),
            "rounds": (5, "interleaved rounds"),
        },
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2], help="of the loader (default: 0 1 2)")
    parser.add_argument("--hub_root", metavar="DIR", help="take the text from local/bible and local/ntrex there")
    parser.add_argument("--tokenizer", metavar="DIR", help="folder of a tokenizer (default: trained on the text)")
    return parser.parse_args(argv)


def check_flags(flags: argparse.Namespace) -> None:
    """Raises ValueError as `check_sizes`."""
    check_sizes(flags, {"length": 16})


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    flags = read_flags(argv)
    with user_errors():
        check_flags(flags)
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
                from pretraining.tools.train_tokenizer import train_tokenizer

                train_tokenizer(texts, folder / "tokenizer", flags.vocab)
            os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
            in_fresh_process(write_shards, flags, folder, "prepared", LARGE_SHARD)
            parts = {}
            for part in flags.parts:
                parts[part] = in_fresh_process(MEASURES[part], flags, folder)
                what, columns = TABLES[part]
                of = "the Bible and NTREX" if hub else "made-up words"
                title = f"{what}: {len(texts):,} rows of {flags.per_text} sentences of {of}"
                show(title, columns, parts[part])
        write_results(flags, NAME, argv, {"parts": parts})


if __name__ == "__main__":
    main()
