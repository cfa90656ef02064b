"""`word-align`: writes and shows the links of sentence pairs."""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from finetuning.align.confidence import LOWEST, is_calibrated, options_of, threshold_of, with_threshold
from finetuning.align.formats import FORMATS, Format
from finetuning.align.loading import (
    PAIRS_FOR_LAYER,
    choose_layer,
    load_aligner,
    memory_errors,
    report_precision,
)
from finetuning.align.options import AlignerOptions, PairOptions, make_parser, require_different_files
from finetuning.align.output import STATE_ENDING, NoOutput, OutputFile, StandardOutput
from finetuning.align.page import Page, new_page, open_page
from finetuning.align.pairs import STDIN, PairReader, Side
from finetuning.align.screen import Tally, count_of, make_progress, make_screen, report_unspaced
from finetuning.align.terminal import Drawing
from zoo_core.processes import Stopped, from_all, hold_signals, launched_rank, start_processes, stop_signals

LINES_ON_PAGE = 100
USAGE = """word-align [FILE | SOURCE TARGET] [--model FOLDER|ID] [options]
       word-align {score,adapt,project} --help"""
DESCRIPTION = """Link the words of sentences to the words of their translations.

  word-align "The house is small." "Das Haus ist klein."     two sentences; a terminal lists the linked words
  word-align < pairs.txt > links.txt                         lines `source ||| target`, or with a tab between
  word-align corpus.de corpus.en > links.txt                 two files, line by line
  word-align --model FacebookAI/xlm-roberta-base pairs.jsonl --output-format json --probabilities
                                                             {"source": "...", "target": ["a", "list", "of", "words"]}
  word-align wiki.tsv --columns 2 3 > links.txt              a table with tabs: the columns of source and target
  word-align memory.tmx --languages en de > links.txt
                                                             TMX or XLIFF (1.2, 2); files of pairs may have .gz
  word-align pairs.txt --open > links.txt                    a page in the browser; --html FILE keeps it in FILE

Three more commands have their own --help:

  word-align score test.de test.en --gold alignment.txt      evaluate links on gold links, which people made
  word-align adapt pairs.txt --output adapted                train an encoder to align, on your own pairs
  word-align project labels.conll translations.txt           copy labels of sentences to their translations

The output has one line per pair, such as `0-0 1-2 2-1` (Pharaoh's format): 0-0 links word 0 of the source and word 0 of
the target. A pair with an empty side gives an empty line. Lines are written in blocks: through a pipe, the first lines
appear after 32 batches or at the end of the input. With --output-format:

  pharaoh      0-0 1-2 2-1, or with --probabilities 0-0:0.9731 1-2:0.4250 2-1:0.8080
  json         one object per line: words, links, probabilities, and where each word begins and ends in the text
  tsv          one row per link: index of the sentence, source and target word (from 0), then the two words

Lines of text are split at spaces and tabs only, as in fast_align, eflomal, simalign and awesome-align. Punctuation
without a space belongs to its word. Use --split for running text.

--split splits at Unicode's word boundaries (UAX #29): at white space and punctuation, but not inside `don't`,
`l'homme`, `3.5` or `example.com`. Chinese, hiragana, Thai, Lao, Khmer and Burmese become characters. This is the
default for two sentences, strings in JSONL, TMX and XLIFF; --pre-split splits these only at spaces, tabs and line
breaks. Lists in JSONL are always taken as words.

Each segment of XLIFF is a pair, and so is each unit of TMX. Tags are left out; a tag for a line break separates words.

A large file is aligned in constant memory. After a crash or Ctrl-C, resume with the same command and --resume:

  word-align corpus.de corpus.en --output links.txt --device cuda
  word-align corpus.de corpus.en --output links.txt --device cuda --resume

Several processes, with one GPU each, can write the same file; any number of processes can resume it:

  accelerate launch --num_processes 8 --module finetuning.align corpus.de corpus.en --output links.txt"""


@dataclass
class LinksOptions(PairOptions, AlignerOptions):
    """The pairs to link, the encoder and rule, and the output."""

    output: str | None = None
    resume: bool = False
    output_format: str | None = None
    probabilities: bool = False
    html: str | None = None
    open: bool = False


def read_options(arguments: list[str]) -> LinksOptions:
    """Returns the parsed command line."""
    parser = make_parser("word-align", DESCRIPTION, USAGE, LinksOptions)
    group = parser.add_argument_group("output")
    group.add_argument("--output", metavar="FILE", help="write the links to this new file, not to stdout")
    group.add_argument("--resume", action="store_true", help="resume an unfinished --output")
    group.add_argument("--output-format", choices=tuple(FORMATS), help="see above (default: pharaoh)")
    group.add_argument(
        "--probabilities",
        action="store_true",
        help="write the probability of each link: 0-0:0.9731, or `probabilities` in JSON",
    )
    group.add_argument(
        "--html", metavar="PAGE", help="write a page that shows the links and word similarities of the first 100 pairs"
    )
    group.add_argument("--open", action="store_true", help="open the page in the browser, also without --html")
    return parser.parse_args(arguments, LinksOptions())


def as_sentences(arguments: list[str]) -> tuple[str, str] | None:
    """Returns two arguments as a pair of sentences if neither is a file and one has white space; otherwise None."""
    if len(arguments) != 2 or any(name == STDIN or os.path.exists(name) for name in arguments):
        return None
    if not any(map(str.isspace, "".join(arguments))):
        return None
    return arguments[0], arguments[1]


def check_options(options: LinksOptions) -> None:
    """Raises ValueError for files that are given twice, and for a run that cannot be resumed."""
    if options.resume and not options.output:
        raise ValueError("--resume needs the file to resume. Add --output, or leave out --resume.")
    state = f"{options.output}{STATE_ENDING}" if options.output else None
    written = {"--output": options.output, "--html": options.html, "what --resume needs of --output": state}
    require_different_files(written, {"the input": options.files})


def run(options: LinksOptions) -> None:
    """Writes the links of every pair, and the page if the options request it."""
    with stop_signals():
        write_links(options)


def write_links(options: LinksOptions) -> None:
    """As `run`. Every process of a run reads the input; the first one writes."""
    is_main = launched_rank() == 0
    screen = make_screen(options.quiet or not is_main)
    check_options(options)
    rule = options.rule()
    sentences = as_sentences(options.files)
    reader = options.read_pairs(options.split, sentences)
    if sentences and sys.stdout.isatty() and not (options.output or options.output_format):
        form: Format = Drawing(is_calibrated(rule["method"]))
    else:
        form = FORMATS[options.output_format or "pharaoh"](options.probabilities, options.precision)
    output: OutputFile | StandardOutput | NoOutput = NoOutput()
    if is_main:
        output = OutputFile(options.output, form, options.resume) if options.output else StandardOutput(form)
    page = Page(options.html or new_page()) if is_main and (options.html or options.open) else None

    from finetuning.align.blocks import align_blocks, check_pairs  # torch takes seconds to import

    state = start_processes()
    with screen.status("reading the pairs"):
        total = check_pairs(reader)
    if options.split is None:
        report_unspaced(reader.unspaced, total or 0, screen)
    aligner = load_aligner(options, screen, all_layers=False if sentences else None, **rule)
    if state.num_processes > 1:
        screen.print(f"{state.num_processes} processes")
    rows = reader.rows()
    chooses = rule["layer"] is None and aligner.recommended_layer is None and not sentences
    has_page = bool(options.html or options.open)
    first = list(islice(rows, PAIRS_FOR_LAYER if chooses else LINES_ON_PAGE if has_page else 0))  # few: may be a pipe
    rows, pairs = chain(first, rows), [reader.parse(row, number) for number, row in enumerate(first)]
    reader.unspaced = 0  # of a pipe, all are counted from here

    def begin() -> tuple[int, int]:
        """The layer, and how many pairs have their links in the output."""
        if not sentences:
            report_precision(options.precision, screen)
            if rule["layer"] is None:
                choose_layer(aligner, pairs, screen, getattr(output, "layer", None))
        if options.output:
            settings = settings_of(options, aligner, reader)
            with screen.status("passing over the pairs that are aligned"):
                output.pass_over(rows, settings)
        return aligner.layer, output.lines

    found = from_all(lambda: begin() if is_main else None)
    if not is_main:
        aligner.layer, output.lines = found[0]
        deque(islice(rows, output.lines), maxlen=0)
    if page is not None:
        add_to_page(page, aligner, pairs[:LINES_ON_PAGE])
    tally, started = Tally(), time.monotonic()
    with closing(output, screen), make_progress(screen, not options.output) as progress:
        bar = progress.add_task("aligning", total=total, completed=output.lines)
        for block, text, of_block in align_blocks(
            aligner, reader, rows, output.lines, form, lambda pairs: progress.advance(bar, pairs)
        ):
            output.write(block, text)
            tally += of_block
            progress.update(bar, completed=output.lines)
    if not sentences:
        tally.report(screen, options.output, output.lines, aligner.window, time.monotonic() - started)
        if total is None and options.split is None:  # a pipe could not be read beforehand
            report_unspaced(reader.unspaced, tally.pairs, screen)
        if reader.format == "tmx" and not options.languages:
            screen.print(f"languages: {' and '.join(reader.languages)} (--languages)")
    elif options.output:
        screen.print("two sentences: there are no files of these names")
    if page is not None:
        facts = {"model": options.model, "method": aligner.method, "layer": str(aligner.layer)}
        facts |= {"encoding": aligner.encoding, "precision": options.precision}
        page.write(reader.title, facts, output.lines, threshold_of(aligner), options_of(aligner).get("link_all", False))
        opened = " (opened in the browser)" if options.open and open_page(page.path) else ""
        screen.print(f"page: {page.path}{opened}")
        if options.quiet and not opened and not options.html:  # nobody would find it
            print(f"page: {page.path}", file=sys.stderr)


def add_to_page(page: Page, aligner: Any, pairs: list[tuple[Side, Side]]) -> None:
    """Adds pairs with all their likely links; the page's threshold selects among them."""
    with memory_errors():
        for found in with_threshold(aligner, LOWEST).align(pairs, probabilities=True, similarity=True):
            page.add(found)


@contextlib.contextmanager
def closing(output: OutputFile | StandardOutput | NoOutput, screen: Any) -> Iterator[None]:
    """Closes the output. A signal takes effect between two batches. A run that stops prints how to resume it."""
    hold_signals()
    try:
        yield
        output.close(complete=True)
    except BaseException as error:
        with contextlib.suppress(OSError):
            output.close(complete=False)
        kept = f"{output.path} can be resumed: the same command and --resume." if output.path and output.lines else ""
        if isinstance(error, Stopped):
            screen.print(f"{count_of(output.lines, 'pair')} aligned. {kept}".rstrip())
        elif kept and not isinstance(error, BrokenPipeError):
            screen.print(kept)
        raise


def settings_of(options: LinksOptions, aligner: Any, reader: PairReader) -> dict[str, Any]:
    """Returns the settings that determine the links and how they are written, for the state file."""
    from finetuning.models import find_model
    from zoo_core.provenance import model_fingerprint

    return {
        "model": model_fingerprint(find_model(options.model)),
        "tokenizer": options.tokenizer,
        **{name: getattr(aligner, name) for name in ("method", "layer", "encoding", "window", "overlap", "matching")},
        "precision": options.precision,
        "output_format": options.output_format or "pharaoh",
        "probabilities": options.probabilities,
        "format": reader.format,
        "columns": options.columns,
        "languages": options.languages,
        "split": reader.splits_text,
    }
