"""The word aligner's command line, `word-align`: sentence pairs in, word links out."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from finetuning.align.files import Gold, describe_left_out, describe_order, fit_gold, pharaoh_line, read_gold
from finetuning.align.options import LINES_ON_PAGE, check_flags, make_parser
from finetuning.align.output import OutputFile, StandardOutput
from finetuning.align.pairs import PairReader, Side, split_at_spaces
from zoo_core.recipes import user_errors

LINES_A_STEP = 64  # of the progress bar
PAIRS_FOR_LAYER, LEAST_PAIRS_FOR_LAYER = 200, 20


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exit code 2 where the user has to act, 130 for Ctrl-C."""
    flags = make_parser().parse_args(argv)
    with user_errors():
        check_flags(flags)
        flags.html_limit = flags.html_limit or LINES_ON_PAGE
        flags.output_format = flags.output_format or "pharaoh"
        try:
            sweep_layers(flags) if flags.sweep_layers else align(flags)
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
            sys.exit(128 + signal.SIGPIPE)


def read_pairs(flags: argparse.Namespace) -> PairReader:
    """The input. Raises ValueError for what `PairReader` refuses, and for keys that nothing is looked up by."""
    reader = PairReader(flags.files, flags.format, **({"keys": tuple(flags.keys)} if flags.keys else {}))
    if flags.keys and reader.format == "text":
        raise ValueError(f"--keys is given with text input ({reader.name}): only JSONL has keys.")
    return reader


def align(flags: argparse.Namespace) -> None:
    """Writes the links of every pair; then the page and the scores, where they are asked for."""
    from rich.console import Console

    from finetuning.align.page import Page

    screen = Console(stderr=True, highlight=False, markup=False, soft_wrap=True, quiet=flags.quiet)
    reader = read_pairs(flags)
    output = OutputFile(flags.output, flags.resume) if flags.output else StandardOutput()
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
            for alignment in alignments(aligner, iter(pairs), flags):
                if output.lines in gold:
                    found[output.lines] = alignment.links
                if page is not None and len(page) < flags.html_limit:
                    page.add(alignment)
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
            done = _count(output.lines, "pair")
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


def sweep_layers(flags: argparse.Namespace) -> None:
    """Prints the scores of every layer, and draws them where that is asked for."""
    from rich.console import Console

    screen = Console(stderr=True, highlight=False, quiet=flags.quiet)
    reader = read_pairs(flags)
    pairs, gold = read_with_gold(flags, reader)
    with screen.status(f"loading {flags.model}"):
        aligner, _ = load_aligner(flags)
    choose_layer(aligner, pairs, None, flags, screen)

    from finetuning.results.files import print_table
    from finetuning.results.plots import plot_lines
    from finetuning.results.report import best_layer, layer_tables
    from finetuning.tasks.word_alignment.layers import as_results, sweep

    with screen.status(f"aligning {len(gold):,} sentences by {aligner.num_layers + 1} layers"), memory_errors():
        scores = sweep(aligner, pairs, gold)
    results = as_results(scores, flags.gold, aligner.method, aligner.layer)
    for table in layer_tables(results).values():
        print_table("Word alignment by layer, %", table, [])
    aer = {layer: of_layer["aer"] for layer, of_layer in scores[aligner.method].items()}
    best, default = best_layer(results, flags.gold), aligner.layer
    print(f"Layer {best} has the lowest AER, {aer[best]:.1f}; the default, {default}, has {aer[default]:.1f}.")
    if flags.plot:
        title = f"{aligner.method}, {aligner.encoding}"
        mark = aligner.layer, f"default: {aligner.layer}"
        plot_lines({"": {aligner.method: aer}}, flags.plot, title, "layer", "AER (%), lower is better", mark=mark)
        print(f"written: {flags.plot}")


def choose_layer(
    aligner: Any, pairs: Iterable[tuple[Side, Side]], earlier: int | None, flags: argparse.Namespace, screen: Any
) -> Iterator[tuple[Side, Side]]:
    """Sets the aligner's layer by the first pairs, or to that of an earlier run, and says so. Returns all pairs."""
    pairs = iter(pairs)
    of = f"of {aligner.num_layers}"
    if earlier is not None and earlier <= aligner.num_layers:
        aligner.layer = earlier
        return pairs
    first = list(islice(pairs, PAIRS_FOR_LAYER))
    usable = [pair for pair in first if all(map(any, split_at_spaces(pair)))]
    usable = list(map(split_at_spaces, usable)) if flags.pre_split else usable
    if len(usable) < LEAST_PAIRS_FOR_LAYER:
        few = f"{_count(len(usable), 'pair')} cannot tell the best"
        screen.print(f"layer {aligner.layer} {of}, at two thirds: {few} (--layer auto)")
    else:
        with screen.status("comparing layers"), memory_errors():
            values = aligner.compare_layers(usable)
        aligner.layer = max(values, key=values.get)
        why = f"it best tells {len(usable):,} pairs from sentences that do not belong together"
        screen.print(f"layer {aligner.layer} {of}: {why} (--layer auto)")
    return chain(first, pairs)


def alignments(aligner: Any, pairs: Iterator[tuple[Side, Side]], flags: argparse.Namespace) -> Iterator[Any]:
    """The aligner's results; the pairs that are shown on the page have what it shows."""
    if flags.pre_split:
        pairs = map(split_at_spaces, pairs)
    shown = islice(pairs, flags.html_limit) if flags.html else ()
    with memory_errors():
        yield from aligner.align(shown, probabilities=True, similarity=True)
        yield from aligner.align(pairs, probabilities=flags.probabilities)


def to_line(alignment: Any, format: str, probabilities: bool) -> str:
    """Links of a pair in Pharaoh's format, or the pair and its links as JSON."""
    if format == "pharaoh":
        return pharaoh_line(alignment.links, alignment.probabilities if probabilities else None)
    fields = {"source": alignment.source, "target": alignment.target, "links": alignment.links}
    if probabilities:
        fields["probabilities"] = [round(probability, 6) for probability in alignment.probabilities]
    return json.dumps(fields, ensure_ascii=False)


def read_with_gold(
    flags: argparse.Namespace, reader: PairReader
) -> tuple[list[tuple[list[str], list[str]]], dict[int, Gold]]:
    """All pairs, as words between white space, and the gold links that fit them; what does not fit is said.

    Gold links count words: a Chinese sentence that is one word in them is not to become characters.
    """
    links = read_gold(flags.gold, base=flags.gold_base)
    pairs = [split_at_spaces(pair) for pair in reader]
    gold, left_out = fit_gold(links, [(len(source), len(target)) for source, target in pairs], flags.gold)
    for said in (describe_order(links, gold, flags.gold), describe_left_out(left_out, flags.gold)):
        if said:
            print(said, file=sys.stderr)
    if len(gold) < len(pairs):
        of = f"{len(gold):,} of the {len(pairs):,} sentences"
        print(f"{flags.gold} has links for {of}; only they are scored.", file=sys.stderr)
    return pairs, gold


def load_aligner(flags: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The aligner, and what decides about its links and how they are written, for the file of state."""
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    from finetuning.checkpoints import describe_model, load_pretrained
    from modeling.word_alignment import WordAligner

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    device = _device(flags.device)
    path, _, tokenizer, identity = describe_model(flags.model, flags.tokenizer)
    model = load_pretrained(
        AutoModel, path, flags.model, dtype=torch.bfloat16 if flags.precision == "bf16" else torch.float32
    )
    matching = dict(flags.matching)
    names = ("method", "layer", "encoding", "window", "overlap")
    given = {name: getattr(flags, name) for name in (*names, "batch_size")}
    aligner = WordAligner(model.to(device), tokenizer, **given, **matching)
    settings = {
        "model": identity["fingerprint"],
        "tokenizer": flags.tokenizer,
        **{name: getattr(aligner, name) for name in names},
        "matching": matching,
        "pre_split": flags.pre_split or bool(flags.gold),
        **{name: getattr(flags, name) for name in ("precision", "output_format", "probabilities")},
    }
    return aligner, settings


def _device(name: str | None) -> Any:
    import torch

    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"--device {name} cannot be used: {reason}.") from None


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """A batch that the device has no room for, as an error of the user's."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"The device ran out of memory: {reason} Lower --batch-size, or --window.") from None


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def make_progress(screen: Any, to_stdout: bool) -> Any:
    """A bar on stderr: pairs done, pairs a second and what is left."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    return Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        redirect_stdout=False,  # links go there
        disable=screen.quiet or not screen.is_terminal or (to_stdout and sys.stdout.isatty()),  # links scroll by
    )


class Tally:
    """What a run has done, for its last words on stderr."""

    def __init__(self) -> None:
        self.pairs = self.links = self.without_words = self.split = self.windows = 0
        self.started = time.monotonic()

    def add(self, alignment: Any) -> None:
        self.pairs += 1
        self.links += len(alignment.links)
        self.without_words += not alignment.windows
        if alignment.windows > 1:
            self.split += 1
            self.windows += alignment.windows

    def report(self, screen: Any, path: str | None, lines: int, window: int) -> None:
        """Prints the counts; `lines` of the output, of which this run may have made a part."""
        if not self.pairs:
            screen.print(f"{path} is complete: {lines:,} lines. There was nothing left to do.")
            return
        seconds = time.monotonic() - self.started
        before = f", after {lines - self.pairs:,} of earlier runs" if lines > self.pairs else ""
        rate = f"{self.pairs / max(seconds, 1e-9):,.0f} pairs/s"
        done = f"{_count(self.pairs, 'pair')}, {_count(self.links, 'link')}"
        screen.print(f"{done} in {seconds:,.1f} s ({rate}){before}")
        if self.without_words:
            screen.print(f"{self.without_words:,} of them have a side without words: their lines are empty.")
        if self.split:
            longer = f"{self.split:,} of them are longer than {window:,} positions"
            screen.print(f"{longer}: they were split into {self.windows:,} windows that overlap.")


if __name__ == "__main__":
    main()
