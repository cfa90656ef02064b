"""Results of mining: F1 by layer, with the threshold of that layer and pair.

`mining` of results.json has the counts of pairs and the threshold behind each score: {pair: {layer: [one per seed]}}.
"""

from typing import Any

from finetuning.results.files import table_names
from finetuning.results.protocol import ReadTable
from finetuning.results.table import AVERAGE, summary, with_deviation
from finetuning.tasks.retrieval.task import SentenceProtocol, SentenceReport


class MiningProtocol(SentenceProtocol):
    """Further facts of mining."""

    dev_data: list[ReadTable]
    pool_sizes: dict[str, list[int]]
    dev_rows: dict[str, int]  # gold pairs
    dev_sizes: dict[str, list[int]]
    dev_fraction: float
    margin: str
    neighbors: int


class MiningReport(SentenceReport):
    """Results of mining."""

    protocol_class = MiningProtocol
    protocol: MiningProtocol
    titles = {"f1": "F1", "precision": "precision", "recall": "recall"}

    def lines(self) -> list[str]:
        results, protocol, metric = self.results, self.protocol, self.protocol.metric
        data = protocol.evaluation_data
        repeated = [sum(entry["repeated"][side] for entry in data) for side in (0, 1)]
        return [
            "setting: feature (no training); sentences are compared by their vectors at one layer",
            f"evaluated: {table_names(data)} ({sum(protocol.evaluated_rows.values()):,} gold pairs)",
            self.layer_line(),
            *self.vector_lines(),
            f"search: exact, in both directions; pairs are ranked by the {protocol.margin} margin of the cosine over "
            f"{protocol.neighbors} nearest neighbors, and each sentence is in one pair at most",
            self.threshold_line(),
            f"found at layer {protocol.layer}: "
            + "; ".join(_mined(pair, of_layers[str(protocol.layer)]) for pair, of_layers in results["mining"].items()),
            f"equal texts: one candidate ({repeated[0]:,} sentences of the source and {repeated[1]:,} of the target "
            "repeat another one)",
            f"metric: F1 of the found pairs ({metric.module} {metric.version}), in percent",
        ]

    def threshold_line(self) -> str:
        """On which gold the threshold was fitted."""
        protocol = self.protocol
        found = []
        if protocol.dev_data:
            found.append(table_names(protocol.dev_data))
        if protocol.dev_fraction:
            found.append(f"{protocol.dev_fraction:.0%} of the pools, held out")
        gold = sum(protocol.dev_rows.values())
        return (
            f"threshold: the best for F1 on dev, by language pair and layer: {'; '.join(found)} ({gold:,} gold pairs)"
        )

    def cells(self, language: str) -> dict[str, str]:
        """Sizes of the pools, gold pairs, F1 on the rows that the threshold was fitted on, and F1 of a guess."""
        results, protocol = self.results, self.protocol
        if language == AVERAGE:
            own = {"pools": "", "gold": f"{sum(protocol.evaluated_rows.values()):,}", "dev F1": ""}
        else:
            dev = [of_seed["dev_f1"] for of_seed in results["mining"][language][str(protocol.layer)]]
            own = {
                "pools": " x ".join(f"{size:,}" for size in protocol.pool_sizes[language]),
                "gold": f"{protocol.evaluated_rows[language]:,}",
                "dev F1": with_deviation(summary(dev)),
            }
        return own | {"F1 of guessing": f"{results.chance(language):.2f}"}


def _mined(pair: str, of_seeds: list[dict[str, Any]]) -> str:
    """`de-en 18 pairs from margin 1.011`, by seed."""
    found = [
        f"{one['mined']:,} pairs" + ("" if one["threshold"] is None else f" from margin {one['threshold']:.3f}")
        for one in of_seeds
    ]
    return f"{pair} {' / '.join(found)}"
