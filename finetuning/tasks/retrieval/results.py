"""What results of retrieval say: accuracy@1 by layer, the mean of both directions; and of any vectors of sentences."""

from typing import Any

from finetuning.results.files import table_names
from finetuning.results.table import AVERAGE
from finetuning.tasks.features.results import FeatureProtocol, FeatureReport
from finetuning.tasks.retrieval.recipe import POOLINGS


class SentenceProtocol(FeatureProtocol):
    """Further facts of vectors of sentences."""

    similarity: str
    cut_texts: dict[str, list[int]]  # of source and target, as all lists of two
    texts_without_tokens: dict[str, list[int]]


class SentenceReport(FeatureReport):
    """Results of sentences that are compared by their vectors."""

    protocol_class = SentenceProtocol
    protocol: SentenceProtocol

    def vector_lines(self) -> list[str]:
        """How a sentence becomes a vector, one fact a line."""
        protocol = self.protocol
        cut = sum(map(sum, protocol.cut_texts.values()))
        return [
            f"vector of a sentence: {POOLINGS[protocol.pooling]}",
            f"max length: {protocol.max_length} positions ({cut:,} texts cut)",
        ]


class RetrievalReport(SentenceReport):
    """Results of retrieval; a panel of the plot for both directions together and one for each."""

    titles = {
        "accuracy": "accuracy@1",
        "source_to_target": "source -> target",
        "target_to_source": "target -> source",
    }

    def lines(self) -> list[str]:
        protocol, metric = self.protocol, self.protocol.metric
        data = protocol.evaluation_data
        unpaired, empty = sum(sum(entry["unpaired"]) for entry in data), sum(entry["empty"] for entry in data)
        repeated = [sum(entry["repeated"][side] for entry in data) for side in (0, 1)]
        return [
            "setting: feature, nothing was trained; sentences are compared by the vectors of a layer",
            f"evaluated: {table_names(data)} ({sum(protocol.evaluated_rows.values()):,} pairs; not read: "
            f"{unpaired:,} rows without a partner, {empty:,} pairs with an empty side)",
            self.layer_line(),
            *self.vector_lines(),
            f"found is the nearest by {protocol.similarity} among all sentences of the other language, by exact "
            "search; of equally near ones the first",
            f"equal texts are one candidate, right for every pair that has them: {repeated[0]:,} pairs repeat a source "
            f"text, {repeated[1]:,} a target text",
            f"metric: {metric.name} {metric.version} of {metric.module}, in percent: accuracy@1, the mean of both "
            "directions",
        ]

    def cells(self, language: str) -> dict[str, str]:
        """Number of pairs, and the accuracy of a guess."""
        rows = self.protocol.evaluated_rows
        size = sum(rows.values()) if language == AVERAGE else rows[language]
        return {"size": f"{size:,}", "chance": f"{self.results.chance(language):.2f}"}

    def panels(self) -> dict[str, tuple[dict[str, Any], float]]:
        panels = super().panels()
        return {"both directions": panels.pop(self.titles["accuracy"]), **panels}
