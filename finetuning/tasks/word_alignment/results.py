"""What results of word alignment say: AER by method and layer, of which less is better."""

from typing import Any

from finetuning.results.files import table_names
from finetuning.tasks.features.results import FeatureProtocol, FeatureReport, curves
from finetuning.tasks.word_alignment.layers import BY_POSITION, METRICS


class AlignmentProtocol(FeatureProtocol):
    """Further facts of word alignment."""

    options: dict[str, Any]  # of the reported method
    encoding: str


class AlignmentReport(FeatureReport):
    """Results of word alignment."""

    protocol_class = AlignmentProtocol
    protocol: AlignmentProtocol
    titles = METRICS
    is_higher_better = False
    axis = "AER"

    def lines(self) -> list[str]:
        protocol, metric = self.protocol, self.protocol.metric
        gold = [entry["gold"] for entry in protocol.evaluation_data]
        links = sum(entry["possible_links"] for entry in gold)
        sure = sum(entry["sure_links"] for entry in gold)
        lines = [
            "setting: feature, nothing was trained; links are read from the vectors of a layer",
            f"evaluated: {table_names(protocol.evaluation_data)} ({sum(protocol.evaluated_rows.values()):,} "
            f"sentences with {links:,} gold links, {sure:,} of them sure; not scored: "
            f"gold links past their sentence, {sum(len(g['left_out']) for g in gold)}; sentences without gold, "
            f"{sum(g['sentences_without_gold'] for g in gold)})",
            self.layer_line(),
        ]
        for method, options in protocol.methods.items():
            shown = ", ".join(f"{name} {value}" for name, value in options.items())
            lines.append(f"method: {method}" + (f" ({shown})" if shown else ""))
        lines += [
            f"encoding: {protocol.encoding}; words are linked where any of their tokens are"
            + (", by ot_words as such" if "ot_words" in protocol.methods else ""),
            f"{BY_POSITION}: each source word with the word at the same share of the target sentence",
            f"metric: {metric.name} {metric.version}, in percent, over the corpus; lower is better",
        ]
        return lines

    def cells(self, language: str) -> dict[str, str]:
        """AER of links that know nothing of the words."""
        return {f"AER by {BY_POSITION}": f"{self.results.chance(language):.1f}"}

    def panels(self) -> dict[str, tuple[dict[str, Any], float]]:
        """AER, by method."""
        results = self.results
        level = results.chance(results.with_average[-1])
        return {method: (curves(results, method=method), level) for method in results.methods}
