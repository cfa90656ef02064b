"""The options of `word-align`: what they are, and which contradict each other."""

import argparse
from pathlib import Path

from finetuning.align.formats import FORMATS
from finetuning.align.output import STATE_ENDING, require_writable
from finetuning.align.pairs import FORMATS as INPUT_FORMATS
from finetuning.align.pairs import STDIN
from zoo_core.command_line import CommandParser
from zoo_core.recipes import TRUST_REMOTE_CODE

DESCRIPTION = """Link the words of sentences to the words of their translations.

  word-align "The house is small." "Das Haus ist klein."     two sentences; a terminal shows them word by word
  word-align < pairs.txt > links.txt                         source ||| target a line, or a tab between
  word-align corpus.de corpus.en > links.txt                 two files, line by line
  word-align --model FacebookAI/xlm-roberta-base pairs.jsonl --output-format json --probabilities
                                                             {"source": "...", "target": ["a", "list", "of", "words"]}
  word-align wiki.tsv --columns 2 3 > links.txt              tables: source and target in these columns, between tabs
  word-align memory.tmx --languages en de --output-format tmx > linked.tmx
                                                             TMX, XLIFF (1.2, 2); files of pairs may be gzip files (.gz)

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
spaces, tabs or line breaks there too, and so does --gold; lists in JSONL are words as they are.

Each segment of XLIFF is a pair, and so is each unit of TMX. Tags are left out; a tag for a line break separates words.

A large file, in constant memory; after a crash or Ctrl-C the same command with --resume goes on where it stopped:

  word-align corpus.de corpus.en --output links.txt --device cuda
  word-align corpus.de corpus.en --output links.txt --device cuda --resume

See the links, or measure them against links made by hand:

  word-align pairs.txt --open > links.txt                    a page in the browser; --html FILE keeps it there
  word-align test.de test.en --gold alignment.txt --plot confidence.png > links.txt
  word-align test.de test.en --gold alignment.txt --sweep-layers --plot layers.png
  word-align xlwa.tsv --columns 1 2 --gold xlwa.tsv > links.txt             links in the last column of a table

Let an encoder learn from your own pairs, without gold links, then align by it:

  word-align --adapt pairs.txt --output adapted
  word-align --model adapted pairs.txt > links.txt
  word-align --adapt pairs.txt --output adapted test.de test.en --gold alignment.txt     AER before and after

Carry labels over the links: tags or names of tokens (CoNLL) to the translations, a line each; or spans of characters:

  word-align --project labels.conll translations.txt --output projected.conll
  word-align --project pairs.jsonl --output projected.jsonl
                       {"source": "...", "target": "...", "spans": [{"start": 0, "end": 4, "label": "PER"}]}

Methods, but for ot_words with the papers' settings:

  ot_words     optimal transport of tokens and of whole words; links that are right with a probability of --threshold
               (0.5) or more (--probabilities writes it)
  ot           optimal transport, then mutual argmax (XLM-Align's published aligner)
  ot_itermax   optimal transport, then repeated mutual argmax for words without a partner (XLM-Align's self-labeling):
               more links, fewer of them right
  itermax      repeated mutual argmax of cosines (SimAlign's Itermax)
  mutual       mutual argmax of cosines (SimAlign's Argmax): the fewest links, the most precise
  softmax      both softmax directions above --threshold (0.001; awesome-align)"""

METHODS = (
    "ot_words",
    "ot",
    "ot_itermax",
    "itermax",
    "mutual",
    "softmax",
)  # optimal_transport's; importing it takes seconds
SYMMETRIZATIONS = ("intersection", "union", "forward", "reverse", "grow-diag-final-and")
METHODS_WITH_THRESHOLD = ("ot_words", "softmax")
DEFAULT_MODEL = "microsoft/xlm-align-base"
# method and layer where none are given; a model that was published as an aligner has its own
DEFAULTS, PUBLISHED_DEFAULTS = ("ot_words", "auto"), {DEFAULT_MODEL: ("ot", 8)}
PLOT_ENDINGS = (".png", ".pdf", ".svg")


def make_parser() -> CommandParser:
    """All options, by what they are about."""
    parser = CommandParser(
        prog="word-align",
        description=DESCRIPTION,
        usage="word-align [FILE | SOURCE TARGET] [--model FOLDER|ID] [options]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="one file of pairs, a source and a target file, or two sentences; default: stdin",
    )
    group = parser.add_argument_group("input")
    group.add_argument(
        "--format",
        choices=("auto", *INPUT_FORMATS),
        default="auto",
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
    group.add_argument(
        "--split", action="store_true", help="split lines of running text into words at white space and punctuation"
    )
    group.add_argument(
        "--pre-split",
        action="store_true",
        help="the words of sentences, JSON strings, TMX, XLIFF and --project's translations stand between spaces, tabs "
        "or line breaks, as those of lines do anyway",
    )
    group.add_argument(
        "--project", metavar="FILE", help="labeled source sentences, to carry their labels over to the translations"
    )
    group = parser.add_argument_group("output")
    group.add_argument(
        "--output", metavar="FILE", help="write the links there, not to stdout; must not exist (--adapt: a folder)"
    )
    group.add_argument("--resume", action="store_true", help="go on with an --output that was not finished")
    group.add_argument("--output-format", choices=tuple(FORMATS), help="see above (default: pharaoh)")
    group.add_argument(
        "--probabilities", action="store_true", help="with each link: 0-0:0.9731, or `probabilities` in JSON"
    )
    group.add_argument(
        "--html", metavar="PAGE", help="write a page to look at the links and the similarity of words, of 100 pairs"
    )
    group.add_argument("--open", action="store_true", help="open that page in the browser; PAGE may be left out then")
    group.add_argument("--quiet", action="store_true", help="no progress bar and no counts; errors and scores only")
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="FOLDER|ID",
        help=f"encoder: a folder, or an id of the Hub, owner/name or owner/name@revision (default: {DEFAULT_MODEL}, "
        "with its own published method and layer, ot and 8)",
    )
    group.add_argument("--tokenizer", metavar="FOLDER|ID", help="default: the model's")
    group.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: cuda if there is one)")
    group.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        default="fp32",
        help="of the encoder (default: fp32); bf16 is faster where the hardware multiplies it natively, and about 1 "
        "link in 200 then depends on the other pairs of the batch",
    )
    group.add_argument(
        "--batch-size", type=_positive, metavar="N", help="inputs to a forward pass (default: 64; on a GPU 256)"
    )
    group = parser.add_argument_group("alignment")
    group.add_argument("--method", choices=METHODS, help="default: ot_words")
    group.add_argument(
        "--threshold",
        type=float,
        metavar="T",
        help="of ot_words and softmax: how sure a link has to be (default: 0.5, and 0.001 of softmax)",
    )
    group.add_argument(
        "--layer",
        type=_layer,
        metavar="N",
        help="whose states to compare, 0: embeddings; auto, the default: the one that the model's configuration "
        "recommends, or that best tells the first 200 pairs from sentences that do not belong together",
    )
    group.add_argument(
        "--symmetrization",
        choices=SYMMETRIZATIONS,
        help="of both directions' best partners, by mutual and ot (default: intersection) and by ot_words (default: "
        "all links above the threshold; with it, those of them)",
    )
    group.add_argument(
        "--encoding",
        choices=("joint", "separate"),
        default="separate",
        help="both sentences in one input, or each in its own (default: separate)",
    )
    group = parser.add_argument_group("adaptation")
    group.add_argument(
        "--adapt",
        metavar="PAIRS",
        help="let the encoder learn to align from these pairs, in minutes on a CPU, and write it to the folder "
        "--output, a --model for later; with FILE and --gold, its AER before and after",
    )
    group = parser.add_argument_group("evaluation (the input is held in memory)")
    group.add_argument(
        "--gold",
        metavar="FILE",
        help="links made by hand, `sentence i j S|P`, or `i-j ipj` alone or in the last column of a table: scores at "
        "the end",
    )
    group.add_argument(
        "--gold-base",
        type=int,
        choices=(0, 1),
        help="what --gold counts from: its words, or the sentences of `sentence i j`",
    )
    group.add_argument("--sweep-layers", action="store_true", help="scores of every layer, in place of links")
    group.add_argument(
        "--plot",
        metavar="FILE",
        help="draw precision and recall by threshold and how far the probabilities hold, or with --sweep-layers AER by "
        "layer (png, pdf, svg)",
    )
    return parser


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


def defaults_of(flags: argparse.Namespace) -> tuple[str, int | str]:
    """Method and layer where none are given. An adapted model is no longer the published one."""
    return DEFAULTS if flags.adapt else PUBLISHED_DEFAULTS.get(flags.model.partition("@")[0], DEFAULTS)


def fill_in(flags: argparse.Namespace) -> None:
    """Defaults that depend on the model; `layer` is None where the pairs choose it."""
    method, layer = defaults_of(flags)
    flags.method = flags.method or method
    flags.layer = layer if flags.layer is None else flags.layer
    flags.layer = None if flags.layer == "auto" else flags.layer
    flags.output_format = flags.output_format or "pharaoh"


def check_flags(flags: argparse.Namespace) -> None:
    """Raises ValueError for options that contradict each other or would do nothing, and for a bad place of the plot."""
    sweep, adapts = flags.sweep_layers, flags.adapt is not None
    of_links = {
        "--html": flags.html,
        "--open": flags.open,
        "--output-format": flags.output_format,
        "--probabilities": flags.probabilities,
    }
    # --project reads labels, and writes labels
    of_pairs = {"--format": flags.format != "auto", "--languages": flags.languages, "--gold": flags.gold}
    of_pairs |= {**of_links, "--resume": flags.resume}
    rules = [
        (adapts and sweep, "--adapt with --sweep-layers", "one trains a model, the other measures one"),
        *(
            (flags.project and value, f"--project with {name}", "it has files of labels, in and out")
            for name, value in of_pairs.items()
        ),
        (
            flags.project and flags.columns and flags.files,
            "--project with --columns",
            "a file of translations has one",
        ),
        (
            flags.project and flags.pre_split and not flags.files,
            "--project with --pre-split",
            "spans of characters need texts",
        ),
        (flags.resume and not flags.output, "--resume without --output", "only a file can be resumed"),
        *(
            (flags.resume and value, f"--resume with {name}", "the page shows the pairs of one run")
            for name, value in (("--html", flags.html), ("--open", flags.open))
        ),
        (not adapts and flags.resume and flags.gold, "--resume with --gold", "scores are of all sentences together"),
        (sweep and not flags.gold, "--sweep-layers without --gold", "layers are told apart by scores"),
        *(
            (sweep and value, f"--sweep-layers with {name}", "it scores layers and writes no links")
            for name, value in ({"--output": flags.output} | of_links).items()
        ),
        (adapts and not flags.output, "--adapt without --output", "the adapted model is written there"),
        (
            adapts and (flags.files or flags.sentences) and not flags.gold,
            "--adapt without --gold",
            "files beside its own are to be scored",
        ),
        *(
            (adapts and value, f"--adapt with {name}", "it writes a model and no links")
            for name, value in (of_links | {"--project": flags.project}).items()
        ),
        (adapts and flags.plot, "--adapt with --plot", "it draws nothing"),
        (adapts and flags.layer not in (None, "auto"), "--adapt with --layer", "it chooses one"),
        (sweep and flags.layer not in (None, "auto"), "--sweep-layers with --layer", "it takes every layer"),
        (flags.plot and not flags.gold, "--plot without --gold", "it draws scores"),
        (flags.split and flags.pre_split, "--split with --pre-split", "each says where words end"),
        (flags.gold_base is not None and not flags.gold, "--gold-base without --gold", "it says how to read it"),
    ]
    for is_broken, rule, reason in rules:
        if is_broken:
            name, how, other = rule.split()
            change = f"Add {other}" if how == "without" else f"Leave out {name} or {other}"
            raise ValueError(f"{name} is given {how} {other}: {reason}. {change}.")
    method = flags.method or defaults_of(flags)[0]
    if flags.threshold is not None and method not in METHODS_WITH_THRESHOLD:
        raise ValueError(
            f"--threshold is given, and the method is {method}, which has none. Add --method "
            f"{' or '.join(METHODS_WITH_THRESHOLD)}."
        )
    if flags.project and (flags.sentences or len(flags.files) > 1):
        given = "two sentences" if flags.sentences else f"{len(flags.files)} files"
        raise ValueError(f"--project is given with {given}. Name one file, of the translations.")
    require_different_files(flags)
    if flags.plot:
        require_writable(flags.plot, "--plot")
        if Path(flags.plot).suffix.lower() not in PLOT_ENDINGS:
            raise ValueError(f"--plot is {flags.plot}. The ending says what is drawn: {', '.join(PLOT_ENDINGS)}.")


def require_different_files(flags: argparse.Namespace) -> None:
    """Raises ValueError where a file to write is also another one to write, or one to read."""
    written = [("--output", flags.output), ("--html", flags.html), ("--plot", flags.plot)]
    if flags.output and not flags.adapt:
        written.append(("what --resume needs of --output", f"{flags.output}{STATE_ENDING}"))
    read = [
        ("--gold", flags.gold),
        ("--adapt", flags.adapt),
        ("--project", flags.project),
        *(("the input", name) for name in flags.files if name != STDIN),
    ]
    names: dict[Path, str] = {}
    for number, (name, path) in enumerate(written + read):
        if path is None:
            continue
        place = Path(path).resolve()
        if place in names:
            raise ValueError(f"{path} is {names[place]} and {name}. Name another file for one of them.")
        if number < len(written):
            names[place] = name
