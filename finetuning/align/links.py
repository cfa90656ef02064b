"""Word links of sentence pairs: read, aligned, written, shown and scored."""

import argparse
import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from finetuning.align.formats import FORMATS
from finetuning.align.inputs import read_pairs, read_with_gold
from finetuning.align.loading import choose_layer, load_aligner, memory_errors
from finetuning.align.options import LINES_ON_PAGE
from finetuning.align.output import OutputFile, StandardOutput
from finetuning.align.pairs import Side, split_at_spaces
from finetuning.align.screen import Tally, count_of, make_progress, make_screen

LINES_A_STEP = 64  # of the progress bar


def align(flags: argparse.Namespace) -> None:
    """Writes the links of every pair; then the page and the scores, where they are asked for."""
    from finetuning.align.page import Page

    screen = make_screen(flags.quiet)
    reader = read_pairs(flags)
    form = FORMATS[flags.output_format](flags.probabilities), lambda: reader.languages
    output = OutputFile(flags.output, *form, flags.resume) if flags.output else StandardOutput(*form)
    page = Page(flags.html) if flags.html else None
    pairs, gold = read_with_gold(flags, reader) if flags.gold else (reader, {})
    with screen.status("reading the pairs"):
        total = len(pairs) if flags.gold else reader.check()
    with screen.status(f"loading {flags.model}"):
        aligner, settings = load_aligner(flags)
    if flags.layer is None:
        pairs = choose_layer(aligner, pairs, output.layer, flags, screen)
        settings["layer"] = aligner.layer
    if flags.output:
        from modeling.word_alignment import BATCHES_PER_CHUNK

        with screen.status("passing over the pairs that are aligned"):
            pairs = output.go_on(settings, pairs, BATCHES_PER_CHUNK * flags.batch_size)
    tally = Tally()
    found: dict[int, list[tuple[int, int]]] = {}
    try:
        with make_progress(screen, to_stdout=not flags.output) as progress:
            bar = progress.add_task("aligning", total=total, completed=output.lines)
            for pair, alignment in alignments(aligner, iter(pairs), flags):
                if output.lines in gold:
                    found[output.lines] = alignment.links
                if page is not None and len(page) < flags.html_limit:
                    page.add(alignment)
                output.write(pair, alignment)
                tally.add(alignment)
                if output.lines % LINES_A_STEP == 0:  # a step costs more than a line
                    progress.update(bar, completed=output.lines)
        output.close(complete=True)
    except BaseException as error:
        with contextlib.suppress(OSError):
            output.close(complete=False)
        if isinstance(error, BrokenPipeError):
            raise
        kept = f"{flags.output} can be gone on with: {how_to_go_on(flags)}." if flags.output and output.lines else ""
        if isinstance(error, KeyboardInterrupt):
            done = count_of(output.lines, "pair")
            screen.print(f"word-align: stopped after {done}. {kept}".rstrip())
            sys.exit(130)
        if kept:
            screen.print(kept)
        raise
    tally.report(screen, flags.output, output.lines, aligner.window)
    if page is not None:
        names = [os.path.basename(name) for name in reader.files] or ["standard input"]
        facts = {"model": flags.model, "method": flags.method, "layer": f"{aligner.layer} of {aligner.num_layers}"}
        page.write(" and ".join(names), facts | {"encoding": flags.encoding}, total=output.lines)
        screen.print(f"page: {flags.html}")
    if gold:
        from finetuning.tasks.word_alignment.layers import METRICS, score

        scores = score(found, gold)
        shown = ", ".join(f"{name} {scores[key]:.1f}" for key, name in METRICS.items())
        print(f"{flags.gold}: {shown} (%, {len(gold):,} sentences)", file=sys.stderr)


def how_to_go_on(flags: argparse.Namespace) -> str:
    """The command that goes on with the file, in words: scores and a page are of whole runs only."""
    options = {"--gold": flags.gold, "--gold-base": flags.gold_base is not None, "--html": flags.html}
    options["--html-limit"] = flags.html_limit != LINES_ON_PAGE
    dropped = [name for name, is_given in options.items() if is_given]
    if not dropped:
        return "the same command and --resume"
    # words of scored sentences are those between white space
    added = ["--pre-split"] if flags.gold else []
    return f"the same command without {' and '.join(dropped)}, and {' and '.join([*added, '--resume'])}"


def alignments(
    aligner: Any, pairs: Iterator[tuple[Side, Side]], flags: argparse.Namespace
) -> Iterator[tuple[tuple[Side, Side], Any]]:
    """Each pair, as it was read, and the aligner's result; those that are shown on the page have what it shows."""
    waiting: deque[tuple[Side, Side]] = deque()  # pairs that the aligner has taken, and given no links for yet

    def taken() -> Iterator[tuple[Side, Side]]:
        for pair in pairs:
            waiting.append(pair)
            yield split_at_spaces(pair) if flags.pre_split else pair

    given = taken()
    shown = islice(given, flags.html_limit) if flags.html else ()
    with memory_errors():
        for found in aligner.align(shown, probabilities=True, similarity=True):
            yield waiting.popleft(), found
        for found in aligner.align(given, probabilities=flags.probabilities):
            yield waiting.popleft(), found
