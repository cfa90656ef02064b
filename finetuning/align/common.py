"""What the commands of `word-align` share: options, the aligner that they describe, and what is printed on stderr.

The module imports nothing heavy, so that `--help` is fast.
"""

import argparse
import copy
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from crosslingual_zoo.finetuning.align.pairs import FORMATS, PairReader
from crosslingual_zoo.zoo_core.command_line import TRUST_REMOTE_CODE, CommandParser
from crosslingual_zoo.zoo_core.console import CONSOLE

T = TypeVar("T")

LOWEST = 0.01  # probability; less likely links are no candidates
# Of the words of raw text, 9 to 32% end in a punctuation mark (25 files in eleven languages: NTREX, Bible, Multi30k,
# Tatoeba). Of the words of tokenized text, 1.1% or less do (33 files: sets with gold links, UD, PAN-X).
GLUED_SHARE = 0.03
DEFAULT_MODEL = "intfloat/multilingual-e5-small"  # as in modeling/word_alignment.py, which imports torch
PUBLISHED_RULES = {"microsoft/xlm-align-base": ("ot", 8)}  # method and layer of models that were published as aligners
METHODS_HELP = """Methods (--method). All except ot_words have the settings of their papers:

  ot_words     optimal transport of tokens and of whole words; keeps links that are right with a probability of at least
               --threshold (0.5). --probabilities writes it; --link-all also links source words without a link
  ot           optimal transport, then mutual argmax (XLM-Align's published aligner)
  ot_itermax   optimal transport, then repeated mutual argmax for words without a partner (XLM-Align's self-labeling):
               more links, lower precision
  itermax      repeated mutual argmax of cosine similarities (SimAlign's Itermax)
  mutual       mutual argmax of cosine similarities (SimAlign's Argmax): fewest links, highest precision
  softmax      softmax in both directions above --threshold (0.001; awesome-align)"""


@dataclass(frozen=True)
class AlignerOptions:
    """The encoder, how it runs, and the rule that links words; None where the model or the machine determines it."""

    model: str
    adapter: str
    trust_remote_code: bool
    device: str | None
    precision: str
    batch_size: int | None
    quiet: bool
    method: str | None = None
    threshold: float | None = None
    link_all: bool = False
    layer: int | None = None


@dataclass(frozen=True)
class InputOptions:
    """Where the pairs are, and how they are read: see `PairReader`."""

    files: list[str]
    format: str
    columns: list[str] | None
    languages: list[str] | None
    split: bool | None

    def reader(self, split: bool | None, sentences: tuple[str, str] | None = None) -> PairReader:
        """Returns a reader of the files, or of the two sentences. Raises ValueError as `PairReader`."""
        return PairReader(self.files, self.format, self.columns, self.languages, split, sentences)


def pick(options_class: type[T], parsed: argparse.Namespace) -> T:
    """Returns the options of a dataclass, by the names of its fields, from those of a command line."""
    values = vars(parsed)
    names = [field.name for field in fields(options_class) if field.name in values]
    return options_class(**{name: values[name] for name in names})


def make_parser(
    name: str, description: str, usage: str, reads_pairs: bool = True, links_words: bool = True
) -> CommandParser:
    """Returns a parser with the options that the commands share: pairs, model and rule."""
    parser = CommandParser(prog=name, description=description, usage=usage)
    if reads_pairs:
        _add_pairs(parser)
    _add_model(parser)
    if links_words:
        _add_rule(parser)
    return parser


def refuse(parser: CommandParser, options: argparse.Namespace, names: str, where: str) -> None:
    """Ends the program if one of these options was given, which would be ignored."""
    for name in names.split():
        value = getattr(options, name)
        if value != parser.get_default(name):
            flag = "pre-split" if value is False else name.replace("_", "-")
            parser.error(f"--{flag} has no effect {where}")


def rule_of(options: AlignerOptions) -> dict[str, Any]:
    """Returns the rule as arguments of `WordAligner`; the layer is None if the model determines it.

    Raises ValueError for an unknown method, and for an option that the method does not have.
    """
    from crosslingual_zoo.modeling.pair_aligner import DEFAULT_METHOD, check_method

    name, _, _ = options.model.partition("@")
    method, layer = PUBLISHED_RULES.get(name, (DEFAULT_METHOD, None))
    if options.method:
        method = options.method
    if options.layer is not None:
        layer = options.layer
    matching: dict[str, Any] = {}
    if options.threshold is not None:
        matching["threshold"] = options.threshold
    if options.link_all:
        matching["link_all"] = True
    check_method(method, matching)
    return {"method": method, "layer": layer} | matching


def _add_pairs(parser: CommandParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="one file of pairs, or a source file and a target file (default: stdin)",
    )
    group = parser.add_argument_group("input")
    group.add_argument(
        "--format",
        choices=("auto", *FORMATS),
        default="auto",
        help="format of the pairs (default: auto, from the file's ending or the first element of XML, or else text)",
    )
    group.add_argument(
        "--columns",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="columns of the two sentences: numbers in lines with tabs, from 1 as for `cut -f`, or names in CSV and "
        "JSONL (default: source target)",
    )
    group.add_argument(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="languages to read from TMX and XLIFF; en also matches en-US (default: in TMX the source language and the "
        "first other one, in XLIFF those of its first <file>)",
    )
    words = group.add_mutually_exclusive_group()
    words.add_argument(
        "--split",
        action="store_const",
        const=True,
        help="split lines of running text into words at white space and punctuation",
    )
    words.add_argument(
        "--pre-split",
        dest="split",
        action="store_const",
        const=False,
        help="split sentences, JSON strings, TMX and XLIFF only at spaces, tabs and line breaks, as lines without "
        "--split",
    )


def _add_model(parser: CommandParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print only results and errors")
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="FOLDER|ID",
        default=DEFAULT_MODEL,
        help=f"encoder: a folder, or a Hub id, owner/name or owner/name@revision (default: {DEFAULT_MODEL})",
    )
    group.add_argument(
        "--adapter",
        metavar="FOLDER|ID",
        default="auto",
        help="LoRA adapter to merge into the encoder: a folder or a Hub id; none; or default, the zoo's own with a "
        f"copy of {DEFAULT_MODEL} (default: the zoo's own with that model itself, none with others; for adapt: none)",
    )
    group.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cuda if available)")
    group.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        default="fp32",
        help="precision of the encoder (default: fp32); bf16 is faster on hardware with native support, but about 1 "
        "link in 200 then depends on the other pairs of the batch",
    )
    group.add_argument(
        "--batch-size", type=int, metavar="N", help="inputs per forward pass (default: 16; on a GPU 256)"
    )


def _add_rule(parser: CommandParser) -> None:
    parser.epilog = METHODS_HELP
    group = parser.add_argument_group("alignment")
    group.add_argument(
        "--method", metavar="NAME", help="method, see below (default: ot_words; for microsoft/xlm-align-base: ot)"
    )
    group.add_argument(
        "--threshold",
        type=float,
        metavar="T",
        help="lowest probability of a link, for ot_words (default: 0.5) and softmax (default: 0.001)",
    )
    group.add_argument(
        "--link-all",
        action="store_true",
        help="for ot_words: link each source word without a link to its most probable partner",
    )
    group.add_argument(
        "--layer",
        type=int,
        metavar="N",
        help="layer whose states are compared; 0: embeddings (default: the one that the model's configuration "
        "recommends, or else three fifths of the way up, 7 of 12; for microsoft/xlm-align-base: 8)",
    )


def load_aligner(options: AlignerOptions, all_layers: bool = False, **rule: Any) -> Any:
    """Loads the aligner, and prints its layer and precision; `rule` are arguments of `WordAligner.from_pretrained`.

    Raises ValueError for a model or a device that cannot be used.
    """
    import torch
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging

    from crosslingual_zoo.finetuning.models import find_model, readable_errors
    from crosslingual_zoo.modeling.checkpoints import check_vocabulary
    from crosslingual_zoo.modeling.word_alignment import DEFAULT_ADAPTER, WordAligner, find_adapter
    from crosslingual_zoo.zoo_core.processes import main_first
    from crosslingual_zoo.zoo_core.provenance import model_files

    is_bf16 = options.precision == "bf16"
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # of loading; that of a download is shown
    if not options.quiet:
        enable_progress_bars()
    device = _device(options.device)
    batch_size = options.batch_size
    if batch_size is None:
        batch_size = 256 if device.type == "cuda" else 16
    with main_first(), readable_errors(options.model):
        path = find_model(options.model)
        adapter = find_adapter(options.adapter, options.model)
        if Path(path).is_dir():
            model_files(Path(path))  # raises ValueError if it holds no weights or no config.json
        aligner = WordAligner.from_pretrained(
            path,
            all_layers=all_layers,
            device=device,
            dtype=torch.bfloat16 if is_bf16 else torch.float32,
            trust_remote_code=options.trust_remote_code,
            adapter=str(adapter) if adapter else None,
            batch_size=batch_size,
            **rule,
        )
    check_vocabulary(aligner.tokenizer, aligner.states.model.config, path)
    line = f"layer {aligner.layer} of {aligner.depth}"
    if adapter == DEFAULT_ADAPTER:
        line += ", with the zoo's adapter (--adapter none: without)"
    elif adapter:
        line += f", with the adapter {options.adapter}"
    line += f", precision {options.precision}"
    if is_bf16:  # it keeps 8 bits, and products of matrices add in an order that depends on the shape of the batch
        line += ": about 1 link in 200 depends on the other pairs of the batch"
    CONSOLE.print(line)
    return aligner


def with_likely_links(aligner: Any) -> Any:
    """Returns a copy of the aligner that keeps all links with a probability of `LOWEST` or more; unless its method is
    `ot_words`, the aligner itself."""
    if aligner.method != "ot_words":
        return aligner
    threshold = aligner.matching.get("threshold", LOWEST)
    copied = copy.copy(aligner)
    copied.matching = aligner.matching | {"threshold": min(LOWEST, threshold)}
    return copied


def _device(name: str | None) -> Any:
    import torch
    from accelerate import PartialState

    state = PartialState()
    if state.num_processes > 1:
        if name not in (None, state.device.type):
            raise ValueError(f"--device is {name}, and each process takes its own {state.device.type}. Leave it out.")
        return state.device
    if not name:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        probe = torch.zeros((), device=name)
        probe.item()  # "meta" has no values
        return probe.device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"--device {name} cannot be used: {reason}.") from None


class PairBar:
    """A bar of `make_progress` that moves with each batch, and not only with each block of pairs, which takes longer.

    A batch holds windows, not pairs: how many pairs it has done is a guess until their links are known.
    """

    def __init__(self, progress: Progress, description: str, total: int | None, batch_size: int, done: int = 0):
        self.progress = progress
        self.task = progress.add_task(description, total=total, completed=done)
        self.batch_size = batch_size  # of all processes together
        self.done = done  # pairs whose links are known

    def after_batch(self) -> None:
        """Moves the bar by a batch, but not over the end of the block, as `WordAligner.align` reads blocks."""
        from crosslingual_zoo.modeling.pair_aligner import BATCHES_PER_CHUNK

        task = self.progress.tasks[self.task]
        end = self.done + BATCHES_PER_CHUNK * self.batch_size
        if task.total is not None:
            end = min(end, task.total)
        self.progress.update(self.task, completed=min(task.completed + self.batch_size, end))

    def at(self, done: int) -> None:
        """Moves the bar to the number of pairs whose links are known."""
        self.done = done
        self.progress.update(self.task, completed=max(done, self.progress.tasks[self.task].completed))

    def count(self, alignments: Iterable[Any]) -> Iterator[Any]:
        """Yields alignments, and moves the bar with each."""
        for done, alignment in enumerate(alignments, start=1):
            yield alignment
            self.at(done)


def make_progress(to_stdout: bool = False) -> Progress:
    """A bar on stderr: pairs done, time that has passed and time that is left."""
    are_links_scrolling = to_stdout and sys.stdout.isatty()
    return Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=CONSOLE,
        transient=True,
        redirect_stdout=False,  # links go there
        disable=CONSOLE.quiet or not CONSOLE.is_terminal or are_links_scrolling,
    )


def report_running_text(counts: Counter[str]) -> None:
    """Prints one line if the counts of `count_running_text` show that words are not separated, and what to do."""
    facts = []
    if counts["unspaced"]:
        facts.append(
            f"{counts['unspaced']:,} pairs have no blanks between the words of a side (Chinese, Japanese, Thai, ...), "
            "and each run of characters counts as one word"
        )
    if counts["glued"] > GLUED_SHARE * counts["words"]:
        facts.append(f"{counts['glued']:,} of {counts['words']:,} words have a punctuation mark at their end")
    if facts:
        CONSOLE.print(f"{'; '.join(facts)}. --split splits running text.")
