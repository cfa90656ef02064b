"""`word-align score`: evaluates links on gold links, by one layer or by every layer; calibrates probabilities."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from crosslingual_zoo.finetuning.align.common import (
    AlignerOptions,
    InputOptions,
    PairBar,
    load_aligner,
    make_parser,
    make_progress,
    pick,
    refuse,
    report_running_text,
    rule_of,
)
from crosslingual_zoo.finetuning.align.gold import Gold, describe_fit, fit_gold, read_found, read_gold
from crosslingual_zoo.finetuning.align.pairs import Side, is_split_further
from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.zoo_core.console import CONSOLE, say_loading

METRICS = {"aer": "AER", "precision": "precision", "recall": "recall", "f1": "F1"}

USAGE = "word-align score [FILE | SOURCE TARGET] --gold LINKS [--model FOLDER|ID] [options]"
DESCRIPTION = """Evaluate word links on gold links, which people made: AER, precision, recall and F1.

  word-align score test.de test.en --gold alignment.txt
  word-align score test.de test.en --gold alignment.txt --sweep-layers       scores of every layer
  word-align score xlwa.tsv --columns 1 2 --gold xlwa.tsv                   links in the last column of a table
  word-align score test.de test.en --gold alignment.txt --links fast_align.txt eflomal.txt   links of other aligners

AER (alignment error rate) is the share of wrong and missing links. LINKS has a line for each link, `sentence i j S|P`,
or one for each sentence, `0-0 1p2 2-1`, where p marks a possible link. If it has links for some of the sentences, only
these are evaluated. All pairs are held in memory.

Pairs of all formats are split at spaces, tabs and line breaks, or with --split at Unicode's word boundaries."""


@dataclass(frozen=True)
class GoldOptions:
    """The gold links, and what is evaluated on them: every layer, or the links in files."""

    gold: str
    gold_base: int | None
    sweep_layers: bool
    links: list[str] | None


def read_options(arguments: list[str]) -> tuple[AlignerOptions, InputOptions, GoldOptions]:
    """Returns the parsed command line."""
    parser = make_parser("word-align score", DESCRIPTION, USAGE)
    group = parser.add_argument_group("scores")
    group.add_argument(
        "--gold",
        metavar="LINKS",
        required=True,
        help="gold links: `sentence i j S|P`, or `i-j ipj`, also as the last column of a table",
    )
    group.add_argument(
        "--gold-base",
        type=int,
        choices=(0, 1),
        help="first number in LINKS: of its words, or of the sentences in `sentence i j`",
    )
    group.add_argument("--sweep-layers", action="store_true", help="evaluate every layer")
    group.add_argument(
        "--links",
        nargs="+",
        metavar="FILE",
        help="evaluate the links in these files, without a model: `0-0 1-2` or `0-0:0.9 1-2:0.5` for each pair",
    )
    options = parser.parse_args(arguments)
    if options.links:
        model = "model adapter trust_remote_code device precision batch_size"
        rule = "method threshold link_all layer sweep_layers"
        refuse(parser, options, f"{model} {rule}", "with --links, which needs no model")
    if options.sweep_layers:
        refuse(parser, options, "layer", "with --sweep-layers")
    return pick(AlignerOptions, options), pick(InputOptions, options), pick(GoldOptions, options)


def run(options: AlignerOptions, texts: InputOptions, evaluated: GoldOptions) -> None:
    """Prints the scores."""
    reader = texts.reader(bool(texts.split))
    say_loading("the links" if evaluated.links else options.model)
    pairs, gold = read_with_gold(reader, evaluated.gold, evaluated.gold_base)
    report_running_text(reader.running_text)
    if reader.splits_lines:
        report_split(pairs)
    if evaluated.links:
        lengths = count_words(pairs)
        for path in evaluated.links:
            links = read_found(path, lengths)
            links_by_sentence = {number: links[number] for number in gold}
            print_scores(path, score(links_by_sentence, gold), gold)
        return
    aligner = load_aligner(options, evaluated.sweep_layers, **rule_of(options))
    if evaluated.sweep_layers:
        sweep_layers(aligner, pairs, gold)
    else:
        print_scores(evaluated.gold, score_links(aligner, pairs, gold), gold)


def read_with_gold(
    reader: Iterable[tuple[Side, Side]], path: str, base: int | None
) -> tuple[list[tuple[Side, Side]], dict[int, Gold]]:
    """Returns all pairs, and the gold links that fit their words; prints what does not fit."""
    links = read_gold(path, base=base)
    pairs = list(reader)
    gold, left_out = fit_gold(links, count_words(pairs), path)
    facts = describe_fit(links, gold, left_out, path)
    if len(gold) < len(pairs):
        facts.append(f"{path} has links for {len(gold):,} of the {len(pairs):,} sentences; only they are scored.")
    for fact in facts:
        print(fact, file=sys.stderr)
    return pairs, gold


def count_words(pairs: list[tuple[Side, Side]]) -> list[tuple[int, int]]:
    """The numbers of words of both sides of each pair, as the aligner splits them."""
    from crosslingual_zoo.modeling.word_tokens import split_words

    words_of_sides, _ = split_words(list(chain.from_iterable(pairs)))
    lengths = [len(words) for words in words_of_sides]
    return list(zip(lengths[::2], lengths[1::2], strict=True))


def report_split(pairs: list[tuple[Side, Side]]) -> None:
    """Prints how many pairs --split gave another number of words than are between blanks, which gold links count."""
    changed = 0
    for pair, lengths in zip(pairs, count_words(pairs), strict=True):
        changed += any(map(is_split_further, pair, lengths))
    if changed:
        CONSOLE.print(f"--split changed the number of words of {changed:,} of the {len(pairs):,} pairs")


def score_links(aligner: Any, pairs: list[tuple[Side, Side]], gold: dict[int, Gold]) -> dict[str, float]:
    """Scores in percent of the aligner's links."""
    with make_progress() as progress:
        bar = PairBar(progress, "aligning", len(gold), aligner.batch_size)
        alignments = aligner.align((pairs[number] for number in gold), after_batch=bar.after_batch)
        links = [alignment.links for alignment in bar.count(alignments)]
    return score(dict(zip(gold, links, strict=True)), gold)


def print_scores(name: str, scores: dict[str, float], gold: dict[int, Gold]) -> None:
    """Prints scores in a line: `alignment.txt: AER 17.6, precision ...`."""
    text = ", ".join(f"{metric} {scores[key]:.1f}" for key, metric in METRICS.items())
    print(f"{name}: {text} (%, {len(gold):,} sentences)")


def sweep(
    aligner: Any,
    pairs: Sequence[tuple[Side, Side]],
    gold: dict[int, Gold],
    layers: Iterable[int],
    methods: dict[str, dict[str, Any]],
) -> dict[str, dict[int, dict[str, float]]]:
    """Scores in percent, {method: {layer: {aer, precision, recall, f1}}}, over the sentences that have gold links.

    `aligner` is a `WordAligner`; `gold` holds links that fit the pairs (`align.gold.fit_gold`), by position. Layers
    count from 0, the embeddings; `methods` are options by name.
    """
    gold_pairs = (pairs[number] for number in gold)
    alignments = list(aligner.align_layers(gold_pairs, layers, methods=methods))  # one by layer and method a pair
    scores: dict[str, dict[int, dict[str, float]]] = {}
    for method in methods:
        scores[method] = {}
        for layer in layers:
            links = [by_layer[layer][method].links for by_layer in alignments]
            scores[method][layer] = score(dict(zip(gold, links, strict=True)), gold)
    return scores


def score(links: dict[int, list[tuple[int, int]]], gold: dict[int, Gold]) -> dict[str, float]:
    """AER, precision, recall and F1 in percent, of links by sentence against the gold of the same sentences."""
    predictions = [links[sentence] for sentence in gold]
    references = [{"sure": sorted(item.sure), "possible": sorted(item.possible)} for item in gold.values()]
    return load_metric("aer").compute(predictions=predictions, references=references)


def sweep_layers(aligner: Any, pairs: list[tuple[Side, Side]], gold: dict[int, Gold]) -> None:
    """Prints the scores of every layer."""
    from crosslingual_zoo.finetuning.page import print_table

    method = aligner.method
    layers = range(aligner.num_layers + 1)
    scores = sweep(aligner, pairs, gold, layers, {method: aligner.matching})[method]
    best = min(layers, key=lambda layer: scores[layer]["aer"])
    rows = []
    for layer in layers:
        cells = [f"{scores[layer][key]:.1f}" for key in METRICS]
        notes = []
        if layer == best:
            notes.append("lowest AER")
        if layer == aligner.layer:
            notes.append("default")
        rows.append([str(layer), *cells, ", ".join(notes)])
    print_table("Word alignment by layer, %", (["layer", *METRICS.values(), ""], rows), [])


def calibration(candidates: list[tuple[float, bool]]) -> list[float]:
    """Slope and offset of the logits with which probabilities fit best whether candidates are right; [1, 0] if they do.

    Platt (1999): logistic regression of whether a candidate is right on its logit. It begins with, and of few
    candidates stays near, slope 1 and offset 0.
    """
    import torch

    start_2 = torch.tensor([1.0, 0.0], dtype=torch.float64)
    probabilities = [probability for probability, _ in candidates]
    logits_N = torch.tensor(probabilities, dtype=torch.float64).logit(1e-6)
    right_N = torch.tensor([is_right for _, is_right in candidates], dtype=torch.float64)
    fitted_2 = start_2.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([fitted_2], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scores_N = fitted_2[0] * logits_N + fitted_2[1]
        losses = torch.nn.functional.binary_cross_entropy_with_logits(scores_N, right_N, reduction="sum")
        total = losses + (fitted_2 - start_2).square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    return fitted_2.tolist()
