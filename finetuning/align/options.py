"""The options that commands of `word-align` share: the pairs to read, the encoder, and the rule that links words.

Each command has a class of options, made of the classes here, and a parser that fills it in. Nothing heavy is imported:
`--help` is there at once.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finetuning.align.pairs import FORMATS, STDIN, PairReader
from finetuning.align.xml_pairs import ROOTS
from zoo_core.command_line import CommandParser
from zoo_core.recipes import TRUST_REMOTE_CODE

DEFAULT_MODEL = "microsoft/xlm-align-base"
PUBLISHED_RULES = {DEFAULT_MODEL: ("ot", 8)}  # method and layer of models that were published as aligners
METHODS_HELP = """Methods (--method), but for ot_words with the papers' settings:

  ot_words     optimal transport of tokens and of whole words; links that are right with a probability of --threshold
               (0.5) or more (--probabilities writes it); --link-all also links the source words that have none
  ot           optimal transport, then mutual argmax (XLM-Align's published aligner)
  ot_itermax   optimal transport, then repeated mutual argmax for words without a partner (XLM-Align's self-labeling):
               more links, fewer of them right
  itermax      repeated mutual argmax of cosines (SimAlign's Itermax)
  mutual       mutual argmax of cosines (SimAlign's Argmax): the fewest links, the most precise
  softmax      both softmax directions above --threshold (0.001; awesome-align)"""


@dataclass
class PairOptions:
    """The sentence pairs to read. split: whether text is split into words; None: as its format has it."""

    files: list[str] = field(default_factory=list)
    format: str = "auto"
    columns: list[str] | None = None
    languages: list[str] | None = None
    split: bool | None = None

    def read_pairs(
        self, split: bool | None, to_tmx: bool = False, sentences: tuple[str, str] | None = None
    ) -> PairReader:
        """The pairs, of the files or the two sentences.

        Raises ValueError for what `PairReader` refuses, for languages of input that names none, unless TMX is written,
        and for TMX without them.
        """
        reader = PairReader(self.files, self.format, self.columns, self.languages, split, sentences)
        if reader.format not in ROOTS and bool(self.languages) != to_tmx:
            wrong = "--output-format tmx needs --languages SOURCE TARGET"
            wrong = wrong if to_tmx else "--languages is for TMX and XLIFF"
            raise ValueError(f"The input ({reader.name}) is {reader.format}, which names no languages: {wrong}.")
        return reader


@dataclass
class ModelOptions:
    """The encoder, and how much is said."""

    model: str = DEFAULT_MODEL
    tokenizer: str | None = None
    trust_remote_code: bool = False
    device: str | None = None
    precision: str = "fp32"
    batch_size: int | None = None
    quiet: bool = False


@dataclass
class AlignerOptions(ModelOptions):
    """The encoder, and the rule that links words by it."""

    method: str | None = None
    layer: int | Literal["auto"] | None = None
    encoding: str = "separate"
    symmetrization: str | None = None
    threshold: float | None = None
    link_all: bool = False

    def rule(self) -> dict[str, Any]:
        """The rule as arguments of `WordAligner`; the layer is None where the pairs choose it.

        Raises ValueError for a method that there is not, and for an option that it does not have.
        """
        from modeling.optimal_transport import METHOD_OPTIONS
        from modeling.word_alignment import DEFAULT_METHOD, check_method

        method, layer = PUBLISHED_RULES.get(self.model.partition("@")[0], (DEFAULT_METHOD, "auto"))
        method, layer = self.method or method, layer if self.layer is None else self.layer
        given = {"symmetrization": self.symmetrization, "threshold": self.threshold, "link_all": self.link_all or None}
        given = {name: value for name, value in given.items() if value is not None}
        for name in given if method in METHOD_OPTIONS else ():
            if name not in METHOD_OPTIONS[method]:
                methods = " or ".join(other for other, of in METHOD_OPTIONS.items() if name in of)
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"{option} is given, and {method} has no such option. Add --method {methods}.")
        check_method(method, given)
        return {"method": method, "layer": None if layer == "auto" else layer, "encoding": self.encoding} | given


def make_parser(name: str, description: str, usage: str, options: type[ModelOptions]) -> CommandParser:
    """A parser with what the class of options shares with other commands: pairs, model, rule."""
    parser = CommandParser(prog=name, description=description, usage=usage, allow_abbrev=False)
    if issubclass(options, PairOptions):
        _add_pairs(parser)
    _add_model(parser)
    if issubclass(options, AlignerOptions):
        _add_rule(parser)
    return parser


def _add_pairs(parser: CommandParser) -> None:
    files = "one file of pairs, or a source and a target file; default: stdin"
    parser.add_argument("files", nargs="*", metavar="FILE", help=files)
    group = parser.add_argument_group("input")
    group.add_argument(
        "--format",
        choices=("auto", *FORMATS),
        help="of the pairs; auto: by the ending of a file (.jsonl .json .tmx .xliff .xlf .sdlxliff .mqxliff .mxliff, "
        ".gz behind it), by the first element of other XML, or text",
    )
    group.add_argument(
        "--columns",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="of the two sentences: numbers in lines with tabs, from 1 as for `cut -f`, or names in JSONL (default: "
        "source target), whose values are strings or lists of words",
    )
    group.add_argument(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="of TMX and XLIFF: en takes en-US too (default: of TMX the source language and the first other one, of "
        "XLIFF those of its first <file>)",
    )
    words = group.add_mutually_exclusive_group()
    text = "split lines of running text into words at white space and punctuation"
    words.add_argument("--split", action="store_const", const=True, help=text)
    words.add_argument(
        "--pre-split",
        dest="split",
        action="store_const",
        const=False,
        help="the words of sentences, JSON strings, TMX and XLIFF stand between spaces, tabs or line breaks, as those "
        "of lines do anyway",
    )


def _add_model(parser: CommandParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress bar and no counts; errors and results only")
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="FOLDER|ID",
        help=f"encoder: a folder, or an id of the Hub, owner/name or owner/name@revision (default: {DEFAULT_MODEL})",
    )
    group.add_argument("--tokenizer", metavar="FOLDER|ID", help="default: the model's")
    group.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cuda if there is one)")
    group.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        help="of the encoder (default: fp32); bf16 is faster where the hardware multiplies it natively, and about 1 "
        "link in 200 then depends on the other pairs of the batch",
    )
    group.add_argument(
        "--batch-size", type=_positive, metavar="N", help="inputs to a forward pass (default: 64; on a GPU 256)"
    )


def _add_rule(parser: CommandParser) -> None:
    parser.epilog = METHODS_HELP
    group = parser.add_argument_group("alignment")
    group.add_argument("--method", metavar="NAME", help=f"see below (default: ot_words; of {DEFAULT_MODEL} ot)")
    group.add_argument(
        "--threshold",
        type=float,
        metavar="T",
        help="of ot_words and softmax: how sure a link has to be (default: 0.5, and 0.001 of softmax)",
    )
    group.add_argument(
        "--link-all",
        action="store_true",
        help="of ot_words: link each source word that has no link to its likeliest partner, with a probability below "
        "the threshold",
    )
    group.add_argument(
        "--layer",
        type=_layer,
        metavar="N",
        help="whose states to compare, 0: embeddings; auto, the default: the one that the model's configuration "
        "recommends, or else three fifths of the way up, 7 of 12, unless another one tells the first 200 pairs clearly "
        f"better from sentences that do not belong together (of {DEFAULT_MODEL}: 8)",
    )
    group.add_argument(
        "--symmetrization",
        metavar="NAME",
        help="of both directions' best partners, by mutual and ot (default: intersection) and by ot_words (default: "
        "all links above the threshold; with it, those of them): intersection, union, forward, reverse or "
        "grow-diag-final-and",
    )
    group.add_argument(
        "--encoding",
        choices=("joint", "separate"),
        help="both sentences in one input, or each in its own (default: separate)",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _layer(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of a layer, nor auto") from None


def require_different_files(written: dict[str, str | None], read: dict[str, list[str]]) -> None:
    """Raises ValueError where a file to write, by its option, is also another one to write, or one to read."""
    names: dict[Path, str] = {}
    given = [(name, path) for name, path in written.items() if path]
    given += [(name, path) for name, paths in read.items() for path in paths if path != STDIN]
    for number, (name, path) in enumerate(given):
        place = Path(path).resolve()
        if place in names:
            raise ValueError(f"{path} is {names[place]} and {name}. Name another file for one of them.")
        if number < sum(map(bool, written.values())):
            names[place] = name
