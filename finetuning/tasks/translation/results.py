"""Results of translation: sacreBLEU and other scores by pair, and BLEU over the steps."""

from pathlib import Path
from typing import Any

from finetuning.results.files import run_name, table_names
from finetuning.results.plots import plot_lines
from finetuning.results.protocol import Protocol
from finetuning.results.report import Report
from finetuning.results.table import Results

METRICS = {"sacrebleu": "sacreBLEU", "bleu": "BLEU (tokenized, case-insensitive)", "chrf": "chrF"}
# by score: the published score that it corresponds to, and whether they can be compared
CORRESPONDS = {
    "bleu": "corresponds to multi-bleu.perl -lc on Moses tokens, without its decimals, because the tokens are "
    "sacreBLEU's. Compare sacreBLEU if both are published"
}


class TranslationProtocol(Protocol):
    """Further facts of translation."""

    empty_pairs_left_out: dict[str, dict[str, int]]  # by part and pair
    max_source_length: int
    max_target_length: int
    too_long: dict[str, Any]  # `rule`, and counts: train, dev and test_sources by pair


class TranslationReport(Report):
    """Results of translation."""

    protocol_class = TranslationProtocol
    protocol: TranslationProtocol
    titles = METRICS
    unit = "pair"

    def lines(self) -> list[str]:
        protocol, settings = self.protocol, self.results["hyperparameters"]
        selection = protocol.selection
        rule = {
            "last": "the last step",
            "dev_loss": "best loss on dev",
            "dev_bleu": "best BLEU on dev",
            "average": "mean of the last checkpoints",
        }[selection.rule]
        steps = "; ".join(str(step).strip("[]") for step in selection.selected_steps)
        long, empty = protocol.too_long, sum(protocol.empty_pairs_left_out["train"].values())
        beams, penalty = settings["generation"]["beams"], settings["generation"]["length_penalty"]
        lines = [
            f"training data: {table_names(protocol.training_data)} ({protocol.training_rows:,} pairs; left out: "
            f"{empty} with an empty side" + (f", {long['train']} too long)" if long["rule"] == "drop" else ")"),
            f"evaluated: {table_names(protocol.evaluation_data)} "
            f"({sum(protocol.evaluated_rows.values()):,} pairs; {sum(long['test_sources'].values())} sources cut at "
            f"{protocol.max_source_length} tokens)",
            f"updates: {', '.join(map(str, settings['updates']))}, of {settings['max_tokens']:,} tokens each",
            f"selection: {rule} (step {steps})",
            f"generation: {beams} beams, length penalty {penalty}",
        ]
        for pair, signatures in protocol.metric.signatures.items():
            lines += [f"{METRICS[name]} {pair}: {signature}" for name, signature in signatures.items()]
        lines += [f"{METRICS[name]}: {words}" for name, words in protocol.metric.stands_for.items()]
        return [*lines, f"weights at the start: {settings['initialize']}"]

    def plot(self, folder: Path) -> str | None:
        """Plots BLEU on dev over the steps, one line per seed; or the loss, if dev was not translated."""
        results = self.results
        title = f"{results['task']}: {run_name(results['model']['folder'])}"
        for quantity, label in (("bleu", "sacreBLEU on dev"), ("loss", "loss on dev (nats per token)")):
            if curves := curve_of(results, quantity):
                plot_lines({"": curves}, folder / "bleu.png", title, "steps", label)
                return "bleu.png"
        return None


def curve_of(results: Results, quantity: str) -> dict[str, dict[int, float]]:
    """`bleu` or `loss` on dev while training, by seed and step; empty where it was not measured."""
    curves = {
        f"seed {seed}": {point["step"]: point[quantity] for point in curve if point[quantity] is not None}
        for seed, curve in results.get("curve", {}).items()
    }
    return {seed: curve for seed, curve in curves.items() if curve}
