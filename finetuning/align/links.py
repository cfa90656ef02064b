"""`word-align`: the links of sentence pairs, written and shown."""

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

from finetuning.align.confidence import LOWEST, cut, is_calibrated, options_of, threshold_of, with_threshold
from finetuning.align.formats import FORMATS, Format
from finetuning.align.loading import choose_layer, load_aligner, memory_errors, report_precision
from finetuning.align.options import AlignerOptions, PairOptions, make_parser, require_different_files
from finetuning.align.output import STATE_ENDING, OutputFile, StandardOutput
from finetuning.align.page import Page, new_page, open_page
from finetuning.align.pairs import STDIN, Side
from finetuning.align.screen import Tally, count_of, make_progress, make_screen, report_unspaced
from finetuning.align.terminal import Drawing

LINES_ON_PAGE = 100
USAGE = """word-align [FILE | SOURCE TARGET] [--model FOLDER|ID] [options]
       word-align {score,adapt,project} --help"""
DESCRIPTION = """Link the words of sentences to the words of their translations.

  word-align "The house is small." "Das Haus ist klein."     two sentences; a terminal shows them word by word
  word-align < pairs.txt > links.txt                         source ||| target a line, or a tab between
  word-align corpus.de corpus.en > links.txt                 two files, line by line
  word-align --model FacebookAI/xlm-roberta-base pairs.jsonl --output-format json --probabilities
                                                             {"source": "...", "target": ["a", "list", "of", "words"]}
  word-align wiki.tsv --columns 2 3 > links.txt              tables: source and target in these columns, between tabs
  word-align memory.tmx --languages en de --output-format tmx > linked.tmx
                                                             TMX, XLIFF (1.2, 2); files of pairs may be gzip files (.gz)
  word-align pairs.txt --open > links.txt                    a page in the browser; --html FILE keeps it there

Beside it are three commands, each with a --help of its own:

  word-align score test.de test.en --gold alignment.txt      how good links are, against links made by hand
  word-align adapt pairs.txt --output adapted                an encoder that learns to align from your own pairs
  word-align project labels.conll translations.txt           labels of sentences, carried over to their translations

Out comes a line for each pair, `0-0 1-2 2-1` (Pharaoh's format): word 0 of the source with word 0 of the target, and
so on. A pair with an empty side gives an empty line. Lines come out in blocks: through a pipe nothing is seen before
64 batches are read, or the input has ended. With --output-format:

  pharaoh      0-0 1-2 2-1, or with --probabilities 0-0:0.9731 1-2:0.4250 2-1:0.8080
  json         an object a line: words, links, probabilities, and where in a text each word begins and ends
  words        two linked words a line with a tab between them, and an empty line after each pair
  tsv          a row a link: sentence, source and target index (all from 0), source and target word
  tmx          the pairs as a translation memory, with their links as a property of each unit

Links count the words of the file, as in fast_align, eflomal, simalign and awesome-align: a line of text is words
between spaces or tabs, with any punctuation that is glued to them. --split splits lines of running text.

Two sentences, strings in JSONL, TMX and XLIFF are split into words, and --split does the same with lines: at Unicode's
word boundaries (UAX #29), which are white space and punctuation, but not inside of `don't`, `l'homme`, `3.5` or
`example.com`. Chinese, hiragana, Thai, Lao, Khmer and Burmese become characters. --pre-split takes the words between
spaces, tabs or line breaks there too; lists in JSONL are words as they are.

Each segment of XLIFF is a pair, and so is each unit of TMX. Tags are left out; a tag for a line break separates words.

A large file is aligned in constant memory. After a crash or Ctrl-C, the same command with --resume continues it:

  word-align corpus.de corpus.en --output links.txt --device cuda
  word-align corpus.de corpus.en --output links.txt --device cuda --resume"""


@dataclass
class LinksOptions(PairOptions, AlignerOptions):
    """What is linked, by what, and where the links go."""

    output: str | None = None
    resume: bool = False
    output_format: str | None = None
    probabilities: bool = False
    html: str | None = None
    open: bool = False


def read_options(arguments: list[str]) -> LinksOptions:
    """The command line."""
    parser = make_parser("word-align", DESCRIPTION, USAGE, LinksOptions)
    group = parser.add_argument_group("output")
    group.add_argument("--output", metavar="FILE", help="write the links there, not to stdout; must not exist")
    group.add_argument("--resume", action="store_true", help="continue an --output that was not finished")
    group.add_argument("--output-format", choices=tuple(FORMATS), help="see above (default: pharaoh)")
    group.add_argument(
        "--probabilities", action="store_true", help="with each link: 0-0:0.9731, or `probabilities` in JSON"
    )
    group.add_argument(
        "--html", metavar="PAGE", help="write a page to look at the links and the similarity of words, of 100 pairs"
    )
    group.add_argument("--open", action="store_true", help="open that page in the browser; PAGE may be left out then")
    return parser.parse_args(arguments, LinksOptions())


def as_sentences(arguments: list[str]) -> tuple[str, str] | None:
    """Two arguments as a pair of sentences: neither is there as a file, and one has white space; None otherwise."""
    if len(arguments) != 2 or any(name == STDIN or os.path.exists(name) for name in arguments):
        return None
    if not any(map(str.isspace, "".join(arguments))):
        return None
    return arguments[0], arguments[1]


def check_options(options: LinksOptions) -> None:
    """Raises ValueError for files that are named twice, and for a run that cannot be resumed."""
    if options.resume and not options.output:
        raise ValueError("--resume continues a file. Add --output, or leave out --resume.")
    if options.resume and (options.html or options.open):
        raise ValueError("--resume is given, and the page shows the pairs of one run. Leave out --html and --open.")
    state = f"{options.output}{STATE_ENDING}" if options.output else None
    written = {"--output": options.output, "--html": options.html, "what --resume needs of --output": state}
    require_different_files(written, {"the input": options.files})


def run(options: LinksOptions) -> None:
    """Writes the links of every pair, and the page where it is asked for."""
    screen = make_screen(options.quiet)
    check_options(options)
    rule = options.rule()
    sentences = as_sentences(options.files)
    reader = options.read_pairs(options.split, options.output_format == "tmx", sentences)
    if sentences and sys.stdout.isatty() and not (options.output or options.output_format):
        form: Format = Drawing(is_calibrated(rule["method"]), options.probabilities)
    else:
        chosen = FORMATS[options.output_format or "pharaoh"]
        form = chosen(options.probabilities, options.precision, lambda: reader.languages)
    output = OutputFile(options.output, form, options.resume) if options.output else StandardOutput(form)
    page = Page(options.html or new_page()) if options.html or options.open else None
    with screen.status("reading the pairs"):
        total = reader.check()
    if options.split is None:
        report_unspaced(reader.unspaced, total or 0, screen)
    aligner, fingerprint = load_aligner(options, screen, **rule)
    pairs: Iterable[tuple[Side, Side]] = reader
    if not sentences:
        report_precision(options.precision, screen)
        if rule["layer"] is None:
            pairs = choose_layer(aligner, reader, screen, output.layer)
    if options.output:
        from modeling.word_alignment import BATCHES_PER_CHUNK

        settings = settings_of(options, aligner, fingerprint, reader.splits_text)
        with screen.status("passing over the pairs that are aligned"):
            pairs = output.go_on(settings, pairs, BATCHES_PER_CHUNK * aligner.batch_size)
    tally = Tally()
    with closing(output, screen, has_page=page is not None), make_progress(screen, not options.output) as progress:
        advance = partial(progress.advance, progress.add_task("aligning", total=total, completed=output.lines))
        on_page = 0 if page is None else LINES_ON_PAGE
        for pair, candidates in alignments(aligner, iter(pairs), on_page, form.has_probabilities, advance):
            if page is not None and len(page.pairs) < LINES_ON_PAGE:
                page.add(candidates)
            alignment = cut(candidates, aligner)
            output.write(pair, alignment)
            tally.add(alignment)
    if not sentences:
        tally.report(screen, options.output, output.lines, aligner.window)
        if total is None and options.split is None:  # a pipe could not be read beforehand
            report_unspaced(reader.unspaced, output.lines, screen)
        if reader.format == "tmx" and not options.languages:
            screen.print(f"languages: {' and '.join(reader.languages)} (--languages)")
    elif options.output:
        screen.print("two sentences: there are no files of these names")
    if page is not None:
        facts = {"model": options.model, "method": aligner.method, "layer": f"{aligner.layer} of {aligner.num_layers}"}
        facts |= {"encoding": aligner.encoding, "precision": options.precision}
        page.write(reader.title, facts, output.lines, threshold_of(aligner), options_of(aligner).get("link_all", False))
        opened = " (opened in the browser)" if options.open and open_page(page.path) else ""
        screen.print(f"page: {page.path}{opened}")
        if options.quiet and not opened and not options.html:  # nobody would find it
            print(f"page: {page.path}", file=sys.stderr)


@contextlib.contextmanager
def closing(output: OutputFile | StandardOutput, screen: Any, has_page: bool) -> Iterator[None]:
    """Closes the output. A run that Ctrl-C or an error stops says how to go on; after Ctrl-C the exit code is 130."""
    try:
        yield
        output.close(complete=True)
    except BaseException as error:
        with contextlib.suppress(OSError):
            output.close(complete=False)
        how = f"the same command{' without the page' if has_page else ''} and --resume"
        kept = f"{output.path} can be resumed: {how}." if output.path and output.lines else ""
        if isinstance(error, KeyboardInterrupt):
            screen.print(f"word-align: stopped after {count_of(output.lines, 'pair')}. {kept}".rstrip())
            sys.exit(130)
        if kept and not isinstance(error, BrokenPipeError):
            screen.print(kept)
        raise


def settings_of(options: LinksOptions, aligner: Any, fingerprint: str, splits_text: bool) -> dict[str, Any]:
    """What decides about the links and how they are written, for the file of state."""
    return {
        "model": fingerprint,
        "tokenizer": options.tokenizer,
        **{name: getattr(aligner, name) for name in ("method", "layer", "encoding", "window", "overlap", "matching")},
        "precision": options.precision,
        "output_format": options.output_format or "pharaoh",
        "probabilities": options.probabilities,
        "languages": options.languages,
        "split": splits_text,
    }


def alignments(
    aligner: Any,
    pairs: Iterator[tuple[Side, Side]],
    on_page: int,
    probabilities: bool,
    advance: Callable[[float], None],
) -> Iterator[tuple[tuple[Side, Side], Any]]:
    """Each pair, as it was read, and the aligner's result; among those of the first `on_page` are unlikely links."""
    waiting: deque[tuple[Side, Side]] = deque()  # pairs that the aligner has taken, and given no links for yet

    def taken() -> Iterator[tuple[Side, Side]]:
        for pair in pairs:
            waiting.append(pair)
            yield pair

    given, candidates = taken(), with_threshold(aligner, LOWEST)
    with memory_errors():
        shown = candidates.align(islice(given, on_page), probabilities=True, similarity=True, progress=advance)
        for found in chain(shown, aligner.align(given, probabilities=probabilities, progress=advance)):
            yield waiting.popleft(), found
