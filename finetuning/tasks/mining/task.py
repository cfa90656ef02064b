"""Mining of translations: reads and checks two pools of sentences and their gold pairs, and counts the pairs found.

Equal texts of a pool are one candidate, with any of their ids: a mined pair is right if gold has a pair of these texts.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from finetuning.data.pair_tables import SIDES, load_whole, require_text, with_split
from finetuning.data.rows import names_of, split_name
from finetuning.data.table_checks import overlap
from finetuning.data.task_tables import DATA_SEED, PairData
from finetuning.data.word_lists import has_text
from finetuning.page import table_names
from finetuning.results import Protocol, Results
from finetuning.seeds import Predictions, load_metric
from finetuning.tasks.base import Record
from finetuning.tasks.features.task import span
from finetuning.tasks.mining.recipe import MiningPools, MiningRecipe, Pools, PoolTable
from finetuning.tasks.mining.search import Mined, mine
from finetuning.tasks.retrieval.recipe import expanded
from finetuning.tasks.retrieval.sentence_vectors import SentenceEncoder, vectors_by_layer
from finetuning.tasks.retrieval.task import SentenceTask, Side
from zoo_core.tables import Table, describe, require_column

NEIGHBORS = 4  # k of the margin score, as in XTREME's script
SMALL_POOL = 1_000  # sentences; BUCC's own pools have 89,000 and more
MOST_GOLD = 0.1  # of the smaller pool; BUCC: 2% to 3%
FEW_GOLD = 100  # pairs to fit a threshold on
SHARES = ("f1", "precision", "recall")
EDGES = {
    "all": "takes every pair that was proposed there: the best cut may lie beyond",
    "first": "takes the highest margin alone: it rests on a single pair, or pairs that are equal",
    "none": "could not be fitted: no proposed pair is right, and nothing is mined",
}


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


class PoolReader:
    """Reads pools with their gold, each table once; leaves out empty sentences and their gold pairs."""

    def __init__(self, hub_root: str | None):
        self.hub_root = hub_root
        self._loaded: dict[tuple, Any] = {}

    def read(self, pools: Pools, where: str, pair: str) -> tuple[Pool, dict[str, Any]]:
        """Returns the pools of a place `where` in the recipe, and the facts about them for results.json."""
        tables = {"gold": pools.gold, "source": pools.source, "target": pools.target}
        tables = {name: with_split(table, table.split) for name, table in tables.items() if table is not None}
        read = {
            name: load_whole(table, f"{where}.{name}", self.hub_root, self._loaded) for name, table in tables.items()
        }
        sides, gold, empty = (self._with_pools if pools.source else self._of_pairs)(tables, read, where)
        for name, side in zip(SIDES, sides, strict=True):
            if len(side.texts) < 2:
                raise ValueError(
                    f"{where}: the {name} has {len(side.texts)} different text. Check the columns, or name larger "
                    "pools."
                )
        rows = len(read["gold"][0])
        entry = {
            **names_of(tables["gold"]),
            "columns": [pools.gold.source_column, pools.gold.target_column],
            "languages": [pair],
            "rows": rows,
            "fingerprint": "+".join(dict.fromkeys(fingerprint for _, fingerprint in read.values())),
            "pools": {name: names_of(tables[name]) for name in SIDES} if pools.source else None,
            "sizes": [len(side.of_pairs) for side in sides],
            "empty": empty,
            "repeated": [side.repeated for side in sides],
            "not_in_pools": rows - len(gold),
        }
        return Pool(sides[0].texts, sides[1].texts, set(gold)), entry

    def _with_pools(self, tables: dict[str, Any], read: dict[str, Any], where: str) -> tuple:
        """Returns sides, gold as numbers of their texts, and empty sentences, for pools with their own tables."""
        sides, empty, numbers, ids = [], [], [], []
        for name in SIDES:
            of_side, texts, left_out = self._sentences(tables[name], read[name][0], f"{where}.{name}")
            side = Side.of(texts)
            sides.append(side)
            empty.append(left_out)
            numbers.append(dict(zip(of_side, side.of_pairs, strict=True)))
            column = getattr(tables["gold"], f"{name}_column")
            ids.append(_names(read["gold"][0], column, f"{where}.gold.{name}_column", tables["gold"]))
        gold = [
            (numbers[0][source], numbers[1][target])
            for source, target in zip(*ids, strict=True)
            if source in numbers[0] and target in numbers[1]
        ]
        if not gold:
            named, known = ([next(iter(of_side), None) for of_side in both] for both in (ids, numbers))
            raise ValueError(
                f"{where}: gold has {len(ids[0])} pairs, and no pair has both sentences in the pools. The first names "
                f"{named[0]!r} and {named[1]!r}, the pools begin with {known[0]!r} and {known[1]!r}. Check the columns "
                "of ids."
            )
        return sides, gold, empty

    def _of_pairs(self, tables: dict[str, Any], read: dict[str, Any], where: str) -> tuple:
        """Returns the same for pools that consist of the gold pairs."""
        rows, texts = read["gold"][0], []
        for name in SIDES:
            column = getattr(tables["gold"], f"{name}_column")
            require_text(rows, column, f"{where}.gold.{name}_column", f"{where}.gold ({describe(tables['gold'])})")
            texts.append(rows[column][:])
        seen = [has_text(of_side) for of_side in texts]
        empty = [int((~of_side).sum()) for of_side in seen]
        full = list(itertools.compress(zip(*texts, strict=True), seen[0] & seen[1]))
        sides = [Side.of(list(of_side)) for of_side in zip(*full, strict=True)] or [Side([], []), Side([], [])]
        return sides, list(zip(*(side.of_pairs for side in sides), strict=True)), empty

    def _sentences(self, table: PoolTable, rows: Any, where: str) -> tuple[list[str], list[str], int]:
        """Ids and texts of a pool, and how many empty ones were left out."""
        ids = _names(rows, table.id_column, f"{where}.id_column", table)
        if len(set(ids)) < len(ids):
            twice = next(name for name, count in Counter(ids).items() if count > 1)
            raise ValueError(
                f"{where} ({describe(table)}): id {twice!r} occurs more than once in column {table.id_column}. Make "
                "the ids unique."
            )
        require_text(rows, table.text_column, f"{where}.text_column", f"{where} ({describe(table)})")
        texts = rows[table.text_column][:]
        full = list(itertools.compress(zip(ids, texts, strict=True), has_text(texts)))
        return [name for name, _ in full], [text for _, text in full], len(ids) - len(full)


def _names(rows: Any, column: str, field: str, table: Table) -> list[str]:
    """Returns the ids in a column as text, because another table may have them as numbers."""
    dtype = str(getattr(require_column(rows, column, f"{field} ({describe(table)})"), "dtype", None))
    if "string" not in dtype and "int" not in dtype:
        raise ValueError(f"{field} is {column}, which holds {dtype}. Name the column of the ids.")
    return [str(name) for name in rows[column][:]]


class Mining(NamedTuple):
    """The pools of a pair of languages, and those on whose gold the threshold is fitted."""

    pool: Pool
    dev: Pool


class MiningTask(SentenceTask[MiningRecipe]):
    """Finds the translations among two pools of sentences."""

    metrics = SHARES
    metric = "mining_f1"

    def read(self) -> PairData[Mining]:
        recipe, reader = self.recipe, PoolReader(self.recipe.hub_root)
        pools: dict[str, Mining] = {}
        entries, dev_entries, splits, told = [], [], [], []
        for table in expanded(recipe.pairs):
            pool, entry = reader.read(table, f"pairs ({table.name})", table.name)
            warnings = _left_out(table.name, entry)
            if table.dev is not None:
                _check_apart(table, recipe.hub_root)
                dev, read_of_dev = reader.read(table.dev, f"pairs ({table.name}).dev", table.name)
                dev_entries.append(read_of_dev)
                entry["fingerprint"] = "+".join(dict.fromkeys((entry["fingerprint"], read_of_dev["fingerprint"])))
                warnings += _left_out(f"{table.name}, dev", read_of_dev)
            else:
                dev, pool = divide(pool, recipe.dev_fraction, table.name)
                told.append(
                    f"{recipe.dev_fraction:.0%} of the pools were held out for the threshold, sampled at random: the "
                    "evaluated pools are smaller than the benchmark's"
                )
            pools[table.name] = Mining(pool, dev)
            told += warnings + _of_sizes(table.name, pool, dev)
            told += [table.note] if table.note else []
            entries.append(entry)
            splits.append(split_name(table.gold))
        protocol = Protocol(
            training_data=[],
            training_rows=0,
            evaluation_data=entries,
            dev_data=dev_entries,
            evaluated_split=", ".join(dict.fromkeys(splits)),
            evaluated_rows={name: len(both.pool.gold) for name, both in pools.items()},
            differs=[
                *(["gold pairs only"] if any(entry["pools"] is None for entry in entries) else []),
                *(["part of the pools"] if recipe.dev_fraction else []),
            ],
            pool_sizes={name: both.pool.sizes for name, both in pools.items()},
            dev_rows={name: len(both.dev.gold) for name, both in pools.items()},
            dev_sizes={name: both.dev.sizes for name, both in pools.items()},
            dev_fraction=recipe.dev_fraction,
            chance={name: chance_level(both.pool) for name, both in pools.items()},
        )
        return PairData(protocol, list(dict.fromkeys(told)), pools)

    def encode(self, data: PairData[Mining]) -> PairData[Mining]:
        data, protocol = super().encode(data), data.protocol
        protocol.margin, protocol.neighbors = "ratio", NEIGHBORS
        return data

    def sizes(self, data: PairData[Mining]) -> dict[str, int]:
        return {name: sum(sum(of.sizes) for of in both) for name, both in data.pairs.items()}

    def evaluate(self, seed: int, encoder: SentenceEncoder, data: PairData[Mining]) -> tuple[Record, Predictions]:
        layers = data.protocol.layers
        scores, mining, cut, blank, predictions = {}, {}, {}, {}, {}
        for name, (pool, dev) in data.pairs.items():
            print(f"Seed {seed}: {name}, {len(pool.source):,} x {len(pool.target):,} sentences, layers {span(layers)}")
            tokens = [tuple(encoder.tokens(side) for side in (one.source, one.target)) for one in (pool, dev)]
            sides = [sum(of_side, []) for of_side in zip(*tokens, strict=True)]
            cut[name] = [sum(map(encoder.is_cut, of_side)) for of_side in sides]
            blank[name] = [sum(not ids for ids in of_side) for of_side in sides]
            # dev first: only its threshold is kept
            fitted = {layer: score(dev, mined) for layer, mined in _mined_by_layer(encoder, tokens[1], layers)}
            scores[name], mining[name] = {encoder.pooling: {}}, {}
            for layer, mined in _mined_by_layer(encoder, tokens[0], layers):
                threshold = fitted[layer]["threshold"]
                found = score(pool, mined, threshold)
                scores[name][encoder.pooling][str(layer)] = {share: found[share] for share in SHARES}
                mining[name][str(layer)] = _outcome(found, fitted[layer], mined)
                if layer == data.protocol.layer:
                    predictions[name] = functools.partial(_records, pool, mined, threshold)
        record = {
            "max_length": encoder.max_length,
            "cut_texts": cut,
            "texts_without_tokens": blank,
            "scores": scores,
            "mining": mining,
        }
        return record, predictions

    def facts(self, protocol: Protocol, records: list[Record]) -> dict[str, Any]:
        # by layer, to show how much the seeds differ
        mining = {
            pair: {str(layer): [record["mining"][pair][str(layer)] for record in records] for layer in protocol.layers}
            for pair in protocol.pool_sizes
        }
        return super().facts(protocol, records) | {"mining": mining}

    def lines(self, results: Results) -> list[str]:
        protocol, metric = results.protocol, results.protocol.metric
        data, dev = protocol.evaluation_data, [table_names(protocol.dev_data)] if protocol.dev_data else []
        if protocol.dev_fraction:
            dev.append(f"{protocol.dev_fraction:.0%} of the pools, held out")
        repeated = [sum(entry["repeated"][side] for entry in data) for side in (0, 1)]
        mined = {pair: of_layers[str(protocol.layer)] for pair, of_layers in results["mining"].items()}
        return [
            "setting: feature (no training); sentences are compared by their vectors at one layer",
            f"evaluated: {table_names(data)} ({sum(protocol.evaluated_rows.values()):,} gold pairs)",
            self.layer_line(protocol),
            *self.vector_lines(protocol),
            f"search: exact, in both directions; pairs are ranked by the {protocol.margin} margin of the cosine over "
            f"{protocol.neighbors} nearest neighbors, and each sentence is in one pair at most",
            f"threshold: the best for F1 on dev, by language pair and layer: {'; '.join(dev)} "
            f"({sum(protocol.dev_rows.values()):,} gold pairs)",
            f"found at layer {protocol.layer}: " + "; ".join(_mined(*item) for item in mined.items()),
            f"equal texts: one candidate ({repeated[0]:,} sentences of the source and {repeated[1]:,} of the target "
            "repeat another one)",
            f"metric: F1 of the found pairs ({metric.module} {metric.version}), in percent",
        ]

    def warnings(self, protocol: Protocol, records: list[Record]) -> list[str]:
        """Adds thresholds at the edge of the margins, and seeds at chance, by pair, at the reported layer."""
        layer, warnings = str(protocol.layer), super().warnings(protocol, records)
        for record in records:
            for pair, by_layer in record["mining"].items():
                found = by_layer[layer]
                source, target = protocol.pool_sizes[pair]
                where = f"seed {record['seed']}: {pair}"
                if found["edge"]:
                    warnings.append(f"{where}: the threshold {EDGES[found['edge']]}")
                if any(without := found["without_margin"]):
                    warnings.append(
                        f"{where}: {without[0]} sentences of the source and {without[1]} of the target are unlike all "
                        "others: they have no margin and propose no pair"
                    )
                # the expected number of right pairs among as many random ones, as for a rare event
                expected = found["mined"] * found["gold"] / (source * target)
                if found["right"] <= expected + 2 * math.sqrt(expected):
                    warnings.append(
                        f"{where}: F1 is at chance: {found['right']} of {found['mined']} mined pairs are right "
                        f"(expected of random pairs: {expected:.2g})"
                    )
        return warnings


def _mined(pair: str, of_seeds: list[dict[str, Any]]) -> str:
    """`de-en 18 pairs from margin 1.011`, by seed."""
    found = [
        f"{one['mined']:,} pairs" + ("" if one["threshold"] is None else f" from margin {one['threshold']:.3f}")
        for one in of_seeds
    ]
    return f"{pair} {' / '.join(found)}"


def _check_apart(table: MiningPools, hub_root: str | None) -> None:
    """Raises ValueError for pools of dev that are, or share rows with, those that are evaluated."""
    for name in ("gold", *SIDES):
        one, other = getattr(table, name), getattr(table.dev, name)
        if one is not None and other is not None and overlap(one, other, hub_root):
            raise ValueError(
                f"pairs ({table.name}): {name} and dev.{name} are both of {describe(one)}. Name tables that share no "
                "rows, or hold out a part of the pools with dev_fraction."
            )


def _left_out(name: str, entry: dict[str, Any]) -> list[str]:
    """Returns what is left out of the tables, in words."""
    warnings = []
    if any(entry["empty"]):
        source, target = entry["empty"]
        warnings.append(f"{name}: {source} sentences of the source and {target} of the target are empty, and left out")
    if entry["not_in_pools"]:
        warnings.append(
            f"{name}: {entry['not_in_pools']} of {entry['rows']} gold pairs have a sentence that is not in the pools, "
            "and are left out: recall is of the others"
        )
    return warnings


def _of_sizes(name: str, pool: Pool, dev: Pool) -> list[str]:
    """Returns caveats about the sizes of pools and gold, in words."""
    warnings = []
    smaller, gold = min(pool.sizes), len(pool.gold)
    if smaller < SMALL_POOL or gold > MOST_GOLD * smaller:
        source, target = pool.sizes
        warnings.append(
            f"{name}: {gold:,} gold pairs are to be found among {source:,} and {target:,} sentences: with so few "
            "others, F1 is far higher than on BUCC's own pools, where 89,000 sentences and more have 2% to 3% gold"
        )
    if len(dev.gold) < FEW_GOLD:
        warnings.append(
            f"{name}: the threshold is fitted on {len(dev.gold)} gold pairs, and another draw's would differ"
        )
    texts = [{(one.source[s], one.target[t]) for s, t in one.gold} for one in (pool, dev)]
    if shared := len(texts[0] & texts[1]):
        warnings.append(f"{name}: {shared} of {gold} evaluated gold pairs are in the gold of dev too")
    return warnings


def chance_level(pool: Pool) -> dict[str, float]:
    """Returns the scores, in percent, of pairing each sentence of the smaller pool with a random one of the other pool.

    Of m pairs, m x gold / (S x D) are expected to be right; F1 is computed from the expected counts.
    """
    smaller, larger, gold = min(pool.sizes), max(pool.sizes), len(pool.gold)
    right = gold / larger
    f1 = 2 * right / (smaller + gold)
    return {"f1": 100 * f1, "precision": 100 * right / smaller, "recall": 100 * right / gold}


def divide(pool: Pool, fraction: float, name: str) -> tuple[Pool, Pool]:
    """Returns (dev, rest), pools without a common text; dev has `fraction` of the gold pairs and of all other texts.

    Sampled with DATA_SEED. Gold pairs that share a text stay together. Raises ValueError if a part has no gold pair,
    or fewer than two texts of a side; `name` is the name of the pair of languages.
    """
    random = np.random.default_rng(DATA_SEED)
    groups = _together(pool.gold)
    is_dev = [np.zeros(size, dtype=bool) for size in pool.sizes]
    wanted, taken = round(fraction * len(pool.gold)), 0
    for number in random.permutation(len(groups)):
        if taken < wanted:
            taken += len(groups[number])
            for pair in groups[number]:
                for side, text in enumerate(pair):
                    is_dev[side][text] = True
    for side, marks in enumerate(is_dev):
        in_gold = {pair[side] for pair in pool.gold}
        others = random.permutation([text for text in range(len(marks)) if text not in in_gold])
        marks[others[: round(fraction * len(others))].astype(int)] = True
    parts = [_part(pool, [marks == of_dev for marks in is_dev]) for of_dev in (True, False)]
    for part, title in zip(parts, ("dev", "evaluation"), strict=True):
        if not part.gold or min(part.sizes) < 2:
            raise ValueError(
                f"pairs ({name}): dev_fraction is {fraction:g}, and for {title} it leaves {len(part.gold)} of "
                f"{len(pool.gold)} gold pairs among {part.sizes[0]} and {part.sizes[1]} sentences. Choose another "
                "dev_fraction, or name pools for dev."
            )
    return parts[0], parts[1]


def _together(gold: set[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The gold pairs in groups that share no text."""
    group_of: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pair in sorted(gold):
        keys = list(enumerate(pair))  # (side, text)
        groups = {id(group): group for key in keys if (group := group_of.get(key)) is not None}
        merged = [pair, *(one for group in groups.values() for one in group)]
        for one in merged:
            group_of |= dict.fromkeys(enumerate(one), merged)
    return list({id(group): group for group in group_of.values()}.values())


def _part(pool: Pool, kept: list[np.ndarray]) -> Pool:
    """The pool of the texts that are kept of each side."""
    places = [np.cumsum(of_side) - 1 for of_side in kept]
    source, target = (
        [text for text, is_kept in zip(texts, of_side, strict=True) if is_kept]
        for texts, of_side in zip((pool.source, pool.target), kept, strict=True)
    )
    gold = {(int(places[0][s]), int(places[1][t])) for s, t in pool.gold if kept[0][s] and kept[1][t]}
    return Pool(source, target, gold)


def _mined_by_layer(
    encoder: SentenceEncoder, tokens: tuple[list[list[int]], list[list[int]]], layers: list[int]
) -> Iterator[tuple[int, Mined]]:
    for layer, *vectors in vectors_by_layer(encoder, tokens, layers):
        yield layer, mine(*vectors, NEIGHBORS, encoder.states.device)


def score(pool: Pool, mined: Mined, threshold: float | None = None) -> dict[str, Any]:
    """Returns the metric's scores of mined pairs; without a threshold, it is fitted on the pool's gold."""
    pairs = zip(mined.source.tolist(), mined.target.tolist(), strict=True)
    return load_metric("mining_f1").compute(
        predictions=mined.scores.tolist(),
        references=[pair in pool.gold for pair in pairs],
        gold=len(pool.gold),
        threshold=threshold,
    )


def _records(pool: Pool, mined: Mined, threshold: float) -> Iterator[dict[str, Any]]:
    """The rows of a pair's predictions file: the pairs from the threshold on, the best first."""
    for s, d, margin in zip(mined.source.tolist(), mined.target.tolist(), mined.scores.tolist(), strict=True):
        if margin >= threshold:
            texts = {"source": pool.source[s], "target": pool.target[d]}
            yield {**texts, "margin": round(margin, 6), "is_gold": (s, d) in pool.gold}


def _outcome(found: dict[str, Any], fitted: dict[str, Any], mined: Mined) -> dict[str, Any]:
    """Returns the counts and the threshold behind a layer's scores, and how it was fitted, for results.json."""
    return {
        "threshold": fitted["threshold"] if np.isfinite(fitted["threshold"]) else None,
        "edge": fitted["edge"],
        "dev_f1": fitted["f1"],
        "candidates": len(mined.scores),
        **{count: found[count] for count in ("mined", "right", "gold")},
        "without_margin": list(mined.without_margin),
    }
