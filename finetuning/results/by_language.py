"""What results of classification, tagging and question answering say, in every language, and their plot."""

from pathlib import Path

from finetuning.results.files import table_names
from finetuning.results.protocol import LanguageProtocol
from finetuning.results.report import Report, plot_scores


class LanguageReport(Report):
    """Results of a task that is trained, and evaluated in every language by itself."""

    protocol_class = LanguageProtocol
    protocol: LanguageProtocol

    def lines(self) -> list[str]:
        results, protocol = self.results, self.protocol
        selection, metric = protocol.selection, protocol.metric
        rule = {
            "last": "the last checkpoint",
            "source_dev": f"best on development rows of {results['source_language']}",
            "mean_dev": "best on the mean over all languages' development rows",
        }[selection.rule]
        source = selection.data if isinstance(selection.data, str) else table_names(selection.data or [])
        cut, split = (
            sum(sum(of.values()) for of in counts.values()) for counts in (protocol.cut_texts, protocol.split_texts)
        )
        name = metric.name + (f" of {metric.module}" if metric.module != metric.name else "")
        lines = [f"setting: {results['setting']}, trained on {self.trained_on}"]
        if protocol.plug_in:
            lines.append("plug-in: heads read [H:S] of a text and its translation, and learn from both")
        if protocol.translations:
            lines.append(f"translations: {protocol.translations}")
        lines += [
            f"training data: {table_names(protocol.training_data)} ({protocol.training_rows:,} rows)",
            f"evaluated: {table_names(protocol.evaluation_data)}",
            f"selection: {rule}" + (f" ({source})" if source else ""),
        ]
        if sweep := selection.sweep:
            tried = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in sweep["fields"].items())
            lines.append(
                f"chosen on the same rows among {sweep['points']} points: {tried} (score there {sweep['score']:.2f})"
            )
        if fresh := protocol.fresh_parameters:
            named = f"{fresh['count']:,}, drawn from each seed ({', '.join(fresh['names'])})"
            lines.append(f"fresh parameters: {named if fresh['names'] else 'none, the head was read with the encoder'}")
        lines += [
            f"max length: {protocol.max_length} ({cut} texts cut"
            + (f", {split} split)" if protocol.split_texts else ")"),
            f"metric: {name} {metric.version}, in percent",
        ]
        if protocol.differs:
            lines.append(f"not as in published figures: {', '.join(protocol.differs)}")
        return [*lines, *protocol.facts]

    @property
    def trained_on(self) -> str:
        """The languages of the training rows."""
        if self.results["setting"] == "zero_shot":
            return self.results["source_language"]
        tables = self.protocol.training_data
        return ", ".join(dict.fromkeys(language for table in tables for language in table["languages"]))

    def plot(self, folder: Path) -> str:
        """Bars by language, the average, chance and the published figures."""
        title = f"{self.results['task']}, {self.results.setting} (trained on {self.trained_on})"
        plot_scores(self.results, folder / "scores.png", title, self.results["source_language"])
        return "scores.png"
