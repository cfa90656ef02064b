"""Retrieval of translations: finds the translation of each sentence in another set of sentences, as Tatoeba."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crosslingual_zoo.finetuning.data.pair_tables import SIDES, open_pairs, pair_identity
from crosslingual_zoo.finetuning.data.task_tables import PairData
from crosslingual_zoo.finetuning.tasks.base import Facts
from crosslingual_zoo.finetuning.tasks.vectors.base import Found, SentenceTask, facts_of
from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder, vectors_by_layer
from crosslingual_zoo.finetuning.tasks.vectors.recipe import RetrievalRecipe, expanded
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

    def read(self) -> PairData[tuple[Side, Side]]:
        """Rows whose id is in one table only, and pairs with an empty side, are left out and counted."""
        pairs, entries, warnings = {}, [], []
        for table in expanded(self.recipe.pairs):
            where = f"pairs ({table.name})"
            rows = open_pairs(table, where, table.name, self.recipe.hub_root)
            sides = pairs[table.name] = tuple(Side.of(rows.dataset[side][:]) for side in SIDES)
            if min(len(side.texts) for side in sides) < 2:
                raise ValueError(f"{where}: a side has 1 different text in {len(rows.dataset)} pairs. Check columns.")
            empty, (source, target) = rows.left_out["empty"], rows.left_out["unpaired"]
            if empty or source or target:
                warnings.append(
                    f"{table.name}: left out: {source} rows of the source and {target} of the target without partner, "
                    f"{empty} pairs with an empty side"
                )
            warnings += [table.note] if table.note else []
            entries.append(pair_identity(rows))
        rows_of_pairs = {name: len(source.of_pairs) for name, (source, _) in pairs.items()}
        facts = facts_of(entries, rows_of_pairs, {name: chance_level(*sides) for name, sides in pairs.items()})
        return PairData(facts, list(dict.fromkeys(warnings)), pairs)

    def evaluate(self, name: str, pair: tuple[Side, Side], encoder: SentenceEncoder, facts: Facts) -> Found:
        counts, by_layer = vectors_by_layer(encoder, [side.texts for side in pair], facts["layers"])
        scores, rows = [], None
        for layer, *vectors in by_layer:
            (_, forward_S1), (_, backward_D1) = nearest_neighbors(*vectors, 1, encoder.states.device)
            found = forward_S1[:, 0].numpy(), backward_D1[:, 0].numpy()
            place = {"method": encoder.pooling, "layer": layer}
            scores += [{**place, "metric": key, "value": value} for key, value in accuracy(pair, *found).items()]
            if layer == facts["layer"]:
                rows = list(_rows(pair, *found))
        return scores, counts, rows


def accuracy(pair: tuple[Side, Side], found_S: np.ndarray, found_D: np.ndarray) -> dict[str, float]:
    """Accuracy@1 in percent, in both directions and on average, over all pairs, as XTREME (Hu et al., 2020).

    `found_S` is the target text that was found for each source text, `found_D` the other way round. A text that is in
    several pairs is one candidate, and right for each of them.
    """
    source, target = (np.asarray(side.of_pairs) for side in pair)
    forward, backward = (
        100.0 * float(np.mean(found)) for found in (found_S[source] == target, found_D[target] == source)
    )
    return {"accuracy": (backward + forward) / 2, "source_to_target": forward, "target_to_source": backward}


def chance_level(source: Side, target: Side) -> dict[str, float]:
    """Returns the accuracy, in percent, of a random one of the other side's distinct texts."""
    forward, backward = 100 / len(target.texts), 100 / len(source.texts)
    return {"accuracy": (forward + backward) / 2, "source_to_target": forward, "target_to_source": backward}


def _rows(pair: tuple[Side, Side], found_S: np.ndarray, found_D: np.ndarray) -> Iterator[Facts]:
    """Yields the rows of a predictions file: each pair with the texts found for both sides."""
    source, target = pair
    for row, (s, d) in enumerate(zip(source.of_pairs, target.of_pairs, strict=True)):
        found = {"found_target": target.texts[found_S[s]], "found_source": source.texts[found_D[d]]}
        yield {"row": row, "source": source.texts[s], "target": target.texts[d], **found}
