"""The options that the commands of `word-align` share: the pairs to read, the encoder, and the rule that links words.

Each command has a class of options, built from the classes here, and a parser that fills it in. The module imports
nothing heavy, so that `--help` is fast.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finetuning.align.pairs import FORMATS, STDIN, PairReader
from finetuning.align.xml_pairs import ROOTS
from zoo_core.command_line import TRUST_REMOTE_CODE, CommandParser

DEFAULT_MODEL = "intfloat/multilingual-e5-small"
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


@dataclass
class PairOptions:
    """The sentence pairs to read. split: whether text is split into words; None: the default of its format."""

    files: list[str] = field(default_factory=list)
    format: str = "auto"
    columns: list[str] | None = None
    languages: list[str] | None = None
    split: bool | None = None

    def read_pairs(self, split: bool | None, sentences: tuple[str, str] | None = None) -> PairReader:
        """Returns a reader of the pairs in the files, or of the two sentences.

        Raises ValueError as `PairReader` does, and for languages if the input names none.
        """
        reader = PairReader(self.files, self.format, self.columns, self.languages, split, sentences)
        if reader.format not in ROOTS and self.languages:
            raise ValueError(
                f"The input ({reader.name}) is {reader.format}, which names no languages: --languages is for TMX and "
                "XLIFF."
            )
        return reader


@dataclass
class ModelOptions:
    """The encoder, and how much the command prints."""

    model: str = DEFAULT_MODEL
    tokenizer: str | None = None
    trust_remote_code: bool = False
    device: str | None = None
    precision: str = "fp32"
    batch_size: int | None = None
    quiet: bool = False


@dataclass
class AlignerOptions(ModelOptions):
    """The encoder, and the rule that links words with it."""

    method: str | None = None
    layer: int | Literal["auto"] | None = None
    encoding: str = "separate"
    symmetrization: str | None = None
    threshold: float | None = None
    link_all: bool = False

    def rule(self) -> dict[str, Any]:
        """Returns the rule as arguments of `WordAligner`; the layer is None if the pairs determine it.

        Raises ValueError for an unknown method, and for an option that the method does not have.
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
                raise ValueError(f"{option} is given, and method {method} does not use it. Add --method {methods}.")
        check_method(method, given)
        return {"method": method, "layer": None if layer == "auto" else layer, "encoding": self.encoding} | given


def make_parser(name: str, description: str, usage: str, options: type[ModelOptions]) -> CommandParser:
    """Returns a parser with the options that the commands share: pairs, model and rule."""
    parser = CommandParser(prog=name, description=description, usage=usage, allow_abbrev=False)
    if issubclass(options, PairOptions):
        _add_pairs(parser)
    _add_model(parser)
    if issubclass(options, AlignerOptions):
        _add_rule(parser)
    return parser


def _add_pairs(parser: CommandParser) -> None:
    files = "one file of pairs, or a source file and a target file (default: stdin)"
    parser.add_argument("files", nargs="*", metavar="FILE", help=files)
    group = parser.add_argument_group("input")
    group.add_argument(
        "--format",
        choices=("auto", *FORMATS),
        help="format of the pairs; auto: from the file's ending (.jsonl .json .tmx .xliff .xlf .sdlxliff .mqxliff "
        ".mxliff, also with .gz), from the first element of other XML, or else text (default: auto)",
    )
    group.add_argument(
        "--columns",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="columns of the two sentences: numbers in a table with tabs, from 1 as for `cut -f`, or names in JSONL "
        "(default: source target), whose values are strings or lists of words",
    )
    group.add_argument(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="languages to read from TMX and XLIFF; en also matches en-US (default: in TMX the source language and the "
        "first other one, in XLIFF those of its first <file>)",
    )
    words = group.add_mutually_exclusive_group()
    text = "split lines of running text into words at white space and punctuation"
    words.add_argument("--split", action="store_const", const=True, help=text)
    words.add_argument(
        "--pre-split",
        dest="split",
        action="store_const",
        const=False,
        help="split sentences, JSON strings, TMX and XLIFF only at spaces, tabs and line breaks; lines of text are "
        "always split so without --split",
    )


def _add_model(parser: CommandParser) -> None:
    parser.add_argument(
        "--quiet", action="store_true", help="print only results and errors, without progress bar and counts"
    )
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="FOLDER|ID",
        help=f"encoder: a folder, or a Hub id, owner/name or owner/name@revision (default: {DEFAULT_MODEL})",
    )
    group.add_argument("--tokenizer", metavar="FOLDER|ID", help="tokenizer (default: the model's)")
    group.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cuda if available)")
    group.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        help="precision of the encoder (default: fp32); bf16 is faster on hardware with native support, but about 1 "
        "link in 200 then depends on the other pairs of the batch",
    )
    group.add_argument(
        "--batch-size", type=_positive, metavar="N", help="inputs per forward pass (default: 64; on a GPU 256)"
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
        help="for ot_words: link each source word without a link to its most probable partner, whose probability is "
        "below the threshold",
    )
    group.add_argument(
        "--layer",
        type=_layer,
        metavar="N",
        help="layer whose states are compared; 0: embeddings; auto: the layer that the model's configuration "
        "recommends, or else the one three fifths of the way up, 7 of 12, unless another layer separates the first 200 "
        "pairs clearly better from mismatched sentences (default: auto; for microsoft/xlm-align-base: 8)",
    )
    group.add_argument(
        "--symmetrization",
        metavar="NAME",
        help="how mutual, ot and ot_words combine the best partners of both directions: intersection, union, forward, "
        "reverse or grow-diag-final-and (default: intersection; for ot_words none: all links above the threshold). "
        "With one of them, ot_words combines the best partners, and drops links below the threshold",
    )
    group.add_argument(
        "--encoding",
        choices=("joint", "separate"),
        help="encode both sentences in one input, or each in its own (default: separate)",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _layer(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither the number of a layer nor auto") from None


def require_different_files(written: dict[str, str | None], read: dict[str, list[str]]) -> None:
    """Raises ValueError if a file to write, by its option, is also another file to write or to read."""
    names: dict[Path, str] = {}
    given = [(name, path) for name, path in written.items() if path]
    given += [(name, path) for name, paths in read.items() for path in paths if path != STDIN]
    for number, (name, path) in enumerate(given):
        place = Path(path).resolve()
        if place in names:
            raise ValueError(f"{path} is given for {names[place]} and {name}. Name another file for one of them.")
        if number < sum(map(bool, written.values())):
            names[place] = name
