"""Word links of sentence pairs: read, aligned, written, shown and scored."""

import argparse
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from finetuning.align.confidence import LOWEST, Confidence, cut, with_threshold
from finetuning.align.formats import FORMATS
from finetuning.align.inputs import GivenPair, read_pairs, read_with_gold, report_unspaced
from finetuning.align.loading import choose_layer, load_aligner, memory_errors, report_precision
from finetuning.align.output import OutputFile, StandardOutput
from finetuning.align.pairs import PairReader, Side
from finetuning.align.screen import Tally, count_of, make_progress, make_screen
from finetuning.align.terminal import Drawing

LINES_ON_PAGE = 100


def align(flags: argparse.Namespace) -> None:
    """Writes the links of every pair; then the page and the scores, where they are asked for."""
    from finetuning.align.download import download
    from finetuning.align.page import Page, new_page, open_page

    screen = make_screen(flags.quiet)
    reader = read_pairs(flags)
    is_calibrated = flags.method == "ot_words"
    if flags.is_drawn:
        form = Drawing(flags.probabilities, flags.precision, is_calibrated)
    else:
        form = FORMATS[flags.output_format](flags.probabilities, flags.precision, lambda: reader.languages)
    output = OutputFile(flags.output, form, flags.resume) if flags.output else StandardOutput(form)
    page = Page(flags.html or new_page()) if flags.html or flags.open else None
    pairs, gold = read_with_gold(flags, reader) if flags.gold else (reader, {})
    with screen.status("reading the pairs"):
        total = len(pairs) if flags.gold else reader.check()
    report_unspaced(flags, reader, total or 0, screen)
    download(flags.model, flags.quiet)
    with screen.status(f"loading {flags.model}"):
        aligner, settings = load_aligner(flags)
    report_precision(flags, screen)
    settings["split"] = reader.splits_text
    if flags.layer is None:
        pairs = choose_layer(aligner, pairs, output.layer, flags, screen)
        settings["layer"] = aligner.layer
    if flags.output:
        from modeling.word_alignment import BATCHES_PER_CHUNK

        with screen.status("passing over the pairs that are aligned"):
            pairs = output.go_on(settings, pairs, BATCHES_PER_CHUNK * aligner.batch_size)
    threshold = aligner.matching.get("threshold", 0.5) if is_calibrated else None
    confidence = Confidence(is_calibrated) if flags.plot else None
    tally = Tally()
    found: dict[int, list[tuple[int, int]]] = {}
    try:
        with make_progress(screen, to_stdout=not flags.output) as progress:
            bar = progress.add_task("aligning", total=total, completed=output.lines)
            advance = partial(progress.advance, bar)
            for pair, candidates in alignments(aligner, iter(pairs), flags, advance):
                alignment = cut(candidates, threshold)
                if output.lines in gold:
                    found[output.lines] = alignment.links
                    if confidence is not None:
                        confidence.add(candidates, gold[output.lines])
                if page is not None and len(page) < LINES_ON_PAGE:
                    page.add(candidates)
                output.write(pair, alignment)
                tally.add(alignment)
        output.close(complete=True)
    except BaseException as error:
        with contextlib.suppress(OSError):
            output.close(complete=False)
        if isinstance(error, BrokenPipeError):
            raise
        how = how_to_go_on(flags, reader)
        kept = f"{flags.output} can be resumed: {how}." if flags.output and output.lines else ""
        if isinstance(error, KeyboardInterrupt):
            done = count_of(output.lines, "pair")
            screen.print(f"word-align: stopped after {done}. {kept}".rstrip())
            sys.exit(130)
        if kept:
            screen.print(kept)
        raise
    if flags.sentences and flags.output:
        screen.print("two sentences: there are no files of these names")
    if not flags.sentences:
        tally.report(screen, flags.output, output.lines, aligner.window)
        if total is None:  # a pipe could not be read beforehand
            report_unspaced(flags, reader, output.lines, screen)
    if reader.format == "tmx" and not flags.languages:
        screen.print(f"languages: {' and '.join(reader.languages)} (--languages)")
    name = " and ".join(map(os.path.basename, reader.files)) or reader.name
    if page is not None:
        facts = {"model": flags.model, "method": flags.method, "layer": f"{aligner.layer} of {aligner.num_layers}"}
        page.write(name, facts | {"encoding": flags.encoding, "precision": flags.precision}, output.lines, threshold)
        opened = " (opened in the browser)" if flags.open and open_page(page.path) else ""
        screen.print(f"page: {page.path}{opened}")
        if flags.quiet and not opened and not flags.html:  # nobody would find it
            print(f"page: {page.path}", file=sys.stderr)
    if gold:
        from finetuning.tasks.word_alignment.layers import METRICS, score

        scores = score(found, gold)
        shown = ", ".join(f"{name} {scores[key]:.1f}" for key, name in METRICS.items())
        print(f"{flags.gold}: {shown} (%, {count_of(len(gold), 'sentence')})", file=sys.stderr)
    if confidence is not None:
        confidence.plot(flags.plot, f"{name}: {flags.method}, layer {aligner.layer}", threshold)
        screen.print(f"plot: {flags.plot}")


def how_to_go_on(flags: argparse.Namespace, reader: PairReader | GivenPair) -> str:
    """The command that goes on with the file, in words: scores and a page are of whole runs only."""
    options = {"--gold": flags.gold, "--gold-base": flags.gold_base is not None, "--plot": flags.plot}
    options |= {"--html": flags.html, "--open": flags.open}
    dropped = [name for name, is_given in options.items() if is_given]
    if not dropped:
        return "the same command and --resume"
    # without --gold, text is split
    added = ["--pre-split"] if flags.gold and reader.format != "text" and not reader.splits_text else []
    return f"the same command without {' and '.join(dropped)}, and {' and '.join([*added, '--resume'])}"


def alignments(
    aligner: Any, pairs: Iterator[tuple[Side, Side]], flags: argparse.Namespace, advance: Callable[[float], None]
) -> Iterator[tuple[tuple[Side, Side], Any]]:
    """Each pair, as it was read, and the aligner's result; with a page and a plot, unlikely links are among these."""
    waiting: deque[tuple[Side, Side]] = deque()  # pairs that the aligner has taken, and given no links for yet

    def taken() -> Iterator[tuple[Side, Side]]:
        for pair in pairs:
            waiting.append(pair)
            yield pair

    given = taken()
    shown = islice(given, LINES_ON_PAGE) if flags.html or flags.open else ()
    with_candidates = with_threshold(aligner, LOWEST)
    others, probabilities = (with_candidates, True) if flags.plot else (aligner, flags.probabilities or flags.is_drawn)
    with memory_errors():
        for found in with_candidates.align(shown, probabilities=True, similarity=True, progress=advance):
            yield waiting.popleft(), found
        for found in others.align(given, probabilities=probabilities, progress=advance):
            yield waiting.popleft(), found
