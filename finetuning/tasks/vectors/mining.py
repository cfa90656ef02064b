"""Mining of translations: finds the pairs of translations in two pools of sentences, as BUCC.

Equal texts of a pool are one candidate, with any of their ids: a mined pair is right if gold has a pair of these texts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset

from crosslingual_zoo.finetuning.data.pair_tables import SIDES
from crosslingual_zoo.finetuning.data.rows import has_text, names_of, read_table, typed_column, unique_ids, whole_file
from crosslingual_zoo.finetuning.data.task_tables import DATA_SEED
from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.finetuning.tasks.base import Facts
from crosslingual_zoo.finetuning.tasks.vectors.base import Found, ReadPair, SentenceTask
from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder, vectors_by_layer
from crosslingual_zoo.finetuning.tasks.vectors.recipe import MiningPools, MiningRecipe, Pools
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


class PoolPair(NamedTuple):
    """The pools of a pair of languages, and what they were read from."""

    dev: Pool  # its gold pairs give the threshold
    evaluated: Pool
    entry: Facts
    dev_entry: Facts | None  # None: a part of the same pools


class MiningTask(SentenceTask[MiningRecipe]):
    """Finds the translations among two pools of sentences."""

    @property
    def metric(self) -> tuple[str, str]:
        return "mining_f1", load_metric("mining_f1").version

    def read_pair(self, pair: MiningPools) -> ReadPair:
        """Reads the pools: those of dev, whose gold pairs give the threshold, and those that are evaluated."""
        name = pair.name
        where = f"pairs ({name})"
        warnings = []
        pool, entry = read_pools(pair, where, name, self.recipe.hub_root)
        if entry["not_in_pools"]:
            warnings.append(f"{name}: {entry['not_in_pools']} gold pairs are not in the pools, and left out")
        if pair.dev is None:
            dev, pool = divide(pool, self.recipe.dev_fraction, name)
            return ReadPair(PoolPair(dev, pool, entry, None), entry, warnings)
        dev, dev_entry = read_pools(pair.dev, f"{where}.dev", name, self.recipe.hub_root)
        shared = len({*pool.source} & {*dev.source}) + len({*pool.target} & {*dev.target})
        if shared:
            warnings.append(f"{name}: {shared} texts of the evaluated pools are in `dev`, too")
        entry["fingerprint"] = "+".join(dict.fromkeys((entry["fingerprint"], dev_entry["fingerprint"])))
        return ReadPair(PoolPair(dev, pool, entry, dev_entry), entry, warnings)

    def facts(self, pairs: dict[str, PoolPair]) -> Facts:
        differs = []
        if any(pair.entry["pools"] is None for pair in pairs.values()):
            differs.append("gold pairs only")
        is_divided = any(pair.dev_entry is None for pair in pairs.values())
        if is_divided and self.recipe.dev_fraction:
            differs.append("part of the pools")
        return {
            "evaluated_rows": {name: len(pair.evaluated.gold) for name, pair in pairs.items()},
            "chance": {},
            "differs": differs,
            "pool_sizes": {name: pair.evaluated.sizes for name, pair in pairs.items()},
            "dev_data": [pair.dev_entry for pair in pairs.values() if pair.dev_entry is not None],
            "dev_rows": {name: len(pair.dev.gold) for name, pair in pairs.items()},
            "dev_sizes": {name: pair.dev.sizes for name, pair in pairs.items()},
            "dev_fraction": self.recipe.dev_fraction if is_divided else 0.0,
        }

    def method(self) -> Facts:
        return {**super().method(), "margin": "ratio", "neighbors": NEIGHBORS}

    def evaluate(self, name: str, pair: PoolPair, encoder: SentenceEncoder, facts: Facts) -> Found:
        dev = pair.dev
        pool = pair.evaluated
        thresholds = {}
        _, dev_layers = vectors_by_layer(encoder, [dev.source, dev.target], facts["layers"])
        for layer, source_SH, target_DH in dev_layers:
            mined = mine(source_SH, target_DH, NEIGHBORS, encoder.states.device)
            thresholds[layer] = score(dev, mined)["threshold"]

        counts, layers = vectors_by_layer(encoder, [pool.source, pool.target], facts["layers"])
        scores = []
        rows = None
        for layer, source_SH, target_DH in layers:
            mined = mine(source_SH, target_DH, NEIGHBORS, encoder.states.device)
            results = score(pool, mined, thresholds[layer])
            for metric in self.recipe.metrics:
                scores.append({"method": encoder.pooling, "layer": layer, "metric": metric, "value": results[metric]})
            if layer == facts["layer"]:
                rows = list(_rows(pool, mined, thresholds[layer]))
                counts["mined"] = results["mined"]
                counts["right"] = results["right"]
        threshold = thresholds[facts["layer"]]
        counts["threshold"] = threshold if np.isfinite(threshold) else None
        return scores, counts, rows


class _GoldIds(NamedTuple):
    """The gold pairs as the ids of their sentences; texts are their own ids where there are no pools."""

    source: list[str | None]
    target: list[str | None]
    rows: int
    """Of the table, with those that have an empty sentence."""


class _PoolSide(NamedTuple):
    """The distinct texts of a pool, and the number of the text of each id."""

    texts: list[str]
    numbers: dict[str, int]


def read_pools(pools: Pools, where: str, pair: str, hub_root: str | None) -> tuple[Pool, Facts]:
    """Returns the pools of a place `where` in the recipe, without empty sentences, and the facts about them."""
    tables = {}
    for name, table in (("gold", pools.gold), ("source", pools.source), ("target", pools.target)):
        if table is not None:
            tables[name] = whole_file(table)
    columns = [pools.gold.source_column, pools.gold.target_column]
    has_pools = pools.source is not None
    gold_place = f"{where}.gold ({describe(tables['gold'])})"
    gold_rows, fingerprint = read_table(tables["gold"], hub_root)
    fingerprints = [fingerprint]
    ids = _gold_ids(gold_rows, columns, gold_place, has_pools)
    sides = []
    for name, ids_of_side in zip(SIDES, (ids.source, ids.target), strict=True):
        place = gold_place
        keys = texts = ids_of_side
        if name in tables:
            table = tables[name]
            place = f"{where}.{name} ({describe(table)})"
            rows, fingerprint = read_table(table, hub_root)
            fingerprints.append(fingerprint)
            keys = [str(key) for key in unique_ids(rows, table.id_column, place)]
            texts = typed_column(rows, table.text_column, place)[:]
        side = _pool_side(keys, texts)
        if len(side.texts) < 2:
            raise ValueError(f"{place}: the {name} has {len(side.texts)} different text. Check the columns.")
        sides.append(side)
    source, target = sides
    gold = []
    for source_id, target_id in zip(ids.source, ids.target, strict=True):
        if source_id in source.numbers and target_id in target.numbers:
            gold.append((source.numbers[source_id], target.numbers[target_id]))
    if not gold:
        examples = [
            f"{ids_of_side[:1]} in gold and {list(side.numbers)[:1]} in its pool"
            for ids_of_side, side in ((ids.source, source), (ids.target, target))
        ]
        raise ValueError(f"{where}: no gold pair has both sentences in the pools. Ids are {' and '.join(examples)}.")
    entry = {
        **names_of(tables["gold"]),
        "columns": columns,
        "languages": [pair],
        "rows": ids.rows,
        "fingerprint": "+".join(dict.fromkeys(fingerprints)),
        "pools": {name: names_of(tables[name]) for name in SIDES if name in tables} or None,
        "not_in_pools": ids.rows - len(gold),
    }
    return Pool(source.texts, target.texts, set(gold)), entry


def _gold_ids(rows: Dataset, columns: list[str], place: str, has_pools: bool) -> _GoldIds:
    if has_pools:  # ids as text: another table may have them as numbers
        ids = []
        for column in columns:
            require_column(rows, column, place)
            ids.append([None if value is None else str(value) for value in rows[column][:]])
        return _GoldIds(*ids, len(rows))
    source_column, target_column = columns
    source = typed_column(rows, source_column, place)[:]
    target = typed_column(rows, target_column, place)[:]
    has_both = np.flatnonzero(np.logical_and(has_text(source), has_text(target)))
    return _GoldIds([source[row] for row in has_both], [target[row] for row in has_both], len(rows))


def _pool_side(keys: list[str], texts: list[str]) -> _PoolSide:
    with_text = np.flatnonzero(has_text(texts))
    side = Side.of([texts[row] for row in with_text])
    return _PoolSide(side.texts, dict(zip((keys[row] for row in with_text), side.of_pairs, strict=True)))


def divide(pool: Pool, fraction: float, name: str) -> tuple[Pool, Pool]:
    """Returns (dev, rest), pools without a common text; dev has `fraction` of the gold pairs and of all other texts.

    Sampled with DATA_SEED. A gold pair with a text in each part is in neither. Raises ValueError if a part has no gold
    pair, or fewer than two texts of a side; `name` is the name of the pair of languages.
    """
    random = np.random.default_rng(DATA_SEED)
    gold = np.array(sorted(pool.gold))
    drawn = gold[random.permutation(len(gold))[: round(fraction * len(gold))]]
    is_dev = []
    for side, size in enumerate(pool.sizes):
        marks = np.zeros(size, dtype=bool)
        marks[drawn[:, side]] = True
        others = random.permutation(np.setdiff1d(np.arange(size), gold[:, side]))
        marks[others[: round(fraction * len(others))]] = True
        is_dev.append(marks)
    source_is_dev, target_is_dev = is_dev
    parts = (_part(pool, source_is_dev, target_is_dev), _part(pool, ~source_is_dev, ~target_is_dev))
    if any(not part.gold or min(part.sizes) < 2 for part in parts):
        raise ValueError(
            f"pairs ({name}): dev_fraction {fraction:g} leaves {[len(part.gold) for part in parts]} gold pairs among "
            f"{[part.sizes for part in parts]} sentences. Choose another one, or name pools for dev."
        )
    return parts


def _part(pool: Pool, in_source: np.ndarray, in_target: np.ndarray) -> Pool:
    """The marked texts, and the gold pairs of two of them."""
    sources = np.flatnonzero(in_source).tolist()
    targets = np.flatnonzero(in_target).tolist()
    new_source = {number: new for new, number in enumerate(sources)}
    new_target = {number: new for new, number in enumerate(targets)}
    gold = {(new_source[s], new_target[t]) for s, t in pool.gold if s in new_source and t in new_target}
    return Pool([pool.source[s] for s in sources], [pool.target[t] for t in targets], gold)


def score(pool: Pool, mined: tuple[np.ndarray, ...], threshold: float | None = None) -> dict[str, Any]:
    """Returns the metric's scores of mined pairs; without a threshold, it is fitted on the pool's gold."""
    source, target, margins = mined
    is_right = [pair in pool.gold for pair in zip(source.tolist(), target.tolist(), strict=True)]
    metric = load_metric("mining_f1")
    return metric.compute(predictions=margins.tolist(), references=is_right, gold=len(pool.gold), threshold=threshold)


def _rows(pool: Pool, mined: tuple[np.ndarray, ...], threshold: float) -> Iterator[Facts]:
    """The rows of a pair's predictions file: the pairs from the threshold on, the best first."""
    source, target, margins = mined
    for s, d, margin in zip(source.tolist(), target.tolist(), margins.tolist(), strict=True):
        if margin >= threshold:
            yield {
                "source": pool.source[s],
                "target": pool.target[d],
                "margin": round(margin, 6),
                "is_gold": (s, d) in pool.gold,
            }
