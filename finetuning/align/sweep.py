"""`word-align --sweep-layers`: the scores of every layer."""

import argparse

from finetuning.align.inputs import read_pairs, read_with_gold, report_unspaced
from finetuning.align.loading import choose_layer, load_aligner, memory_errors, report_precision
from finetuning.align.screen import make_screen


def sweep_layers(flags: argparse.Namespace) -> None:
    """Prints the scores of every layer, and draws them where that is asked for."""
    from finetuning.align.download import download

    screen = make_screen(flags.quiet)
    reader = read_pairs(flags)
    pairs, gold = read_with_gold(flags, reader)
    report_unspaced(flags, reader, len(pairs), screen)
    download(flags.model, flags.quiet)
    with screen.status(f"loading {flags.model}"):
        aligner, _ = load_aligner(flags)
    report_precision(flags, screen)
    if flags.layer is None:
        choose_layer(aligner, pairs, None, flags, screen)

    from finetuning.results.files import print_table
    from finetuning.results.plots import plot_lines
    from finetuning.results.report import best_layer
    from finetuning.tasks.word_alignment.layers import as_results, sweep
    from finetuning.tasks.word_alignment.task import AlignmentReport

    with screen.status(f"aligning {len(gold):,} sentences by {aligner.num_layers + 1} layers"), memory_errors():
        scores = sweep(aligner, pairs, gold)
    results = as_results(scores, flags.gold, aligner.method, aligner.layer)
    for table in AlignmentReport(results).layer_tables().values():
        print_table("Word alignment by layer, %", table, [])
    aer = {layer: of_layer["aer"] for layer, of_layer in scores[aligner.method].items()}
    best, default = best_layer(results, flags.gold), aligner.layer
    print(f"Layer {best} has the lowest AER, {aer[best]:.1f}; the default, {default}, has {aer[default]:.1f}.")
    if flags.plot:
        title = f"{aligner.method}, {aligner.encoding}"
        mark = aligner.layer, f"default: {aligner.layer}"
        plot_lines({"": {aligner.method: aer}}, flags.plot, title, "layer", "AER (%), lower is better", mark=mark)
        print(f"written: {flags.plot}")
