"""A small run of each kind of task that trains nothing: its recipe's fields except kind, model and output_dir."""

import json
import random

from datasets import Dataset

WORDS = "bread river letter garden window winter teacher ticket bridge lemon engine paper market silver doctor".split()
DEV = slice(0, 20)  # of the sentences of `write_pools`
METHODS = ["ot", "itermax"]  # of word alignment


def pairs_of(*tables):
    return f"pairs={json.dumps(tables)}"


def sentence(number, extra=""):
    return " ".join(random.Random(number).choices(WORDS, k=6)) + extra


def twin(number):
    """The target sentence of a number; of every third number it is the source sentence but for the last mark."""
    if number % 3 == 0:
        return sentence(number, " !")
    return sentence(number + 500, " !")


def write_pools(folder, part, name="test", source=(), target=(), gold=()):
    """A pool's tables: part of 60 sentences a side, of which every third has a twin.

    The twin differs in its last mark, so that an untrained model finds many, but not all.
    """
    numbers = range(60)[part]
    rows = {
        "source": [{"id": f"s{n}", "text": sentence(n)} for n in numbers] + list(source),
        "target": [{"id": n, "text": twin(n)} for n in numbers] + list(target),
        "gold": [{"s": f"s{n}", "t": n} for n in numbers if n % 3 == 0] + list(gold),
    }
    pool = {}
    for side, rows_of_side in rows.items():
        pool[side] = {"path": f"{folder / name}-{side}.parquet"}
        Dataset.from_list(rows_of_side).to_parquet(pool[side]["path"])
    pool["gold"] |= {"source_column": "s", "target_column": "t"}
    return pool


def mining_of(table):
    return pairs_of({"source_language": "xx", "target_language": "en", **table})


def mining(corpus, folder):
    """Pools with dev pools of their own."""
    return [mining_of({**write_pools(folder, slice(20, 60)), "dev": write_pools(folder, DEV, "dev")})]


def retrieval(corpus, folder):
    """The test sentences of the sample corpus, German and Chinese to and from English, joined on their ids."""
    side = {"path": str(corpus)}
    joined = {
        **side, "config": "{language}", "source_column": "text", "source_language": "{language}",
        "languages": ["de", "zh"], "target": {**side, "config": "en"}, "target_column": "text",
        "target_language": "en", "join_on": "id",
    }  # fmt: skip
    return [pairs_of(joined)]


def word_alignment(corpus, folder):
    """The hand-linked sentences of the sample corpus, English-German and Chinese-English."""
    path = str(corpus / "alignments")
    pairs = [
        {"source_language": s, "target_language": t, "path": path, "source": f"{s}-{t}.txt", "gold": f"{s}-{t}.gold"}
        for s, t in (("en", "de"), ("zh", "en"))
    ]
    return [pairs_of(*pairs), f"methods={json.dumps(METHODS)}"]


FEATURE_RECIPES = {"retrieval": retrieval, "mining": mining, "word_alignment": word_alignment}
