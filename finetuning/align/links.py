"""Word links of sentence pairs: read, aligned, written, shown and scored."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from finetuning.align.confidence import LOWEST, Confidence, cut, with_threshold
from finetuning.align.formats import to_line
from finetuning.align.inputs import read_pairs, read_with_gold
from finetuning.align.loading import choose_layer, load_aligner, memory_errors
from finetuning.align.options import LINES_ON_PAGE
from finetuning.align.output import OutputFile, StandardOutput
from finetuning.align.pairs import Side, split_at_spaces
from finetuning.align.screen import Tally, count_of, make_progress, make_screen
from finetuning.align.terminal import draw

LINES_A_STEP = 64  # of the progress bar


def align(flags: argparse.Namespace) -> None:
    """Writes the links of every pair; then the page and the scores, where they are asked for."""
    from finetuning.align.download import download
    from finetuning.align.page import Page, new_page, open_page

    screen = make_screen(flags.quiet)
    reader = read_pairs(flags)
    output = OutputFile(flags.output, flags.resume) if flags.output else StandardOutput()
    page = Page(flags.html or new_page()) if flags.html or flags.open else None
    pairs, gold = read_with_gold(flags, reader) if flags.gold else (reader, {})
    with screen.status("reading the pairs"):
        total = len(pairs) if flags.gold else reader.check()
    download(flags.model, flags.quiet)
    with screen.status(f"loading {flags.model}"):
        aligner, settings = load_aligner(flags)
    if flags.layer is None:
        pairs = choose_layer(aligner, pairs, output.layer, flags, screen)
        settings["layer"] = aligner.layer
    if flags.output:
        from modeling.word_alignment import BATCHES_PER_CHUNK

        with screen.status("passing over the pairs that are aligned"):
            pairs = output.go_on(settings, pairs, BATCHES_PER_CHUNK * flags.batch_size)
    is_calibrated = flags.method == "ot_words"
    threshold = aligner.matching.get("threshold", 0.5) if is_calibrated else None
    confidence = Confidence(is_calibrated) if flags.plot else None
    tally = Tally()
    found: dict[int, list[tuple[int, int]]] = {}
    try:
        with make_progress(screen, to_stdout=not flags.output) as progress:
            bar = progress.add_task("aligning", total=total, completed=output.lines)
            for candidates in alignments(aligner, iter(pairs), flags):
                alignment = cut(candidates, threshold)
                if output.lines in gold:
                    found[output.lines] = alignment.links
                    if confidence is not None:
                        confidence.add(candidates, gold[output.lines])
                if page is not None and len(page) < flags.html_limit:
                    page.add(candidates)
                if flags.is_drawn:
                    output.write(draw(alignment, is_calibrated, as_list=flags.probabilities))
                else:
                    output.write(to_line(alignment, flags.output_format, flags.probabilities))
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
    if not flags.sentences:
        tally.report(screen, flags.output, output.lines, aligner.window)
    name = " and ".join(map(os.path.basename, reader.files)) or reader.name
    if page is not None:
        facts = {"model": flags.model, "method": flags.method, "layer": f"{aligner.layer} of {aligner.num_layers}"}
        page.write(name, facts | {"encoding": flags.encoding}, output.lines, threshold)
        opened = " (opened in the browser)" if flags.open and open_page(page.path) else ""
        screen.print(f"page: {page.path}{opened}")
    if gold:
        from finetuning.tasks.word_alignment.layers import METRICS, score

        scores = score(found, gold)
        shown = ", ".join(f"{name} {scores[key]:.1f}" for key, name in METRICS.items())
        print(f"{flags.gold}: {shown} (%, {len(gold):,} sentences)", file=sys.stderr)
    if confidence is not None:
        confidence.plot(flags.plot, f"{name}: {flags.method}, layer {aligner.layer}", threshold)
        screen.print(f"plot: {flags.plot}")


def how_to_go_on(flags: argparse.Namespace) -> str:
    """The command that goes on with the file, in words: scores and a page are of whole runs only."""
    options = {"--gold": flags.gold, "--gold-base": flags.gold_base is not None, "--plot": flags.plot}
    options |= {"--html": flags.html, "--open": flags.open}
    options["--html-limit"] = flags.html_limit != LINES_ON_PAGE
    dropped = [name for name, is_given in options.items() if is_given]
    if not dropped:
        return "the same command and --resume"
    # words of scored sentences are those between white space
    added = ["--pre-split"] if flags.gold else []
    return f"the same command without {' and '.join(dropped)}, and {' and '.join([*added, '--resume'])}"


def alignments(aligner: Any, pairs: Iterator[tuple[Side, Side]], flags: argparse.Namespace) -> Iterator[Any]:
    """The aligner's results; with a page and a plot, those whose probability is too low are among its links."""
    if flags.pre_split:
        pairs = map(split_at_spaces, pairs)
    shown = islice(pairs, flags.html_limit) if flags.html or flags.open else ()
    with_candidates = with_threshold(aligner, LOWEST)
    with memory_errors():
        yield from with_candidates.align(shown, probabilities=True, similarity=True)
        if flags.plot:
            yield from with_candidates.align(pairs, probabilities=True)
        yield from aligner.align(pairs, probabilities=flags.probabilities or flags.is_drawn)
