"""`word-align score`: evaluates links on gold links, by the chosen layer or by every layer."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from finetuning.align.confidence import LOWEST, Confidence, cut, with_threshold
from finetuning.align.gold import Gold, describe_left_out, describe_order, fit_gold, read_found, read_gold
from finetuning.align.loading import choose_layer, load_aligner, memory_errors, report_precision
from finetuning.align.options import AlignerOptions, PairOptions, make_parser
from finetuning.align.pairs import Side
from finetuning.align.screen import count_of, make_progress, make_screen, report_unspaced

USAGE = "word-align score [FILE | SOURCE TARGET] --gold LINKS [--model FOLDER|ID] [options]"
DESCRIPTION = """Evaluate word links on gold links, which people made: AER, precision, recall and F1.

  word-align score test.de test.en --gold alignment.txt
  word-align score test.de test.en --gold alignment.txt --sweep-layers       scores of every layer
  word-align score xlwa.tsv --columns 1 2 --gold xlwa.tsv                   links in the last column of a table
  word-align score test.de test.en --gold alignment.txt --links fast_align.txt eflomal.txt   links of other aligners

AER (alignment error rate) is the share of wrong and missing links. LINKS has a line for each link, `sentence i j S|P`,
or one for each sentence, `0-0 1p2 2-1`, where p marks a possible link. If it has links for some of the sentences, only
these are evaluated. All pairs are held in memory.

Pairs of all formats are split into words at spaces, tabs and line breaks, or with --split at Unicode's word boundaries.

A table shows the recall of sure links by kind. A link is one to one if neither word has another sure link. The distance
from the diagonal is |(i + 0.5) / n - (j + 0.5) / m| for word i of n and word j of m."""


@dataclass
class ScoreOptions(PairOptions, AlignerOptions):
    """The pairs, the encoder and rule, and the gold links."""

    gold: str = ""
    gold_base: int | None = None
    sweep_layers: bool = False
    links: list[str] = field(default_factory=list)


def read_options(arguments: list[str]) -> ScoreOptions:
    """Returns the parsed command line."""
    parser = make_parser("word-align score", DESCRIPTION, USAGE, ScoreOptions)
    group = parser.add_argument_group("scores")
    text = "gold links: `sentence i j S|P`, or `i-j ipj`, also as the last column of a table"
    group.add_argument("--gold", metavar="LINKS", required=True, help=text)
    add_gold_base(group)
    group.add_argument("--sweep-layers", action="store_true", help="evaluate every layer")
    text = "evaluate the links in these files, without a model: `0-0 1-2` or `0-0:0.9 1-2:0.5` for each pair"
    group.add_argument("--links", nargs="+", metavar="FILE", help=text)
    return parser.parse_args(arguments, ScoreOptions())


def add_gold_base(group: Any) -> None:
    """Adds the option with the first number of the gold links."""
    group.add_argument(
        "--gold-base",
        type=int,
        choices=(0, 1),
        help="first number in LINKS: of its words, or of the sentences in `sentence i j`",
    )


def run(options: ScoreOptions) -> None:
    """Prints the scores."""
    screen = make_screen(options.quiet)
    for name, default in (vars(AlignerOptions()) | {"sweep_layers": False}).items():
        if options.links and name != "quiet" and getattr(options, name) != default:
            raise ValueError(f"--links needs no model. Leave out --{name.replace('_', '-')} or --links.")
    if options.sweep_layers and options.layer not in (None, "auto"):
        raise ValueError("--sweep-layers evaluates every layer. Leave out --layer or --sweep-layers.")
    rule = options.rule()
    reader = options.read_pairs(bool(options.split))
    pairs, gold = read_with_gold(reader, options.gold, options.gold_base)
    if options.split is None:
        report_unspaced(reader.unspaced, len(pairs), screen)
    if options.links:
        from finetuning.tasks.word_alignment.layers import score

        for path in options.links:
            found = read_found(path, count_words(pairs))
            print_scores(path, score({number: found[number] for number in gold}, gold), gold)
        return
    aligner = load_aligner(options, screen, options.sweep_layers or None, **rule)
    report_precision(options.precision, screen)
    if rule["layer"] is None:
        choose_layer(aligner, pairs, screen)
    if options.sweep_layers:
        sweep_layers(aligner, pairs, gold, screen)
        return
    scores, recalls = score_links(aligner, pairs, gold, screen)
    print_scores(options.gold, scores, gold)
    print_recalls(recalls)


def read_with_gold(
    reader: Iterable[tuple[Side, Side]], path: str, base: int | None
) -> tuple[list[tuple[Side, Side]], dict[int, Gold]]:
    """Returns all pairs, and the gold links that fit their words; prints what does not fit."""
    links = read_gold(path, base=base)
    pairs = list(reader)
    gold, left_out = fit_gold(links, count_words(pairs), path)
    for said in (describe_order(links, gold, path), describe_left_out(left_out, path)):
        if said:
            print(said, file=sys.stderr)
    if len(gold) < len(pairs):
        of = f"{len(gold):,} of the {len(pairs):,} sentences"
        print(f"{path} has links for {of}; only they are scored.", file=sys.stderr)
    return pairs, gold


def count_words(pairs: list[tuple[Side, Side]]) -> list[tuple[int, int]]:
    """The numbers of words of both sides of each pair, as the aligner splits them."""
    from modeling.word_tokens import split_words

    lengths = [len(words) for words in split_words(list(chain.from_iterable(pairs)))[0]]
    return list(zip(lengths[::2], lengths[1::2], strict=True))


def score_links(
    aligner: Any,
    pairs: list[tuple[Side, Side]],
    gold: dict[int, Gold],
    screen: Any,
    confidence: Confidence | None = None,
) -> tuple[dict[str, float], dict[str, tuple[int, int]]]:
    """Scores in percent of the aligner's links, and `recall_by_kind`.

    `confidence` takes the candidates, more than these links.
    """
    from finetuning.tasks.word_alignment.layers import recall_by_kind, score

    alignments = {}
    given, chosen = (pairs[number] for number in gold), with_threshold(aligner, LOWEST) if confidence else aligner
    with make_progress(screen, to_stdout=False) as progress, memory_errors():
        advance = partial(progress.advance, progress.add_task("aligning", total=len(gold)))
        found = chosen.align(given, probabilities=confidence is not None, progress=advance)
        for (number, of_sentence), candidates in zip(gold.items(), found, strict=True):
            alignments[number] = cut(candidates, aligner)
            if confidence:
                confidence.add(candidates, of_sentence)
    links = {number: alignment.links for number, alignment in alignments.items()}
    return score(links, gold), recall_by_kind(alignments, gold)


def print_scores(name: str, scores: dict[str, float], gold: dict[int, Gold]) -> None:
    """Prints scores in a line: `alignment.txt: AER 17.6, precision ...`."""
    from finetuning.tasks.word_alignment.layers import METRICS

    text = ", ".join(f"{metric} {scores[key]:.1f}" for key, metric in METRICS.items())
    print(f"{name}: {text} (%, {count_of(len(gold), 'sentence')})")


def print_recalls(recalls: dict[str, tuple[int, int]]) -> None:
    """Prints a table of `recall_by_kind`; nothing where there are no sure links."""
    from finetuning.page import print_table

    rows = [[kind, f"{count:,}", f"{100 * hits / count:.1f}"] for kind, (hits, count) in recalls.items()]
    if rows:
        print_table("Recall of sure links, %", (["sure links", "number", "recall"], rows), [])


def sweep_layers(aligner: Any, pairs: list[tuple[Side, Side]], gold: dict[int, Gold], screen: Any) -> None:
    """Prints the scores of every layer."""
    from finetuning.page import print_table
    from finetuning.tasks.word_alignment.layers import METRICS, sweep

    with screen.status(f"aligning {len(gold):,} sentences by {aligner.num_layers + 1} layers"), memory_errors():
        scores = sweep(aligner, pairs, gold)[aligner.method]
    rows = [[str(layer), *(f"{of_layer[name]:.1f}" for name in METRICS)] for layer, of_layer in scores.items()]
    print_table("Word alignment by layer, %", (["layer", *METRICS.values()], rows), [])
    aer, default = {layer: of_layer["aer"] for layer, of_layer in scores.items()}, aligner.layer
    best = min(aer, key=aer.get)
    print(f"Layer {best} has the lowest AER, {aer[best]:.1f}; the default, {default}, has {aer[default]:.1f}.")
