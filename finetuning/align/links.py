"""`word-align`: writes and shows the links of sentence pairs.

Links go to standard output, or to a file that a stopped run can resume. FILE.word-align.json, next to FILE, says how
much of FILE to keep, and with which settings and model its links were made: others would mix two kinds of links.
"""

import contextlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from crosslingual_zoo.finetuning.align.common import (
    AlignerOptions,
    InputOptions,
    PairBar,
    load_aligner,
    make_parser,
    make_progress,
    pick,
    report_running_text,
    rule_of,
    with_likely_links,
)
from crosslingual_zoo.finetuning.align.page import check_page, write_page
from crosslingual_zoo.finetuning.align.pairs import FILE_ENDINGS, STDIN, PairReader, Row, Side, is_split_further
from crosslingual_zoo.zoo_core.console import CONSOLE, say_loading
from crosslingual_zoo.zoo_core.processes import (
    from_all,
    hold_signals,
    launched_rank,
    start_processes,
    stop_if_told,
    stop_signals,
)
from crosslingual_zoo.zoo_core.provenance import (
    ADAPTER_CONFIGURATION,
    folder_fingerprint,
    model_fingerprint,
    read_json,
    write_json,
)
from crosslingual_zoo.zoo_core.recipes import recipe_differences

Form = Callable[[Any, bool], str]  # (alignment, with probabilities) -> its text
# (what to do after each batch, rows, number of the first row) -> (their text, counts)
Align = Callable[[Callable[[], None], list[Row], int], tuple[str, Counter[str]]]

STATE_ENDING = ".word-align.json"
NOT_OF_LINKS = ("quiet", "resume", "html", "device", "batch_size")  # options
LINES_ON_PAGE = 100
NAME = re.compile(r"[^\W\d][\w.-]*\w|[^\W\d]")  # of a file, or its ending: de, zh-CN; a sentence may end in 1/2 or 3.5
ENDING = re.compile(r"\w\.[A-Za-z][\w-]*$")
FILE_ENDING = re.compile(
    rf"\w({'|'.join(re.escape(ending) for ending in FILE_ENDINGS)})(\.gz)?$|\w\.gz$", re.IGNORECASE
)
USAGE = """word-align [FILE | SOURCE TARGET] [--model FOLDER|ID] [options]
       word-align {score,adapt,project} --help"""
DESCRIPTION = """Link the words of sentences to the words of their translations.

  word-align "The house is small." "Das Haus ist klein."     two sentences; a terminal lists the linked words
  word-align < pairs.txt > links.txt                         lines `source ||| target`, or with a tab between
  word-align corpus.de corpus.en > links.txt                 two files, line by line
  word-align --model FacebookAI/xlm-roberta-base pairs.jsonl --output-format json --probabilities
                                                             {"source": "...", "target": ["a", "list", "of", "words"]}
  word-align wiki.tsv --columns 2 3 > links.txt              a table with tabs; of CSV, name two columns
  word-align memory.tmx --languages en de > links.txt        TMX or XLIFF (1.2, 2); files of pairs may have .gz
  word-align pairs.txt --html page.html > links.txt          a page that shows the links

Three more commands have their own --help:

  word-align score test.de test.en --gold alignment.txt      evaluate links on gold links, which people made
  word-align adapt pairs.txt --output adapted                train an encoder to align, on your own pairs
  word-align project labels.conll translations.txt           copy labels of sentences to their translations

The output has one line per pair, such as `0-0 1-2 2-1` (Pharaoh's format): 0-0 links word 0 of the source and word 0 of
the target. A pair with an empty side gives an empty line. Lines are written in blocks of 32 batches. --output-format:

  pharaoh      0-0 1-2 2-1, or with --probabilities 0-0:0.9731 1-2:0.4250 2-1:0.8080
  json         one object per line: words, links, probabilities, and where each word begins and ends in the text

Lines of text and cells of tables are split at spaces and tabs only, as in fast_align, eflomal, simalign and
awesome-align. --split splits running text at Unicode's word boundaries (UAX #29), and Chinese, hiragana, Thai, Lao,
Khmer and Burmese into characters. This is the default for two sentences, strings in JSONL, TMX and XLIFF. Lists in
JSONL are always taken as words.

A large file is aligned in constant memory. After a crash or Ctrl-C, resume with the same command and --resume:

  word-align corpus.de corpus.en --output links.txt --device cuda --resume

Several processes, with one GPU each, can write the same file; any number of processes can resume it:

  accelerate launch --num_processes 8 --module crosslingual_zoo.finetuning.align \\
    corpus.de corpus.en --output links.txt"""


@dataclass(frozen=True)
class OutputOptions:
    """What is written: links to `output` or to standard output, and the page `html`."""

    output: str | None
    resume: bool
    output_format: str | None
    probabilities: bool
    html: str | None


def read_options(arguments: list[str]) -> tuple[AlignerOptions, InputOptions, OutputOptions]:
    """Returns the parsed command line."""
    parser = make_parser("word-align", DESCRIPTION, USAGE)
    group = parser.add_argument_group("output")
    group.add_argument("--output", metavar="FILE", help="write the links to this new file, not to stdout")
    group.add_argument("--resume", action="store_true", help="resume an unfinished --output")
    group.add_argument("--output-format", choices=tuple(OUTPUT_FORMATS), help="see above (default: pharaoh)")
    group.add_argument(
        "--probabilities",
        action="store_true",
        help="write the probability of each link: 0-0:0.9731, or `probabilities` in JSON",
    )
    group.add_argument(
        "--html", metavar="PAGE", help=f"write a page that shows the links of the first {LINES_ON_PAGE} pairs"
    )
    parsed = parser.parse_args(arguments)
    if parsed.resume and not parsed.output:
        parser.error("--resume needs the file to resume: add --output, or leave out --resume")
    if parsed.output and parsed.html and Path(parsed.output).resolve() == Path(parsed.html).resolve():
        parser.error(f"{parsed.html} is given for --output and --html")
    return pick(AlignerOptions, parsed), pick(InputOptions, parsed), pick(OutputOptions, parsed)


def run(options: AlignerOptions, texts: InputOptions, written: OutputOptions) -> None:
    """Writes the links of every pair, and the page if the options request it.

    Every process of a run reads the input; the first one writes.
    """
    sentences = as_sentences(texts.files)
    check_files(written.output, written.html, written.resume)
    reader = texts.reader(texts.split, sentences)
    say_loading(options.model)
    CONSOLE.quiet |= sentences is not None
    rule = rule_of(options)
    form = OUTPUT_FORMATS[written.output_format or "pharaoh"]
    with_probabilities = written.probabilities
    if sentences and sys.stdout.isatty() and not (written.output or written.output_format):
        form = list_words
        with_probabilities = rule["method"] == "ot_words"

    with stop_signals("a run with --output can be resumed by the same command and --resume"):
        is_main_process = start_processes().is_main_process
        total = check_input(reader)
        run_options = asdict(options) | asdict(texts) | asdict(written)
        for name in NOT_OF_LINKS:
            del run_options[name]
        if written.resume and not written.html:
            finished = from_all(
                lambda: is_main_process and is_finished(written.output, options.model, run_options, total)
            )
            if finished[0]:
                CONSOLE.print(f"{written.output} is finished: it has the links of all {total:,} pairs")
                return
        aligner = load_aligner(options, **rule)
        rows = reader.rows()
        rows_on_page: list[Row] = []
        if written.html:
            rows_on_page += islice(rows, LINES_ON_PAGE)  # a pipe can be read only once
        settings: dict[str, Any] = {}
        if written.output and is_main_process:
            settings = settings_of(options.precision, written, aligner, reader)
        align = partial(align_block, aligner, reader, form, with_probabilities)
        all_rows = chain(rows_on_page, rows)
        counts = write_blocks(align, all_rows, aligner.batch_size, total, written.output, settings)
        if settings and total is not None:
            write_finished(written.output, run_options, total)
        if total is None:  # a pipe could not be read beforehand
            report_running_text(counts)
        if reader.format == "tmx" and not texts.languages:
            CONSOLE.print(f"languages: {' and '.join(reader.languages)} (--languages)")
        if written.html and is_main_process:
            pairs = [reader.parse(row, number) for number, row in enumerate(rows_on_page)]
            show_links(written.html, options, aligner, pairs, counts["earlier"] + counts["pairs"])


def check_input(reader: PairReader) -> int | None:
    """Reads the input once, where that is possible, and returns how many pairs it has; each process checks a share."""
    state = start_processes()
    checks = from_all(lambda: (reader.check(state.process_index, state.num_processes), reader.running_text))
    total, _ = checks[0]
    if total is None and state.num_processes > 1:
        raise ValueError(f"{reader.name} can be read only once, and several processes were launched. Name files.")
    running_text: Counter[str] = Counter()
    for _, running_text_of_share in checks:
        running_text += running_text_of_share
    report_running_text(running_text)
    return total


def show_links(page: str, options: AlignerOptions, aligner: Any, pairs: list[tuple[Side, Side]], total: int) -> None:
    """Writes the page of the first pairs of `total`."""
    alignments = with_likely_links(aligner).align(pairs, probabilities=True)
    threshold = None
    if aligner.method == "ot_words":
        threshold = aligner.matching.get("threshold", 0.5)
    model = options.model
    if aligner.adapter:
        model += f" with {aligner.adapter.name}"
    count = first_of(len(pairs), total)
    facts = f"{count}; {model}, {aligner.method}, layer {aligner.layer}, {options.precision}"
    write_page(page, alignments, facts, threshold, options.link_all)
    CONSOLE.print(f"page of the {count}: {page}")


def first_of(count: int, total: int) -> str:
    """`first 100 of 300 pairs`, or `10 pairs` if these are all."""
    pairs = "1 pair" if total == 1 else f"{total:,} pairs"
    return pairs if count == total else f"first {count:,} of {pairs}"


def as_sentences(arguments: list[str]) -> tuple[str, str] | None:
    """Returns two arguments as a pair of sentences; None if one is a file, none has white space, or they look like
    the paths of files that do not exist."""
    if len(arguments) != 2 or any(name == STDIN or os.path.exists(name) for name in arguments):
        return None
    source, target = arguments
    if not has_space(source + target) or look_like_two_files(source, target):
        return None
    if looks_like_path(source) and looks_like_path(target):
        return None
    return source, target


def has_space(text: str) -> bool:
    """Whether a text has white space."""
    return any(map(str.isspace, text))


def looks_like_path(text: str) -> bool:
    """Whether a text ends in a file's name: "my data/news.de" and "my news.txt", but not "and/or", "km/h." or a URL."""
    words = text.split()
    if words and ("://" in words[-1] or words[-1].startswith("www.")):
        return False
    if FILE_ENDING.search(text):
        return True
    folder, separator, name = text.rpartition(os.sep)
    if has_space(name):
        return False
    if folder and os.path.isdir(folder):
        return True
    if ENDING.search(name):
        return True
    return bool(separator) and not has_space(folder)


def look_like_two_files(source: str, target: str) -> bool:
    """Whether two texts differ only in the ending, as "my news.de" and "my news.en" do, or in the name of a file in a
    folder, as "my data/de" and "my data/en" do."""
    for separator in (".", os.sep):
        source_stem, _, source_name = source.rpartition(separator)
        target_stem, _, target_name = target.rpartition(separator)
        have_one_stem = source_stem == target_stem and bool(source_stem.strip())
        if have_one_stem and source_name != target_name:
            if NAME.fullmatch(source_name) and NAME.fullmatch(target_name):
                return True
    return False


def check_files(output: str | None, page: str | None, is_resumed: bool) -> None:
    """Raises ValueError for files that would be replaced."""
    if page:
        check_page(page)
    if output and not is_resumed and Path(output).exists() and Path(output).stat().st_size > 0:
        raise ValueError(f"{output} exists and is not empty. Add --resume to resume, or name another --output.")


def write_blocks(
    align: Align, rows: Iterator[Row], batch_size: int, total: int | None, output: str | None, settings: dict[str, Any]
) -> Counter[str]:
    """Writes the links of all rows to stdout, or to `output`, which is resumed; returns and prints counts.

    settings: those of the links; empty without `output` and in other processes than the first, which alone writes.
    Of a resumed run, `earlier` in the counts are the pairs that were aligned before.
    Raises ValueError as `finished_part`, and if `output` has more pairs than the input, which has `total` if that is
    known.
    """
    from crosslingual_zoo.modeling.pair_aligner import BATCHES_PER_CHUNK  # torch takes seconds to import

    block_size = BATCHES_PER_CHUNK * batch_size
    done, end = from_all(lambda: finished_part(output, settings))[0]
    if total is not None and total < done:
        raise ValueError(f"{output} has the links of {done:,} pairs, and the input has only {total:,}.")
    counts: Counter[str] = Counter()
    start_time = time.monotonic()
    with contextlib.ExitStack() as stack:
        hold_signals()
        stream = None
        if settings:
            state = {"settings": settings, "pairs": done, "bytes": end}
            write_json(f"{output}{STATE_ENDING}", state)
            stream = stack.enter_context(open(output, "ab"))
            stream.truncate(end)
        elif not output and launched_rank() == 0:
            stream = sys.stdout.buffer
        progress = stack.enter_context(make_progress(to_stdout=not output))
        bar = PairBar(progress, "aligning", total, start_processes().num_processes * batch_size, done)

        def after_batch() -> None:
            stop_if_told()
            bar.after_batch()

        align_rows = partial(align, after_batch)
        for text, counts_of_block in align_blocks(align_rows, islice(rows, done, None), done, block_size):
            counts += counts_of_block
            if stream:
                stream.write(text.encode())
                stream.flush()
            if settings and counts["pairs"] % block_size == 0:
                state |= {"pairs": done + counts["pairs"], "bytes": stream.tell()}
                write_json(f"{output}{STATE_ENDING}", state)
            bar.at(done + counts["pairs"])
    report_counts(counts, done, time.monotonic() - start_time)
    counts["earlier"] = done
    return counts


def align_blocks(
    align: Callable[[list[Row], int], tuple[str, Counter[str]]], rows: Iterator[Row], start: int, size: int
) -> Iterator[tuple[str, Counter[str]]]:
    """Yields the text of the links of each block of `size` rows and its counts, in the order of the input.

    Each block is aligned by one of the processes, and all get all texts: they do not depend on the number of processes.
    Memory holds one block per process. `start` is the number of the first row. Raises `Stopped` in all processes after
    a signal to one of them, between two batches.
    """
    state = start_processes()
    while rows_of_all := list(islice(rows, state.num_processes * size)):
        first = state.process_index * size
        blocks = from_all(partial(align, rows_of_all[first : first + size], start + first))
        for text, counts in blocks:
            if counts:
                yield text, counts
        start += len(rows_of_all)


def align_block(
    aligner: Any,
    reader: PairReader,
    form: Form,
    probabilities: bool,
    after_batch: Callable[[], None],
    rows: list[Row],
    first: int,
) -> tuple[str, Counter[str]]:
    """Returns the text of the links of some rows, and counts; `first` is the number of the first row."""
    stop_if_told()
    reader.running_text.clear()
    pairs = [reader.parse(row, number) for number, row in enumerate(rows, first)]
    counts = Counter(reader.running_text)
    texts = []
    alignments = aligner.align(pairs, probabilities=probabilities, after_batch=after_batch)
    for (source, target), alignment in zip(pairs, alignments, strict=True):
        texts.append(form(alignment, probabilities))
        counts["pairs"] += 1
        counts["links"] += len(alignment.links)
        counts["without words"] += not alignment.windows
        counts["long"] += alignment.windows > 1
        if reader.splits_lines:
            source_changed = is_split_further(source, len(alignment.source))
            target_changed = is_split_further(target, len(alignment.target))
            counts["split further"] += source_changed or target_changed
    return "".join(texts), +counts


def finished_part(path: str | None, settings: dict[str, Any]) -> tuple[int, int]:
    """Returns how many pairs of a stopped run are kept, and their bytes; without settings, none.

    Whole blocks are kept, so that the other pairs are encoded together as in an uninterrupted run, and their links are
    the same to the last bit. Raises ValueError for other settings than those of the stopped run, and if a part of what
    it wrote is missing.
    """
    if not settings or not Path(path).exists():
        return 0, 0
    size = Path(path).stat().st_size
    if size == 0:
        return 0, 0
    state_file = Path(f"{path}{STATE_ENDING}")
    if not state_file.exists():
        raise ValueError(
            f"{path} exists, and {state_file.name}, which --output writes beside it, does not. Name another --output, "
            "or remove the file."
        )
    state = read_json(state_file, needs=("settings", "pairs", "bytes"))
    differences = recipe_differences(state["settings"], settings)
    if differences:
        raise ValueError(f"{path} was made with other settings: {'; '.join(differences)}. Give the same.")
    if size < state["bytes"]:
        raise ValueError(f"{path} has {size:,} bytes, and {state['bytes']:,} were written. Restore or remove it.")
    return state["pairs"], state["bytes"]


def is_finished(output: str, model: str, options: dict[str, Any], total: int | None) -> bool:
    """Whether a run with the same options and model has written the links of all pairs of the input."""
    from crosslingual_zoo.finetuning.models import find_model

    state = read_json(Path(f"{output}{STATE_ENDING}"), {})
    finished = state.get("finished")
    if not finished or total is None or not Path(output).is_file():
        return False
    if finished["pairs"] != total or finished["bytes"] != Path(output).stat().st_size:
        return False
    return finished["options"] == options and state["settings"]["model"] == model_fingerprint(find_model(model))


def write_finished(output: str, options: dict[str, Any], pairs: int) -> None:
    """Notes that a file has the links of all pairs, for `is_finished`."""
    path = Path(f"{output}{STATE_ENDING}")
    finished = {"pairs": pairs, "bytes": Path(output).stat().st_size, "options": options}
    write_json(path, read_json(path) | {"finished": finished})


def settings_of(precision: str, written: OutputOptions, aligner: Any, reader: PairReader) -> dict[str, Any]:
    """Returns the settings that determine the links and how they are written."""
    adapter = None
    if aligner.adapter:
        adapter = folder_fingerprint(aligner.adapter, ADAPTER_CONFIGURATION)
    settings = {
        "input": reader.name,
        "adapter": adapter,
        "model": model_fingerprint(aligner.states.model.name_or_path),
        "output_format": written.output_format or "pharaoh",
        "probabilities": written.probabilities,
        "precision": precision,
        "format": reader.format,
        "split": reader.splits_text,
        "columns": reader.columns,
        "languages": reader.requested_languages,
    }
    for name in ("method", "layer", "window", "matching"):
        settings[name] = getattr(aligner, name)
    return settings


def report_counts(counts: Counter[str], done: int, seconds: float) -> None:
    """Prints what was aligned, in `seconds`, and what a reader of the links should know."""
    before = f", after {done:,} of earlier runs" if done else ""
    rate = f"{counts['pairs'] / max(seconds, 1e-9):,.0f} pairs/s"
    line = f"{counts['pairs']:,} pairs, {counts['links']:,} links in {seconds:,.1f} s ({rate}){before}"
    if counts["split further"]:
        line += f"; --split changed the number of words of {counts['split further']:,} pairs"
    CONSOLE.print(line)
    if counts["without words"]:
        CONSOLE.print(f"{counts['without words']:,} pairs without words on a side, and so without links")
    if counts["long"]:
        CONSOLE.print(f"{counts['long']:,} pairs longer than the window of the model, split into windows that overlap")


def pharaoh(alignment: Any, probabilities: bool) -> str:
    """`0-0 1-2` a line, or with probabilities `0-0:0.9731 1-2:0.4250`."""
    items = [f"{i}-{j}" for i, j in alignment.links]
    if probabilities:
        items = [f"{item}:{p:.4f}" for item, p in zip(items, alignment.probabilities, strict=True)]
    return " ".join(items) + "\n"


def as_json(alignment: Any, probabilities: bool) -> str:
    """An object a line: words, their offsets where a text was split, links."""
    fields = {"source": alignment.source, "target": alignment.target, "links": alignment.links}
    if probabilities:
        fields["probabilities"] = [round(probability, 6) for probability in alignment.probabilities]
    for name in ("source_offsets", "target_offsets"):
        offsets = getattr(alignment, name)
        if offsets is not None:
            fields[name] = offsets
    return json.dumps(fields, ensure_ascii=False) + "\n"


def list_words(alignment: Any, probabilities: bool) -> str:
    """For a terminal: one line per link, then words without a link."""
    rows = []
    for number, (i, j) in enumerate(alignment.links):
        probability = f"{alignment.probabilities[number]:.2f}" if probabilities else ""
        rows.append((alignment.source[i], alignment.target[j], probability))
    linked_sources = {i for i, _ in alignment.links}
    linked_targets = {j for _, j in alignment.links}
    rows += [(word, "–", "") for i, word in enumerate(alignment.source) if i not in linked_sources]
    rows += [("–", word, "") for j, word in enumerate(alignment.target) if j not in linked_targets]
    source_width = max((len(source) for source, _, _ in rows), default=0)
    target_width = max((len(target) for _, target, _ in rows), default=0)
    text = ""
    for source, target, probability in rows:
        text += f"{source:{source_width}}  {target:{target_width}}  {probability}".rstrip() + "\n"
    return text


OUTPUT_FORMATS = {"pharaoh": pharaoh, "json": as_json}
