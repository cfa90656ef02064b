"""The word aligner's command line, `word-align`: sentence pairs in, word links out."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from common.recipes import user_errors
from finetuning.alignment_files import Gold, describe_left_out, fit_gold, pharaoh_line, read_gold
from finetuning.alignment_output import STATE_ENDING, OutputFile, StandardOutput, require_writable
from finetuning.alignment_pairs import STDIN, PairReader, Side, split_at_spaces

DESCRIPTION = """Link the words of sentences to the words of their translations.

  word-align --model runs/xlm_align/model < pairs.txt > links.txt      source ||| target, a pair a line
  word-align --model runs/xlm_align/model corpus.de corpus.en > links.txt          two files, line by line
  word-align --model FacebookAI/xlm-roberta-base pairs.jsonl --output-format json --probabilities
                                                         {"source": "...", "target": ["a", "list", "of", "words"]}

Out comes a line for each pair, `0-0 1-2 2-1` (Pharaoh's format): word 0 of the source with word 0 of the target, and
so on. A pair with an empty side gives an empty line. Words are what stands between white space. Chinese and Japanese
without any are cut into characters: segment such text first where words are wanted. Lines come out in blocks: through
a pipe nothing is seen before 64 x --batch-size pairs are read, or the input has ended.

A large file, in constant memory; after a crash or Ctrl-C the same command with --resume goes on where it stopped:

  word-align --model runs/xlm_align/model corpus.de corpus.en --output links.txt --device cuda --precision bf16
  word-align --model runs/xlm_align/model corpus.de corpus.en --output links.txt --device cuda --precision bf16 --resume

See the links, or measure them against links made by hand:

  word-align --model runs/xlm_align/model pairs.txt --html page.html > links.txt
  word-align --model runs/xlm_align/model test.de test.en --gold alignment.txt > links.txt
  word-align --model runs/xlm_align/model test.de test.en --gold alignment.txt --sweep-layers --plot layers.png

Methods, and their options for --matching NAME=VALUE (the defaults are the papers'):

  ot           optimal transport, then mutual argmax (XLM-Align's published aligner): sinkhorn_iterations=2
               regularization=1.0 epsilon=1e-6 first=rows
  ot_itermax   optimal transport, then repeated mutual argmax (XLM-Align's self-labelling), which goes on linking words
               that have their partner: more links, fewer of them right. Those of ot, filter_iterations=2 discount=0.9
               rule=paper
  itermax      repeated mutual argmax of cosines (SimAlign's Itermax): filter_iterations=2
  mutual       mutual argmax of cosines (SimAlign's Argmax): the fewest links, the most precise
  softmax      both softmax directions above a threshold (awesome-align): threshold=0.001"""

METHODS = ("ot", "ot_itermax", "itermax", "mutual", "softmax")  # optimal_transport's; importing it takes seconds
LINES_ON_PAGE = 100
LINES_A_STEP = 64  # of the progress bar
PLOT_ENDINGS = (".png", ".pdf", ".svg")


def make_parser() -> argparse.ArgumentParser:
    """All options, by what they are about."""
    parser = argparse.ArgumentParser(
        prog="word-align",
        description=DESCRIPTION,
        usage="word-align --model DIR|ID [FILE | SOURCE TARGET] [options]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="one file of pairs, or a source and a target file; default: stdin"
    )
    group = parser.add_argument_group("input")
    group.add_argument(
        "--format",
        choices=("auto", "text", "jsonl"),
        default="auto",
        help="of the pairs; auto: jsonl for one file that ends in .jsonl or .json, text for all else",
    )
    group.add_argument(
        "--keys",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="names of the two sentences in JSONL (default: source target); values are strings or lists of words",
    )
    group.add_argument(
        "--pre-split",
        action="store_true",
        help="words are what stands between white space, in Chinese and Japanese too",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--output", metavar="FILE", help="write the links there, not to stdout; must not exist")
    group.add_argument("--resume", action="store_true", help="go on with an --output FILE that was not finished")
    group.add_argument("--output-format", choices=("pharaoh", "json"), help="default: pharaoh")
    group.add_argument(
        "--probabilities", action="store_true", help="with each link: 0-0:0.9731, or `probabilities` in JSON"
    )
    group.add_argument("--html", metavar="PAGE", help="write a page to look at the links and the similarity of words")
    group.add_argument("--html-limit", type=_positive, metavar="N", help="first pairs on it (default: 100)")
    group.add_argument("--quiet", action="store_true", help="no progress bar and no counts; errors and scores only")
    group = parser.add_argument_group("model")
    group.add_argument("--model", required=True, metavar="DIR|ID", help="encoder: a folder, or an id of the Hub")
    group.add_argument("--tokenizer", metavar="DIR|ID", help="default: the model's")
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cuda if there is one)")
    group.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of the encoder (default: fp32)")
    group.add_argument(
        "--batch-size", type=_positive, default=64, metavar="N", help="inputs to a forward pass (default: 64)"
    )
    group = parser.add_argument_group("alignment")
    group.add_argument("--method", choices=METHODS, default="ot", help="default: ot")
    group.add_argument(
        "--layer",
        type=int,
        metavar="N",
        help="whose states to compare, 0: embeddings (default: two thirds of the way up)",
    )
    group.add_argument(
        "--encoding",
        choices=("joint", "separate"),
        default="separate",
        help="both sentences in one input, or each in its own (default: separate)",
    )
    group.add_argument(
        "--window",
        type=_positive,
        metavar="N",
        help="longer inputs are split into windows of N pieces (default: all positions)",
    )
    group.add_argument(
        "--overlap", type=int, metavar="N", help="pieces that neighbouring windows share (default: half a window)"
    )
    group.add_argument(
        "--matching",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="option of the method, see above",
    )
    group = parser.add_argument_group("evaluation (the input is held in memory)")
    group.add_argument(
        "--gold", metavar="FILE", help="links made by hand, `sentence i j S|P` or `i-j ipj`: scores at the end"
    )
    group.add_argument(
        "--gold-base",
        type=int,
        choices=(0, 1),
        help="what --gold counts from: its words, or the sentences of `sentence i j`",
    )
    group.add_argument("--sweep-layers", action="store_true", help="scores of every layer, in place of links")
    group.add_argument("--plot", metavar="FILE", help="draw AER by layer (png, pdf, svg)")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    with contextlib.suppress(ValueError):
        return name, float(value) if not value.lstrip("+-").isdecimal() else int(value)
    return name, value


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


def check_flags(flags: argparse.Namespace) -> None:
    """Raises ValueError for options that contradict each other or would do nothing, and for a bad place of the plot."""
    rules = [
        (flags.resume and not flags.output, "--resume", "without --output", "only a file can be gone on with"),
        (flags.resume and flags.html, "--resume", "with --html", "the page shows the pairs of one run"),
        (flags.resume and flags.gold, "--resume", "with --gold", "scores are of all sentences together"),
        (flags.sweep_layers and not flags.gold, "--sweep-layers", "without --gold", "layers are told apart by scores"),
        (
            flags.sweep_layers and flags.output,
            "--sweep-layers",
            "with --output",
            "it scores layers and writes no links",
        ),
        (flags.sweep_layers and flags.html, "--sweep-layers", "with --html", "it scores layers and writes no links"),
        (
            flags.sweep_layers and flags.output_format,
            "--sweep-layers",
            "with --output-format",
            "it scores layers and writes no links",
        ),
        (
            flags.sweep_layers and flags.probabilities,
            "--sweep-layers",
            "with --probabilities",
            "it scores layers and writes no links",
        ),
        (flags.sweep_layers and flags.layer is not None, "--sweep-layers", "with --layer", "it takes every layer"),
        (flags.plot and not flags.sweep_layers, "--plot", "without --sweep-layers", "it draws scores by layer"),
        (flags.html_limit and not flags.html, "--html-limit", "without --html", "it counts the pairs on the page"),
        (
            flags.pre_split and flags.gold,
            "--pre-split",
            "with --gold",
            "gold links count words between white space anyway",
        ),
        (flags.gold_base is not None and not flags.gold, "--gold-base", "without --gold", "it says how to read it"),
    ]
    for is_broken, name, how, reason in rules:
        if is_broken:
            change = f"Add {how.split()[1]}" if how.startswith("without") else f"Leave out {name} or {how.split()[1]}"
            raise ValueError(f"{name} is given {how}: {reason}. {change}.")
    require_different_files(flags)
    if flags.plot:
        require_writable(flags.plot, "--plot")
        if Path(flags.plot).suffix.lower() not in PLOT_ENDINGS:
            raise ValueError(
                f"--plot is {flags.plot}. The ending says what is drawn, and {', '.join(PLOT_ENDINGS)} are known. Name "
                "a file with one of them."
            )


def require_different_files(flags: argparse.Namespace) -> None:
    """Raises ValueError where a file to write is also another one to write, or one to read."""
    written = [("--output", flags.output), ("--html", flags.html), ("--plot", flags.plot)]
    if flags.output:
        written.append(("what --resume needs of --output", f"{flags.output}{STATE_ENDING}"))
    read = [("--gold", flags.gold), *(("the input", name) for name in flags.files if name != STDIN)]
    names: dict[Path, str] = {}
    for number, (name, path) in enumerate(written + read):
        if path is None:
            continue
        place = Path(path).resolve()
        if place in names:
            raise ValueError(
                f"{path} is {names[place]} and {name}. One would destroy the other. Name another file for one of them."
            )
        if number < len(written):
            names[place] = name


def read_pairs(flags: argparse.Namespace) -> PairReader:
    """The input. Raises ValueError for what `PairReader` refuses, and for keys that nothing is looked up by."""
    reader = PairReader(flags.files, flags.format, **({"keys": tuple(flags.keys)} if flags.keys else {}))
    if flags.keys and reader.format == "text":
        raise ValueError(
            f"--keys is given with text input ({reader.name}): only JSONL has keys. Add --format jsonl if it is JSONL, "
            "or leave out --keys."
        )
    return reader


def align(flags: argparse.Namespace) -> None:
    """Writes the links of every pair; then the page and the scores, where they are asked for."""
    from rich.console import Console

    from finetuning.alignment_page import Page

    screen = Console(stderr=True, highlight=False, quiet=flags.quiet)
    reader = read_pairs(flags)
    output = OutputFile(flags.output, flags.resume) if flags.output else StandardOutput()
    page = Page(flags.html) if flags.html else None
    pairs, gold = read_with_gold(flags, reader) if flags.gold else (reader, {})
    with screen.status("reading the pairs"):
        total = len(pairs) if flags.gold else reader.check()
    with screen.status(f"loading {flags.model}"):
        aligner, settings = load_aligner(flags)
    pairs = iter(pairs)
    if flags.output:
        from modeling.word_alignment import BATCHES_PER_CHUNK

        output.go_on(settings, reader, BATCHES_PER_CHUNK * flags.batch_size)
        with screen.status("passing over the pairs that are aligned"):
            output.skip(pairs)
    tally = Tally()
    found: dict[int, list[tuple[int, int]]] = {}
    try:
        with make_progress(screen, to_stdout=not flags.output) as progress:
            bar = progress.add_task("aligning", total=total, completed=output.lines)
            for alignment in alignments(aligner, pairs, flags):
                if output.lines in gold:
                    found[output.lines] = alignment.links
                if page is not None and len(page) < flags.html_limit:
                    page.add(alignment)
                output.write(to_line(alignment, flags.output_format, flags.probabilities))
                tally.add(alignment)
                if output.lines % LINES_A_STEP == 0:  # an update costs more than a line
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
            screen.print(f"word-align: stopped after {done}. {kept}".rstrip(), markup=False, soft_wrap=True)
            sys.exit(130)
        if kept:
            screen.print(kept, markup=False, soft_wrap=True)
        raise
    tally.report(screen, flags.output, output.lines, aligner.window)
    if page is not None:
        names = [os.path.basename(name) for name in reader.files] or ["standard input"]
        facts = {"model": flags.model, "method": flags.method, "layer": f"{aligner.layer} of {aligner.num_layers}"}
        page.write(" and ".join(names), facts | {"encoding": flags.encoding}, total=output.lines)
        screen.print(f"page: {flags.html}", markup=False, soft_wrap=True)
    if gold:
        from finetuning.alignment_sweep import SCORES, score

        scores = score(found, gold)
        shown = ", ".join(f"{name} {scores[key]:.1f}" for key, name in SCORES.items())
        print(f"{flags.gold}: {shown} (%, {len(gold):,} sentences)", file=sys.stderr)


def how_to_go_on(flags: argparse.Namespace) -> str:
    """The command that goes on with the file, in words: scores and a page are of whole runs only."""
    options = {
        "--gold": flags.gold,
        "--gold-base": flags.gold_base is not None,
        "--html": flags.html,
        "--html-limit": flags.html_limit != LINES_ON_PAGE,
    }
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

    from finetuning.alignment_sweep import best_layer, plot_layers, sweep, sweep_table
    from finetuning.result_files import print_table

    with screen.status(f"aligning {len(gold):,} sentences by {aligner.num_layers + 1} layers"), memory_errors():
        scores = sweep(aligner, pairs, gold)
    aer = {layer: of_layer["aer"] for layer, of_layer in scores[aligner.method].items()}
    print_table("Word alignment by layer, %", sweep_table(scores, aligner.layer), [], "")
    best = best_layer(aer)
    print(
        f"Layer {best} has the lowest AER, {aer[best]:.1f}; the default, {aligner.layer}, has {aer[aligner.layer]:.1f}."
    )
    if flags.plot:
        plot_layers(
            {"": {aligner.method: aer}}, flags.plot, f"{aligner.method}, {aligner.encoding}", mark=aligner.layer
        )
        print(f"written: {flags.plot}")


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
    gold = read_gold(flags.gold, base=flags.gold_base)
    pairs = [split_at_spaces(pair) for pair in reader]
    gold, left_out = fit_gold(gold, [(len(source), len(target)) for source, target in pairs], flags.gold)
    if left_out:
        print(describe_left_out(left_out, flags.gold), file=sys.stderr)
    if len(gold) < len(pairs):
        print(
            f"{flags.gold} has links for {len(gold):,} of the {len(pairs):,} sentences; only they are scored.",
            file=sys.stderr,
        )
    return pairs, gold


def load_aligner(flags: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The aligner, and what decides about its links and how they are written, for the file of state.

    Raises ValueError for a model or device that there is not, and for settings that the aligner refuses.
    """
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
    aligner = WordAligner(
        model.to(device),
        tokenizer,
        method=flags.method,
        layer=flags.layer,
        encoding=flags.encoding,
        batch_size=flags.batch_size,
        window=flags.window,
        overlap=flags.overlap,
        **matching,
    )
    names = ("method", "layer", "encoding", "window", "overlap")
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
        raise ValueError(
            f"--device {name} cannot be used: {reason}. The model has to be put somewhere. Give cpu, or leave it out."
        ) from None


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """A batch that the device has no room for, as an error of the user's."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"The device ran out of memory: {str(error).splitlines()[0]} A batch of long pairs is encoded at once. "
            "Lower --batch-size, or --window."
        ) from None


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def make_progress(screen: Any, to_stdout: bool) -> Any:
    """A bar on stderr: pairs done, pairs a second and what is left."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
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

        def say(text: str) -> None:
            screen.print(text, markup=False, soft_wrap=True)

        if not self.pairs:
            say(f"{path} is complete: {lines:,} lines. There was nothing left to do.")
            return
        seconds = time.monotonic() - self.started
        before = f", after {lines - self.pairs:,} of earlier runs" if lines > self.pairs else ""
        rate = f"{self.pairs / max(seconds, 1e-9):,.0f} pairs/s"
        done = f"{_count(self.pairs, 'pair')}, {_count(self.links, 'link')}"
        say(f"{done} in {seconds:,.1f} s ({rate}){before}")
        if self.without_words:
            say(f"{self.without_words:,} of them have a side without words: their lines are empty.")
        if self.split:
            say(
                f"{self.split:,} of them are longer than {window:,} positions: they were split into {self.windows:,} "
                "windows that overlap."
            )


if __name__ == "__main__":
    main()
