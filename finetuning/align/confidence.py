"""Whether probable links are right more often: the calibration of probabilities."""

import copy
from dataclasses import dataclass, field, replace
from typing import Any

from finetuning.align.gold import Gold

LOWEST = 0.01  # probability; less likely links are no candidates
BINS = 10


def is_calibrated(method: str) -> bool:
    """Whether the probabilities of a method are those of links being right."""
    return method == "ot_words"


def options_of(aligner: Any) -> dict[str, Any]:
    """All options of the aligner's method."""
    from modeling.optimal_transport import METHOD_OPTIONS

    return METHOD_OPTIONS[aligner.method] | aligner.matching


def threshold_of(aligner: Any) -> float | None:
    """The lowest probability of a link; None if the aligner's method has none."""
    return options_of(aligner)["threshold"] if is_calibrated(aligner.method) else None


def with_threshold(aligner: Any, threshold: float) -> Any:
    """The aligner with a threshold of at most `threshold`; the same aligner if its method has no probability."""
    if (own := threshold_of(aligner)) is None:
        return aligner
    other = copy.copy(aligner)
    other.matching = aligner.matching | {"threshold": min(threshold, own)}
    return other


def cut(alignment: Any, aligner: Any) -> Any:
    """Returns the alignment with the links that the aligner itself returns, of those found `with_threshold`."""
    from modeling.word_alignment import likely_links

    if (threshold := threshold_of(aligner)) is None or alignment.probabilities is None:
        return alignment
    found = alignment.links, alignment.probabilities
    links, probabilities = likely_links(*found, threshold, options_of(aligner)["link_all"])
    return replace(alignment, links=links, probabilities=probabilities)


@dataclass
class Bin:
    """Candidates whose probabilities are close."""

    count: int
    mean: float
    right: float  # share


@dataclass
class Confidence:
    """Candidate links with their probabilities, compared with links made by hand."""

    candidates: list[tuple[float, bool]] = field(default_factory=list)  # probability, whether it is sure or possible

    def add(self, alignment: Any, gold: Gold) -> None:
        """Takes the candidates of a sentence."""
        self.candidates += [
            (probability, link in gold.possible)
            for link, probability in zip(alignment.links, alignment.probabilities, strict=True)
        ]

    def bins(self, lowest: float = 0.0) -> list[Bin]:
        """The candidates with at least this probability, in bins as wide as each other; those without any are left
        out."""
        filled: dict[int, list[tuple[float, bool]]] = {}
        for probability, is_right in self.candidates:
            if probability >= lowest:
                filled.setdefault(min(int(probability * BINS), BINS - 1), []).append((probability, is_right))
        return [
            Bin(len(of), sum(p for p, _ in of) / len(of), sum(right for _, right in of) / len(of))
            for _, of in sorted(filled.items())
        ]

    def calibration(self) -> list[float]:
        """Slope and offset of the logits with which the probabilities fit the candidates best; [1, 0] if they do.

        Platt (1999): logistic regression of whether a candidate is right on its logit. It begins with, and of few
        candidates stays near, slope 1 and offset 0.
        """
        import torch

        start_2 = torch.tensor([1.0, 0.0], dtype=torch.float64)
        logits_N = torch.tensor([probability for probability, _ in self.candidates], dtype=torch.float64).logit(1e-6)
        right_N = torch.tensor([is_right for _, is_right in self.candidates], dtype=torch.float64)
        found_2 = start_2.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([found_2], max_iter=100, line_search_fn="strong_wolfe")

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            scores_N = found_2[0] * logits_N + found_2[1]
            losses = torch.nn.functional.binary_cross_entropy_with_logits(scores_N, right_N, reduction="sum")
            total = losses + (found_2 - start_2).square().sum()
            total.backward()
            return total

        optimizer.step(loss)
        return found_2.tolist()

    def error(self, lowest: float = 0.0) -> float:
        """Expected calibration error: how far mean probability and share of right links of a bin lie apart, on
        average over the candidates."""
        bins = self.bins(lowest)
        return sum(of.count * abs(of.mean - of.right) for of in bins) / max(sum(of.count for of in bins), 1)
