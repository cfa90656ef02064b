"""Word alignment by layer: scores of every layer and method from one forward pass, as a table."""

from collections.abc import Iterable, Sequence
from typing import Any

from finetuning.align.files import Gold
from finetuning.align.pairs import split_at_spaces
from finetuning.results.report import BEST

METRICS = {"aer": "AER", "precision": "precision", "recall": "recall", "f1": "F1"}
BY_POSITION = "position"  # links that know nothing of the words

Pairs = Sequence[tuple[list[str] | str, list[str] | str]]
Scores = dict[str, dict[int, dict[str, float]]]  # by method, layer and name of the score


def sweep(
    aligner: Any,
    pairs: Pairs,
    gold: dict[int, Gold],
    layers: Iterable[int] | None = None,
    methods: Iterable[str] | dict[str, dict[str, Any]] | None = None,
) -> Scores:
    """Scores in percent, {method: {layer: {aer, precision, recall, f1}}}, over the sentences that have gold links.

    `aligner` is a `modeling.word_alignment.WordAligner`, `pairs` are sentences as lists of words, or as words between
    white space, and `gold` holds links that fit them (`align.files.fit_gold`), by the sentence's position. Layers
    count from 0, the embeddings; default: all. Methods are names, or options by name; default: the aligner's own.
    """
    layers = list(range(aligner.num_layers + 1) if layers is None else layers)
    if methods is None:
        methods = {aligner.method: aligner.matching}
    elif not isinstance(methods, dict):
        methods = {method: {} for method in methods}
    sentences = sorted(gold)
    found: dict[str, dict[int, dict]] = {method: {layer: {} for layer in layers} for method in methods}
    wanted = (split_at_spaces(pairs[n]) for n in sentences)
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
            f"There are links for {len(links):,} sentences and gold for {len(gold):,}. Give links for the sentences of "
            "the gold, no more and no fewer."
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


def best_layer(by_layer: dict[int, dict[str, float]]) -> int:
    """The layer with the lowest AER: for the reader, never to select by."""
    return min(by_layer, key=lambda layer: by_layer[layer]["aer"])


def sweep_table(scores: Scores, reported_layer: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Header and rows of what `sweep` found: a row for each layer, the scores of each method."""
    several = len(scores) > 1
    columns = ["layer", *(f"{name} {method}" if several else name for method in scores for name in METRICS.values())]
    best = {method: best_layer(by_layer) for method, by_layer in scores.items()}
    rows = []
    for layer in next(iter(scores.values())):
        notes = ["reported"] if layer == reported_layer else []
        notes += [f"{BEST}{f' of {method}' if several else ''}" for method, number in best.items() if number == layer]
        cells = [f"{by_layer[layer][name]:.1f}" for by_layer in scores.values() for name in METRICS]
        rows.append([str(layer), *cells, ", ".join(notes)])
    return [*columns, ""], rows
