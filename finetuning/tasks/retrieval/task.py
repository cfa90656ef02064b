"""Retrieval of translations: reads and checks pairs of sentences, and counts how often a model's vectors find them."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from finetuning.data.pair_tables import SIDES, PairRows, open_pairs, pair_identity, with_both_sides
from finetuning.data.rows import split_name
from finetuning.data.task_tables import PairData
from finetuning.page import table_names
from finetuning.results import Protocol, Results
from finetuning.seeds import Predictions, load_metric
from finetuning.tasks.base import Record
from finetuning.tasks.features.neighbors import nearest_of_each
from finetuning.tasks.features.task import FeatureTask, R, span
from finetuning.tasks.retrieval.recipe import POOLINGS, RetrievalRecipe, expanded
from finetuning.tasks.retrieval.sentence_vectors import SentenceEncoder, vectors_by_layer


@dataclass
class Side:
    """The sentences of one language: its distinct texts, and the number of each pair's text."""

    texts: list[str]
    of_pairs: list[int]

    @classmethod
    def of(cls, texts: list[str]) -> "Side":
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        return cls(list(numbers), [numbers[text] for text in texts])

    @property
    def repeated(self) -> int:
        """The number of pairs with a text that an earlier pair has."""
        return len(self.of_pairs) - len(self.texts)


class SentenceTask(FeatureTask[R]):
    """Sentences, compared by their vectors."""

    def describe_method(self, protocol: Protocol) -> None:
        pooling = self.recipe.pooling
        protocol.method, protocol.methods = pooling, {pooling: {}}
        protocol.pooling, protocol.similarity = pooling, "cosine"

    def vector_lines(self, protocol: Protocol) -> list[str]:
        """How a sentence becomes a vector, one fact a line."""
        cut = sum(map(sum, protocol.cut_texts.values()))
        return [
            f"vector of a sentence: {POOLINGS[protocol.pooling]}",
            f"max length: {protocol.max_length} tokens ({cut:,} texts cut)",
        ]

    def reader(self, encoder: torch.nn.Module, tokenizer: Any) -> SentenceEncoder:
        recipe = self.recipe
        return SentenceEncoder(encoder, tokenizer, recipe.batch_size, recipe.max_length, recipe.pooling)

    def facts(self, protocol: Protocol, records: list[Record]) -> dict[str, Any]:
        for name in ("max_length", "cut_texts", "texts_without_tokens"):  # need the tokenizer
            setattr(protocol, name, records[0][name])
        return super().facts(protocol, records)

    def warnings(self, protocol: Protocol, records: list[Record]) -> list[str]:
        """Warns of texts that were cut or have no tokens, by pair."""
        reasons = {
            f"are longer than {protocol.max_length} positions and were cut": protocol.cut_texts,
            "have no tokens, nothing of them was read": protocol.texts_without_tokens,
        }
        return [
            f"{pair}: {source} texts of the source and {target} of the target {reason}"
            for reason, counts in reasons.items()
            for pair, (source, target) in counts.items()
            if source or target
        ]


class RetrievalTask(SentenceTask[RetrievalRecipe]):
    """Searches the translation of each sentence among the sentences of the other language."""

    metric = "retrieval_accuracy"

    def read(self) -> PairData[tuple[Side, Side]]:
        """Rows whose id is in one table only, and pairs with an empty side, are left out and counted."""
        pairs, entries, warnings, splits = {}, [], [], []
        loaded: dict[tuple, Any] = {}
        for table in expanded(self.recipe.pairs):
            where = f"pairs ({table.name})"
            rows = open_pairs(table, where, table.name, self.recipe.hub_root, loaded)
            chosen = with_both_sides(rows, where, is_evaluated=False).dataset
            sides = tuple(Side.of(chosen[side][:]) for side in SIDES)
            for side, found in zip(SIDES, sides, strict=True):
                if len(found.texts) < 2:
                    raise ValueError(
                        f"{where}: the {side} has {len(found.texts)} different text in {len(chosen)} pairs. Check the "
                        "columns, or take more pairs."
                    )
            pairs[table.name] = sides
            splits.append(split_name(rows.table))
            empty = len(rows.dataset) - len(chosen)
            warnings += _left_out(rows, empty)
            if table.note:
                warnings.append(table.note)
            entries.append(
                {
                    **pair_identity(rows),
                    "rows": len(chosen),
                    "empty": empty,
                    "unpaired": list(rows.unpaired),
                    "repeated": [side.repeated for side in sides],
                }
            )
        protocol = Protocol(
            training_data=[],
            training_rows=0,
            evaluation_data=entries,
            evaluated_split=", ".join(dict.fromkeys(splits)),
            evaluated_rows={name: len(source.of_pairs) for name, (source, _) in pairs.items()},
            chance={name: _chance_level(*sides) for name, sides in pairs.items()},
        )
        return PairData(protocol, list(dict.fromkeys(warnings)), pairs)

    def evaluate(
        self, seed: int, encoder: SentenceEncoder, data: PairData[tuple[Side, Side]]
    ) -> tuple[Record, Predictions]:
        layers = data.protocol.layers
        scores, cut, blank, predictions = {}, {}, {}, {}
        for name, sides in data.pairs.items():
            print(f"Seed {seed}: {name}, {len(sides[0].of_pairs)} pairs, layers {span(layers)}")
            tokens = tuple(encoder.tokens(side.texts) for side in sides)
            cut[name] = [sum(map(encoder.is_cut, of_side)) for of_side in tokens]
            blank[name] = [sum(not ids for ids in of_side) for of_side in tokens]
            scores[name] = {encoder.pooling: {}}
            for layer, *vectors in vectors_by_layer(encoder, tokens, layers):
                found = nearest_of_each(*vectors, device=encoder.states.device)
                scores[name][encoder.pooling][str(layer)] = score(sides, *found)
                if layer == data.protocol.layer:
                    predictions[name] = functools.partial(_records, sides, *found)
        record = {
            "max_length": encoder.max_length,
            "cut_texts": cut,
            "texts_without_tokens": blank,
            "scores": scores,
        }
        return record, predictions

    def lines(self, results: Results) -> list[str]:
        protocol, metric = results.protocol, results.protocol.metric
        data = protocol.evaluation_data
        unpaired, empty = sum(sum(entry["unpaired"]) for entry in data), sum(entry["empty"] for entry in data)
        repeated = [sum(entry["repeated"][side] for entry in data) for side in (0, 1)]
        equal = f"equal texts: one candidate, right for each of its pairs ({repeated[0]:,} pairs repeat a source text, "
        equal += f"{repeated[1]:,} a target text)"
        return [
            "setting: feature (no training); sentences are compared by their vectors at one layer",
            f"evaluated: {table_names(data)} ({sum(protocol.evaluated_rows.values()):,} pairs; left out: "
            f"{unpaired:,} rows without a partner, {empty:,} pairs with an empty side)",
            self.layer_line(protocol),
            *self.vector_lines(protocol),
            f"search: exact, the nearest by {protocol.similarity} among all sentences; ties go to the first",
            *([equal] if any(repeated) else []),
            f"metric: accuracy@1, the share of sentences whose nearest one is the translation, mean of both directions "
            f"({metric.module} {metric.version}), in percent",
        ]

    def warnings(self, protocol: Protocol, records: list[Record]) -> list[str]:
        """Adds seeds whose accuracy is less than two standard errors above chance, by pair."""
        method, layer = protocol.method, str(protocol.layer)
        warnings = super().warnings(protocol, records)
        for record in records:
            at_chance = []
            for pair, by_method in record["scores"].items():
                found, chance = by_method[method][layer]["accuracy"], protocol.chance[pair]["accuracy"]
                # both directions use the same pairs, so they are not independent samples
                error = math.sqrt(chance * (100 - chance) / protocol.evaluated_rows[pair])
                if found <= chance + 2 * error:
                    at_chance.append(f"{pair} {found:.1f} (chance: {chance:.1f})")
            if at_chance:
                warnings.append(f"seed {record['seed']}: accuracy is at chance in {', '.join(at_chance)}")
        return warnings


def _left_out(rows: PairRows, empty: int) -> list[str]:
    """Returns what is left out of the tables, in words."""
    warnings = []
    if any(rows.unpaired):
        source, target = rows.unpaired
        warnings.append(f"{rows.language}: {source} rows of the source and {target} of the target have no partner")
    if empty:
        warnings.append(f"{rows.language}: {empty} of {len(rows.dataset)} pairs have an empty side and were left out")
    return warnings


def _chance_level(source: Side, target: Side) -> dict[str, float]:
    """Returns the accuracy, in percent, of a random one of the other side's distinct texts."""
    forward, backward = 100 / len(target.texts), 100 / len(source.texts)
    return {"accuracy": (forward + backward) / 2, "source_to_target": forward, "target_to_source": backward}


def _records(sides: tuple[Side, Side], found_source: Any, found_target: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows of a predictions file: each pair with the texts found for both sides; arguments as of `score`."""
    source, target = sides
    found_source, found_target = found_source.tolist(), found_target.tolist()
    for row, (s, d) in enumerate(zip(source.of_pairs, target.of_pairs, strict=True)):
        found = {"found_target": target.texts[found_source[s]], "found_source": source.texts[found_target[d]]}
        yield {"row": row, "source": source.texts[s], "target": target.texts[d], **found}


def score(sides: tuple[Side, Side], found_source: Any, found_target: Any) -> dict[str, float]:
    """Accuracy in percent, in both directions and on average, pair by pair.

    `found_source` (S,) is the target text that was found for each source text, `found_target` (D,) the other way round.
    A text that is in several pairs is one candidate, and right for each of them.
    """
    source, target = sides
    found_target, found_source = found_target.tolist(), found_source.tolist()
    gold = list(zip(source.of_pairs, target.of_pairs, strict=True))
    return load_metric("retrieval_accuracy").compute(
        predictions=[{"source": found_target[d], "target": found_source[s]} for s, d in gold],
        references=[{"source": s, "target": d} for s, d in gold],
    )
