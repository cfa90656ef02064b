"""Retrieval of translations: finds the translation of each sentence in another set of sentences, as Tatoeba."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crosslingual_zoo.finetuning.data.pair_tables import SIDES, open_pairs, pair_identity
from crosslingual_zoo.finetuning.tasks.base import Facts
from crosslingual_zoo.finetuning.tasks.vectors.base import Found, ReadPair, SentenceTask
from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder, vectors_by_layer
from crosslingual_zoo.finetuning.tasks.vectors.recipe import RetrievalPairs, RetrievalRecipe
from crosslingual_zoo.finetuning.tasks.vectors.search import nearest_neighbors


@dataclass
class Side:
    """The sentences of one language: its distinct texts, and the number of each pair's text."""

    texts: list[str]
    of_pairs: list[int]

    @classmethod
    def of(cls, texts: list[str]) -> "Side":
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        return cls(list(numbers), [numbers[text] for text in texts])


class RetrievalTask(SentenceTask[RetrievalRecipe]):
    """Searches the translation of each sentence among the distinct sentences of the other language."""

    metric = ("retrieval_accuracy", "1.0.0")

    def read_pair(self, pair: RetrievalPairs) -> ReadPair:
        """Rows whose id is in one table only, and pairs with an empty side, are left out and counted."""
        where = f"pairs ({pair.name})"
        rows = open_pairs(pair, where, pair.name, self.recipe.hub_root)
        source, target = (Side.of(rows.dataset[side][:]) for side in SIDES)
        if min(len(source.texts), len(target.texts)) < 2:
            raise ValueError(f"{where}: a side has 1 different text in {len(rows.dataset)} pairs. Check columns.")
        warnings = []
        empty = rows.left_out["empty"]
        source_alone, target_alone = rows.left_out["unpaired"]
        if empty or source_alone or target_alone:
            warnings.append(
                f"{pair.name}: left out: {source_alone} rows of the source and {target_alone} of the target without "
                f"partner, {empty} pairs with an empty side"
            )
        return ReadPair((source, target), pair_identity(rows), warnings)

    def facts(self, pairs: dict[str, tuple[Side, Side]]) -> Facts:
        return {
            "evaluated_rows": {name: len(source.of_pairs) for name, (source, _) in pairs.items()},
            "chance": {name: chance_level(*sides) for name, sides in pairs.items()},
        }

    def evaluate(self, name: str, pair: tuple[Side, Side], encoder: SentenceEncoder, facts: Facts) -> Found:
        counts, by_layer = vectors_by_layer(encoder, [side.texts for side in pair], facts["layers"])
        scores = []
        rows = None
        for layer, source_SH, target_DH in by_layer:
            forward, backward = nearest_neighbors(source_SH, target_DH, 1, encoder.states.device)
            nearest_S = forward.numbers_NK[:, 0].numpy()
            nearest_D = backward.numbers_NK[:, 0].numpy()
            for metric, value in accuracy(pair, nearest_S, nearest_D).items():
                scores.append({"method": encoder.pooling, "layer": layer, "metric": metric, "value": value})
            if layer == facts["layer"]:
                rows = list(_rows(pair, nearest_S, nearest_D))
        return scores, counts, rows


def accuracy(pair: tuple[Side, Side], nearest_S: np.ndarray, nearest_D: np.ndarray) -> dict[str, float]:
    """Accuracy@1 in percent, in both directions and on average, over all pairs, as XTREME (Hu et al., 2020).

    `nearest_S` is the target text that was found for each source text, `nearest_D` the other way round. A text that is
    in several pairs is one candidate, and right for each of them.
    """
    source = np.asarray(pair[0].of_pairs)
    target = np.asarray(pair[1].of_pairs)
    forward = 100.0 * float(np.mean(nearest_S[source] == target))
    backward = 100.0 * float(np.mean(nearest_D[target] == source))
    return {"accuracy": (backward + forward) / 2, "source_to_target": forward, "target_to_source": backward}


def chance_level(source: Side, target: Side) -> dict[str, float]:
    """Returns the accuracy, in percent, of a random one of the other side's distinct texts."""
    forward = 100 / len(target.texts)
    backward = 100 / len(source.texts)
    return {"accuracy": (forward + backward) / 2, "source_to_target": forward, "target_to_source": backward}


def _rows(pair: tuple[Side, Side], nearest_S: np.ndarray, nearest_D: np.ndarray) -> Iterator[Facts]:
    """Yields the rows of a predictions file: each pair with the texts found for both sides."""
    source, target = pair
    for row, (s, d) in enumerate(zip(source.of_pairs, target.of_pairs, strict=True)):
        yield {
            "row": row,
            "source": source.texts[s],
            "target": target.texts[d],
            "found_target": target.texts[nearest_S[s]],
            "found_source": source.texts[nearest_D[d]],
        }
