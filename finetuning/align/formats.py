"""The forms in which links are written."""

import json
from collections.abc import Iterable, Sequence
from typing import Any


def to_line(alignment: Any, format: str, probabilities: bool) -> str:
    """Links of a pair in Pharaoh's format, or the pair and its links as JSON."""
    if format == "pharaoh":
        return pharaoh_line(alignment.links, alignment.probabilities if probabilities else None)
    fields = {"source": alignment.source, "target": alignment.target, "links": alignment.links}
    if probabilities:
        fields["probabilities"] = [round(probability, 6) for probability in alignment.probabilities]
    return json.dumps(fields, ensure_ascii=False)


def pharaoh_line(links: Iterable[tuple[int, int]], probabilities: Sequence[float] | None = None) -> str:
    """Links as `0-0 1-2`, or with probabilities as `0-0:0.9731 1-2:0.4250`; words from 0."""
    if probabilities is None:
        return " ".join(f"{i}-{j}" for i, j in links)
    return " ".join(f"{i}-{j}:{p:.4f}" for (i, j), p in zip(links, probabilities, strict=True))
