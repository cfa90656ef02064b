"""Word alignment by layer: scores of every layer and method from one forward pass."""

from collections.abc import Iterable, Sequence
from typing import Any

from finetuning.align.gold import Gold
from finetuning.align.pairs import Side

METRICS = {"aer": "AER", "precision": "precision", "recall": "recall", "f1": "F1"}
BY_POSITION = "position"  # links that do not depend on the words

Pairs = Sequence[tuple[Side, Side]]
Scores = dict[str, dict[int, dict[str, float]]]  # by method, layer and name of the score


def sweep(
    aligner: Any,
    pairs: Pairs,
    gold: dict[int, Gold],
    layers: Iterable[int] | None = None,
    methods: Iterable[str] | dict[str, dict[str, Any]] | None = None,
) -> Scores:
    """Scores in percent, {method: {layer: {aer, precision, recall, f1}}}, over the sentences that have gold links.

    `aligner` is a `modeling.word_alignment.WordAligner`, `pairs` are lists of words or texts, which the aligner
    splits, and `gold` holds links that fit them (`align.gold.fit_gold`), by the sentence's position. Layers
    count from 0, the embeddings; default: all. Methods are names, or options by name; default: the aligner's own.
    """
    layers = list(range(aligner.num_layers + 1) if layers is None else layers)
    if methods is None:
        methods = {aligner.method: aligner.matching}
    elif not isinstance(methods, dict):
        methods = {method: {} for method in methods}
    sentences = sorted(gold)
    found: dict[str, dict[int, dict]] = {method: {layer: {} for layer in layers} for method in methods}
    wanted = (pairs[n] for n in sentences)
    for sentence, by_layer in zip(sentences, aligner.align_layers(wanted, layers, methods=methods), strict=True):
        for layer in layers:
            for method in methods:
                found[method][layer][sentence] = by_layer[layer][method].links
    return {
        method: {layer: score(links, gold) for layer, links in by_layer.items()} for method, by_layer in found.items()
    }


def score(links: dict[int, list[tuple[int, int]]], gold: dict[int, Gold]) -> dict[str, float]:
    """AER, precision, recall and F1 in percent, of links by sentence against the gold of the same sentences."""
    from finetuning.seeds import load_metric

    if links.keys() != gold.keys():
        raise ValueError(
            f"There are links for {len(links):,} sentences and gold for {len(gold):,}. Give links for exactly "
            "the sentences of the gold."
        )
    return load_metric("aer").compute(
        predictions=[links[sentence] for sentence in gold],
        references=[{"sure": sorted(of.sure), "possible": sorted(of.possible)} for of in gold.values()],
    )


def position_links(source: int, target: int) -> list[tuple[int, int]]:
    """Links of each of `source` words to the word at the same share of a target of that many words: chance level."""
    if not target:
        return []
    return [(i, round(i * (target - 1) / max(source - 1, 1))) for i in range(source)]
