"""Mining of translations: finds the pairs of translations in two pools of sentences, as BUCC.

Equal texts of a pool are one candidate, with any of their ids: a mined pair is right if gold has a pair of these texts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosslingual_zoo.finetuning.data.pair_tables import SIDES
from crosslingual_zoo.finetuning.data.rows import has_text, names_of, read_table, typed_column, unique_ids, whole_file
from crosslingual_zoo.finetuning.data.task_tables import DATA_SEED, PairData
from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.finetuning.tasks.base import Facts
from crosslingual_zoo.finetuning.tasks.vectors.base import Found, SentenceTask, facts_of
from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder, vectors_by_layer
from crosslingual_zoo.finetuning.tasks.vectors.recipe import MiningRecipe, Pools, expanded
from crosslingual_zoo.finetuning.tasks.vectors.retrieval import Side
from crosslingual_zoo.finetuning.tasks.vectors.search import mine
from crosslingual_zoo.zoo_core.tables import describe, require_column

NEIGHBORS = 4  # k of the margin score, as in XTREME's script


@dataclass
class Pool:
    """The distinct texts of two languages, and the pairs that are translations, as numbers of source and target."""

    source: list[str]
    target: list[str]
    gold: set[tuple[int, int]]

    @property
    def sizes(self) -> list[int]:
        """Texts of the source and of the target."""
        return [len(self.source), len(self.target)]


class MiningTask(SentenceTask[MiningRecipe]):
    """Finds the translations among two pools of sentences."""

    @property
    def metric(self) -> tuple[str, str]:
        return "mining_f1", load_metric("mining_f1").version

    def read(self) -> PairData[tuple[Pool, Pool]]:
        """Reads the pools: those of dev, whose gold pairs give the threshold, and those that are evaluated."""
        recipe, pools = self.recipe, {}
        entries, dev_entries, warnings, held_out = [], [], [], 0.0
        for table in expanded(recipe.pairs):
            name, where = table.name, f"pairs ({table.name})"
            pool, entry = read_pools(table, where, name, recipe.hub_root)
            if table.dev is not None:
                dev, dev_entry = read_pools(table.dev, f"{where}.dev", name, recipe.hub_root)
                if shared := len({*pool.source} & {*dev.source}) + len({*pool.target} & {*dev.target}):
                    warnings.append(f"{name}: {shared} texts of the evaluated pools are in `dev`, too")
                dev_entries.append(dev_entry)
                entry["fingerprint"] = "+".join(dict.fromkeys((entry["fingerprint"], dev_entry["fingerprint"])))
            else:
                held_out = recipe.dev_fraction
                dev, pool = divide(pool, held_out, name)
            pools[name] = dev, pool
            entries.append(entry)
            warnings += [table.note] if table.note else []
            if entry["not_in_pools"]:
                warnings.append(f"{name}: {entry['not_in_pools']} gold pairs are not in the pools, and left out")
        differs = ["gold pairs only"] if any(entry["pools"] is None for entry in entries) else []
        facts = facts_of(
            entries,
            {name: len(pool.gold) for name, (_, pool) in pools.items()},
            {},
            differs=differs + ["part of the pools"] * bool(held_out),
            pool_sizes={name: pool.sizes for name, (_, pool) in pools.items()},
            dev_data=dev_entries,
            dev_rows={name: len(dev.gold) for name, (dev, _) in pools.items()},
            dev_sizes={name: dev.sizes for name, (dev, _) in pools.items()},
            dev_fraction=held_out,
        )
        return PairData(facts, list(dict.fromkeys(warnings)), pools)

    def method(self) -> Facts:
        return {**super().method(), "margin": "ratio", "neighbors": NEIGHBORS}

    def evaluate(self, name: str, pair: tuple[Pool, Pool], encoder: SentenceEncoder, facts: Facts) -> Found:
        scores, thresholds, rows = [], {}, None
        for pool in pair:  # of dev, only the threshold is kept
            counts, by_layer = vectors_by_layer(encoder, [pool.source, pool.target], facts["layers"])
            for layer, *vectors in by_layer:
                mined = mine(*vectors, NEIGHBORS, encoder.states.device)
                if pool is pair[0]:
                    thresholds[layer] = score(pool, mined)["threshold"]
                    continue
                found = score(pool, mined, thresholds[layer])
                place = {"method": encoder.pooling, "layer": layer}
                scores += [{**place, "metric": key, "value": found[key]} for key in self.recipe.metrics]
                if layer == facts["layer"]:
                    rows = list(_rows(pool, mined, thresholds[layer]))
                    counts |= {"mined": found["mined"], "right": found["right"]}
        threshold = thresholds[facts["layer"]]
        return scores, {**counts, "threshold": threshold if np.isfinite(threshold) else None}, rows


def read_pools(pools: Pools, where: str, pair: str, hub_root: str | None) -> tuple[Pool, Facts]:
    """Returns the pools of a place `where` in the recipe, without empty sentences, and the facts about them."""
    tables = {"gold": pools.gold, "source": pools.source, "target": pools.target}
    tables = {name: whole_file(table) for name, table in tables.items() if table is not None}
    read = {name: read_table(table, hub_root) for name, table in tables.items()}
    places = {name: f"{where}.{name} ({describe(table)})" for name, table in tables.items()}
    gold_rows, texts_of, known, examples = read["gold"][0], [], [], []
    columns = [pools.gold.source_column, pools.gold.target_column]
    if pools.source:  # ids as text: another table may have them as numbers
        for column in columns:
            require_column(gold_rows, column, places["gold"])
        both = [[one if one is None else str(one) for one in gold_rows[column][:]] for column in columns]
    else:  # the sentences of the gold pairs are their own ids
        both = [typed_column(gold_rows, column, places["gold"])[:] for column in columns]
        whole = np.flatnonzero(np.logical_and(*map(has_text, both)))
        both = [[ids[row] for row in whole] for ids in both]
    for name, ids in zip(SIDES, both, strict=True):
        keys = texts = ids
        if table := tables.get(name):
            keys = [str(one) for one in unique_ids(read[name][0], table.id_column, places[name])]
            texts = typed_column(read[name][0], table.text_column, places[name])[:]
        kept = np.flatnonzero(has_text(texts))
        side = Side.of([texts[row] for row in kept])
        if len(side.texts) < 2:
            place = places.get(name, places["gold"])
            raise ValueError(f"{place}: the {name} has {len(side.texts)} different text. Check the columns.")
        numbers = dict(zip((keys[row] for row in kept), side.of_pairs, strict=True))
        known.append([numbers.get(one) for one in ids])
        examples.append(f"{ids[:1]} in gold and {list(numbers)[:1]} in its pool")
        texts_of.append(side.texts)
    gold = [numbers for numbers in zip(*known, strict=True) if None not in numbers]
    if not gold:
        raise ValueError(f"{where}: no gold pair has both sentences in the pools. Ids are {' and '.join(examples)}.")
    entry = {
        **names_of(tables["gold"]),
        "columns": columns,
        "languages": [pair],
        "rows": len(gold_rows),
        "fingerprint": "+".join(dict.fromkeys(fingerprint for _, fingerprint in read.values())),
        "pools": {name: names_of(tables[name]) for name in SIDES if name in tables} or None,
        "not_in_pools": len(gold_rows) - len(gold),
    }
    return Pool(*texts_of, set(gold)), entry


def divide(pool: Pool, fraction: float, name: str) -> tuple[Pool, Pool]:
    """Returns (dev, rest), pools without a common text; dev has `fraction` of the gold pairs and of all other texts.

    Sampled with DATA_SEED. A gold pair with a text in each part is in neither. Raises ValueError if a part has no gold
    pair, or fewer than two texts of a side; `name` is the name of the pair of languages.
    """
    random, gold = np.random.default_rng(DATA_SEED), np.array(sorted(pool.gold))
    drawn = gold[random.permutation(len(gold))[: round(fraction * len(gold))]]
    is_dev = [np.zeros(size, dtype=bool) for size in pool.sizes]
    for side, marks in enumerate(is_dev):
        marks[drawn[:, side]] = True
        others = random.permutation(np.setdiff1d(np.arange(len(marks)), gold[:, side]))
        marks[others[: round(fraction * len(others))]] = True
    parts = []
    for of_dev in (True, False):
        kept = [np.flatnonzero(marks == of_dev).tolist() for marks in is_dev]
        new_s, new_t = ({text: number for number, text in enumerate(own)} for own in kept)
        own_gold = {(new_s[s], new_t[t]) for s, t in pool.gold if s in new_s and t in new_t}
        parts.append(Pool([pool.source[s] for s in kept[0]], [pool.target[t] for t in kept[1]], own_gold))
    if any(not part.gold or min(part.sizes) < 2 for part in parts):
        raise ValueError(
            f"pairs ({name}): dev_fraction {fraction:g} leaves {[len(part.gold) for part in parts]} gold pairs among "
            f"{[part.sizes for part in parts]} sentences. Choose another one, or name pools for dev."
        )
    return parts[0], parts[1]


def score(pool: Pool, mined: tuple[np.ndarray, ...], threshold: float | None = None) -> dict[str, Any]:
    """Returns the metric's scores of mined pairs; without a threshold, it is fitted on the pool's gold."""
    source, target, margins = (of.tolist() for of in mined)
    right = [pair in pool.gold for pair in zip(source, target, strict=True)]
    metric = load_metric("mining_f1")
    return metric.compute(predictions=margins, references=right, gold=len(pool.gold), threshold=threshold)


def _rows(pool: Pool, mined: tuple[np.ndarray, ...], threshold: float) -> Iterator[Facts]:
    """The rows of a pair's predictions file: the pairs from the threshold on, the best first."""
    for s, d, margin in zip(*(of.tolist() for of in mined), strict=True):
        if margin >= threshold:
            texts = {"source": pool.source[s], "target": pool.target[d]}
            yield {**texts, "margin": round(margin, 6), "is_gold": (s, d) in pool.gold}
