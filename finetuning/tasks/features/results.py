"""What results of tasks share that read vectors of models as they are: every score by method, layer and pair."""

from pathlib import Path
from typing import Any, ClassVar

from finetuning.results.files import run_name
from finetuning.results.plots import plot_lines
from finetuning.results.protocol import Protocol
from finetuning.results.report import Report, plot_scores
from finetuning.results.table import AVERAGE, Results


class FeatureProtocol(Protocol):
    """Further facts of vectors."""

    methods: dict[str, dict[str, Any]]  # every method that was scored, with its options
    depth: int  # layers of the model


class FeatureReport(Report):
    """Results by layer."""

    protocol_class = FeatureProtocol
    protocol: FeatureProtocol
    unit = "pair"
    is_higher_better: ClassVar[bool] = True
    axis: ClassVar[str] = "score"

    def layer_line(self) -> str:
        """Which layer is reported, and how it was chosen."""
        protocol = self.protocol
        return (
            f"layer: {protocol.layer} of {protocol.depth} ({protocol.selection.rule}), 0 being the embeddings; never "
            "chosen by the scores"
        )

    def panels(self) -> dict[str, tuple[dict[str, Any], float]]:
        """By title: the curves of the plot, and the level of chance."""
        results = self.results
        return {
            title: (curves(results, metric), results.chance(results.with_average[-1], metric))
            for metric, title in self.titles.items()
        }

    def plot(self, folder: Path) -> str:
        """Scores over layers, 0 being the embeddings, a line for each pair and for their average: layers.png. Of a
        single layer, bars: scores.png.

        The plot of XLM-Align (ACL 2021), Figure 2, and of MetaXLM, Figures 3 and 4.
        """
        results, layer = self.results, self.protocol.layer
        title = f"{results['task']}: {run_name(results['model']['folder'])}"
        if not results.layers[1:]:
            plot_scores(results, folder / "scores.png", f"{title}, layer {layer}")
            return "scores.png"
        of = f"chance, {AVERAGE}" if AVERAGE in results.with_average else "chance"
        better = "higher" if results.is_higher_better else "lower"
        panels = self.panels()
        plot_lines(
            {name: lines for name, (lines, _) in panels.items()},
            folder / "layers.png",
            title,
            "layer",
            f"{self.axis} (%), {better} is better",
            {name: (of, level) for name, (_, level) in panels.items()},
            (layer, f"reported: {layer}"),
        )
        return "layers.png"


def curves(results: Results, metric: str | None = None, method: str | None = None) -> dict[str, dict[int, Any]]:
    """A score of every pair and, of several, their average: by layer, the summary over seeds."""
    return {
        name: {layer: results.of(name, metric, method, layer) for layer in results.layers}
        for name in results.with_average
    }
